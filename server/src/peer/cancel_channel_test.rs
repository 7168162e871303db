//! Cancel channels over real QUIC on loopback: who is heard, what is packed, what is dropped, when a pair is usable.

use super::*;
use crate::clock;
use crate::shutdown::IoThread;
use crate::transport::listen::endpoint;
use crate::transport::quic;
use crate::transport::test_certificates::{TestAuthority, dialler};
use crate::transport::tls::{CertificateFiles, Port};
use crossbeam::channel::{Receiver, unbounded};
use std::net::SocketAddr;
use tiedkv_protocol::codec;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::identity::{Identity, NODE_DNS_NAME, Role};
use tiedkv_protocol::ids::{CallerId, ClusterId, SHARD_ZERO, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::PeerDatagram;
use tiedkv_protocol::tie::CopyNumber;

const PATIENCE: Duration = Duration::from_secs(10);
const PING: Duration = Duration::from_millis(20);

/// One node's channel on a thread of its own.
struct End {
    node: u64,
    channel: CancelChannel,
    directory: Arc<Directory>,
    endpoint: Endpoint,
    heard: Receiver<(NodeId, Cancel, Moment)>,
    thread: IoThread,
}

impl End {
    fn new(authority: &TestAuthority, node: u64, realtime: bool) -> Self {
        Self::at(authority, node, realtime, "127.0.0.1:0".parse().unwrap())
    }

    fn at(authority: &TestAuthority, node: u64, realtime: bool, address: SocketAddr) -> Self {
        let credentials = Arc::new(authority.credentials(node));
        let raise = move || realtime && crate::peer::priority::raise_this_thread().is_ok();
        let (thread, raised) = IoThread::start("cancels", raise).unwrap();
        let endpoint = {
            let _entered = thread.handle().enter();
            endpoint(address, 1 << 20, quic::server(&credentials, Port::Cancel).unwrap()).unwrap()
        };
        let directory = Arc::new(Directory::new(NodeId(node), SHARD_ZERO, Vec::new()).unwrap());
        let settings = CancelSettings { ping_pause: PING, queue_max: 64, handshake_limit: Duration::from_secs(2) };
        let channel = CancelChannel::new(settings, directory.clone());
        channel.note_realtime(raised);
        // Generous: scheduling noise of a busy test machine is no reason here.
        channel.expect_service(Duration::from_secs(1));
        let (hear, heard) = unbounded();
        let receiver: CancelReceiver = Arc::new(move |from, cancel| {
            let _ = hear.send((from, cancel, clock::now()));
        });
        let wire = CancelWire {
            endpoint: endpoint.clone(),
            client: quic::client(&credentials, Port::Cancel).unwrap(),
            credentials,
            resolver: thread.handle().clone(),
        };
        thread.handle().spawn(channel.clone().run(wire, receiver));
        Self { node, channel, directory, endpoint, heard, thread }
    }

    fn address(&self) -> SocketAddr {
        self.endpoint.local_addr().unwrap()
    }

    fn member(&self) -> Member {
        member(self.node, &self.address().to_string())
    }

    fn usable(&self, peer: u64) -> bool {
        self.channel.status().peers.iter().any(|pair| pair.node == NodeId(peer) && pair.usable)
    }

    fn hear(&self) -> (NodeId, Cancel) {
        let (from, cancel, _) = self.heard.recv_timeout(PATIENCE).expect("a cancel in time");
        (from, cancel)
    }
}

fn member(node: u64, cancel_address: &str) -> Member {
    Member {
        node: NodeId(node),
        zone: String::new(),
        client_address: String::new(),
        peer_address: String::new(),
        cancel_address: cancel_address.to_owned(),
        learner: false,
    }
}

fn introduce(ends: &[&End]) {
    for end in ends {
        end.directory.set_members(ends.iter().map(|end| end.member()).collect()).unwrap();
    }
}

/// Waits for a condition that others bring about; never for luck.
#[track_caller]
fn until(what: &str, condition: impl Fn() -> bool) -> Duration {
    let start = clock::now();
    while !condition() {
        assert!(clock::now().since(start) < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
    clock::now().since(start)
}

fn pair(authority: &TestAuthority) -> (End, End) {
    let (one, two) = (End::new(authority, 1, false), End::new(authority, 2, false));
    introduce(&[&one, &two]);
    until("both usable", || one.usable(2) && two.usable(1));
    (one, two)
}

fn cancel(tie: u128) -> Cancel {
    Cancel { caller: CallerId(u128::MAX), tie: TieId(tie), number: CopyNumber(1) }
}

#[test]
fn a_cancel_arrives_under_the_name_in_the_senders_certificate() {
    let authority = TestAuthority::new();
    let (one, two) = pair(&authority);
    assert_eq!((one.channel.unhealthy_pairs(), two.channel.unhealthy_pairs()), (0, 0));
    one.channel.cancel(NodeId(2), cancel(5));
    assert_eq!(two.hear(), (NodeId(1), cancel(5)));
    two.channel.cancel(NodeId(1), cancel(6));
    assert_eq!(one.hear(), (NodeId(2), cancel(6)));
    until("counted", || one.channel.counters().sent == 1 && two.channel.counters().received == 1);
    let status = one.channel.status();
    assert!(status.peers[0].connected && status.peers[0].flight_p50_ns > 0, "{status:?}");
}

#[test]
fn what_waits_for_the_socket_is_packed_and_arrives_whole() {
    let authority = TestAuthority::new();
    let (one, two) = pair(&authority);
    // Occupies the channel's thread, so that all of them wait for it.
    let (go, gate) = crossbeam::channel::bounded::<()>(0);
    one.thread.handle().spawn(async move { gate.recv_timeout(PATIENCE) });
    for tie in 0..60 {
        one.channel.cancel(NodeId(2), cancel(tie));
    }
    go.send(()).unwrap();
    let mut ties: Vec<u128> = (0..60).map(|_| two.hear().1.tie.0).collect();
    ties.sort_unstable();
    assert_eq!(ties, (0..60).collect::<Vec<_>>());
    let counters = one.channel.counters();
    assert_eq!((counters.sent, counters.datagrams_sent), (60, 3), "{counters:?}");
}

#[test]
fn a_full_queue_and_a_missing_peer_drop_and_count() {
    let authority = TestAuthority::new();
    let (one, two) = pair(&authority);
    let (go, gate) = crossbeam::channel::bounded::<()>(0);
    one.thread.handle().spawn(async move { gate.recv_timeout(PATIENCE) });
    for tie in 0..100 {
        one.channel.cancel(NodeId(2), cancel(tie));
    }
    one.channel.cancel(NodeId(9), cancel(0));
    assert_eq!(one.channel.counters().dropped_unknown, 1);
    assert_eq!(one.channel.counters().dropped_full, 36);
    go.send(()).unwrap();
    for _ in 0..64 {
        two.hear();
    }
}

#[test]
fn a_dropped_channel_is_noticed_within_a_second_and_heals() {
    let authority = TestAuthority::new();
    let (one, two) = pair(&authority);
    one.channel.drop_share(1.0);
    until("noticed", || !one.usable(2));
    assert_eq!(one.channel.unhealthy_pairs(), 0b10);
    one.channel.cancel(NodeId(2), cancel(1));
    until("dropped", || one.channel.status().peers[0].waiting == 0);
    one.channel.drop_share(0.0);
    // At one moment: on a busy machine it may be slow again in the next.
    until("healed", || one.usable(2) && one.channel.unhealthy_pairs() == 0);
    one.channel.cancel(NodeId(2), cancel(2));
    assert_eq!(two.hear().1, cancel(2));
}

#[test]
fn a_peer_that_restarts_is_found_again() {
    let authority = TestAuthority::new();
    let (one, two) = pair(&authority);
    let address = two.address();
    // Without a farewell, as if it had been killed.
    drop(two);
    let linked = || one.channel.status().peers[0].connected;
    until("lost", || !one.usable(2) && !linked());
    one.channel.cancel(NodeId(2), cancel(1));
    until("dropped", || one.channel.counters().dropped_unlinked == 1);
    let two = (0..100)
        .find_map(|_| {
            let free = std::net::UdpSocket::bind(address).is_ok();
            std::thread::park_timeout(Duration::from_millis(10));
            free.then(|| End::at(&authority, 2, false, address))
        })
        .expect("the port is free again");
    introduce(&[&one, &two]);
    until("found again", || one.usable(2) && two.usable(1));
    one.channel.cancel(NodeId(2), cancel(2));
    assert_eq!(two.hear(), (NodeId(1), cancel(2)));
}

#[test]
fn another_node_at_the_peers_address_is_no_peer() {
    let authority = TestAuthority::new();
    let (one, three) = (End::new(&authority, 1, false), End::new(&authority, 3, false));
    one.directory.set_members(vec![one.member(), member(2, &three.address().to_string())]).unwrap();
    until("refused", || one.channel.counters().dials_failed > 0);
    assert!(!one.usable(2));
    assert_eq!(one.channel.unhealthy_pairs(), 0b10);
}

/// Dials the channel of `end` with `files` and hands back the link and its socket.
fn stranger(end: &End, files: &CertificateFiles) -> (Endpoint, Option<Connection>) {
    let runtime = end.thread.handle();
    let (done, answer) = crossbeam::channel::bounded(1);
    let (address, config) = (end.address(), dialler(files, Port::Cancel));
    runtime.spawn(async move {
        let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let link = endpoint.connect_with(config, address, NODE_DNS_NAME).unwrap().await.ok();
        done.send((endpoint, link)).unwrap();
    });
    answer.recv_timeout(PATIENCE).expect("dialled in time")
}

#[test]
fn only_nodes_of_the_cluster_are_heard() {
    let authority = TestAuthority::new();
    let one = End::new(&authority, 1, false);
    let far = Identity { cluster: ClusterId(9), role: Role::Node(NodeId(2)) };
    let elsewhere = TestAuthority::new();
    let mut forged = elsewhere.node(2);
    forged.authority = authority.folder().join("ca.pem");
    let bytes: bytes::Bytes = codec::encode(&PeerDatagram::Cancels(smallvec::smallvec![cancel(1)])).unwrap().into();
    for (index, files) in
        [authority.client("alice"), authority.issue("far", &far, |_| ()), forged].iter().enumerate()
    {
        let (_socket, link) = stranger(&one, files);
        if let Some(link) = &link {
            let _ = link.send_datagram(bytes.clone());
        }
        until("refused", || one.channel.counters().accepts_failed == index as u64 + 1);
    }
    let (_socket, link) = stranger(&one, &authority.node(2));
    let link = link.unwrap();
    for garbage in [&b""[..], b"\xff\xff\xff", &[0; 1050]] {
        link.send_datagram(bytes::Bytes::copy_from_slice(garbage)).unwrap();
    }
    link.send_datagram(bytes).unwrap();
    assert_eq!(one.hear(), (NodeId(2), cancel(1)), "the first that is heard");
    assert_eq!((one.channel.counters().received, one.channel.counters().undecodable), (1, 3));
    assert!(one.heard.try_recv().is_err());
}

#[test]
fn cancels_that_come_back_on_a_dialled_link_are_not_heard() {
    let authority = TestAuthority::new();
    let one = End::new(&authority, 1, false);
    let credentials = authority.credentials(2);
    let (hand, accepted) = crossbeam::channel::bounded(1);
    let other = IoThread::start("other", || ()).unwrap().0;
    let listening = {
        let _entered = other.handle().enter();
        let config = quic::server(&credentials, Port::Cancel).unwrap();
        endpoint("127.0.0.1:0".parse().unwrap(), 1 << 20, config).unwrap()
    };
    let address = listening.local_addr().unwrap().to_string();
    other.handle().spawn(async move {
        let link = listening.accept().await.unwrap().await.unwrap();
        let bytes = codec::encode(&PeerDatagram::Cancels(smallvec::smallvec![cancel(1)])).unwrap();
        link.send_datagram(bytes.into()).unwrap();
        hand.send((listening, link)).unwrap();
    });
    one.directory.set_members(vec![one.member(), member(2, &address)]).unwrap();
    let _link = accepted.recv_timeout(PATIENCE).unwrap();
    until("counted", || one.channel.counters().undecodable == 1);
    assert!(one.heard.try_recv().is_err());
}

/// Flight of a cancel from the hand-over by a worker to the peer's receiver, one clock, with every CPU kept busy by
/// normal threads. Prints the figures; run alone: `cargo test --profile ci -p tiedkv-server cancel_flight -- --ignored
/// --nocapture`.
#[test]
#[ignore = "measures; wants the machine to itself"]
fn cancel_flight_with_busy_cpus() {
    let authority = TestAuthority::new();
    let cpus = std::thread::available_parallelism().unwrap().get();
    for (realtime, busy) in [(false, 0), (true, 0), (false, 2 * cpus), (true, 2 * cpus)] {
        let (one, two) = (End::new(&authority, 1, realtime), End::new(&authority, 2, realtime));
        introduce(&[&one, &two]);
        until("usable", || one.usable(2));
        let raised = one.channel.status().realtime;
        let stop = Arc::new(AtomicBool::new(false));
        let burners: Vec<_> = (0..busy)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    while !stop.load(Relaxed) {
                        std::hint::spin_loop()
                    }
                })
            })
            .collect();
        let mut flights: Vec<Duration> = (0..2000_u128)
            .map(|tie| {
                std::thread::park_timeout(Duration::from_micros(500));
                let sent = clock::now();
                one.channel.cancel(NodeId(2), cancel(tie));
                let (_, _, heard) = two.heard.recv_timeout(PATIENCE).unwrap();
                heard.since(sent)
            })
            .collect();
        stop.store(true, Relaxed);
        burners.into_iter().for_each(|burner| burner.join().unwrap());
        flights.sort_unstable();
        let at = |share: f64| flights[(flights.len() as f64 * share) as usize];
        let pings = one.channel.status().peers[0];
        println!(
            "cancel flight: realtime {raised}, busy threads {busy}: p50 {:?} p99 {:?} p99.9 {:?}; by pings p50 {} us p99 {} us",
            at(0.50),
            at(0.99),
            at(0.999),
            pings.flight_p50_ns / 1000,
            pings.flight_p99_ns / 1000,
        );
    }
}
