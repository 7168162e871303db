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

/// How far tests stepped the wall clock of this process, nanoseconds.
static STEPPED_NS: AtomicI64 = AtomicI64::new(0);
/// Longest step: far below what a `u64` of nanoseconds can name.
const STEP_MAX: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The wall clock, nanoseconds since the Unix epoch; 0 before it. Only for what must agree between nodes.
#[allow(clippy::disallowed_methods, reason = "this is the clock room")]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    now.saturating_add_signed(STEPPED_NS.load(Relaxed))
}

/// Steps the wall clock as this process sees it, as an operator's or NTP's step would: for tests. The monotonic clock,
/// by which deadlines and delays run, stays as it is.
pub fn step_wall_clock(ahead: bool, by: Duration) {
    let by = i64::try_from(by.min(STEP_MAX).as_nanos()).unwrap_or(i64::MAX);
    let step = |stepped: i64| Some(stepped.saturating_add(if ahead { by } else { -by }));
    // Always succeeds: the step is never refused.
    let _ = STEPPED_NS.fetch_update(Relaxed, Relaxed, step);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_moves_the_wall_clock_and_nothing_else() {
        let hour = Duration::from_secs(3_600);
        let (wall, steady) = (unix_ns(), now());
        step_wall_clock(true, hour);
        let ahead = unix_ns().saturating_sub(wall);
        step_wall_clock(false, hour);
        assert!(ahead >= hour.as_nanos() as u64, "{ahead} ns");
        assert!(now().since(steady) < hour && unix_ns() >= wall && unix_ns() - wall < hour.as_nanos() as u64);
    }
}
