//! When storage fails: told after one error, latched after three in a second, tried again one copy at a time.
//! Also the estimate of the median service time. Pure.
//!
//! A node whose disk fails fast would win every tie with an error. So after three errors within a second copies
//! are refused before their start, which costs a client nothing; every second one copy is let through as a probe.

use std::time::Duration;
use tiedkv_protocol::moment::Moment;

/// So many errors ...
const ERRORS: usize = 3;
/// ... within this latch.
const WITHIN: Duration = Duration::from_secs(1);
/// Time between probes while latched: doubles with each failed one up to [`PROBE_MAX`].
const PROBE: Duration = Duration::from_secs(1);
/// Longest time between probes.
const PROBE_MAX: Duration = Duration::from_secs(8);
/// Answers say that storage is suspect until this long after the last error.
const SUSPECT: Duration = Duration::from_secs(10);

/// The health of the storage of one node.
#[derive(Clone, Debug, Default)]
pub struct StorageHealth {
    recent: [Option<Moment>; ERRORS],
    latched: Option<Latched>,
}

#[derive(Clone, Copy, Debug)]
struct Latched {
    probe_at: Moment,
    gap: Duration,
}

impl StorageHealth {
    /// A read failed.
    pub fn failed(&mut self, now: Moment) {
        self.recent.rotate_left(1);
        self.recent[ERRORS - 1] = Some(now);
        if let Some(latched) = self.latched {
            let gap = (latched.gap * 2).min(PROBE_MAX);
            self.latched = Some(Latched { probe_at: now + gap, gap });
        } else if self.recent[0].is_some_and(|first| now.since(first) <= WITHIN) {
            self.latched = Some(Latched { probe_at: now + PROBE, gap: PROBE });
        }
    }

    /// A read succeeded.
    pub fn succeeded(&mut self) {
        self.latched = None;
    }

    /// Whether a copy must be refused before its start; false lets it through, while latched as the one probe.
    pub fn refuses(&mut self, now: Moment) -> bool {
        match &mut self.latched {
            None => false,
            Some(latched) if now >= latched.probe_at => {
                latched.probe_at = now + latched.gap;
                false
            }
            Some(_) => true,
        }
    }

    /// True while latched and no probe is due: refuse at admission.
    pub fn latched(&self, now: Moment) -> bool {
        self.latched.is_some_and(|latched| now < latched.probe_at)
    }

    /// True for a while after an error.
    pub fn suspect(&self, now: Moment) -> bool {
        self.latched.is_some() || self.recent[ERRORS - 1].is_some_and(|last| now.since(last) <= SUSPECT)
    }
}

/// Median of service times, moved by a fiftieth at each sample that is not on its side (stochastic approximation
/// of a quantile, Robbins and Monro 1951): follows a change by 10 x within about 120 samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceMedian {
    nanos: f64,
    samples: u32,
}

/// Before so many samples the median is unknown.
const SAMPLES_MIN: u32 = 16;

impl ServiceMedian {
    /// One good answer's service time.
    pub fn sample(&mut self, service: Duration) {
        let nanos = service.as_nanos() as f64;
        self.samples = self.samples.saturating_add(1);
        if self.samples == 1 {
            self.nanos = nanos.max(1.0);
        } else if nanos > self.nanos {
            self.nanos *= 1.02;
        } else {
            self.nanos /= 1.02;
        }
    }

    /// The median; zero while unknown.
    pub fn median(&self) -> Duration {
        if self.samples < SAMPLES_MIN { Duration::ZERO } else { Duration::from_nanos(self.nanos as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::device::ModelledConfig;
    use tiedkv_protocol::ids::ReadId;

    fn at(ms: u64) -> Moment {
        Moment(ms * 1_000_000)
    }

    #[test]
    fn three_errors_within_a_second_latch() {
        let mut health = StorageHealth::default();
        assert!(!health.suspect(at(0)));
        for ms in [0, 600, 1_200, 1_500] {
            assert!(!health.latched(at(ms)), "{ms}");
            health.failed(at(ms));
            assert!(health.suspect(at(ms)));
        }
        assert!(health.latched(at(1_501)) && health.refuses(at(1_501)));
    }

    #[test]
    fn a_latched_node_lets_one_probe_through_each_time_and_opens_when_it_succeeds() {
        let mut health = StorageHealth::default();
        [0, 1, 2].into_iter().for_each(|ms| health.failed(at(ms)));
        assert!(health.refuses(at(900)));
        assert!(!health.refuses(at(1_003)));
        assert!(health.refuses(at(1_004)), "one probe, not two");
        health.failed(at(1_010));
        assert!(health.refuses(at(2_900)), "the next probe waits twice as long");
        assert!(!health.refuses(at(3_011)));
        health.succeeded();
        assert!(!health.refuses(at(3_012)) && health.suspect(at(3_012)) && !health.suspect(at(12_000)));
    }

    #[test]
    fn a_lost_probe_does_not_close_the_node_for_good() {
        let mut health = StorageHealth::default();
        [0, 1, 2].into_iter().for_each(|ms| health.failed(at(ms)));
        assert!(!health.refuses(at(1_100)));
        // The probe was withdrawn and reported nothing.
        assert!(!health.refuses(at(2_200)));
    }

    #[test]
    fn the_median_finds_the_middle_of_the_model() {
        let model = ModelledConfig { mean_service: Duration::from_millis(5), seed: 1, disturbance_allowed: false };
        let mut median = ServiceMedian::default();
        (0..15).for_each(|read| median.sample(model.service(ReadId(read))));
        assert_eq!(median.median(), Duration::ZERO);
        (15..2_000).for_each(|read| median.sample(model.service(ReadId(read))));
        // 0.3 S + 0.7 S x 0.918 (the median of Erlang-4 with mean 1) = 4.71 ms.
        let micros = median.median().as_micros();
        assert!((4_000..5_500).contains(&micros), "{micros}");
    }
}
