//! Members of a group: who they are to the rest of the node, and their change one at a time.
//!
//! A new member first learns, then votes. A change that would leave less than a quorum of voters that are heard
//! from is refused.

use crate::raft::run::transfer;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::{MemberRecord, StoredMembership, TypeConfig};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::metrics::{RaftMetrics, RaftServerMetrics};
use openraft::{ChangeMembers, Instant as _, Raft};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::{Member, Topology, members_bytes};
use tiedkv_protocol::ids::{NodeId, SHARD_ZERO};
use tiedkv_protocol::limits::{MEMBERS_BYTES_MAX, MEMBERS_MAX};
use tiedkv_protocol::response::Failure;
use tokio::time::{sleep, timeout};

/// A voter counts as alive if it acknowledged something within this time: ten heartbeats.
pub(super) const HEARD_WITHIN: Duration = Duration::from_secs(1);

/// A quorum of those that would stay is waited for so long before a removal is refused.
const HEAR_MAX: Duration = Duration::from_secs(3);

/// The topology that metrics show. Its version grows with the term and the membership entry.
pub(super) fn topology(metrics: &RaftServerMetrics<TypeConfig>) -> Topology {
    let membership = &metrics.membership_config;
    let leader = metrics.current_leader.map(NodeId);
    let index = membership.log_id().map_or(0, |id| id.index + 1);
    Topology {
        version: (metrics.vote.leader_id.term << 33) | (index << 1) | u64::from(leader.is_some()),
        shard: SHARD_ZERO,
        members: members(membership),
        leader,
    }
}

fn members(membership: &StoredMembership) -> Vec<Member> {
    let voters: BTreeSet<u64> = membership.voter_ids().collect();
    membership.nodes().map(|(id, record)| record.member(NodeId(*id), !voters.contains(id))).collect()
}

/// Adds `member`: as a learner until it has caught up, then as a voter. Done already: nothing.
///
/// # Errors
/// `NotLeader`, `Membership` with the reason, or `Expired` when it did not catch up in `wait` (it stays a learner
/// then; the same call goes on).
pub(super) async fn add(
    raft: &Raft<TypeConfig, StateMachine>,
    own: NodeId,
    member: &Member,
    wait: Duration,
) -> Result<(), Failure> {
    leads(raft, own)?;
    let id = member.node.0;
    let record = MemberRecord::from(member);
    let before = current(raft);
    match before.get_node(&id) {
        None if before.nodes().count() >= MEMBERS_MAX => {
            return Err(refused(format!("a cluster has at most {MEMBERS_MAX} members")));
        }
        None if members_bytes(&members(&before)) + member.bytes() > MEMBERS_BYTES_MAX => {
            return Err(refused(format!(
                "zones and addresses of all members would take more than {MEMBERS_BYTES_MAX} bytes; use shorter ones"
            )));
        }
        Some(known) if *known != record => {
            return Err(refused(format!("{} is a member under other addresses; remove it first", member.node)));
        }
        Some(_) if before.voter_ids().any(|voter| voter == id) => return Ok(()),
        _ => {}
    }
    let added = timeout(wait, async {
        raft.add_learner(id, record, false).await.map_err(failed)?;
        caught_up(raft, id).await?;
        raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::from([id])), false).await.map_err(failed)
    });
    match added.await {
        Ok(added) => added.map(drop),
        Err(_) => Err(Failure::new(
            ErrorCode::Expired,
            format!(
                "{} has not caught up in {wait:?}; it stays a learner, run the same command again",
                member.node
            ),
        )),
    }
}

/// Waits until `id` holds all that was in the log when this began. (openraft's own waiting counts a learner that has
/// nothing as caught up while the log is short, also one that cannot be reached: it would become a voter.)
async fn caught_up(raft: &Raft<TypeConfig, StateMachine>, id: u64) -> Result<(), Failure> {
    let mut metrics = raft.metrics();
    let goal = metrics.borrow_watched().last_log_index;
    loop {
        let matched = {
            let metrics = metrics.borrow_watched();
            let Some(replication) = metrics.replication.as_ref() else {
                return Err(not_leader(metrics.current_leader.map(NodeId)));
            };
            replication.get(&id).and_then(|matched| matched.as_ref().map(|matched| matched.index))
        };
        if matched >= goal {
            return Ok(());
        }
        metrics.changed().await.map_err(|error| Failure::new(ErrorCode::TryElsewhere, error.to_string()))?;
    }
}

/// Removes a member. Unknown already: nothing. The leader itself first hands leadership on, and leaves the removal to
/// its heir.
///
/// # Errors
/// As [`add`]; also when the members that stay and are heard from are no quorum. `NotLeader` with the heir when this
/// node was to be removed.
pub(super) async fn remove(
    raft: &Raft<TypeConfig, StateMachine>,
    own: NodeId,
    node: NodeId,
    wait: Duration,
) -> Result<(), Failure> {
    leads(raft, own)?;
    let before = current(raft);
    if before.get_node(&node.0).is_none() {
        return Ok(());
    }
    let staying: BTreeSet<u64> = before.voter_ids().filter(|voter| *voter != node.0).collect();
    if staying.is_empty() {
        return Err(refused(format!("{node} is the last voter")));
    }
    let quorum = staying.len() / 2 + 1;
    let heard = || {
        let alive = alive(raft, own);
        staying.iter().filter(|voter| alive.contains(voter)).count()
    };
    // A leader that has just been elected, or a busy machine, may not have heard from all that live.
    let enough = async {
        while heard() < quorum {
            sleep(HEARD_WITHIN / 10).await;
        }
    };
    if timeout(HEAR_MAX, enough).await.is_err() {
        let heard = heard();
        return Err(refused(format!(
            "without {node} {} voters stay, {heard} of them are heard from and {quorum} are needed: the cluster would \
             lose its quorum. Bring a member back or add one first",
            staying.len()
        )));
    }
    if node == own {
        let heir = transfer(raft, own, None, wait).await?;
        return Err(not_leader(Some(heir)));
    }
    let change = if before.voter_ids().any(|voter| voter == node.0) {
        ChangeMembers::RemoveVoters(BTreeSet::from([node.0]))
    } else {
        ChangeMembers::RemoveNodes(BTreeSet::from([node.0]))
    };
    match timeout(wait, raft.change_membership(change, false)).await {
        Ok(removed) => removed.map(drop).map_err(failed),
        Err(_) => {
            Err(Failure::new(ErrorCode::UnknownOutcome, "no quorum confirmed the change in time; look again"))
        }
    }
}

/// Only the leader knows who is alive.
fn leads(raft: &Raft<TypeConfig, StateMachine>, own: NodeId) -> Result<(), Failure> {
    match raft.metrics().borrow_watched().current_leader.map(NodeId) {
        Some(leader) if leader == own => Ok(()),
        leader => Err(not_leader(leader)),
    }
}

fn not_leader(leader: Option<NodeId>) -> Failure {
    let text = leader.map_or_else(|| "no leader now".to_owned(), |leader| format!("{leader} leads the shard"));
    let mut failure = Failure::new(ErrorCode::NotLeader, text);
    failure.leader = leader;
    failure
}

fn current(raft: &Raft<TypeConfig, StateMachine>) -> StoredMembership {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    (*metrics.membership_config).clone()
}

/// The voters that this leader heard from lately, with itself.
fn alive(raft: &Raft<TypeConfig, StateMachine>, own: NodeId) -> BTreeSet<u64> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let heard = silence(&metrics).into_iter();
    let alive =
        heard.filter(|(_, silent)| silent.is_some_and(|silent| silent < HEARD_WITHIN)).map(|(node, _)| node);
    alive.chain([own.0]).collect()
}

/// On the leader: for how long each member has not been heard from; `None` if never.
pub(super) fn silence(metrics: &RaftMetrics<TypeConfig>) -> BTreeMap<u64, Option<Duration>> {
    let heard = metrics.heartbeat.iter().flatten();
    heard.map(|(node, when)| (*node, when.as_ref().map(|when| when.elapsed()))).collect()
}

/// The voter that has most of the log, other than `own`: whom leadership goes to.
pub(super) fn heir(metrics: &RaftMetrics<TypeConfig>, own: NodeId) -> Option<NodeId> {
    let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
    let replication = metrics.replication.as_ref()?;
    replication
        .iter()
        .filter(|(node, _)| **node != own.0 && voters.contains(node))
        .max_by_key(|(_, matched)| *matched)
        .map(|(node, _)| NodeId(*node))
}

fn refused(why: String) -> Failure {
    Failure::new(ErrorCode::Membership, why)
}

fn failed(error: RaftError<TypeConfig, ClientWriteError<TypeConfig>>) -> Failure {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            not_leader(forward.leader_id.map(NodeId))
        }
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) | RaftError::Fatal(_) => {
            Failure::new(ErrorCode::UnknownOutcome, format!("{error}; look again"))
        }
        RaftError::APIError(error) => refused(error.to_string()),
    }
}
