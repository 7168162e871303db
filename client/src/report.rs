//! What calls give back: values, what a read cost and how it went, what a write made. Plain data.

use crate::error::CopyReport;
use crate::gate::NotTied;
use bytes::Bytes;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::{NodeId, Position, PositionToken, ReadId, Version};
use tiedkv_protocol::request::CopyKind;

/// A value as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The bytes, as written.
    pub value: Bytes,
    /// The version: the position of the write that made it.
    pub version: Version,
    /// The position of the view that value and version come from.
    pub position: Position,
    /// Log time until it expires, at that position; `None`: it does not.
    pub remaining: Option<Duration>,
}

/// A read's result and how it went.
#[derive(Clone, Debug)]
pub struct Read {
    /// `None`: the key is absent.
    pub value: Option<Value>,
    /// How it went.
    pub report: ReadReport,
}

/// How one read went.
#[derive(Clone, Debug)]
pub struct ReadReport {
    /// The logical read, as nodes record it.
    pub read: ReadId,
    /// Whose answer was used.
    pub node: NodeId,
    /// The kind of the copy whose answer was used.
    pub kind: CopyKind,
    /// Every copy, in the order they were sent; those without an answer when the read ended are `Unanswered`.
    pub copies: SmallVec<[CopyReport; 3]>,
    /// Admitted to started, of the winner, as its node says.
    pub queue_wait: Duration,
    /// Started to answered, of the winner, as its node says.
    pub service_time: Duration,
    /// Copies that waited in the winner's lane at its answer.
    pub queue_depth: u32,
    /// From the planned send (or the call) to the result.
    pub latency: Duration,
    /// From the planned send (or the call) to the first copy's hand-over to the wire.
    pub client_wait: Duration,
    /// The tie delay in force for this read; `None` if it was not tied.
    pub tie_delay: Option<Duration>,
    /// Hand-over of copy 0 to hand-over of copy 1, where the timer sent it.
    pub tie_delay_realised: Option<Duration>,
    /// Why it went with fewer copies than its policy says, if so.
    pub not_tied: Option<NotTied>,
    /// Ties begun anew after a failure, a lost link or a round of refusals.
    pub fresh_ties: u32,
    /// Covers this answer: hand it on to read it elsewhere.
    pub token: PositionToken,
}

impl ReadReport {
    /// Copies sent of one kind.
    pub fn copies_of(&self, kind: CopyKind) -> usize {
        self.copies.iter().filter(|copy| copy.kind == kind).count()
    }
}

/// A write's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteReport {
    /// Who answered.
    pub node: NodeId,
    /// The version that this write made (of the tombstone, for a delete).
    pub version: Version,
    /// Covers this write: hand it on to read it elsewhere.
    pub token: PositionToken,
    /// The idempotency key had been seen: this is the outcome stored for it.
    pub repeated: bool,
    /// Times it was sent.
    pub tries: u32,
}

/// One member of the cluster as this client sees it.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Who, and its addresses.
    pub member: Member,
    /// Connections that are up.
    pub links: usize,
    /// It leads the shard, as far as known.
    pub leader: bool,
    /// Median clean round trip; `None` while unknown.
    pub round_trip: Option<Duration>,
    /// The tie delay after a first copy to this node.
    pub tie_delay: Duration,
    /// Service times come from a modelled device.
    pub modelled: bool,
    /// Why a connection to it was lost last; kept when it is back.
    pub last_loss: Option<String>,
}
