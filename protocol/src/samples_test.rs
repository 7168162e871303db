//! One value of every message and variant: the golden vectors are made of them.

use crate::atomic::{Atomic, Condition, Current, Expect, Operation, WriteDetail};
use crate::codec::{self, CodecError};
use crate::error::ErrorCode;
use crate::frame::{self, FrameKind};
use crate::hello::{Ceiling, Ejected, Hello, Member, Mode, Notice, Topology, Welcome};
use crate::ids::{
    CallerId, ClientId, ClusterId, NodeId, Position, PositionToken, ReadId, RequestId, SHARD_ZERO, TieId, Version,
};
use crate::peer::{Cancel, PeerDatagram};
use crate::request::*;
use crate::response::*;
use crate::scan::{Columns, PageRequest};
use crate::tie::{CopyNumber, Tie};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use smallvec::smallvec;

/// A message with its name, its bytes and a decoder that writes it again.
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) again: fn(&[u8]) -> Result<Vec<u8>, CodecError>,
}

fn again<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<Vec<u8>, CodecError> {
    codec::encode(&codec::decode::<T>(bytes)?)
}

fn sample<T: Serialize + DeserializeOwned>(name: &str, message: T) -> Sample {
    Sample { name: name.to_owned(), bytes: codec::encode(&message).unwrap(), again: again::<T> }
}

pub(crate) fn service() -> Service {
    Service {
        node: NodeId(1),
        started: true,
        queue_wait_us: 250,
        service_time_us: 5000,
        queue_depth: 2,
        flags: flags::MODELLED,
        unhealthy_pairs: 0b100,
    }
}

pub(crate) fn failure() -> Failure {
    Failure {
        code: ErrorCode::Behind,
        message: "behind".to_owned(),
        retry_after_us: 2000,
        need: Some(Position(9)),
        have: Some(Position(8)),
        leader: Some(NodeId(2)),
    }
}

pub(crate) fn tie() -> Tie {
    Tie {
        id: TieId(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
        number: CopyNumber(1),
        members: smallvec![NodeId(3), NodeId(1), NodeId(2)],
        width: 2,
    }
}

pub(crate) fn read(kind: CopyKind, tie: Option<Tie>, level: ReadLevel, class: Class) -> ReadRequest {
    ReadRequest {
        request: RequestId(7),
        shard: SHARD_ZERO,
        read: ReadId(0xa0a1_a2a3_a4a5_a6a7_a8a9_aaab_acad_aeaf),
        kind,
        tie,
        level,
        class,
        time_left_us: 1_000_000,
        operation: ReadOperation::Get { key: Bytes::from_static(b"key") },
    }
}

fn member(node: u64) -> Member {
    Member {
        node: NodeId(node),
        zone: "z1".to_owned(),
        client_address: "h:7400".to_owned(),
        peer_address: "h:7401".to_owned(),
        cancel_address: "h:7402".to_owned(),
        learner: false,
    }
}

fn topology() -> Topology {
    Topology { version: 4, shard: SHARD_ZERO, members: vec![member(1), member(2)], leader: Some(NodeId(1)) }
}

fn write(operation: WriteOperation) -> WriteRequest {
    WriteRequest {
        request: RequestId(8),
        shard: SHARD_ZERO,
        idempotency: IdempotencyKey { client: ClientId(0xc1), sequence: 300, floor: Position(5) },
        time_left_us: 1_000_000,
        operation,
    }
}

fn connection() -> Vec<Sample> {
    let mut ejected = Ejected::default();
    assert!(ejected.eject(NodeId(3)));
    let ceiling = Ceiling {
        version: 2,
        mode: Mode::Observe,
        share_ppm: 500_000,
        copies_max: 2,
        budget_ppm: Some(7),
        ejected,
    };
    vec![
        sample("Hello", Hello { version_min: 1, version_max: 1, client: ClientId(0xc1) }),
        sample(
            "Welcome",
            Welcome {
                version: 1,
                node: NodeId(1),
                cluster: ClusterId(0xfeed),
                modelled: true,
                topology: topology(),
                ceiling: Ceiling::default(),
            },
        ),
        sample("Notice.Topology", Notice::Topology(topology())),
        sample("Notice.Ceiling", Notice::Ceiling(ceiling)),
        sample("Notice.Refused", Notice::Refused(failure())),
        sample("PositionToken", PositionToken { cluster: ClusterId(1), shard: SHARD_ZERO, position: Position(9) }),
    ]
}

fn scan(columns: Columns, hi: Option<&'static [u8]>, reverse: bool) -> ReadRequest {
    let page = PageRequest {
        lo: Bytes::from_static(b"a"),
        hi: hi.map(Bytes::from_static),
        reverse,
        columns,
        rows_max: 4096,
        bytes_max: 262_144,
    };
    let operation = ReadOperation::Scan(Box::new(page));
    ReadRequest { operation, ..read(CopyKind::First, None, ReadLevel::Linearizable, Class::Batch) }
}

fn requests() -> Vec<Sample> {
    let stale = |bound_us| ReadLevel::Stale { bound_us };
    vec![
        sample("Read.untied", read(CopyKind::First, None, stale(None), Class::Interactive)),
        sample(
            "Read.tied",
            read(CopyKind::Tied, Some(tie()), ReadLevel::Session { seen: Position(300) }, Class::Interactive),
        ),
        sample("Read.hedge", read(CopyKind::Hedge, None, ReadLevel::Linearizable, Class::Batch)),
        sample("Read.rescue", read(CopyKind::Rescue, None, stale(Some(70_000)), Class::Background)),
        sample("Read.retry", read(CopyKind::Retry, None, stale(Some(0)), Class::Interactive)),
        sample("Read.shadow", read(CopyKind::Shadow, None, stale(None), Class::Background)),
        sample("Read.scan", scan(Columns::All, Some(b"b"), false)),
        sample("Read.scan.keys", scan(Columns::Keys, None, true)),
        sample("Read.scan.count", scan(Columns::Count, None, false)),
        sample("Read.multi_get", {
            let operation =
                ReadOperation::MultiGet { keys: vec![Bytes::from_static(b"a"), Bytes::from_static(b"bc")] };
            ReadRequest { operation, ..read(CopyKind::First, None, stale(None), Class::Interactive) }
        }),
        sample("Withdraw", Withdraw { requests: smallvec![RequestId(7), RequestId(300)] }),
        sample("Write.Put", write(WriteOperation::Put { key: Bytes::from_static(b"key") })),
        sample("Write.Atomic", write(WriteOperation::Atomic)),
        sample("Write.Delete", write(WriteOperation::Delete { key: Bytes::from_static(b"key") })),
        sample("Ping", Ping { request: RequestId(9) }),
    ]
}

fn bodies() -> Vec<Sample> {
    let key = || Bytes::from_static(b"key");
    let condition = |expect| Condition { key: key(), expect };
    let conditions = vec![
        condition(Expect::Absent),
        condition(Expect::Present),
        condition(Expect::Value(Bytes::from_static(b"old"))),
        condition(Expect::Version(Version(300))),
    ];
    let operations = vec![
        Operation::Put { key: key(), value: Bytes::from_static(b"new") },
        Operation::Delete { key: key() },
        Operation::Increment { key: key(), by: -2 },
        Operation::PutFor { key: key(), value: Bytes::from_static(b"new"), ttl_ms: 60_000 },
        Operation::Expire { key: key(), ttl_ms: Some(60_000) },
        Operation::Expire { key: key(), ttl_ms: None },
    ];
    let current = Current { version: Version(300), value_bytes: 3, value: Some(Bytes::from_static(b"old")) };
    vec![
        sample("Atomic", Atomic { conditions, operations }),
        sample("WriteDetail.Numbers", WriteDetail::Numbers(vec![Some(-3), None])),
        sample("WriteDetail.Unmet", WriteDetail::Unmet { index: 2, current: Some(current) }),
    ]
}

fn administration() -> Vec<Sample> {
    let disturbance = Disturbance { jobs_load: 0.2, stall_after_start: true, ..Disturbance::default() };
    let operations = [
        ("Disturb", AdminOperation::Disturb(disturbance)),
        ("RecordStarts", AdminOperation::RecordStarts { on: true }),
        ("TakeStarts", AdminOperation::TakeStarts { from: 1000 }),
        ("Counters", AdminOperation::Counters),
        ("Status", AdminOperation::Status),
        ("DropCancels", AdminOperation::DropCancels { share: 0.5 }),
        ("Lag", AdminOperation::Lag { on: true }),
        ("FailReads", AdminOperation::FailReads { on: true }),
        ("MemberAdd", AdminOperation::MemberAdd { node: NodeId(4), member: member(4) }),
        ("MemberRemove", AdminOperation::MemberRemove { node: NodeId(4) }),
        ("TransferLeader", AdminOperation::TransferLeader { to: Some(NodeId(2)) }),
        ("SetCeiling", AdminOperation::SetCeiling(Ceiling::default())),
        ("StepClock", AdminOperation::StepClock { ahead: true, by_ms: 3_600_000 }),
        ("SlowReads", AdminOperation::SlowReads),
        ("AnswerEarly", AdminOperation::AnswerEarly { on: true }),
    ];
    operations
        .into_iter()
        .map(|(name, operation)| {
            let request = AdminRequest { request: RequestId(10), time_left_us: 1_000_000, operation };
            sample(&format!("Admin.{name}"), request)
        })
        .collect()
}

fn replies() -> Vec<Sample> {
    let found = |version: Option<Version>| Found {
        version,
        level: ReadLevel::Session { seen: Position(300) },
        position: Position(301),
        remaining_ms: version.map(|_| 1_500),
    };
    let written = Written { version: Version(302), position: Position(302), repeated: false };
    let not_started = Service { started: false, service_time_us: 0, ..service() };
    let record = StartRecord {
        caller: CallerId(0xca11),
        read: ReadId(1),
        tie: Some((TieId(2), CopyNumber(1))),
        kind: CopyKind::Tied,
        lane: 7,
        admitted_us: 100,
        started_us: 350,
        ended_us: 5350,
        end: CopyEnd::Answered,
    };
    let reply = |service, outcome| ReadReply { request: RequestId(7), service, outcome };
    vec![
        sample("ReadReply.found", reply(service(), Ok(found(Some(Version(299)))))),
        sample("ReadReply.absent", reply(service(), Ok(found(None)))),
        sample("ReadReply.refused", reply(not_started, Err(failure()))),
        sample("WriteReply.written", WriteReply { request: RequestId(8), node: NodeId(1), outcome: Ok(written) }),
        sample("WriteReply.failed", WriteReply { request: RequestId(8), node: NodeId(1), outcome: Err(failure()) }),
        sample("Pong", Pong { request: RequestId(9), held_us: 40, flags: flags::DRAINING, unhealthy_pairs: 0 }),
        sample("AdminReply.done", AdminReply { request: RequestId(10), outcome: Ok(()) }),
        sample("AdminReply.failed", AdminReply { request: RequestId(10), outcome: Err(failure()) }),
        sample("StartRecord", record),
    ]
}

fn datagrams() -> Vec<Sample> {
    let cancel = Cancel { caller: CallerId(0xca11), tie: tie().id, number: CopyNumber(1) };
    vec![
        sample("PeerDatagram.Cancels", PeerDatagram::Cancels(smallvec![cancel, cancel])),
        sample("PeerDatagram.Ping", PeerDatagram::Ping { nonce: 77 }),
        sample("PeerDatagram.Pong", PeerDatagram::Pong { nonce: 77, held_us: 12 }),
    ]
}

/// Every message of the protocol, with every variant.
pub(crate) fn messages() -> Vec<Sample> {
    [connection(), requests(), bodies(), administration(), replies(), datagrams()].into_iter().flatten().collect()
}

/// Whole frames: a copy, a withdraw, and an answer with its value in the payload.
pub(crate) fn frames() -> Vec<(String, Vec<u8>)> {
    let framed = |name: &str, kind, message: &dyn Fn(&mut Vec<u8>, FrameKind)| {
        let mut out = Vec::new();
        message(&mut out, kind);
        (format!("frame.{name}"), out)
    };
    let read = read(CopyKind::First, Some(tie()), ReadLevel::Stale { bound_us: None }, Class::Interactive);
    let found = Found {
        version: Some(Version(299)),
        level: ReadLevel::Stale { bound_us: None },
        position: Position(301),
        remaining_ms: None,
    };
    let reply = ReadReply { request: RequestId(7), service: service(), outcome: Ok(found) };
    let withdraw = Withdraw { requests: smallvec![RequestId(7)] };
    vec![
        framed("Read", FrameKind::Read, &|out, kind| frame::encode(kind, &read, b"", out).unwrap()),
        framed("Withdraw", FrameKind::Withdraw, &|out, kind| frame::encode(kind, &withdraw, b"", out).unwrap()),
        framed("ReadReply", FrameKind::ReadReply, &|out, kind| frame::encode(kind, &reply, b"value", out).unwrap()),
    ]
}
