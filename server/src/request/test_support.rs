//! Fakes behind the doors, for tests of the request path: in-process nodes whose cancels lie on a wire that the test
//! delivers, loses, repeats or reorders.

use crate::clock;
use crate::request::barrier::{NoBarrier, ReadBarrier};
use crate::request::config::RequestConfig;
use crate::request::counters::CountersSnapshot;
use crate::request::doors::{Caller, CancelSender, ReplySink};
use crate::request::path::{Neighbours, RequestPath};
use crate::storage::device::{DeviceConfig, ModelledConfig};
use crate::storage::disturbance::{DevicePhase, LaneDisturbance, LaneName};
use crate::storage::memory::MemoryStore;
use crate::storage::state_store::{Mutation, StateStore};
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, bounded};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, ReadId, RequestId, SHARD_ZERO, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::{Class, CopyKind, Disturbance, ReadLevel, ReadOperation, ReadRequest};
use tiedkv_protocol::response::ReadReply;
use tiedkv_protocol::tie::{CopyNumber, Tie};

/// Far beyond what any step of a test takes, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Cancels on their way, in the order of sending.
#[derive(Default)]
pub struct Wire(Mutex<Vec<(NodeId, NodeId, Cancel)>>);

struct OnWire {
    from: NodeId,
    wire: Arc<Wire>,
}

impl CancelSender for OnWire {
    fn cancel(&self, to: NodeId, cancel: Cancel) {
        self.wire.0.lock().push((self.from, to, cancel));
    }

    fn unhealthy_pairs(&self) -> u64 {
        0
    }
}

struct Answers(Sender<(ReadReply, Bytes)>);

impl ReplySink for Answers {
    fn read_reply(&self, reply: ReadReply, value: Bytes) {
        self.0.try_send((reply, value)).expect("the test takes its answers");
    }
}

/// One in-process node.
pub struct TestNode {
    pub id: NodeId,
    pub path: RequestPath,
    pub store: Arc<MemoryStore>,
    pub caller: Caller,
    answers: Receiver<(ReadReply, Bytes)>,
}

impl TestNode {
    /// A copy arrives now.
    pub fn read(&self, request: ReadRequest) {
        self.path.read(&self.caller, request, clock::now());
    }

    /// The next answer.
    pub fn answer(&self) -> ReadReply {
        self.answers.recv_timeout(PATIENCE).expect("an answer in time").0
    }

    /// The next answer with its value.
    pub fn answer_with_value(&self) -> (ReadReply, Bytes) {
        self.answers.recv_timeout(PATIENCE).expect("an answer in time")
    }

    /// An answer that is there already.
    pub fn answer_now(&self) -> Option<ReadReply> {
        self.answers.try_recv().ok().map(|(reply, _)| reply)
    }

    /// Waits until the counters say so.
    pub fn until(&self, what: &str, condition: impl Fn(&CountersSnapshot) -> bool) -> CountersSnapshot {
        let give_up = clock::now() + PATIENCE;
        loop {
            let counters = self.path.counters();
            if condition(&counters) {
                return counters;
            }
            assert!(clock::now() < give_up, "{what} did not come about: {counters:#?}");
            std::thread::yield_now();
        }
    }

    /// Nothing is in flight, and every copy received has ended exactly once.
    pub fn assert_balanced(&self) -> CountersSnapshot {
        let counters = self.until("rest", |counters| counters.in_flight() == 0);
        assert_eq!(counters.received, counters.answered() + counters.silent(), "{counters:#?}");
        assert_eq!(self.path.status().in_flight, 0);
        assert_eq!(self.answer_now(), None, "an answer too many");
        counters
    }
}

/// In-process nodes n1, n2, .. and the wire between them.
pub struct Cluster {
    pub nodes: Vec<TestNode>,
    pub wire: Arc<Wire>,
}

/// A modelled device with this mean.
pub fn modelled(mean_service: Duration) -> DeviceConfig {
    DeviceConfig::Modelled(ModelledConfig { mean_service, seed: 1, disturbance_allowed: true })
}

/// The service time that [`modelled`] draws for the read of [`read`].
pub fn drawn(mean_service: Duration, request: u64) -> Duration {
    modelled(mean_service).service(ReadId(u128::from(request)))
}

impl Cluster {
    /// Nodes with one lane and one worker, otherwise as `change` makes them.
    pub fn new(count: u64, change: impl Fn(&mut RequestConfig)) -> Self {
        Self::with_barrier(count, change, Arc::new(NoBarrier))
    }

    /// As [`Cluster::new`], with a read barrier.
    pub fn with_barrier(count: u64, change: impl Fn(&mut RequestConfig), barrier: Arc<dyn ReadBarrier>) -> Self {
        let wire = Arc::new(Wire::default());
        let members: Vec<NodeId> = (1..=count).map(NodeId).collect();
        let nodes = members.iter().map(|id| start(*id, &members, &wire, &change, Arc::clone(&barrier))).collect();
        Self { nodes, wire }
    }

    /// Node `n1` is index 0.
    pub fn node(&self, index: usize) -> &TestNode {
        &self.nodes[index]
    }

    /// What is on the wire: (from, to, number).
    pub fn on_wire(&self) -> Vec<(u64, u64, u8)> {
        self.wire.0.lock().iter().map(|(from, to, cancel)| (from.0, to.0, cancel.number.0)).collect()
    }

    /// Takes everything off the wire: to lose, keep or repeat it.
    pub fn take_wire(&self) -> Vec<(NodeId, NodeId, Cancel)> {
        std::mem::take(&mut *self.wire.0.lock())
    }

    /// Delivers what is given, to nodes that exist.
    pub fn deliver(&self, cancels: &[(NodeId, NodeId, Cancel)]) {
        for (from, to, cancel) in cancels {
            if let Some(node) = self.nodes.iter().find(|node| node.id == *to) {
                node.path.cancel(*from, *cancel);
            }
        }
    }

    /// Delivers everything on the wire, also what that causes.
    pub fn deliver_all(&self) {
        loop {
            let taken = self.take_wire();
            if taken.is_empty() {
                return;
            }
            self.deliver(&taken);
        }
    }

    /// All nodes are at rest and balanced.
    pub fn assert_balanced(&self) {
        for node in &self.nodes {
            node.assert_balanced();
        }
    }
}

fn start(
    id: NodeId,
    members: &[NodeId],
    wire: &Arc<Wire>,
    change: &impl Fn(&mut RequestConfig),
    barrier: Arc<dyn ReadBarrier>,
) -> TestNode {
    let mut config = RequestConfig::new(id);
    config.workers_per_lane = 1;
    change(&mut config);
    let store = Arc::new(MemoryStore::new());
    let put = Mutation::Put { key: Bytes::from_static(b"key"), value: Bytes::from_static(b"value") };
    store.apply(&[put], Position(1), 0).expect("memory applies");
    let neighbours = Neighbours {
        store: store.clone(),
        cancels: Arc::new(OnWire { from: id, wire: Arc::clone(wire) }),
        barrier,
        members: members.to_vec(),
    };
    let path = RequestPath::start(config, neighbours).expect("the path starts");
    let (sender, answers) = bounded(1 << 20);
    let caller = Caller { id: CallerId(77), connection: 1, replies: Arc::new(Answers(sender)) };
    TestNode { id, path, store, caller, answers }
}

/// An untied first copy of a read of its own.
pub fn read(request: u64) -> ReadRequest {
    ReadRequest {
        request: RequestId(request),
        shard: SHARD_ZERO,
        read: ReadId(u128::from(request)),
        kind: CopyKind::First,
        tie: None,
        level: ReadLevel::Stale { bound_us: None },
        class: Class::Interactive,
        time_left_us: 10_000_000,
        operation: ReadOperation::Get { key: Bytes::from_static(b"key") },
    }
}

/// Copy `number` of tie `request` over n1 .. n`width`, with request id `request`.
pub fn tied(request: u64, number: u8, width: u64) -> ReadRequest {
    let members = (1..=width).map(NodeId).collect();
    let tie = Tie { id: TieId(u128::from(request) << 8), number: CopyNumber(number), members, width: width as u8 };
    let kind = if number == 0 { CopyKind::First } else { CopyKind::Tied };
    ReadRequest { tie: Some(tie), kind, ..read(request) }
}

/// Session level: not before this position.
pub fn seen(position: u64) -> ReadLevel {
    ReadLevel::Session { seen: Position(position) }
}

/// Disturbs lane 0 of a node so that it is stalled now; says until when (about a second from now).
pub fn stall_now(node: &TestNode, stall_after_start: bool) -> Moment {
    let model = ModelledConfig { mean_service: Duration::ZERO, seed: 1, disturbance_allowed: true };
    let name = LaneName { node: node.id, lane: 0, workers: 1 };
    for seed in 0..10_000 {
        let asked = Disturbance {
            stall_share: 0.5,
            stall_us: 1_600_000,
            stall_after_start,
            seed,
            ..Disturbance::default()
        };
        let now = clock::now();
        // Asked as for a stall after the start, since its phase tells the end; stalls are where they are either way.
        let shown = Disturbance { stall_after_start: true, ..asked.clone() };
        let pace = LaneDisturbance::new(&shown, &model, name, now, clock::unix_ns()).pace;
        if let DevicePhase::Stalled(end) = pace.phase(now, Duration::from_secs(1))
            && (700..1_200).contains(&end.since(now).as_millis())
        {
            node.path.disturb(asked).expect("allowed");
            return end;
        }
    }
    panic!("none of 10,000 seeds stalls the lane now");
}
