//! How copies end: answered, or silent by rule R8 (docs/tie-protocol.md). The only room that answers and counts ends.
//!
//! Whoever calls has the registry's verdict already, so each copy comes here once.

use crate::clock;
use crate::request::doors::Caller;
use crate::request::execute::{impossible, position_needed, too_stale};
use crate::request::held::HeldCopy;
use crate::request::slow_log::SlowEnd;
use crate::request::state::PathState;
use crate::request::tie::Which;
use bytes::Bytes;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::RequestId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{CopyKind, ReadLevel};
use tiedkv_protocol::response::{CopyEnd, Failure, Found, ReadReply, Service, StartRecord};

/// Why a copy ends without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silent {
    /// Its client withdrew it or is gone.
    Withdrawn,
    /// A named peer's cancel came while it waited.
    Cancelled,
    /// It yielded to a lower number.
    Yielded,
}

impl PathState {
    /// Answers a copy that ended, and lets it go.
    pub(crate) fn answer(&self, copy: &HeldCopy, outcome: Result<Found, Failure>, value: Bytes) {
        let now = clock::now();
        self.let_go(copy);
        let started = copy.started();
        let (wait_end, service_time) = match started {
            Some(started) => (started, now.since(started)),
            None => (now, Duration::ZERO),
        };
        let service = Service {
            started: started.is_some(),
            queue_wait_us: micros(wait_end.since(copy.admitted)),
            service_time_us: micros(service_time),
            queue_depth: self.lane(copy).depth(),
            ..self.service(now)
        };
        if outcome.is_ok() {
            self.counters.service_time_us.add_time(service_time);
            if copy.request.operation.is_short() {
                self.note_service(service_time / copy.request.operation.gets());
            }
        }
        let end = if outcome.is_ok() { CopyEnd::Answered } else { CopyEnd::Failed };
        self.record(copy, now, end);
        let end = match (&outcome, started) {
            (Ok(_), _) => SlowEnd::Answered,
            (Err(_), Some(_)) => SlowEnd::Failed,
            (Err(_), None) => SlowEnd::Refused,
        };
        self.slow.note(copy, now, end);
        self.send(&copy.caller, copy.request.request, service, outcome, value);
    }

    /// Answers a copy that did not start, and lets it go.
    pub(crate) fn answer_failure(&self, copy: &HeldCopy, failure: Failure) {
        self.answer(copy, Err(failure), Bytes::new());
    }

    /// Answers a copy that was never let in.
    pub(crate) fn turn_away(&self, caller: &Caller, request: RequestId, failure: Failure) {
        let service = self.service(clock::now());
        self.send(caller, request, service, Err(failure), Bytes::new());
    }

    /// Lets a copy go without a word.
    pub(crate) fn end_silently(&self, copy: &HeldCopy, why: Silent) {
        let now = clock::now();
        self.let_go(copy);
        let counters = &self.counters;
        if let Some(started) = copy.started() {
            counters.wasted_us.add_time(now.since(started));
        }
        match why {
            Silent::Withdrawn => {
                counters.withdrawn.add_one();
                if copy.started().is_some() {
                    counters.withdrawn_running.add_one();
                }
                self.record(copy, now, CopyEnd::Withdrawn);
            }
            Silent::Yielded => {
                counters.yielded.add_one();
                self.record(copy, now, CopyEnd::Yielded);
            }
            Silent::Cancelled => counters.cancelled.add_one(),
        }
        let end = match why {
            Silent::Withdrawn => SlowEnd::Withdrawn,
            Silent::Yielded => SlowEnd::Yielded,
            Silent::Cancelled => SlowEnd::Cancelled,
        };
        self.slow.note(copy, now, end);
    }

    /// Drops a copy at its arrival: a named peer's cancel had come before it.
    pub(crate) fn drop_early(&self, copy: &HeldCopy) {
        self.let_go(copy);
        self.counters.early_dropped.add_one();
    }

    /// A copy counts as started from now on.
    pub(crate) fn note_start(&self, copy: &HeldCopy, now: Moment) {
        self.counters.started.add_one();
        self.counters.started_by_kind[kind_index(copy.request.kind)].add_one();
        self.counters.queue_wait_us.add_time(now.since(copy.admitted));
    }

    /// The answer to a copy that finds its lane full: come back when half of what waits is served.
    pub(crate) fn busy(&self, lane: u16) -> Failure {
        let depth = self.lanes.get(usize::from(lane)).map_or(0, |lane| lane.depth());
        let ahead = self.service_p50() * depth / u32::from(self.config.workers_per_lane);
        let hint = (ahead / 2).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let message = format!("the queue of lane {lane} is full with {depth} waiting");
        Failure { retry_after_us: u64::from(micros(hint)), ..Failure::new(ErrorCode::Busy, message) }
    }

    /// The answer to a copy that the replica cannot serve soon enough.
    pub(crate) fn behind(&self, copy: &HeldCopy) -> Failure {
        let (need, have) = (position_needed(copy), self.store.view().position());
        if let ReadLevel::Stale { .. } = copy.request.level {
            return too_stale(have);
        }
        if let Some(failure) = impossible(copy) {
            return failure;
        }
        let message = match need {
            Some(need) => format!("this replica has applied {have}, the read needs {need}"),
            None => "the read barrier was not answered in time".to_owned(),
        };
        Failure { need, have: Some(have), ..Failure::new(ErrorCode::Behind, message) }
    }

    fn service(&self, now: Moment) -> Service {
        Service {
            node: self.config.node,
            started: false,
            queue_wait_us: 0,
            service_time_us: 0,
            queue_depth: 0,
            flags: self.flags(now),
            unhealthy_pairs: self.cancels.unhealthy_pairs(),
        }
    }

    fn let_go(&self, copy: &HeldCopy) {
        self.desk(copy.caller.id).lock().leave(copy.caller.connection, copy.request.request);
        self.count_out();
    }

    fn send(
        &self,
        to: &Caller,
        request: RequestId,
        service: Service,
        outcome: Result<Found, Failure>,
        value: Bytes,
    ) {
        let counter = match &outcome {
            Ok(_) => &self.counters.answered_good,
            Err(failure) if failure.code == ErrorCode::Expired => &self.counters.answered_expired,
            Err(_) if service.started => &self.counters.answered_failed,
            Err(_) => &self.counters.answered_refused,
        };
        counter.add_one();
        to.replies.read_reply(ReadReply { request, service, outcome }, value);
    }

    fn record(&self, copy: &HeldCopy, now: Moment, end: CopyEnd) {
        let Some(started) = copy.started() else { return };
        self.records.record(|| StartRecord {
            caller: copy.caller.id,
            read: copy.request.read,
            tie: match copy.name.which {
                Which::Tied { tie, number } => Some((tie, number)),
                Which::Untied { .. } => None,
            },
            kind: copy.request.kind,
            lane: copy.lane,
            admitted_us: copy.admitted.as_micros(),
            started_us: started.as_micros(),
            ended_us: now.as_micros(),
            end,
        });
    }
}

/// Index of a kind in per-kind counters.
pub(crate) fn kind_index(kind: CopyKind) -> usize {
    kind as usize
}

/// The answer to a copy whose caller's deadline is over or too near.
pub(crate) fn expired(started: bool) -> Failure {
    let message = if started {
        "the deadline came while the copy was being served"
    } else {
        "the time left would not have sufficed for the service"
    };
    Failure::new(ErrorCode::Expired, message)
}

/// The answer of a node on its way out.
pub(crate) fn on_the_way_out() -> Failure {
    Failure::new(ErrorCode::TryElsewhere, "this node is shutting down")
}

/// The answer of a node whose storage keeps failing.
pub(crate) fn storage_latched() -> Failure {
    Failure::new(
        ErrorCode::TryElsewhere,
        "storage of this node failed repeatedly; it is tried again from time to time",
    )
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}
