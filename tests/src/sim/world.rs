//! The simulated world: one clock, one queue of events, the network, the faults, and the end.
//!
//! Everything that happens is drawn from the seed and hashed into a trace; the same seed gives the same trace. Faults
//! heal before the end; then the world runs until nothing is left to do and is looked at once more.

use crate::sim::client::{Client, ClientOut, EndedRead, ReadKey};
use crate::sim::config::{Fault, Planted, WorldConfig};
use crate::sim::node::Node;
use crate::sim::rest::{Outturn, ReadSample};
use crate::sim::watch::Watch;
use crate::sim::wire::{NodeOut, Sight, ToClient, ToNode, Wake};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hash::Hasher;
use std::time::Duration;
use tiedkv_client::copies::{Outcome, Timer};
use tiedkv_protocol::ids::{CallerId, NodeId, Position};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::peer::Cancel;

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    ToNode { node: usize, connection: u64, message: ToNode },
    ToClient { client: usize, node: usize, connection: u64, message: ToClient },
    Cancel { node: usize, from: NodeId, cancel: Cancel },
    NodeWake { node: usize, life: u32, wake: Wake },
    ClientTimer { client: usize, read: ReadKey, timer: Timer },
    LookAtLink { client: usize, node: usize },
    NodeLostLink { node: usize, connection: u64 },
    ClientLostLink { client: usize, node: usize, connection: u64 },
    Connect { client: usize, node: usize },
    NewRead,
    DropRead { client: usize, read: ReadKey },
    FaultBegins { index: usize },
    FaultEnds { index: usize },
    Write,
    Apply { node: usize, position: Position },
    Stranger,
    Heal,
}

pub(crate) struct Due {
    at: Moment,
    serial: u64,
    what: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.serial) == (other.at, other.serial)
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

pub(crate) struct Host {
    pub(crate) node: Node,
    /// Counts restarts, so that wake-ups of a former life are ignored.
    pub(crate) life: u32,
    pub(crate) down: bool,
    pub(crate) hung_until: Option<Moment>,
    /// What came while it hung, in order.
    pub(crate) frozen: Vec<Happening>,
    pub(crate) lags: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct Wire {
    pub(crate) client: usize,
    pub(crate) node: usize,
    pub(crate) to_node: Moment,
    pub(crate) to_client: Moment,
    pub(crate) broken: bool,
}

/// A world that runs.
pub struct World {
    pub(crate) config: WorldConfig,
    pub(crate) now: Moment,
    pub(crate) serial: u64,
    pub(crate) queue: BinaryHeap<Reverse<Due>>,
    pub(crate) rng: StdRng,
    pub(crate) hash: std::hash::DefaultHasher,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    pub(crate) wires: BTreeMap<u64, Wire>,
    pub(crate) next_connection: u64,
    pub(crate) slow: u32,
    pub(crate) watch: Watch,
    pub(crate) position: Position,
    pub(crate) healed: bool,
    pub(crate) outturn: Outturn,
    pub(crate) node_out: Vec<NodeOut>,
    pub(crate) client_out: Vec<ClientOut>,
    pub(crate) crashed: tiedkv_server::request::counters::CountersSnapshot,
}

/// After the last read began, the world has this long to come to rest.
pub(crate) const REST: Duration = Duration::from_secs(5);

impl World {
    /// Builds a world.
    pub fn new(config: WorldConfig) -> Self {
        let ids: Vec<NodeId> = (1..=config.nodes as u64).map(NodeId).collect();
        let now = Moment::ZERO;
        let host = |id: &NodeId| Host {
            node: Node::new(*id, &config, now),
            life: 0,
            down: false,
            hung_until: None,
            frozen: Vec::new(),
            lags: false,
        };
        let client = |number| Client::new(CallerId(0xca11 + number as u128), &ids, &config, now);
        let slowest = config.faults.iter().map(|planned| match planned.fault {
            Fault::SlowNetwork { factor } => factor,
            _ => 1,
        });
        let mut watch = Watch::new(config.watch, ids.clone());
        watch.flight_max = (config.network.base + config.network.jitter * JITTERS_MAX)
            * (2 * slowest.max().unwrap_or(1))
            + Duration::from_micros(100);
        let mut world = Self {
            hosts: ids.iter().map(host).collect(),
            clients: (0..config.clients).map(client).collect(),
            rng: StdRng::seed_from_u64(config.seed),
            hash: std::hash::DefaultHasher::new(),
            queue: BinaryHeap::new(),
            wires: BTreeMap::new(),
            next_connection: 0,
            serial: 0,
            now,
            slow: 1,
            watch,
            position: Position(1),
            healed: false,
            outturn: Outturn::default(),
            node_out: Vec::new(),
            client_out: Vec::new(),
            crashed: Default::default(),
            config,
        };
        world.prepare();
        world
    }

    fn prepare(&mut self) {
        for client in 0..self.clients.len() {
            for node in 0..self.hosts.len() {
                self.connect(client, node);
            }
        }
        for node in 0..self.hosts.len() {
            let mut out = std::mem::take(&mut self.node_out);
            self.hosts[node].node.begin(&mut out);
            self.node_out = out;
            self.route_node(node);
        }
        for (index, planned) in self.config.faults.clone().into_iter().enumerate() {
            self.at(Moment::ZERO + planned.at, Happening::FaultBegins { index });
            self.at(Moment::ZERO + planned.at + planned.lasts, Happening::FaultEnds { index });
        }
        if self.config.writes {
            self.at(Moment(1_000_000), Happening::Write);
        }
        if self.config.strangers_per_second > 0.0 {
            self.at(Moment(10_000_000), Happening::Stranger);
        }
        self.at(Moment(1_000), Happening::NewRead);
        self.at(Moment::ZERO + self.config.load.until + Duration::from_millis(1_600), Happening::Heal);
    }

    /// Runs to the end.
    pub fn run(mut self) -> Outturn {
        let end = Moment::ZERO + self.config.load.until + self.config.load.deadline + REST;
        while let Some(Reverse(due)) = self.queue.pop() {
            if due.at > end {
                break;
            }
            self.now = due.at;
            self.outturn.happenings += 1;
            self.happen(due.what);
            if !self.watch.violations.is_empty() {
                break;
            }
        }
        if self.watch.violations.is_empty() && self.config.watch {
            self.look_at_rest();
        }
        self.count();
        self.outturn.trace = self.hash.finish();
        self.outturn.violations = std::mem::take(&mut self.watch.violations);
        self.outturn
    }

    pub(crate) fn at(&mut self, at: Moment, what: Happening) {
        self.serial += 1;
        self.queue.push(Reverse(Due { at, serial: self.serial, what }));
    }

    pub(crate) fn note(&mut self, words: [u64; 4]) {
        self.hash.write_u64(self.now.0);
        words.into_iter().for_each(|word| self.hash.write_u64(word));
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::ToNode { node, connection, message } => self.reach_node(node, connection, message),
            Happening::ToClient { client, node, connection, message } => {
                if self.wires.get(&connection).is_some_and(|wire| !wire.broken) {
                    self.note([1, client as u64, node as u64, connection]);
                    let mut out = std::mem::take(&mut self.client_out);
                    match message {
                        ToClient::Reply(reply) => {
                            self.clients[client].reply(node, connection, reply, self.now, &mut out);
                        }
                        ToClient::Pong => self.clients[client].pong(node, connection, self.now),
                    }
                    self.client_out = out;
                    self.route_client(client);
                }
            }
            Happening::Cancel { node, from, cancel } => self.cancel(node, from, cancel),
            Happening::NodeWake { node, life, wake } => {
                if self.hosts[node].life != life || self.hosts[node].down {
                    return;
                }
                if self.hosts[node].hung_until.is_some() {
                    return self.hosts[node].frozen.push(Happening::NodeWake { node, life, wake });
                }
                self.note([2, node as u64, 0, 0]);
                self.with_node(node, |node, now, out| node.wake(wake, now, out));
            }
            Happening::ClientTimer { client, read, timer } => {
                self.with_client(client, |client, now, out| client.timer(read, timer, now, out));
            }
            Happening::LookAtLink { client, node } => {
                self.with_client(client, |client, now, out| client.look_at_link(node, now, out));
            }
            Happening::NodeLostLink { node, connection } => self.node_lost_link(node, connection),
            Happening::ClientLostLink { client, node, connection } => {
                self.with_client(client, |client, now, out| client.link_lost(node, connection, now, out));
                self.at(self.now + RECONNECT, Happening::Connect { client, node });
            }
            Happening::Connect { client, node } => self.connect(client, node),
            Happening::NewRead => self.new_read(),
            Happening::DropRead { client, read } => {
                self.with_client(client, |client, now, out| client.drop_read(read, now, out));
            }
            Happening::FaultBegins { index } => self.fault_begins(index),
            Happening::FaultEnds { index } => self.fault_ends(index),
            Happening::Write => self.write(),
            Happening::Apply { node, position } => {
                let host = &self.hosts[node];
                if host.down || host.lags {
                    return;
                }
                if self.hosts[node].hung_until.is_some() {
                    return self.hosts[node].frozen.push(Happening::Apply { node, position });
                }
                self.with_node(node, |node, now, out| node.applied(position, now, out));
            }
            Happening::Stranger => self.stranger(),
            Happening::Heal => self.heal(),
        }
    }

    pub(crate) fn with_node(&mut self, node: usize, act: impl FnOnce(&mut Node, Moment, &mut Vec<NodeOut>)) {
        let mut out = std::mem::take(&mut self.node_out);
        act(&mut self.hosts[node].node, self.now, &mut out);
        self.node_out = out;
        self.route_node(node);
    }

    fn with_client(&mut self, client: usize, act: impl FnOnce(&mut Client, Moment, &mut Vec<ClientOut>)) {
        let mut out = std::mem::take(&mut self.client_out);
        act(&mut self.clients[client], self.now, &mut out);
        self.client_out = out;
        self.route_client(client);
    }

    fn reach_node(&mut self, node: usize, connection: u64, message: ToNode) {
        let Some(wire) = self.wires.get(&connection).copied().filter(|wire| !wire.broken) else { return };
        if self.hosts[node].down {
            return;
        }
        if self.hosts[node].hung_until.is_some() {
            return self.hosts[node].frozen.push(Happening::ToNode { node, connection, message });
        }
        self.note([3, node as u64, connection, self.serial]);
        match message {
            ToNode::Copy(copy) => {
                let caller = self.clients[wire.client].caller;
                self.with_node(node, |node, now, out| node.copy(caller, connection, copy, now, out));
            }
            ToNode::Withdraw(requests) => {
                let id = self.hosts[node].node.id;
                self.with_node(node, |node, now, out| node.withdraw(connection, &requests, now, out));
                self.watch.withdraw_arrived(id, connection, &requests);
            }
            ToNode::Ping => {
                let out = NodeOut::Send { connection, message: ToClient::Pong };
                self.node_out.push(out);
                self.route_node(node);
            }
        }
    }

    fn cancel(&mut self, node: usize, from: NodeId, cancel: Cancel) {
        if self.hosts[node].down {
            return;
        }
        if self.hosts[node].hung_until.is_some() {
            return self.hosts[node].frozen.push(Happening::Cancel { node, from, cancel });
        }
        self.note([4, node as u64, from.0, cancel.tie.0 as u64 ^ u64::from(cancel.number.0)]);
        self.watch.cancel_arrived(self.hosts[node].node.id, from, &cancel, self.now);
        self.with_node(node, |node, now, out| node.cancel(from, cancel, now, out));
    }

    fn route_node(&mut self, node: usize) {
        let id = self.hosts[node].node.id;
        let mut out = std::mem::take(&mut self.node_out);
        for out in out.drain(..) {
            match out {
                NodeOut::Send { connection, message } => self.send_to_client(connection, message),
                NodeOut::Cancel { to, cancel } => self.send_cancel(id, to, cancel),
                NodeOut::Wake { at, wake } => {
                    let life = self.hosts[node].life;
                    self.at(at.max(self.now), Happening::NodeWake { node, life, wake });
                }
                NodeOut::Saw(sight) => {
                    if self.config.watch {
                        self.watch.saw(id, &sight, self.now);
                    } else if let Sight::Started(copy) = sight {
                        self.hash.write_u64(copy.read.0 as u64);
                    }
                }
            }
        }
        self.node_out = out;
    }

    fn route_client(&mut self, client: usize) {
        let mut out = std::mem::take(&mut self.client_out);
        for out in out.drain(..) {
            match out {
                ClientOut::Send { node, connection, message } => {
                    if matches!(&message, ToNode::Copy(copy) if copy.kind.is_extra()) {
                        self.outturn.extras.push(self.now);
                    }
                    self.send_to_node(node, connection, message);
                }
                ClientOut::Timer { at, read, timer } => {
                    self.at(at.max(self.now), Happening::ClientTimer { client, read, timer });
                }
                ClientOut::LookAtLink { at, node } => self.at(at, Happening::LookAtLink { client, node }),
                ClientOut::Ended(read) => self.read_ended(&read),
            }
        }
        self.client_out = out;
    }

    fn read_ended(&mut self, read: &EndedRead) {
        self.watch.read_ended(read, self.now);
        let won = matches!(read.outcome, Outcome::Won(_));
        self.note([5, read.read.0 as u64, u64::from(won), read.race.copies().len() as u64]);
        self.outturn.reads.push(ReadSample {
            began: read.began,
            latency: won.then(|| self.now.since(read.began)),
            dropped: read.outcome == Outcome::Dropped,
            hedge_delay: read.hedge_delay,
            first: read.race.copies().first().map(|copy| copy.replica),
        });
    }

    pub(crate) fn delay(&mut self) -> Duration {
        let network = &self.config.network;
        let exponential = network.jitter.mul_f64(-(1.0 - self.rng.random::<f64>()).ln());
        (network.base + exponential.min(network.jitter * JITTERS_MAX)) * self.slow
    }

    fn send_to_node(&mut self, node: usize, connection: u64, message: ToNode) {
        if let ToNode::Copy(copy) = &message
            && let Some(tie) = &copy.tie
        {
            self.watch.tie_sent(tie, self.now);
        }
        let apart =
            matches!(message, ToNode::Withdraw(_)) && self.config.planted == Some(Planted::WithdrawOvertakes);
        let delay = if apart { Duration::from_micros(1) } else { self.delay() };
        let Some(wire) = self.wires.get_mut(&connection).filter(|wire| !wire.broken) else { return };
        let mut at = self.now + delay;
        if !apart {
            at = at.max(wire.to_node + ORDER);
            wire.to_node = at;
        }
        self.at(at, Happening::ToNode { node, connection, message });
    }

    fn send_to_client(&mut self, connection: u64, message: ToClient) {
        let delay = self.delay();
        let Some(wire) = self.wires.get_mut(&connection).filter(|wire| !wire.broken) else { return };
        let at = (self.now + delay).max(wire.to_client + ORDER);
        wire.to_client = at;
        let (client, node) = (wire.client, wire.node);
        self.at(at, Happening::ToClient { client, node, connection, message });
    }

    fn send_cancel(&mut self, from: NodeId, to: NodeId, cancel: Cancel) {
        let Some(node) = self.hosts.iter().position(|host| host.node.id == to) else { return };
        let network = self.config.network;
        let mut delay = self.delay();
        if self.rng.random_bool(network.cancel_loss) {
            return self.watch.excuse(cancel.tie, "a cancel was lost");
        }
        if self.rng.random_bool(network.cancel_late) {
            self.watch.excuse(cancel.tie, "a cancel was late");
            delay *= 20;
        }
        self.at(self.now + delay, Happening::Cancel { node, from, cancel });
        if self.rng.random_bool(network.cancel_twice) {
            let again = self.delay() * 3;
            self.at(self.now + again, Happening::Cancel { node, from, cancel });
        }
    }

    fn connect(&mut self, client: usize, node: usize) {
        if self.hosts[node].down || self.hosts[node].hung_until.is_some() {
            return self.at(self.now + RECONNECT, Happening::Connect { client, node });
        }
        self.next_connection += 1;
        let connection = self.next_connection;
        let wire = Wire { client, node, to_node: self.now, to_client: self.now, broken: false };
        self.wires.insert(connection, wire);
        self.clients[client].link_up(node, connection, self.now);
    }

    /// Breaks a connection; both ends notice, each in its own time.
    pub(crate) fn break_wire(&mut self, connection: u64) {
        let Some(wire) = self.wires.get_mut(&connection).filter(|wire| !wire.broken) else { return };
        wire.broken = true;
        let (client, node) = (wire.client, wire.node);
        let (one, other) = (self.delay() * 5, self.delay() * 5);
        self.at(self.now + one, Happening::NodeLostLink { node, connection });
        self.at(self.now + other, Happening::ClientLostLink { client, node, connection });
    }

    fn node_lost_link(&mut self, node: usize, connection: u64) {
        if self.hosts[node].down {
            return;
        }
        if self.hosts[node].hung_until.is_some() {
            return self.hosts[node].frozen.push(Happening::NodeLostLink { node, connection });
        }
        self.with_node(node, |node, now, out| node.connection_lost(connection, now, out));
    }

    fn new_read(&mut self) {
        let load = &self.config.load;
        if self.now >= Moment::ZERO + load.until {
            return;
        }
        let policy = load.policies[self.rng.random_range(0..load.policies.len())];
        let need = if self.rng.random_bool(load.fresh) { self.position } else { Position(0) };
        let (dropped, deadline) = (load.dropped, load.deadline);
        let gap = Duration::from_secs_f64(-(1.0 - self.rng.random::<f64>()).ln() / load.reads_per_second);
        let client = self.rng.random_range(0..self.clients.len());
        let mut key = None;
        self.with_client(client, |client, now, out| key = Some(client.begin(policy, deadline, need, now, out)));
        if let Some(read) = key
            && self.rng.random_bool(dropped)
        {
            let after = Duration::from_micros(self.rng.random_range(0..20_000));
            self.at(self.now + after, Happening::DropRead { client, read });
        }
        self.at(self.now + gap, Happening::NewRead);
    }
}

/// The exponential part of a delay is cut at so many of its means.
const JITTERS_MAX: u32 = 8;
/// What arrives in one order arrives this far apart at least.
const ORDER: Duration = Duration::from_nanos(1);
/// Between attempts to connect.
const RECONNECT: Duration = Duration::from_millis(20);
