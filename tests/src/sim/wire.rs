//! What travels in a simulated world, and what the watcher is told of.

use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, ReadId, RequestId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::Service;
use tiedkv_protocol::tie::{CopyNumber, Tie};

/// Client to node, in order per connection.
#[derive(Clone, Debug)]
pub enum ToNode {
    /// One copy.
    Copy(CopyMessage),
    /// Copies that nobody waits for.
    Withdraw(Vec<RequestId>),
    /// To be echoed.
    Ping,
}

/// One copy on the wire.
#[derive(Clone, Debug)]
pub struct CopyMessage {
    /// On its connection.
    pub request: RequestId,
    /// The logical read.
    pub read: ReadId,
    /// Why it is sent.
    pub kind: CopyKind,
    /// Its tie.
    pub tie: Option<Tie>,
    /// The key, as a number.
    pub key: u64,
    /// Not before this position.
    pub need: Position,
    /// Until the caller stops waiting.
    pub time_left: Duration,
}

/// Node to client, in order per connection.
#[derive(Clone, Debug)]
pub enum ToClient {
    /// The answer to one copy.
    Reply(Reply),
    /// The echo of a ping.
    Pong,
}

/// The answer to one copy.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Which.
    pub request: RequestId,
    /// How it was served.
    pub service: Service,
    /// Good at this position, or an error with a hint.
    pub outcome: Result<Position, (ErrorCode, Duration)>,
}

/// What a node tells the watcher.
#[derive(Clone, Debug)]
pub enum Sight {
    /// A copy was queued on arrival.
    Queued(CopySight),
    /// A copy was dropped on arrival because of this peer's earlier cancel.
    DroppedEarly(CopySight),
    /// A copy met one of its own tie.
    Met(CopySight),
    /// A worker started it.
    Started(CopySight),
    /// A worker began to serve during a stall that lasts until then.
    StalledStart {
        /// Lane and worker.
        place: (u16, usize),
        /// The end of the stall.
        until: Moment,
    },
    /// A named peer's cancel ended it while it waited.
    Cancelled(CopySight),
    /// It has to stop because of a named peer's cancel.
    YieldAsked(CopySight),
    /// It stopped so.
    Yielded(CopySight),
    /// Its client's withdraw, or the loss of its link, ended it or will.
    Withdrawn(CopySight),
    /// It was answered; `good` or not, started or not.
    Answered {
        /// Which.
        copy: CopySight,
        /// A good answer.
        good: bool,
        /// It had started.
        started: bool,
        /// The code of a bad one.
        code: Option<ErrorCode>,
        /// The position served.
        position: Position,
        /// The position asked for.
        need: Position,
    },
    /// It ended without answer although nobody ended it.
    Vanished(CopySight),
    /// A cancel leaves for a peer.
    CancelSent {
        /// To whom.
        to: NodeId,
        /// What it says.
        cancel: Cancel,
    },
}

/// Names one copy for the watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopySight {
    /// Its read.
    pub read: ReadId,
    /// Its tie and number.
    pub tie: Option<(TieId, CopyNumber)>,
    /// The connection it came on.
    pub connection: u64,
    /// Its request there.
    pub request: RequestId,
    /// Of whom.
    pub caller: CallerId,
}

/// What a node does, in order.
#[derive(Clone, Debug)]
pub enum NodeOut {
    /// An answer.
    Send {
        /// On which connection.
        connection: u64,
        /// What.
        message: ToClient,
    },
    /// A cancel.
    Cancel {
        /// To whom.
        to: NodeId,
        /// What.
        cancel: Cancel,
    },
    /// Come back then.
    Wake {
        /// When.
        at: Moment,
        /// For what.
        wake: Wake,
    },
    /// For the watcher.
    Saw(Sight),
}

/// What a node comes back for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// A worker's phase is over.
    Worker {
        /// Of which lane.
        lane: u16,
        /// Which.
        worker: usize,
        /// Ignored if the worker has moved on.
        epoch: u64,
    },
    /// A background job arrives.
    Job {
        /// At which lane.
        lane: u16,
    },
    /// A stall before the start is over.
    Lane {
        /// Of which lane.
        lane: u16,
    },
    /// A copy was set aside long enough.
    Aside,
}
