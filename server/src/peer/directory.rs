//! Who is in the cluster: members, addresses, zones, and the topology that clients are told.
//!
//! One owner of the membership as this node knows it; everybody else holds a cheap snapshot or a watch. It decides
//! nothing: Raft (or the configuration, where nothing is replicated) says what the members are.

use parking_lot::Mutex;
use std::sync::Arc;
use tiedkv_protocol::hello::{Ceiling, Member, Topology, members_bytes};
use tiedkv_protocol::ids::{NodeId, ShardId};
use tiedkv_protocol::limits::{MEMBERS_BYTES_MAX, MEMBERS_MAX};
use tokio::sync::watch;

/// What clients are told: who is there and what the operator allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// Who is there.
    pub topology: Arc<Topology>,
    /// What the operator allows.
    pub ceiling: Ceiling,
}

/// The members of one shard. Cheap to share; changes are seen by every watch.
#[derive(Debug)]
pub struct Directory {
    own: NodeId,
    announced: watch::Sender<Announcement>,
    // One change at a time, so that versions grow with each.
    change: Mutex<()>,
}

/// Why a membership is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// Too many members for one cluster.
    #[error("{0} members; a cluster has at most {MEMBERS_MAX}")]
    TooMany(usize),
    /// Zones and addresses too long to be told to a client.
    #[error("zones and addresses of all members take {0} bytes; at most {MEMBERS_BYTES_MAX} are possible")]
    TooLong(usize),
    /// One node stands in it twice.
    #[error("{0} stands in the membership twice")]
    Twice(NodeId),
}

impl Directory {
    /// A directory of `members` as node `own` knows them; topology version 1.
    ///
    /// # Errors
    /// When there are too many members or one stands there twice.
    pub fn new(own: NodeId, shard: ShardId, members: Vec<Member>) -> Result<Self, DirectoryError> {
        let members = sorted(members)?;
        let topology = Arc::new(Topology { version: 1, shard, members, leader: None });
        let (announced, _) = watch::channel(Announcement { topology, ceiling: Ceiling::default() });
        Ok(Self { own, announced, change: Mutex::new(()) })
    }

    /// This node.
    pub fn own(&self) -> NodeId {
        self.own
    }

    /// The topology in force, members sorted by NodeId.
    pub fn topology(&self) -> Arc<Topology> {
        self.announced.borrow().topology.clone()
    }

    /// Topology and ceiling in force.
    pub fn announcement(&self) -> Announcement {
        self.announced.borrow().clone()
    }

    /// Sees every later change (the newest, if several come at once).
    pub fn watch(&self) -> watch::Receiver<Announcement> {
        self.announced.subscribe()
    }

    /// The members' ids, sorted.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.topology().members.iter().map(|member| member.node).collect()
    }

    /// The other members.
    pub fn peers(&self) -> Vec<Member> {
        self.topology().members.iter().filter(|member| member.node != self.own).cloned().collect()
    }

    /// One member.
    pub fn member(&self, node: NodeId) -> Option<Member> {
        self.topology().members.iter().find(|member| member.node == node).cloned()
    }

    /// Replaces the members; a change makes a new topology version.
    ///
    /// # Errors
    /// As [`Directory::new`]; nothing changes then.
    pub fn set_members(&self, members: Vec<Member>) -> Result<(), DirectoryError> {
        let members = sorted(members)?;
        self.change(|topology| topology.members = members);
        Ok(())
    }

    /// Says who leads the shard, if known.
    pub fn set_leader(&self, leader: Option<NodeId>) {
        self.change(|topology| topology.leader = leader);
    }

    /// Takes over a topology whose version counts for the whole cluster, if it is not older than the one in force.
    /// Its members must be sorted.
    pub fn adopt(&self, topology: Topology) {
        let _one_at_a_time = self.change.lock();
        self.announced.send_if_modified(|announced| {
            let newer = topology.version >= announced.topology.version && topology != *announced.topology;
            if newer {
                announced.topology = Arc::new(topology);
            }
            newer
        });
    }

    /// Sets the operator's ceiling if it is newer than the one in force.
    pub fn set_ceiling(&self, ceiling: Ceiling) {
        self.announced.send_if_modified(|announced| {
            let newer = ceiling.version > announced.ceiling.version;
            if newer {
                announced.ceiling = ceiling;
            }
            newer
        });
    }

    fn change(&self, edit: impl FnOnce(&mut Topology)) {
        let _one_at_a_time = self.change.lock();
        let before = self.topology();
        let mut after = (*before).clone();
        edit(&mut after);
        if after == *before {
            return;
        }
        after.version = before.version.saturating_add(1);
        self.announced.send_modify(|announced| announced.topology = Arc::new(after));
    }
}

fn sorted(mut members: Vec<Member>) -> Result<Vec<Member>, DirectoryError> {
    if members.len() > MEMBERS_MAX {
        return Err(DirectoryError::TooMany(members.len()));
    }
    let bytes = members_bytes(&members);
    if bytes > MEMBERS_BYTES_MAX {
        return Err(DirectoryError::TooLong(bytes));
    }
    members.sort_by_key(|member| member.node);
    match members.windows(2).find(|pair| pair[0].node == pair[1].node) {
        Some(pair) => Err(DirectoryError::Twice(pair[0].node)),
        None => Ok(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiedkv_protocol::ids::SHARD_ZERO;

    fn member(node: u64) -> Member {
        Member {
            node: NodeId(node),
            zone: String::new(),
            client_address: format!("h{node}:1"),
            peer_address: format!("h{node}:2"),
            cancel_address: format!("h{node}:3"),
            learner: false,
        }
    }

    fn directory(nodes: &[u64]) -> Directory {
        Directory::new(NodeId(2), SHARD_ZERO, nodes.iter().map(|node| member(*node)).collect()).unwrap()
    }

    #[test]
    fn members_are_sorted_and_peers_are_the_others() {
        let directory = directory(&[3, 1, 2]);
        assert_eq!(directory.nodes(), [NodeId(1), NodeId(2), NodeId(3)]);
        assert_eq!(directory.peers().iter().map(|m| m.node.0).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(directory.member(NodeId(9)), None);
    }

    #[test]
    fn only_real_changes_make_a_version_and_wake_watchers() {
        let directory = directory(&[1, 2]);
        let mut watch = directory.watch();
        directory.set_leader(None);
        directory.set_members(vec![member(2), member(1)]).unwrap();
        assert!(!watch.has_changed().unwrap());
        directory.set_leader(Some(NodeId(1)));
        assert!(watch.has_changed().unwrap());
        let seen = watch.borrow_and_update().topology.clone();
        assert_eq!((seen.version, seen.leader), (2, Some(NodeId(1))));
    }

    #[test]
    fn an_old_ceiling_is_ignored() {
        let directory = directory(&[2]);
        directory.set_ceiling(Ceiling { version: 5, copies_max: 1, ..Ceiling::default() });
        directory.set_ceiling(Ceiling { version: 4, copies_max: 3, ..Ceiling::default() });
        assert_eq!(directory.announcement().ceiling.copies_max, 1);
    }

    #[test]
    fn impossible_memberships_are_refused() {
        let directory = directory(&[1, 2]);
        assert_eq!(directory.set_members(vec![member(1), member(1)]), Err(DirectoryError::Twice(NodeId(1))));
        let many = (0..=MEMBERS_MAX as u64).map(member).collect();
        assert_eq!(directory.set_members(many), Err(DirectoryError::TooMany(MEMBERS_MAX + 1)));
        let long = |node| Member { client_address: "h".repeat(250), ..member(node) };
        let many = (0..MEMBERS_MAX as u64).map(long).collect();
        assert!(matches!(directory.set_members(many), Err(DirectoryError::TooLong(_))));
        assert_eq!(directory.topology().version, 1);
    }

    #[test]
    fn the_longest_topology_fits_its_header() {
        let address = "h".repeat(MEMBERS_BYTES_MAX / MEMBERS_MAX - 70);
        let member = |node| Member { client_address: address.clone(), ..member(u64::MAX - node) };
        let directory =
            Directory::new(NodeId(2), SHARD_ZERO, (0..MEMBERS_MAX as u64).map(member).collect()).unwrap();
        let bytes = members_bytes(&directory.topology().members);
        assert!(bytes > MEMBERS_BYTES_MAX * 9 / 10, "{bytes}");
        let welcome = tiedkv_protocol::hello::Welcome {
            version: u16::MAX,
            node: NodeId(u64::MAX),
            cluster: tiedkv_protocol::ids::ClusterId(u128::MAX),
            modelled: true,
            topology: (*directory.topology()).clone(),
            ceiling: Ceiling::default(),
        };
        tiedkv_protocol::frame::encode(tiedkv_protocol::frame::FrameKind::Welcome, &welcome, &[], &mut Vec::new())
            .unwrap();
    }
}
