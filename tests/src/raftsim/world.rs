//! A world: its nodes, what is wrong with its network and disks now, and the faults that are drawn for it.
//!
//! Faults come one or two at a time and are healed; at the end all is healed and every node runs.

use super::network::Rules;
use super::node::{Node, Running, start};
use super::runtime::{Party, crash, draw, draw_time, once_in, sleep, within};
use super::types::Planted;
use super::watch::SharedWatch;
use super::{log::SimLog, machine::SimMachine};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::impls::EmptyNode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Clients are parties from here on.
pub const CLIENTS: Party = 1_000;

/// See the head of this room.
pub struct World {
    /// Nodes 1, 2, ...
    pub nodes: Mutex<BTreeMap<u64, Node>>,
    /// The network now.
    pub rules: Mutex<Rules>,
    /// How far each node's wall clock is off, ms.
    pub clocks: Mutex<BTreeMap<u64, i64>>,
    /// Sees all.
    pub watch: SharedWatch,
    /// The bug that was put in.
    pub planted: Option<Planted>,
}

/// Kinds of fault.
#[derive(Clone, Copy, Debug, Hash)]
enum Fault {
    Crash,
    CrashAll,
    Alone,
    Mute,
    NoClients,
    SlowLink,
    SlowDisk,
    Loss,
    Clock,
    Transfer,
    Snapshot,
}

const FAULTS: [Fault; 11] = [
    Fault::Crash,
    Fault::CrashAll,
    Fault::Alone,
    Fault::Mute,
    Fault::NoClients,
    Fault::SlowLink,
    Fault::SlowDisk,
    Fault::Loss,
    Fault::Clock,
    Fault::Transfer,
    Fault::Snapshot,
];

impl World {
    /// A world of so many nodes, all running, as one cluster.
    ///
    /// # Errors
    /// When a node does not start.
    pub async fn begin(nodes: u64, planted: Option<Planted>) -> Result<Arc<Self>, String> {
        let world = Arc::new(Self {
            nodes: Mutex::default(),
            rules: Mutex::default(),
            clocks: Mutex::default(),
            watch: SharedWatch::default(),
            planted,
        });
        for node in 1..=nodes {
            let log = SimLog::new(node, planted);
            let machine = SimMachine::new(node, planted, world.watch.clone());
            world.nodes.lock().insert(node, Node { log, machine, life: 0, running: None });
            start(&world, node).await?;
        }
        world.initialize().await?;
        Ok(world)
    }

    async fn initialize(&self) -> Result<(), String> {
        let members: BTreeMap<u64, EmptyNode> = self.names().into_iter().map(|node| (node, EmptyNode {})).collect();
        let first = self.running(1).ok_or("the first node does not run")?;
        first.raft.initialize(members).await.map_err(|error| error.to_string())
    }

    /// A node, if it runs.
    pub fn running(&self, node: u64) -> Option<Running> {
        self.nodes.lock().get(&node).and_then(|node| node.running.clone())
    }

    /// All nodes.
    pub fn names(&self) -> Vec<u64> {
        self.nodes.lock().keys().copied().collect()
    }

    /// Who says of itself that it leads.
    pub fn leader(&self) -> Option<u64> {
        let nodes = self.nodes.lock();
        let leads =
            |running: &Running| running.raft.metrics().borrow_watched().current_leader == Some(running.node);
        nodes.values().filter_map(|node| node.running.as_ref()).find(|running| leads(running)).map(|node| node.node)
    }

    /// What each node thinks now, as text: for who must find out why a world stands still.
    pub fn described(&self) -> String {
        let nodes = self.nodes.lock();
        let described = nodes.iter().map(|(name, node)| {
            let Some(running) = &node.running else { return format!("{name} does not run") };
            let metrics = running.raft.metrics();
            format!("{name}: {}", metrics.borrow_watched())
        });
        described.collect::<Vec<_>>().join("; ")
    }

    fn kill(&self, node: u64) {
        let running = self.nodes.lock().get_mut(&node).and_then(|node| node.running.take());
        crash(node);
        drop(running);
    }

    fn victim(&self) -> u64 {
        let names = self.names();
        match self.leader() {
            Some(leader) if once_in(2) => leader,
            _ => names[draw(names.len() as u64) as usize],
        }
    }

    /// Faults until this time has passed.
    ///
    /// # Errors
    /// When a node does not start again.
    pub async fn trouble(self: &Arc<Self>, span: Duration) -> Result<(), String> {
        let end = super::runtime::now_ns() + span.as_nanos() as u64;
        while super::runtime::now_ns() < end {
            sleep(draw_time(Duration::from_millis(250))).await;
            let fault = FAULTS[draw(FAULTS.len() as u64) as usize];
            let victim = self.victim();
            self.watch.lock().note((fault, victim));
            self.strike(fault, victim).await;
            sleep(Duration::from_millis(30) + draw_time(Duration::from_millis(500))).await;
            // Sometimes the next one comes on top.
            if !once_in(4) {
                self.heal().await?;
            }
        }
        self.heal().await
    }

    async fn strike(&self, fault: Fault, victim: u64) {
        let others = self.names().into_iter().filter(|node| *node != victim);
        let mut rules = self.rules.lock().clone();
        match fault {
            Fault::Crash => self.kill(victim),
            Fault::CrashAll => self.names().into_iter().for_each(|node| self.kill(node)),
            Fault::Alone => others.for_each(|other| rules.cut.extend([(victim, other), (other, victim)])),
            Fault::Mute => rules.cut.extend(others.map(|other| (victim, other))),
            Fault::NoClients => {
                (CLIENTS..CLIENTS + 64).for_each(|client| rules.cut.extend([(client, victim), (victim, client)]));
            }
            Fault::SlowLink => rules.slow = Some((victim, Duration::from_millis(60))),
            Fault::SlowDisk => self.slow_disk(victim, Duration::from_millis(80)),
            Fault::Loss => rules.loss = 5,
            Fault::Clock => {
                let off = draw(120_000) as i64 - 60_000;
                self.clocks.lock().insert(victim, off);
            }
            Fault::Transfer => {
                let heir = self.names()[draw(self.names().len() as u64) as usize];
                if let Some(leader) = self.leader().and_then(|leader| self.running(leader)) {
                    // Refused where it cannot be.
                    let _ = leader.raft.trigger().transfer_leader(heir).await;
                }
            }
            Fault::Snapshot => {
                for running in self.names().into_iter().filter_map(|node| self.running(node)) {
                    if once_in(2) {
                        let _ = running.raft.trigger().snapshot().await;
                    }
                }
            }
        }
        *self.rules.lock() = rules;
    }

    fn slow_disk(&self, node: u64, by: Duration) {
        if let Some(node) = self.nodes.lock().get(&node) {
            node.log.slow(by);
        }
    }

    /// All runs and nothing is wrong any more, but for the clocks.
    async fn heal(self: &Arc<Self>) -> Result<(), String> {
        *self.rules.lock() = Rules::default();
        for node in self.names() {
            self.slow_disk(node, Duration::ZERO);
            if self.running(node).is_none() {
                start(self, node).await?;
            }
        }
        // As shipped nodes do (`first_start`): a cluster of which nothing had reached a disk begins once more.
        for running in self.names().into_iter().filter_map(|node| self.running(node)) {
            if running.raft.is_initialized().await.unwrap_or(true) {
                return Ok(());
            }
        }
        self.initialize().await
    }

    /// Waits until all nodes have applied the same; what they agree on.
    ///
    /// # Errors
    /// When they do not within this time, or their states differ.
    pub async fn agree(&self, wait: Duration) -> Result<(), String> {
        let all = || -> Vec<Running> { self.names().into_iter().filter_map(|node| self.running(node)).collect() };
        let settled = within(wait, async {
            loop {
                let ends: Vec<_> = all().iter().map(|node| node.machine.view().position()).collect();
                if ends.len() == self.names().len() && ends.windows(2).all(|pair| pair[0] == pair[1]) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        settled.await.ok_or("the nodes did not come to the same position")?;
        let views: Vec<_> = all().iter().map(|node| node.machine.view()).collect();
        match views.windows(2).all(|pair| pair[0].data == pair[1].data) {
            true => Ok(()),
            false => Err("the nodes differ at the same position".to_owned()),
        }
    }
}
