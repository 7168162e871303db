//! One lane with its lock: the queue, the copies set aside, the disturbance, and who of its workers is idle.
//!
//! Thin: order and bounds are `lane`'s and `set_aside`'s. Lock order: registry stripe, then lane. Wake-ups happen
//! after the lock is let go.

use crate::request::brisk::{Brisk, LOOK_EVERY, Wake};
use crate::request::held::{HeldCopy, Work};
use crate::request::lane::{Lane, Pushed, Waiting};
use crate::request::set_aside::{Inserted, Need, SetAside};
use crate::storage::disturbance::{LaneDisturbance, Pace};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::time::Duration;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::Class;

/// One lane of a node.
pub struct LaneRoom {
    lane: Mutex<LaneState>,
    depth: AtomicU32,
    aside: AtomicU32,
    busy: AtomicU32,
    /// The keeper looks whether its workers go on.
    watched: AtomicBool,
}

struct LaneState {
    queue: Lane<Work>,
    aside: SetAside<Work>,
    disturbance: LaneDisturbance,
    /// Workers that are parked for work; the last one parked is woken first.
    idle: SmallVec<[Idle; 8]>,
    workers: usize,
    /// Workers that serve something that is no get, and so are not to be waited for.
    long: SmallVec<[usize; 8]>,
    /// Those of them at a page of a scan that gives way to a higher class, and its class.
    pages: SmallVec<[(usize, Class); 8]>,
    brisk: Brisk,
    barriers_asked: u64,
    barriers_open: BTreeSet<u64>,
    jobs_dropped: u64,
}

/// A parked worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle {
    /// Its index in the node.
    worker: usize,
    /// It wakes by itself when the stall that holds the queue back is over: nothing needs to wake it.
    until_stall_ends: bool,
}

/// Copies that were pushed out by what joined the lane: to be answered `Busy` once no lock is held.
pub type Shed = SmallVec<[Arc<HeldCopy>; 1]>;

/// What became of a copy that wants to queue.
pub enum Joined {
    /// It waits; wake whom it names, and answer what was shed.
    Queued {
        /// Who is to look at it.
        wake: Called,
        /// Who was pushed out.
        shed: Shed,
    },
    /// The lane is full.
    Full,
}

/// Who is to be woken once no lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Nobody.
    Nobody,
    /// This worker.
    Worker(usize),
    /// The keeper: it looks after the lane from now on.
    Keeper,
}

/// What a worker finds.
pub enum Next {
    /// Work, how its device runs, and another worker to wake first.
    Work(Waiting<Work>, Pace, Called),
    /// Nothing until then (or until woken); `None`: until woken.
    Park(Option<Moment>),
    /// Copies to answer `Busy` first; then look again.
    Shed(Shed),
}

/// What the keeper takes out of the copies set aside.
#[derive(Default)]
pub struct Due {
    /// Can be served now: to be queued again.
    pub servable: Vec<Waiting<Work>>,
    /// Were set aside as long as they may be.
    pub expired: Vec<Waiting<Work>>,
    /// When the next one is due.
    pub next: Option<Moment>,
}

impl LaneRoom {
    /// A quiet, empty lane of so many workers.
    pub fn new(workers: usize, queue_max: usize, aside_max: usize, applied: Position) -> Self {
        Self {
            lane: Mutex::new(LaneState {
                queue: Lane::new(queue_max),
                aside: SetAside::new(aside_max, applied),
                disturbance: LaneDisturbance::quiet(),
                idle: SmallVec::new(),
                workers,
                long: SmallVec::new(),
                pages: SmallVec::new(),
                brisk: Brisk::default(),
                barriers_asked: 0,
                barriers_open: BTreeSet::new(),
                jobs_dropped: 0,
            }),
            depth: AtomicU32::new(0),
            aside: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            watched: AtomicBool::new(false),
        }
    }

    /// Copies and jobs that wait; a relaxed load.
    pub fn depth(&self) -> u32 {
        self.depth.load(Relaxed)
    }

    /// Copies set aside.
    pub fn aside_count(&self) -> u32 {
        self.aside.load(Relaxed)
    }

    /// Whether any copy is set aside; for whoever has just published a position.
    pub fn any_aside(&self) -> bool {
        fence(SeqCst);
        self.aside.load(Relaxed) > 0
    }

    /// Workers that serve something now.
    pub fn busy(&self) -> u32 {
        self.busy.load(Relaxed)
    }

    /// A worker begins (true) or ends (false) to serve.
    pub fn set_busy(&self, busy: bool) {
        if busy {
            self.busy.fetch_add(1, Relaxed)
        } else {
            self.busy.fetch_sub(1, Relaxed)
        };
    }

    /// From now on the lane is disturbed so. Returns whom to wake.
    pub fn disturb(&self, disturbance: LaneDisturbance) -> SmallVec<[usize; 8]> {
        let mut lane = self.lane.lock();
        lane.disturbance = disturbance;
        lane.take_idle()
    }

    /// A copy joins the end of its class. Call with its stripe locked. `brisk`: what a get takes, where that is less
    /// than a wake-up.
    pub fn join(&self, copy: &Arc<HeldCopy>, now: Moment, brisk: Option<Duration>) -> Joined {
        let mut lane = self.lane.lock();
        let mut shed = lane.admit_jobs(now);
        let extra = copy.request.kind.is_extra();
        let pushed = lane.queue.push(Work::Copy(Arc::clone(copy)), copy.request.class, extra, Work::is_withdrawn);
        match pushed {
            Pushed::Refused(_) => {
                self.note(lane);
                Joined::Full
            }
            Pushed::Queued => self.joined(lane, shed, brisk, copy.request.class),
            Pushed::QueuedInsteadOf(work) => {
                shed.extend(copy_of(work));
                self.joined(lane, shed, brisk, copy.request.class)
            }
        }
    }

    /// The next chunk of a running copy queues. Call with its stripe locked. Returns whom to wake.
    pub fn join_again(&self, copy: Arc<HeldCopy>) -> Called {
        let mut lane = self.lane.lock();
        let class = copy.request.class;
        lane.queue.push_again(Work::Copy(copy), class);
        self.wake_after(lane, None, class)
    }

    /// A copy that was set aside goes back to its place. Call with the stripe locked; `brisk` as for
    /// [`join`](Self::join). Returns whom to wake.
    pub fn put_back(&self, waiting: Waiting<Work>, brisk: Option<Duration>) -> Called {
        let mut lane = self.lane.lock();
        let class = waiting.class;
        lane.queue.put_back(waiting);
        self.wake_after(lane, brisk, class)
    }

    /// A copy was withdrawn while it was queued. Call with its stripe locked.
    pub fn withdrawn(&self) {
        let mut lane = self.lane.lock();
        lane.queue.withdrawn();
        self.note(lane);
    }

    /// A popped or shed copy turned out to be withdrawn.
    pub fn dropped(&self) {
        let mut lane = self.lane.lock();
        lane.queue.dropped();
        self.note(lane);
    }

    /// What a worker does next. When it is to park it is on the list of idle workers already.
    pub fn next(&self, worker: usize, now: Moment) -> Next {
        let mut lane = self.lane.lock();
        lane.idle.retain(|idle| idle.worker != worker);
        lane.long.retain(|busy| *busy != worker);
        lane.pages.retain(|(busy, _)| *busy != worker);
        let shed = lane.admit_jobs(now);
        if !shed.is_empty() {
            return Next::Shed(shed);
        }
        let pace = lane.disturbance.pace;
        let stalled = pace.start_stalled_until(now);
        if stalled.is_none()
            && let Some(waiting) = lane.queue.pop(Work::is_withdrawn)
        {
            let wake = lane.popped(&waiting.item, worker);
            self.note(lane);
            return Next::Work(waiting, pace, wake);
        }
        let stall_end = stalled.filter(|_| !lane.queue.is_empty());
        let wake_at = stall_end.into_iter().chain(lane.disturbance.next_job()).min();
        lane.idle.push(Idle { worker, until_stall_ends: stall_end.is_some() });
        self.note(lane);
        Next::Park(wake_at)
    }

    /// Sets a copy aside. Call with its stripe locked.
    pub fn set_aside(
        &self,
        waiting: Waiting<Work>,
        need: Need,
        until: Moment,
        applied: Position,
    ) -> Inserted<Work> {
        let mut lane = self.lane.lock();
        let met = match need {
            Need::Position(position) => position <= applied,
            Need::Barrier(number) => !lane.barriers_open.contains(&number),
        };
        if met {
            return Inserted::Servable(waiting);
        }
        let inserted = lane.aside.insert(waiting, need, until, Work::is_withdrawn);
        self.note(lane);
        // Pairs with the fence of `any_aside`: either the publisher sees the count, or the keeper, which is called
        // after this, sees what was published.
        fence(SeqCst);
        inserted
    }

    /// A new copy waits for its barrier aside at once: no worker is woken to find that it cannot be served yet. False
    /// where it is to join the queue: it can be served, or there is no room. Call with its stripe locked.
    pub fn join_aside(&self, copy: &Arc<HeldCopy>, barrier: u64, until: Moment) -> bool {
        let mut lane = self.lane.lock();
        if !lane.barriers_open.contains(&barrier) {
            return false;
        }
        let Some(ticket) = lane.queue.reserve() else { return false };
        let (class, extra) = (copy.request.class, copy.request.kind.is_extra());
        let waiting = Waiting { item: Work::Copy(Arc::clone(copy)), class, extra, ticket };
        let inserted = lane.aside.insert(waiting, Need::Barrier(barrier), until, Work::is_withdrawn);
        self.note(lane);
        // As in `set_aside`.
        fence(SeqCst);
        matches!(inserted, Inserted::Waits)
    }

    /// Takes what is due among the copies set aside.
    pub fn due(&self, applied: Position, now: Moment) -> Due {
        let mut due = Due::default();
        let mut lane = self.lane.lock();
        due.servable.extend(std::iter::from_fn(|| lane.aside.applied(applied)));
        due.expired.extend(std::iter::from_fn(|| lane.aside.expired(now)));
        due.next = lane.aside.next_expiry();
        self.note(lane);
        due
    }

    /// Numbers a question to the read barrier.
    pub fn barrier_asked(&self) -> u64 {
        let mut lane = self.lane.lock();
        lane.barriers_asked += 1;
        let number = lane.barriers_asked;
        lane.barriers_open.insert(number);
        number
    }

    /// A question is answered: takes the copies that waited for it.
    pub fn barrier_answered(&self, number: u64) -> SmallVec<[Waiting<Work>; 1]> {
        let mut lane = self.lane.lock();
        lane.barriers_open.remove(&number);
        let mut servable = SmallVec::new();
        if let Some(answered) = lane.barriers_answered() {
            servable.extend(std::iter::from_fn(|| lane.aside.barrier_answered(answered)));
        }
        self.note(lane);
        servable
    }

    /// Empties queue and copies set aside: the node shuts down. Jobs vanish.
    pub fn drain(&self) -> (Vec<Arc<HeldCopy>>, SmallVec<[usize; 8]>) {
        let mut lane = self.lane.lock();
        lane.disturbance = LaneDisturbance::quiet();
        let queued = lane.queue.drain();
        let aside = lane.aside.drain().into_iter().map(|waiting| waiting.item);
        let copies = queued.into_iter().chain(aside).filter_map(copy_of).collect();
        let idle = lane.take_idle();
        self.note(lane);
        (copies, idle)
    }

    /// Jobs that found the lane full so far.
    pub fn jobs_dropped(&self) -> u64 {
        self.lane.lock().jobs_dropped
    }

    /// Looks whether a lane that was left to the workers awake goes on. Whom to wake, and when to look again.
    pub fn look(&self, now: Moment) -> (Called, Option<Moment>) {
        if !self.watched.load(Relaxed) {
            return (Called::Nobody, None);
        }
        let mut lane = self.lane.lock();
        let waiting = lane.queue.live();
        let wake = if lane.brisk.look(waiting) { lane.whom_to_wake() } else { Called::Nobody };
        self.watched.store(lane.brisk.watched(), Relaxed);
        (wake, lane.brisk.watched().then(|| now + LOOK_EVERY))
    }

    /// Whether a worker is at a page and nobody of a higher class has come since it began.
    pub fn keeps_page(&self, worker: usize) -> bool {
        self.lane.lock().pages.iter().any(|(busy, _)| *busy == worker)
    }

    fn joined(&self, lane: MutexGuard<'_, LaneState>, shed: Shed, brisk: Option<Duration>, class: Class) -> Joined {
        Joined::Queued { wake: self.wake_after(lane, brisk, class), shed }
    }

    fn joined_brisk(&self, lane: &mut LaneState, service: Duration) -> Called {
        let awake = lane.workers.saturating_sub(lane.idle.len() + lane.long.len());
        match lane.brisk.joined(lane.queue.live(), awake, service) {
            Wake::Worker => lane.whom_to_wake(),
            Wake::Nobody => Called::Nobody,
            Wake::Keeper => {
                self.watched.store(true, Relaxed);
                Called::Keeper
            }
        }
    }

    fn wake_after(&self, mut lane: MutexGuard<'_, LaneState>, brisk: Option<Duration>, class: Class) -> Called {
        let wake = match brisk {
            None => lane.whom_to_wake_for(class),
            Some(service) => self.joined_brisk(&mut lane, service),
        };
        self.note(lane);
        wake
    }

    fn note(&self, lane: MutexGuard<'_, LaneState>) {
        self.depth.store(lane.queue.live() as u32, Relaxed);
        self.aside.store(lane.aside.len() as u32, Relaxed);
    }
}

impl LaneState {
    /// The worker that is to look at what has just joined the queue. One that a stall holds back looks at the end of
    /// the stall anyway; to wake it again would leave the others asleep with work in the queue.
    fn whom_to_wake(&mut self) -> Called {
        let at = self.idle.iter().rposition(|idle| !idle.until_stall_ends);
        at.map_or(Called::Nobody, |at| Called::Worker(self.idle.remove(at).worker))
    }

    /// The same; with no worker idle, one whose page gives way to this class.
    fn whom_to_wake_for(&mut self, class: Class) -> Called {
        match self.whom_to_wake() {
            Called::Nobody => {
                let at = self.pages.iter().position(|(_, page)| class < *page);
                at.map_or(Called::Nobody, |at| Called::Worker(self.pages.remove(at).0))
            }
            called => called,
        }
    }

    /// A worker took this. What is no get may take long: whoever was left to this worker gets another.
    fn popped(&mut self, work: &Work, worker: usize) -> Called {
        self.brisk.popped();
        if work.is_get() {
            return Called::Nobody;
        }
        self.long.push(worker);
        // A page that was taken in spite of others, because its turn had come, runs its chunk to the end.
        if let Some(class) = work.class_of_page().filter(|class| !self.queue.any_before(*class)) {
            self.pages.push((worker, class));
        }
        let alone = self.idle.len() + self.long.len() >= self.workers;
        if alone && !self.queue.is_empty() { self.whom_to_wake() } else { Called::Nobody }
    }

    fn take_idle(&mut self) -> SmallVec<[usize; 8]> {
        std::mem::take(&mut self.idle).into_iter().map(|idle| idle.worker).collect()
    }

    /// Background jobs that arrived by now join the queue, before anything else joins or leaves it: so the order of
    /// the queue is the order of arrival without a thread that makes jobs.
    fn admit_jobs(&mut self, now: Moment) -> Shed {
        let mut shed = Shed::new();
        while let Some(job) = self.disturbance.job_due(now) {
            match self.queue.push(Work::Job(job), job.class, false, Work::is_withdrawn) {
                Pushed::Queued => {}
                Pushed::QueuedInsteadOf(work) => match work {
                    Work::Copy(copy) => shed.push(copy),
                    Work::Job(_) => self.jobs_dropped += 1,
                },
                Pushed::Refused(_) => self.jobs_dropped += 1,
            }
        }
        shed
    }

    /// All questions up to this number are answered.
    fn barriers_answered(&self) -> Option<u64> {
        let answered = self.barriers_open.first().map_or(self.barriers_asked, |open| open - 1);
        (answered > 0).then_some(answered)
    }
}

fn copy_of(work: Work) -> Option<Arc<HeldCopy>> {
    match work {
        Work::Copy(copy) => Some(copy),
        Work::Job(_) => None,
    }
}

#[cfg(test)]
#[path = "lane_room_test.rs"]
mod tests;
