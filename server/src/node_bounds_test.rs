//! What a client may and may not do to a node, and what the node says about slow reads, over real QUIC on loopback.

use super::tests::{alone, http};
use super::*;
use crate::request::slow_log::{SlowEnd, SlowRead};
use crate::transport::large::LARGE_FRAMES_PER_CALLER_MAX;
use crate::transport::test_certificates::{TestAuthority, dialler};
use crate::transport::test_probe::{PATIENCE, Probe, put};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, FrameKind};
use tiedkv_protocol::hello::Ceiling;
use tiedkv_protocol::ids::RequestId;
use tiedkv_protocol::limits::{INLINE_VALUE_BYTES_MAX, VALUE_BYTES_MAX};
use tiedkv_protocol::request::AdminOperation;
use tiedkv_protocol::response::WriteReply;

#[tokio::test]
async fn what_changes_a_cluster_needs_an_operators_certificate() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[("allow_faults", "true")]);
    let mut client = Probe::greeted_as_client(&node, &authority).await;
    let member = node.directory().topology().members[0].clone();
    for operation in [
        AdminOperation::SetCeiling(Ceiling::default()),
        AdminOperation::MemberAdd { node: NodeId(1), member },
        AdminOperation::MemberRemove { node: NodeId(1) },
        AdminOperation::TransferLeader { to: None },
        AdminOperation::Disturb(Default::default()),
        AdminOperation::RecordStarts { on: true },
        AdminOperation::TakeStarts { from: 0 },
        AdminOperation::DropCancels { share: 1.0 },
        AdminOperation::Lag { on: true },
        AdminOperation::FailReads { on: true },
    ] {
        let failure = client.admin(operation.clone()).await.0.outcome.unwrap_err();
        assert_eq!(failure.code, ErrorCode::NotAllowed, "{operation:?}");
        assert!(failure.message.contains("operator's certificate"), "{operation:?}: {}", failure.message);
    }
    for operation in [AdminOperation::Status, AdminOperation::Counters, AdminOperation::SlowReads] {
        assert_eq!(client.admin(operation).await.0.outcome, Ok(()));
    }
    client.put("key", b"value", false).await.outcome.unwrap();
    assert_eq!(client.read(1, "key").await.1, "value");
    let mut operator = Probe::greeted(&node, &authority).await;
    assert_eq!(operator.admin(AdminOperation::Lag { on: false }).await.0.outcome, Ok(()));
}

/// Opens a stream and sends the head of a large write and a part of its value.
async fn dawdle(probe: &Probe, request: u64) -> quinn::SendStream {
    let mut bytes = Vec::new();
    frame::encode(FrameKind::Write, &put(request, request, "slow"), &vec![7; VALUE_BYTES_MAX], &mut bytes).unwrap();
    let mut stream = probe.connection.open_uni().await.unwrap();
    stream.write_all(&bytes[..1000]).await.unwrap();
    stream
}

#[tokio::test]
async fn slow_large_values_of_one_caller_keep_no_other_out_and_are_answered_by_id() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut slow = Vec::new();
    // Two connections of one caller: enough for its whole share, and one more that waits for a place.
    let config = dialler(&authority.client("slow"), Port::Client);
    let mut first = Probe::dial_with(&node, config.clone()).await.welcomed().await;
    let mut second = Probe::dial_with(&node, config).await.welcomed().await;
    for request in 0..LARGE_FRAMES_PER_CALLER_MAX as u64 {
        slow.push(dawdle(&first, request).await);
    }
    first.assert_open(100).await;
    slow.push(dawdle(&second, 50).await);
    second.assert_open(100).await;

    let mut other = Probe::greeted(&node, &authority).await;
    let large = vec![1; INLINE_VALUE_BYTES_MAX + 1];
    other.put("large", &large, true).await.outcome.unwrap();

    // Cut off midway: answered by the request's own id, since that had come.
    slow[3].finish().unwrap();
    let reply: WriteReply = first.message(FrameKind::WriteReply).await;
    assert_eq!(reply.request, RequestId(3));
    assert_eq!(reply.outcome.unwrap_err().code, ErrorCode::Malformed);
    // Its place goes to the one that waited, whose rest may come now; that one waits for its own end.
    slow.truncate(LARGE_FRAMES_PER_CALLER_MAX);
    let reply: WriteReply = second.message(FrameKind::WriteReply).await;
    assert_eq!((reply.request, reply.outcome.unwrap_err().code), (RequestId(50), ErrorCode::Malformed));
}

#[tokio::test]
async fn reads_over_the_threshold_stand_in_the_slow_log() {
    let authority = TestAuthority::new();
    let settings =
        [("slow_read_us", "20000"), ("device", "modelled"), ("device_mean_service_us", "100000"), ("lanes", "1")];
    let node = alone(&authority, &settings);
    let mut probe = Probe::greeted(&node, &authority).await;
    for request in 1..=3 {
        probe.read(request, "key").await;
    }
    let (code, page) = http(&node, "/slow").await;
    let lines: Vec<SlowRead> = serde_json::from_str(&page).unwrap();
    assert_eq!((code, lines.len()), (200, 3), "{page}");
    assert!(lines.iter().all(|line| line.end == SlowEnd::Answered && line.service_time_us >= 20_000), "{page}");
    assert_eq!(lines[1].read, format!("{:032x}", 2));
    let (_, page) = probe.admin(AdminOperation::SlowReads).await;
    assert_eq!(serde_json::from_slice::<Vec<SlowRead>>(&page).unwrap(), lines);
    let quick = alone(&authority, &[("slow_read_us", "0")]);
    Probe::greeted(&quick, &authority).await.read(1, "key").await;
    assert!(quick.path().slow_reads().is_empty());
}

#[tokio::test]
async fn status_says_everything_that_operators_ask_for() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let (_, page) = http(&node, "/status").await;
    let page: serde_json::Value = serde_json::from_str(&page).unwrap();
    for path in [
        "/node",
        "/cluster",
        "/version",
        "/protocol_version",
        "/peer_version",
        "/uptime_s",
        "/phase",
        "/ready",
        "/device",
        "/replica/role",
        "/replica/term",
        "/replica/applied",
        "/replica/committed",
        "/lag",
        "/path/lanes/0/depth",
        "/path/lanes/0/busy_workers",
        "/path/in_flight",
        "/cancels/realtime",
        "/cancels/peers",
        "/certificates/node_not_after_unix_s",
        "/certificates/node_expires_in_s",
        "/certificates/authority_not_after_unix_s",
        "/udp_buffers/receive",
        "/udp_buffers/send",
        "/addresses/client",
        "/topology/members/0/zone",
        "/ceiling/mode",
    ] {
        assert!(page.pointer(path).is_some_and(|value| !value.is_null()), "{path} of {page:#}");
    }
    assert!(page["certificates"]["node_expires_in_s"].as_i64().unwrap() > 0);
    assert!(page["certificates"]["authority_expires_in_s"].as_i64().unwrap() > 0);
    assert!(page["udp_buffers"]["receive"].as_u64().unwrap() > 0);
    let ready = tokio::time::timeout(PATIENCE, http(&node, "/readyz")).await.unwrap();
    assert!(ready.1.lines().any(|line| line == "ok certificate"), "{}", ready.1);
}
