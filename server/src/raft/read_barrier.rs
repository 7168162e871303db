//! The position that a linearizable read must wait for, on any replica (Raft dissertation, section 6.4, read index).
//!
//! Questions share rounds: one is on its way, one gathers. A read joins only a round whose request leaves after the
//! read arrived, so that the answer covers every write acknowledged before it. A follower asks the leader over
//! the peers' link. Waiting until the position is applied is the request path's job.

use crate::clock;
use crate::peer::raft_link::{RaftLink, StreamKind};
use crate::peer::stream::{read_message, write_message};
use crate::raft::contact::Contact;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::TypeConfig;
use crate::request::barrier::{BarrierReply, ReadBarrier};
use crate::request::freshness::Rounds;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::{Raft, ReadPolicy};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::moment::Moment;
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
    rounds: Arc<Mutex<Rounds>>,
    contact: Arc<Contact>,
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

    fn fresh(&self, applied: Position) -> Option<Moment> {
        self.rounds.lock().covered(applied)
    }

    fn leads(&self) -> bool {
        self.contact.leads()
    }

    fn cut_off(&self) -> Option<&'static str> {
        self.contact.lost()
    }
}

impl RaftReadBarrier {
    /// Starts the rounds; they end with the handle. Must be called within the group's runtime.
    pub(super) fn start(
        own: NodeId,
        raft: Raft<TypeConfig, StateMachine>,
        link: Arc<RaftLink>,
        contact: Arc<Contact>,
    ) -> Self {
        let (waiting, inbox) = mpsc::channel(WAITING_MAX);
        let rounds = Arc::new(Mutex::new(Rounds::default()));
        let asked = async move || match timeout(ROUND_MAX, ask(own, &raft, &link)).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::new(ErrorCode::TryElsewhere, "no answer of the leader to a read barrier")),
        };
        tokio::spawn(serve(inbox, rounds.clone(), clock::now, asked));
        Self { waiting, rounds, contact }
    }
}

/// One round after the other: all that gathered while the last one was on its way are taken by the next one, whose
/// question leaves after they came. `ask` ends in bounded time. Ends with the senders of `inbox`; the simulation of
/// replication runs it too, so it knows no runtime and no clock.
pub async fn serve(
    mut inbox: mpsc::Receiver<BarrierReply>,
    rounds: Arc<Mutex<Rounds>>,
    now: impl Fn() -> Moment,
    ask: impl AsyncFn() -> Result<Position, Failure>,
) {
    let mut round: Vec<BarrierReply> = Vec::new();
    while inbox.recv_many(&mut round, WAITING_MAX).await > 0 {
        let sent = now();
        let answer = ask().await;
        if let Ok(position) = &answer {
            rounds.lock().answered(sent, *position);
        }
        for reply in round.drain(..) {
            reply.answer(answer.clone());
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::rc::Rc;
    use tokio::sync::oneshot;

    /// Questions that left, each to be answered by the test.
    type Left = Rc<RefCell<VecDeque<oneshot::Sender<Position>>>>;

    fn question() -> (BarrierReply, Arc<crate::request::barrier::BarrierAnswer>) {
        BarrierReply::new(|| ())
    }

    /// Lets everything run that can.
    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    /// A read that comes while a question is out must not be answered by it: a write may have been acknowledged
    /// between that question and the read.
    #[tokio::test]
    async fn a_read_joins_only_a_question_that_leaves_after_it() {
        let local = tokio::task::LocalSet::new();
        let test = async {
            let left = Left::default();
            let leaving = left.clone();
            let (waiting, inbox) = mpsc::channel(8);
            let rounds = Arc::new(Mutex::new(Rounds::default()));
            tokio::task::spawn_local(serve(inbox, rounds.clone(), clock::now, async move || {
                let (sender, receiver) = oneshot::channel();
                leaving.borrow_mut().push_back(sender);
                Ok(receiver.await.unwrap())
            }));
            let (first, first_answer) = question();
            waiting.send(first).await.unwrap();
            settle().await;
            // The question is at the leader; now a write is acknowledged at position 6, and then two reads come.
            let (second, second_answer) = question();
            let (third, third_answer) = question();
            waiting.send(second).await.unwrap();
            waiting.send(third).await.unwrap();
            settle().await;
            assert_eq!(left.borrow().len(), 1, "one question is out at a time");
            let held = left.borrow_mut().pop_front().unwrap();
            held.send(Position(5)).unwrap();
            settle().await;
            assert_eq!(first_answer.answer(), Some(&Ok(Position(5))));
            assert_eq!(second_answer.answer(), None, "the old question says nothing of the write");
            let next = left.borrow_mut().pop_front().unwrap();
            next.send(Position(6)).unwrap();
            settle().await;
            assert_eq!(second_answer.answer(), Some(&Ok(Position(6))));
            assert_eq!(third_answer.answer(), Some(&Ok(Position(6))), "one question for both");
            assert!(left.borrow().is_empty());
            let early = rounds.lock().covered(Position(5));
            let late = rounds.lock().covered(Position(6));
            assert!(early.is_some() && early < late, "{early:?} {late:?}");
        };
        local.run_until(test).await;
    }
}
