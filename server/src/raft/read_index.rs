//! What openraft knows that a linearizable read needs: the ballot that a node votes for, and a leader's read index, confirmed
//! by one follower where two are a quorum ([`confirm`](crate::raft::confirm)), else by heartbeats.
//!
//! For any configuration of openraft with our ballots, so that the simulation of replication runs what ships. It sends
//! nothing itself: whom to ask, and how, is the caller's.

use crate::raft::confirm::{Ballot, Standing, companion, confirmed};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::impls::Vote;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::RaftStateMachine;
use openraft::{Raft, RaftState, RaftTypeConfig, ReadPolicy, ServerState};
use serde::{Deserialize, Serialize};
use tiedkv_protocol::ids::{NodeId, Position};

/// Configurations of openraft whose votes are terms and candidates.
pub trait Balloted:
    RaftTypeConfig<NodeId = u64, Term = u64, LeaderId = LeaderId<u64, u64>, Vote = Vote<LeaderId<u64, u64>>>
{
}

impl<C> Balloted for C where
    C: RaftTypeConfig<NodeId = u64, Term = u64, LeaderId = LeaderId<u64, u64>, Vote = Vote<LeaderId<u64, u64>>>
{
}

/// The answer of a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadIndex {
    /// Applied up to here, a read sees every write acknowledged before the question.
    At(Position),
    /// Not the leader (any more); who is, if known.
    NotLeader(Option<NodeId>),
}

fn ballot(by: &LeaderId<u64, u64>) -> Ballot {
    Ballot { term: by.term, candidate: by.node_id }
}

fn ballot_of(vote: &Vote<LeaderId<u64, u64>>) -> Option<Ballot> {
    vote.committed.then(|| ballot(&vote.leader_id))
}

fn confirmed_by<C: Balloted>(state: &RaftState<C>, other: u64, follows: Ballot) -> Option<Position> {
    let leads = ballot_of(state.vote_ref()).filter(|_| state.server_state == ServerState::Leader)?;
    let committed = state.local_committed().map(|id| (ballot(&id.leader_id), Position(id.index)));
    let voters = state.membership_state.effective().get_joint_config();
    confirmed(&Standing { leads, committed, voters }, other, follows)
}

/// The ballot that this node votes for, if a quorum voted for it; looked at now.
pub async fn follows<C: Balloted, SM: RaftStateMachine<C>>(raft: &Raft<C, SM>) -> Option<Ballot> {
    raft.with_raft_state(|state| ballot_of(state.vote_ref())).await.ok().flatten()
}

/// A node that is a quorum together with this one; another one for another `turn`, if there are several.
pub fn companion_of<C: Balloted, SM: RaftStateMachine<C>>(
    raft: &Raft<C, SM>,
    own: NodeId,
    turn: usize,
) -> Option<NodeId> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    companion(metrics.membership_config.membership().get_joint_config(), own.0, turn).map(NodeId)
}

/// The read index of this node, if it leads and `other` votes for it, looked at after all reads came that the answer is
/// for, and both are a quorum.
pub async fn confirmed_with<C: Balloted, SM: RaftStateMachine<C>>(
    raft: &Raft<C, SM>,
    other: NodeId,
    follows: Ballot,
) -> Option<Position> {
    raft.with_raft_state(move |state| confirmed_by(state, other.0, follows)).await.ok().flatten()
}

/// Asks this node's group; only its leader knows. `asked`: by whom, and whom that one follows.
pub async fn read_index<C: Balloted, SM: RaftStateMachine<C>>(
    raft: &Raft<C, SM>,
    asked: Option<(NodeId, Ballot)>,
) -> ReadIndex {
    if let Some((asker, follows)) = asked
        && let Some(position) = confirmed_with(raft, asker, follows).await
    {
        return ReadIndex::At(position);
    }
    match raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
        Ok(linearizer) => ReadIndex::At(Position(linearizer.read_log_id().index())),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
            ReadIndex::NotLeader(forward.leader_id.map(NodeId))
        }
        Err(error) => {
            tracing::debug!(%error, "no read index");
            ReadIndex::NotLeader(None)
        }
    }
}
