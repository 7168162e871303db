//! Settings of the request path, with their defaults and bounds. Reads no file: the node's `config` room does.

use crate::request::tie::BARRIER_MAX;
use crate::storage::device::DeviceConfig;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::{TIE_DELAY_CAP, TIME_LEFT_MAX};

/// Settings of one node's request path.
#[derive(Clone, Debug)]
pub struct RequestConfig {
    /// This node.
    pub node: NodeId,
    /// Work queues; 1 to 256. A `real` device has one per data disk.
    pub lanes: u16,
    /// OS threads per lane; 1 to 64.
    pub workers_per_lane: u16,
    /// What the workers do for a service time.
    pub device: DeviceConfig,
    /// Most copies and jobs that wait in one lane; one more is answered `Busy`. Default 4096.
    pub queue_max: usize,
    /// Most copies of one lane that are set aside until the replica can serve them. Default 256.
    pub aside_max: usize,
    /// Longest time a copy is set aside (also at most half of its time left). Default: the tie-delay cap.
    pub aside_limit: Duration,
    /// Longest time a copy waits for the answer to its read barrier (also at most half of its time left). Default
    /// 500 ms.
    pub barrier_limit: Duration,
    /// Finished ties and early cancels remembered, over all stripes; an eviction costs a duplicate. Default 65,536.
    pub recent_ties_max: usize,
    /// Longest time left that a copy is given. Default 60 s.
    pub time_left_max: Duration,
    /// Most copies of one caller in flight here. Default 16,384.
    pub caller_in_flight_max: u32,
    /// Most copies of one connection in flight here. Default 8,192.
    pub connection_in_flight_max: u32,
    /// Most copies per second of one caller; 0 means no cap (default). The burst is a tenth of a second's worth.
    pub caller_rate_max: u32,
    /// A modelled operation longer than this gives its worker up after this long and queues again. Default 100 ms.
    pub chunk_max: Duration,
    /// Most pages of scans admitted at once; one more is answered `Busy`. Default 128, so that pages hold at most
    /// 128 MiB (one that is a single larger row holds what a get of it does).
    pub pages_max: u32,
    /// Start records kept while recording is on. Default 262,144.
    pub start_records_max: usize,
    /// Copies that are here for this long or longer stand in the slow-read log; zero: none. Default 100 ms.
    pub slow_read: Duration,
    /// Lower the priority of workers (nice +19): for machines where the cancel thread may not run SCHED_FIFO.
    pub nice_workers: bool,
    /// Workers ask for a short slice, so that they are not late on a busy machine.
    pub prompt_workers: bool,
}

impl RequestConfig {
    /// The defaults of a node with a real device, one lane and four workers.
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            lanes: 1,
            workers_per_lane: 4,
            device: DeviceConfig::Real,
            queue_max: 4096,
            aside_max: 256,
            aside_limit: TIE_DELAY_CAP,
            barrier_limit: BARRIER_MAX,
            recent_ties_max: 64 * 1024,
            time_left_max: TIME_LEFT_MAX,
            caller_in_flight_max: 16 * 1024,
            connection_in_flight_max: 8 * 1024,
            caller_rate_max: 0,
            chunk_max: Duration::from_millis(100),
            pages_max: 128,
            start_records_max: 256 * 1024,
            slow_read: Duration::from_millis(100),
            nice_workers: false,
            prompt_workers: false,
        }
    }

    /// Checks bounds.
    ///
    /// # Errors
    /// Names the first setting that is out of its bounds.
    pub fn check(&self) -> Result<(), BadRequestConfig> {
        let bad = |setting, bounds| Err(BadRequestConfig { setting, bounds });
        if !(1..=256).contains(&self.lanes) {
            return bad("lanes", "1 to 256");
        }
        if !(1..=64).contains(&self.workers_per_lane) {
            return bad("workers_per_lane", "1 to 64");
        }
        if !(1..=1 << 20).contains(&self.queue_max) {
            return bad("queue_max", "1 to 1,048,576");
        }
        if self.recent_ties_max < 64 {
            return bad("recent_ties_max", "at least 64");
        }
        if self.time_left_max > TIME_LEFT_MAX || self.time_left_max.is_zero() {
            return bad("time_left_max", "more than 0, at most 60 s");
        }
        if self.chunk_max < Duration::from_micros(100) {
            return bad("chunk_max", "at least 100 us");
        }
        Ok(())
    }
}

/// A setting that is out of its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("setting `{setting}` must be {bounds}")]
pub struct BadRequestConfig {
    /// Which.
    pub setting: &'static str,
    /// What it may be.
    pub bounds: &'static str,
}
