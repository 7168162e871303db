//! The one room of this crate that reads the clock. Pure rooms are handed [`Moment`]s.

use std::sync::LazyLock;
use std::time::Instant;
use tiedkv_protocol::moment::Moment;

#[allow(clippy::disallowed_methods, reason = "this is the clock room")]
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Now, on this process's monotonic clock.
pub fn now() -> Moment {
    Moment(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// The wall clock, milliseconds since the Unix epoch; 0 before it. Only for what people read.
#[allow(clippy::disallowed_methods, reason = "this is the clock room")]
pub(crate) fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
