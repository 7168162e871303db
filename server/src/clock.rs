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
