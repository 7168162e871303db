//! Packets on a longer or lossy way: a thread between the ports that others know of a node and its real ones (UDP,
//! client, peer and cancel port), which delays or loses them both ways.
//!
//! It only relays; it adds some tens of microseconds by itself. What a node dials by its own does not pass here:
//! replies to it come back on the direct way.

use super::ports::Ports;
use crate::clock;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait until the end is noticed.
const POLL: Duration = Duration::from_millis(50);
/// Most packets on the way; one more is lost, as in any router.
const ON_THE_WAY_MAX: usize = 65_536;
/// Most senders that are told apart; packets of one more are lost.
const FLOWS_MAX: usize = 256;

/// What the way does to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Way {
    /// Added to each packet, each way.
    pub delay: Duration,
    /// Share of packets lost, each way, 0.0 to 1.0.
    pub loss: f64,
}

/// A running relay; ends when dropped.
#[derive(Debug)]
pub struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Relays what comes to `known` to `real`, and the answers back.
    ///
    /// # Errors
    /// When a port is taken or no thread can be started.
    pub fn start(known: Ports, real: Ports, way: Way) -> io::Result<Self> {
        let pairs = [(known.client(), real.client()), (known.peer(), real.peer()), (known.cancel(), real.cancel())];
        let mut doors = Vec::new();
        for (from, to) in pairs {
            doors.push((socket(from)?, to));
        }
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let rng = StdRng::seed_from_u64(known.client().port().into());
        let mut traffic =
            Traffic { doors, flows: Vec::new(), way, rng, on_the_way: BinaryHeap::new(), sequence: 0 };
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || {
            while !told.load(Ordering::Relaxed) {
                traffic.turn();
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to tell.
            let _ = thread.join();
        }
    }
}

/// One sender to one door: its packets go on from a socket of their own, by which the answers are known.
struct Flow {
    door: usize,
    sender: SocketAddr,
    socket: UdpSocket,
}

/// A packet on its way; `outwards` from the sender to the node.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Packet {
    due: Instant,
    sequence: u64,
    flow: usize,
    outwards: bool,
    bytes: Vec<u8>,
}

struct Traffic {
    doors: Vec<(UdpSocket, SocketAddr)>,
    flows: Vec<Flow>,
    way: Way,
    rng: StdRng,
    on_the_way: BinaryHeap<Reverse<Packet>>,
    sequence: u64,
}

impl Traffic {
    /// Waits for packets, takes them, lets those go on that are due.
    fn turn(&mut self) {
        let ready = self.wait();
        let mut buffer = [0u8; 65_536];
        for index in ready {
            self.take(index, &mut buffer);
        }
        let now = clock::now();
        while let Some(Reverse(next)) = self.on_the_way.peek()
            && next.due <= now
        {
            let Some(Reverse(packet)) = self.on_the_way.pop() else { break };
            let flow = &self.flows[packet.flow];
            // A full or closed socket loses the packet, as a network would.
            let _ = match packet.outwards {
                true => flow.socket.send(&packet.bytes),
                false => self.doors[flow.door].0.send_to(&packet.bytes, flow.sender),
            };
        }
    }

    /// Indices of sockets with packets: doors first, then flows.
    fn wait(&self) -> Vec<usize> {
        let due = self.on_the_way.peek().map(|Reverse(packet)| packet.due);
        let wait = due.map_or(POLL, |due| due.saturating_duration_since(clock::now()).min(POLL));
        let sockets = self.doors.iter().map(|(socket, _)| socket).chain(self.flows.iter().map(|flow| &flow.socket));
        let mut polled: Vec<PollFd<'_>> = sockets.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) => (0..polled.len()).filter(|index| !polled[*index].revents().is_empty()).collect(),
            Err(_) => Vec::new(),
        }
    }

    /// Takes all packets of one socket.
    fn take(&mut self, index: usize, buffer: &mut [u8]) {
        loop {
            let taken = match index.checked_sub(self.doors.len()) {
                None => self.doors[index].0.recv_from(buffer).ok().map(|(bytes, sender)| (bytes, Some(sender))),
                Some(flow) => self.flows[flow].socket.recv(buffer).ok().map(|bytes| (bytes, None)),
            };
            let Some((bytes, sender)) = taken else { return };
            let flow = match sender {
                Some(sender) => self.flow(index, sender),
                None => Some(index - self.doors.len()),
            };
            let Some(flow) = flow else { continue };
            if self.rng.random::<f64>() < self.way.loss || self.on_the_way.len() >= ON_THE_WAY_MAX {
                continue;
            }
            self.sequence += 1;
            let due = clock::now() + self.way.delay;
            let bytes = buffer[..bytes].to_vec();
            let packet = Packet { due, sequence: self.sequence, flow, outwards: sender.is_some(), bytes };
            self.on_the_way.push(Reverse(packet));
        }
    }

    fn flow(&mut self, door: usize, sender: SocketAddr) -> Option<usize> {
        let known = self.flows.iter().position(|flow| flow.door == door && flow.sender == sender);
        if known.is_some() || self.flows.len() >= FLOWS_MAX {
            return known;
        }
        let socket = socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).ok()?;
        socket.connect(self.doors[door].1).ok()?;
        self.flows.push(Flow { door, sender, socket });
        Some(self.flows.len() - 1)
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
mod tests {
    use super::super::ports::free_ports;
    use super::*;

    /// Sends `count` packets to the client port of a relayed echo; how many came back, and the quickest way there
    /// and back.
    fn echo(way: Way, count: u32) -> (u32, Duration) {
        let ports = free_ports(2, Ipv4Addr::LOCALHOST.into(), &mut rand::rng()).unwrap();
        let node = UdpSocket::bind(ports[0].client()).unwrap();
        let _relay = Relay::start(ports[1], ports[0], way).unwrap();
        let caller = UdpSocket::bind("127.0.0.1:0").unwrap();
        for socket in [&node, &caller] {
            socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        }
        let (mut back, mut quickest) = (0, Duration::MAX);
        for number in 0..count {
            let sent = clock::now();
            caller.send_to(&number.to_be_bytes(), ports[1].client()).unwrap();
            let mut bytes = [0u8; 4];
            let Ok((_, from)) = node.recv_from(&mut bytes) else { continue };
            node.send_to(&bytes, from).unwrap();
            if caller.recv_from(&mut bytes).is_ok_and(|(_, from)| from == ports[1].client()) {
                assert_eq!(u32::from_be_bytes(bytes), number);
                (back, quickest) = (back + 1, quickest.min(sent.elapsed()));
            }
        }
        (back, quickest)
    }

    #[test]
    fn packets_come_back_later_by_twice_the_delay() {
        let (back, quickest) = echo(Way { delay: Duration::from_millis(5), loss: 0.0 }, 20);
        assert_eq!(back, 20);
        assert!((Duration::from_millis(10)..Duration::from_millis(100)).contains(&quickest), "{quickest:?}");
    }

    #[test]
    fn what_is_to_be_lost_is_lost() {
        assert_eq!(echo(Way { delay: Duration::ZERO, loss: 1.0 }, 2).0, 0);
    }
}
