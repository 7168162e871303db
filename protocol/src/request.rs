//! What a client asks of a node: reads (as copies), withdraws, writes, pings, administration.
//!
//! Deadlines travel as time left, in microseconds; no clocks are compared.

use crate::ids::{ClientId, NodeId, Position, ReadId, RequestId, ShardId};
use crate::scan::PageRequest;
use crate::tie::Tie;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Why a copy was sent: servers count, prefer and shed by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CopyKind {
    /// The first copy of a read, tied or not.
    First,
    /// A later copy of a tie.
    Tied,
    /// An extra untied copy because no answer came by a percentile.
    Hedge,
    /// An extra untied copy because no answer came for long.
    Rescue,
    /// A copy after a failure, a lost link or a refusal of a whole round.
    Retry,
    /// A copy whose answer no caller waits for: it measures.
    Shadow,
}

impl CopyKind {
    /// All kinds, in wire order.
    pub const ALL: [CopyKind; 6] = [Self::First, Self::Tied, Self::Hedge, Self::Rescue, Self::Retry, Self::Shadow];

    /// The name used in metrics, reports and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Tied => "tied",
            Self::Hedge => "hedge",
            Self::Rescue => "rescue",
            Self::Retry => "retry",
            Self::Shadow => "shadow",
        }
    }

    /// True for copies that rank below first copies and are shed first: hedge, rescue, shadow.
    pub fn is_extra(self) -> bool {
        matches!(self, Self::Hedge | Self::Rescue | Self::Shadow)
    }
}

/// Which work of a lane goes first; a lower class with work gets at least 5 % of pops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Class {
    /// A caller waits.
    #[default]
    Interactive,
    /// A job waits.
    Batch,
    /// Nobody waits.
    Background,
}

/// How fresh an answer must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReadLevel {
    /// Any replica's state; with a bound, not older than that.
    Stale {
        /// Greatest age in microseconds; `None` asks for no bound.
        bound_us: Option<u64>,
    },
    /// Not before this position: read-your-writes and monotonic reads by the session's token.
    Session {
        /// What the session has seen; 0 for a new session.
        seen: Position,
    },
    /// Not before any write acknowledged before the read began.
    Linearizable,
}

/// What is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadOperation {
    /// The value of one key.
    Get {
        /// 1 to 4096 bytes.
        key: Bytes,
    },
    /// One page of an ordered scan (its rows in the payload, see [`crate::scan`]).
    Scan(Box<PageRequest>),
    /// The values of keys of one call that travel together (in the payload, see [`crate::multi_get`]).
    MultiGet {
        /// 1 to [`KEYS_TOGETHER_MAX`](crate::limits::KEYS_TOGETHER_MAX).
        keys: Vec<Bytes>,
    },
}

impl ReadOperation {
    /// The key whose lane is charged.
    pub fn first_key(&self) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match self {
            Self::Get { key } => key,
            Self::Scan(page) => page.first_key(),
            Self::MultiGet { keys } => keys.first().unwrap_or(&NONE),
        }
    }

    /// How many gets its service time is made of; at least 1.
    pub fn gets(&self) -> u32 {
        match self {
            Self::Get { .. } | Self::Scan(_) => 1,
            Self::MultiGet { keys } => u32::try_from(keys.len()).unwrap_or(u32::MAX).max(1),
        }
    }

    /// Takes about as long as a get: times of others say nothing about gets.
    pub fn is_short(&self) -> bool {
        match self {
            Self::Get { .. } | Self::MultiGet { .. } => true,
            Self::Scan(page) => page.rows_max == 1,
        }
    }
}

/// One copy of a read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadRequest {
    /// Pairs the answer; unique on its connection.
    pub request: RequestId,
    /// The shard of the key.
    pub shard: ShardId,
    /// The logical read; stable over copies, ties and retries.
    pub read: ReadId,
    /// Why this copy was sent.
    pub kind: CopyKind,
    /// The race this copy is part of; `None` for an untied copy.
    pub tie: Option<Tie>,
    /// How fresh.
    pub level: ReadLevel,
    /// Which class of its lane.
    pub class: Class,
    /// Time left until the caller's deadline, microseconds; the node cuts it to its bound.
    pub time_left_us: u64,
    /// What is read.
    pub operation: ReadOperation,
}

/// Copies that nobody waits for any more. Travels in the same ordered stream as its copies (rule R14, docs/tie-protocol.md).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Withdraw {
    /// Requests of this connection, at most [`crate::limits::WITHDRAWS_MAX`].
    pub requests: SmallVec<[RequestId; 4]>,
}

/// Names one intent to write, so that sending it again applies it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdempotencyKey {
    /// The client that made it.
    pub client: ClientId,
    /// Its sequence within the client.
    pub sequence: u64,
    /// The position known when it was made.
    pub floor: Position,
}

/// What is written. Values travel in the frame's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteOperation {
    /// Sets the key to the payload.
    Put {
        /// 1 to 4096 bytes.
        key: Bytes,
    },
    /// Removes the key; an absent key is no error.
    Delete {
        /// 1 to 4096 bytes.
        key: Bytes,
    },
    /// Conditions and operations, all or nothing: an [`Atomic`](crate::atomic::Atomic) in the payload.
    Atomic,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRequest {
    /// Pairs the answer; unique on its connection.
    pub request: RequestId,
    /// The shard of the key.
    pub shard: ShardId,
    /// Makes a repeat harmless.
    pub idempotency: IdempotencyKey,
    /// Time left until the caller's deadline, microseconds.
    pub time_left_us: u64,
    /// What is written.
    pub operation: WriteOperation,
}

/// Asks for a [`crate::response::Pong`]: link health and the clean round trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ping {
    /// Pairs the answer.
    pub request: RequestId,
}

/// What an operator, the benchmark or a test asks of a node, over the same authenticated connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminOperation {
    /// Sets the disturbance of a modelled device; refused on a real one. The answer's payload is JSON: `since_ns`,
    /// from when on the node draws by it, on its own monotonic clock.
    Disturb(Disturbance),
    /// Starts recording of start records (bounded ring), or empties and restarts it.
    RecordStarts {
        /// On or off.
        on: bool,
    },
    /// Returns the start records from an offset (bincode `Vec<StartRecord>` in the payload).
    TakeStarts {
        /// How many records to skip.
        from: u64,
    },
    /// Returns the counters (JSON in the payload).
    Counters,
    /// Returns the status page (JSON in the payload).
    Status,
    /// Drops a share of outgoing cancels, for tests: 0.0 to 1.0. Refused unless the node was started for tests.
    DropCancels {
        /// Share dropped.
        share: f64,
    },
    /// Holds the applied position of the in-memory store back, for tests: this node lags until told otherwise.
    Lag {
        /// True: stop publishing; false: catch up.
        on: bool,
    },
    /// Makes storage reads fail, for tests.
    FailReads {
        /// On or off.
        on: bool,
    },
    /// Adds a member as a learner and, once it has caught up, as a voter.
    MemberAdd {
        /// Its identity.
        node: NodeId,
        /// Its client, peer and cancel address and zone.
        member: crate::hello::Member,
    },
    /// Removes a member.
    MemberRemove {
        /// Its identity.
        node: NodeId,
    },
    /// Hands leadership to another voter.
    TransferLeader {
        /// To whom; `None` lets the leader choose.
        to: Option<NodeId>,
    },
    /// Sets the cluster-wide ceiling of read policies.
    SetCeiling(crate::hello::Ceiling),
    /// Steps the wall clock as this node sees it, for tests: later steps add up. Refused unless the node was started
    /// for tests.
    StepClock {
        /// Forward or back.
        ahead: bool,
        /// How far, milliseconds; at most ten years.
        by_ms: u64,
    },
    /// Returns the node's slow-read log (JSON in the payload).
    SlowReads,
    /// Serves every read at once from what is published, whatever its level asks for: the bug that checkers must find.
    /// Refused unless the node was started for tests.
    AnswerEarly {
        /// On or off.
        on: bool,
    },
}

/// One administrative request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdminRequest {
    /// Pairs the answer.
    pub request: RequestId,
    /// Time left, microseconds.
    pub time_left_us: u64,
    /// What to do.
    pub operation: AdminOperation,
}

/// What disturbs a modelled device, drawn inside the node. All shares and loads are 0 when quiet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// Offered load of background jobs per lane worker: arrivals x mean service / workers, 0.0 to 0.95.
    pub jobs_load: f64,
    /// Mean of a job's (exponential) service time, microseconds; 0 means the device's mean service time.
    pub jobs_mean_us: u64,
    /// Longest job, microseconds; 0 means no bound.
    pub jobs_cap_us: u64,
    /// Class of the jobs.
    pub jobs_class: Class,
    /// Share of time in which a lane is stalled, 0.0 to 0.9.
    pub stall_share: f64,
    /// Length of one stall, microseconds.
    pub stall_us: u64,
    /// Stalls strike after the start (inside a copy's service) instead of before it.
    pub stall_after_start: bool,
    /// Share of stalls that strike all nodes at the same time, 0.0 to 1.0 (drawn from `seed`).
    pub stall_correlated: f64,
    /// All service times are multiplied by this; 1.0 is normal speed.
    pub slow_factor: f64,
    /// Seeds the draws of correlated stalls; the same on every node.
    pub seed: u64,
}

impl Default for Disturbance {
    fn default() -> Self {
        Self {
            jobs_load: 0.0,
            jobs_mean_us: 0,
            jobs_cap_us: 0,
            jobs_class: Class::Interactive,
            stall_share: 0.0,
            stall_us: 0,
            stall_after_start: false,
            stall_correlated: 0.0,
            slow_factor: 1.0,
            seed: 0,
        }
    }
}
