//! The nemesis: real processes under seeded faults and a mixed load, and whether every promise held.
//!
//! [`run()`] is the whole of it; [`relay`] is the network that can be cut, [`load`] calls and writes down what it saw,
//! [`faults`] decides and does what goes wrong. Judging is done by [`crate::check`].

pub mod faults;
pub mod load;
mod run;

pub use run::{Report, Settings, run};
pub use tiedkv_benches::cluster::relay;

use std::time::{Duration, Instant};

/// The one clock of a run.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Begins now.
    #[allow(clippy::disallowed_methods, reason = "this is the clock room of the nemesis")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Since the begin.
    pub fn now(self) -> Duration {
        self.0.elapsed()
    }

    /// The same in nanoseconds.
    pub fn ns(self) -> u64 {
        u64::try_from(self.now().as_nanos()).unwrap_or(u64::MAX)
    }
}
