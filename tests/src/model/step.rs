//! Which steps are possible in a state, which of them must happen some day (fair), and what they do.
//!
//! Faults are never fair: the search must not let a crash, a refusal or a loss rescue a read.

use super::config::{Config, Planted};
use super::world::{Health, Item, Reply, Said, Serves, ToServer, Work, World, node};
use super::{client, server};
use tiedkv_client::copies::{End, Event, Timer};
use tiedkv_server::request::copy_state::StateCell;
use tiedkv_server::request::recent_ties::Filer;

/// One step. Numbers are servers, or places in the list of messages on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next message of a client link arrives.
    Arrives(u8),
    /// A later withdraw of a client link arrives first.
    Overtakes(u8, u8),
    /// A split arrival is completed.
    SecondHalf(u8),
    /// A worker pops the next entry (and starts it).
    Pop(u8),
    /// A worker starts what it popped.
    Start(u8),
    /// A job ahead is done.
    JobDone(u8),
    /// A running copy is done.
    Finish(u8),
    /// A running copy stops at a cancellation point.
    Stop(u8),
    /// A chunk is done and another is left.
    ChunkDone(u8),
    /// A replica catches up.
    Apply(u8),
    /// A copy set aside has waited long enough.
    AsideExpires(u8),
    /// A server notices a dead connection.
    ServerNotices(u8),
    /// A cancel arrives.
    Cancel(u8),
    /// An answer arrives.
    Reply(u8),
    /// The client notices a dead connection.
    ClientNotices(u8),
    /// The client finds a link silent.
    Silent(u8),
    /// A timer of the client fires.
    Fires(Timer),
    /// The next read begins.
    NextRead,
    /// Fault: the lane refuses the next copy.
    Busy(u8),
    /// Fault: a popped copy is taken for expired.
    WrongClock(u8),
    /// Fault: a running copy fails.
    Fail(u8),
    /// Fault: a cancel is lost.
    Loss(u8),
    /// Fault: a server crashes.
    Crash(u8),
    /// Fault: a crashed server returns.
    Restart(u8),
    /// Fault: a connection breaks.
    ConnectionLoss(u8),
    /// Fault: a server hangs for good.
    Hang(u8),
    /// Fault: a node outside the tie cancels under this number.
    Stranger(u8, u8),
    /// The caller leaves.
    Drop,
    /// An early cancel is forgotten: which server, which of its entries.
    Expire(u8, u8),
}

impl Step {
    /// It happens some day if it stays possible.
    pub fn is_fair(self) -> bool {
        use Step::*;
        !matches!(
            self,
            Busy(_)
                | WrongClock(_)
                | Fail(_)
                | Loss(_)
                | Crash(_)
                | Restart(_)
                | ConnectionLoss(_)
                | Hang(_)
                | Stranger(..)
                | Drop
                | Expire(..)
        )
    }
}

/// Appends every step that is possible.
pub(super) fn possible(config: &Config, world: &World, steps: &mut Vec<Step>) {
    if config.to_outcome && world.race.outcome().is_some() {
        return;
    }
    for s in 0..config.servers {
        of_server(config, world, s, steps);
        of_link(config, world, s, steps);
    }
    for (index, reply) in world.replies.iter().enumerate() {
        if index == 0 || world.replies[index - 1] != *reply {
            steps.push(Step::Reply(index as u8));
        }
    }
    for (index, cancel) in world.cancels.iter().enumerate() {
        if index > 0 && world.cancels[index - 1] == *cancel {
            continue;
        }
        steps.push(Step::Cancel(index as u8));
        if world.budgets.loss > 0 {
            steps.push(Step::Loss(index as u8));
        }
    }
    if world.race.outcome().is_some() {
        if world.read + 1 < config.reads {
            steps.push(Step::NextRead);
        }
        return;
    }
    steps.extend(client::armed(config, world).map(Step::Fires));
    if world.budgets.drop > 0 {
        steps.push(Step::Drop);
    }
}

fn of_link(config: &Config, world: &World, s: usize, steps: &mut Vec<Step>) {
    let link = &world.links[s];
    let health = world.servers[s].health;
    if link.trusted && !link.alive {
        steps.push(Step::ClientNotices(s as u8));
    }
    let owes = || world.race.copies().iter().any(|copy| copy.replica == node(s) && copy.end == End::Out);
    if config.silence && health == Health::Hung && world.race.outcome().is_none() && owes() {
        steps.push(Step::Silent(s as u8));
    }
    if world.budgets.connection_loss > 0 && health == Health::Up && link.alive {
        steps.push(Step::ConnectionLoss(s as u8));
    }
}

fn of_server(config: &Config, world: &World, s: usize, steps: &mut Vec<Step>) {
    let (server, link, left) = (&world.servers[s], &world.links[s], &world.budgets);
    let s = s as u8;
    match server.health {
        Health::Hung => return,
        Health::Crashed if left.restart > 0 => return steps.push(Step::Restart(s)),
        Health::Crashed => return,
        Health::Up => {}
    }
    if let Some(next) = link.to_server.first() {
        steps.push(Step::Arrives(s));
        if left.busy > 0 && matches!(next, ToServer::Copy(_)) {
            steps.push(Step::Busy(s));
        }
    }
    if config.unordered || config.has(Planted::WithdrawOvertakes) {
        let later = link.to_server.iter().enumerate().skip(1);
        steps.extend(
            later.filter(|(_, m)| matches!(m, ToServer::Withdraw(_))).map(|(i, _)| Step::Overtakes(s, i as u8)),
        );
    }
    if !server.half.is_empty() {
        steps.push(Step::SecondHalf(s));
    }
    of_worker(config, world, s, steps);
    if server.serves == Serves::Later {
        steps.push(Step::Apply(s));
    }
    let for_ever = config.has(Planted::AsideForever) || config.has(Planted::AsideLeaks);
    if !server.aside.is_empty() && !for_ever {
        steps.push(Step::AsideExpires(s));
    }
    if !server.unnoticed.is_empty() {
        steps.push(Step::ServerNotices(s));
    }
    if left.crash > 0 {
        steps.push(Step::Crash(s));
    }
    if left.hang > 0 {
        steps.push(Step::Hang(s));
    }
    if left.stranger > 0 && world.next_tie > 0 {
        steps.extend((0..config.width).map(|number| Step::Stranger(s, number)));
    }
    if config.expire {
        let filed = server.table.recent().sorted();
        let early = filed.iter().enumerate().filter(|(_, (_, filer, _))| matches!(filer, Filer::Peer(_)));
        steps.extend(early.map(|(index, _)| Step::Expire(s, index as u8)));
    }
}

fn of_worker(config: &Config, world: &World, s: u8, steps: &mut Vec<Step>) {
    let server = &world.servers[usize::from(s)];
    match &server.work {
        Work::Idle => {
            if !server.lane.is_empty() {
                steps.push(Step::Pop(s));
                let next_is_copy = server.lane.iter().next().is_some_and(|(.., item)| *item != Item::Job);
                if world.budgets.wrong_clock > 0 && next_is_copy {
                    steps.push(Step::WrongClock(s));
                }
            }
        }
        Work::InHand(_) => steps.push(Step::Start(s)),
        Work::Job => steps.push(Step::JobDone(s)),
        Work::Running { item, .. } => {
            let Item::Copy { name, chunk, .. } = item else { return };
            let phase = server.table.copy(name).map(StateCell::phase);
            if phase.is_some_and(|phase| phase.must_stop()) {
                steps.push(Step::Stop(s));
            }
            steps.push(if config.chunks && !chunk { Step::ChunkDone(s) } else { Step::Finish(s) });
            if world.budgets.fail > 0 {
                steps.push(Step::Fail(s));
            }
        }
    }
}

/// Takes one step.
pub(super) fn take(config: &Config, world: &mut World, step: Step) {
    match step {
        Step::Arrives(s) | Step::Busy(s) => {
            let s = usize::from(s);
            let busy = matches!(step, Step::Busy(_));
            if busy {
                world.budgets.busy -= 1;
                if !config.forgiving {
                    world.taint(s);
                }
            }
            let message = world.links[s].to_server.remove(0);
            server::receive(config, world, s, message, busy);
        }
        Step::Overtakes(s, index) => {
            let message = world.links[usize::from(s)].to_server.remove(usize::from(index));
            server::receive(config, world, usize::from(s), message, false);
        }
        Step::SecondHalf(s) => server::arrive_blindly(config, world, usize::from(s)),
        Step::Pop(s) => server::pop(config, world, usize::from(s), false),
        Step::WrongClock(s) => {
            world.budgets.wrong_clock -= 1;
            world.taint(usize::from(s));
            // A clock that jumps also forgets the early cancels.
            world.excused = true;
            server::pop(config, world, usize::from(s), true);
        }
        Step::Start(s) => {
            let work = std::mem::replace(&mut world.server(usize::from(s)).work, Work::Idle);
            if let Work::InHand(waiting) = work {
                server::start(config, world, usize::from(s), waiting, false);
            }
        }
        Step::JobDone(s) => world.server(usize::from(s)).work = Work::Idle,
        Step::Finish(s) => server::finish(world, usize::from(s), Said::Good),
        Step::Fail(s) => {
            world.budgets.fail -= 1;
            world.taint(usize::from(s));
            server::finish(world, usize::from(s), Said::Failed);
        }
        Step::Stop(s) => server::stop(world, usize::from(s)),
        Step::ChunkDone(s) => server::chunk_done(config, world, usize::from(s)),
        Step::Apply(s) => server::apply(world, usize::from(s)),
        Step::AsideExpires(s) => server::aside_expires(world, usize::from(s)),
        Step::ServerNotices(s) => {
            if let Some(connection) = world.servers[usize::from(s)].unnoticed.first().copied() {
                server::notice(config, world, usize::from(s), connection);
            }
        }
        Step::Cancel(index) => {
            let message = world.cancels.remove(usize::from(index));
            let s = usize::from(message.to);
            if world.servers[s].health == Health::Up {
                server::cancel(config, world, s, message.from, &message.cancel);
            } else {
                world.excused = true;
            }
        }
        Step::Loss(index) => {
            world.budgets.loss -= 1;
            world.excused = true;
            world.cancels.remove(usize::from(index));
        }
        _ => take_at_the_client(config, world, step),
    }
}

fn take_at_the_client(config: &Config, world: &mut World, step: Step) {
    match step {
        Step::Reply(index) => {
            let reply: Reply = world.replies.remove(usize::from(index));
            client::on_reply(config, world, reply);
        }
        Step::ClientNotices(s) => {
            let connection = world.links[usize::from(s)].connection;
            world.links[usize::from(s)].trusted = false;
            world.replies.retain(|reply| reply.server != s || reply.connection > connection);
            client::event(config, world, Event::LinkLost { replica: node(usize::from(s)) });
        }
        Step::Silent(s) => client::event(config, world, Event::LinkSilent { replica: node(usize::from(s)) }),
        Step::Fires(timer) => client::event(config, world, Event::Timer(timer)),
        Step::NextRead => {
            world.read += 1;
            client::begin(config, world);
        }
        Step::Drop => {
            world.budgets.drop -= 1;
            client::event(config, world, Event::Dropped);
        }
        _ => take_fault(config, world, step),
    }
}

fn take_fault(config: &Config, world: &mut World, step: Step) {
    match step {
        Step::Crash(s) => {
            world.budgets.crash -= 1;
            server::crash(world, usize::from(s));
        }
        Step::Restart(s) => {
            world.budgets.restart -= 1;
            world.server(usize::from(s)).health = Health::Up;
        }
        Step::ConnectionLoss(s) => {
            world.budgets.connection_loss -= 1;
            let s = usize::from(s);
            let connection = world.links[s].connection;
            world.server(s).unnoticed.push(connection);
            server::lose_link(world, s);
            if !config.forgiving {
                world.taint(s);
            }
        }
        Step::Hang(s) => {
            world.budgets.hang -= 1;
            world.server(usize::from(s)).health = Health::Hung;
            world.taint(usize::from(s));
        }
        Step::Stranger(s, number) => {
            world.budgets.stranger -= 1;
            let cancel = server::strangers_cancel(world, number);
            server::cancel(config, world, usize::from(s), server::STRANGER, &cancel);
        }
        Step::Expire(s, index) => {
            let s = usize::from(s);
            let entry = world.servers[s].table.recent().sorted().get(usize::from(index)).copied();
            if let Some((race, filer, _)) = entry {
                world.excused = true;
                world.server(s).table.recent_mut().evict(&race, filer);
            }
        }
        _ => {}
    }
}
