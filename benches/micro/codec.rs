//! One read request with a tie of two and one 100-byte answer: into bytes and back.

use bytes::Bytes;
use criterion::Criterion;
use smallvec::smallvec;
use std::hint::black_box;
use tiedkv_protocol::frame::{FrameDecoder, FrameKind, encode};
use tiedkv_protocol::ids::{NodeId, Position, ReadId, RequestId, SHARD_ZERO, TieId, Version};
use tiedkv_protocol::request::{Class, CopyKind, ReadLevel, ReadOperation, ReadRequest};
use tiedkv_protocol::response::{Found, ReadReply, Service};
use tiedkv_protocol::tie::{CopyNumber, Tie};

fn request() -> ReadRequest {
    ReadRequest {
        request: RequestId(7),
        shard: SHARD_ZERO,
        read: ReadId(u128::MAX / 3),
        kind: CopyKind::First,
        tie: Some(Tie {
            id: TieId(u128::MAX / 5),
            number: CopyNumber(0),
            members: smallvec![NodeId(1), NodeId(2)],
            width: 2,
        }),
        level: ReadLevel::Session { seen: Position(1_000_000) },
        class: Class::Interactive,
        time_left_us: 1_000_000,
        operation: ReadOperation::Get { key: Bytes::from_static(b"key-00012345") },
    }
}

fn reply() -> ReadReply {
    ReadReply {
        request: RequestId(7),
        service: Service {
            node: NodeId(1),
            started: true,
            queue_wait_us: 120,
            service_time_us: 5_000,
            queue_depth: 1,
            flags: 0,
            unhealthy_pairs: 0,
        },
        outcome: Ok(Found {
            version: Some(Version(5)),
            level: ReadLevel::Session { seen: Position(1_000_000) },
            position: Position(1_000_001),
            remaining_ms: None,
        }),
    }
}

/// Encode and decode.
pub fn frames(criterion: &mut Criterion) {
    let (request, reply, value) = (request(), reply(), [7u8; 100]);
    let mut out = Vec::with_capacity(1_024);
    criterion.bench_function("frame/encode read request", |bench| {
        bench.iter(|| {
            out.clear();
            encode(FrameKind::Read, black_box(&request), &[], &mut out)
        });
    });
    let mut decoder = FrameDecoder::default();
    let mut decode = |name: &str, bytes: &[u8], check: fn(&tiedkv_protocol::frame::Frame) -> bool| {
        criterion.bench_function(name, |bench| {
            bench.iter(|| {
                decoder.feed(black_box(bytes));
                decoder.next_frame().ok().flatten().is_some_and(|frame| check(&frame))
            });
        });
    };
    out.clear();
    // Both are within all bounds.
    let _ = encode(FrameKind::Read, &request, &[], &mut out);
    decode("frame/decode read request", &out, |frame| frame.message::<ReadRequest>().is_ok());
    out.clear();
    let _ = encode(FrameKind::ReadReply, &reply, &value, &mut out);
    decode("frame/decode read reply of 100 B", &out, |frame| frame.message::<ReadReply>().is_ok());
}
