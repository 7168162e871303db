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
    /// When they were asked last.
    asked: Mutex<Option<Moment>>,
}

impl SharedTime {
    /// After the last entry applied before the start.
    pub fn new(stamp_ms: u64) -> Arc<Self> {
        let time = Mutex::new(LogTime::new(stamp_ms, clock::now()));
        Arc::new(Self { time, held: watch::Sender::new(false), asked: Mutex::new(None) })
    }

    /// The stamp of entries that are made now. Waits, at most [`CLOCK_MAX`], while the others are asked whether log time
    /// may follow this node's clock, but not again within [`TICK`]: a clock that is wrong costs a question a second.
    pub async fn stamp_ms(&self) -> u64 {
        let now = clock::now();
        if self.time.lock().holds(wall_ms(), now) {
            let mut held = self.held.subscribe();
            self.held.send_if_modified(|held| !std::mem::replace(held, true));
            let lately = self.asked.lock().is_some_and(|asked| now.since(asked) < TICK);
            if !lately && timeout(CLOCK_MAX, held.wait_for(|held| !held)).await.is_err() {
                tracing::debug!("nobody said in time whether log time may follow this node's clock");
            }
        }
        self.time.lock().stamp(wall_ms(), clock::now()).ms
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

    /// Asks as soon as a stamp was held back, and at most once a [`TICK`].
    async fn ask_when_held(&self) {
        let mut held = self.time.held.subscribe();
        while held.wait_for(|held| *held).await.is_ok() {
            self.ask().await;
            *self.time.asked.lock() = Some(clock::now());
            self.time.held.send_replace(false);
            sleep(TICK).await;
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

    /// Asks the other members for their clocks, until log time may follow this one's or all have answered.
    async fn ask(&self) {
        let members = self.topology.borrow().members.clone();
        let voters: Vec<&Member> = members.iter().filter(|member| !member.learner).collect();
        let others = voters.iter().filter(|member| member.node != self.own);
        let mut answers: FuturesUnordered<_> = others.map(|member| self.clock_of(member)).collect();
        let mut clocks = vec![wall_ms()];
        let mut further = false;
        loop {
            let held = {
                let (mut time, now) = (self.time.time.lock(), clock::now());
                further |= time.agree(clocks.clone(), voters.len(), now);
                time.holds(wall_ms(), now)
            };
            if !held {
                break;
            }
            // Those that answered first may be behind: only the others can tell then.
            let Some(answer) = answers.next().await else { break };
            clocks.extend(answer);
        }
        if further {
            tracing::info!("log time goes on from the clocks of a majority");
        } else {
            tracing::warn!("this node's clock is ahead of those of a majority; log time does not follow it");
        }
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
