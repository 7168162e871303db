//! What disturbs a modelled device, drawn per lane: background jobs, stalls, slow-downs. Pure: time comes in.
//!
//! A stall belongs to the device until its end. Cutting an operation short (yield, withdraw) ends only its service
//! part: otherwise a stalled node would free its worker at once, start the next copy, and win every tie.

use crate::storage::device::{Draws, ModelledConfig};
use crate::storage::key::mix;
use std::time::Duration;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::{Class, Disturbance};

/// The disturbance of one lane.
#[derive(Clone, Debug)]
pub struct LaneDisturbance {
    jobs: Option<JobArrivals>,
    /// How the lane's device runs.
    pub pace: Pace,
}

/// How fast a lane's device runs, and when it stands still. Small: a worker takes a copy per operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    slow_factor: f64,
    after_start: bool,
    own: Stalls,
    shared: Stalls,
    /// What makes the lane's moments comparable with those of other nodes.
    unix_offset_ns: u64,
}

/// One background job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// When it joined the queue.
    pub arrived: Moment,
    /// Its service time, before any slow-down.
    pub service: Duration,
    /// Its class.
    pub class: Class,
}

/// What a device does next with an operation that has work left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePhase {
    /// It stands still until then; nothing cuts this short.
    Stalled(Moment),
    /// It serves until then; may be cut short.
    Serving(Moment),
}

impl LaneDisturbance {
    /// A quiet lane.
    pub fn quiet() -> Self {
        let none = Stalls { seed: 0, epoch_ns: 0, stall_ns: 0 };
        let pace = Pace { slow_factor: 1.0, after_start: false, own: none, shared: none, unix_offset_ns: 0 };
        Self { jobs: None, pace }
    }

    /// A lane of `node` disturbed from `now` on. `workers` share the offered load; `unix_ns` is the wall clock now,
    /// by which nodes agree on correlated stalls (later jumps of the wall clock change nothing).
    pub fn new(asked: &Disturbance, model: &ModelledConfig, lane: LaneName, now: Moment, unix_ns: u64) -> Self {
        let seed = mix(asked.seed) ^ mix(lane.node.0 ^ 0x6c61_6e65).rotate_left(9) ^ mix(u64::from(lane.lane));
        let stalls = |share: f64, seed: u64| {
            let stall_ns = asked.stall_us.saturating_mul(1_000);
            let epoch_ns = if share > 0.0 { (stall_ns as f64 / share.min(0.9)) as u64 } else { 0 };
            Stalls { seed, epoch_ns, stall_ns }
        };
        let pace = Pace {
            slow_factor: asked.slow_factor,
            after_start: asked.stall_after_start,
            own: stalls(asked.stall_share * (1.0 - asked.stall_correlated), seed),
            shared: stalls(asked.stall_share * asked.stall_correlated, mix(asked.seed ^ 0x7368_6172_6564)),
            unix_offset_ns: unix_ns.saturating_sub(now.0),
        };
        Self { jobs: JobArrivals::new(asked, model, lane.workers, now, seed), pace }
    }

    /// The next job that arrived by `now`. Call until `None`, before anything joins or leaves the queue, so that
    /// jobs stand in the queue in the order of arrival.
    pub fn job_due(&mut self, now: Moment) -> Option<Job> {
        let jobs = self.jobs.as_mut().filter(|jobs| jobs.next <= now)?;
        Some(jobs.take())
    }

    /// When the next job arrives.
    pub fn next_job(&self) -> Option<Moment> {
        self.jobs.as_ref().map(|jobs| jobs.next)
    }
}

/// Which lane, for draws.
#[derive(Clone, Copy, Debug)]
pub struct LaneName {
    /// Of which node.
    pub node: NodeId,
    /// Which of its lanes.
    pub lane: u16,
    /// How many workers serve it.
    pub workers: u16,
}

/// Poisson arrivals of jobs with exponential service times.
#[derive(Clone, Debug)]
struct JobArrivals {
    draws: Draws,
    gap_mean: Duration,
    service_mean: Duration,
    service_max: Duration,
    class: Class,
    next: Moment,
}

impl JobArrivals {
    fn new(asked: &Disturbance, model: &ModelledConfig, workers: u16, now: Moment, seed: u64) -> Option<Self> {
        if asked.jobs_load <= 0.0 {
            return None;
        }
        let service_mean = match asked.jobs_mean_us {
            0 => model.mean_service,
            mean => Duration::from_micros(mean),
        };
        let service_max = match asked.jobs_cap_us {
            0 => Duration::MAX,
            cap => Duration::from_micros(cap),
        };
        // The mean of an exponential cut at its cap c is m (1 - e^(-c/m)); the load asked for is what is offered.
        let kept = 1.0 - (-(service_max.as_secs_f64() / service_mean.as_secs_f64())).exp();
        let gap_mean = service_mean.mul_f64(kept / (asked.jobs_load * f64::from(workers.max(1))));
        let mut draws = Draws::new(seed ^ 0x6a6f_6273);
        let next = now + draws.exponential(gap_mean);
        Some(Self { draws, gap_mean, service_mean, service_max, class: asked.jobs_class, next })
    }

    fn take(&mut self) -> Job {
        let service = self.draws.exponential(self.service_mean).min(self.service_max);
        let job = Job { arrived: self.next, service, class: self.class };
        self.next = self.next + self.draws.exponential(self.gap_mean);
        job
    }
}

impl Pace {
    /// A service time at this pace.
    pub fn slowed(&self, service: Duration) -> Duration {
        if self.slow_factor == 1.0 { service } else { service.mul_f64(self.slow_factor) }
    }

    /// The end of the stall that keeps the lane from starting anything now. A queue that stands behind a stall can
    /// be cancelled as usual.
    pub fn start_stalled_until(&self, now: Moment) -> Option<Moment> {
        if self.after_start { None } else { self.stalled_until(now) }
    }

    /// What the device does from `now` on with an operation that started and has `left` to be served.
    pub fn phase(&self, now: Moment, left: Duration) -> DevicePhase {
        if !self.after_start {
            return DevicePhase::Serving(now + left);
        }
        if let Some(end) = self.stalled_until(now) {
            return DevicePhase::Stalled(end);
        }
        let served = now + left;
        let stall = self.own.next_start(now).into_iter().chain(self.shared_next_start(now)).min();
        DevicePhase::Serving(stall.map_or(served, |stall| stall.min(served)))
    }

    fn stalled_until(&self, now: Moment) -> Option<Moment> {
        let mut end = now;
        // Two windows can follow each other; each step goes strictly forward.
        while let Some(later) = self.own.window_end(end).max(self.shared_window_end(end)) {
            end = later;
        }
        (end > now).then_some(end)
    }

    fn shared_window_end(&self, now: Moment) -> Option<Moment> {
        let end = self.shared.window_end(Moment(now.0.saturating_add(self.unix_offset_ns)))?;
        Some(Moment(end.0.saturating_sub(self.unix_offset_ns)))
    }

    fn shared_next_start(&self, now: Moment) -> Option<Moment> {
        let start = self.shared.next_start(Moment(now.0.saturating_add(self.unix_offset_ns)))?;
        Some(Moment(start.0.saturating_sub(self.unix_offset_ns)))
    }
}

/// Stalls as a function of time: time is cut into epochs, each holds one stall at a drawn place. So nodes with one
/// seed and one clock agree without a word, and the share of stalled time is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stalls {
    seed: u64,
    /// 0: no stalls.
    epoch_ns: u64,
    stall_ns: u64,
}

impl Stalls {
    /// Where in time the epochs begin: nodes with their own seeds must not share them, since a stall is likelier in
    /// the middle of an epoch than at its ends.
    fn shift(&self) -> u64 {
        mix(self.seed ^ 0x7368_6966).checked_rem(self.epoch_ns).unwrap_or(0)
    }

    fn epoch(&self, now: Moment) -> Option<u64> {
        now.0.saturating_add(self.shift()).checked_div(self.epoch_ns)
    }

    /// Start and end of the stall of an epoch.
    fn window(&self, epoch: u64) -> (u64, u64) {
        let room = self.epoch_ns.saturating_sub(self.stall_ns);
        let offset = (Draws::new(self.seed ^ mix(epoch)).unit() * room as f64) as u64;
        let start = epoch.saturating_mul(self.epoch_ns).saturating_add(offset);
        let end = start.saturating_add(self.stall_ns);
        (start.saturating_sub(self.shift()), end.saturating_sub(self.shift()))
    }

    fn window_end(&self, now: Moment) -> Option<Moment> {
        let (start, end) = self.window(self.epoch(now)?);
        (start <= now.0 && now.0 < end).then_some(Moment(end))
    }

    fn next_start(&self, now: Moment) -> Option<Moment> {
        let epoch = self.epoch(now)?;
        [epoch, epoch.saturating_add(1)]
            .into_iter()
            .map(|e| self.window(e).0)
            .find(|start| *start > now.0)
            .map(Moment)
    }
}

#[cfg(test)]
#[path = "disturbance_test.rs"]
mod tests;
