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

/// What a worker is told at a cancellation point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing.
    GoOn,
    /// The operation is to give its worker up for a while, as soon as a piece of it is served.
    GiveWay,
    /// The operation is to stop: yield or withdraw. A stall goes on to its end.
    Stop,
    /// The node closes: everything ends, also a stall.
    Close,
}

/// What is served in one go: an operation that gives way does so behind a multiple of this. A chunk of a scan stands for
/// many small requests to its device.
pub const PIECE: Duration = Duration::from_micros(500);

/// How an operation left its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// All is served.
    Done,
    /// Its chunk is served; this much is left.
    Chunk(Duration),
    /// It was told to stop, and the device let go of it.
    Stopped,
    /// Its deadline came.
    Overdue,
}

/// What a worker spent on an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spent {
    /// How it ended.
    pub left: Left,
    /// How long the device stood still in it.
    pub stalled: Duration,
}

/// Waits until `deadline`, or until unparked; a stray token only costs a look around.
pub fn park_until(parker: &Parker, deadline: Moment) {
    parker.park_deadline(clock::instant(deadline));
}

/// Serves an operation on a modelled device. `told` is a cancellation point: asked whenever the worker is woken.
pub fn operate(parker: &Parker, pace: &Pace, operation: Operation, told: impl Fn() -> Told) -> Spent {
    let Operation { from: mut at, mut left, chunk_max, deadline } = operation;
    let (mut chunk, mut stalled) = (chunk_max, Duration::ZERO);
    let left = loop {
        if left.is_zero() {
            break Left::Done;
        }
        match pace.phase(at, left) {
            DevicePhase::Stalled(end) => {
                wait_until(parker, end, || told() == Told::Close);
                stalled += end.since(at);
                at = end;
                if matches!(told(), Told::Stop | Told::Close) {
                    break Left::Stopped;
                }
            }
            DevicePhase::Serving(end) => {
                let mut end = end.min(at + chunk).min(deadline.max(at));
                if wait_until(parker, end, || told() != Told::GoOn) {
                    if told() == Told::GiveWay {
                        let pieces = clock::now().since(at).as_nanos() / PIECE.as_nanos() + 1;
                        end = end.min(at + PIECE * u32::try_from(pieces).unwrap_or(u32::MAX));
                        chunk = chunk.min(end.since(at));
                    }
                    if wait_until(parker, end, || matches!(told(), Told::Stop | Told::Close)) {
                        break Left::Stopped;
                    }
                }
                let served = end.since(at);
                left = left.saturating_sub(served);
                chunk = chunk.saturating_sub(served);
                at = end;
                if left.is_zero() {
                    break Left::Done;
                }
                if at >= deadline {
                    break Left::Overdue;
                }
                if chunk.is_zero() {
                    break Left::Chunk(left);
                }
            }
        }
    };
    Spent { left, stalled }
}

/// Waits until `end`; true when `cut` ended the wait before.
fn wait_until(parker: &Parker, end: Moment, cut: impl Fn() -> bool) -> bool {
    loop {
        if cut() {
            return true;
        }
        if clock::now() >= end {
            return false;
        }
        park_until(parker, end);
    }
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
