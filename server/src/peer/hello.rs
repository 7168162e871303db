//! What two nodes tell each other before anything else: who they are, in which life of their folder, and the
//! settings that must be the same in the whole cluster.

use crate::raft::outcomes::OutcomeLimits;
use serde::{Deserialize, Serialize};
use tiedkv_protocol::ids::{ClusterId, NodeId, ShardId};

/// Version of what peers say to each other.
pub const PEER_VERSION: u16 = 1;

/// The hello of a node. Its NodeId is believed only because its certificate says the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerHello {
    /// [`PEER_VERSION`] of the speaker.
    pub version: u16,
    /// Which cluster.
    pub cluster: ClusterId,
    /// Which node.
    pub node: NodeId,
    /// Which shard the streams are of.
    pub shard: ShardId,
    /// Drawn when the node's folder was made: another one means that the folder was wiped or replaced.
    pub incarnation: u128,
    /// Must be the same everywhere, else replicas would decide differently.
    pub outcomes: OutcomeLimits,
}

impl PeerHello {
    /// Whether `theirs`, said by `from`, can be worked with.
    ///
    /// # Errors
    /// Says what does not fit, with both values.
    pub fn check(&self, from: NodeId, theirs: &PeerHello) -> Result<(), String> {
        if theirs.version != self.version {
            return Err(format!("peer protocol {} against {}", theirs.version, self.version));
        }
        if theirs.node != from {
            return Err(format!("hello of {}, certificate of {from}", theirs.node));
        }
        if theirs.cluster != self.cluster {
            return Err(format!("cluster {} against {}", theirs.cluster, self.cluster));
        }
        if theirs.shard != self.shard {
            return Err(format!("shard {} against {}", theirs.shard, self.shard));
        }
        if theirs.outcomes != self.outcomes {
            return Err(format!(
                "settings differ: outcomes kept {} or {} ms against {} or {} ms; they must be the same on all nodes",
                theirs.outcomes.count_max,
                theirs.outcomes.age_max_ms,
                self.outcomes.count_max,
                self.outcomes.age_max_ms
            ));
        }
        Ok(())
    }
}

/// The answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HelloReply {
    /// Streams may follow.
    Welcome(PeerHello),
    /// This node will never be accepted like this; why and what to do.
    Refused(String),
}

/// Why a peer is not worked with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// It will never be like this: says what to do. A peer that is told so stops.
    #[error("{0}")]
    Never(String),
    /// The fault is on this side and may pass; it must stop no peer.
    #[error("{0}")]
    NotNow(String),
}

/// Remembers in which life of its folder each peer was seen.
pub trait Incarnations: Send + Sync {
    /// Admits a peer, remembering it durably when it is seen for the first time.
    ///
    /// # Errors
    /// When the peer was seen with another folder, or cannot be remembered.
    fn admit(&self, node: NodeId, incarnation: u128) -> Result<(), NotAdmitted>;

    /// The node was a member and was removed: its id is used up.
    fn is_removed(&self, node: NodeId) -> bool;
}
