//! Properties: what is written is read back; what is cut, changed or made up is an error and never a panic.

use crate::codec::{self, CodecError};
use crate::error::ErrorCode;
use crate::frame::{self, FrameDecoder, FrameKind};
use crate::ids::{CallerId, ClientId, NodeId, Position, ReadId, RequestId, ShardId, TieId, Version};
use crate::peer::{Cancel, PeerDatagram};
use crate::request::*;
use crate::response::*;
use crate::samples_test::messages;
use crate::scan::{Columns, PageRequest};
use crate::tie::{CopyNumber, Tie};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn key() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn position() -> impl Strategy<Value = Position> {
    any::<u64>().prop_map(Position)
}

fn tie() -> impl Strategy<Value = Tie> {
    (any::<u128>(), any::<u8>(), vec(any::<u64>(), 0..6), any::<u8>()).prop_map(|(id, number, members, width)| {
        Tie { id: TieId(id), number: CopyNumber(number), members: members.into_iter().map(NodeId).collect(), width }
    })
}

fn level() -> impl Strategy<Value = ReadLevel> {
    prop_oneof![
        option::of(any::<u64>()).prop_map(|bound_us| ReadLevel::Stale { bound_us }),
        position().prop_map(|seen| ReadLevel::Session { seen }),
        Just(ReadLevel::Linearizable),
    ]
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Interactive), Just(Class::Batch), Just(Class::Background)]
}

fn operation() -> impl Strategy<Value = ReadOperation> {
    let columns = proptest::sample::select(vec![Columns::All, Columns::Keys, Columns::Count]);
    let page = (key(), option::of(key()), any::<(bool, u32, u32)>(), columns);
    prop_oneof![
        key().prop_map(|key| ReadOperation::Get { key }),
        vec(key(), 0..4).prop_map(|keys| ReadOperation::MultiGet { keys }),
        page.prop_map(|(lo, hi, (reverse, rows_max, bytes_max), columns)| {
            ReadOperation::Scan(Box::new(PageRequest { lo, hi, reverse, columns, rows_max, bytes_max }))
        }),
    ]
}

prop_compose! {
    fn read()(
        (request, shard, read, time_left_us) in any::<(u64, u32, u128, u64)>(),
        kind in proptest::sample::select(&CopyKind::ALL[..]),
        tie in option::of(tie()),
        level in level(),
        class in class(),
        operation in operation(),
    ) -> ReadRequest {
        ReadRequest {
            request: RequestId(request),
            shard: ShardId(shard),
            read: ReadId(read),
            kind,
            tie,
            level,
            class,
            time_left_us,
            operation,
        }
    }
}

prop_compose! {
    fn write()((request, shard, client, sequence, time_left_us) in any::<(u64, u32, u128, u64, u64)>(),
        floor in position(), key in key(), put in any::<bool>()) -> WriteRequest {
        WriteRequest {
            request: RequestId(request),
            shard: ShardId(shard),
            idempotency: IdempotencyKey { client: ClientId(client), sequence, floor },
            time_left_us,
            operation: if put { WriteOperation::Put { key } } else { WriteOperation::Delete { key } },
        }
    }
}

prop_compose! {
    fn failure()(code in proptest::sample::select(ErrorCode::ALL), message in ".{0,60}", retry_after_us in any::<u64>(),
        need in option::of(position()), have in option::of(position()), leader in option::of(any::<u64>())) -> Failure {
        Failure { code, message, retry_after_us, need, have, leader: leader.map(NodeId) }
    }
}

fn found() -> impl Strategy<Value = Found> {
    let version = option::of(any::<u64>());
    (version, level(), position(), option::of(any::<u64>())).prop_map(|(version, level, position, remaining_ms)| {
        Found { version: version.map(Version), level, position, remaining_ms }
    })
}

fn written() -> impl Strategy<Value = Written> {
    any::<(u64, u64, bool)>().prop_map(|(version, position, repeated)| Written {
        version: Version(version),
        position: Position(position),
        repeated,
    })
}

prop_compose! {
    fn service()((node, started, queue_wait_us, service_time_us, queue_depth, flags, unhealthy_pairs)
        in any::<(u64, bool, u32, u32, u32, u8, u64)>()) -> Service {
        Service { node: NodeId(node), started, queue_wait_us, service_time_us, queue_depth, flags, unhealthy_pairs }
    }
}

fn datagram() -> impl Strategy<Value = PeerDatagram> {
    let cancel = any::<(u128, u128, u8)>().prop_map(|(caller, tie, number)| Cancel {
        caller: CallerId(caller),
        tie: TieId(tie),
        number: CopyNumber(number),
    });
    prop_oneof![
        vec(cancel, 0..=crate::limits::CANCELS_PER_DATAGRAM_MAX)
            .prop_map(|cancels| PeerDatagram::Cancels(cancels.into_iter().collect())),
        any::<u64>().prop_map(|nonce| PeerDatagram::Ping { nonce }),
        any::<(u64, u32)>().prop_map(|(nonce, held_us)| PeerDatagram::Pong { nonce, held_us }),
    ]
}

fn survives<T>(message: &T) -> Result<(), TestCaseError>
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let bytes = codec::encode(message).expect("within the bound");
    prop_assert_eq!(&codec::decode::<T>(&bytes).expect("as written"), message);
    let mut longer = bytes.clone();
    longer.push(0);
    prop_assert_eq!(codec::decode::<T>(&longer).unwrap_err(), CodecError::Trailing(1));
    for cut in 0..bytes.len() {
        prop_assert!(codec::decode::<T>(&bytes[..cut]).is_err(), "cut at {} of {}", cut, bytes.len());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reads_survive(message in read()) {
        survives(&message)?;
    }

    #[test]
    fn writes_survive(message in write()) {
        survives(&message)?;
    }

    #[test]
    fn withdraws_survive(requests in vec(any::<u64>(), 0..=crate::limits::WITHDRAWS_MAX)) {
        survives(&Withdraw { requests: requests.into_iter().map(RequestId).collect() })?;
    }

    #[test]
    fn read_replies_survive(request in any::<u64>(), service in service(),
        outcome in prop_oneof![found().prop_map(Ok), failure().prop_map(Err)]) {
        survives(&ReadReply { request: RequestId(request), service, outcome })?;
    }

    #[test]
    fn write_replies_survive((request, node) in any::<(u64, u64)>(),
        outcome in prop_oneof![written().prop_map(Ok), failure().prop_map(Err)]) {
        survives(&WriteReply { request: RequestId(request), node: NodeId(node), outcome })?;
    }

    #[test]
    fn datagrams_survive(message in datagram()) {
        survives(&message)?;
        prop_assert_eq!(PeerDatagram::decode(&message.encode().unwrap()).unwrap(), message);
    }

    #[test]
    fn framed_reads_survive_any_division(messages in vec((read(), vec(any::<u8>(), 0..200)), 1..5),
        step in 1usize..400) {
        let mut stream = Vec::new();
        for (message, payload) in &messages {
            frame::encode(FrameKind::Read, message, payload, &mut stream).unwrap();
        }
        let mut decoder = FrameDecoder::default();
        let mut received = Vec::new();
        for part in stream.chunks(step) {
            decoder.feed(part);
            while let Some(frame) = decoder.next_frame().unwrap() {
                received.push((frame.message::<ReadRequest>().unwrap(), frame.payload.to_vec()));
            }
        }
        prop_assert_eq!(received, messages);
    }

    #[test]
    fn garbage_is_refused_and_never_a_panic(bytes in vec(any::<u8>(), 0..400)) {
        for sample in messages() {
            // Whatever is understood can be written again and is then understood alike.
            if let Ok(again) = (sample.again)(&bytes) {
                prop_assert_eq!((sample.again)(&again), Ok(again.clone()));
            }
        }
        let _ = PeerDatagram::decode(&bytes);
        let mut decoder = FrameDecoder::default();
        decoder.feed(&bytes);
        while let Ok(Some(_)) = decoder.next_frame() {}
        prop_assert!(decoder.pending_bytes() <= bytes.len());
    }

    #[test]
    fn one_changed_byte_is_never_a_panic(index in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        change in 1u8..) {
        let samples = messages();
        let sample = index.get(&samples);
        let mut bytes = sample.bytes.clone();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        let _ = (sample.again)(&bytes);
    }
}

#[test]
fn every_sample_cut_anywhere_is_an_error() {
    for sample in messages() {
        for cut in 0..sample.bytes.len() {
            assert!((sample.again)(&sample.bytes[..cut]).is_err(), "{} cut at {cut}", sample.name);
        }
    }
}
