//! The writer of a node that is not replicated: writes go straight into its own store, and are gone with it.
//!
//! Positions are a counter of this node's writes, so tokens of two such nodes mean the same only if both took the same
//! writes in the same order. Idempotency is judged as on a replicated node. Nothing here waits.

use crate::clock;
use crate::raft::outcomes::{OutcomeLimits, Outcomes, Verdict};
use crate::raft::types::{Answer, Change, Command, WriteKey, digest};
use crate::request::doors::{WriteFuture, Writer};
use crate::storage::key::check_key;
use crate::storage::state_store::{Mutation, StateStore, StorageError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, SHARD_ZERO, Version};
use tiedkv_protocol::limits::VALUE_BYTES_MAX;
use tiedkv_protocol::request::{WriteOperation, WriteRequest};
use tiedkv_protocol::response::{Failure, WriteReply, Written};

/// Takes writes for one store that is not replicated.
pub struct LocalWriter {
    node: NodeId,
    store: Arc<dyn StateStore>,
    order: Mutex<Order>,
}

struct Order {
    last: Position,
    stamp_ms: u64,
    outcomes: Outcomes,
}

impl LocalWriter {
    /// The only writer of `store`; goes on after what the store has applied.
    pub fn new(node: NodeId, store: Arc<dyn StateStore>) -> Self {
        let view = store.view();
        let (last, stamp_ms) = (view.position(), view.stamp_ms());
        let outcomes = Outcomes::new(OutcomeLimits::default(), last);
        Self { node, store, order: Mutex::new(Order { last, stamp_ms, outcomes }) }
    }

    fn apply(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> Result<Written, Failure> {
        let change = checked(&request, value)?;
        let idempotency = request.idempotency;
        let mut order = self.order.lock();
        let position = Position(order.last.0 + 1);
        order.stamp_ms = order.stamp_ms.max(clock::unix_ns() / 1_000_000);
        let command = Command {
            stamp_ms: order.stamp_ms,
            key: WriteKey { caller, client: idempotency.client, sequence: idempotency.sequence },
            floor: idempotency.floor,
            digest: digest(&change),
            change,
        };
        match order.outcomes.decide(position, &command) {
            Verdict::Apply(_) => {}
            Verdict::Answer(Answer::Repeated(version)) => {
                return Ok(Written { version, position: order.last, repeated: true });
            }
            Verdict::Answer(Answer::Refused(code)) => {
                let mut failure = Failure::new(code, refusal(code));
                failure.have = Some(order.last);
                return Err(failure);
            }
            Verdict::Answer(Answer::None | Answer::Applied(_)) => {
                return Err(Failure::new(ErrorCode::Internal, "a write was neither applied nor refused"));
            }
        }
        let mutation = match command.change {
            Change::Put { key, value } => Mutation::Put { key, value },
            Change::Delete { key } => Mutation::Delete { key },
            Change::Ceiling(_) => {
                return Err(Failure::new(ErrorCode::Internal, "a write became another command"));
            }
        };
        self.store.apply(&[mutation], position, command.stamp_ms).map_err(|error| {
            let code =
                if matches!(error, StorageError::Full(_)) { ErrorCode::DiskFull } else { ErrorCode::Storage };
            Failure::new(code, error.to_string())
        })?;
        order.last = position;
        Ok(Written { version: Version(position.0), position, repeated: false })
    }
}

impl Writer for LocalWriter {
    fn write(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> WriteFuture {
        let id = request.request;
        let reply = WriteReply { request: id, node: self.node, outcome: self.apply(caller, request, value) };
        Box::pin(std::future::ready(reply))
    }
}

fn checked(request: &WriteRequest, value: Bytes) -> Result<Change, Failure> {
    let over = |message: String| Failure::new(ErrorCode::OverLimit, message);
    if request.shard != SHARD_ZERO {
        let message = format!("shard {} is not known here, this node holds {SHARD_ZERO}", request.shard);
        return Err(Failure::new(ErrorCode::NoShard, message));
    }
    match &request.operation {
        WriteOperation::Put { key } => {
            check_key(key).map_err(|bad| over(bad.to_string()))?;
            if value.len() > VALUE_BYTES_MAX {
                return Err(over(format!(
                    "the value has {} bytes; at most {VALUE_BYTES_MAX} are allowed",
                    value.len()
                )));
            }
            Ok(Change::Put { key: key.clone(), value })
        }
        WriteOperation::Delete { key } => {
            check_key(key).map_err(|bad| over(bad.to_string()))?;
            Ok(Change::Delete { key: key.clone() })
        }
    }
}

fn refusal(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::KeyReused => "the idempotency key was used for another write",
        _ => "the idempotency key is older than the outcomes kept; the write was not applied",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryStore;
    use std::task::{Context, Poll, Waker};
    use tiedkv_protocol::ids::{ClientId, RequestId, ShardId};
    use tiedkv_protocol::request::IdempotencyKey;

    fn put(sequence: u64, key: &'static [u8]) -> WriteRequest {
        WriteRequest {
            request: RequestId(sequence),
            shard: SHARD_ZERO,
            idempotency: IdempotencyKey { client: ClientId(1), sequence, floor: Position(0) },
            time_left_us: 1_000_000,
            operation: WriteOperation::Put { key: Bytes::from_static(key) },
        }
    }

    fn write(writer: &LocalWriter, request: WriteRequest, value: &'static [u8]) -> Result<Written, Failure> {
        let mut future = writer.write(CallerId(1), request, Bytes::from_static(value));
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => reply.outcome,
            Poll::Pending => panic!("a local write waits for nobody"),
        }
    }

    fn code(result: Result<Written, Failure>) -> Option<ErrorCode> {
        result.err().map(|failure| failure.code)
    }

    #[test]
    fn writes_are_numbered_and_a_repeat_applies_nothing() {
        let store = Arc::new(MemoryStore::new());
        let writer = LocalWriter::new(NodeId(1), store.clone());
        let first = write(&writer, put(1, b"a"), b"one").unwrap();
        assert_eq!((first.version, first.position, first.repeated), (Version(1), Position(1), false));
        assert_eq!(write(&writer, put(2, b"b"), b"two").unwrap().position, Position(2));
        let again = write(&writer, put(1, b"a"), b"one").unwrap();
        assert_eq!((again.version, again.position, again.repeated), (Version(1), Position(2), true));
        assert_eq!(code(write(&writer, put(1, b"a"), b"other")), Some(ErrorCode::KeyReused));
        assert_eq!(store.view().position(), Position(2));
        let delete = WriteRequest { operation: WriteOperation::Delete { key: "a".into() }, ..put(3, b"a") };
        assert_eq!(write(&writer, delete, b"").unwrap().version, Version(3));
        assert_eq!(store.view().get(b"a"), Ok(None));
    }

    #[test]
    fn bounds_are_typed() {
        let writer = LocalWriter::new(NodeId(1), Arc::new(MemoryStore::new()));
        assert_eq!(code(write(&writer, put(1, b""), b"v")), Some(ErrorCode::OverLimit));
        static LARGE: [u8; VALUE_BYTES_MAX + 1] = [0; VALUE_BYTES_MAX + 1];
        assert_eq!(code(write(&writer, put(1, b"a"), &LARGE)), Some(ErrorCode::OverLimit));
        let elsewhere = WriteRequest { shard: ShardId(3), ..put(1, b"a") };
        assert_eq!(code(write(&writer, elsewhere, b"v")), Some(ErrorCode::NoShard));
    }

    #[test]
    fn a_writer_goes_on_after_what_is_applied() {
        let store = Arc::new(MemoryStore::new());
        store.apply(&[], Position(41), 0).unwrap();
        let writer = LocalWriter::new(NodeId(1), store);
        let request = WriteRequest {
            idempotency: IdempotencyKey { floor: Position(41), ..put(1, b"a").idempotency },
            ..put(1, b"a")
        };
        assert_eq!(write(&writer, request, b"v").unwrap().position, Position(42));
    }
}
