//! A replicated node's side behind the seam of [`replica`](crate::replica): opens the group, keeps the directory up
//! to date, does what operators ask.

use crate::config::Config;
use crate::error::NodeError;
use crate::raft::group::{Group, GroupConfig};
use crate::replica::{ControlFuture, LogStatus, Replica, ReplicaControl, ReplicaStatus, Surroundings};
use crate::storage::state_store::View;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::request::AdminOperation;
use tiedkv_protocol::response::Failure;
use tokio::sync::watch;

/// An operator's change takes at most this long; a new member may have much to catch up with.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// A group is given this long to end even when nobody has patience: its files are closed in order then.
const CLOSE_MIN: Duration = Duration::from_millis(500);

/// Opens the group that `config` describes.
///
/// # Errors
/// When the folder, the log, the store or the peer port cannot be used.
pub fn open(config: &Config, surroundings: Surroundings) -> Result<Replica, NodeError> {
    let Surroundings { credentials, directory, peers } = surroundings;
    let members = directory.topology().members.clone();
    let mut group_config = GroupConfig::new(credentials, config.data_dir.clone(), config.peer_address, members);
    group_config.udp_buffer_bytes = config.udp_buffer_bytes;
    group_config.snapshots.entries = config.snapshot_entries;
    group_config.snapshots.keep_entries = config.log_keep_entries;
    group_config.check_entries = config.check_entries;
    group_config.outcomes.count_max = config.outcomes_max;
    group_config.outcomes.age_max_ms = u64::try_from(config.outcomes_age_max.as_millis()).unwrap_or(u64::MAX);
    let group = Arc::new(Group::start(group_config).map_err(|error| NodeError::Storage(error.to_string()))?);
    let (mut topology, mut ceiling) = (group.topology(), group.ceiling());
    peers.spawn(async move {
        loop {
            let now = topology.borrow_and_update().clone();
            // Before the first entry there is nothing to know better than the settings.
            if !now.members.is_empty() {
                directory.adopt(now);
            }
            directory.set_ceiling(*ceiling.borrow_and_update());
            tokio::select! {
                changed = topology.changed() => if changed.is_err() { return },
                changed = ceiling.changed() => if changed.is_err() { return },
            }
        }
    });
    Ok(Replica {
        store: group.store().clone(),
        writer: group.clone(),
        barrier: group.read_barrier(),
        peer_address: group.peer_address().ok(),
        control: Arc::new(RaftControl { group }),
    })
}

struct RaftControl {
    group: Arc<Group>,
}

impl ReplicaControl for RaftControl {
    fn status(&self) -> ReplicaStatus {
        let status = self.group.status();
        ReplicaStatus {
            role: status.state,
            term: status.term,
            leader: status.leader.map(NodeId),
            applied: Position(status.applied),
            committed: Position(status.committed.unwrap_or(0).max(status.applied)),
            log: LogStatus {
                appended_total: status.log_appended_total,
                syncs_total: status.log_syncs_total,
                disk_bytes: status.log_bytes,
                state_bytes: status.state_bytes,
                snapshot: Position(status.snapshot.unwrap_or(0)),
                purged: Position(status.purged.unwrap_or(0)),
                checks_total: status.checks_total,
                checks_differed_total: status.checks_differed_total,
            },
        }
    }

    fn ready(&self) -> Result<(), String> {
        if let Some(why) = self.group.fatal().borrow().clone() {
            return Err(why);
        }
        if self.group.leader().is_none() {
            return Err("the shard has no leader".to_owned());
        }
        if self.group.store().current().position() == Position(0) {
            return Err("nothing is applied yet".to_owned());
        }
        Ok(())
    }

    fn lag(&self, on: bool) -> Result<(), Failure> {
        self.group.store().set_lag(on);
        Ok(())
    }

    fn administer(&self, operation: AdminOperation) -> ControlFuture<Result<(), Failure>> {
        let group = self.group.clone();
        Box::pin(async move {
            match operation {
                AdminOperation::MemberAdd { node, member } if member.node == node => {
                    group.add_member(&member, CHANGE_MAX).await
                }
                AdminOperation::MemberAdd { .. } => {
                    Err(Failure::new(ErrorCode::Membership, "the member's own id is another one"))
                }
                AdminOperation::MemberRemove { node } => group.remove_member(node, CHANGE_MAX).await,
                AdminOperation::TransferLeader { to } => {
                    group.transfer_leader(to, Duration::from_secs(5)).await.map(drop)
                }
                AdminOperation::SetCeiling(ceiling) => group.set_ceiling(ceiling, Duration::from_secs(5)).await,
                _ => Err(Failure::new(ErrorCode::Unsupported, "no operation on the cluster")),
            }
        })
    }

    fn fatal(&self) -> Option<watch::Receiver<Option<String>>> {
        Some(self.group.fatal())
    }

    fn leave(&self, patience: Duration) -> ControlFuture<()> {
        let group = self.group.clone();
        Box::pin(async move {
            match group.transfer_leader(None, patience).await {
                Ok(heir) => tracing::info!(%heir, "leadership handed on"),
                Err(failure) if failure.code == ErrorCode::NotLeader => {}
                Err(failure) => tracing::warn!(%failure.message, "leadership was not handed on"),
            }
        })
    }

    fn stop(&self, patience: Duration) {
        self.group.close(patience.max(CLOSE_MIN));
    }
}
