//! The doors between the request path and its neighbours: connections, the cancel channel, the write path.
//!
//! Only shapes; the request path is written against these, and tests put fakes behind them.

use bytes::Bytes;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use tiedkv_protocol::ids::{CallerId, NodeId};
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::WriteRequest;
use tiedkv_protocol::response::{ReadReply, WriteReply};

/// Where the answers of one client connection go. Handing over never waits: the bound is the number of copies
/// that the connection was admitted with; a connection whose peer does not read is closed by its owner.
pub trait ReplySink: Send + Sync {
    /// Hands over the answer to a copy; the value is empty unless one was found.
    fn read_reply(&self, reply: ReadReply, value: Bytes);
}

/// The way to the peers' queues. Handing over never waits and is never retried.
pub trait CancelSender: Send + Sync {
    /// Hands over one cancel for `to`.
    fn cancel(&self, to: NodeId, cancel: Cancel);
    /// Peers whose pair is down or slow: bit i = member i of the topology in force, sorted by NodeId.
    fn unhealthy_pairs(&self) -> u64;
}

/// A client connection as the request path sees it.
#[derive(Clone)]
pub struct Caller {
    /// Scopes ties and budgets: derived from the certificate.
    pub id: CallerId,
    /// This connection, unique within the process.
    pub connection: u64,
    /// Where its answers go.
    pub replies: Arc<dyn ReplySink>,
}

/// A future of the write path: the answer and the payload that goes with it (a `WriteDetail`, often nothing).
pub type WriteFuture = Pin<Box<dyn Future<Output = (WriteReply, Bytes)> + Send>>;

/// Who takes writes: Raft, or the in-memory store of a node that is not replicated.
pub trait Writer: Send + Sync {
    /// Starts one write; the future ends within the request's time left.
    fn write(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> WriteFuture;
}
