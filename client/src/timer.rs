//! Waits of less than a millisecond: one `timerfd` in the caller's runtime and a heap of alarms behind it.
//!
//! tokio's own timer has a tick of 1 ms, which is longer than most tie delays. Here one wake-up of the descriptor
//! serves all alarms that are due; an alarm that is dropped leaves nothing behind. The heap itself is
//! [`crate::alarms`]. An alarm never fires early; but it fires some tens of microseconds late, so whoever wants to act at
//! a moment asks for [`Timer::lead`] less.

use crate::alarms::{AlarmKey, Alarms};
use crate::clock;
use crate::lateness::Lateness;
use parking_lot::Mutex;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tiedkv_protocol::moment::Moment;
use tokio::io::unix::AsyncFd;

/// Shortest wait that is armed: 0 would disarm the descriptor.
const ARM_MIN: Duration = Duration::from_nanos(1);

/// A source of alarms; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Timer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    descriptor: AsyncFd<OwnedFd>,
    state: Mutex<State>,
    /// See [`Timer::lead`]; nanoseconds.
    lead: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    alarms: Alarms,
    /// When the descriptor fires; `None` while it is not armed.
    armed: Option<Moment>,
    lateness: Lateness,
}

impl Timer {
    /// A timer in the current runtime. [`Timer::drive`] must run for alarms to fire.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        // SAFETY: the `OwnedFd` is a valid descriptor that nobody closes or replaces while the `AsyncFd` owns it.
        let descriptor = unsafe { AsyncFd::register_with_interest(descriptor, tokio::io::Interest::READABLE) }?;
        Ok(Self { inner: Arc::new(Inner { descriptor, state: Mutex::default(), lead: AtomicU64::new(0) }) })
    }

    /// Wakes alarms as they fall due, for ever.
    pub(crate) async fn drive(self) -> io::Result<()> {
        let mut due: Vec<Waker> = Vec::new();
        loop {
            let mut ready = self.inner.descriptor.readable().await?;
            let mut ticks = [0u8; 8];
            let read = rustix::io::read(self.inner.descriptor.get_ref(), &mut ticks);
            // Edge triggered: one read empties it, and an expiry after the read is a new event.
            ready.clear_ready();
            match read {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            }
            {
                let mut state = self.inner.state.lock();
                let now = clock::now();
                if let Some(armed) = state.armed.take() {
                    state.lateness.note(now.since(armed));
                    self.inner.lead.store(state.lateness.usual().as_nanos() as u64, Relaxed);
                }
                state.alarms.take_due(now, &mut due);
                self.arm(&mut state);
            }
            due.drain(..).for_each(Waker::wake);
        }
    }

    /// How late alarms fire, usually: the median of the last few, at most 100 us.
    pub(crate) fn lead(&self) -> Duration {
        Duration::from_nanos(self.inner.lead.load(Relaxed))
    }

    /// An alarm that is not set.
    pub(crate) fn alarm(&self) -> Alarm {
        Alarm { timer: self.clone(), key: None }
    }

    /// Waits until `at`. Dropping the future leaves nothing behind.
    pub(crate) fn until(&self, at: Moment) -> Until {
        Until { alarm: self.alarm(), at }
    }

    /// The output of `work`, or `None` when `at` comes first. `work` must be cancel safe.
    pub(crate) async fn within<F: Future>(&self, at: Moment, work: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            output = work => Some(output),
            () = self.until(at) => None,
        }
    }

    /// Arms the descriptor for the first alarm, if it would fire later or not at all.
    fn arm(&self, state: &mut State) {
        let Some(first) = state.alarms.first() else { return };
        if state.armed.is_some_and(|armed| armed <= first) {
            return;
        }
        let wait = first.since(clock::now()).max(ARM_MIN);
        let value = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) as _ };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        match rustix::time::timerfd_settime(self.inner.descriptor.get_ref(), TimerfdTimerFlags::empty(), &spec) {
            Ok(_) => state.armed = Some(first),
            // Cannot happen for a descriptor and a span of ours; the next alarm tries again.
            Err(error) => tracing::error!(%error, "the timer cannot be armed"),
        }
    }
}

/// One wake-up call that can be moved; removed when dropped.
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: Timer,
    key: Option<AlarmKey>,
}

impl Alarm {
    /// Wakes `waker` at `at`, in place of what was set before.
    pub(crate) fn set(&mut self, at: Moment, waker: &Waker) {
        let mut state = self.timer.inner.state.lock();
        match self.key {
            Some(key) if state.alarms.set(key, at, waker) => {}
            _ => self.key = Some(state.alarms.add(at, waker.clone())),
        }
        self.timer.arm(&mut state);
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.timer.inner.state.lock().alarms.remove(key);
        }
    }
}

/// See [`Timer::until`].
#[derive(Debug)]
pub(crate) struct Until {
    alarm: Alarm,
    at: Moment,
}

impl Future for Until {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let at = self.at;
        if clock::now() >= at {
            return Poll::Ready(());
        }
        self.alarm.set(at, context.waker());
        Poll::Pending
    }
}

#[cfg(test)]
#[path = "timer_test.rs"]
mod tests;
