//! The first messages of a connection, the topology, and the operator's ceiling for read policies.

use crate::ids::{ClientId, ClusterId, NodeId, ShardId, Zone};
use crate::response::{Failure, flags};
use serde::{Deserialize, Serialize};

/// First frame of a client on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Lowest protocol version spoken.
    pub version_min: u16,
    /// Highest protocol version spoken.
    pub version_max: u16,
    /// This client process.
    pub client: ClientId,
}

/// First frame of a node on a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version that both will speak.
    pub version: u16,
    /// Who answers.
    pub node: NodeId,
    /// Of which cluster.
    pub cluster: ClusterId,
    /// Service times come from a modelled device.
    pub modelled: bool,
    /// Who is there.
    pub topology: Topology,
    /// What the operator allows.
    pub ceiling: Ceiling,
}

/// One member of a cluster. Addresses are `host:port`, `[v6]:port` or `name:port`; names are resolved at
/// each dial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Who.
    pub node: NodeId,
    /// Its failure domain; empty if zones are not used.
    pub zone: Zone,
    /// Where clients dial.
    pub client_address: String,
    /// Where peers dial for Raft.
    pub peer_address: String,
    /// Where peers dial for cancels.
    pub cancel_address: String,
    /// It does not vote (yet).
    pub learner: bool,
}

impl Member {
    /// Bytes that it takes in a message, at most.
    pub fn bytes(&self) -> usize {
        // Identity, four lengths, the learner flag.
        const FIXED: usize = 9 + 4 * 3 + 1;
        let Self { zone, client_address, peer_address, cancel_address, .. } = self;
        FIXED + zone.len() + client_address.len() + peer_address.len() + cancel_address.len()
    }
}

/// Bytes that `members` take in a message, at most; to be held against
/// [`MEMBERS_BYTES_MAX`](crate::limits::MEMBERS_BYTES_MAX).
pub fn members_bytes<'a>(members: impl IntoIterator<Item = &'a Member>) -> usize {
    members.into_iter().map(Member::bytes).sum()
}

/// The replicas of a shard as a node knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// Grows with each change.
    pub version: u64,
    /// The shard that this speaks of.
    pub shard: ShardId,
    /// Sorted by NodeId.
    pub members: Vec<Member>,
    /// Who leads, if known.
    pub leader: Option<NodeId>,
}

/// How far clients may use a read policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Untied, no extra copies.
    Off,
    /// Decide and count, send nothing extra.
    Observe,
    /// As the client's own settings say.
    #[default]
    On,
}

/// The cluster-wide ceiling that servers carry in replies and clients obey within a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Grows with each change; a client keeps the newest it has seen.
    pub version: u64,
    /// Off, observe or on.
    pub mode: Mode,
    /// Share of reads to which `On` applies, in millionths (1_000_000 = all).
    pub share_ppm: u32,
    /// Most copies of a tie: 1 to 3.
    pub copies_max: u8,
    /// Most extra work, millionths of good answers; `None` leaves the client's own budget.
    pub budget_ppm: Option<u32>,
    /// Nodes that an operator took out for reads: asked last.
    pub ejected: Ejected,
}

/// Most nodes that can be taken out for reads at a time.
pub const EJECTED_MAX: usize = 4;

/// Nodes that an operator took out for reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ejected([Option<NodeId>; EJECTED_MAX]);

impl Ejected {
    /// True if `node` is out.
    pub fn contains(&self, node: NodeId) -> bool {
        self.0.contains(&Some(node))
    }

    /// Takes a node out; false if [`EJECTED_MAX`] are out already.
    #[must_use = "only so many nodes can be out"]
    pub fn eject(&mut self, node: NodeId) -> bool {
        if self.contains(node) {
            return true;
        }
        match self.0.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => {
                *slot = Some(node);
                true
            }
            None => false,
        }
    }

    /// Puts a node back; false if it was not out.
    pub fn restore(&mut self, node: NodeId) -> bool {
        let slot = self.0.iter_mut().find(|slot| **slot == Some(node));
        slot.map(|slot| *slot = None).is_some()
    }

    /// Those that are out.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.0.iter().flatten().copied()
    }
}

impl Default for Ceiling {
    fn default() -> Self {
        Self {
            version: 0,
            mode: Mode::On,
            share_ppm: 1_000_000,
            copies_max: 3,
            budget_ppm: None,
            ejected: Ejected::default(),
        }
    }
}

impl Ceiling {
    /// What a node that it holds for says of it in the flags of each answer. Nothing of a share, nor of `Observe`: those
    /// would keep clients from observing what they leave out.
    pub fn flags(&self) -> u8 {
        let off = self.mode == Mode::Off;
        let mut bits = 0;
        if off || self.copies_max < 2 {
            bits |= flags::TIES_OFF;
        }
        if off || self.budget_ppm == Some(0) {
            bits |= flags::NO_EXTRA_COPIES;
        }
        bits
    }
}

/// Sent unasked by a node: what changed since `Welcome`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Notice {
    /// The replicas or the leader changed.
    Topology(Topology),
    /// The operator set another ceiling.
    Ceiling(Ceiling),
    /// The connection was refused or a frame on it could not be tied to a request.
    Refused(Failure),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_told_in_flags_as_far_as_it_forbids() {
        assert_eq!(Ceiling::default().flags(), 0);
        assert_eq!(Ceiling { copies_max: 1, ..Ceiling::default() }.flags(), flags::TIES_OFF);
        assert_eq!(Ceiling { budget_ppm: Some(0), ..Ceiling::default() }.flags(), flags::NO_EXTRA_COPIES);
        let off = Ceiling { mode: Mode::Off, ..Ceiling::default() };
        assert_eq!(off.flags(), flags::TIES_OFF | flags::NO_EXTRA_COPIES);
        let observed = Ceiling { share_ppm: 0, ..Ceiling::default() };
        assert_eq!(observed.flags(), 0, "a share of 0 observes every read");
        assert_eq!(Ceiling { mode: Mode::Observe, ..Ceiling::default() }.flags(), 0);
    }
}
