//! Carries messages into the shipped rooms of one server, and their outcomes onto the wires.

use super::config::{Config, Planted};
use super::properties::Property;
use super::world::{
    CALLER, CancelMessage, Copy, CopyMessage, DEADLINE, Fate, Handle, Health, Item, LATE, NOW, Reply, Said, Serves,
    ToServer, Work, World, node, server_of,
};
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, Position, TieId};
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::Class;
use tiedkv_protocol::tie::CopyNumber;
use tiedkv_server::request::copy_state::{Phase, StateCell, Verdict, Waited};
use tiedkv_server::request::lane::{Pushed, Waiting};
use tiedkv_server::request::recent_ties::{Filed, Filer};
use tiedkv_server::request::set_aside::{Inserted, Need};
use tiedkv_server::request::tie::{
    Arrival, Arriving, CancelOutcome, CopyName, HandOver, Race, Servable, Start, TieTable, Which, WithdrawOutcome,
};

const CLASS: Class = Class::Interactive;
/// A node that no tie names.
pub(super) const STRANGER: NodeId = NodeId(99);

/// An entry of a lane or of the copies set aside whose copy has left the registry before its start.
fn is_withdrawn(table: &TieTable<Handle>, item: &Item) -> bool {
    match item {
        Item::Job => false,
        Item::Copy { name, copy, .. } => table.copy(name).is_none_or(|handle| handle.copy != *copy),
    }
}

/// A message from the client.
pub(super) fn receive(config: &Config, world: &mut World, s: usize, message: ToServer, busy: bool) {
    match message {
        ToServer::Copy(copy) if config.has(Planted::SplitArrival) => {
            let mut table = world.servers[s].table.clone();
            match table.arrive(arriving(&copy), NOW) {
                Arrival::Queue => world.server(s).half.push(copy),
                _ => arrive(config, world, s, copy, busy),
            }
        }
        ToServer::Copy(copy) => arrive(config, world, s, copy, busy),
        ToServer::Withdraw(name) => {
            let outcome = world.server(s).table.withdraw(&name, NOW);
            if matches!(outcome, WithdrawOutcome::Filed(_)) && config.has(Planted::WithdrawOvertakes) {
                world.server(s).table.recent_mut().evict(&name.race(), Filer::Client);
            }
            withdrawn(world, s, outcome);
        }
    }
}

fn arriving(message: &CopyMessage) -> Arriving<Handle> {
    Arriving {
        name: message.name,
        tie: message.tie.clone(),
        deadline: DEADLINE,
        copy: Handle { phase: Phase::Queued, copy: message.copy, connection: message.connection },
    }
}

/// The second step of a split arrival: what was filed since the look-up is not seen.
pub(super) fn arrive_blindly(config: &Config, world: &mut World, s: usize) {
    let Some(message) = world.server(s).half.pop() else { return };
    let race = message.name.race();
    for peer in 0..config.servers {
        world.server(s).table.recent_mut().evict(&race, Filer::Peer(node(peer)));
    }
    arrive(config, world, s, message, false);
}

fn arrive(config: &Config, world: &mut World, s: usize, message: CopyMessage, busy: bool) {
    let (copy, name, connection) = (message.copy, message.name, message.connection);
    let filed_by_peer = world.servers[s].table.recent().filed(&name.race(), NOW).any(|(f, _)| f != Filer::Here);
    if config.has(Planted::EarlyNotJudged) && filed_by_peer {
        return world.set_fate(copy, Fate::EndedByPeer);
    }
    match world.server(s).table.arrive(arriving(&message), NOW) {
        Arrival::Queue => {}
        Arrival::CancelledEarly { .. } => return world.set_fate(copy, Fate::EndedByPeer),
        Arrival::WithdrawnEarly => return world.set_fate(copy, Fate::Vanished),
        Arrival::Duplicate => {
            world.break_rule(Property::PX);
            return answer(world, s, connection, copy, Said::Duplicate);
        }
    }
    world.set_fate(copy, Fate::Waits);
    let item = Item::Copy { name, copy, chunk: false };
    let server = world.server(s);
    let table = &server.table;
    let refused = busy
        || match server.lane.push(item, CLASS, message.extra, |item| is_withdrawn(table, item)) {
            Pushed::Queued => false,
            Pushed::Refused(_) | Pushed::QueuedInsteadOf(_) => true,
        };
    if refused && server.table.refuse(&name, NOW) == Verdict::Answer {
        refuse(world, s, connection, copy);
    }
}

/// A worker pops the next entry; nothing follows when only withdrawn ones were left.
pub(super) fn pop(config: &Config, world: &mut World, s: usize, clock_wrong: bool) {
    let server = world.server(s);
    let table = &server.table;
    let Some(waiting) = server.lane.pop(|item| is_withdrawn(table, item)) else { return };
    if waiting.item == Item::Job {
        server.work = Work::Job;
    } else if config.split_pop && !clock_wrong {
        server.work = Work::InHand(waiting);
    } else {
        start(config, world, s, waiting, clock_wrong);
    }
}

/// The whole start step of a popped copy.
pub(super) fn start(config: &Config, world: &mut World, s: usize, waiting: Waiting<Item>, clock_wrong: bool) {
    let server = world.server(s);
    server.work = Work::Idle;
    let Item::Copy { name, copy, .. } = waiting.item else { return };
    let connection = server.table.copy(&name).map_or(0, |handle| handle.connection);
    let servable = if server.serves == Serves::Now { Servable::Now } else { Servable::NotYet };
    let now = if clock_wrong { LATE } else { NOW };
    match server.table.start(&name, servable, Duration::ZERO, now) {
        Start::Run(over) => {
            server.work = Work::Running { item: waiting.item, extra: waiting.extra };
            if let Which::Tied { tie, .. } = name.which
                && world.told & World::told_bit(tie, s) != 0
                && !world.excused
            {
                world.break_rule(Property::P5);
            }
            world.set_fate(copy, Fate::Running);
            if servable == Servable::NotYet {
                world.break_rule(Property::PS);
            }
            if let Some(over) = over.filter(|_| !config.has(Planted::StartWithoutCancel)) {
                hand_over(world, s, copy, &over);
            }
        }
        Start::RunsOn => server.work = Work::Running { item: waiting.item, extra: waiting.extra },
        Start::Stopped(verdict) => stopped(world, copy, verdict),
        Start::Expired if config.has(Planted::SilentExpired) => world.set_fate(copy, Fate::Refused),
        Start::Expired | Start::Behind => {
            world.taint(s);
            refuse(world, s, connection, copy);
        }
        Start::Overdue => answer_started(world, s, connection, copy, Said::Failed),
        Start::SetAside { until } => {
            if config.has(Planted::CancelBeforeServable)
                && let Which::Tied { tie, number } = name.which
            {
                let cancel = Cancel { caller: CALLER, tie, number };
                let to = (0..config.servers).filter(|peer| *peer != s).map(node).collect();
                hand_over(world, s, copy, &HandOver { to, cancel });
            }
            let server = world.server(s);
            let table = &server.table;
            let need = Need::Position(Position(1));
            match server.aside.insert(waiting, need, until, |item| is_withdrawn(table, item)) {
                Inserted::Waits => {}
                Inserted::Servable(waiting) => put_back(world, s, waiting),
                Inserted::Full(waiting) => behind(world, s, waiting),
            }
        }
        Start::Gone => server.lane.dropped(),
    }
}

fn stopped(world: &mut World, copy: Copy, verdict: Verdict) {
    let fate = if verdict == Verdict::Yielded { Fate::EndedByPeer } else { Fate::VanishedStarted };
    world.set_fate(copy, fate);
}

/// The worker is done with its copy, well or badly.
pub(super) fn finish(world: &mut World, s: usize, said: Said) {
    let server = world.server(s);
    let work = std::mem::replace(&mut server.work, Work::Idle);
    let Work::Running { item: Item::Copy { name, copy, .. }, .. } = work else { return };
    let connection = server.table.copy(&name).map_or(0, |handle| handle.connection);
    match server.table.finish(&name, NOW) {
        Verdict::Answer => answer_started(world, s, connection, copy, said),
        verdict => stopped(world, copy, verdict),
    }
}

/// The worker is at a cancellation point of a copy that was asked to stop.
pub(super) fn stop(world: &mut World, s: usize) {
    let server = world.server(s);
    let work = std::mem::replace(&mut server.work, Work::Idle);
    let Work::Running { item: Item::Copy { name, copy, .. }, .. } = work else { return };
    let verdict = server.table.stop(&name, NOW);
    stopped(world, copy, verdict);
}

/// The first of two chunks is done: stop, or queue again.
pub(super) fn chunk_done(config: &Config, world: &mut World, s: usize) {
    let server = world.server(s);
    let work = std::mem::replace(&mut server.work, Work::Idle);
    let Work::Running { item: Item::Copy { name, copy, .. }, .. } = work else { return };
    match server.table.stop(&name, NOW) {
        Verdict::GoOn => {
            server.lane.push_again(Item::Copy { name, copy, chunk: true }, CLASS);
            if config.has(Planted::ChunkCountsAsQueued)
                && let Some(handle) = server.table.copy_mut(&name)
            {
                handle.phase = Phase::Queued;
            }
        }
        verdict => stopped(world, copy, verdict),
    }
}

/// The replica has caught up.
pub(super) fn apply(world: &mut World, s: usize) {
    world.server(s).serves = Serves::Now;
    while let Some(waiting) = world.server(s).aside.applied(Position(1)) {
        put_back(world, s, waiting);
    }
}

fn put_back(world: &mut World, s: usize, waiting: Waiting<Item>) {
    let server = world.server(s);
    if let Item::Copy { name, .. } = waiting.item
        && !is_withdrawn(&server.table, &waiting.item)
        && server.table.queue_again(&name)
    {
        server.lane.put_back(waiting);
    }
}

/// The next copy set aside has waited as long as it may.
pub(super) fn aside_expires(world: &mut World, s: usize) {
    if let Some(waiting) = world.server(s).aside.expired(LATE) {
        behind(world, s, waiting);
    }
}

fn behind(world: &mut World, s: usize, waiting: Waiting<Item>) {
    let server = world.server(s);
    let Item::Copy { name, copy, .. } = waiting.item else { return };
    if is_withdrawn(&server.table, &waiting.item) {
        return;
    }
    let connection = server.table.copy(&name).map_or(0, |handle| handle.connection);
    if server.table.refuse(&name, NOW) == Verdict::Answer {
        world.taint(s);
        refuse(world, s, connection, copy);
    }
}

/// A peer's cancel arrives.
pub(super) fn cancel(config: &Config, world: &mut World, s: usize, from: NodeId, cancel: &Cancel) {
    let race = Race::of_cancel(cancel);
    if from != STRANGER {
        world.told |= World::told_bit(cancel.tie, s);
    }
    let server = world.server(s);
    let shadowed = server.table.recent().filed(&race, NOW).any(|(filer, _)| matches!(filer, Filer::Peer(_)));
    if config.has(Planted::OneEarlySlot) && shadowed {
        return;
    }
    match server.table.cancel(from, cancel, NOW) {
        CancelOutcome::Filed(Filed::New) if config.has(Planted::NoEarlyCancels) => {
            server.table.recent_mut().evict(&race, Filer::Peer(from));
        }
        CancelOutcome::Filed(_) | CancelOutcome::Equal | CancelOutcome::Ignored => {}
        CancelOutcome::Withdrawn { copy, waited } => {
            if waited == Waited::Queued {
                server.lane.withdrawn();
            }
            world.set_fate(copy.copy, Fate::EndedByPeer);
        }
        CancelOutcome::Yield { copy } => world.set_fate(copy.copy, Fate::Yielding),
        CancelOutcome::CancelBack(_) if config.has(Planted::YieldsToAny) => force(world, s, &race),
        CancelOutcome::CancelBack(_) if config.has(Planted::NoCancelBack) => {}
        CancelOutcome::CancelBack(over) => {
            // Only downwards, or two copies would answer each other for ever.
            if over.cancel.number >= cancel.number {
                world.break_rule(Property::P7);
            }
            let own = world.servers[s].table.sorted().into_iter().find(|(name, _)| name.race() == race);
            let copy = own.and_then(|(name, _)| world.servers[s].table.copy(&name)).map(|handle| handle.copy);
            if let Some(copy) = copy {
                hand_over(world, s, copy, &over);
            }
        }
        CancelOutcome::Stranger if config.has(Planted::AnybodyCancels) => force(world, s, &race),
        CancelOutcome::Stranger => {}
    }
}

/// Plants an obedience that the shipped room refused: the copy gives way.
fn force(world: &mut World, s: usize, race: &Race) {
    let server = world.server(s);
    let Some((name, phase)) = server.table.sorted().into_iter().find(|(name, _)| name.race() == *race) else {
        return;
    };
    if phase == Phase::Queued {
        server.lane.withdrawn();
    }
    let Some(handle) = server.table.copy_mut(&name) else { return };
    let copy = handle.copy;
    if phase.is_running() {
        handle.step(Phase::give_way);
        return world.set_fate(copy, Fate::Yielding);
    }
    let _ = server.table.withdraw(&name, NOW);
    world.set_fate(copy, Fate::EndedByPeer);
}

/// The server notices that a connection is gone.
pub(super) fn notice(config: &Config, world: &mut World, s: usize, connection: u8) {
    world.server(s).unnoticed.retain(|dead| *dead != connection);
    // As the node does: its desk knows the copies of each connection, and each is withdrawn by its name.
    let server = &world.servers[s];
    let leaks = |handle: &Handle| config.has(Planted::AsideLeaks) && handle.phase == Phase::SetAside;
    let of_connection = |name: &CopyName| {
        server.table.copy(name).is_some_and(|handle| handle.connection == connection && !leaks(handle))
    };
    let names: Vec<CopyName> =
        server.table.sorted().into_iter().map(|(name, _)| name).filter(of_connection).collect();
    for name in names {
        let outcome = world.server(s).table.withdraw(&name, NOW);
        withdrawn(world, s, outcome);
    }
}

fn withdrawn(world: &mut World, s: usize, outcome: WithdrawOutcome<Handle>) {
    match outcome {
        WithdrawOutcome::Withdrawn { copy, waited } => {
            if waited == Waited::Queued {
                world.server(s).lane.withdrawn();
            }
            world.set_fate(copy.copy, Fate::Vanished);
        }
        WithdrawOutcome::Stop { copy } => world.set_fate(copy.copy, Fate::VanishedStarted),
        WithdrawOutcome::Filed(_) | WithdrawOutcome::Ignored => {}
    }
}

/// All memory of a server is gone.
pub(super) fn crash(world: &mut World, s: usize) {
    lose_link(world, s);
    let serves = world.servers[s].serves;
    for sent in world.sent.iter_mut().filter(|sent| usize::from(sent.server) == s) {
        match sent.fate {
            Fate::Waits => sent.fate = Fate::Vanished,
            Fate::Running | Fate::Yielding => sent.fate = Fate::VanishedStarted,
            _ => {}
        }
    }
    *world.server(s) = super::world::Server::new(serves);
    world.server(s).health = Health::Crashed;
    for tie in 0..16 {
        world.told &= !World::told_bit(TieId(tie), s);
    }
    world.taint(s);
}

/// The wire between client and server breaks; what is on its way to the server is lost.
pub(super) fn lose_link(world: &mut World, s: usize) {
    let link = &mut world.links[s];
    link.alive = false;
    let lost: Vec<ToServer> = std::mem::take(&mut link.to_server);
    for message in lost {
        if let ToServer::Copy(message) = message {
            world.set_fate(message.copy, Fate::Vanished);
        }
    }
}

fn hand_over(world: &mut World, s: usize, copy: Copy, over: &HandOver) {
    if !matches!(world.fate(copy), Some(Fate::Running)) {
        world.break_rule(Property::P7);
    }
    for peer in &over.to {
        world.cancels.push(CancelMessage { to: server_of(*peer) as u8, from: node(s), cancel: over.cancel });
    }
}

fn refuse(world: &mut World, s: usize, connection: u8, copy: Copy) {
    world.set_fate(copy, Fate::Refused);
    answer(world, s, connection, copy, Said::Refused);
}

fn answer_started(world: &mut World, s: usize, connection: u8, copy: Copy, said: Said) {
    world.set_fate(copy, Fate::Answered);
    answer(world, s, connection, copy, said);
}

fn answer(world: &mut World, s: usize, connection: u8, copy: Copy, said: Said) {
    let link = &world.links[s];
    if link.alive && link.connection == connection {
        world.replies.push(Reply { server: s as u8, connection, copy, said });
    }
}

/// A cancel that a node outside the tie makes up.
pub(super) fn strangers_cancel(world: &World, number: u8) -> Cancel {
    Cancel { caller: CALLER, tie: TieId(u128::from(world.next_tie)), number: CopyNumber(number) }
}
