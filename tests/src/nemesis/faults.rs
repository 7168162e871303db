//! What goes wrong in a nemesis run: drawn from the seed, done to real processes and to the network between them.
//!
//! One fault at a time, healed before the next. Who leads is asked when the fault begins, so the same seed gives the
//! same plan but not the same victims.

use super::relay::{Network, Party, Port, Rules};
use rand::Rng;
use rand::rngs::StdRng;
use std::fmt;
use std::time::Duration;
use tiedkv_benches::cluster::local::LocalCluster;
use tiedkv_client::Client;
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
    /// Leadership is handed on.
    Transfer,
}

impl Fault {
    const ALL: [Self; 15] = [
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
            | Self::SlowLink { leader } => leader,
            Self::KillAll | Self::NoCancels | Self::Transfer => true,
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
}

impl Victims<'_> {
    fn pick(&self, leader: bool, random: &mut StdRng) -> NodeId {
        let nodes: Vec<NodeId> = self.cluster.nodes().iter().map(|node| node.id()).collect();
        let leading = self.client.topology().leader;
        match leading {
            Some(leading) if leader => leading,
            leading => {
                let others: Vec<NodeId> = nodes.into_iter().filter(|node| Some(*node) != leading).collect();
                others[random.random_range(0..others.len())]
            }
        }
    }

    /// Begins a fault; what it was done to.
    pub async fn begin(&mut self, fault: Fault, random: &mut StdRng) -> Vec<NodeId> {
        let all: Vec<NodeId> = self.cluster.nodes().iter().map(|node| node.id()).collect();
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
            Fault::Transfer => {
                let wait = Duration::from_secs(1);
                // Refused where nobody leads just now.
                let _ = self.client.admin_within(victim, AdminOperation::TransferLeader { to: None }, wait).await;
            }
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
    /// When a process cannot be started again.
    pub fn heal(&mut self, fault: Fault, victims: &[NodeId]) -> Result<(), String> {
        self.network.set(Rules::default());
        match fault {
            Fault::Kill { .. } | Fault::KillAll => {
                victims.iter().try_for_each(|node| self.cluster.restart(*node).map_err(|error| error.to_string()))
            }
            Fault::Freeze { .. } => {
                victims.iter().try_for_each(|node| self.cluster.resume(*node).map_err(|error| error.to_string()))
            }
            _ => Ok(()),
        }
    }
}
