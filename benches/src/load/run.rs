//! The open loop: sends each read at its planned time, whatever became of the earlier ones, and counts from there.
//!
//! Latency runs from the planned send time to the moment the caller has the value. Reads planned in the warm-up
//! are sent and not counted. The time a read waited in this process before its first copy was handed to the wire
//! is kept apart (client wait).

use super::arrivals::{Arrival, Arrivals, read_id};
use super::join::Winners;
use super::send_timer::SendTimer;
use super::tower_hedge::TowerHedge;
use super::workload::Workload;
use crate::clock;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand::rngs::StdRng;
use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_client::{Level, Read, ReadOptions, ReadPolicy, View};
use tiedkv_protocol::ids::{NodeId, ReadId};
use tiedkv_protocol::request::CopyKind;
use tokio::task::JoinSet;

/// Most reads in flight; a system that is so far behind is not measured any more.
const IN_FLIGHT_MAX: usize = 100_000;
/// How often the progress is told.
const PROGRESS: Duration = Duration::from_millis(100);
/// Longest latency that is told apart, microseconds.
const LATENCY_MAX_US: u64 = 120_000_000;

/// What to send.
#[derive(Clone, Debug)]
pub struct OpenLoop {
    /// Seeds the planned times, views, keys and identities of reads; the same plan for every policy.
    pub seed: u64,
    /// Reads per second, on average.
    pub rate_per_s: f64,
    /// Sent first and not counted.
    pub warm_up: Duration,
    /// Counted time, after the warm-up.
    pub measured: Duration,
    /// How each read is sent.
    pub policy: ReadPolicy,
    /// Whether each read is judged first: tied only where that pays.
    pub gated: bool,
    /// How fresh.
    pub level: Level,
    /// Whole time of a read.
    pub deadline: Duration,
    /// Keys and their values.
    pub workload: Workload,
    /// Each is a call for many keys instead of one read.
    pub fan: Option<Fan>,
    /// Reads go through this instead of straight to the view.
    pub outside: Option<TowerHedge>,
}

impl OpenLoop {
    /// When the last reads are due, from the start of the plan.
    pub fn end(&self) -> Duration {
        self.warm_up + self.measured
    }

    /// Whether the progress is told at an arrival, given when it was told last: now and then, and at the first that is
    /// counted.
    fn is_told(&self, (told, at): (Duration, Duration)) -> bool {
        at.saturating_sub(told) > PROGRESS || (told < self.warm_up && at >= self.warm_up)
    }
}

/// A call for many keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fan {
    /// Keys of one call.
    pub width: u64,
    /// Share of keys that is enough from [`ENOUGH_AFTER`] on; 1.0: all.
    pub share: f64,
}

/// When a partial answer may end a call.
pub const ENOUGH_AFTER: Duration = Duration::from_millis(20);

/// What came of it. Times in microseconds.
#[derive(Debug)]
pub struct Outcome {
    /// Reads sent, warm-up included.
    pub sent: u64,
    /// Reads counted, errors included.
    pub reads: u64,
    /// Of these, reads without the right value.
    pub errors: u64,
    /// The first error, for people.
    pub first_error: Option<String>,
    /// From the planned send to the value; of good reads.
    pub latency: Histogram<u64>,
    /// From the planned send to the hand-over of the first copy.
    pub client_wait: Histogram<u64>,
    /// Of the winners, as their nodes say.
    pub queue_wait: Histogram<u64>,
    /// Of the winners, as their nodes say.
    pub service_time: Histogram<u64>,
    /// Latency less the winner's queue wait and service time: client, network, wake-ups, and for later copies the
    /// tie delay.
    pub overhead: Histogram<u64>,
    /// Tie delays in force.
    pub tie_delay: Histogram<u64>,
    /// Tie delays as they came out.
    pub tie_delay_realised: Histogram<u64>,
    /// Reads whose answer was that of a later copy.
    pub won_by_later_copy: u64,
    /// Who answered each counted read.
    pub winners: Winners,
    /// Every read that was sent, in the order of the ends.
    pub trace: Vec<Traced>,
    /// Sum over calls for many keys of the share that was answered.
    pub answered_shares: f64,
}

/// One read as the open loop saw it.
#[derive(Clone, Debug, Default)]
pub struct Traced {
    /// When it was due, from the start of the scene.
    pub at: Duration,
    /// From then to the value; `None` for a read without the right one.
    pub latency: Option<Duration>,
    /// Which read, if it was answered.
    pub read: Option<ReadId>,
    /// Which key.
    pub key: u64,
    /// Where its copies went, in the order they were sent.
    pub nodes: SmallVec<[NodeId; 3]>,
    /// The first copy's answer was used: what is not queue wait and service is two crossings.
    pub crossings: Option<Duration>,
    /// Planned after the warm-up.
    pub counted: bool,
}

/// One read, done.
struct Done {
    arrival: Arrival,
    latency: Duration,
    ended: Ended,
}

/// How a read or call ended.
#[expect(clippy::large_enum_variant, reason = "nearly all are reads, and each is moved once")]
enum Ended {
    Read(Result<Read, String>),
    Many(Result<f64, String>),
}

/// Plays the plan over `views`; `progress` is told the time played so far: a few times a second, when the warm-up is over,
/// and at the end of the plan, when the last answers are still waited for.
///
/// # Errors
/// When the plan cannot be kept: no timer, or too many reads in flight. Failed reads are counted, not returned.
///
/// # Cancel safety
/// Safe: reads in flight are withdrawn.
pub async fn play(views: &[View], plan: &OpenLoop, mut progress: impl FnMut(Duration)) -> Result<Outcome> {
    if views.is_empty() {
        bail!("an open loop needs at least one view");
    }
    let timer = SendTimer::new().context("timer")?;
    let rng = StdRng::seed_from_u64(plan.seed);
    let arrivals = Arrivals::new(rng, plan.rate_per_s, views.len(), plan.workload.count);
    let end = plan.end();
    let mut outcome = Outcome::new()?;
    let mut out: JoinSet<Done> = JoinSet::new();
    // Both clocks are read together: the client's for planned moments, the system's for waiting.
    let (start, start_moment) = (clock::now(), tiedkv_client::clock::now());
    let mut told = Duration::ZERO;
    for (index, arrival) in (0u64..).zip(arrivals.take_while(|arrival| arrival.at < end)) {
        timer.until(start + arrival.at).await.context("timer")?;
        let options = ReadOptions {
            policy: Some(plan.policy),
            gate: Some(plan.gated),
            level: Some(plan.level),
            deadline: Some(plan.deadline),
            planned: Some(start_moment + arrival.at),
            read: Some(read_id(plan.seed, index)),
            ..ReadOptions::default()
        };
        let view = views[arrival.view].clone();
        outcome.sent += 1;
        if let Some(fan) = plan.fan {
            let keys = keys_of(arrival, fan, plan.workload);
            out.spawn(async move {
                let ended = Ended::Many(call(&view, keys, options, fan).await);
                Done { arrival, latency: start.elapsed().saturating_sub(arrival.at), ended }
            });
        } else {
            let (key, outside) = (plan.workload.key(arrival.key), plan.outside.clone());
            out.spawn(async move {
                let ended = Ended::Read(match outside {
                    None => view.get_with(key, options).await.map_err(|error| error.to_string()),
                    Some(hedge) => hedge.read(view, key, options).await,
                });
                Done { arrival, latency: start.elapsed().saturating_sub(arrival.at), ended }
            });
        }
        while let Some(done) = out.try_join_next() {
            outcome.add(done.context("a read was lost")?, plan);
        }
        if out.len() > IN_FLIGHT_MAX {
            bail!("over {IN_FLIGHT_MAX} reads in flight: the cluster cannot carry {} reads/s", plan.rate_per_s);
        }
        if plan.is_told((told, arrival.at)) {
            told = arrival.at;
            progress(told);
        }
    }
    timer.until(start + end).await.context("timer")?;
    progress(end);
    while let Some(done) = out.join_next().await {
        outcome.add(done.context("a read was lost")?, plan);
    }
    Ok(outcome)
}

impl Outcome {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_MAX_US, 3);
        Ok(Self {
            sent: 0,
            reads: 0,
            errors: 0,
            first_error: None,
            latency: histogram()?,
            client_wait: histogram()?,
            queue_wait: histogram()?,
            service_time: histogram()?,
            overhead: histogram()?,
            tie_delay: histogram()?,
            tie_delay_realised: histogram()?,
            won_by_later_copy: 0,
            winners: Winners::new(),
            trace: Vec::new(),
            answered_shares: 0.0,
        })
    }

    /// Where the time went, one line per part: p50, p90, p99 in microseconds; how many reads a later copy won.
    pub fn details(&self) -> String {
        let parts = [
            ("client wait", &self.client_wait),
            ("network and wake-ups", &self.overhead),
            ("queue wait", &self.queue_wait),
            ("service time", &self.service_time),
            ("tie delay asked", &self.tie_delay),
            ("tie delay realised", &self.tie_delay_realised),
        ];
        let line = |(name, spans): (&str, &Histogram<u64>)| {
            let at = |quantile| spans.value_at_quantile(quantile);
            format!("  {name:21} {:7} {:7} {:7}  ({} reads)\n", at(0.5), at(0.9), at(0.99), spans.len())
        };
        let lines: String = parts.into_iter().filter(|(_, spans)| !spans.is_empty()).map(line).collect();
        let share = self.won_by_later_copy as f64 * 100.0 / self.reads.max(1) as f64;
        format!("{lines}  a later copy won {share:.1} % of reads\n")
    }

    fn add(&mut self, done: Done, plan: &OpenLoop) {
        let counted = done.arrival.at >= plan.warm_up;
        let traced = traced(&done, plan, counted);
        let right = traced.latency.is_some();
        self.trace.push(traced);
        if !counted {
            return;
        }
        self.reads += 1;
        match done.ended {
            Ended::Read(Ok(read)) => self.add_read(read, done.arrival, done.latency, right),
            Ended::Read(Err(error)) | Ended::Many(Err(error)) => self.add_error(|| error),
            Ended::Many(Ok(share)) => {
                self.answered_shares += share;
                record(&mut self.latency, done.latency);
            }
        }
    }

    fn add_read(&mut self, read: Read, arrival: Arrival, latency: Duration, right: bool) {
        if !right {
            let (node, found) = (read.report.node, if read.value.is_some() { "another value" } else { "no value" });
            self.add_error(|| format!("{node} answered {found} for key {}", arrival.key));
            return;
        }
        let report = read.report;
        record(&mut self.latency, latency);
        record(&mut self.client_wait, report.client_wait);
        record(&mut self.overhead, latency.saturating_sub(report.queue_wait + report.service_time));
        record(&mut self.queue_wait, report.queue_wait);
        record(&mut self.service_time, report.service_time);
        if let Some(delay) = report.tie_delay {
            record(&mut self.tie_delay, delay);
        }
        if let Some(delay) = report.tie_delay_realised {
            record(&mut self.tie_delay_realised, delay);
        }
        self.won_by_later_copy += u64::from(report.kind != CopyKind::First);
        let winner: (ReadId, _) = (report.read, report.node);
        self.winners.insert(winner.0, winner.1);
    }

    fn add_error(&mut self, text: impl FnOnce() -> String) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }
}

/// Distinct keys, spread over the workload.
fn keys_of(arrival: Arrival, fan: Fan, workload: Workload) -> Vec<Bytes> {
    // A prime: no two of fewer than `count` steps meet.
    const STEP: u64 = 7_919;
    (0..fan.width.min(workload.count))
        .map(|index| workload.key((arrival.key + index * STEP) % workload.count.max(1)))
        .collect()
}

/// One call; the share of keys that were answered.
async fn call(view: &View, keys: Vec<Bytes>, options: ReadOptions, fan: Fan) -> Result<f64, String> {
    let call = view.multi_get(keys).with(options);
    if fan.share < 1.0 {
        let read = call.partial(fan.share, ENOUGH_AFTER).send().await.map_err(|error| error.to_string())?;
        return Ok(read.completeness);
    }
    let read = call.send().await.map_err(|error| error.to_string())?;
    if read.values.iter().all(Option::is_some) { Ok(1.0) } else { Err("a key is absent".to_owned()) }
}

fn is_right(read: &Read, arrival: Arrival, plan: &OpenLoop) -> bool {
    let wanted = plan.workload.value(arrival.key);
    read.value.as_ref().is_some_and(|value| value.value == wanted)
}

fn traced(done: &Done, plan: &OpenLoop, counted: bool) -> Traced {
    let Done { arrival, latency, ended } = done;
    let blank = Traced {
        at: arrival.at,
        latency: None,
        read: None,
        key: arrival.key,
        nodes: SmallVec::new(),
        crossings: None,
        counted,
    };
    let read = match ended {
        Ended::Read(Ok(read)) => read,
        Ended::Many(Ok(_)) => return Traced { latency: Some(*latency), ..blank },
        Ended::Read(Err(_)) | Ended::Many(Err(_)) => return blank,
    };
    let report = &read.report;
    let first = report.kind == CopyKind::First;
    Traced {
        latency: is_right(read, *arrival, plan).then_some(*latency),
        read: Some(report.read),
        nodes: report.copies.iter().map(|copy| copy.node).collect(),
        crossings: first.then(|| latency.saturating_sub(report.queue_wait + report.service_time)),
        ..blank
    }
}

fn record(histogram: &mut Histogram<u64>, span: Duration) {
    histogram.saturating_record(u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_warm_up_is_told_at_its_first_counted_read() {
        let plan = OpenLoop {
            seed: 1,
            rate_per_s: 1.0,
            warm_up: Duration::from_millis(2_000),
            measured: Duration::from_secs(10),
            policy: ReadPolicy::UNTIED,
            gated: false,
            level: Level::Stale { bound: None },
            deadline: Duration::from_secs(5),
            workload: Workload::default(),
            fan: None,
            outside: None,
        };
        let is_told = |told: u64, at: u64| plan.is_told((Duration::from_millis(told), Duration::from_millis(at)));
        assert!(is_told(1_800, 1_901) && !is_told(1_900, 1_999), "now and then");
        assert!(is_told(1_950, 2_000) && !is_told(2_000, 2_010), "once where the counted time begins");
        assert_eq!(plan.end(), Duration::from_secs(12));
    }
}
