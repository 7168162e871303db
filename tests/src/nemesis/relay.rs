//! A network that can be cut: UDP relays between everybody and the nodes of a cluster.
//!
//! Members are known by the relays' ports, so that clients and peers dial them. Who sends is told by its source port:
//! nodes dial from the sockets they listen on. A packet is forwarded, delayed or dropped by the [`Rules`] in force;
//! the relay reads nothing of it and keeps order only between packets of one delay.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tiedkv_benches::cluster::ports::Ports;
use tiedkv_protocol::ids::NodeId;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Packets that wait for their delay, per tunnel; more are dropped.
const DELAYED_MAX: usize = 4_096;

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
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// From, to, on which port.
    cut: Vec<(Party, Party, Port)>,
    /// All packets from and to this node.
    slow: Option<(NodeId, Duration)>,
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

    /// Delays everything from and to a node.
    pub fn slow(&mut self, node: NodeId, by: Duration) {
        self.slow = Some((node, by));
    }

    /// `None`: dropped; else after this delay.
    fn fate(&self, from: Party, to: Party, port: Port) -> Option<Duration> {
        if self.cut.contains(&(from, to, port)) {
            return None;
        }
        match self.slow {
            Some((node, by)) if [from, to].contains(&Party::Node(node)) => Some(by),
            _ => Some(Duration::ZERO),
        }
    }
}

/// The relays of a cluster. Dropped, they are gone.
pub struct Network {
    rules: Arc<Mutex<Rules>>,
    _tasks: JoinSet<()>,
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

impl Network {
    /// Opens the relays; nothing is cut.
    ///
    /// # Errors
    /// When a port is taken.
    pub async fn open(places: &[Place]) -> io::Result<Self> {
        let mut parties = HashMap::new();
        for place in places {
            parties.insert(place.listens.peer(), Party::Node(place.node));
            parties.insert(place.listens.cancel(), Party::Node(place.node));
        }
        let (rules, parties) = (Arc::new(Mutex::new(Rules::default())), Arc::new(parties));
        let mut tasks = JoinSet::new();
        for place in places {
            let doors = [
                (Port::Client, place.dialled.client(), place.listens.client()),
                (Port::Peer, place.dialled.peer(), place.listens.peer()),
                (Port::Cancel, place.dialled.cancel(), place.listens.cancel()),
            ];
            for (port, dialled, listens) in doors {
                let door = Door {
                    socket: Arc::new(UdpSocket::bind(dialled).await?),
                    node: Party::Node(place.node),
                    port,
                    listens,
                    rules: rules.clone(),
                };
                tasks.spawn(door.serve(parties.clone()));
            }
        }
        Ok(Self { rules, _tasks: tasks })
    }

    /// Puts other rules into force.
    pub fn set(&self, rules: Rules) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = rules;
    }
}

/// One relayed port of one node.
struct Door {
    socket: Arc<UdpSocket>,
    node: Party,
    port: Port,
    listens: SocketAddr,
    rules: Arc<Mutex<Rules>>,
}

impl Door {
    async fn serve(self, parties: Arc<HashMap<SocketAddr, Party>>) {
        let mut tunnels: HashMap<SocketAddr, (Party, Arc<UdpSocket>)> = HashMap::new();
        let mut returning = JoinSet::new();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let delayed = Arc::new(tokio::sync::Semaphore::new(DELAYED_MAX));
        loop {
            let Ok((length, from)) = self.socket.recv_from(&mut buffer).await else { continue };
            let tunnel = match tunnels.get(&from) {
                Some(tunnel) => tunnel.clone(),
                None => {
                    let party = parties.get(&from).copied().unwrap_or(Party::Client);
                    let Ok(up) = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await else { continue };
                    if up.connect(self.listens).await.is_err() {
                        continue;
                    }
                    let tunnel = (party, Arc::new(up));
                    tunnels.insert(from, tunnel.clone());
                    let back = Back {
                        up: tunnel.1.clone(),
                        down: self.socket.clone(),
                        to: from,
                        rules: self.rules.clone(),
                        parties: (self.node, party),
                        port: self.port,
                    };
                    returning.spawn(back.serve(delayed.clone()));
                    tunnel
                }
            };
            let (party, up) = tunnel;
            let fate = fate(&self.rules, party, self.node, self.port);
            let packet = Packet { socket: up, to: None };
            packet.send(&buffer[..length], fate, &delayed).await;
        }
    }
}

fn fate(rules: &Mutex<Rules>, from: Party, to: Party, port: Port) -> Option<Duration> {
    rules.lock().unwrap_or_else(PoisonError::into_inner).fate(from, to, port)
}

/// The way back of one tunnel.
struct Back {
    up: Arc<UdpSocket>,
    down: Arc<UdpSocket>,
    to: SocketAddr,
    rules: Arc<Mutex<Rules>>,
    parties: (Party, Party),
    port: Port,
}

impl Back {
    async fn serve(self, delayed: Arc<tokio::sync::Semaphore>) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        loop {
            // An error says that the node's port is closed now; it may open again.
            let Ok(length) = self.up.recv(&mut buffer).await else { continue };
            let fate = fate(&self.rules, self.parties.0, self.parties.1, self.port);
            let packet = Packet { socket: self.down.clone(), to: Some(self.to) };
            packet.send(&buffer[..length], fate, &delayed).await;
        }
    }
}

struct Packet {
    socket: Arc<UdpSocket>,
    to: Option<SocketAddr>,
}

impl Packet {
    async fn send(self, bytes: &[u8], fate: Option<Duration>, delayed: &Arc<tokio::sync::Semaphore>) {
        match fate {
            None => {}
            Some(Duration::ZERO) => self.now(bytes).await,
            Some(delay) => {
                let Ok(permit) = delayed.clone().try_acquire_owned() else { return };
                let bytes = bytes.to_vec();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    self.now(&bytes).await;
                    drop(permit);
                });
            }
        }
    }

    async fn now(&self, bytes: &[u8]) {
        // Lost, like any datagram.
        let _ = match self.to {
            Some(to) => self.socket.send_to(bytes, to).await,
            None => self.socket.send(bytes).await,
        };
    }
}
