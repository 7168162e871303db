//! The one room of this crate that reads clocks: a load generator is about real time.
#![allow(clippy::disallowed_methods, reason = "this is the clock room")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Now, on the monotonic clock.
pub fn now() -> Instant {
    Instant::now()
}

/// Time since the Unix epoch; zero if the clock stands before it.
pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
