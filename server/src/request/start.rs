//! The worker: pop -> start + cancel peers -> serve -> read -> end. One OS thread each, one lane each. A page of a
//! scan is read in chunks that queue again.
//!
//! **The start** (docs/tie-protocol.md, the three atomic steps) is one step under the registry stripe: withdrawn:
//! drop; too little time left: `Expired`; not servable yet: set aside, nobody is cancelled; else queued -> running and
//! the cancels are handed over, before the lock is let go and before storage is asked.
//!
//! **What one read costs** from arrival to answer, untied or tied, when nothing is contended: 1 allocation (the held
//! copy; hash maps and queues reuse theirs); 8 lock operations (desk 2, stripe 3, lane 2, median 1), none held across a system call except that cancels are handed to the channel under the stripe; 1 wake-up of a
//! worker if one is idle (none in a busy lane) and 1 of the reply's consumer per batch; the modelled device adds one
//! timed wait.

use crate::clock;
use crate::peer::priority::shorten_slice;
use crate::request::copy_state::Verdict;
use crate::request::end::{Silent, expired, on_the_way_out, storage_latched};
use crate::request::execute::{Ready, execute, ready};
use crate::request::held::{HeldCopy, Work};
use crate::request::lane::Waiting;
use crate::request::lane_room::Next;
use crate::request::set_aside::{Inserted, Need};
use crate::request::state::PathState;
use crate::request::tie::{Servable, Start, TieTable};
use crate::request::wait::{Left, Operation, Told, operate, park_until, sharpen_timers};
use crate::storage::disturbance::{Job, Pace};
use crate::storage::state_store::StorageError;
use bytes::Bytes;
use crossbeam::sync::Parker;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::response::{Failure, Found};

type Stripe<'a> = MutexGuard<'a, TieTable<Arc<HeldCopy>>>;

/// Keys that travel together are read for no longer than this while others wait; the client asks for the rest again.
const KEYS_TIME_MAX: Duration = Duration::from_millis(1);

/// One worker of one lane.
pub(crate) struct Worker {
    /// The path it works for.
    pub path: Arc<PathState>,
    /// Its index in the node: what a copy that it serves is known by.
    pub index: usize,
    /// Its lane.
    pub lane: usize,
    /// Where it waits.
    pub parker: Parker,
}

impl Worker {
    /// Works until the path closes.
    pub(crate) fn run(self) {
        sharpen_timers();
        if self.path.config.prompt_workers
            && let Err(error) = shorten_slice()
        {
            tracing::debug!(%error, "a worker keeps its slice");
        }
        if self.path.config.nice_workers && rustix::process::nice(19).is_err() {
            tracing::debug!("a worker keeps its priority");
        }
        let lane = &self.path.lanes[self.lane];
        loop {
            match lane.next(self.index, clock::now()) {
                Next::Work(waiting, pace, wake) => {
                    self.path.wake(wake);
                    lane.set_busy(true);
                    self.serve(waiting, &pace);
                    lane.set_busy(false);
                }
                Next::Shed(copies) => self.path.shed(copies),
                Next::Park(_) if self.path.is_closing() => return,
                Next::Park(None) => self.parker.park(),
                Next::Park(Some(until)) => park_until(&self.parker, until),
            }
        }
    }

    fn serve(&self, waiting: Waiting<Work>, pace: &Pace) {
        let now = clock::now();
        match &waiting.item {
            Work::Job(job) => self.serve_job(*job, pace, now),
            Work::Copy(copy) => {
                let copy = Arc::clone(copy);
                let tie = copy.request.tie.as_ref();
                let span = tracing::debug_span!("serve", node = %self.path.config.node, read = %copy.request.read,
                    tie = ?tie.map(|tie| tie.id), copy = tie.map(|tie| tie.number.0), kind = copy.request.kind.name(),
                    lane = copy.lane);
                let _entered = span.entered();
                if self.start(waiting, &copy, pace, now) {
                    self.serve_copy(&copy, pace, now);
                }
            }
        }
    }

    /// As an operation that nobody stops and that is not cut.
    fn serve_job(&self, job: Job, pace: &Pace, now: Moment) {
        let counters = &self.path.counters;
        let operation = Operation {
            from: now,
            left: pace.slowed(job.service),
            chunk_max: Duration::MAX,
            deadline: Moment(u64::MAX),
        };
        let spent = operate(&self.parker, pace, operation, || self.told(false));
        counters.jobs_done.add_one();
        counters.jobs_us.add_time(clock::now().since(now));
        counters.stalled_us.add_time(spent.stalled);
    }

    fn told(&self, must_stop: bool) -> Told {
        match must_stop {
            _ if self.path.is_closing() => Told::Close,
            true => Told::Stop,
            false => Told::GoOn,
        }
    }

    /// The start step. True when the copy runs, for the first time or on.
    fn start(&self, waiting: Waiting<Work>, copy: &Arc<HeldCopy>, pace: &Pace, now: Moment) -> bool {
        let path = &self.path;
        let (first, applied) = (copy.started().is_none(), path.store.view().position());
        let age = || path.barrier.fresh(applied).map(|sent| now.since(sent));
        let looks = first && !path.answer_early.load(Relaxed);
        let readiness = if looks { ready(copy, applied, age) } else { Ready::Yes };
        let refusal = match &readiness {
            _ if path.is_closing() => Some(on_the_way_out()),
            _ if first && path.storage_refuses(now) => Some(storage_latched()),
            Ready::Never(failure) => Some(failure.clone()),
            Ready::Yes | Ready::NotBefore(_) => None,
        };
        let mut table = path.stripe_of(&copy.name).lock();
        if let Some(failure) = refusal {
            self.refuse(table, copy, failure);
            return false;
        }
        let servable = match readiness {
            Ready::Yes => Servable::Now,
            Ready::NotBefore(Need::Barrier(_)) => Servable::NotKnown,
            Ready::NotBefore(Need::Position(_)) | Ready::Never(_) => Servable::NotYet,
        };
        match table.start(&copy.name, servable, path.service_p50(), now) {
            Start::Run(hand_over) => {
                copy.begin(now, pace.slowed(self.service(copy)));
                copy.served_by(Some(self.index));
                if let Some(hand_over) = hand_over {
                    path.hand_over(&hand_over);
                    path.counters.cancels_sent.add(hand_over.to.len() as u64);
                }
                drop(table);
                path.note_start(copy, now);
                return true;
            }
            Start::RunsOn => {
                copy.served_by(Some(self.index));
                return true;
            }
            Start::SetAside { until } => {
                if let Ready::NotBefore(need) = readiness {
                    self.set_aside(table, waiting, copy, need, until);
                }
                return false;
            }
            Start::Stopped(verdict) => {
                drop(table);
                path.end_or_answer(copy, verdict, on_the_way_out());
            }
            Start::Overdue => {
                drop(table);
                path.answer_failure(copy, expired(true));
            }
            Start::Expired => {
                drop(table);
                path.answer_failure(copy, expired(false));
            }
            Start::Behind => {
                drop(table);
                path.answer_failure(copy, path.behind(copy));
            }
            Start::Gone => {
                drop(table);
                path.lane(copy).dropped();
            }
        }
        false
    }

    fn refuse(&self, mut table: Stripe<'_>, copy: &HeldCopy, failure: Failure) {
        let (now, first) = (clock::now(), copy.started().is_none());
        let verdict = if first { table.refuse(&copy.name, now) } else { table.finish(&copy.name, now) };
        drop(table);
        if first && verdict != Verdict::Answer {
            self.path.lane(copy).dropped();
        }
        self.path.end_or_answer(copy, verdict, failure);
    }

    fn set_aside(&self, mut table: Stripe<'_>, waiting: Waiting<Work>, copy: &HeldCopy, need: Need, until: Moment) {
        let (path, lane) = (&self.path, self.path.lane(copy));
        // Looked at again: a view may have been published since the copy was found not servable.
        let applied = path.store.view().position();
        match lane.set_aside(waiting, need, until, applied) {
            Inserted::Waits => {
                drop(table);
                path.counters.set_aside.add_one();
                let applied = path.store.view().position();
                path.call_keeper(until, matches!(need, Need::Position(position) if position <= applied));
            }
            Inserted::Servable(waiting) => {
                if table.queue_again(&copy.name) {
                    path.wake(lane.put_back(waiting, path.brisk()));
                }
            }
            Inserted::Full(_) => {
                let verdict = table.refuse(&copy.name, clock::now());
                drop(table);
                path.end_or_answer(copy, verdict, path.behind(copy));
            }
        }
    }

    fn serve_copy(&self, copy: &Arc<HeldCopy>, pace: &Pace, now: Moment) {
        let path = &self.path;
        let operation =
            Operation { from: now, left: copy.left(), chunk_max: path.config.chunk_max, deadline: copy.deadline };
        let lane = path.lane(copy);
        let gives_way = copy.page.is_some() && lane.keeps_page(self.index);
        let spent = operate(&self.parker, pace, operation, || match self.told(copy.state.phase().must_stop()) {
            Told::GoOn if gives_way && !lane.keeps_page(self.index) => Told::GiveWay,
            told => told,
        });
        path.counters.stalled_us.add_time(spent.stalled);
        match spent.left {
            Left::Done => match self.read(copy) {
                Ok(Some(found)) => self.finish(copy, Ok(found)),
                Err(failure) => self.finish(copy, Err(failure)),
                Ok(None) => {
                    copy.set_left(pace.slowed(self.service(copy)));
                    self.queue_next_chunk(copy);
                }
            },
            Left::Overdue => self.finish(copy, Err(expired(true))),
            Left::Stopped => self.stop(copy),
            Left::Chunk(left) => {
                copy.set_left(left);
                self.queue_next_chunk(copy);
            }
        }
    }

    /// What the device takes for a get, or for the next chunk of a page.
    fn service(&self, copy: &HeldCopy) -> Duration {
        let (device, read) = (&self.path.config.device, copy.request.read);
        match &copy.page {
            None => device.gets_service(read, copy.request.operation.gets()),
            Some(page) => device.chunk_service(read, page.progress.lock().chunks()),
        }
    }

    /// `None`: its chunk is read and more follow.
    fn read(&self, copy: &HeldCopy) -> Result<Option<(Found, Bytes)>, Failure> {
        let path = &self.path;
        let result = if path.fail_reads.load(Relaxed) {
            Err(StorageError::Failed("reads were made to fail, for a test".to_owned()))
        } else {
            let until = clock::now() + KEYS_TIME_MAX;
            execute(&*path.store, copy, || clock::now() < until)
        };
        path.note_storage(result.is_err(), clock::now());
        if copy.page.is_some() {
            path.counters.scan_chunks.add_one();
        }
        result.map_err(|error| {
            tracing::warn!(%error, read = %copy.request.read, "a storage read failed");
            Failure::new(ErrorCode::Storage, error.to_string())
        })
    }

    /// Its work is done, well or badly.
    fn finish(&self, copy: &HeldCopy, result: Result<(Found, Bytes), Failure>) {
        let verdict = {
            let mut table = self.path.stripe_of(&copy.name).lock();
            copy.served_by(None);
            table.finish(&copy.name, clock::now())
        };
        match (verdict, result) {
            (Verdict::Answer, Ok((found, value))) => self.path.answer(copy, Ok(found), value),
            (Verdict::Answer, Err(failure)) => self.path.answer_failure(copy, failure),
            (Verdict::Yielded, _) => self.path.end_silently(copy, Silent::Yielded),
            (Verdict::Withdrawn, _) => self.path.end_silently(copy, Silent::Withdrawn),
            (Verdict::GoOn | Verdict::Over, _) => {}
        }
    }

    /// A cancellation point at which it may have to end.
    fn stop(&self, copy: &HeldCopy) {
        let verdict = {
            let mut table = self.path.stripe_of(&copy.name).lock();
            copy.served_by(None);
            table.stop(&copy.name, clock::now())
        };
        match verdict {
            // Nobody asked it to stop: the node closes.
            Verdict::GoOn => self.finish(copy, Err(on_the_way_out())),
            verdict => self.path.end_or_answer(copy, verdict, on_the_way_out()),
        }
    }

    /// It gives its worker up and queues again; it stays running for every rule of its tie (rule R1).
    fn queue_next_chunk(&self, copy: &Arc<HeldCopy>) {
        let mut table = self.path.stripe_of(&copy.name).lock();
        copy.served_by(None);
        match table.stop(&copy.name, clock::now()) {
            Verdict::GoOn => {
                let wake = self.path.lane(copy).join_again(Arc::clone(copy));
                drop(table);
                self.path.wake(wake);
            }
            verdict => {
                drop(table);
                self.path.end_or_answer(copy, verdict, on_the_way_out());
            }
        }
    }
}
