//! When reads are due: an open-loop Poisson stream, drawn from a seed. Pure: no clock, no waiting.
//!
//! The plan never reacts to answers: a slow answer delays no later send, so waits are not hidden
//! (coordinated omission).

use super::workload::mix;
use rand::Rng;
use std::time::Duration;
use tiedkv_protocol::ids::ReadId;

/// One planned read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it is due, from the start of the scene.
    pub at: Duration,
    /// Which client view sends it.
    pub view: usize,
    /// Which key it reads.
    pub key: u64,
}

/// The identity of the read at `index` of the plan of `seed`: modelled devices draw its service time from it, so that every
/// policy that plays the plan meets the same draws. Nodes keep start records of one playing only, so that the same
/// identities in the next one are not mistaken for these.
pub fn read_id(seed: u64, index: u64) -> ReadId {
    let at = mix(seed).wrapping_add(index.wrapping_mul(2));
    ReadId((u128::from(mix(at)) << 64) | u128::from(mix(at.wrapping_add(1))))
}

/// A Poisson stream of reads over some views and keys.
pub struct Arrivals<R> {
    rng: R,
    mean_gap_s: f64,
    views: usize,
    keys: u64,
    now: Duration,
}

impl<R: Rng> Arrivals<R> {
    /// A stream of `rate_per_s` reads over `views` (at least 1) views and `keys` (at least 1) keys, both uniform.
    ///
    /// # Panics
    /// When the rate is not positive and finite.
    pub fn new(rng: R, rate_per_s: f64, views: usize, keys: u64) -> Self {
        assert!(rate_per_s.is_finite() && rate_per_s > 0.0, "a rate is positive");
        Self { rng, mean_gap_s: 1.0 / rate_per_s, views: views.max(1), keys: keys.max(1), now: Duration::ZERO }
    }
}

impl<R: Rng> Iterator for Arrivals<R> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        // 1 - u is in (0, 1], so the logarithm is finite.
        let gap = -(1.0 - self.rng.random::<f64>()).ln() * self.mean_gap_s;
        self.now += Duration::from_secs_f64(gap);
        let view = self.rng.random_range(0..self.views);
        let key = self.rng.random_range(0..self.keys);
        Some(Arrival { at: self.now, view, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::collections::HashSet;

    fn stream(seed: u64) -> Arrivals<StdRng> {
        Arrivals::new(StdRng::seed_from_u64(seed), 1_000.0, 64, 20_000)
    }

    #[test]
    fn the_same_seed_plans_the_same_reads() {
        let first: Vec<_> = stream(1).take(1_000).collect();
        assert_eq!(first, stream(1).take(1_000).collect::<Vec<_>>());
        assert_ne!(first, stream(2).take(1_000).collect::<Vec<_>>());
    }

    #[test]
    fn identities_are_those_of_plan_and_index_alone() {
        let plan = |seed: u64| (0..10_000).map(|index| read_id(seed, index)).collect::<HashSet<ReadId>>();
        assert_eq!(plan(1), plan(1));
        assert_eq!(plan(1).len(), 10_000);
        assert!(plan(1).is_disjoint(&plan(2)) && plan(1).is_disjoint(&plan(102)), "repeats differ");
    }

    #[test]
    fn gaps_are_exponential() {
        let plan: Vec<_> = stream(3).take(100_000).collect();
        let gaps: Vec<f64> =
            plan.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64() * 1_000.0).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| gap * gap).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "mean gap {mean} of 1");
        assert!((square - 2.0).abs() < 0.1, "second moment {square} of 2");
        let long = gaps.iter().filter(|gap| **gap > 3.0).count() as f64 / gaps.len() as f64;
        assert!((long - (-3.0f64).exp()).abs() < 0.005, "share of gaps over 3 means: {long}");
    }

    #[test]
    fn all_views_and_keys_get_their_share() {
        let mut views = [0u32; 64];
        for arrival in stream(4).take(64_000) {
            views[arrival.view] += 1;
            assert!(arrival.key < 20_000);
        }
        assert!(views.iter().all(|count| (800..1_200).contains(count)), "{views:?}");
    }
}
