//! What a worker does for the service time of an operation: nothing (`real`), or wait as a model says.

use std::time::Duration;

/// Which device the lanes stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DeviceConfig {
    /// Operations take what the storage engine takes.
    Real,
    /// Operations wait for a drawn service time; nothing spins.
    Modelled(ModelledConfig),
}

/// The model of a device (DESIGN.md section 5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelledConfig {
    /// Mean service time S; 10 us to 10 s.
    pub mean_service: Duration,
    /// Seeds the draws; the same on every replica.
    pub seed: u64,
    /// Whether disturbances may be set at run time.
    pub disturbance_allowed: bool,
}
