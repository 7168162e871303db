//! What must hold: P1-P7, PS, PW, PX.

use super::config::Config;
use super::world::{Fate, Health, Item, Sent, Serves, Work, World};
use tiedkv_client::copies::Outcome;
use tiedkv_server::request::tie::Which;

/// A property of the tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property {
    /// A read has one outcome.
    P1,
    /// No error while a good replica exists.
    P2a,
    /// No silent stop while a good replica exists.
    P2b,
    /// When a copy was ended, or asked to yield, because of a cancel, some copy of its tie has started and runs
    /// (not yielding), was answered, or ended with its server, connection or client.
    P3,
    /// At rest nothing is left on any live server.
    P4,
    /// At most one copy of a tie runs when no cancel is on its way, and no copy starts whose server has taken a
    /// peer's cancel (unless one was lost, forgotten or hit a dead server; strict: the first half, whatever was).
    P5,
    /// Each cancel on the wire belongs to a copy that started, and is sent back only to a higher number.
    P7,
    /// No copy starts on a replica that cannot serve it.
    PS,
    /// Once the withdraws of a finished read have arrived, nothing of it waits.
    PW,
    /// No copy meets another of its tie on one server.
    PX,
}

/// The first property that does not hold in `world`; `at_rest`: no fair step is left.
pub(super) fn check(config: &Config, world: &World, at_rest: bool) -> Option<Property> {
    if world.broken.is_some() {
        return world.broken;
    }
    let good = (0..config.servers).any(|s| world.tainted >> s & 1 == 0 && world.servers[s].serves != Serves::Never);
    if good && matches!(world.race.outcome(), Some(Outcome::GaveUp(_))) {
        return Some(Property::P2a);
    }
    if !kept_alive(world) {
        return Some(Property::P3);
    }
    if (config.strict || !world.excused) && duplicate_runs(world) {
        return Some(Property::P5);
    }
    if orphan_waits(world) {
        return Some(Property::PW);
    }
    if at_rest && good && world.race.outcome().is_none() {
        return Some(Property::P2b);
    }
    let explored_to_the_end = !(config.to_outcome && world.race.outcome().is_some());
    if at_rest && explored_to_the_end && left_over(world) {
        return Some(Property::P4);
    }
    None
}

fn of_same_tie<'a>(world: &'a World, of: &'a Sent) -> impl Iterator<Item = &'a Sent> {
    let tie = |sent: &Sent| match sent.name.which {
        Which::Tied { tie, .. } => Some(tie),
        Which::Untied { .. } => None,
    };
    world.sent.iter().filter(move |sent| tie(sent).is_some() && tie(sent) == tie(of))
}

fn kept_alive(world: &World) -> bool {
    let ended = world.sent.iter().filter(|sent| matches!(sent.fate, Fate::EndedByPeer | Fate::Yielding));
    let safe = |sent: &Sent| matches!(sent.fate, Fate::Running | Fate::Answered | Fate::VanishedStarted);
    ended.into_iter().all(|sent| of_same_tie(world, sent).any(safe))
}

fn duplicate_runs(world: &World) -> bool {
    world.sent.iter().filter(|sent| sent.fate == Fate::Running).any(|sent| {
        let Which::Tied { tie, .. } = sent.name.which else { return false };
        let several = of_same_tie(world, sent).filter(|other| other.fate == Fate::Running).count() > 1;
        several && !world.cancels.iter().any(|message| message.cancel.tie == tie)
    })
}

fn orphan_waits(world: &World) -> bool {
    world.sent.iter().filter(|sent| sent.fate == Fate::Waits).any(|sent| {
        let over = sent.copy.read < world.read || world.race.outcome().is_some();
        let link = &world.links[usize::from(sent.server)];
        let connected = link.alive && link.connection == sent.connection;
        let up = world.servers[usize::from(sent.server)].health == Health::Up;
        over && connected && up && link.to_server.is_empty()
    })
}

fn left_over(world: &World) -> bool {
    world.servers.iter().filter(|server| server.health == Health::Up).any(|server| {
        let aside = server.aside.iter().any(|(_, waiting)| match waiting.item {
            Item::Copy { name, copy, .. } => server.table.copy(&name).is_some_and(|handle| handle.copy == copy),
            Item::Job => true,
        });
        let lane = !server.lane.is_empty() || server.lane.live() != 0;
        aside || lane || !server.table.is_empty() || server.work != Work::Idle
    })
}
