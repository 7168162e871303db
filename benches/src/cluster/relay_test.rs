//! Tests of the relays with plain sockets in the place of nodes and clients: both ways, whoever dialled.

use super::super::ports::free_ports;
use super::*;

const ONE: NodeId = NodeId(1);
const TWO: NodeId = NodeId(2);

/// Two relayed nodes whose sockets are here.
struct World {
    network: Network,
    places: [Place; 2],
}

fn world() -> World {
    let ports = free_ports(4, Ipv4Addr::LOCALHOST.into(), &mut rand::rng()).unwrap();
    let place = |node, index: usize| Place { node, listens: ports[index], dialled: ports[index + 2] };
    let places = [place(ONE, 0), place(TWO, 1)];
    World { network: Network::open(&places).unwrap(), places }
}

fn bound(address: impl std::net::ToSocketAddrs) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket
}

/// Sends `count` packets to an echo behind `door`; how many came back, and the quickest way there and back.
fn echo(caller: &UdpSocket, door: SocketAddr, node: &UdpSocket, count: u32) -> (u32, Duration) {
    let (mut back, mut quickest) = (0, Duration::MAX);
    for number in 0..count {
        let sent = clock::now();
        caller.send_to(&number.to_be_bytes(), door).unwrap();
        let mut bytes = [0u8; 4];
        let Ok((_, from)) = node.recv_from(&mut bytes) else { continue };
        node.send_to(&bytes, from).unwrap();
        if caller.recv_from(&mut bytes).is_ok_and(|(_, from)| from == door) {
            assert_eq!(u32::from_be_bytes(bytes), number);
            (back, quickest) = (back + 1, quickest.min(sent.elapsed()));
        }
    }
    (back, quickest)
}

#[test]
fn a_slow_node_is_slow_both_ways_whoever_dials() {
    let World { network, places: [one, two] } = world();
    let mut rules = Rules::default();
    rules.slow(TWO, Duration::from_millis(5));
    network.set(rules);
    let far = Duration::from_millis(10)..Duration::from_millis(100);
    let [client_of_two, peer_of_one] = [two.listens.client(), one.listens.peer()].map(bound);
    let (back, quickest) = echo(&bound("127.0.0.1:0"), two.dialled.client(), &client_of_two, 20);
    assert!(back == 20 && far.contains(&quickest), "a client to the slow node: {back}, {quickest:?}");
    let (back, quickest) = echo(&bound(two.listens.peer()), one.dialled.peer(), &peer_of_one, 20);
    assert!(back == 20 && far.contains(&quickest), "the slow node to another: {back}, {quickest:?}");
    let (back, quickest) = echo(&bound("127.0.0.1:0"), one.dialled.peer(), &peer_of_one, 20);
    assert!(back == 20 && quickest < Duration::from_millis(5), "others: {back}, {quickest:?}");
}

#[test]
fn what_is_cut_one_way_passes_the_other() {
    let World { network, places: [one, two] } = world();
    let [peer_of_one, peer_of_two] = [one.listens.peer(), two.listens.peer()].map(bound);
    let mut rules = Rules::default();
    rules.cut_one_way(Party::Node(ONE), Party::Node(TWO), Port::Peer);
    network.set(rules);
    assert_eq!(echo(&peer_of_two, one.dialled.peer(), &peer_of_one, 1).0, 0, "the answer is cut");
    assert!(peer_of_two.send_to(b"more", one.dialled.peer()).is_ok());
    assert!(peer_of_one.recv_from(&mut [0; 4]).is_ok(), "the other way is open");
    network.set(Rules::default());
    assert_eq!(echo(&peer_of_two, one.dialled.peer(), &peer_of_one, 2).0, 2, "healed");
}

#[test]
fn what_is_to_be_lost_is_lost() {
    let World { network, places: [one, _] } = world();
    let node = bound(one.listens.client());
    let mut rules = Rules::default();
    rules.lose(1.0);
    network.set(rules);
    assert_eq!(echo(&bound("127.0.0.1:0"), one.dialled.client(), &node, 2).0, 0);
}

#[test]
fn a_new_sender_takes_the_place_of_the_most_silent() {
    let World { places: [one, _], .. } = &world();
    let node = bound(one.listens.client());
    let callers: Vec<UdpSocket> = (0..FLOWS_MAX + 8).map(|_| bound("127.0.0.1:0")).collect();
    for caller in &callers {
        assert_eq!(echo(caller, one.dialled.client(), &node, 1).0, 1);
    }
}
