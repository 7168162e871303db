//! How a worker waits: parked, precisely, and interruptible where the device allows it.
//!
//! A wait is a futex wait with an absolute deadline (crossbeam's `Parker`), with the thread's timer slack lowered
//! from 50 us to the least; nothing spins. Time within one operation is the device's own: an overshoot of one
//! phase is not added to the next.

use crate::clock;
use crate::storage::disturbance::{DevicePhase, Pace};
use crossbeam::sync::Parker;
use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// An operation on a device that has work left.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// From when on the device works at it.
    pub from: Moment,
    /// Work left.
    pub left: Duration,
    /// It gives its worker up after so much work.
    pub chunk_max: Duration,
    /// It is cut short then.
    pub deadline: Moment,
}

/// How an operation left its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All is served.
    Done,
    /// Its chunk is served; this much is left.
    Chunk(Duration),
    /// It was told to stop, and the device let go of it.
    Interrupted,
    /// Its deadline came.
    Overdue,
}

/// Waits until `deadline`, or until unparked; a stray token only costs a look around.
pub fn park_until(parker: &Parker, deadline: Moment) {
    parker.park_deadline(clock::instant(deadline));
}

/// Serves an operation on a modelled device. `must_stop` is a cancellation point: asked whenever the worker is woken.
/// A stall is waited for whatever `must_stop` says.
pub fn operate(parker: &Parker, pace: &Pace, operation: Operation, must_stop: impl Fn() -> bool) -> Left {
    let Operation { from: mut at, mut left, chunk_max, deadline } = operation;
    let mut chunk = chunk_max;
    loop {
        if left.is_zero() {
            return Left::Done;
        }
        match pace.phase(at, left) {
            DevicePhase::Stalled(end) => {
                while clock::now() < end {
                    park_until(parker, end);
                }
                at = end;
                if must_stop() {
                    return Left::Interrupted;
                }
            }
            DevicePhase::Serving(end) => {
                let end = end.min(at + chunk).min(deadline.max(at));
                loop {
                    if must_stop() {
                        return Left::Interrupted;
                    }
                    if clock::now() >= end {
                        break;
                    }
                    park_until(parker, end);
                }
                let served = end.since(at);
                left = left.saturating_sub(served);
                chunk = chunk.saturating_sub(served);
                at = end;
                if left.is_zero() {
                    return Left::Done;
                }
                if at >= deadline {
                    return Left::Overdue;
                }
                if chunk.is_zero() {
                    return Left::Chunk(left);
                }
            }
        }
    }
}

/// Serves a background job: as an operation that nobody stops and that is not cut. `closing` ends it early when the
/// node does.
pub fn operate_job(parker: &Parker, pace: &Pace, from: Moment, service: Duration, closing: impl Fn() -> bool) {
    let operation = Operation { from, left: service, chunk_max: Duration::MAX, deadline: Moment(u64::MAX) };
    let _ = operate(parker, pace, operation, closing);
}

/// Readies the thread for precise waits; a refusal costs precision only.
pub fn sharpen_timers() {
    let least = std::num::NonZeroU64::new(1);
    if let Err(error) = rustix::thread::set_current_timer_slack(least) {
        tracing::debug!(%error, "timer slack stays as it is; modelled service times overshoot by about 50 us more");
    }
}

#[cfg(test)]
#[path = "wait_test.rs"]
mod tests;
