//! A network that can be cut, slowed and made lossy: UDP relays between everybody and the nodes of a cluster, on one
//! thread of their own.
//!
//! Members are known by the relays' ports, so that clients and peers dial them. Who sends is told by its source port:
//! nodes dial from the sockets they listen on, so what a node dials by its own is told apart as well, and a [`Rules`]
//! holds both ways. A packet is forwarded, delayed or dropped; nothing of it is read, and order is kept only between
//! packets of one delay. The relays add some tens of microseconds by themselves.

use super::ports::Ports;
use crate::clock;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tiedkv_protocol::ids::NodeId;

/// Longest wait until the end is noticed.
const POLL: Duration = Duration::from_millis(50);
/// Most packets on the way; one more is lost, as in any router.
const ON_THE_WAY_MAX: usize = 65_536;
/// Most senders that are told apart; one more takes the place of the one that was silent longest.
const FLOWS_MAX: usize = 256;
/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    /// A node.
    Node(NodeId),
    /// Any client.
    Client,
}

/// Which port of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    /// Clients.
    Client,
    /// Raft.
    Peer,
    /// Cancels.
    Cancel,
}

/// What is dropped or delayed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// From, to, on which port.
    cut: Vec<(Party, Party, Port)>,
    /// All packets from and to these nodes.
    slow: Vec<(NodeId, Duration)>,
    /// Share of all packets.
    loss: f64,
}

impl Rules {
    /// Drops what `from` sends to `to` on `port`; the other way stays open.
    pub fn cut_one_way(&mut self, from: Party, to: Party, port: Port) {
        self.cut.push((from, to, port));
    }

    /// Drops both ways.
    pub fn cut(&mut self, one: Party, other: Party, port: Port) {
        self.cut_one_way(one, other, port);
        self.cut_one_way(other, one, port);
    }

    /// Delays everything from and to a node, whoever dialled.
    pub fn slow(&mut self, node: NodeId, by: Duration) {
        self.slow.push((node, by));
    }

    /// Drops this share of all packets, 0.0 to 1.0.
    pub fn lose(&mut self, share: f64) {
        self.loss = share;
    }

    /// `None`: dropped; else after this delay.
    fn fate(&self, from: Party, to: Party, port: Port, rng: &mut StdRng) -> Option<Duration> {
        let lost = self.loss > 0.0 && rng.random::<f64>() < self.loss;
        if lost || self.cut.contains(&(from, to, port)) {
            return None;
        }
        let ends = [from, to];
        Some(self.slow.iter().filter(|(node, _)| ends.contains(&Party::Node(*node))).map(|(_, by)| *by).sum())
    }
}

/// One node as the relays know it: where it listens, and where it is dialled.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Who.
    pub node: NodeId,
    /// Where it listens.
    pub listens: Ports,
    /// Where it is dialled.
    pub dialled: Ports,
}

/// The relays of a cluster. Dropped, they are gone.
#[derive(Debug)]
pub struct Network {
    rules: Arc<Mutex<Arc<Rules>>>,
    /// Opened, and not yet seen by the thread.
    fresh: Arc<Mutex<Vec<Door>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// Relays before all nodes, ruled so: where each is known, and where it listens.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn before(known: &[(NodeId, Ports)], real: &[Ports], rules: &Rules) -> io::Result<Self> {
        let place = |((node, dialled), listens): (&(NodeId, Ports), &Ports)| Place {
            node: *node,
            listens: *listens,
            dialled: *dialled,
        };
        let network = Self::open(&known.iter().zip(real).map(place).collect::<Vec<_>>())?;
        network.set(rules.clone());
        Ok(network)
    }

    /// Opens the relays; nothing is cut.
    ///
    /// # Errors
    /// When a port is taken or no thread can be started.
    pub fn open(places: &[Place]) -> io::Result<Self> {
        let mut opened = Vec::new();
        for place in places {
            opened.extend(doors(place)?);
        }
        let seed = places.first().map_or(0, |place| place.dialled.client().port());
        let (rules, stop) = (Arc::new(Mutex::new(Arc::new(Rules::default()))), Arc::new(AtomicBool::new(false)));
        let (ruled, told) = (Arc::clone(&rules), Arc::clone(&stop));
        let fresh = Arc::new(Mutex::new(opened));
        let added = Arc::clone(&fresh);
        let mut traffic = Traffic {
            doors: Vec::new(),
            parties: HashMap::new(),
            flows: Vec::new(),
            rng: StdRng::seed_from_u64(seed.into()),
            on_the_way: BinaryHeap::new(),
            sequence: 0,
        };
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || {
            let mut buffer = vec![0u8; DATAGRAM_BYTES_MAX];
            while !told.load(Ordering::Relaxed) {
                traffic.add(std::mem::take(&mut *added.lock().unwrap_or_else(PoisonError::into_inner)));
                let ready = traffic.wait();
                let rules = Arc::clone(&ruled.lock().unwrap_or_else(PoisonError::into_inner));
                ready.into_iter().for_each(|index| traffic.take(index, &rules, &mut buffer));
                traffic.forward();
            }
        })?;
        Ok(Self { rules, fresh, stop, thread: Some(thread) })
    }

    /// Opens the relays of one more node.
    ///
    /// # Errors
    /// When a port is taken.
    pub fn add(&self, place: &Place) -> io::Result<()> {
        let opened = doors(place)?;
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner).extend(opened);
        Ok(())
    }

    /// Puts other rules into force. Packets that are delayed already still arrive.
    pub fn set(&self, rules: Rules) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to tell.
            let _ = thread.join();
        }
    }
}

/// The relayed ports of a node.
fn doors(place: &Place) -> io::Result<Vec<Door>> {
    let (node, dialled, listens) = (Party::Node(place.node), place.dialled, place.listens);
    let ports = [
        (Port::Client, dialled.client(), listens.client()),
        (Port::Peer, dialled.peer(), listens.peer()),
        (Port::Cancel, dialled.cancel(), listens.cancel()),
    ];
    let open = |(port, dialled, listens)| Ok(Door { socket: socket(dialled)?, node, port, listens });
    ports.into_iter().map(open).collect()
}

/// One relayed port of one node.
#[derive(Debug)]
struct Door {
    socket: UdpSocket,
    node: Party,
    port: Port,
    listens: SocketAddr,
}

/// One sender to one door: its packets go on from a socket of their own, by which the answers are known.
struct Flow {
    door: usize,
    sender: SocketAddr,
    party: Party,
    socket: UdpSocket,
    /// Of its last packet.
    sequence: u64,
}

/// A packet on its way; `outwards` from the sender to the node.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    due: Instant,
    sequence: u64,
    flow: usize,
    sender: SocketAddr,
    outwards: bool,
    bytes: Vec<u8>,
}

struct Traffic {
    doors: Vec<Door>,
    /// Nodes by the sockets they listen on.
    parties: HashMap<SocketAddr, Party>,
    flows: Vec<Flow>,
    rng: StdRng,
    on_the_way: BinaryHeap<Reverse<Packet>>,
    sequence: u64,
}

impl Traffic {
    /// More doors; a node is known by the sockets that it dials from.
    fn add(&mut self, opened: Vec<Door>) {
        for door in &opened {
            if door.port != Port::Client {
                self.parties.insert(door.listens, door.node);
            }
        }
        self.doors.extend(opened);
    }

    /// Indices of sockets with packets: doors first, then flows.
    fn wait(&self) -> Vec<usize> {
        let due = self.on_the_way.peek().map(|Reverse(packet)| packet.due);
        let wait = due.map_or(POLL, |due| due.saturating_duration_since(clock::now()).min(POLL));
        let doors = self.doors.iter().map(|door| &door.socket);
        let sockets = doors.chain(self.flows.iter().map(|flow| &flow.socket));
        let mut polled: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => (0..polled.len()).filter(|index| !polled[*index].revents().is_empty()).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Takes all packets of one socket.
    fn take(&mut self, index: usize, rules: &Rules, buffer: &mut [u8]) {
        loop {
            let taken = match index.checked_sub(self.doors.len()) {
                None => self.doors[index].socket.recv_from(buffer).map(|(bytes, sender)| (bytes, Some(sender))),
                Some(flow) => self.flows[flow].socket.recv(buffer).map(|bytes| (bytes, None)),
            };
            let (bytes, sender) = match taken {
                Ok(taken) => taken,
                // A node's port is closed now; it may open again.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let flow = match sender {
                Some(sender) => self.flow(index, sender),
                None => Some(index - self.doors.len()),
            };
            let Some(flow) = flow else { continue };
            self.sequence += 1;
            self.flows[flow].sequence = self.sequence;
            let (known, outwards) = (&self.flows[flow], sender.is_some());
            let door = &self.doors[known.door];
            let (from, to) = if outwards { (known.party, door.node) } else { (door.node, known.party) };
            let Some(delay) = rules.fate(from, to, door.port, &mut self.rng) else { continue };
            if self.on_the_way.len() < ON_THE_WAY_MAX {
                let (due, sender) = (clock::now() + delay, known.sender);
                let bytes = buffer[..bytes].to_vec();
                let packet = Packet { due, sequence: self.sequence, flow, sender, outwards, bytes };
                self.on_the_way.push(Reverse(packet));
            }
        }
    }

    /// Lets packets go on that are due.
    fn forward(&mut self) {
        let now = clock::now();
        while let Some(Reverse(next)) = self.on_the_way.peek()
            && next.due <= now
        {
            let Some(Reverse(packet)) = self.on_the_way.pop() else { break };
            let flow = &self.flows[packet.flow];
            if flow.sender != packet.sender {
                // Another sender has its place now.
                continue;
            }
            // A full or closed socket loses the packet, as a network would.
            let _ = match packet.outwards {
                true => flow.socket.send(&packet.bytes),
                false => self.doors[flow.door].socket.send_to(&packet.bytes, flow.sender),
            };
        }
    }

    fn flow(&mut self, door: usize, sender: SocketAddr) -> Option<usize> {
        let known = self.flows.iter().position(|flow| flow.door == door && flow.sender == sender);
        if known.is_some() {
            return known;
        }
        let socket = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).ok()?;
        socket.connect(self.doors[door].listens).ok()?;
        let party = self.parties.get(&sender).copied().unwrap_or(Party::Client);
        let flow = Flow { door, sender, party, socket, sequence: self.sequence };
        if self.flows.len() < FLOWS_MAX {
            self.flows.push(flow);
            return Some(self.flows.len() - 1);
        }
        let (oldest, place) = self.flows.iter_mut().enumerate().min_by_key(|(_, flow)| flow.sequence)?;
        *place = flow;
        Some(oldest)
    }
}

fn socket(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(address)?;
    socket.set_nonblocking(true)?;
    // As much as the system gives: a burst must not be lost here.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 2 << 20);
    Ok(socket)
}

#[cfg(test)]
#[path = "relay_test.rs"]
mod tests;
