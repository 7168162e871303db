//! What goes wrong in a nemesis run: drawn from the seed, done to real processes and to the network between them.
//!
//! One fault at a time, healed before the next. Who leads is asked when the fault begins, so the same seed gives the
//! same plan but not the same victims.

use super::relay::{Network, Party, Place, Port, Rules};
use crate::powercut::library::SLOW_FILE;
use rand::Rng;
use rand::rngs::StdRng;
use std::fmt;
use std::time::Duration;
use tiedkv_benches::cluster::local::{LocalCluster, LocalNode};
use tiedkv_client::Client;
use tiedkv_protocol::hello::Member;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL of the leader, or of another node.
    Kill {
        /// The leader.
        leader: bool,
    },
    /// SIGKILL of all nodes at once.
    KillAll,
    /// SIGSTOP, later SIGCONT.
    Freeze {
        /// The leader.
        leader: bool,
    },
    /// One node hears no peer and is heard by none; clients reach it.
    Alone {
        /// The leader.
        leader: bool,
    },
    /// One node is heard by no peer but hears all.
    Mute {
        /// The leader.
        leader: bool,
    },
    /// No client reaches one node.
    NoClients {
        /// The leader.
        leader: bool,
    },
    /// No cancel arrives anywhere.
    NoCancels,
    /// All packets of one node take longer.
    SlowLink {
        /// The leader.
        leader: bool,
    },
    /// Every fsync of one node takes longer (a preloaded library; without a C compiler this fault does nothing).
    SlowDisk {
        /// The leader.
        leader: bool,
    },
    /// The wall clock of one node jumps, ahead or back, by up to twenty minutes. It stays where it is.
    StepClock {
        /// The leader.
        leader: bool,
    },
    /// A follower is removed for good; another node is added in its place.
    Replace,
    /// Leadership is handed on.
    Transfer,
}

impl Fault {
    const ALL: [Self; 20] = [
        Self::Kill { leader: true },
        Self::Kill { leader: false },
        Self::KillAll,
        Self::Freeze { leader: true },
        Self::Freeze { leader: false },
        Self::Alone { leader: true },
        Self::Alone { leader: false },
        Self::Mute { leader: true },
        Self::Mute { leader: false },
        Self::NoClients { leader: true },
        Self::NoClients { leader: false },
        Self::NoCancels,
        Self::SlowLink { leader: true },
        Self::SlowLink { leader: false },
        Self::SlowDisk { leader: true },
        Self::SlowDisk { leader: false },
        Self::StepClock { leader: true },
        Self::StepClock { leader: false },
        Self::Replace,
        Self::Transfer,
    ];

    /// A shuffled round of all faults.
    pub fn round(random: &mut StdRng) -> Vec<Self> {
        let mut all = Self::ALL.to_vec();
        for last in (1..all.len()).rev() {
            all.swap(last, random.random_range(0..=last));
        }
        all
    }

    fn of_leader(self) -> bool {
        match self {
            Self::Kill { leader }
            | Self::Freeze { leader }
            | Self::Alone { leader }
            | Self::Mute { leader }
            | Self::NoClients { leader }
            | Self::SlowLink { leader }
            | Self::SlowDisk { leader }
            | Self::StepClock { leader } => leader,
            Self::KillAll | Self::NoCancels | Self::Transfer => true,
            Self::Replace => false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = if self.of_leader() { "the leader" } else { "a follower" };
        match self {
            Self::Kill { .. } => write!(f, "kill {whom}"),
            Self::KillAll => f.write_str("kill all"),
            Self::Freeze { .. } => write!(f, "freeze {whom}"),
            Self::Alone { .. } => write!(f, "cut {whom} off from its peers"),
            Self::Mute { .. } => write!(f, "drop what {whom} says to its peers"),
            Self::NoClients { .. } => write!(f, "cut {whom} off from clients"),
            Self::NoCancels => f.write_str("drop all cancels"),
            Self::SlowLink { .. } => write!(f, "slow the link of {whom}"),
            Self::SlowDisk { .. } => write!(f, "slow the disk of {whom}"),
            Self::StepClock { .. } => write!(f, "step the clock of {whom}"),
            Self::Replace => write!(f, "replace {whom} by a new member"),
            Self::Transfer => f.write_str("hand leadership on"),
        }
    }
}

/// Whom faults strike.
pub struct Victims<'a> {
    /// The processes.
    pub cluster: &'a mut LocalCluster,
    /// What is between them.
    pub network: &'a Network,
    /// Knows who leads.
    pub client: &'a Client,
    /// Those that were not removed.
    pub members: Vec<NodeId>,
}

/// Longest time for one change of members, tried again until it is made.
const CHANGE_MAX: Duration = Duration::from_secs(20);
/// Steps of a clock, in ms: a delay, an election, twice the time that outcomes are kept.
const STEPS_MS: [u64; 3] = [300, 20_000, 1_200_000];

impl Victims<'_> {
    fn pick(&self, leader: bool, random: &mut StdRng) -> NodeId {
        let leading = self.client.topology().leader.filter(|node| self.members.contains(node));
        match leading {
            Some(leading) if leader => leading,
            leading => {
                let others: Vec<NodeId> =
                    self.members.iter().copied().filter(|node| Some(*node) != leading).collect();
                others[random.random_range(0..others.len())]
            }
        }
    }

    /// Begins a fault; what it was done to.
    pub async fn begin(&mut self, fault: Fault, random: &mut StdRng) -> Vec<NodeId> {
        let all = self.members.clone();
        let victim = self.pick(fault.of_leader(), random);
        let others = || all.iter().filter(|node| **node != victim);
        let mut rules = Rules::default();
        let own = Party::Node(victim);
        match fault {
            Fault::Kill { .. } => self.cluster.kill(victim),
            Fault::KillAll => all.iter().for_each(|node| self.cluster.kill(*node)),
            // One that ended by itself shows when all are asked whether they run.
            Fault::Freeze { .. } => drop(self.cluster.pause(victim)),
            Fault::Alone { .. } => others().for_each(|other| {
                [Port::Peer, Port::Cancel].into_iter().for_each(|port| rules.cut(own, Party::Node(*other), port));
            }),
            Fault::Mute { .. } => {
                others().for_each(|other| rules.cut_one_way(own, Party::Node(*other), Port::Peer));
            }
            Fault::NoClients { .. } => rules.cut(own, Party::Client, Port::Client),
            Fault::NoCancels => all.iter().for_each(|one| {
                all.iter().for_each(|other| {
                    rules.cut_one_way(Party::Node(*one), Party::Node(*other), Port::Cancel);
                });
            }),
            Fault::SlowLink { .. } => rules.slow(victim, Duration::from_millis(random.random_range(5..60))),
            Fault::SlowDisk { .. } => self.slow_disk(victim, true),
            Fault::StepClock { .. } => {
                let most = STEPS_MS[random.random_range(0..STEPS_MS.len())];
                let by_ms = random.random_range(0..most);
                let step = AdminOperation::StepClock { ahead: random.random_bool(0.5), by_ms };
                self.tell(victim, step).await;
            }
            Fault::Replace => return self.remove(victim).await.then_some(victim).into_iter().collect(),
            Fault::Transfer => self.tell(victim, AdminOperation::TransferLeader { to: None }).await,
        }
        self.network.set(rules);
        match fault {
            Fault::KillAll => all,
            _ => vec![victim],
        }
    }

    /// Heals what [`begin`](Self::begin) did.
    ///
    /// # Errors
    /// When a process cannot be started again, or no new member be added.
    pub async fn heal(&mut self, fault: Fault, victims: &[NodeId]) -> Result<(), String> {
        self.network.set(Rules::default());
        match fault {
            Fault::Kill { .. } | Fault::KillAll => {
                victims.iter().try_for_each(|node| self.cluster.restart(*node).map_err(|error| error.to_string()))
            }
            Fault::Freeze { .. } => {
                victims.iter().try_for_each(|node| self.cluster.resume(*node).map_err(|error| error.to_string()))
            }
            Fault::SlowDisk { .. } => {
                victims.iter().for_each(|node| self.slow_disk(*node, false));
                Ok(())
            }
            Fault::Replace if !victims.is_empty() => self.add().await,
            _ => Ok(()),
        }
    }

    /// Refused where a node leads no more or is just not there: then nothing happens.
    async fn tell(&self, node: NodeId, operation: AdminOperation) {
        let _ = self.client.admin_within(node, operation, Duration::from_secs(1)).await;
    }

    fn slow_disk(&self, node: NodeId, on: bool) {
        let Some(local) = self.cluster.nodes().iter().find(|local| local.id() == node) else { return };
        let file = local.folder().join(SLOW_FILE);
        // A disk that cannot be slowed is as good as any.
        let _ = if on { std::fs::write(file, "") } else { std::fs::remove_file(file) };
    }

    /// Tries a change of members until it is made or the time is over.
    async fn change(&self, operation: AdminOperation) -> Result<(), String> {
        let changed = tokio::time::timeout(CHANGE_MAX, async {
            loop {
                let leader = self.client.topology().leader.unwrap_or(self.members[0]);
                let wait = Duration::from_secs(5);
                if self.client.admin_within(leader, operation.clone(), wait).await.is_ok() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        changed.await.map_err(|_| format!("not done within {CHANGE_MAX:?}: {operation:?}"))
    }

    /// True when the node is no member any more; its process is gone then.
    async fn remove(&mut self, node: NodeId) -> bool {
        if self.change(AdminOperation::MemberRemove { node }).await.is_err() {
            return false;
        }
        self.members.retain(|member| *member != node);
        // It ends by itself once it is told; whether it does is another test's to judge.
        self.cluster.kill(node);
        true
    }

    async fn add(&mut self) -> Result<(), String> {
        let node = self.cluster.add_node().map_err(|error| error.to_string())?;
        let places = places(self.cluster);
        let place = places.iter().find(|place| place.node == node).ok_or("a node without a place")?;
        self.network.add(place).map_err(|error| format!("relays of {node}: {error}"))?;
        let member = Member {
            node,
            zone: String::new(),
            client_address: place.dialled.client().to_string(),
            peer_address: place.dialled.peer().to_string(),
            cancel_address: place.dialled.cancel().to_string(),
            learner: false,
        };
        self.change(AdminOperation::MemberAdd { node, member }).await?;
        self.members.push(node);
        Ok(())
    }
}

/// Where all nodes listen and are dialled.
pub fn places(cluster: &LocalCluster) -> Vec<Place> {
    let place = |node: &LocalNode| {
        let dialled = cluster.known().iter().find(|(id, _)| *id == node.id()).map(|(_, ports)| *ports);
        Place { node: node.id(), listens: node.ports(), dialled: dialled.unwrap_or(node.ports()) }
    };
    cluster.nodes().iter().map(place).collect()
}
