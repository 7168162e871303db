//! Whom a read may ask and how: gathers what the pure rooms need and asks them. Decides nothing itself.

use crate::copies::{Order, Plan};
use crate::options::ReadOptions;
use crate::select::{Candidate, Choice, order};
use crate::shared::random_u128;
use crate::topology::Table;
use crate::view::{Own, ViewInner};
use bytes::Bytes;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::hello::Mode;
use tiedkv_protocol::ids::ReadId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{Class, ReadLevel, ReadOperation};
use tiedkv_protocol::response::flags;

/// What one read sets out with.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) plan: Plan,
    pub(crate) read: ReadId,
    pub(crate) level: ReadLevel,
    pub(crate) class: Class,
    pub(crate) operation: ReadOperation,
    /// The members as they were when the read began.
    pub(crate) table: Arc<Table>,
    /// The tie delay in force; `None` for an untied read.
    pub(crate) tie_delay: Option<Duration>,
    /// It goes untied although it might have been tied, to know what that takes.
    pub(crate) hold_out: bool,
}

/// Makes the plan of one read.
pub(crate) fn choose(
    view: &ViewInner,
    options: &ReadOptions,
    level: ReadLevel,
    key: Bytes,
    deadline: Moment,
) -> Chosen {
    let connections = view.shared.connections();
    let config = connections.config();
    let table = connections.table().clone();
    let policy = options.policy.unwrap_or(config.policy);
    let (order, allowed) = {
        let mut own = view.own.lock();
        own.keep_loads(table.peers.len(), |node| table.peer(node).is_some());
        let order = rank(&table, &mut own);
        (order, connections.control.read().allowed(&mut own.rng))
    };

    let first = order.first().and_then(|node| table.peer(*node));
    let said = first.map_or(0, |peer| peer.flags());
    let ties = allowed.mode == Mode::On && said & flags::TIES_OFF == 0;
    let extras = allowed.mode == Mode::On && said & flags::NO_EXTRA_COPIES == 0;
    let width = if ties { policy.width().min(allowed.copies_max) } else { 1 };
    let tie_delay = first.filter(|_| width > 1 && order.len() > 1).map(|peer| peer.tie_delay());
    let plan = Plan {
        width: if tie_delay.is_some() { width } else { 1 },
        hedge: extras && policy.hedge(),
        rescue: extras && policy.rescue,
        order,
        deadline,
    };
    Chosen {
        plan,
        read: ReadId(random_u128()),
        level,
        class: options.class.unwrap_or(config.class),
        operation: ReadOperation::Get { key },
        table,
        tie_delay,
        hold_out: false,
    }
}

fn rank(table: &Table, own: &mut Own) -> Order {
    let mut candidates: SmallVec<[Candidate<'_>; 4]> = SmallVec::new();
    // Members and peers stand in the same order.
    for (member, peer) in table.topology.members.iter().zip(&table.peers).filter(|(member, _)| !member.learner) {
        candidates.push(Candidate {
            node: peer.node,
            zone: &member.zone,
            load: own.load(peer.node),
            avoid: peer.links() == 0 || peer.flags() & (flags::DRAINING | flags::STORAGE_SUSPECT) != 0,
        });
    }
    order(Choice::Random, 1.0, &candidates, &mut own.rng)
}
