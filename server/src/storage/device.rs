//! The device that a lane stands for: `real` passes through, `modelled` makes the worker wait, never spin, for a
//! drawn service time (docs/performance.md, the profile).
//!
//! The draw depends on the seed and the ReadId alone, so it is the same on every replica. What disturbs a device
//! is drawn in `disturbance`; who waits, and how a wait is cut short, is `wait`'s job. Pure: reads no clock.

use crate::storage::key::mix;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::ReadId;
use tiedkv_protocol::request::Disturbance;
use tiedkv_protocol::response::Failure;

/// Which device the lanes stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceConfig {
    /// Operations take what the storage engine takes.
    Real,
    /// Operations wait for a drawn service time; nothing spins.
    Modelled(ModelledConfig),
}

/// The model of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelledConfig {
    /// Mean service time S; 10 us to 10 s.
    pub mean_service: Duration,
    /// Seeds the draws; the same on every replica.
    pub seed: u64,
    /// Whether disturbances may be set at run time.
    pub disturbance_allowed: bool,
}

/// Bounds of the mean service time of a model.
pub const MEAN_SERVICE_BOUNDS: (Duration, Duration) = (Duration::from_micros(10), Duration::from_secs(10));

impl ModelledConfig {
    /// The service time of one copy of `read`: 0.3 S + 0.7 S x Erlang-4, coefficient of variation .35.
    pub fn service(&self, read: ReadId) -> Duration {
        let mut draws = Draws::new(self.seed ^ mix(read.0 as u64) ^ mix((read.0 >> 64) as u64).rotate_left(17));
        let product: f64 = (0..4).map(|_| draws.unit()).product();
        self.mean_service.mul_f64(0.3 + 0.7 * (-product.ln() / 4.0))
    }
}

impl DeviceConfig {
    /// True for a model: every answer and status says so.
    pub fn is_modelled(&self) -> bool {
        matches!(self, Self::Modelled(_))
    }

    /// The service time to wait for; zero on a real device.
    pub fn service(&self, read: ReadId) -> Duration {
        match self {
            Self::Real => Duration::ZERO,
            Self::Modelled(model) => model.service(read),
        }
    }

    /// The service time of gets that travel together: a draw for each.
    pub fn gets_service(&self, read: ReadId, gets: u32) -> Duration {
        match self {
            Self::Real => Duration::ZERO,
            Self::Modelled(_) => {
                (0..gets).map(|get| self.service(ReadId(read.0.wrapping_add(u128::from(get))))).sum()
            }
        }
    }

    /// The service time of one chunk of a page: a draw of its own, at most the mean.
    pub fn chunk_service(&self, read: ReadId, chunk: u32) -> Duration {
        match self {
            Self::Real => Duration::ZERO,
            Self::Modelled(model) => {
                model.service(ReadId(read.0.wrapping_add(u128::from(chunk)))).min(model.mean_service)
            }
        }
    }

    /// The model, if this device may be disturbed as asked.
    ///
    /// # Errors
    /// `NotAllowed` on a real device or when the node was not started so; `OverLimit` for values out of bounds.
    pub fn check_disturbance(&self, asked: &Disturbance) -> Result<ModelledConfig, Failure> {
        let not_allowed = |why| Err(Failure::new(ErrorCode::NotAllowed, why));
        let model = match self {
            Self::Real => return not_allowed("the device of this node is real; it cannot be disturbed"),
            Self::Modelled(model) if !model.disturbance_allowed => {
                return not_allowed("this node was not started with disturbance allowed");
            }
            Self::Modelled(model) => *model,
        };
        let bounds = [
            ("jobs_load", asked.jobs_load, 0.0, 0.95),
            ("stall_share", asked.stall_share, 0.0, 0.9),
            ("stall_correlated", asked.stall_correlated, 0.0, 1.0),
            ("slow_factor", asked.slow_factor, 0.01, 1000.0),
        ];
        for (name, value, low, high) in bounds {
            if !(low..=high).contains(&value) {
                let message = format!("disturbance `{name}` is {value}; it must be within {low} and {high}");
                return Err(Failure::new(ErrorCode::OverLimit, message));
            }
        }
        // A far smaller load means gaps between jobs that no clock of ours can name.
        if asked.jobs_load > 0.0 && asked.jobs_load < 1e-4 {
            let message =
                format!("disturbance `jobs_load` is {}; it must be 0 or at least 0.0001", asked.jobs_load);
            return Err(Failure::new(ErrorCode::OverLimit, message));
        }
        if asked.stall_share > 0.0 && !(100..=60_000_000).contains(&asked.stall_us) {
            let message = "disturbance `stall_us` must be within 100 and 60,000,000 while `stall_share` is above 0";
            return Err(Failure::new(ErrorCode::OverLimit, message));
        }
        if asked.jobs_mean_us > 60_000_000 {
            let message = "disturbance `jobs_mean_us` must be at most 60,000,000";
            return Err(Failure::new(ErrorCode::OverLimit, message));
        }
        Ok(model)
    }
}

/// A stream of draws that is the same in every version (SplitMix64), unlike those of a random number crate.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// A stream by its seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Uniform in (0, 1].
    pub fn unit(&mut self) -> f64 {
        let bits = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Exponential with this mean.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-self.unit().ln())
    }
}

#[cfg(test)]
#[path = "device_test.rs"]
mod tests;
