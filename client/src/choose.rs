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
        let replicas: SmallVec<[Replica<'_>; 4]> = table.replicas().collect();
        own.sync(&replicas, &table, &connections.board, now);
        let decision = own.engine.decide(asked, deadline, &replicas, &ways, now, &mut own.rng);
        let shadow = if short { own.engine.shadow_due(now) } else { None };
        // Names the read and draws its modelled service; who may cancel it is the tie id's secret, not this one's. The
        // parts of a call are reads of their own: one identity would give all of them the same draw.
        let named = options.read.filter(|_| asked.call.is_none() && matches!(what, ReadOperation::Get { .. }));
        (decision, shadow, named.unwrap_or_else(|| ReadId(own.rng.random())))
    };
    let Decision { mut plan, not_tied, mut hold_out, mut observed } = decision;
    if let Some(only) = options.node {
        // A policy of more copies that the call named beside it was refused.
        plan.order.retain(|node| *node == only);
        plan.width = 1;
        // Switched on or off it would send nothing more: it is no measure of those that would.
        (hold_out, observed) = (false, None);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Switch;
    use crate::fake_node::{Deed, FakeCluster};
    use crate::options::Level;
    use crate::policy::ReadPolicy;
    use crate::test_support::{connect, connect_with, run, stale};

    #[test]
    fn a_node_that_is_named_measures_nothing_of_a_policy_and_would_have_sent_nothing_more() {
        run(async {
            let cluster = FakeCluster::start(3).await;
            cluster.script(|_, _| Deed::Answer(Duration::from_millis(120)));
            let client = connect_with(&cluster, |config| config.engine.hold_out = 1.0).await;
            let stale = Some(Level::Stale { bound: None });
            let named =
                |gate| ReadOptions { node: Some(NodeId(2)), level: stale, gate: Some(gate), ..Default::default() };
            client.get_with("k", named(true)).await.unwrap();
            client.policy().set(Switch::OBSERVE).unwrap();
            client.get_with("k", named(false)).await.unwrap();
            let stats = client.stats();
            let policy = stats.of(Operation::Get, ReadPolicy::default()).unwrap();
            assert_eq!((policy.reads, policy.unsent.total(), policy.without.count()), (2, 0, 0), "{policy:?}");
        });
    }

    #[test]
    fn a_get_keeps_the_identity_it_was_given_and_the_parts_of_a_call_do_not() {
        run(async {
            let cluster = FakeCluster::start(3).await;
            let client = connect(&cluster).await;
            let named = ReadOptions { read: Some(ReadId(7)), ..stale(ReadPolicy::UNTIED) };
            let read = client.get_with("k", named.clone()).await.unwrap();
            assert_eq!(read.report.read, ReadId(7));
            let other = client.get_with("k", stale(ReadPolicy::UNTIED)).await.unwrap();
            assert_ne!(other.report.read, ReadId(7));
            let keys = (0..20).map(|number| format!("k{number}"));
            let many = client.multi_get(keys).with(named).send().await.unwrap();
            assert_eq!(many.values.len(), 20);
            let reads = cluster.reads();
            let named = reads.iter().filter(|(_, read)| read.read == ReadId(7)).count();
            assert!(named == 1 && reads.len() > 2, "{named} of {}", reads.len());
        });
    }
}
