//! The position that a linearizable read must wait for, on any replica (Raft dissertation, section 6.4, read index).
//!
//! Questions share rounds: one is on its way, one gathers. A read joins only a round whose request leaves after the
//! read arrived, so that the answer covers every write acknowledged before it. A follower asks the leader over the
//! peers' link, and a leader of two or three asks a follower whom it votes for, which costs less than heartbeats to all.
//! Waiting until the position is applied is the request path's job.

use crate::clock;
use crate::peer::raft_link::{RaftLink, StreamKind};
use crate::peer::stream::{read_message, write_message};
use crate::raft::confirm::Ballot;
use crate::raft::contact::Contact;
use crate::raft::read_index::{ReadIndex, companion_of, confirmed_with, follows, read_index};
use crate::raft::state_machine::StateMachine;
use crate::raft::types::TypeConfig;
use crate::request::barrier::{BarrierReply, ReadBarrier};
use crate::request::freshness::Rounds;
use futures_util::future::{Either, select};
use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use quinn::{RecvStream, SendStream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{NodeId, Position};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::Failure;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Most reads that wait for a round to begin; one more is refused.
pub const WAITING_MAX: usize = 16 * 1024;
/// A round takes at most this long: two heartbeats and a slow disk.
const ROUND_MAX: Duration = Duration::from_millis(500);
/// Rounds of fewer reads wait for nobody.
const COMPANY_MIN: usize = 4;
/// A question waits for company no longer than this.
const GATHER_MAX: Duration = Duration::from_millis(1);
/// A stream is used again within this time: less than the other side waits for the next question.
const KEPT_MAX: Duration = Duration::from_secs(1);
/// A follower that does not say within this time whom it votes for is not waited for: heartbeats go to all.
const BALLOT_MAX: Duration = Duration::from_millis(20);
/// After that, heartbeats only for this long.
const SILENT_PAUSE: Duration = Duration::from_secs(1);

/// A question to the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Question {
    /// The ballot that the one who asks votes for, looked at after all reads came that the answer is for.
    pub follows: Option<Ballot>,
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
        let asker = Asker { own, raft, link, kept: Mutex::new(None), companion: Mutex::default() };
        let asked = async move || match timeout(ROUND_MAX, asker.ask()).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::new(ErrorCode::TryElsewhere, "no answer of the leader to a read barrier")),
        };
        tokio::spawn(serve(inbox, rounds.clone(), clock::now, async |time| sleep(time).await, asked));
        Self { waiting, rounds, contact }
    }
}

/// One round after the other: all that gathered while the last one was on its way are taken by the next one, whose
/// question leaves after they came. `ask` ends in bounded time. Ends with the senders of `inbox`; the simulation of
/// replication runs it too, so it knows no runtime and no clock: `pause` ends after a time.
///
/// A question costs three nodes several times what a read costs one. So it does not leave for a few of those who were
/// answered by the last one and ask again: it waits for as many, at most as long as the last one took. Few callers
/// never wait.
pub async fn serve(
    mut inbox: mpsc::Receiver<BarrierReply>,
    rounds: Arc<Mutex<Rounds>>,
    now: impl Fn() -> Moment,
    pause: impl AsyncFn(Duration),
    ask: impl AsyncFn() -> Result<Position, Failure>,
) {
    let mut round: Vec<BarrierReply> = Vec::new();
    let (mut company, mut took) = (0, Duration::ZERO);
    while inbox.recv_many(&mut round, WAITING_MAX).await > 0 {
        let mut over = pin!(pause(took.min(GATHER_MAX)));
        while company >= COMPANY_MIN && round.len() < company {
            let more = pin!(inbox.recv_many(&mut round, WAITING_MAX));
            match select(over.as_mut(), more).await {
                Either::Right((1.., _)) => {}
                Either::Left(_) | Either::Right((0, _)) => break,
            }
        }
        let sent = now();
        let answer = ask().await;
        (company, took) = (round.len(), now().since(sent));
        if let Ok(position) = &answer {
            rounds.lock().answered(sent, *position);
        }
        for reply in round.drain(..) {
            reply.answer(answer.clone());
        }
    }
}

/// Asks whoever leads.
struct Asker {
    own: NodeId,
    raft: Raft<TypeConfig, StateMachine>,
    link: Arc<RaftLink>,
    /// Opening a stream for each question would cost both sides more than the question.
    kept: Mutex<Option<Kept>>,
    /// Whose turn it is to be asked by a leader, and not before when.
    companion: Mutex<(usize, Option<Moment>)>,
}

struct Kept {
    to: NodeId,
    kind: StreamKind,
    used: Moment,
    streams: (SendStream, RecvStream),
}

fn lost(why: impl Display) -> Failure {
    Failure::new(ErrorCode::TryElsewhere, format!("no read barrier: {why}"))
}

impl Asker {
    async fn ask(&self) -> Result<Position, Failure> {
        let answer = match self.raft.current_leader().await.map(NodeId) {
            None => ReadIndex::NotLeader(None),
            Some(leader) if leader == self.own => match self.ask_companion().await {
                Some(position) => ReadIndex::At(position),
                None => read_index(&self.raft, None).await,
            },
            Some(leader) => {
                let question = Question { follows: follows(&self.raft).await };
                self.put(leader, StreamKind::ReadIndex, &question).await?
            }
        };
        match answer {
            ReadIndex::At(position) => Ok(position),
            ReadIndex::NotLeader(leader) => {
                let mut failure = lost("the leader is not known or has just changed");
                failure.leader = leader;
                failure.retry_after_us = 20_000;
                Err(failure)
            }
        }
    }

    /// A leader asks one other node whom it votes for. `None`: it cannot be confirmed so.
    async fn ask_companion(&self) -> Option<Position> {
        let (turn, not_before) = *self.companion.lock();
        if not_before.is_some_and(|pause| clock::now() < pause) {
            return None;
        }
        let companion = companion_of(&self.raft, self.own, turn)?;
        let asked = timeout(BALLOT_MAX, self.put::<_, Option<Ballot>>(companion, StreamKind::Ballot, &())).await;
        let Ok(Ok(votes_for)) = asked else {
            // The next one in its turn, and not at once: it may be the last that is there.
            *self.companion.lock() = (turn.wrapping_add(1), Some(clock::now() + SILENT_PAUSE));
            return None;
        };
        confirmed_with(&self.raft, companion, votes_for?).await
    }

    /// Puts one question to a node and waits for the answer.
    async fn put<Q, A>(&self, to: NodeId, kind: StreamKind, question: &Q) -> Result<A, Failure>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned,
    {
        // Taken out while it is used: the answer to an older question must never pass for that to a later one.
        let kept = self.kept.lock().take();
        let fit = |kept: &Kept| (kept.to, kept.kind) == (to, kind) && clock::now().since(kept.used) < KEPT_MAX;
        if let Some(kept) = kept.filter(fit)
            && let Ok(answer) = self.exchange(to, kind, kept.streams, question).await
        {
            return Ok(answer);
        }
        let address = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.membership_config.get_node(&to.0).map(|node| node.peer_address.clone())
        };
        let Some(address) = address else { return Err(lost(format!("{to} has no address"))) };
        let opened = self.link.open(to, &address, kind, ROUND_MAX).await.map_err(lost)?;
        self.exchange(to, kind, opened, question).await
    }

    async fn exchange<Q, A>(
        &self,
        to: NodeId,
        kind: StreamKind,
        (mut send, mut recv): (SendStream, RecvStream),
        question: &Q,
    ) -> Result<A, Failure>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned,
    {
        write_message(&mut send, question).await.map_err(lost)?;
        let answer = read_message(&mut recv).await.map_err(lost)?;
        let answer = answer.ok_or_else(|| lost(format!("{to} did not answer")))?;
        *self.kept.lock() = Some(Kept { to, kind, used: clock::now(), streams: (send, recv) });
        Ok(answer)
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
            let pause = async |time| sleep(time).await;
            tokio::task::spawn_local(serve(inbox, rounds.clone(), clock::now, pause, async move || {
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

    /// Nobody knows what was acknowledged while the question was on its way: a state is as old as the question, not as
    /// its answer.
    #[tokio::test]
    async fn the_age_of_a_state_is_counted_from_when_the_question_was_sent() {
        let local = tokio::task::LocalSet::new();
        let test = async {
            let time = Rc::new(std::cell::Cell::new(10));
            let (clock, waits) = (time.clone(), time.clone());
            let (waiting, inbox) = mpsc::channel(8);
            let rounds = Arc::new(Mutex::new(Rounds::default()));
            let served = serve(
                inbox,
                rounds.clone(),
                move || Moment(clock.get()),
                async |_| (),
                async move || {
                    waits.set(50);
                    Ok(Position(5))
                },
            );
            tokio::task::spawn_local(served);
            let (asked, answer) = question();
            waiting.send(asked).await.unwrap();
            settle().await;
            assert_eq!((answer.answer(), time.get()), (Some(&Ok(Position(5))), 50));
            assert_eq!(rounds.lock().covered(Position(5)), Some(Moment(10)));
        };
        local.run_until(test).await;
    }
}
