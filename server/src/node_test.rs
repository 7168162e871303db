//! A whole node in this process, spoken to over real QUIC on loopback.

use super::*;
use crate::config::ConfigBuilder;
use crate::transport::test_certificates::{TestAuthority, dialler};
use crate::transport::test_probe::{PATIENCE, Probe, hello, narrow, put, read};
use quinn::{ConnectionError, VarInt};
use std::net::TcpListener;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::frame::{self, FrameKind};
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::hello::{Ceiling, Mode, Notice};
use tiedkv_protocol::identity::NODE_DNS_NAME;
use tiedkv_protocol::ids::{RequestId, TieId};
use tiedkv_protocol::limits::{FRAME_BYTES_MAX, INLINE_VALUE_BYTES_MAX, VALUE_BYTES_MAX};
use tiedkv_protocol::request::{AdminOperation, Ping, Withdraw};
use tiedkv_protocol::response::{ReadReply, WriteReply, flags};
use tiedkv_protocol::tie::{CopyNumber, Tie};
use tokio::time::timeout;

/// A node alone on free ports.
pub(super) fn alone(authority: &TestAuthority, settings: &[(&str, &str)]) -> Node {
    authority.node(1);
    Node::start(config(authority, settings)).unwrap()
}

fn config(authority: &TestAuthority, settings: &[(&str, &str)]) -> Config {
    let mut builder = ConfigBuilder::new().flag("certs_dir", authority.folder().to_str().unwrap()).unwrap();
    for setting in ["client_address", "peer_address", "cancel_address", "admin_address"] {
        if !settings.iter().any(|(name, _)| *name == setting) {
            builder = builder.flag(setting, "127.0.0.1:0").unwrap();
        }
    }
    if !settings.iter().any(|(name, _)| *name == "storage") {
        builder = builder.flag("storage", "memory").unwrap();
    }
    for (name, value) in settings {
        builder = builder.flag(name, value).unwrap();
    }
    builder.build().unwrap()
}

#[tokio::test]
async fn a_copy_is_answered_over_quic() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    let welcome = probe.welcome.clone().unwrap();
    assert_eq!((welcome.node, welcome.modelled), (NodeId(1), false));
    assert_eq!(welcome.topology.members[0].client_address, node.addresses().client.to_string());
    let (reply, value) = probe.read(1, "absent").await;
    assert_eq!((reply.request, reply.service.node, reply.service.started), (RequestId(1), NodeId(1), true));
    assert!(value.is_empty() && reply.outcome.unwrap().version.is_none());
    let written = probe.put("key", b"value", false).await.outcome.unwrap();
    let (reply, value) = probe.read(2, "key").await;
    assert_eq!((reply.outcome.unwrap().version, &value[..]), (Some(written.version), &b"value"[..]));
    probe.assert_open(2).await;
    assert!(node.stop().threads_ended);
}

#[tokio::test]
async fn a_copy_that_cannot_be_decoded_is_answered_and_the_connection_stays() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    // Begins with a request id, goes on with garbage.
    for (kind, answer) in [(FrameKind::Read, FrameKind::ReadReply), (FrameKind::Write, FrameKind::WriteReply)] {
        probe.raw(&raw_frame(kind, &[[77].as_slice(), &[0xff; 30]].concat())).await;
        let frame = probe.frame(answer).await;
        let failure = match answer {
            FrameKind::ReadReply => {
                let reply = frame.message::<ReadReply>().unwrap();
                assert!(reply.request == RequestId(77) && !reply.service.started);
                reply.outcome.unwrap_err()
            }
            _ => frame.message::<WriteReply>().unwrap().outcome.unwrap_err(),
        };
        assert_eq!(failure.code, ErrorCode::Malformed, "{failure:?}");
    }
    // Nothing can be named: a notice.
    for (kind, header) in [(FrameKind::Withdraw, &[0xff; 9][..]), (FrameKind::Read, &[]), (FrameKind::Pong, &[1])] {
        probe.raw(&raw_frame(kind, header)).await;
        let notice: Notice = probe.message(FrameKind::Notice).await;
        assert!(matches!(&notice, Notice::Refused(failure) if failure.code == ErrorCode::Malformed), "{notice:?}");
    }
    probe.say(FrameKind::Hello, &hello(1, 1), &[]).await;
    assert!(matches!(probe.message(FrameKind::Notice).await, Notice::Refused(_)));
    probe.assert_open(5).await;
    assert_eq!(node.observer.counters().clients.malformed, 6);
}

fn raw_frame(kind: FrameKind, header: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&(4 + header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind as u8, 0]);
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header);
    bytes
}

#[tokio::test]
async fn bytes_that_are_no_frames_close_the_connection_with_a_reason() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let oversized = [&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes()[..], &[16, 0, 1, 0, 0]].concat();
    let unknown =
        raw_frame(FrameKind::Read, &[1]).iter().enumerate().map(|(i, b)| if i == 4 { 99 } else { *b }).collect();
    for (bytes, reason) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "a frame of"),
        (oversized, "a frame of"),
        (unknown, "frame kind 99"),
        (vec![0; 64], "a frame of 0 bytes"),
    ] {
        let mut probe = Probe::greeted(&node, &authority).await;
        probe.raw(&bytes).await;
        let (code, said) = probe.closed().await;
        assert!(code == quic::CLOSE_PROTOCOL && said.contains(reason), "{code} {said}");
    }
    let mut probe = Probe::greeted(&node, &authority).await;
    probe.raw(&raw_frame(FrameKind::Ping, &[1; 40])[..20]).await;
    probe.send.finish().unwrap();
    assert!(probe.closed().await.1.contains("ends within a frame"));
    Probe::greeted(&node, &authority).await.assert_open(1).await;
}

#[tokio::test]
async fn a_client_must_say_hello_first_in_time_and_in_our_version() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[("handshake_limit_us", "300000")]);
    let mut probe = Probe::dial(&node, &authority).await;
    probe.say(FrameKind::Hello, &hello(7, 9), &[]).await;
    let (code, reason) = probe.closed().await;
    assert_eq!(
        (code, reason.as_str()),
        (quic::CLOSE_PROTOCOL, "client speaks versions 7 to 9, this node speaks 1")
    );

    let mut probe = Probe::dial(&node, &authority).await;
    probe.say(FrameKind::Ping, &Ping { request: RequestId(1) }, &[]).await;
    assert!(probe.closed().await.1.contains("want Hello"));

    let probe = Probe::dial(&node, &authority).await;
    assert_eq!(probe.closed().await.0, quic::CLOSE_TOO_SLOW);
}

#[tokio::test]
async fn strangers_are_told_who_may_speak_on_the_client_port() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let probe = Probe::dial_with(&node, dialler(&authority.node(2), Port::Client)).await;
    let (code, reason) = probe.closed().await;
    assert!(code == quic::CLOSE_STRANGER && reason.contains("may not speak on the client port"), "{reason}");
}

#[tokio::test]
async fn connections_beyond_the_bound_are_refused() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[("connections_max", "2")]);
    let (first, _second) = (Probe::greeted(&node, &authority).await, Probe::greeted(&node, &authority).await);
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let config = dialler(&authority.client("third"), Port::Client);
    let dial = || endpoint.connect_with(config.clone(), node.addresses().client, NODE_DNS_NAME).unwrap();
    assert!(matches!(dial().await, Err(ConnectionError::ConnectionClosed(_))));
    first.connection.close(VarInt::from_u32(0), b"");
    // Room again as soon as the node has seen the close.
    let again = async {
        while dial().await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, again).await.unwrap();
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_cut_off_with_a_reason() {
    let authority = TestAuthority::new();
    let node =
        alone(&authority, &[("replies_waiting_max_bytes", "1048576"), ("replies_stalled_max_us", "60000000")]);
    let mut probe = Probe::dial_with(&node, narrow(&authority, 4096)).await;
    probe.say(FrameKind::Hello, &hello(1, 1), &[]).await;
    let mut pings = Vec::new();
    for request in 0..1000 {
        frame::encode(FrameKind::Ping, &Ping { request: RequestId(request) }, &[], &mut pings).unwrap();
    }
    let flood = async { while probe.send.write_all(&pings).await.is_ok() {} };
    timeout(2 * PATIENCE, flood).await.expect("cut off in time");
    let (code, reason) = probe.closed().await;
    assert!(code == quic::CLOSE_OVER_LIMIT && reason.contains("answers are not read"), "{code} {reason}");
}

#[tokio::test]
async fn changes_are_told_unasked() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    let mut members = node.directory().topology().members.clone();
    members.push(Member { node: NodeId(2), ..members[0].clone() });
    node.directory().set_members(members).unwrap();
    let Notice::Topology(topology) = probe.message(FrameKind::Notice).await else { panic!("a topology") };
    assert_eq!((topology.version, topology.members.len()), (2, 2));
    let ceiling = Ceiling { version: 3, mode: Mode::Off, ..Ceiling::default() };
    assert_eq!(probe.admin(AdminOperation::SetCeiling(ceiling)).await.0.outcome, Ok(()));
    assert_eq!(probe.message::<Notice>(FrameKind::Notice).await, Notice::Ceiling(ceiling));
}

#[tokio::test]
async fn faults_and_disturbances_need_their_switch() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    for operation in [
        AdminOperation::Disturb(Default::default()),
        AdminOperation::RecordStarts { on: true },
        AdminOperation::TakeStarts { from: 0 },
        AdminOperation::DropCancels { share: 1.0 },
        AdminOperation::Lag { on: true },
        AdminOperation::FailReads { on: true },
    ] {
        let failure = probe.admin(operation).await.0.outcome.unwrap_err();
        assert_eq!(failure.code, ErrorCode::NotAllowed, "{failure:?}");
    }
    let (reply, page) = probe.admin(AdminOperation::Status).await;
    let page: StatusPage = serde_json::from_slice(&page).unwrap();
    assert!(reply.outcome.is_ok() && page.node == NodeId(1) && !page.allow_faults && page.ready);
    let (_, counters) = probe.admin(AdminOperation::Counters).await;
    let counters: crate::admin::status::CountersPage = serde_json::from_slice(&counters).unwrap();
    assert_eq!(counters.clients.connections, 1);

    let node = alone(&authority, &[("allow_faults", "true")]);
    let mut probe = Probe::greeted(&node, &authority).await;
    for operation in [
        AdminOperation::RecordStarts { on: true },
        AdminOperation::TakeStarts { from: 0 },
        AdminOperation::DropCancels { share: 0.5 },
        AdminOperation::Lag { on: true },
        AdminOperation::FailReads { on: true },
    ] {
        assert_eq!(probe.admin(operation).await.0.outcome, Ok(()));
    }
    let over = probe.admin(AdminOperation::DropCancels { share: 1.5 }).await.0.outcome.unwrap_err();
    assert_eq!(over.code, ErrorCode::OverLimit);
}

#[tokio::test]
async fn a_stop_closes_with_a_reason_and_leaves_nothing() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let addresses = node.addresses();
    let mut probe = Probe::greeted(&node, &authority).await;
    probe.assert_open(1).await;
    let report = tokio::task::spawn_blocking(move || node.stop()).await.unwrap();
    assert_eq!(report, StopReport { in_flight_left: 0, threads_ended: true });
    let (code, reason) = probe.closed().await;
    assert_eq!((code, reason.as_str()), (quic::CLOSE_SHUTDOWN, "the node is stopping"));
    // Every port can be had again at once.
    for address in [addresses.client, addresses.cancel] {
        std::net::UdpSocket::bind(address).unwrap();
    }
    TcpListener::bind(addresses.admin).unwrap();
}

#[test]
fn what_is_wrong_at_the_start_is_named() {
    let authority = TestAuthority::new();
    let start = |settings: &[(&str, &str)]| Node::start(config(&authority, settings)).err().unwrap().to_string();
    assert!(start(&[]).contains("0 node certificates"), "{}", start(&[]));
    authority.node(1);
    let missing = start(&[("members", "2=127.0.0.1:7400")]);
    assert!(missing.contains("node 1 (by its certificate) is not among"), "{missing}");
    authority.node(2);
    assert!(start(&[]).contains("2 node certificates"), "{}", start(&[]));
    let absent = start(&[("node_id", "3")]);
    assert!(absent.contains("node-3.pem"), "{absent}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let busy = start(&[("node_id", "1"), ("admin_address", &address)]);
    assert!(busy.contains("admin_address") && busy.contains(&address), "{busy}");
}

#[tokio::test]
async fn a_node_listens_on_ipv6_too() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[("client_address", "[::1]:0"), ("cancel_address", "[::1]:0")]);
    Probe::greeted(&node, &authority).await.assert_open(1).await;
}

/// What HTTP says on a path: the status line's code and the body.
pub(super) async fn http(node: &Node, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(node.addresses().admin).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn http_tells_life_readiness_status_and_metrics() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    probe.read(1, "absent").await;
    assert_eq!(http(&node, "/livez").await, (200, "ok\n".to_owned()));
    let (code, lines) = http(&node, "/readyz").await;
    assert!(code == 200 && lines.lines().count() == 4 && lines.contains("ok replica"), "{lines}");
    let (_, page) = http(&node, "/status").await;
    assert_eq!(serde_json::from_str::<StatusPage>(&page).unwrap().node, NodeId(1));
    let (code, metrics) = http(&node, "/metrics").await;
    assert_eq!(code, 200);
    for line in ["tiedkv_copies_received_total 1", "tiedkv_ready 1.0", "tiedkv_clients_connections_total 1"] {
        assert!(metrics.contains(line), "no `{line}` in\n{metrics}");
    }
    assert!(metrics.contains("tiedkv_copies_received_by_kind_total{kind=\"first\"} 1"), "{metrics}");
    assert_eq!(http(&node, "/absent").await.0, 404);
    node.shutdown.enter(Phase::Draining);
    let (code, lines) = http(&node, "/readyz").await;
    assert!(code == 503 && lines.contains("NOT not-stopping"), "{lines}");
}

#[tokio::test]
async fn large_values_travel_apart_both_ways() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[]);
    let mut probe = Probe::greeted(&node, &authority).await;
    for bytes in [INLINE_VALUE_BYTES_MAX, INLINE_VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX] {
        let value: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
        let apart = bytes > INLINE_VALUE_BYTES_MAX;
        probe.put("large", &value, apart).await.outcome.unwrap();
        let (reply, read) = probe.read(1, "large").await;
        assert!(reply.outcome.is_ok() && read == value, "{bytes} bytes");
    }
    // Only writes travel apart: a copy could overtake its withdraw.
    probe.say_apart(FrameKind::Read, &read(9, "large"), &[]).await;
    let notice: Notice = probe.message(FrameKind::Notice).await;
    assert!(matches!(&notice, Notice::Refused(failure) if failure.code == ErrorCode::Malformed), "{notice:?}");
    probe.say_apart(FrameKind::Write, &put(10, 10, "k"), &vec![0; VALUE_BYTES_MAX + 1]).await;
    let reply: WriteReply = probe.message(FrameKind::WriteReply).await;
    assert_eq!(reply.outcome.unwrap_err().code, ErrorCode::OverLimit);
    probe.assert_open(11).await;
}

#[tokio::test]
async fn a_large_answer_that_is_not_taken_cuts_the_client_off() {
    let authority = TestAuthority::new();
    let node = alone(&authority, &[("replies_stalled_max_us", "200000")]);
    let mut probe = Probe::greeted(&node, &authority).await;
    probe.put("large", &vec![1; VALUE_BYTES_MAX], true).await.outcome.unwrap();
    let mut lazy = Probe::dial_with(&node, narrow(&authority, 4096)).await;
    lazy.say(FrameKind::Hello, &hello(1, 1), &[]).await;
    lazy.say(FrameKind::Read, &read(1, "large"), &[]).await;
    let (code, reason) = lazy.closed().await;
    assert!(code == quic::CLOSE_OVER_LIMIT && reason.contains("a large value was not taken"), "{code} {reason}");
    probe.assert_open(1).await;
}

/// Three nodes that know each other, cancel channels connected.
fn three(authority: &TestAuthority, settings: &[(&str, &str)]) -> Vec<Node> {
    let nodes: Vec<Node> = (1..=3)
        .map(|id: u64| {
            authority.node(id);
            let own = id.to_string();
            let settings = [settings, &[("node_id", own.as_str())]].concat();
            Node::start(config(authority, &settings)).unwrap()
        })
        .collect();
    let members: Vec<Member> = nodes.iter().map(|node| node.directory().member(node.id()).unwrap()).collect();
    nodes.iter().for_each(|node| node.directory().set_members(members.clone()).unwrap());
    nodes
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let holds = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, holds).await.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}"));
}

#[tokio::test]
async fn a_start_on_one_node_ends_the_waiting_copy_on_another() {
    let authority = TestAuthority::new();
    // One worker each; an operation takes 300 ms or more, so that a second copy waits for the first.
    let slow = [
        ("device", "modelled"),
        ("device_mean_service_us", "1000000"),
        ("lanes", "1"),
        ("workers_per_lane", "1"),
        ("cancel_ping_us", "20000"),
    ];
    let nodes = three(&authority, &slow);
    until("all pairs usable", || nodes.iter().all(|node| node.status().cancels.unhealthy_pairs == 0)).await;
    let mut one = Probe::greeted(&nodes[0], &authority).await;
    let mut two = Probe::greeted(&nodes[1], &authority).await;
    assert!(two.welcome.as_ref().unwrap().modelled);
    two.say(FrameKind::Read, &read(1, "busy"), &[]).await;
    until("node 2 is busy", || nodes[1].path().counters().started == 1).await;
    let tie = |number| {
        let members = [NodeId(1), NodeId(2)].into_iter().collect();
        Some(Tie { id: TieId(99), number: CopyNumber(number), members, width: 2 })
    };
    // Copy 1 waits at node 2; copy 0 starts at once at node 1 and cancels it.
    let mut copy = read(2, "key");
    copy.tie = tie(1);
    two.say(FrameKind::Read, &copy, &[]).await;
    until("copy 1 waits", || nodes[1].path().counters().received == 2).await;
    copy.tie = tie(0);
    one.say(FrameKind::Read, &copy, &[]).await;
    until("copy 1 is cancelled", || nodes[1].path().counters().cancelled == 1).await;
    assert_eq!(nodes[1].path().counters().started, 1);
    let (reply, _) = one.read_reply().await;
    assert!(reply.outcome.is_ok() && reply.service.flags & flags::MODELLED != 0);
    let sent = nodes[0].status().cancels;
    assert!(sent.peers.iter().all(|pair| pair.flight_p50_ns > 0), "{sent:?}");
}

#[tokio::test]
async fn a_stop_answers_what_is_in_flight_first() {
    let authority = TestAuthority::new();
    let slow = [("device", "modelled"), ("device_mean_service_us", "400000"), ("workers_per_lane", "1")];
    let node = alone(&authority, &slow);
    let mut probe = Probe::greeted(&node, &authority).await;
    probe.say(FrameKind::Read, &read(1, "key"), &[]).await;
    until("started", || node.path().counters().started == 1).await;
    let path = node.path().clone();
    let stopping = tokio::task::spawn_blocking(move || node.stop());
    until("draining", || path.status().draining).await;
    // New work is refused, and says that the node is on its way out; what runs is answered.
    probe.say(FrameKind::Read, &read(2, "key"), &[]).await;
    let mut answers = [probe.read_reply().await.0, probe.read_reply().await.0];
    answers.sort_by_key(|reply| reply.request);
    assert!(answers[0].outcome.is_ok(), "{answers:?}");
    assert_eq!(answers[1].outcome.as_ref().unwrap_err().code, ErrorCode::TryElsewhere);
    assert_ne!(answers[1].service.flags & flags::DRAINING, 0);
    assert_eq!(stopping.await.unwrap(), StopReport { in_flight_left: 0, threads_ended: true });
    assert_eq!(probe.closed().await.0, quic::CLOSE_SHUTDOWN);
}

#[tokio::test]
async fn a_withdraw_follows_its_copy_and_a_lost_connection_withdraws_all() {
    let authority = TestAuthority::new();
    let slow = [("device", "modelled"), ("device_mean_service_us", "1000000"), ("workers_per_lane", "1")];
    let node = alone(&authority, &slow);
    let mut probe = Probe::greeted(&node, &authority).await;
    for request in 1..=3 {
        probe.say(FrameKind::Read, &read(request, "key"), &[]).await;
    }
    let requests = [RequestId(2)].into_iter().collect();
    probe.say(FrameKind::Withdraw, &Withdraw { requests }, &[]).await;
    until("one withdrawn", || node.path().counters().withdrawn == 1).await;
    drop(probe);
    until("all withdrawn", || node.path().counters().withdrawn == 3).await;
    assert_eq!(node.path().counters().answered(), 0);
}
