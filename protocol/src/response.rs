//! What a node answers. Every answer to a copy says whether the copy had started: clients decide by that,
//! never by the code (rule R4, docs/tie-protocol.md).

use crate::error::ErrorCode;
use crate::ids::{CallerId, NodeId, Position, ReadId, RequestId, TieId, Version};
use crate::request::{CopyKind, ReadLevel};
use crate::tie::CopyNumber;
use serde::{Deserialize, Serialize};

/// Bits of [`Service::flags`].
pub mod flags {
    /// The node asks clients not to tie reads (operator's ceiling or own judgement).
    pub const TIES_OFF: u8 = 1;
    /// The node asks clients to send no extra copies: no hedges, no rescues, no shadows.
    pub const NO_EXTRA_COPIES: u8 = 1 << 1;
    /// Service times come from a modelled device.
    pub const MODELLED: u8 = 1 << 2;
    /// The node is on its way out: send new requests elsewhere.
    pub const DRAINING: u8 = 1 << 3;
    /// A storage error happened lately: send no first copies here.
    pub const STORAGE_SUSPECT: u8 = 1 << 4;
    /// The node's workers were busy for more than 80 % of the last second or so: hedges would only add to it.
    pub const BUSY: u8 = 1 << 6;
}

/// How a node served one copy; in every answer, good or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Who answers.
    pub node: NodeId,
    /// The copy had started (a worker took it and the replica could serve it).
    pub started: bool,
    /// Admitted to started, microseconds (to answered, if never started).
    pub queue_wait_us: u32,
    /// Started to answered, microseconds; 0 if never started.
    pub service_time_us: u32,
    /// Copies that wait in the lane of the key at the answer.
    pub queue_depth: u32,
    /// [`flags`].
    pub flags: u8,
    /// Nodes to which this node's cancel channel is down or slow: bit i = index i of the members of the
    /// topology in force (sorted by NodeId).
    pub unhealthy_pairs: u64,
}

impl Service {
    /// As it would be of one of `gets` that were served together.
    #[must_use]
    pub fn of_one(self, gets: u32) -> Self {
        Self { service_time_us: self.service_time_us / gets.max(1), ..self }
    }
}

/// The good part of an answer to a copy. The value, if any, is the frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// `None`: the key is absent (which is not the same as an empty value).
    pub version: Option<Version>,
    /// The level the answer satisfies.
    pub level: ReadLevel,
    /// The position of the view that value *and* version come from.
    pub position: Position,
    /// Milliseconds of log time until it expires, at that position; `None`: it does not.
    pub remaining_ms: Option<u64>,
}

/// A refusal or failure, in any answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind.
    pub code: ErrorCode,
    /// For people: what happened and what to do.
    pub message: String,
    /// Wait this long before the next try on this node, microseconds; 0 for no hint.
    pub retry_after_us: u64,
    /// For `Behind`: what was needed.
    pub need: Option<Position>,
    /// For `Behind`: what the replica has.
    pub have: Option<Position>,
    /// For `NotLeader`: who leads, if known.
    pub leader: Option<NodeId>,
}

impl Failure {
    /// A failure with a code and a message and nothing else.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), retry_after_us: 0, need: None, have: None, leader: None }
    }
}

/// The answer to one copy. The value travels as the frame's payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadReply {
    /// Which request of the connection.
    pub request: RequestId,
    /// How it was served.
    pub service: Service,
    /// What came of it.
    pub outcome: Result<Found, Failure>,
}

/// The good part of an answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The version this write made (of the tombstone, for a delete).
    pub version: Version,
    /// The position that includes it: the session's new token.
    pub position: Position,
    /// The key had been seen: this is the outcome stored for it.
    pub repeated: bool,
}

/// The answer to one write; a [`WriteDetail`](crate::atomic::WriteDetail) in the payload, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReply {
    /// Which request of the connection.
    pub request: RequestId,
    /// Who answers.
    pub node: NodeId,
    /// What came of it.
    pub outcome: Result<Written, Failure>,
}

/// The answer to a [`crate::request::Ping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pong {
    /// Which ping.
    pub request: RequestId,
    /// Receipt of the ping to this answer, microseconds.
    pub held_us: u32,
    /// [`flags`], as in a reply.
    pub flags: u8,
    /// As in [`Service::unhealthy_pairs`].
    pub unhealthy_pairs: u64,
}

/// The answer to an [`crate::request::AdminRequest`]; JSON or bincode in the payload, as the operation says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminReply {
    /// Which request.
    pub request: RequestId,
    /// Nothing, or why not.
    pub outcome: Result<(), Failure>,
}

/// What became of one copy on one node: joined over all nodes by the benchmark to count duplicates, and the
/// node's own trace of lanes and draws for the ideals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRecord {
    /// Who asked.
    pub caller: CallerId,
    /// The logical read.
    pub read: ReadId,
    /// The tie, if any.
    pub tie: Option<(TieId, CopyNumber)>,
    /// Why it was sent.
    pub kind: CopyKind,
    /// The lane it was charged to.
    pub lane: u16,
    /// Admitted, microseconds of the node's own monotonic clock since its start.
    pub admitted_us: u64,
    /// Started, same clock.
    pub started_us: u64,
    /// Ended (answered or stopped), same clock.
    pub ended_us: u64,
    /// How it ended.
    pub end: CopyEnd,
}

/// How a started copy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CopyEnd {
    /// A good answer was sent.
    Answered,
    /// A failure was answered.
    Failed,
    /// It yielded to a lower number.
    Yielded,
    /// Its client withdrew it or is gone.
    Withdrawn,
}
