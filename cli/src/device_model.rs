//! The modelled device's draws for the benchmark's ideals, by the code that the nodes run.

use std::time::Duration;
use tiedkv_benches::busy::player::LANES;
use tiedkv_benches::busy::trace::{DeviceModel, DrawnJob};
use tiedkv_benches::cluster::NodeSettings;
use tiedkv_protocol::ids::{NodeId, ReadId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::Disturbance;
use tiedkv_server::storage::device::ModelledConfig;
use tiedkv_server::storage::disturbance::{LaneDisturbance, LaneName};
use tiedkv_server::storage::key::LaneOfKey;

/// The device as the benchmark's clusters are told to model it.
pub struct ServerModel(ModelledConfig);

impl ServerModel {
    /// The device of a cluster with this mean service time, microseconds.
    pub fn new(service_us: u64) -> Self {
        Self(ModelledConfig {
            mean_service: Duration::from_micros(service_us),
            seed: NodeSettings::default().seed,
            disturbance_allowed: true,
        })
    }
}

impl DeviceModel for ServerModel {
    fn service(&self, read: ReadId) -> Duration {
        self.0.service(read)
    }

    fn lane(&self, node: NodeId, key: &[u8]) -> u16 {
        LaneOfKey::new(node, LANES).lane(key)
    }

    fn jobs(&self, node: NodeId, disturbance: &Disturbance, since: Moment, until: Moment) -> Vec<DrawnJob> {
        let mut jobs = Vec::new();
        for lane in 0..LANES {
            // The wall clock moves correlated stalls only; jobs do not depend on it.
            let name = LaneName { node, lane, workers: 1 };
            let mut drawn = LaneDisturbance::new(disturbance, &self.0, name, since, 0);
            while let Some(job) = drawn.job_due(until) {
                jobs.push(DrawnJob { lane, arrived: job.arrived, service: job.service });
            }
        }
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_offer_the_load_that_is_asked_for() {
        let busy = Disturbance { jobs_load: 0.2, ..Disturbance::default() };
        let until = Moment(200_000_000_000);
        let jobs = ServerModel::new(5_000).jobs(NodeId(1), &busy, Moment(0), until);
        let work: Duration = jobs.iter().map(|job| job.service).sum();
        let load = work.as_secs_f64() / 200.0 / f64::from(LANES);
        assert!((0.19..0.21).contains(&load), "{load}");
        assert!(jobs.iter().all(|job| job.lane < LANES && job.arrived <= until));
    }
}
