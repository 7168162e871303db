//! The position that a linearizable read must wait for, on any replica (Raft dissertation, section 6.4, read index).
//!
//! Questions share rounds: one is on its way, one gathers. A read joins only a round whose request leaves after the
//! read arrived, so that the answer covers every write acknowledged before it. A follower asks the leader over
//! the peers' link. Waiting until the position is applied is the request path's job.

use crate::peer::raft_link::{RaftLink, StreamKind};
use crate::peer::stream::{read_message, write_message};
use crate::raft::state_machine::StateMachine;
use crate::raft::types::TypeConfig;
use crate::request::barrier::{BarrierReply, ReadBarrier};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{Raft, ReadPolicy};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::response::Failure;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Most reads that wait for a round to begin; one more is refused.
pub const WAITING_MAX: usize = 16 * 1024;
/// A round takes at most this long: two heartbeats and a slow disk.
const ROUND_MAX: Duration = Duration::from_millis(500);

/// The answer of a leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadIndex {
    /// Applied up to here, a read sees every write acknowledged before the question.
    At(Position),
    /// Not the leader (any more); who is, if known.
    NotLeader(Option<NodeId>),
}

/// Asks this node's group; only its leader knows.
pub(super) async fn read_index(raft: &Raft<TypeConfig, StateMachine>) -> ReadIndex {
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

/// The read barrier of a replicated node.
pub struct RaftReadBarrier {
    waiting: mpsc::Sender<BarrierReply>,
}

impl ReadBarrier for RaftReadBarrier {
    fn ask(&self, reply: BarrierReply) -> Result<(), Failure> {
        self.waiting.try_send(reply).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                let mut failure = Failure::new(ErrorCode::Busy, "too many linearizable reads wait for a barrier");
                failure.retry_after_us = 1_000;
                failure
            }
            mpsc::error::TrySendError::Closed(_) => Failure::new(ErrorCode::TryElsewhere, "the group has stopped"),
        })
    }
}

impl RaftReadBarrier {
    /// Starts the rounds; they end with the handle. Must be called within the group's runtime.
    pub(super) fn start(own: NodeId, raft: Raft<TypeConfig, StateMachine>, link: Arc<RaftLink>) -> Self {
        let (waiting, mut inbox) = mpsc::channel(WAITING_MAX);
        tokio::spawn(async move {
            let mut round: Vec<BarrierReply> = Vec::new();
            // All that gathered while the last round was on its way are taken by the next one.
            while inbox.recv_many(&mut round, WAITING_MAX).await > 0 {
                let answer = match timeout(ROUND_MAX, ask(own, &raft, &link)).await {
                    Ok(answer) => answer,
                    Err(_) => {
                        Err(Failure::new(ErrorCode::TryElsewhere, "no answer of the leader to a read barrier"))
                    }
                };
                for reply in round.drain(..) {
                    reply.answer(answer.clone());
                }
            }
        });
        Self { waiting }
    }
}

async fn ask(
    own: NodeId,
    raft: &Raft<TypeConfig, StateMachine>,
    link: &Arc<RaftLink>,
) -> Result<Position, Failure> {
    let lost = |why: String| Failure::new(ErrorCode::TryElsewhere, format!("no read barrier: {why}"));
    let leader = raft.current_leader().await.map(NodeId);
    let answer = match leader {
        None => ReadIndex::NotLeader(None),
        Some(leader) if leader == own => read_index(raft).await,
        Some(leader) => {
            let address = {
                let metrics = raft.metrics();
                let metrics = metrics.borrow_watched();
                metrics.membership_config.get_node(&leader.0).map(|node| node.peer_address.clone())
            };
            let Some(address) = address else { return Err(lost(format!("{leader} has no address"))) };
            let opened = link.open(leader, &address, StreamKind::ReadIndex, ROUND_MAX).await;
            let (mut send, mut recv) = opened.map_err(|error| lost(error.to_string()))?;
            write_message(&mut send, &()).await.map_err(|error| lost(error.to_string()))?;
            let _gone = send.finish();
            let answer = read_message(&mut recv).await.map_err(|error| lost(error.to_string()))?;
            answer.ok_or_else(|| lost(format!("{leader} did not answer")))?
        }
    };
    match answer {
        ReadIndex::At(position) => Ok(position),
        ReadIndex::NotLeader(leader) => {
            let mut failure = lost("the leader is not known or has just changed".to_owned());
            failure.leader = leader;
            failure.retry_after_us = 20_000;
            Err(failure)
        }
    }
}
