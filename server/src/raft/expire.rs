//! Keeps log time going on the leader: a tick per second while keys are to expire and nothing is written, removal of
//! what has expired, in small pieces, and questions to the other members when this one's clock seems to be ahead.
//!
//! A write whose stamp is held back waits for the answers: after an outage log time stands where it stood before, and a
//! time to live counted from there would end as soon as log time catches up.
//!
//! Decides nothing about time: [`log_time`](crate::raft::log_time) does. Removing is applied by the state machine, the
//! same on every replica; here is only said up to where.

use crate::clock;
use crate::peer::raft_link::{RaftLink, StreamKind};
use crate::peer::stream::{read_message, write_message};
use crate::raft::log_time::LogTime;
use crate::raft::types::Change;
use crate::raft::write::WritePath;
use crate::storage::expiry::Expiry;
use crate::storage::fjall_store::FjallStore;
use crate::storage::state_store::{StorageError, View};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::hello::{Member, Topology};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// Log time moves on at least this often while keys are to expire.
pub const TICK: Duration = Duration::from_secs(1);
/// How often it is looked whether there is something to do.
const LOOK: Duration = Duration::from_millis(100);
/// Most keys removed by one entry; the apply thread is free again between two.
const SWEEP_KEYS: usize = 500;
/// Pause between two removals, so that writes of clients go in between.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);
/// Longest wait for one tick or removal.
const CHANGE_MAX: Duration = Duration::from_secs(5);
/// Longest wait for the clock of another member.
const CLOCK_MAX: Duration = Duration::from_secs(1);
/// How long writes wait for members of whom too few answer, each at most [`CLOCK_MAX`]; links may still be made after a
/// start. Afterwards they go on with what log time allows.
const UNANSWERED_MAX: Duration = Duration::from_secs(2);

/// What keeps time on one member.
pub(super) struct Keeper {
    pub(super) own: NodeId,
    pub(super) link: Arc<RaftLink>,
    pub(super) store: Arc<FjallStore>,
    pub(super) writes: WritePath,
    pub(super) topology: watch::Receiver<Topology>,
    pub(super) time: Arc<SharedTime>,
}

/// The log time of this member, shared by who stamps entries and who keeps it going.
pub struct SharedTime {
    time: Mutex<LogTime>,
    /// A stamp was held back, and the others have not been asked since.
    held: watch::Sender<bool>,
    /// What became of the last question.
    asked: Mutex<Asked>,
}

/// What became of a question for the clocks of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// None was put.
    Never,
    /// It was answered then.
    Answered(Moment),
    /// Too few have answered since then.
    Unanswered(Moment),
}

impl Asked {
    /// Whether a stamp that is held back may be waited for.
    fn pays(self, now: Moment) -> bool {
        match self {
            Self::Never => true,
            Self::Answered(at) => now.since(at) >= TICK,
            Self::Unanswered(since) => now.since(since) < UNANSWERED_MAX,
        }
    }
}

impl SharedTime {
    /// After the last entry applied before the start.
    pub fn new(stamp_ms: u64) -> Arc<Self> {
        let time = Mutex::new(LogTime::new(stamp_ms, clock::now()));
        Arc::new(Self { time, held: watch::Sender::new(false), asked: Mutex::new(Asked::Never) })
    }

    /// The stamp of entries that are made now. Waits, at most [`CLOCK_MAX`], while the others are asked whether log time
    /// may follow this node's clock, but not again within [`TICK`] of their answer: a clock that is wrong costs a
    /// question a second.
    pub async fn stamp_ms(&self) -> u64 {
        let now = clock::now();
        let free = self.time.lock().free_stamp(wall_ms(), now);
        if let Some(ms) = free {
            return ms;
        }
        let mut held = self.held.subscribe();
        self.held.send_if_modified(|held| !std::mem::replace(held, true));
        let pays = self.asked.lock().pays(now);
        if pays && timeout(CLOCK_MAX, held.wait_for(|held| !held)).await.is_err() {
            tracing::debug!("nobody said in time whether log time may follow this node's clock");
        }
        self.time.lock().stamp(wall_ms(), clock::now())
    }

    /// A question is over; `answered`: enough members told their clocks. Gives the pause until the next one may be put:
    /// one that was not answered is put again soon, and writes that wait for it wait on.
    fn asked(&self, answered: bool, now: Moment) -> Duration {
        let mut asked = self.asked.lock();
        *asked = match *asked {
            _ if answered => Asked::Answered(now),
            Asked::Unanswered(since) => Asked::Unanswered(since),
            Asked::Never | Asked::Answered(_) => Asked::Unanswered(now),
        };
        if !answered && asked.pays(now) {
            return LOOK;
        }
        self.held.send_replace(false);
        TICK
    }
}

fn wall_ms() -> u64 {
    clock::unix_ns() / 1_000_000
}

impl Keeper {
    /// Works until the group ends.
    pub(super) async fn run(self) {
        tokio::join!(self.ask_when_held(), self.keep());
    }

    /// Asks as soon as a stamp was held back, and at most once a [`TICK`] if the others answer.
    async fn ask_when_held(&self) {
        let mut held = self.time.held.subscribe();
        while held.wait_for(|held| *held).await.is_ok() {
            let answered = self.ask().await;
            sleep(self.time.asked(answered, clock::now())).await;
        }
    }

    async fn keep(&self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut moved = Seen::now(&self.store);
        // What was removed lies before this: entries added later lie behind the log time of then.
        let mut swept: Option<Expiry> = None;
        loop {
            looks.tick().await;
            let now = clock::now();
            moved.look(&self.store, now);
            self.time.time.lock().applied(moved.stamp_ms, now);
            if self.writes.leader() != Some(self.own) {
                swept = None;
                continue;
            }
            match self.due(swept.as_ref(), moved.stamp_ms) {
                Ok(Due::Sweep(bound)) => {
                    if self.change(Some(bound.clone())).await {
                        swept = Some(bound);
                    }
                    looks.reset_after(SWEEP_PAUSE);
                }
                Ok(Due::Later) if now.since(moved.at) >= TICK => drop(self.change(None).await),
                Ok(Due::Later | Due::Never) => {}
                Err(error) => tracing::warn!(%error, "what has expired cannot be read"),
            }
        }
    }

    /// What is to be done at this log time.
    fn due(&self, swept: Option<&Expiry>, stamp_ms: u64) -> Result<Due, StorageError> {
        let view = self.store.current();
        let mut bound = None;
        for expiry in view.expiries(swept, stamp_ms).take(SWEEP_KEYS) {
            bound = Some(expiry?);
        }
        Ok(match bound {
            Some(bound) => Due::Sweep(bound),
            None if view.expiries(swept, u64::MAX).next().transpose()?.is_some() => Due::Later,
            None => Due::Never,
        })
    }

    /// True when it is applied.
    async fn change(&self, sweep_to: Option<Expiry>) -> bool {
        match self.writes.operate(Change::Tick { sweep_to }, CHANGE_MAX).await {
            Ok(_) => true,
            Err(failure) => {
                tracing::debug!(code = %failure.code, message = failure.message, "log time was not moved on");
                false
            }
        }
    }

    /// Asks the other members for their clocks, until log time may follow this one's or all have answered. True if it
    /// may, or if enough answered to say that it may not.
    async fn ask(&self) -> bool {
        let members = self.topology.borrow().members.clone();
        let voters: Vec<&Member> = members.iter().filter(|member| !member.learner).collect();
        let others = voters.iter().filter(|member| member.node != self.own);
        let mut answers: FuturesUnordered<_> = others.map(|member| self.clock_of(member)).collect();
        let mut clocks = vec![wall_ms()];
        let mut further = false;
        let held = loop {
            let held = {
                let (mut time, now) = (self.time.time.lock(), clock::now());
                further |= time.agree(clocks.clone(), voters.len(), now);
                time.holds(wall_ms(), now)
            };
            if !held {
                break false;
            }
            // Those that answered first may be behind: only the others can tell then.
            let Some(answer) = answers.next().await else { break true };
            clocks.extend(answer);
        };
        let enough = clocks.len() > voters.len() / 2;
        if further {
            tracing::info!("log time goes on from the clocks of a majority");
        } else if held && enough {
            tracing::warn!("this node's clock is ahead of those of a majority; log time does not follow it");
        } else if held {
            tracing::debug!(told = clocks.len(), members = voters.len(), "too few members told their clocks");
        }
        !held || enough
    }

    async fn clock_of(&self, member: &Member) -> Option<u64> {
        let asked = timeout(CLOCK_MAX, async {
            let open = self.link.open(member.node, &member.peer_address, StreamKind::Clock, CLOCK_MAX);
            let (mut send, mut recv) = open.await.ok()?;
            write_message(&mut send, &()).await.ok()?;
            send.finish().ok()?;
            read_message(&mut recv).await.ok()?
        });
        asked.await.ok().flatten()
    }
}

enum Due {
    /// Keys up to and with this one have expired.
    Sweep(Expiry),
    /// Some key is to expire.
    Later,
    /// None is.
    Never,
}

/// The newest log time applied here, and since when.
struct Seen {
    stamp_ms: u64,
    at: Moment,
}

impl Seen {
    fn now(store: &FjallStore) -> Self {
        Self { stamp_ms: store.current().stamp_ms(), at: clock::now() }
    }

    fn look(&mut self, store: &FjallStore, now: Moment) {
        let stamp_ms = store.current().stamp_ms();
        if stamp_ms != self.stamp_ms {
            *self = Self { stamp_ms, at: now };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    /// Log time that stands a day behind the wall clock, as after an outage.
    fn a_day_behind() -> Arc<SharedTime> {
        SharedTime::new(wall_ms() - 86_400_000)
    }

    /// Polls once.
    async fn waits(mut stamp: Pin<&mut impl Future<Output = u64>>) -> bool {
        poll_fn(|context| Poll::Ready(stamp.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn a_write_waits_on_when_nobody_answered_and_is_stamped_right_when_a_majority_did() {
        let time = a_day_behind();
        let begun = wall_ms();
        let mut stamped = pin!(time.stamp_ms());
        assert!(waits(stamped.as_mut()).await && *time.held.borrow(), "the others are to be asked");
        assert_eq!(time.asked(false, clock::now()), LOOK, "asked again soon");
        assert!(waits(stamped.as_mut()).await && *time.held.borrow(), "nobody answered");
        let mut later = pin!(time.stamp_ms());
        assert!(waits(later.as_mut()).await, "nor does a later write take the stale stamp");
        assert!(time.time.lock().agree(vec![wall_ms(), wall_ms(), 0], 3, clock::now()));
        assert_eq!(time.asked(true, clock::now()), TICK);
        assert!(stamped.await >= begun && later.await >= begun);
    }

    #[test]
    fn waiting_for_answers_has_an_end_and_pays_again_after_them() {
        let time = a_day_behind();
        let at = |span: Duration| Moment::ZERO + span;
        let pays = |now: Moment| time.asked.lock().pays(now);
        assert!(pays(Moment::ZERO));
        assert_eq!(time.asked(false, Moment::ZERO), LOOK);
        assert!(pays(at(UNANSWERED_MAX / 2)));
        assert_eq!(time.asked(false, at(UNANSWERED_MAX / 2)), LOOK);
        assert_eq!(time.asked(false, at(UNANSWERED_MAX)), TICK, "since the first that was not answered");
        assert!(!pays(at(UNANSWERED_MAX)) && !*time.held.borrow(), "writes go on");
        assert_eq!(time.asked(true, at(UNANSWERED_MAX * 2)), TICK);
        assert!(!pays(at(UNANSWERED_MAX * 2)) && pays(at(UNANSWERED_MAX * 2 + TICK)));
        assert_eq!(time.asked(false, at(UNANSWERED_MAX * 4)), LOOK, "counted anew");
    }
}
