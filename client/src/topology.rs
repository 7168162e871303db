//! Who belongs to the cluster, as last heard, and the [`Peer`] of each member. An immutable snapshot: a change makes
//! a new one, in which peers that stay keep their links.

use crate::engine::Replica;
use crate::peer::Peer;
use std::sync::Arc;
use tiedkv_protocol::hello::Topology;
use tiedkv_protocol::ids::{NodeId, SHARD_ZERO};
use tiedkv_protocol::limits::MEMBERS_MAX;
use tiedkv_protocol::response::Service;

/// See the head of this room.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) topology: Topology,
    /// Sorted by NodeId, one per member.
    pub(crate) peers: Vec<Arc<Peer>>,
    /// Who can be read from, by index: all but learners.
    readable: Vec<usize>,
    /// Some member names its zone.
    zoned: bool,
}

impl Default for Table {
    fn default() -> Self {
        let topology = Topology { version: 0, shard: SHARD_ZERO, members: Vec::new(), leader: None };
        Self::new(topology, Vec::new())
    }
}

/// A new table and what has to be done for it.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) table: Table,
    pub(crate) added: Vec<Arc<Peer>>,
    pub(crate) removed: Vec<Arc<Peer>>,
}

impl Table {
    /// Of members sorted by NodeId and their peers in the same order.
    pub(crate) fn new(topology: Topology, peers: Vec<Arc<Peer>>) -> Self {
        let members = topology.members.iter().zip(&peers).enumerate();
        let readable = members.filter(|(_, (member, _))| !member.learner).map(|(index, _)| index).collect();
        let zoned = topology.members.iter().any(|member| !member.zone.is_empty());
        Self { topology, peers, readable, zoned }
    }

    /// The replicas that can be read from, sorted by NodeId.
    pub(crate) fn replicas(&self) -> impl Iterator<Item = Replica<'_>> {
        self.readable.iter().map(|index| {
            let peer = &self.peers[*index];
            let zone = if self.zoned { self.topology.members[*index].zone.as_str() } else { "" };
            Replica { node: peer.node, zone, down: peer.links() == 0 }
        })
    }

    /// The peer of a node.
    pub(crate) fn peer(&self, node: NodeId) -> Option<&Arc<Peer>> {
        let index = self.peers.binary_search_by_key(&node, |peer| peer.node).ok()?;
        self.peers.get(index)
    }

    /// True if at least one member can be sent to.
    pub(crate) fn any_link(&self) -> bool {
        self.peers.iter().any(|peer| peer.links() > 0)
    }

    /// Bits by index in the topology as bits by index among those that can be read from: learners are left out.
    pub(crate) fn pairs_of_replicas(&self, pairs: u64) -> u64 {
        if pairs == 0 {
            return 0;
        }
        let bits = self.topology.members.iter().take(64).enumerate().filter(|(_, member)| !member.learner);
        bits.enumerate().fold(0, |kept, (to, (from, _))| kept | ((pairs >> from & 1) << to))
    }

    /// What a node says with an answer, without what an older ceiling than `newest` makes it say.
    pub(crate) fn without_old_ceiling(&self, mut service: Service, newest: u64) -> Service {
        if service.flags != 0
            && let Some(peer) = self.peer(service.node)
        {
            service.flags = peer.without_old_ceiling(service.flags, newest);
        }
        service
    }

    /// What `heard` changes; `None` if it is no news. Equal versions are news only when they name a leader.
    pub(crate) fn change(
        &self,
        mut heard: Topology,
        make_peer: impl Fn(&Topology, usize) -> Peer,
    ) -> Option<Change> {
        let old = &self.topology;
        let newer = heard.version > old.version || self.peers.is_empty();
        let leader_only = heard.version == old.version && heard.leader.is_some() && heard.leader != old.leader;
        if !newer && !leader_only {
            return None;
        }
        heard.members.sort_by_key(|member| member.node);
        heard.members.dedup_by_key(|member| member.node);
        heard.members.truncate(MEMBERS_MAX);
        let (mut peers, mut added) = (Vec::with_capacity(heard.members.len()), Vec::new());
        for (index, member) in heard.members.iter().enumerate() {
            if let Some(peer) = self.peer(member.node) {
                peer.update(member.clone());
                peers.push(peer.clone());
            } else {
                let peer = Arc::new(make_peer(&heard, index));
                added.push(peer.clone());
                peers.push(peer);
            }
        }
        let stays = |peer: &&Arc<Peer>| heard.members.iter().any(|member| member.node == peer.node);
        let removed = self.peers.iter().filter(|peer| !stays(peer)).cloned().collect();
        Some(Change { table: Table::new(heard, peers), added, removed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Pace, PaceSettings};
    use tiedkv_protocol::hello::Member;

    fn topology(version: u64, nodes: &[u64], leader: Option<u64>) -> Topology {
        let member = |node: &u64| Member {
            node: NodeId(*node),
            zone: String::new(),
            client_address: format!("a{node}:1"),
            peer_address: String::new(),
            cancel_address: String::new(),
            learner: false,
        };
        let members = nodes.iter().map(member).collect();
        Topology { version, shard: SHARD_ZERO, members, leader: leader.map(NodeId) }
    }

    fn change(table: &Table, heard: Topology) -> Option<Change> {
        table.change(heard, |heard, index| {
            Peer::new(heard.members[index].clone(), Pace::new(PaceSettings::default()))
        })
    }

    #[test]
    fn peers_that_stay_are_kept_and_others_come_and_go() {
        let first = change(&Table::default(), topology(0, &[3, 1, 3], None)).expect("the first is news");
        assert_eq!(first.added.len(), 2);
        let second = change(&first.table, topology(2, &[3, 4], None)).expect("a newer one is news");
        assert_eq!(second.added.iter().map(|peer| peer.node).collect::<Vec<_>>(), [NodeId(4)]);
        assert_eq!(second.removed.iter().map(|peer| peer.node).collect::<Vec<_>>(), [NodeId(1)]);
        let kept = second.table.peer(NodeId(3)).expect("it stays");
        assert!(Arc::ptr_eq(kept, first.table.peer(NodeId(3)).expect("it was there")));
    }

    #[test]
    fn replicas_are_all_but_learners_each_with_its_zone() {
        let mut heard = topology(1, &[3, 1, 2], None);
        heard.members[0].zone = "z".to_owned();
        heard.members[1].learner = true;
        let table = change(&Table::default(), heard).expect("news").table;
        let replicas: Vec<_> =
            table.replicas().map(|replica| (replica.node.0, replica.zone, replica.down)).collect();
        assert_eq!(replicas, [(2, "", true), (3, "z", true)], "none has a link");
    }

    #[test]
    fn pairs_are_counted_without_learners() {
        let mut heard = topology(1, &[1, 2, 3], None);
        heard.members[1].learner = true;
        let table = change(&Table::default(), heard).expect("news").table;
        assert_eq!(table.pairs_of_replicas(0b101), 0b11);
        assert_eq!(table.pairs_of_replicas(0b010), 0);
    }

    #[test]
    fn older_ones_are_no_news_and_equal_ones_only_with_a_leader() {
        let table = change(&Table::default(), topology(5, &[1, 2], None)).expect("news").table;
        assert!(change(&table, topology(4, &[1], Some(1))).is_none());
        assert!(change(&table, topology(5, &[1, 2], None)).is_none());
        let led = change(&table, topology(5, &[1, 2], Some(2))).expect("a leader is news");
        assert_eq!(led.table.topology.leader, Some(NodeId(2)));
    }
}
