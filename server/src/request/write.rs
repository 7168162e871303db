//! The writer of a node that is not replicated: writes go straight into its own store, and are gone with it.
//!
//! Positions are a counter of this node's writes, so tokens of two such nodes mean the same only if both took the same
//! writes in the same order. Idempotency is judged as on a replicated node. Nothing here waits.

use crate::clock;
use crate::raft::command::{Settled, command, judged, repeated, settled};
use crate::raft::outcomes::{OutcomeLimits, Outcomes, Verdict};
use crate::raft::types::{Answer, Change};
use crate::request::doors::{WriteFuture, Writer};
use crate::storage::atomic::Now;
use crate::storage::state_store::{Mutation, StateStore, StorageError};
use bytes::Bytes;
use parking_lot::Mutex;
use std::convert::Infallible;
use std::sync::Arc;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, NodeId, Position, Version};
use tiedkv_protocol::request::WriteRequest;
use tiedkv_protocol::response::{Failure, WriteReply};

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
        let outcomes = Outcomes::all_in_memory(OutcomeLimits::default(), last);
        Self { node, store, order: Mutex::new(Order { last, stamp_ms, outcomes }) }
    }

    fn apply(&self, caller: CallerId, request: WriteRequest, payload: Bytes) -> Result<Settled, Failure> {
        let mut command = command(caller, request, payload)?;
        let mut order = self.order.lock();
        let position = Position(order.last.0 + 1);
        order.stamp_ms = order.stamp_ms.max(clock::unix_ns() / 1_000_000);
        command.stamp_ms = order.stamp_ms;
        let now = Now { version: Version(position.0), stamp_ms: order.stamp_ms };
        let Ok(verdict) = order.outcomes.decide(&command, |_, _| Ok::<_, Infallible>(None));
        let mut record = match verdict {
            Verdict::Apply(record) => record,
            Verdict::Repeat(repeat) => {
                let state = self.store.applied();
                let answer = repeated(&command.change, repeat, now, |key| state.get(key)).map_err(failed)?;
                return Ok(settled(answer, order.last));
            }
            Verdict::Refuse(code) => return Ok(settled(Answer::Refused(code), order.last)),
        };
        let version = now.version;
        let (mutations, answer) = match command.change {
            Change::Put { key, value } => (vec![Mutation::Put { key, value }], Answer::Applied(version)),
            Change::Delete { key } => (vec![Mutation::Delete { key }], Answer::Applied(version)),
            // Nothing would move log time on.
            Change::Atomic(atomic) if atomic.operations.iter().any(|operation| operation.ttl_ms().is_some()) => {
                let message = "a time to live needs a replicated node (storage = \"fjall\")";
                return Err(Failure::new(ErrorCode::Unsupported, message));
            }
            Change::Atomic(atomic) => {
                let state = self.store.applied();
                judged(atomic, now, |key| state.get(key)).map_err(failed)?
            }
            Change::Ceiling(_) | Change::Tick { .. } => {
                return Err(Failure::new(ErrorCode::Internal, "a write became another command"));
            }
        };
        self.store.apply(&mutations, position, command.stamp_ms).map_err(failed)?;
        if let Answer::Unmet(unmet) = &answer {
            record.code = unmet.code as u16;
        }
        // Only now: what failed to be written may be tried again.
        order.outcomes.keep(position, &record);
        order.last = position;
        Ok(settled(answer, position))
    }
}

fn failed(error: StorageError) -> Failure {
    let code = if matches!(error, StorageError::Full(_)) { ErrorCode::DiskFull } else { ErrorCode::Storage };
    Failure::new(code, error.to_string())
}

impl Writer for LocalWriter {
    fn write(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> WriteFuture {
        let id = request.request;
        let settled = self.apply(caller, request, value).unwrap_or_else(Settled::from);
        let reply = WriteReply { request: id, node: self.node, outcome: settled.outcome };
        Box::pin(std::future::ready((reply, settled.detail)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryStore;
    use std::task::{Context, Poll, Waker};
    use tiedkv_protocol::atomic::{Atomic, Expect, Operation, WriteDetail};
    use tiedkv_protocol::ids::{ClientId, RequestId, SHARD_ZERO, ShardId};
    use tiedkv_protocol::limits::VALUE_BYTES_MAX;
    use tiedkv_protocol::request::{IdempotencyKey, WriteOperation};
    use tiedkv_protocol::response::Written;

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
            Poll::Ready((reply, _)) => reply.outcome,
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
    fn a_conditional_write_sees_what_is_applied_though_not_published() {
        let store = Arc::new(MemoryStore::new());
        let writer = LocalWriter::new(NodeId(1), store.clone());
        store.lag(true);
        write(&writer, put(1, b"a"), b"one").unwrap();
        let operation = || Operation::Put { key: "a".into(), value: "two".into() };
        let cas = |sequence, expect| {
            let body = Atomic::compare("a".into(), expect, operation()).encode().unwrap();
            let request = WriteRequest { operation: WriteOperation::Atomic, ..put(sequence, b"") };
            let mut future = writer.write(CallerId(1), request, body);
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready((reply, detail)) => (reply.outcome, WriteDetail::decode(&detail).unwrap()),
                Poll::Pending => panic!("a local write waits for nobody"),
            }
        };
        let (refused, detail) = cas(2, Expect::Absent);
        assert_eq!(code(refused), Some(ErrorCode::ConditionFailed));
        assert!(matches!(detail, Some(WriteDetail::Unmet { index: 0, current: Some(_) })));
        assert_eq!(cas(3, Expect::Version(Version(1))).0.unwrap().version, Version(3));
        assert_eq!(code(cas(2, Expect::Absent).0), Some(ErrorCode::ConditionFailed));
        assert!(cas(3, Expect::Version(Version(1))).0.unwrap().repeated);
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
    fn a_node_whose_log_time_nothing_moves_refuses_times_to_live() {
        let store = Arc::new(MemoryStore::new());
        let writer = LocalWriter::new(NodeId(1), store.clone());
        for operation in [
            Operation::PutFor { key: "a".into(), value: "v".into(), ttl_ms: 500 },
            Operation::Expire { key: "a".into(), ttl_ms: Some(500) },
        ] {
            let body = Atomic { conditions: Vec::new(), operations: vec![operation] }.encode().unwrap();
            let request = WriteRequest { operation: WriteOperation::Atomic, ..put(1, b"") };
            let mut future = writer.write(CallerId(1), request, body);
            let Poll::Ready((reply, _)) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
                panic!("a local write waits for nobody")
            };
            assert_eq!(code(reply.outcome), Some(ErrorCode::Unsupported));
        }
        assert_eq!(store.view().position(), Position(0));
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
