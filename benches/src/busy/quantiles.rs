//! Percentiles of pooled repeats and how sure they are. Pure.
//!
//! A percentile is the order statistic of rank ceil(q n). Its interval comes from resampling blocks of one second
//! (Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17, 1989):
//! reads that wait in one queue are slow together, so that single reads must not be drawn as if they were
//! independent; a second is far longer than what any queue here remembers.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Fewest reads above a percentile for which it is told.
pub const ABOVE_MIN: f64 = 10.0;
/// How often the blocks are drawn anew.
const DRAWS: usize = 400;
/// Share of the draws that lies outside of the interval, both sides together.
const OUTSIDE: f64 = 0.05;

/// Latencies of all repeats of one cell, microseconds, sorted, each with the block it belongs to.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    sorted: Vec<(u64, u32)>,
    blocks: u32,
}

impl Pool {
    /// Pools repeats; each is a list of (second of the repeat, latency).
    pub fn new<'a>(repeats: impl IntoIterator<Item = &'a [(u32, u64)]>) -> Self {
        let mut pool = Self::default();
        for repeat in repeats {
            let seconds = repeat.iter().map(|(second, _)| second + 1).max().unwrap_or(0);
            pool.sorted.extend(repeat.iter().map(|(second, latency)| (*latency, pool.blocks + second)));
            pool.blocks += seconds;
        }
        pool.sorted.sort_unstable();
        pool
    }

    /// How many reads.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// The mean; 0 without reads.
    pub fn mean(&self) -> f64 {
        self.sorted.iter().map(|(latency, _)| *latency as f64).sum::<f64>() / self.count().max(1) as f64
    }

    /// The largest; 0 without reads.
    pub fn max(&self) -> u64 {
        self.sorted.last().map_or(0, |(latency, _)| *latency)
    }

    /// Share of reads above `limit`, percent.
    pub fn share_above(&self, limit: u64) -> f64 {
        let below = self.sorted.partition_point(|(latency, _)| *latency <= limit);
        (self.count() - below) as f64 * 100.0 / self.count().max(1) as f64
    }

    /// The percentile, if at least ten reads lie above it.
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let enough = self.count() as f64 * (1.0 - q) >= ABOVE_MIN;
        enough.then(|| self.sorted[rank(q, self.count())].0)
    }

    /// The 95 % interval of the percentile; `None` where the percentile is not told or fewer than five blocks
    /// were measured.
    pub fn interval(&self, q: f64) -> Option<[u64; 2]> {
        self.quantile(q)?;
        if self.blocks < 5 {
            return None;
        }
        let mut sizes = vec![0u64; self.blocks as usize];
        self.sorted.iter().for_each(|(_, block)| sizes[*block as usize] += 1);
        // The same draws for every cell: an interval does not change when a report is made again.
        let mut rng = StdRng::seed_from_u64(1);
        let mut found: Vec<u64> = (0..DRAWS).filter_map(|_| self.draw(q, &sizes, &mut rng)).collect();
        found.sort_unstable();
        let at = |share: f64| found.get(((found.len() as f64 * share) as usize).min(found.len() - 1)).copied();
        Some([at(OUTSIDE / 2.0)?, at(1.0 - OUTSIDE / 2.0)?])
    }

    /// The percentile of blocks drawn with replacement.
    fn draw(&self, q: f64, sizes: &[u64], rng: &mut StdRng) -> Option<u64> {
        let mut times = vec![0u64; sizes.len()];
        for _ in sizes {
            times[rng.random_range(0..sizes.len())] += 1;
        }
        let all: u64 = times.iter().zip(sizes).map(|(times, size)| times * size).sum();
        if all == 0 {
            return None;
        }
        // From above: only the tail is walked.
        let mut above = all - rank(q, all as usize) as u64;
        self.sorted.iter().rev().find_map(|(latency, block)| {
            above = above.saturating_sub(times[*block as usize]);
            (above == 0).then_some(*latency)
        })
    }

    /// Points (share of reads above, latency) for a curve over log(1 - F), down to the last ten reads.
    pub fn curve(&self) -> Vec<(f64, u64)> {
        let mut points = Vec::new();
        let mut above = 1.0;
        while above * self.count() as f64 >= ABOVE_MIN {
            points.push((above, self.sorted[rank(1.0 - above, self.count())].0));
            above *= 0.8;
        }
        points
    }
}

/// Index of the order statistic of rank ceil(q n).
/// The percentile of sorted spans, if at least ten of them lie above it.
pub fn told(sorted: &[u64], q: f64) -> Option<u64> {
    let enough = sorted.len() as f64 * (1.0 - q) >= ABOVE_MIN;
    sorted.get(rank(q, sorted.len())).copied().filter(|_| enough)
}

fn rank(q: f64, count: usize) -> usize {
    // The product is a hair above the whole number it means at times.
    let rank = (q * count as f64 - 1e-6).ceil() as usize;
    rank.clamp(1, count.max(1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(seed: u64, seconds: u32, per_second: u32) -> Pool {
        let mut rng = StdRng::seed_from_u64(seed);
        let repeat: Vec<(u32, u64)> = (0..seconds * per_second)
            .map(|index| (index / per_second, (-(1.0 - rng.random::<f64>()).ln() * 1e6) as u64))
            .collect();
        Pool::new([repeat.as_slice()])
    }

    #[test]
    fn ranks_are_exact() {
        let repeat: Vec<(u32, u64)> = (1..=1_000).map(|latency| (0, latency)).collect();
        let pool = Pool::new([repeat.as_slice()]);
        assert_eq!((pool.quantile(0.5), pool.quantile(0.99)), (Some(500), Some(990)));
        assert_eq!(pool.quantile(0.999), None, "one read above is too few");
        assert_eq!((pool.max(), pool.mean()), (1_000, 500.5));
        assert_eq!(pool.share_above(900), 10.0);
        assert_eq!(pool.interval(0.5), None, "one block says nothing of its spread");
    }

    #[test]
    fn intervals_hold_the_truth_as_often_as_they_say() {
        // The p99 of an exponential of mean 10^6 is 4.605 x 10^6.
        let truth = (100f64.ln() * 1e6) as u64;
        let inside = (0..60)
            .filter(|seed| {
                let [low, high] = pool(*seed, 20, 500).interval(0.99).unwrap();
                (low..=high).contains(&truth)
            })
            .count();
        assert!((50..=60).contains(&inside), "{inside} of 60 intervals of 95 %");
    }

    #[test]
    fn reads_that_are_slow_together_widen_the_interval() {
        // The same latencies; in one pool the slow ones all lie in one second.
        let spread: Vec<(u32, u64)> =
            (0..10_000).map(|i| (i / 500, if i % 20 == 0 { 9_000 } else { 1_000 })).collect();
        let mut bunched: Vec<(u32, u64)> = (0..10_000).map(|i| (i / 500, 1_000)).collect();
        bunched[4_000..4_500].iter_mut().for_each(|(_, latency)| *latency = 9_000);
        assert_eq!(Pool::new([spread.as_slice()]).interval(0.98), Some([9_000, 9_000]));
        assert_eq!(Pool::new([bunched.as_slice()]).interval(0.98), Some([1_000, 9_000]));
    }

    #[test]
    fn the_curve_ends_ten_reads_before_the_end() {
        let curve = pool(1, 10, 100).curve();
        assert_eq!(curve[0].0, 1.0);
        let last = curve.last().unwrap().0;
        assert!((0.01..0.0125).contains(&last), "{last}");
        assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1));
    }
}
