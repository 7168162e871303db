//! The one room of this crate that reads the clock. Pure rooms are handed [`Moment`]s.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tiedkv_protocol::moment::Moment;

#[allow(clippy::disallowed_methods, reason = "this is the clock room")]
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Now, on this process's monotonic clock.
pub fn now() -> Moment {
    Moment(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The same moment as the standard library says it: for timed waits.
pub fn instant(moment: Moment) -> Instant {
    let ahead = Duration::from_nanos(moment.0);
    // A day is longer than any wait of this crate.
    START.checked_add(ahead).unwrap_or_else(|| *START + START.elapsed() + Duration::from_secs(86_400))
}

/// How far tests stepped the wall clock of this process.
static STEPPED: Stepped = Stepped(AtomicI64::new(0));
/// Longest step: far below what a `u64` of nanoseconds can name.
const STEP_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The wall clock, nanoseconds since the Unix epoch; 0 before it. Only for what must agree between nodes.
#[allow(clippy::disallowed_methods, reason = "this is the clock room")]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    STEPPED.seen(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// Steps the wall clock as this process sees it, as an operator's or NTP's step would: for tests. The monotonic clock,
/// by which deadlines and delays run, stays as it is.
pub fn step_wall_clock(ahead: bool, by: Duration) {
    STEPPED.step(ahead, by);
}

/// The sum of all steps, nanoseconds.
struct Stepped(AtomicI64);

impl Stepped {
    fn step(&self, ahead: bool, by: Duration) {
        let by = i64::try_from(by.min(STEP_MAX).as_nanos()).unwrap_or(i64::MAX);
        let step = |stepped: i64| Some(stepped.saturating_add(if ahead { by } else { -by }));
        // Always succeeds: the step is never refused.
        let _ = self.0.fetch_update(Relaxed, Relaxed, step);
    }

    fn seen(&self, unix_ns: u64) -> u64 {
        unix_ns.saturating_add_signed(self.0.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // On a clock of its own: other tests of this process read the real one meanwhile.
    #[test]
    fn steps_add_up_and_saturate() {
        let clock = Stepped(AtomicI64::new(0));
        clock.step(true, Duration::from_nanos(70));
        clock.step(false, Duration::from_nanos(50));
        assert_eq!(clock.seen(1_000), 1_020);
        clock.step(false, Duration::from_secs(1));
        assert_eq!(clock.seen(1_000), 0);
        (0..40).for_each(|_| clock.step(true, Duration::MAX));
        assert_eq!(clock.seen(1_000), 1_000 + i64::MAX as u64);
    }
}
