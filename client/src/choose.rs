//! Whom a read may ask and how: hands the view's engine what the connections know, and keeps its decision.
//!
//! Decides nothing itself: [`crate::engine`] does.

use crate::copies::Plan;
use crate::engine::{Asked, CallId, Decision, Replica, Ways};
use crate::observe::Observed;
use crate::operation::{LevelName, Operation, Sort};
use crate::options::ReadOptions;
use crate::tally::Slot;
use crate::topology::Table;
use crate::view::{Own, ViewInner};
use rand::Rng;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, ReadId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{Class, ReadLevel, ReadOperation};

/// What one read sets out with.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) asked: Asked,
    /// Where it counts.
    pub(crate) slot: Slot,
    pub(crate) read: ReadId,
    pub(crate) level: ReadLevel,
    pub(crate) class: Class,
    pub(crate) what: ReadOperation,
    /// The members as they were when the read began.
    pub(crate) table: Arc<Table>,
    /// The tie delay in force; `None` for an untied read.
    pub(crate) tie_delay: Option<Duration>,
    /// Why it goes with fewer copies than its policy says, if so.
    pub(crate) not_tied: Option<crate::gate::NotTied>,
    /// It goes untied although it might have been tied, to know what that takes.
    pub(crate) hold_out: bool,
    /// What it would have sent, if it only observes.
    pub(crate) observed: Option<Observed>,
    /// A replica on probation that a shadow copy of this read is due for.
    pub(crate) shadow: Option<NodeId>,
}

/// What a call wants, by its options and the client's settings.
pub(crate) fn asked(
    view: &ViewInner,
    options: &ReadOptions,
    operation: Operation,
    level: LevelName,
    call: Option<CallId>,
) -> Asked {
    let config = view.shared.config();
    let sort = Sort { operation, level };
    let own = config.policies.of(sort, config.policy);
    let gated = options.gate.unwrap_or(options.policy.is_none() && config.engine.gate.is_some());
    Asked { sort, policy: options.policy.unwrap_or(own), gated, call }
}

/// How many keys of a call for many may share a copy.
pub(crate) fn keys_together(view: &ViewInner, asked: Asked) -> usize {
    let table = view.shared.connections().table();
    let one_way = table.peers.iter().filter_map(|peer| peer.one_way()).min();
    view.own.lock().engine.keys_together(asked, one_way)
}

/// What one read is to be.
pub(crate) struct Wish<'o> {
    pub(crate) asked: Asked,
    pub(crate) options: &'o ReadOptions,
    pub(crate) level: ReadLevel,
    pub(crate) what: ReadOperation,
    pub(crate) deadline: Moment,
}

/// Makes the plan of one read.
pub(crate) fn choose(view: &ViewInner, own: &mut Own, wish: Wish<'_>, now: Moment) -> (Chosen, Plan) {
    let Wish { asked, options, level, what, deadline } = wish;
    let short = what.is_short();
    // Delays of hedges and rescues are those of gets.
    let asked = if short { asked } else { Asked { policy: asked.policy.without_extras(), ..asked } };
    let connections = view.shared.connections();
    let config = connections.config();
    let table = connections.table().clone();
    let ways = TableWays { table: &table, cap: config.tie_delay_cap };
    let (decision, shadow, read) = {
        // Members and peers stand in the same order, sorted by NodeId.
        let members = table.topology.members.iter().zip(&table.peers).filter(|(member, _)| !member.learner);
        let replicas: SmallVec<[Replica<'_>; 4]> = members
            .map(|(member, peer)| Replica { node: peer.node, zone: &member.zone, down: peer.links() == 0 })
            .collect();
        own.sync(&replicas, &table, &connections.board, now);
        let decision = own.engine.decide(asked, deadline, &replicas, &ways, now, &mut own.rng);
        let shadow = if short { own.engine.shadow_due(now) } else { None };
        // Names the read and draws its modelled service; who may cancel it is the tie id's secret, not this one's.
        (decision, shadow, ReadId(own.rng.random()))
    };
    let Decision { mut plan, not_tied, hold_out, observed } = decision;
    if let Some(only) = options.node {
        // A policy of more copies that the call named beside it was refused.
        plan.order.retain(|node| *node == only);
        plan.width = 1;
    }
    let first = plan.order.first().filter(|_| plan.width > 1);
    let tie_delay = first.map(|node| ways.tie_delay(*node));
    let chosen = Chosen {
        asked,
        slot: Slot::new(asked.operation(), asked.policy),
        read,
        level,
        class: options.class.unwrap_or(config.class),
        what,
        table,
        tie_delay,
        not_tied,
        hold_out,
        observed,
        shadow,
    };
    (chosen, plan)
}

/// The ways to the members, from what their links measured.
pub(crate) struct TableWays<'a> {
    pub(crate) table: &'a Table,
    /// The tie delay after a copy to a node that is not known.
    pub(crate) cap: Duration,
}

impl Ways for TableWays<'_> {
    fn tie_delay(&self, node: NodeId) -> Duration {
        self.table.peer(node).map_or(self.cap, |peer| peer.tie_delay())
    }

    fn one_way(&self, node: NodeId) -> Option<Duration> {
        self.table.peer(node).and_then(|peer| peer.one_way())
    }
}
