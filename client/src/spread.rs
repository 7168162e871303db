//! A histogram of spans that many threads count into, and its snapshots.
//!
//! Log-linear, relative error below 13 %, fixed size: nothing is allocated when something is counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets: 0..=15 us one each, then 8 per octave up to 67 s, the last one open.
const BUCKETS: usize = 16 + 8 * 22 + 1;

/// The living histogram.
#[derive(Debug)]
pub(crate) struct Spread {
    buckets: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum_us: AtomicU64::new(0) }
    }
}

impl Spread {
    /// Counts one span.
    pub(crate) fn add(&self, span: Duration) {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.buckets[bucket(us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    pub(crate) fn snapshot(&self) -> Spans {
        Spans {
            counts: self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect(),
            sum_us: self.sum_us.load(Relaxed),
        }
    }
}

/// Spans that were counted, as a snapshot. Quantiles are upper bounds of their buckets (13 % wide).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Empty, or one per bucket.
    counts: Vec<u64>,
    sum_us: u64,
}

impl Spans {
    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// All of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
    }

    /// `None` when nothing was counted.
    pub fn mean(&self) -> Option<Duration> {
        self.sum_us.checked_div(self.count()).map(Duration::from_micros)
    }

    /// The span that a share `q` (0.0 to 1.0) does not exceed; `None` when nothing was counted.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        let reaches = |count: &u64| {
            seen += count;
            seen >= rank
        };
        self.counts.iter().position(reaches).map(|index| Duration::from_micros(upper(index)))
    }

    /// Share of spans longer than `span`, by whole buckets; 0.0 when nothing was counted.
    pub fn share_over(&self, span: Duration) -> f64 {
        let us = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let over: u64 = self.counts.iter().skip(bucket(us) + 1).sum();
        let all = self.count();
        if all == 0 { 0.0 } else { over as f64 / all as f64 }
    }

    /// Counts per bucket as (upper bound, count so far), for cumulative histograms; empty buckets are left out.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut seen = 0;
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(move |(index, count)| {
            seen += count;
            (Duration::from_micros(upper(index)), seen)
        })
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Spans) {
        if self.counts.is_empty() {
            self.counts.clone_from(&other.counts);
        } else {
            self.counts.iter_mut().zip(&other.counts).for_each(|(own, more)| *own += more);
        }
        self.sum_us += other.sum_us;
    }
}

fn bucket(us: u64) -> usize {
    if us < 16 {
        return us as usize;
    }
    let octave = 63 - us.leading_zeros() as usize;
    let within = ((us >> (octave - 3)) & 7) as usize;
    (16 + (octave - 4) * 8 + within).min(BUCKETS - 1)
}

fn upper(index: usize) -> u64 {
    if index < 16 {
        return index as u64;
    }
    let octave = 4 + (index - 16) / 8;
    let within = ((index - 16) % 8) as u64;
    ((8 + within + 1) << (octave - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for us in [0, 1, 15, 16, 17, 31, 32, 100, 999, 65_535, 1_000_000, 60_000_000] {
            let index = bucket(us);
            assert!(upper(index) >= us, "{us} in {index} up to {}", upper(index));
            assert!(index == 0 || upper(index - 1) < us, "{us} also fits below {index}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_means_and_shares_of_a_spread() {
        let spread = Spread::default();
        assert_eq!((spread.snapshot().quantile(0.5), spread.snapshot().mean()), (None, None));
        (1..=100).for_each(|us| spread.add(Duration::from_micros(us)));
        let spans = spread.snapshot();
        let us = |q| spans.quantile(q).unwrap().as_micros();
        assert!((50..57).contains(&us(0.5)), "{}", us(0.5));
        assert!((99..113).contains(&us(0.99)));
        assert_eq!((spans.count(), spans.mean()), (100, Some(Duration::from_micros(50))));
        assert!((0.45..0.55).contains(&spans.share_over(Duration::from_micros(50))));
        let mut twice = spans.clone();
        twice.merge(&spans);
        assert_eq!((twice.count(), twice.cumulative().last().unwrap().1), (200, 200));
    }
}
