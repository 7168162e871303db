//! One row of the benchmark: a scene under a policy, its repeats pooled. The JSON keys are stable
//! (docs/benchmarks.md).

use super::policy::{BusyPolicy, ClientKind};
use super::quantiles::{ABOVE_MIN, Pool, told};
use super::recovery::recovery_s;
use super::repeats::RepeatCounts;
use super::sample::{Sample, Tick};
use super::scene::{BusyScene, Event};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Above this share of busy processors a row says more about the machine than about the policy.
pub const BUSY_MAX_PCT: f64 = 60.0;

/// The figures of one cell. Spans in microseconds; `None` is "not measured" or "too few samples".
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BusyRow {
    /// Which scene.
    pub scene: String,
    /// Which policy.
    pub policy: String,
    /// Repeats pooled here.
    pub repeats: u32,
    /// Counted seconds of each; 0 in files of before this was told.
    pub seconds: u64,
    /// The delay of its hedges where it was fixed before the run.
    pub hedge_fixed_us: Option<u64>,
    /// Reads counted (planned after the warm-up), errors included.
    pub reads: u64,
    /// Reads that ended without a good answer.
    pub errors: u64,
    /// What the first of these said.
    pub first_error: Option<String>,
    /// Reads with a good answer, percent.
    pub completeness_pct: f64,
    /// Median latency from the planned send time.
    pub p50_us: Option<u64>,
    /// 90th percentile.
    pub p90_us: Option<u64>,
    /// 95th percentile.
    pub p95_us: Option<u64>,
    /// 99th percentile.
    pub p99_us: Option<u64>,
    /// 99.9th percentile.
    pub p999_us: Option<u64>,
    /// The longest.
    pub max_us: u64,
    /// The mean.
    pub mean_us: f64,
    /// 95 % interval of the p50.
    pub p50_interval_us: Option<[u64; 2]>,
    /// Of the p90.
    pub p90_interval_us: Option<[u64; 2]>,
    /// Of the p99.
    pub p99_interval_us: Option<[u64; 2]>,
    /// Of the p99.9.
    pub p999_interval_us: Option<[u64; 2]>,
    /// p50, p90, p99 and p99.9 over those of idle untied in the same run.
    pub ratio_to_idle_untied: Option<[Option<f64>; 4]>,
    /// The same of the p95.
    pub p95_ratio_to_idle_untied: Option<f64>,
    /// p50, p90, p99 and p99.9 over those of the same policy in the idle scene; absent in files of before this was told.
    pub ratio_to_own_idle: Option<[Option<f64>; 4]>,
    /// The same of the p95.
    pub p95_ratio_to_own_idle: Option<f64>,
    /// The third of [`ratio_to_own_idle`](Self::ratio_to_own_idle), p99.
    pub p99_ratio_to_own_idle: Option<f64>,
    /// Reads slower than three mean service times, percent.
    pub slow_share_pct: f64,
    /// Of reads that other nodes were asked for within 5 ms of a slow untied one, the slow ones, percent: P(B slow given
    /// that A is).
    pub slow_given_slow_pct: Option<f64>,
    /// Queue wait of the copies whose answer was used, median; `None` in calls for many keys, as the next three.
    pub queue_wait_p50_us: Option<u64>,
    /// Its 99th percentile.
    pub queue_wait_p99_us: Option<u64>,
    /// Planned send to the hand-over of the first copy, 99th percentile.
    pub client_wait_p99_us: Option<u64>,
    /// Latency less queue wait and service time where the first copy won, median.
    pub crossings_p50_us: Option<u64>,
    /// Copies that started although another copy of their tie had started, percent of started copies.
    pub duplicates_pct: f64,
    /// Service time of tied (and first and retried) copies whose answer was not used, percent of all.
    pub wasted_work_pct: f64,
    /// The same of hedges and rescues.
    pub wasted_extra_pct: f64,
    /// Service time of all copies per good read; where records cannot be told apart by read (calls for many keys, an
    /// outside peer), that of all playing per read sent.
    pub served_us_per_read: f64,
    /// Copies sent per read.
    pub copies_per_read: f64,
    /// Hedges, rescues, retries and shadows per read, percent.
    pub extra_copies_pct: f64,
    /// Reads that went with fewer copies than their policy says, percent.
    pub not_tied_pct: f64,
    /// Copies, withdraws, cancels and answers per read.
    pub messages_per_read: f64,
    /// Processor time of client and servers per read.
    pub cpu_us_per_read: f64,
    /// The same of each repeat; empty in files of before this was told.
    pub cpu_us_of_repeats: Vec<f64>,
    /// Of this, the client's.
    pub cpu_client_us_per_read: f64,
    /// Of this, the servers'.
    pub cpu_servers_us_per_read: f64,
    /// Flight of a cancel, median (of the last minute, mean over pairs).
    pub cancel_flight_p50_us: Option<f64>,
    /// Its 99th percentile.
    pub cancel_flight_p99_us: Option<f64>,
    /// One-way latency of the cluster at rest, where the tie delay is told in it (`tied2@2L`).
    pub one_way_us: Option<u64>,
    /// Tie delay in force, median.
    pub tie_delay_p50_us: Option<u64>,
    /// As it came out, median.
    pub tie_delay_realised_p50_us: Option<u64>,
    /// As it came out, 99th percentile.
    pub tie_delay_realised_p99_us: Option<u64>,
    /// Share of processor time in use on this machine, percent.
    pub machine_busy_pct: f64,
    /// Share of processor time that the host gave to others, percent.
    pub machine_steal_pct: f64,
    /// Share of time that processors stood still, percent.
    pub machine_standstill_pct: f64,
    /// The processors were not over 60 % busy and the machine was not disturbed.
    pub judged: bool,
    /// The limits on the run's own trace.
    #[serde(flatten)]
    pub ideal: IdealFigures,
    /// Share of reads above, latency: for a curve over log(1 - F).
    pub curve: Vec<(f64, u64)>,
    /// How the first repeat went over time, in scenes in which something happens.
    pub series: Vec<Tick>,
    /// Per repeat, its counts; empty in files of before this was told.
    pub counts_of_repeats: Vec<RepeatCounts>,
    /// Per repeat, the p99: how far repeats lie apart.
    pub p99_of_repeats_us: Vec<u64>,
    /// Per repeat, seconds from the event until reads are as fast as before it; `None`: not within the scene.
    pub recovery_s: Vec<Option<f64>>,
    /// The same of the p99 of half a second; empty in files of before this was told.
    pub recovery_p99_s: Vec<Option<f64>>,
}

/// Percentiles of the limits, two measured crossings included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdealFigures {
    /// One copy where the first one went: what an untied read should measure; p50.
    pub ideal_jsw1_p50_us: Option<u64>,
    /// p90.
    pub ideal_jsw1_p90_us: Option<u64>,
    /// p95.
    pub ideal_jsw1_p95_us: Option<u64>,
    /// p99.
    pub ideal_jsw1_p99_us: Option<u64>,
    /// p99.9.
    pub ideal_jsw1_p999_us: Option<u64>,
    /// The shortest of two; p50.
    pub ideal_jsw2_p50_us: Option<u64>,
    /// p90.
    pub ideal_jsw2_p90_us: Option<u64>,
    /// p95.
    pub ideal_jsw2_p95_us: Option<u64>,
    /// p99.
    pub ideal_jsw2_p99_us: Option<u64>,
    /// p99.9.
    pub ideal_jsw2_p999_us: Option<u64>,
    /// The shortest of three; p50.
    pub ideal_jsw3_p50_us: Option<u64>,
    /// p90.
    pub ideal_jsw3_p90_us: Option<u64>,
    /// p95.
    pub ideal_jsw3_p95_us: Option<u64>,
    /// p99.
    pub ideal_jsw3_p99_us: Option<u64>,
    /// p99.9.
    pub ideal_jsw3_p999_us: Option<u64>,
    /// One queue before all workers; p50.
    pub ideal_central_p50_us: Option<u64>,
    /// p90.
    pub ideal_central_p90_us: Option<u64>,
    /// p95.
    pub ideal_central_p95_us: Option<u64>,
    /// p99.
    pub ideal_central_p99_us: Option<u64>,
    /// p99.9.
    pub ideal_central_p999_us: Option<u64>,
    /// Measured over the ideal of this policy's width (JSW(1), (2) or (3)); p50, p90, p99, p99.9.
    pub measured_over_ideal: Option<[Option<f64>; 4]>,
    /// The same of the p95.
    pub p95_measured_over_ideal: Option<f64>,
}

/// The percentiles of ratios and ideals.
pub const QUANTILES: [f64; 4] = [0.5, 0.9, 0.99, 0.999];

impl BusyRow {
    /// Pools the repeats of a cell.
    pub fn of(scene: &BusyScene, policy: &BusyPolicy, samples: &[Sample], event_at: Duration) -> Self {
        let pool = Pool::new(samples.iter().map(|sample| sample.latencies.as_slice()));
        let sum = |of: fn(&Sample) -> u64| samples.iter().map(of).sum::<u64>();
        let mean = |of: fn(&Sample) -> f64| samples.iter().map(of).sum::<f64>() / samples.len().max(1) as f64;
        let sent = sum(|sample| sample.sent).max(1) as f64;
        let (reads, errors) = (sum(|sample| sample.reads), sum(|sample| sample.errors));
        let service = sum(|sample| sample.joined.service_us);
        let (started, twice) = (sum(|sample| sample.joined.started), sum(|sample| sample.joined.duplicates));
        // Without winners the service of the warm-up and of failed reads is among it: so are their reads.
        let one_winner = scene.fan.is_none() && policy.client_in(scene) != ClientKind::Tower;
        let served = if one_winner { reads - errors } else { sum(|sample| sample.sent) };
        let per_read = |whole: f64| whole / sent;
        let counted = reads.max(1) as f64;
        let cpu =
            |of: fn(&Sample) -> Duration| samples.iter().map(of).sum::<Duration>().as_secs_f64() * 1e6 / counted;
        let (cpu_client, cpu_servers) = (cpu(|sample| sample.cpu_client), cpu(|sample| sample.cpu_servers));
        let machine_busy_pct = mean(|sample| sample.machine.busy_pct);
        let flight = |index: usize, q: f64| {
            let told = samples.iter().filter(|sample| enough(cancels_of_a_pair(sample.reads, sample.not_tied), q));
            let flights: Vec<f64> = told.filter_map(|sample| Some(sample.cancel_flight_us?[index])).collect();
            (!flights.is_empty()).then(|| flights.iter().sum::<f64>() / flights.len() as f64)
        };
        let merged = |of: fn(&Sample) -> &Histogram<u64>| Merged::of(samples.iter().map(of));
        let (waits, client) = (merged(|sample| &sample.queue_wait), merged(|sample| &sample.client_wait));
        let (asked, realised) = (merged(|sample| &sample.tie_delay), merged(|sample| &sample.tie_delay_realised));
        let tied = policy.read.width() > 1;
        let mut crossings: Vec<u64> = samples.iter().flat_map(|sample| sample.crossings.iter().copied()).collect();
        crossings.sort_unstable();
        let mut row = Self {
            scene: scene.name.to_string(),
            policy: policy.name.to_string(),
            repeats: samples.len() as u32,
            seconds: samples.iter().map(|sample| sample.measured.as_secs()).max().unwrap_or(0),
            hedge_fixed_us: match policy.client_in(scene) {
                ClientKind::HedgeAfter(micros) => Some(micros),
                _ => None,
            },
            reads,
            errors,
            first_error: samples.iter().find_map(|sample| sample.first_error.clone()),
            completeness_pct: match scene.fan {
                None => percent(reads - errors, reads),
                Some(_) => {
                    samples.iter().map(|sample| sample.answered_shares).sum::<f64>() * 100.0 / reads.max(1) as f64
                }
            },
            p50_us: pool.quantile(0.5),
            p90_us: pool.quantile(0.9),
            p95_us: pool.quantile(0.95),
            p99_us: pool.quantile(0.99),
            p999_us: pool.quantile(0.999),
            max_us: pool.max(),
            mean_us: pool.mean(),
            p50_interval_us: pool.interval(0.5),
            p90_interval_us: pool.interval(0.9),
            p99_interval_us: pool.interval(0.99),
            p999_interval_us: pool.interval(0.999),
            slow_share_pct: pool.share_above(3 * scene.service_us),
            slow_given_slow_pct: slow_given_slow(samples),
            queue_wait_p50_us: waits.quantile(0.5),
            queue_wait_p99_us: waits.quantile(0.99),
            client_wait_p99_us: client.quantile(0.99),
            crossings_p50_us: told(&crossings, 0.5),
            duplicates_pct: percent(twice, started),
            wasted_work_pct: percent(sum(|sample| sample.joined.wasted_us), service),
            wasted_extra_pct: percent(sum(|sample| sample.joined.wasted_extra_us), service),
            served_us_per_read: service as f64 / served.max(1) as f64,
            copies_per_read: per_read(sum(|sample| sample.copies) as f64),
            extra_copies_pct: per_read(sum(|sample| sample.extra_copies) as f64) * 100.0,
            not_tied_pct: sum(|sample| sample.not_tied) as f64 * 100.0 / counted,
            messages_per_read: per_read(sum(|sample| sample.messages) as f64),
            cpu_us_per_read: cpu_client + cpu_servers,
            cpu_us_of_repeats: samples.iter().map(own_cpu).collect(),
            cpu_client_us_per_read: cpu_client,
            cpu_servers_us_per_read: cpu_servers,
            cancel_flight_p50_us: flight(0, 0.5).filter(|_| tied),
            cancel_flight_p99_us: flight(1, 0.99).filter(|_| tied),
            one_way_us: samples.iter().find_map(|sample| sample.one_way_us),
            tie_delay_p50_us: asked.quantile(0.5),
            tie_delay_realised_p50_us: realised.quantile(0.5),
            tie_delay_realised_p99_us: realised.quantile(0.99),
            machine_busy_pct,
            machine_steal_pct: mean(|sample| sample.machine.steal_pct),
            machine_standstill_pct: mean(|sample| sample.machine.standstill_pct),
            judged: machine_busy_pct <= BUSY_MAX_PCT && !samples.iter().any(|sample| sample.machine.is_disturbed()),
            curve: pool.curve(),
            series: samples.first().map(|sample| sample.series.clone()).unwrap_or_default(),
            counts_of_repeats: samples.iter().map(|sample| RepeatCounts::of(sample, one_winner)).collect(),
            p99_of_repeats_us: samples.iter().filter_map(own_p99).collect(),
            recovery_s: recovered(samples, event_at, |tick| tick.p50_us),
            recovery_p99_s: recovered(samples, event_at, |tick| tick.p99_us),
            ..Self::default()
        };
        match scene.event {
            Event::Storm { .. } | Event::Kill => {}
            // These go on all along: there is nothing to recover from.
            Event::None | Event::NoCancels | Event::Sort | Event::Disk => {
                (row.recovery_s, row.recovery_p99_s) = (Vec::new(), Vec::new());
            }
        }
        if scene.event == Event::None {
            row.series = Vec::new();
        }
        row.ideal = IdealFigures::of(samples, &row, policy.read.width());
        row
    }

    /// 95 % intervals of p50, p90, p99 and p99.9.
    pub fn intervals(&self) -> [Option<[u64; 2]>; 4] {
        [self.p50_interval_us, self.p90_interval_us, self.p99_interval_us, self.p999_interval_us]
    }

    /// p50, p90, p99 and p99.9.
    pub fn quantiles(&self) -> [Option<u64>; 4] {
        [self.p50_us, self.p90_us, self.p99_us, self.p999_us]
    }
}

/// Fills in what is told relative to other rows of the same run.
pub fn relate(rows: &mut [BusyRow]) {
    let find = |scene: &str, policy: &str| {
        let row = rows.iter().find(|row| row.scene == scene && row.policy == policy)?;
        Some((row.quantiles(), row.p95_us))
    };
    let bases: Vec<_> = rows
        .iter()
        .map(|row| {
            let idle = BusyScene::idle_of(&row.scene);
            (find(&idle, "untied"), find(&idle, &row.policy))
        })
        .collect();
    for (row, (idle, own)) in rows.iter_mut().zip(bases) {
        if !BusyScene::has_idle(&row.scene) {
            continue;
        }
        row.ratio_to_idle_untied = idle.map(|(idle, _)| over(row.quantiles(), idle));
        row.p95_ratio_to_idle_untied = idle.and_then(|(_, p95)| ratio(row.p95_us, p95));
        row.ratio_to_own_idle = own.map(|(own, _)| over(row.quantiles(), own));
        row.p95_ratio_to_own_idle = own.and_then(|(_, p95)| ratio(row.p95_us, p95));
        row.p99_ratio_to_own_idle = row.ratio_to_own_idle.and_then(|all| all[2]);
    }
}

fn over(own: [Option<u64>; 4], base: [Option<u64>; 4]) -> [Option<f64>; 4] {
    std::array::from_fn(|index| ratio(own[index], base[index]))
}

fn ratio(own: Option<u64>, base: Option<u64>) -> Option<f64> {
    Some(own? as f64 / base.filter(|base| *base > 0)? as f64)
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn slow_given_slow(samples: &[Sample]) -> Option<f64> {
    let sum = |index: usize| samples.iter().map(|sample| sample.slow_pairs[index]).sum::<u64>();
    (sum(1) >= 100).then(|| percent(sum(0), sum(1)))
}

fn own_cpu(sample: &Sample) -> f64 {
    (sample.cpu_client + sample.cpu_servers).as_secs_f64() * 1e6 / sample.reads.max(1) as f64
}

fn recovered(samples: &[Sample], event_at: Duration, of: fn(&Tick) -> Option<u64>) -> Vec<Option<f64>> {
    samples.iter().map(|sample| recovery_s(&sample.series, event_at, of)).collect()
}

fn own_p99(sample: &Sample) -> Option<u64> {
    Pool::new([sample.latencies.as_slice()]).quantile(0.99)
}

/// Histograms of repeats as one.
struct Merged(Option<Histogram<u64>>);

impl Merged {
    fn of<'a>(mut all: impl Iterator<Item = &'a Histogram<u64>>) -> Self {
        let mut sum = all.next().cloned();
        if let Some(sum) = &mut sum {
            // All were made with the same bounds.
            all.for_each(|next| sum.add(next).unwrap_or_default());
        }
        Self(sum.filter(|sum| !sum.is_empty()))
    }

    fn quantile(&self, q: f64) -> Option<u64> {
        self.0.as_ref().filter(|spans| enough(spans.len(), q)).map(|spans| spans.value_at_quantile(q))
    }
}

/// Ordered pairs of three nodes.
const PAIRS: u64 = 6;

/// About how many cancels each pair of nodes sent: one per tied read.
fn cancels_of_a_pair(reads: u64, not_tied: u64) -> u64 {
    reads.saturating_sub(not_tied) / PAIRS
}

/// Whether so many spans tell the percentile, by the rule of latencies.
fn enough(count: u64, q: f64) -> bool {
    count as f64 * (1.0 - q) >= ABOVE_MIN
}

impl IdealFigures {
    fn of(samples: &[Sample], row: &BusyRow, width: u8) -> Self {
        let ideals: Vec<_> = samples.iter().filter_map(|sample| sample.ideals.as_ref()).collect();
        if ideals.is_empty() {
            return Self::default();
        }
        let pool = |of: fn(&super::sample::Ideals) -> &Vec<u64>| {
            let all: Vec<(u32, u64)> =
                ideals.iter().flat_map(|one| of(one).iter().map(|span| (0, *span))).collect();
            Pool::new([all.as_slice()])
        };
        let limits = [pool(|ideals| &ideals.jsw1), pool(|ideals| &ideals.jsw2), pool(|ideals| &ideals.jsw3)];
        let central = pool(|ideals| &ideals.central);
        let [one, two, three] = limits.each_ref().map(|limit| QUANTILES.map(|q| limit.quantile(q)));
        let own = usize::from(width.clamp(1, 3)) - 1;
        let [ideal_jsw1_p50_us, ideal_jsw1_p90_us, ideal_jsw1_p99_us, ideal_jsw1_p999_us] = one;
        let [ideal_jsw2_p50_us, ideal_jsw2_p90_us, ideal_jsw2_p99_us, ideal_jsw2_p999_us] = two;
        let [ideal_jsw3_p50_us, ideal_jsw3_p90_us, ideal_jsw3_p99_us, ideal_jsw3_p999_us] = three;
        let [ideal_central_p50_us, ideal_central_p90_us, ideal_central_p99_us, ideal_central_p999_us] =
            QUANTILES.map(|q| central.quantile(q));
        Self {
            ideal_jsw1_p50_us,
            ideal_jsw1_p90_us,
            ideal_jsw1_p95_us: limits[0].quantile(0.95),
            ideal_jsw1_p99_us,
            ideal_jsw1_p999_us,
            ideal_jsw2_p50_us,
            ideal_jsw2_p90_us,
            ideal_jsw2_p95_us: limits[1].quantile(0.95),
            ideal_jsw2_p99_us,
            ideal_jsw2_p999_us,
            ideal_jsw3_p50_us,
            ideal_jsw3_p90_us,
            ideal_jsw3_p95_us: limits[2].quantile(0.95),
            ideal_jsw3_p99_us,
            ideal_jsw3_p999_us,
            ideal_central_p50_us,
            ideal_central_p90_us,
            ideal_central_p95_us: central.quantile(0.95),
            ideal_central_p99_us,
            ideal_central_p999_us,
            measured_over_ideal: Some(over(row.quantiles(), [one, two, three][own])),
            p95_measured_over_ideal: ratio(row.p95_us, limits[own].quantile(0.95)),
        }
    }
}

#[cfg(test)]
#[path = "row_test.rs"]
mod tests;
