//! A copy arrives: check -> let in -> register and queue, in one step under its registry stripe (rule R15,
//! docs/tie-protocol.md). Every refusal is an answer at once.

use crate::clock;
use crate::request::admit::{NotIn, Rules, check};
use crate::request::barrier::BarrierReply;
use crate::request::copy_state::Verdict;
use crate::request::doors::Caller;
use crate::request::end::{Silent, kind_index, on_the_way_out, storage_latched};
use crate::request::execute::far_behind;
use crate::request::held::{Admission, HeldBarrier, HeldCopy, HeldPage};
use crate::request::lane_room::{Called, Joined, Shed};
use crate::request::state::PathState;
use crate::request::tie::{Arrival, Arriving, Servable, Start, TieTable};
use crate::storage::scan::PageProgress;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::SHARD_ZERO;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{ReadLevel, ReadOperation, ReadRequest};
use tiedkv_protocol::response::Failure;
use tiedkv_protocol::scan::PageRequest;

impl PathState {
    /// Takes one copy that was received whole at `received`.
    pub(crate) fn arrive(self: &Arc<Self>, caller: &Caller, request: ReadRequest, received: Moment) {
        self.counters.received.add_one();
        self.counters.received_by_kind[kind_index(request.kind)].add_one();
        let now = clock::now();
        let id = request.request;
        let span = tracing::debug_span!("arrive", node = %self.config.node, read = %request.read,
            tie = ?request.tie.as_ref().map(|tie| tie.id), copy = request.tie.as_ref().map(|tie| tie.number.0),
            kind = request.kind.name());
        let _entered = span.entered();
        match self.check(caller, request, received, now) {
            Ok(copy) => self.let_in(&copy, now),
            Err(failure) => self.turn_away(caller, id, failure),
        }
    }

    fn check(
        self: &Arc<Self>,
        caller: &Caller,
        request: ReadRequest,
        received: Moment,
        now: Moment,
    ) -> Result<Arc<HeldCopy>, Failure> {
        if self.is_draining() {
            return Err(on_the_way_out());
        }
        let members = self.members.load();
        let time_left_max = self.config.time_left_max;
        let rules = Rules { node: self.config.node, shard: SHARD_ZERO, members: &members, time_left_max };
        let time_left = check(&request, &rules)?;
        if self.storage_latched(now) {
            return Err(storage_latched());
        }
        let lane = self.lane_of_key.lane(request.operation.first_key());
        let barrier = match (self.needs_barrier(request.level, now)?, request.level) {
            (false, _) => None,
            // Only to tell a token of the future from a replica that lags: it may go unanswered.
            (true, ReadLevel::Session { .. }) => self.ask_barrier(lane).ok(),
            (true, _) => Some(self.ask_barrier(lane)?),
        };
        let page = match &request.operation {
            ReadOperation::Get { .. } | ReadOperation::MultiGet { .. } => None,
            ReadOperation::Scan(page) => Some(self.make_page(page)?),
        };
        let admission = Admission { lane, admitted: now, deadline: received + time_left, barrier, page };
        Ok(Arc::new(HeldCopy::new(caller.clone(), request, admission)))
    }

    fn make_page(&self, page: &PageRequest) -> Result<Box<HeldPage>, Failure> {
        let pages_max = self.config.pages_max;
        HeldPage::new(PageProgress::new(page.clone()), &self.pages, pages_max).ok_or_else(|| {
            let message = format!("{pages_max} pages of scans are being made, the most that this node holds");
            let wait = Duration::from_millis(5);
            Failure { retry_after_us: wait.as_micros() as u64, ..Failure::new(ErrorCode::Busy, message) }
        })
    }

    /// Whether a copy of this level must ask a barrier. What this replica knows it cannot serve is refused at once.
    fn needs_barrier(&self, level: ReadLevel, now: Moment) -> Result<bool, Failure> {
        let cut_off = || match self.barrier.cut_off() {
            Some(why) => Err(Failure::new(ErrorCode::TryElsewhere, why)),
            None => Ok(()),
        };
        match level {
            ReadLevel::Stale { bound_us: None } => Ok(false),
            ReadLevel::Stale { bound_us: Some(bound) } => {
                let sent = self.barrier.fresh(self.store.view().position());
                // One that is half used up may not last through the queue.
                if sent.is_some_and(|sent| now.since(sent) <= Duration::from_micros(bound) / 2) {
                    return Ok(false);
                }
                cut_off().map(|()| true)
            }
            ReadLevel::Session { seen } => {
                let have = self.store.view().position();
                if seen <= have {
                    return Ok(false);
                }
                cut_off()?;
                match far_behind(seen, have) {
                    Some(failure) if !self.barrier.leads() => Err(failure),
                    _ => Ok(true),
                }
            }
            ReadLevel::Linearizable => cut_off().map(|()| true),
        }
    }

    /// Asked at admission, so that the answer overlaps the queue.
    fn ask_barrier(self: &Arc<Self>, lane: u16) -> Result<HeldBarrier, Failure> {
        let number = self.lanes[usize::from(lane)].barrier_asked();
        let path: Weak<Self> = Arc::downgrade(self);
        let (reply, answer) = BarrierReply::new(move || {
            if let Some(path) = path.upgrade() {
                let lane = &path.lanes[usize::from(lane)];
                lane.barrier_answered(number).into_iter().for_each(|waiting| path.queue_again(lane, waiting));
            }
        });
        self.barrier.ask(reply)?;
        Ok(HeldBarrier { number, answer })
    }

    fn let_in(&self, copy: &Arc<HeldCopy>, now: Moment) {
        let (caller, id) = (&copy.caller, copy.request.request);
        let entered = self.desk(caller.id).lock().enter(now, caller.id, caller.connection, id, Arc::clone(copy));
        match entered {
            Ok(()) => {
                self.count_in();
                self.register(copy, now);
            }
            Err(NotIn::Withdrawn) => self.counters.withdrawn.add_one(),
            Err(refusal) => self.turn_away(caller, id, not_in(refusal, self.config.caller_rate_max)),
        }
    }

    fn register(&self, copy: &Arc<HeldCopy>, now: Moment) {
        let arriving = Arriving {
            name: copy.name,
            tie: copy.request.tie.clone(),
            deadline: copy.deadline,
            copy: Arc::clone(copy),
        };
        let mut table = self.stripe_of(&copy.name).lock();
        match table.arrive(arriving, now) {
            Arrival::Queue if self.waits_for_barrier(&mut table, copy, now) => {
                drop(table);
                // As below.
                if self.is_closing() {
                    self.empty_lanes();
                }
            }
            Arrival::Queue => match self.lane(copy).join(copy, now, self.brisk()) {
                Joined::Queued { wake, shed } => {
                    drop(table);
                    self.wake(wake);
                    self.shed(shed);
                    // A node that closed meanwhile has emptied its lanes before: do it again for this one.
                    if self.is_closing() {
                        self.empty_lanes();
                    }
                }
                Joined::Full => {
                    let verdict = table.refuse(&copy.name, now);
                    drop(table);
                    if verdict == Verdict::Answer {
                        self.answer_failure(copy, self.busy(copy.lane));
                    }
                }
            },
            Arrival::CancelledEarly { .. } => {
                drop(table);
                self.drop_early(copy);
            }
            Arrival::WithdrawnEarly => {
                drop(table);
                self.end_silently(copy, Silent::Withdrawn);
            }
            Arrival::Duplicate => {
                drop(table);
                let message = "a copy of this tie is or was here already";
                self.answer_failure(copy, Failure::new(ErrorCode::Duplicate, message));
            }
        }
    }

    /// True when a copy was set aside that cannot be served before its barrier is answered: the start step of an idle
    /// worker, without the worker.
    fn waits_for_barrier(&self, table: &mut TieTable<Arc<HeldCopy>>, copy: &Arc<HeldCopy>, now: Moment) -> bool {
        let Some(HeldBarrier { number, answer }) = &copy.barrier else { return false };
        if copy.request.level != ReadLevel::Linearizable || answer.answer().is_some() {
            return false;
        }
        // Anything else, as too little time left, is a worker's to say.
        if now + self.service_p50() > copy.deadline {
            return false;
        }
        let Start::SetAside { until } = table.start(&copy.name, Servable::NotKnown, self.service_p50(), now) else {
            return false;
        };
        if self.is_closing() || !self.lane(copy).join_aside(copy, *number, until) {
            table.queue_again(&copy.name);
            return false;
        }
        self.counters.set_aside.add_one();
        self.call_keeper(until, false);
        true
    }

    /// Answers copies that made room for others.
    pub(crate) fn shed(&self, shed: Shed) {
        for copy in shed {
            let verdict = self.stripe_of(&copy.name).lock().refuse(&copy.name, clock::now());
            if verdict == Verdict::Answer {
                self.answer_failure(&copy, self.busy(copy.lane));
            } else {
                self.lane(&copy).dropped();
            }
        }
    }

    /// Empties all lanes, answering what is in them: the node is on its way out.
    pub(crate) fn empty_lanes(&self) {
        for lane in &self.lanes {
            let (copies, idle) = lane.drain();
            idle.into_iter().for_each(|worker| self.wake(Called::Worker(worker)));
            for copy in copies {
                let mut table = self.stripe_of(&copy.name).lock();
                let now = clock::now();
                // A chunk that waited is running: it ends with a failure.
                let verdict = if copy.started().is_some() {
                    table.finish(&copy.name, now)
                } else {
                    table.refuse(&copy.name, now)
                };
                drop(table);
                self.end_or_answer(&copy, verdict, on_the_way_out());
            }
        }
    }

    /// Ends a copy as the registry says.
    pub(crate) fn end_or_answer(&self, copy: &HeldCopy, verdict: Verdict, failure: Failure) {
        match verdict {
            Verdict::Answer => self.answer_failure(copy, failure),
            Verdict::Withdrawn if copy.started().is_some() => self.end_silently(copy, Silent::Withdrawn),
            Verdict::Yielded => self.end_silently(copy, Silent::Yielded),
            // Whoever withdrew or ended it before has counted it.
            Verdict::Withdrawn | Verdict::GoOn | Verdict::Over => {}
        }
    }
}

fn not_in(refusal: NotIn, rate_max: u32) -> Failure {
    let busy = |message: String, wait: Duration| Failure {
        retry_after_us: u64::try_from(wait.as_micros()).unwrap_or(u64::MAX),
        ..Failure::new(ErrorCode::Busy, message)
    };
    let a_little = Duration::from_millis(1);
    match refusal {
        NotIn::SameRequest => {
            Failure::new(ErrorCode::Duplicate, "a copy with this request id is in flight on this connection")
        }
        NotIn::CallerFull(count) => busy(
            format!("the caller has {count} copies in flight here, as many as caller_in_flight_max says"),
            a_little,
        ),
        NotIn::ConnectionFull(count) => {
            let limit = "as many as connection_in_flight_max says";
            busy(format!("the connection has {count} copies in flight here, {limit}"), a_little)
        }
        NotIn::TooFast(wait) => {
            let limit = "as many as caller_rate_max says";
            busy(format!("the caller sends more than {rate_max} copies per second, {limit}"), wait)
        }
        NotIn::Withdrawn => Failure::new(ErrorCode::Internal, "a withdrawn copy ends silently"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_at_a_cap_names_the_setting_its_number_and_when_to_come_back() {
        let wait = Duration::from_millis(3);
        for (refusal, number, setting, retry_after_us) in [
            (NotIn::CallerFull(7), "7 copies", "caller_in_flight_max", 1_000),
            (NotIn::ConnectionFull(8), "8 copies", "connection_in_flight_max", 1_000),
            (NotIn::TooFast(wait), "900 copies per second", "caller_rate_max", 3_000),
        ] {
            let failure = not_in(refusal, 900);
            assert_eq!((failure.code, failure.retry_after_us), (ErrorCode::Busy, retry_after_us));
            assert!(failure.message.contains(number) && failure.message.contains(setting), "{}", failure.message);
        }
    }
}
