//! A point on a monotonic clock that somebody else reads: what pure rooms compute with.
//!
//! Moments of two processes are never compared. This room reads no clock; each crate's `clock` room makes
//! moments, a simulation makes them up.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Nanoseconds since a start that only the maker of the moment knows. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// The start of the clock.
    pub const ZERO: Moment = Moment(0);

    /// Time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Whole microseconds since the start.
    pub fn as_micros(self) -> u64 {
        self.0 / 1_000
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Moment;

    fn sub(self, span: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}
