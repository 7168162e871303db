//! One row of a report: a scene played under a policy. The JSON keys are stable; those of `bench busy`
//! contain them (docs/benchmarks.md).

use crate::load::machine::Machine;
use hdrhistogram::Histogram;
use serde::{Serialize, Serializer};
use tiedkv_client::ReadPolicy;

/// What the servers are busy with while the reads are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SceneName {
    /// Reads at .15 of the capacity, no jobs.
    Idle,
    /// Reads at .30 and background jobs at .20.
    Busy,
    /// Reads at .30 and background jobs at .35.
    Hard,
    /// Reads at .70, no jobs.
    Load70,
}

impl SceneName {
    /// The name in JSON, table and `--scenes`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Busy => "busy",
            Self::Hard => "hard",
            Self::Load70 => "load70",
        }
    }
}

/// The figures of one scene under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Which scene.
    pub scene: SceneName,
    /// Which policy.
    #[serde(serialize_with = "by_name")]
    pub policy: ReadPolicy,
    /// Reads counted (planned after the warm-up), errors included.
    pub reads: u64,
    /// Reads that ended without a good answer.
    pub errors: u64,
    /// Median latency from the planned send time, microseconds.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile; a tenth of a percent of `reads` lies above it.
    pub p999_us: u64,
    /// Copies that started although another copy of their tie had started, percent of started copies.
    pub duplicates_pct: f64,
    /// Service time of copies whose answer was not used, percent of all service time of reads.
    pub wasted_work_pct: f64,
    /// Copies, withdraws, cancels and answers per read.
    pub messages_per_read: f64,
    /// Processor time of client and servers per read, microseconds.
    pub cpu_us_per_read: f64,
    /// Share of processor time in use on this machine, percent.
    pub machine_busy_pct: f64,
    /// Share of processor time that the host gave to others, percent; 0 where it does not say.
    pub machine_steal_pct: f64,
    /// Share of time that processors stood still, percent.
    pub machine_standstill_pct: f64,
}

impl SceneName {
    /// All scenes.
    pub const ALL: [SceneName; 4] = [Self::Idle, Self::Busy, Self::Hard, Self::Load70];
}

impl Row {
    /// Fills the percentiles from a histogram of microseconds.
    pub fn set_latencies(&mut self, latencies: &Histogram<u64>) {
        self.p50_us = latencies.value_at_quantile(0.5);
        self.p90_us = latencies.value_at_quantile(0.9);
        self.p99_us = latencies.value_at_quantile(0.99);
        self.p999_us = latencies.value_at_quantile(0.999);
    }

    /// Fills in how quiet the machine was.
    pub fn set_machine(&mut self, machine: &Machine) {
        self.machine_busy_pct = machine.busy_pct;
        self.machine_steal_pct = machine.steal_pct;
        self.machine_standstill_pct = machine.standstill_pct;
    }

    /// A row without figures.
    pub fn new(scene: SceneName, policy: ReadPolicy) -> Self {
        Self {
            scene,
            policy,
            reads: 0,
            errors: 0,
            p50_us: 0,
            p90_us: 0,
            p99_us: 0,
            p999_us: 0,
            duplicates_pct: 0.0,
            wasted_work_pct: 0.0,
            messages_per_read: 0.0,
            cpu_us_per_read: 0.0,
            machine_busy_pct: 0.0,
            machine_steal_pct: 0.0,
            machine_standstill_pct: 0.0,
        }
    }

    /// p50, p90, p99 and p99.9 over those of `base`; `None` where `base` has none.
    pub fn ratios(&self, base: &Row) -> [Option<f64>; 4] {
        let over = |own: u64, base: u64| (base > 0).then(|| own as f64 / base as f64);
        [
            over(self.p50_us, base.p50_us),
            over(self.p90_us, base.p90_us),
            over(self.p99_us, base.p99_us),
            over(self.p999_us, base.p999_us),
        ]
    }
}

fn by_name<S: Serializer>(policy: &ReadPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(policy)
}

#[derive(Serialize)]
struct Document<'a> {
    scenes: &'a [Row],
}

/// `{"scenes":[...]}`, indented.
///
/// # Errors
/// When a figure is not a number.
pub fn to_json(rows: &[Row]) -> serde_json::Result<String> {
    serde_json::to_string_pretty(&Document { scenes: rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_exactly_the_documented_keys() {
        let text = to_json(&[Row::new(SceneName::Idle, ReadPolicy::TIED2)]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let row = value["scenes"][0].as_object().unwrap();
        let mut keys: Vec<&str> = row.keys().map(String::as_str).collect();
        keys.sort_unstable();
        let mut wanted = [
            "scene",
            "policy",
            "reads",
            "errors",
            "p50_us",
            "p90_us",
            "p99_us",
            "p999_us",
            "duplicates_pct",
            "wasted_work_pct",
            "messages_per_read",
            "cpu_us_per_read",
            "machine_busy_pct",
            "machine_steal_pct",
            "machine_standstill_pct",
        ];
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
        assert_eq!(row["scene"], "idle");
        assert_eq!(row["policy"], "tied2");
    }

    #[test]
    fn a_ratio_to_nothing_is_none() {
        let mut row = Row::new(SceneName::Busy, ReadPolicy::UNTIED);
        row.p99_us = 10;
        assert_eq!(row.ratios(&Row::new(SceneName::Idle, ReadPolicy::UNTIED)), [None; 4]);
    }
}
