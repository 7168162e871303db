//! Waits until a planned send time, to some tens of microseconds: a timerfd, since the runtime's own timer has a
//! grain of a millisecond.

use crate::clock;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// One timer; waits for one moment at a time.
pub struct SendTimer {
    fd: AsyncFd<OwnedFd>,
}

impl SendTimer {
    /// A timer on the current runtime.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new() -> std::io::Result<Self> {
        let fd = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "sound for an owned descriptor; its successor would need unsafe code")]
        let fd = AsyncFd::new(fd)?;
        Ok(Self { fd })
    }

    /// Waits until `due`; returns at once if it is past.
    ///
    /// # Errors
    /// When the system refuses the timer.
    ///
    /// # Cancel safety
    /// Safe: a later wait sets the timer anew.
    pub async fn until(&self, due: Instant) -> std::io::Result<()> {
        let wait = due.saturating_duration_since(clock::now());
        if wait.is_zero() {
            return Ok(());
        }
        self.set(wait)?;
        loop {
            let mut guard = self.fd.readable().await?;
            let mut expirations = [0u8; 8];
            match guard.try_io(|fd| Ok(rustix::io::read(fd.get_ref(), &mut expirations)?)) {
                Ok(read) => return read.map(|_| ()),
                Err(_would_block) => {}
            }
        }
    }

    fn set(&self, wait: Duration) -> std::io::Result<()> {
        let value = Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_at_least_until_due_and_a_past_moment_is_at_once() {
        let timer = SendTimer::new().unwrap();
        let due = clock::now() + Duration::from_micros(300);
        timer.until(due).await.unwrap();
        assert!(clock::now() >= due);
        timer.until(due).await.unwrap();
    }

    #[tokio::test]
    async fn a_dropped_wait_does_not_shorten_the_next() {
        let timer = SendTimer::new().unwrap();
        let long = clock::now() + Duration::from_secs(60);
        assert!(tokio::time::timeout(Duration::from_millis(2), timer.until(long)).await.is_err());
        let due = clock::now() + Duration::from_millis(3);
        timer.until(due).await.unwrap();
        assert!(clock::now() >= due);
    }
}
