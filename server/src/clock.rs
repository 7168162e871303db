//! The one room of this crate that reads the clock. Pure rooms are handed [`Moment`]s.

use std::sync::LazyLock;
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

/// The wall clock, nanoseconds since the Unix epoch; 0 before it. Only for what must agree between nodes.
#[allow(clippy::disallowed_methods, reason = "this is the clock room")]
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
