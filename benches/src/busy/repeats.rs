//! What each repeat of a row counted: how far repeats lie apart is how sure a count is. Pure.

use super::sample::Sample;
use serde::{Deserialize, Serialize};

/// Counts of one repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RepeatCounts {
    /// Reads with a good answer.
    pub good_reads: u64,
    /// As the row's `duplicates_pct`.
    pub duplicates_pct: f64,
    /// As the row's `wasted_work_pct`.
    pub wasted_work_pct: f64,
    /// As the row's `wasted_extra_pct`.
    pub wasted_extra_pct: f64,
    /// As the row's `served_us_per_read`.
    pub served_us_per_read: f64,
    /// As the row's `not_tied_pct`.
    pub not_tied_pct: f64,
}

impl RepeatCounts {
    /// Those of a sample; `one_winner`: its records can be told apart by read.
    pub fn of(sample: &Sample, one_winner: bool) -> Self {
        let (joined, good_reads) = (&sample.joined, sample.reads - sample.errors);
        let served = if one_winner { good_reads } else { sample.sent };
        Self {
            good_reads,
            duplicates_pct: joined.duplicates_pct(),
            wasted_work_pct: joined.wasted_pct(),
            wasted_extra_pct: joined.wasted_extra_us as f64 * 100.0 / joined.service_us.max(1) as f64,
            served_us_per_read: joined.service_us as f64 / served.max(1) as f64,
            not_tied_pct: sample.not_tied as f64 * 100.0 / sample.reads.max(1) as f64,
        }
    }
}
