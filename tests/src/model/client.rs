//! Carries events into the shipped race of the client, and its actions onto the links.

use super::config::{Config, Planted};
use super::properties::Property;
use super::world::{
    CALLER, Copy, CopyMessage, Fate, NOW, Reply, Said, Sent, ToServer, World, node, plan, server_of,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_client::copies::{Action, Actions, Answer, CopyIndex, Event, Host, Send, Timer};
use tiedkv_client::race::Race;
use tiedkv_protocol::ids::{NodeId, RequestId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::tie::CopyNumber;
use tiedkv_server::request::tie::{CopyName, Which};

/// What the race asks of its surroundings: fresh ids, tokens from the budget, no pauses.
struct Surroundings<'a> {
    next_tie: &'a mut u8,
    tokens: &'a mut u8,
    same_tie: bool,
}

impl Host for Surroundings<'_> {
    fn tie_id(&mut self) -> TieId {
        if !self.same_tie || *self.next_tie == 0 {
            *self.next_tie += 1;
        }
        TieId(u128::from(*self.next_tie))
    }

    fn tie_delay(&mut self, _first: NodeId) -> Duration {
        Duration::ZERO
    }

    fn hedge_delay(&mut self) -> Duration {
        Duration::ZERO
    }

    fn rescue_delay(&mut self) -> Duration {
        Duration::ZERO
    }

    fn token(&mut self, _kind: CopyKind, _now: Moment) -> bool {
        let left = *self.tokens > 0;
        *self.tokens = self.tokens.saturating_sub(1);
        left
    }

    fn backoff(&mut self, _round: u8, _hint: Duration) -> Duration {
        Duration::ZERO
    }
}

/// Begins the current read.
pub(super) fn begin(config: &Config, world: &mut World) {
    world.race = Arc::new(Race::new(plan(config)));
    if config.has(Planted::SameTieIdForTwoReads) {
        world.next_tie = 0;
    }
    event(config, world, Event::Begin);
}

/// The client takes an answer from the wire.
pub(super) fn on_reply(config: &Config, world: &mut World, reply: Reply) {
    if reply.copy.read != world.read {
        return;
    }
    let code = reply.said.code();
    let answer = match reply.said {
        Said::Good => Answer::Good,
        Said::Failed if config.has(Planted::FailureLooksLikeRefusal) => refusal(reply.said),
        Said::Failed => Answer::Failed { code },
        Said::Refused => refusal(reply.said),
        Said::Duplicate => Answer::FixTheCall { code },
    };
    event(config, world, Event::Answer { copy: reply.copy.index, answer });
}

fn refusal(said: Said) -> Answer {
    Answer::Refused { code: Some(said.code()), hint: Duration::ZERO }
}

/// Feeds one event, and what follows from copies that cannot leave, until nothing is left to do.
pub(super) fn event(config: &Config, world: &mut World, first: Event) {
    let mut events = VecDeque::from([first]);
    while let Some(event) = events.pop_front() {
        let had_outcome = world.race.outcome().is_some();
        let mut host = Surroundings {
            next_tie: &mut world.next_tie,
            tokens: &mut world.budgets.tokens,
            same_tie: config.has(Planted::SameTieIdAgain),
        };
        let mut actions = Actions::new();
        Arc::make_mut(&mut world.race).on_event(event, NOW, &mut host, &mut actions);
        for action in actions {
            match action {
                Action::Send(send) => {
                    if let Some(unsent) = send_copy(config, world, send) {
                        events.push_back(Event::NotSent { copy: unsent });
                    }
                }
                Action::Withdraw(copies) => copies.iter().for_each(|copy| withdraw(world, *copy)),
                Action::Arm { .. } => {}
                Action::Finish(_) => {
                    if had_outcome {
                        world.break_rule(Property::P1);
                    }
                    world.finished += 1;
                }
            }
        }
    }
}

/// Timers that may fire now.
pub(super) fn armed(config: &Config, world: &World) -> impl Iterator<Item = Timer> {
    let none = config.has(Planted::NoNextCopy);
    let for_good = config.has(Planted::RefusedForGood);
    let race = world.race.clone();
    [Timer::NextCopy, Timer::Rescue, Timer::Backoff].into_iter().filter(move |timer| {
        let planted = (none && *timer == Timer::NextCopy) || (for_good && *timer == Timer::Backoff);
        !planted && race.armed(*timer).is_some()
    })
}

/// Puts a copy onto its link. The copy is handed back when there is no link to put it on.
fn send_copy(config: &Config, world: &mut World, mut send: Send) -> Option<CopyIndex> {
    let server = distort(config, world, &mut send)?;
    let link = &mut world.links[server];
    if !link.trusted {
        if world.servers[server].health == super::world::Health::Crashed {
            return Some(send.copy);
        }
        link.connection += 1;
        (link.alive, link.trusted) = (true, true);
        link.to_server.clear();
    }
    let copy = Copy { read: world.read, index: send.copy };
    let connection = link.connection;
    let which = match &send.tie {
        Some(tie) => Which::Tied { tie: tie.id, number: tie.number },
        None => Which::Untied {
            connection: u64::from(connection),
            request: RequestId(u64::from(copy.read) << 8 | u64::from(copy.index.0)),
        },
    };
    let name = CopyName { caller: CALLER, which };
    let lost = !link.alive;
    if !lost {
        let extra = send.kind.is_extra();
        link.to_server.push(ToServer::Copy(CopyMessage { copy, name, tie: send.tie, extra, connection }));
    }
    let fate = if lost { Fate::Vanished } else { Fate::OnWire };
    world.sent.push(Sent { copy, name, server: server as u8, connection, fate });
    None
}

/// Plants the client's bugs into a copy that leaves; `None`: it never leaves and nobody is told.
fn distort(config: &Config, world: &mut World, send: &mut Send) -> Option<usize> {
    let server = server_of(send.replica);
    let again = send.kind == CopyKind::Retry;
    let holds = world.sent.iter().any(|sent| sent.copy.read == world.read && usize::from(sent.server) == server);
    match config.planted {
        Some(Planted::OnlyReplicasWithoutCopy) if again && holds => None,
        Some(Planted::FailOverIsPaid) if again => {
            let left = world.budgets.tokens > 0;
            world.budgets.tokens = world.budgets.tokens.saturating_sub(1);
            left.then_some(server)
        }
        Some(Planted::OnlyPlannedNamed) => {
            if let Some(tie) = &mut send.tie
                && tie.number.0 < tie.width
            {
                tie.members.truncate(usize::from(tie.width));
            }
            Some(server)
        }
        Some(Planted::RescueInTie) if send.kind == CopyKind::Rescue => {
            let first = world.sent.iter().find(|sent| sent.copy.read == world.read)?;
            if let Which::Tied { tie, .. } = first.name.which {
                let members = (0..config.servers).map(node).collect();
                let number = CopyNumber(server as u8);
                send.tie = Some(tiedkv_protocol::tie::Tie { id: tie, number, members, width: config.width });
            }
            Some(server)
        }
        Some(Planted::RescueToFirst) if send.kind == CopyKind::Rescue => Some(0),
        _ => Some(server),
    }
}

/// Sends a withdraw after its copy, in the same stream, if that stream is still there.
fn withdraw(world: &mut World, copy: CopyIndex) {
    let copy = Copy { read: world.read, index: copy };
    let Some(sent) = world.sent.iter().find(|sent| sent.copy == copy) else { return };
    let link = &mut world.links[usize::from(sent.server)];
    if link.alive && link.trusted && link.connection == sent.connection {
        link.to_server.push(ToServer::Withdraw(sent.name));
    }
}
