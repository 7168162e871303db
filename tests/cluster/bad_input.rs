//! Whatever arrives at the client port: a typed answer or a closed connection, never a hang, and the next good
//! request works.

use crate::bed::{Bed, PATIENCE, within};
use crate::wire::{Copy, Wire, endpoint, fresh_tie};
use bytes::Bytes;
use std::time::Duration;
use tiedkv_benches::cluster::certs::{Authority, Validity};
use tiedkv_client::Client;
use tiedkv_client::conditional::Batch;
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_protocol::atomic::{Atomic, Operation};
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::frame::{self, FrameKind};
use tiedkv_protocol::hello::{Hello, Notice};
use tiedkv_protocol::identity::{ALPN_CANCEL, ALPN_CLIENT, Identity, NODE_DNS_NAME, Role};
use tiedkv_protocol::ids::{ClientId, ClusterId, NodeId, RequestId};
use tiedkv_protocol::limits::{BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use tiedkv_protocol::request::{Ping, WriteOperation};
use tiedkv_protocol::response::WriteReply;

async fn wire(bed: &Bed) -> Wire {
    Wire::connect(&bed.cluster.certs(), bed.cluster.nodes()[0].ports().client()).await
}

async fn still_works(bed: &Bed) {
    let mut wire = wire(bed).await;
    wire.copy(Copy::untied("key")).await;
    let (reply, value) = wire.reply().await;
    assert!(reply.outcome.is_ok(), "{reply:?}");
    assert_eq!(value, "value");
}

async fn one_node() -> Bed {
    let bed = Bed::new(1).await;
    bed.put_everywhere("key", "value").await;
    bed
}

#[tokio::test]
async fn streams_that_are_no_frames_are_closed_with_a_reason() {
    let bed = one_node().await;
    let mut ping = Vec::new();
    frame::encode(FrameKind::Ping, &Ping { request: RequestId(1) }, b"", &mut ping).unwrap();
    let oversized = {
        let mut bytes = ping.clone();
        bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        bytes
    };
    let unknown = {
        let mut bytes = ping.clone();
        bytes[4] = 200;
        bytes
    };
    for bytes in [vec![0xff; 100], oversized, unknown, vec![0; 64]] {
        let mut wire = wire(&bed).await;
        wire.bytes(&bytes).await;
        let reason = wire.closed().await;
        assert!(reason.contains("closed by peer"), "{reason}");
        still_works(&bed).await;
    }
}

#[tokio::test]
async fn a_header_that_is_no_message_is_answered_and_the_connection_lives() {
    let bed = one_node().await;
    let mut wire = wire(&bed).await;
    for kind in [FrameKind::Read, FrameKind::Withdraw, FrameKind::Write, FrameKind::Ping, FrameKind::Admin] {
        wire.bytes(&[8, 0, 0, 0, kind as u8, 0, 4, 0, 0xff, 0xff, 0xff, 0xff]).await;
        let frame = wire.next().await;
        let Notice::Refused(failure) = frame.message().unwrap() else { panic!("{frame:?}") };
        assert_eq!(failure.code, ErrorCode::Malformed, "{kind:?}: {}", failure.message);
    }
    wire.copy(Copy::untied("key")).await;
    assert!(wire.reply().await.0.outcome.is_ok());
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_refused_by_name() {
    let bed = one_node().await;
    let certs = bed.cluster.certs();
    let address = bed.cluster.nodes()[0].ports().client();
    let mut wire = Wire::connect_silently(&certs, address).await;
    wire.frame(FrameKind::Hello, &Hello { version_min: 900, version_max: 901, client: ClientId(1) }).await;
    let reason = wire.closed().await;
    assert!(reason.contains("version"), "{reason}");
    still_works(&bed).await;
}

#[tokio::test]
async fn a_silent_handshake_is_closed_in_time() {
    let bed = one_node().await;
    let silent = Wire::connect_silently(&bed.cluster.certs(), bed.cluster.nodes()[0].ports().client()).await;
    silent.closed().await;
    still_works(&bed).await;
}

#[tokio::test]
async fn wrong_ties_keys_and_times_are_answered_by_kind() {
    let bed = one_node().await;
    let mut wire = wire(&bed).await;
    let (own, other, stranger) = (NodeId(1), NodeId(2), NodeId(77));
    let long: &'static str = "x".repeat(KEY_BYTES_MAX + 1).leak();
    let tied = |members: &[NodeId], number| Copy::tied("key", fresh_tie(), members, number);
    for (name, copy, code) in [
        ("a tie with a stranger", tied(&[own, stranger], 0), ErrorCode::BadTie),
        ("a tie that names itself twice", tied(&[own, own], 0), ErrorCode::BadTie),
        ("a tie of another node's number", tied(&[other, own], 0), ErrorCode::BadTie),
        ("a tie of four", tied(&[own, other, stranger, NodeId(3)], 0), ErrorCode::BadTie),
        ("a tie of none", tied(&[], 0), ErrorCode::BadTie),
        ("an empty key", Copy::untied(""), ErrorCode::OverLimit),
        ("a long key", Copy::untied(long), ErrorCode::OverLimit),
        ("no time left", Copy::untied("key").within(Duration::ZERO), ErrorCode::Expired),
    ] {
        wire.copy(copy).await;
        let (reply, _) = wire.reply().await;
        let failure = reply.outcome.expect_err(name);
        assert_eq!(failure.code, code, "{name}: {}", failure.message);
        assert!(!reply.service.started && !failure.message.is_empty(), "{name}");
    }
    wire.copy(Copy::untied("key").within(Duration::from_secs(365 * 24 * 3600))).await;
    assert!(wire.reply().await.0.outcome.is_ok(), "a year is cut, not refused");
}

#[tokio::test]
async fn ten_thousand_requests_at_once_are_all_answered() {
    let bed = one_node().await;
    let mut wire = wire(&bed).await;
    for _ in 0..10_000 {
        wire.copy(Copy::untied("key")).await;
    }
    let mut good = 0;
    for _ in 0..10_000 {
        match wire.reply().await.0.outcome {
            Ok(_) => good += 1,
            Err(failure) => assert!(
                matches!(failure.code, ErrorCode::Busy | ErrorCode::Expired),
                "{}: {}",
                failure.code,
                failure.message
            ),
        }
    }
    assert!(good > 0);
    still_works(&bed).await;
}

#[tokio::test]
async fn the_crate_refuses_what_no_node_would_take() {
    let bed = one_node().await;
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    let level = ReadOptions { level: Some(Level::Stale { bound: None }), ..ReadOptions::default() };
    assert_eq!(bed.client.get_with("", level.clone()).await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    assert_eq!(bed.client.get_with(long, level).await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    let value = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
    assert_eq!(bed.client.put("key", value).await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    assert_eq!(bed.client.put("", "value").await.unwrap_err().code(), Some(ErrorCode::OverLimit));
    let many = (0..=BATCH_OPERATIONS_MAX).fold(Batch::new(), |batch, key| batch.put(format!("{key}"), "value"));
    let heavy = Batch::new().put("a", vec![0; BATCH_BYTES_MAX - 1]).put("b", "value");
    for batch in [many, heavy, Batch::new()] {
        let refused = bed.client.batch(batch).await.unwrap_err();
        assert_eq!(refused.code(), Some(ErrorCode::OverLimit), "{refused}");
    }
    let within = |deadline| ReadOptions {
        level: Some(Level::Stale { bound: None }),
        deadline: Some(deadline),
        ..ReadOptions::default()
    };
    let none_left = bed.client.get_with("key", within(Duration::ZERO)).await.unwrap_err();
    assert_eq!(none_left.caller_move(), Move::GiveUp, "{none_left}");
    let year = bed.client.get_with("key", within(Duration::from_secs(365 * 24 * 3600))).await;
    assert_eq!(year.unwrap_err().code(), Some(ErrorCode::OverLimit), "a year is not cut without a word");
    still_works(&bed).await;
}

/// Dials a port with a certificate and waits for the end of the connection; its reason.
async fn refused(bed: &Bed, folder: &std::path::Path, certificate: &str, alpn: &[u8]) -> String {
    let ports = bed.cluster.nodes()[0].ports();
    let address = if alpn == ALPN_CANCEL { ports.cancel() } else { ports.client() };
    let endpoint = endpoint(folder, certificate, alpn);
    match within("a dial ends", endpoint.connect(address, NODE_DNS_NAME).unwrap()).await {
        Err(error) => error.to_string(),
        Ok(connection) => within("the connection ends", connection.closed()).await.to_string(),
    }
}

#[tokio::test]
async fn strangers_are_closed_and_the_next_client_is_served() {
    let bed = one_node().await;
    let certs = bed.cluster.certs();
    let authority = Authority::open(&certs).unwrap();
    let cluster = authority.cluster();
    let client = |cluster| Identity { cluster, role: Role::Client("late".to_owned()) };
    authority.issue("expired", &client(cluster), Validity::Expired).unwrap();
    authority.issue("elsewhere", &client(ClusterId(cluster.0 ^ 1)), Validity::Current).unwrap();

    let expired = refused(&bed, &certs, "expired", ALPN_CLIENT).await;
    assert!(expired.to_lowercase().contains("expired"), "{expired}");
    let elsewhere = refused(&bed, &certs, "elsewhere", ALPN_CLIENT).await;
    assert!(elsewhere.contains("cluster"), "{elsewhere}");
    let node = refused(&bed, &certs, "node-1", ALPN_CLIENT).await;
    assert!(node.contains("may not speak on the client port"), "{node}");
    let peer = refused(&bed, &certs, "client", ALPN_CANCEL).await;
    assert!(peer.contains("may not speak on the cancel port"), "{peer}");

    let other = tempfile::tempdir().unwrap();
    Authority::create(other.path()).unwrap().issue_client("client", "demo").unwrap();
    std::fs::copy(certs.join("ca.pem"), other.path().join("ca.pem")).unwrap();
    let unknown = refused(&bed, other.path(), "client", ALPN_CLIENT).await;
    assert!(!unknown.is_empty());
    still_works(&bed).await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_closed_or_served_but_blocks_nobody() {
    let bed = Bed::new(1).await;
    let big: &'static str = "v".repeat(60_000).leak();
    bed.put_everywhere("big", big).await;
    bed.put_everywhere("key", "value").await;
    let mut deaf = wire(&bed).await;
    for _ in 0..500 {
        deaf.copy(Copy::untied("big")).await;
    }
    bed.until_counters(NodeId(1), "many answers are owed to it", |now| now.started > 100).await;
    tokio::time::timeout(PATIENCE, still_works(&bed)).await.expect("a bystander is served");
    deaf.close();
    bed.until_at_rest(&[NodeId(1)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_handshakes_leaves_established_clients_their_deadlines() {
    const FLOOD: usize = 5_000;
    let bed = one_node().await;
    // The only replica: a link that is given up for silence would be the end of the read. The flood comes from this
    // machine as well, and takes its time from both.
    let patient = Client::connect_url(&format!("{}&silence=3s", bed.cluster.url())).await.unwrap();
    let endpoint = endpoint(&bed.cluster.certs(), "client", ALPN_CLIENT);
    let address = bed.cluster.nodes()[0].ports().client();
    let flood = tokio::spawn(async move {
        let mut begun = Vec::new();
        for number in 0..FLOOD {
            begun.extend(endpoint.connect(address, NODE_DNS_NAME));
            if number % 50 == 0 {
                tokio::task::yield_now().await;
            }
        }
        begun.len()
    });
    let (mut reads, mut slowest) = (0, Duration::ZERO);
    while !flood.is_finished() || reads < 50 {
        let options = ReadOptions {
            level: Some(Level::Stale { bound: None }),
            deadline: Some(Duration::from_secs(3)),
            ..ReadOptions::default()
        };
        let began = std::time::Instant::now();
        let read = patient.get_with("key", options).await;
        slowest = slowest.max(began.elapsed());
        assert!(read.is_ok(), "read {reads} during the flood: {}", read.unwrap_err());
        reads += 1;
    }
    println!("slowest of {reads} reads during the flood: {slowest:?}");
    assert_eq!(flood.await.unwrap(), FLOOD);
    still_works(&bed).await;
}

#[tokio::test]
async fn datagrams_and_bytes_that_are_nothing_are_dropped_on_every_port() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let bed = one_node().await;
    let ports = bed.cluster.nodes()[0].ports();
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for port in [ports.client(), ports.cancel()] {
        for length in (0..1400).step_by(7) {
            // Long headers of known and unknown versions, short headers, nothing at all.
            let mut bytes: Vec<u8> = (0..length).map(|index| (index * 31 % 251) as u8).collect();
            if let [first, ..] = &mut bytes[..] {
                *first = [0xc0, 0x40, 0xff, 0x00][length % 4];
            }
            let _ = socket.send_to(&bytes, port);
        }
    }
    for bytes in
        [&b"\0\xff\0\xff"[..], &[b'x'; 100_000], b"GET /status HTTP/9.9\r\n\r\n", b"POST /status HTTP/1.1\r\n"]
    {
        let mut stream = tokio::net::TcpStream::connect(ports.admin()).await.unwrap();
        // It may hang up before all is sent.
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = within("an answer or an end", stream.read_to_end(&mut answer)).await;
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    still_works(&bed).await;
    let page = tiedkv_benches::cluster::admin_page::fetch(ports.admin(), "/livez", PATIENCE).await.unwrap();
    assert_eq!(page.status, 200);
}

#[tokio::test]
async fn batches_over_their_bounds_are_answered_by_their_own_id() {
    let bed = one_node().await;
    let mut wire = wire(&bed).await;
    let put = |number: usize| Operation::Put { key: format!("{number}").into(), value: "value".into() };
    let of = |count| Atomic { conditions: Vec::new(), operations: (0..count).map(put).collect() }.encode().unwrap();
    for (name, payload, code) in [
        ("too many", of(BATCH_OPERATIONS_MAX + 1), ErrorCode::OverLimit),
        ("none", of(0), ErrorCode::OverLimit),
        ("no batch", Bytes::from_static(b"\xff\xff\xff\xff"), ErrorCode::Malformed),
        ("cut off", of(10).slice(..20), ErrorCode::Malformed),
    ] {
        let request = wire.write(WriteOperation::Atomic, &payload).await;
        let reply: WriteReply = wire.next_of(FrameKind::WriteReply).await.message().unwrap();
        let failure = reply.outcome.expect_err(name);
        assert_eq!((reply.request, failure.code), (request, code), "{name}: {}", failure.message);
    }
    still_works(&bed).await;
}
