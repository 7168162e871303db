//! What goes wrong in a simulated world, writes and strangers included, and how it heals.

use crate::sim::config::Fault;
use crate::sim::node::Node;
use crate::sim::watch::Watch;
use crate::sim::world::{Happening, REST, Wire, World};
use rand::Rng;
use std::time::Duration;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::Disturbance;

/// So long after a fault its node is not yet counted on.
const AFTERMATH: Duration = Duration::from_millis(150);

impl World {
    pub(crate) fn write(&mut self) {
        self.position = Position(self.position.0 + 1);
        for node in 0..self.hosts.len() {
            let at = self.now + self.delay();
            self.at(at, Happening::Apply { node, position: self.position });
        }
        if self.now < Moment::ZERO + self.config.load.until + REST {
            self.at(self.now + Duration::from_millis(5), Happening::Write);
        }
    }

    pub(crate) fn stranger(&mut self) {
        let at = self.rng.random_range(0..64);
        if let Some(tie) = self.watch.any_tie(at) {
            let client = self.rng.random_range(0..self.clients.len());
            let cancel = Watch::forged(tie, self.clients[client].caller, self.rng.random_range(0..3));
            let node = self.rng.random_range(0..self.hosts.len());
            if !self.hosts[node].down && self.hosts[node].hung_until.is_none() {
                self.with_node(node, |node, now, out| node.cancel(NodeId(99), cancel, now, out));
            }
        }
        if !self.healed {
            let gap = Duration::from_secs_f64(self.rng.random_range(0.2..2.0) / self.config.strangers_per_second);
            self.at(self.now + gap, Happening::Stranger);
        }
    }

    pub(crate) fn fault_begins(&mut self, index: usize) {
        let planned = self.config.faults[index];
        if let Some(node) = planned.fault.node() {
            let id = self.hosts[node].node.id;
            self.watch.bad_time(id, self.now, self.now + planned.lasts + AFTERMATH);
        }
        self.note([6, index as u64, 0, 0]);
        match planned.fault {
            Fault::Crash { node } => self.crash(node),
            Fault::Hang { node } => {
                let until = self.now + planned.lasts;
                let host = &mut self.hosts[node];
                host.hung_until = Some(host.hung_until.map_or(until, |earlier| earlier.max(until)));
            }
            Fault::BreakLink { client, node } => {
                let mine = |wire: &Wire| wire.client == client && wire.node == node && !wire.broken;
                let connection = self.wires.iter().find(|(_, wire)| mine(wire)).map(|(connection, _)| *connection);
                if let Some(connection) = connection {
                    self.break_wire(connection);
                }
            }
            Fault::Lag { node } => self.hosts[node].lags = true,
            Fault::FailReads { node } => self.hosts[node].node.fails = true,
            Fault::WrongClock { node } => self.hosts[node].node.wrong_clock = true,
            Fault::SlowDevice { node, factor } => self.slow_devices(node, factor),
            Fault::SlowNetwork { factor } => self.slow = factor,
        }
    }

    fn slow_devices(&mut self, node: Option<usize>, slow_factor: f64) {
        let disturbance = Disturbance { slow_factor, ..self.config.disturbance.clone() };
        let now = self.now;
        for (index, host) in self.hosts.iter_mut().enumerate() {
            if node.is_none_or(|node| node == index) {
                host.node.disturb(&disturbance, now);
            }
        }
    }

    fn crash(&mut self, node: usize) {
        let host = &mut self.hosts[node];
        host.down = true;
        host.frozen.clear();
        host.life += 1;
        let id = host.node.id;
        let counted = host.node.counters.snapshot();
        self.crashed.received += counted.received - counted.in_flight();
        self.crashed.started += counted.started;
        self.crashed.withdrawn += counted.silent();
        self.crashed.answered_good += counted.answered();
        self.watch.crashed(id);
        let connections: Vec<u64> =
            self.wires.iter().filter(|(_, wire)| wire.node == node).map(|(connection, _)| *connection).collect();
        connections.into_iter().for_each(|connection| self.break_wire(connection));
    }

    pub(crate) fn fault_ends(&mut self, index: usize) {
        match self.config.faults[index].fault {
            Fault::Crash { node } => self.restart(node),
            Fault::Hang { node } => {
                if self.hosts[node].hung_until.is_some_and(|until| until <= self.now) {
                    self.thaw(node);
                }
            }
            Fault::BreakLink { .. } => {}
            Fault::Lag { node } => {
                self.hosts[node].lags = false;
                self.at(self.now, Happening::Apply { node, position: self.position });
            }
            Fault::FailReads { node } => self.hosts[node].node.fails = false,
            Fault::WrongClock { node } => self.hosts[node].node.wrong_clock = false,
            Fault::SlowDevice { node, .. } => self.slow_devices(node, 1.0),
            Fault::SlowNetwork { .. } => self.slow = 1,
        }
    }

    /// A hung node goes on: what came meanwhile is taken in order.
    fn thaw(&mut self, node: usize) {
        self.hosts[node].hung_until = None;
        for what in std::mem::take(&mut self.hosts[node].frozen) {
            self.at(self.now, what);
        }
    }

    fn restart(&mut self, node: usize) {
        if !self.hosts[node].down {
            return;
        }
        let id = self.hosts[node].node.id;
        self.hosts[node].node = Node::new(id, &self.config, self.now);
        self.hosts[node].down = false;
        let position = self.position;
        self.with_node(node, |node, now, out| {
            node.begin(out);
            node.applied(position, now, out);
        });
    }

    pub(crate) fn heal(&mut self) {
        self.healed = true;
        for index in 0..self.config.faults.len() {
            let planned = self.config.faults[index];
            if Moment::ZERO + planned.at + planned.lasts > self.now {
                self.fault_ends(index);
            }
        }
        for node in 0..self.hosts.len() {
            self.thaw(node);
            let now = self.now;
            self.hosts[node].node.disturb(&Disturbance::default(), now);
        }
    }
}
