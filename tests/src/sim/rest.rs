//! A simulated world at rest: what is left, whether counters balance, and what the statistics want.

use crate::sim::watch::{Rule, Violation};
use crate::sim::world::World;
use std::time::Duration;
use tiedkv_client::engine::Engine;
use tiedkv_client::engine_host::Suppressed;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;

/// One read as the statistics want it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadSample {
    /// When it began.
    pub began: Moment,
    /// How long it took; `None` for an error or a dropped read.
    pub latency: Option<Duration>,
    /// The caller left.
    pub dropped: bool,
    /// The hedge delay that its view had learned when it ended.
    pub hedge_delay: Option<Duration>,
    /// The node of its first copy.
    pub first: Option<NodeId>,
}

/// What came out of a world.
#[derive(Clone, Debug, Default)]
pub struct Outturn {
    /// Hash of all that happened, in order.
    pub trace: u64,
    /// How much happened.
    pub happenings: u64,
    /// What did not hold.
    pub violations: Vec<Violation>,
    /// All reads, in the order of their end.
    pub reads: Vec<ReadSample>,
    /// When hedges and rescues were sent.
    pub extras: Vec<Moment>,
    /// Extra copies that were not sent when their time came, whatever the reason.
    pub suppressed: u64,
    /// Copies sent by clients.
    pub copies_sent: u64,
    /// Copies started on nodes.
    pub copies_started: u64,
    /// Started copies whose tie had a start elsewhere or whose read had a good answer elsewhere.
    pub duplicates: u64,
    /// Cancels handed over.
    pub cancels: u64,
    /// Service time of copies whose answer was not used, and of all.
    pub wasted: (Duration, Duration),
}

impl World {
    /// The world came to rest: what is left, and do the counters balance?
    pub(crate) fn look_at_rest(&mut self) {
        let mut left: Vec<String> = Vec::new();
        let mut received = self.crashed.received;
        let mut ended = self.crashed.received;
        for host in &self.hosts {
            left.extend(host.node.leftovers());
            let counted = host.node.counters.snapshot();
            received += counted.received;
            ended += counted.answered() + counted.silent();
        }
        let mut budget = Vec::new();
        let mut balance = Vec::new();
        for client in &self.clients {
            left.extend(client.leftovers());
            let c = client.counters;
            let ended = c.won + c.late + c.refused + c.expired + c.failed + c.unanswered;
            if c.sent != ended {
                balance.push(format!("client {}: {c:?}", client.caller));
            }
            let settings = self.config.engine.budget;
            let views = self.config.views as f64;
            let bound = settings.ratio * c.good_reads as f64
                + views * (settings.burst + settings.floor_per_second * self.now.since(Moment::ZERO).as_secs_f64());
            if c.extra as f64 > bound + 1e-6 {
                budget.push(format!("client {}: {} extra, bound {bound}", client.caller, c.extra));
            }
        }
        if received != ended {
            balance.push(format!("nodes received {received}, ended {ended}"));
        }
        let found = [(Rule::NothingLeft, left), (Rule::CountersBalance, balance), (Rule::WithinBudget, budget)];
        for (rule, what) in found {
            if !what.is_empty() {
                self.watch.broken(rule, self.now, what.join("; "));
            }
        }
    }

    pub(crate) fn count(&mut self) {
        let outturn = &mut self.outturn;
        for host in &self.hosts {
            let counted = host.node.counters.snapshot();
            outturn.copies_started += counted.started;
            outturn.duplicates += counted.yielded + counted.withdrawn_running;
            outturn.cancels += counted.cancels_sent + counted.cancels_sent_back;
            outturn.wasted.0 += Duration::from_micros(counted.wasted_us);
            outturn.wasted.1 += Duration::from_micros(counted.wasted_us + counted.service_time_us);
        }
        let suppressed = |view: &Engine| Suppressed::ALL.iter().map(|reason| view.suppressed(*reason)).sum::<u64>();
        outturn.suppressed = self.clients.iter().flat_map(|client| &client.views).map(suppressed).sum();
        outturn.copies_sent = self.clients.iter().map(|client| client.counters.sent).sum();
    }
}
