//! Load for a user's own cluster: open loop (a rate) or closed (callers), reads, calls for many keys, scans and writes
//! mixed, policies taking turns in blocks of one run.
//!
//! In the open loop latency runs from the planned send, so that a server that stands still for a second shows as a
//! second; the closed loop hides such waits (coordinated omission) and is for rates. Figures can be looked at while it
//! runs and after it was stopped.

use super::arrivals::Arrivals;
use super::cpu;
use super::keys::{KeyDraws, Spread};
use super::mix::{Mix, Op};
use super::send_timer::SendTimer;
use super::turn_policy::TurnPolicy;
use super::workload::Workload;
use crate::clock;
use anyhow::{Context, Result};
use bytes::Bytes;
use hdrhistogram::Histogram;
use rand::SeedableRng;
use rand::rngs::StdRng;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tiedkv_client::scan::{ScanOptions, ScanRange};
use tiedkv_client::{Client, Error, ReadOptions, ReadPolicy, View, WriteOptions};
use tokio::task::JoinSet;

/// Most calls in flight of an open loop: one more is an error of its own.
const IN_FLIGHT_MAX: usize = 100_000;
/// Longest latency that is told apart, microseconds.
const LATENCY_MAX_US: u64 = 120_000_000;
/// Views that send: each has its own session and estimates.
const VIEWS: u64 = 16;

/// When calls are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// So many per second on average, whatever became of earlier ones.
    Open(f64),
    /// So many callers, each with one call out at a time.
    Closed(usize),
}

/// What to run.
#[derive(Clone, Debug, PartialEq)]
pub struct Mixed {
    /// When calls are made.
    pub pace: Pace,
    /// What calls do.
    pub mix: Mix,
    /// Most keys of a call for many.
    pub width: u32,
    /// Most rows of a scan.
    pub rows: u32,
    /// Keys and values.
    pub workload: Workload,
    /// How calls spread over the keys.
    pub spread: Spread,
    /// Policies that take turns. At least one.
    pub policies: Vec<TurnPolicy>,
    /// How long each has its turn.
    pub block: Duration,
    /// Not counted at the beginning.
    pub warm_up: Duration,
    /// Counted.
    pub measured: Duration,
    /// Seeds arrivals, keys and the mix.
    pub seed: u64,
}

impl Mixed {
    /// Whose turn it is; `None` in the warm-up.
    fn turn(&self, at: Duration) -> Option<usize> {
        let counted = at.checked_sub(self.warm_up)?;
        let blocks = counted.as_nanos() / self.block.as_nanos().max(1);
        Some((blocks % self.policies.len().max(1) as u128) as usize)
    }

    /// How much of the counted time was this policy's turn when `counted` of it was over.
    pub fn time_of(&self, policy: usize, counted: Duration) -> Duration {
        let block = self.block.as_nanos().max(1);
        let round = block * self.policies.len().max(1) as u128;
        let (rounds, rest) = (counted.as_nanos() / round, counted.as_nanos() % round);
        let own = rounds * block + rest.saturating_sub(block * policy as u128).min(block);
        Duration::from_nanos(u64::try_from(own).unwrap_or(u64::MAX))
    }

    /// Whose turn it is in the warm-up: each has one, however short it is, so that no policy starts cold.
    fn warming(&self, at: Duration) -> usize {
        let count = u32::try_from(self.policies.len()).unwrap_or(u32::MAX).max(1);
        let slice = (self.warm_up / count).min(self.block).as_nanos().max(1);
        (at.as_nanos() / slice % u128::from(count)) as usize
    }
}

/// Calls of one kind under one policy.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Latencies of good ones, microseconds.
    pub latency: Histogram<u64>,
    /// How many failed.
    pub errors: u64,
    /// The first failure.
    pub first_error: Option<String>,
}

/// What came of it so far.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Per policy, in the order of [`Op::ALL`].
    pub calls: Vec<[Calls; 4]>,
    /// Good calls since the last look, latencies in microseconds.
    pub recent: Histogram<u64>,
    /// Counted time so far.
    pub took: Duration,
    /// Processor time of this process in it.
    pub cpu: Duration,
}

/// A run that can be looked at and stopped. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    stop: AtomicBool,
    figures: Mutex<Figures>,
}

impl Handle {
    /// For a run of this plan.
    ///
    /// # Errors
    /// Never in practice: the bounds of the histograms are fixed.
    pub fn new(plan: &Mixed) -> Result<Self> {
        let calls = Calls { latency: histogram()?, errors: 0, first_error: None };
        let figures = Figures {
            calls: vec![std::array::from_fn(|_| calls.clone()); plan.policies.len().max(1)],
            recent: histogram()?,
            took: Duration::ZERO,
            cpu: Duration::ZERO,
        };
        Ok(Self(Arc::new(Inner { stop: AtomicBool::new(false), figures: Mutex::new(figures) })))
    }

    /// Ends the run soon; calls that are out are waited for.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// The figures so far.
    pub fn figures(&self) -> Figures {
        self.lock().clone()
    }

    /// p50 and p99 of calls since the last look, microseconds, and how many.
    pub fn look(&self) -> (u64, u64, u64) {
        let mut figures = self.lock();
        let recent = &figures.recent;
        let seen = (recent.value_at_quantile(0.5), recent.value_at_quantile(0.99), recent.len());
        figures.recent.reset();
        seen
    }

    fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, turn: Option<usize>, op: Op, ended: Result<Duration, String>) {
        let mut figures = self.lock();
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX).max(1);
        if let Ok(latency) = ended {
            figures.recent.saturating_record(micros(latency));
        }
        let Some(calls) = turn.and_then(|turn| figures.calls.get_mut(turn)) else { return };
        let calls = &mut calls[op as usize];
        match ended {
            Ok(latency) => calls.latency.saturating_record(micros(latency)),
            Err(error) => {
                calls.errors += 1;
                calls.first_error.get_or_insert(error);
            }
        }
    }
}

/// Runs the plan until its end or a stop.
///
/// # Errors
/// When no timer can be had or a caller is lost. Failed calls are counted.
///
/// # Cancel safety
/// Safe for reads; writes that are out may be applied.
pub async fn run(client: &Client, plan: &Mixed, handle: &Handle) -> Result<()> {
    let view = |index: u64| client.view(plan.seed.wrapping_mul(VIEWS).wrapping_add(index));
    let caller = Caller {
        views: (0..VIEWS).map(view).collect(),
        usual: (VIEWS..2 * VIEWS).map(view).collect(),
        plan: plan.clone(),
        draws: KeyDraws::new(plan.spread, plan.workload.count),
        handle: handle.clone(),
        start: clock::now(),
    };
    let counted = count_time(plan, handle);
    let played = async {
        match plan.pace {
            Pace::Open(rate) => open(Arc::new(caller), rate).await,
            Pace::Closed(callers) => closed(Arc::new(caller), callers).await,
        }
    };
    tokio::select! {
        played = played => played,
        () = counted => Ok(()),
    }
}

/// Notes how long calls have been counted, and the processor time of it. Never ends.
async fn count_time(plan: &Mixed, handle: &Handle) {
    tokio::time::sleep(plan.warm_up).await;
    let (from, cpu) = (clock::now(), cpu::own());
    let mut took = Duration::ZERO;
    while took < plan.measured {
        tokio::time::sleep(Duration::from_millis(20)).await;
        took = from.elapsed();
        let mut figures = handle.lock();
        figures.took = took.min(plan.measured);
        figures.cpu = cpu::own().saturating_sub(cpu);
    }
    // What is out at the end is waited for and not counted.
    std::future::pending().await
}

/// Who makes calls.
struct Caller {
    views: Vec<View>,
    /// As many, for [`TurnPolicy::Usual`]: its gate and hold-out judge by what its own reads have met.
    usual: Vec<View>,
    plan: Mixed,
    draws: KeyDraws,
    handle: Handle,
    start: Instant,
}

impl Caller {
    fn end(&self) -> Duration {
        self.plan.warm_up + self.plan.measured
    }

    /// What one call does and to which keys.
    fn draw(&self, rng: &mut StdRng) -> Drawn {
        let op = self.plan.mix.draw(rng);
        let count = if op == Op::MultiGet { self.plan.width.max(1) } else { 1 };
        let mut numbers: SmallVec<[u64; 1]> = (0..count).map(|_| self.draws.draw(rng)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        Drawn { op, numbers }
    }

    /// One call, due at `at`.
    async fn call(&self, at: Duration, view: usize, drawn: Drawn) {
        let turn = self.plan.turn(at);
        let playing = turn.unwrap_or_else(|| self.plan.warming(at));
        let policy = self.plan.policies.get(playing).copied().unwrap_or(TurnPolicy::AsSet);
        let views = if policy == TurnPolicy::Usual { &self.usual } else { &self.views };
        let ended = self.made(&views[view % views.len()], &drawn, policy.options()).await;
        let took = self.start.elapsed().saturating_sub(at);
        self.handle.add(turn, drawn.op, ended.map(|()| took));
    }

    /// Makes the call; whether all of it was answered.
    async fn made(&self, view: &View, drawn: &Drawn, options: ReadOptions) -> Result<(), String> {
        let (workload, number) = (self.plan.workload, drawn.numbers[0]);
        let key = workload.key(number);
        match drawn.op {
            Op::Put => {
                let written = view.put_with(key, workload.value(number), WriteOptions::default()).await;
                written.map(drop).map_err(|error| error.to_string())
            }
            Op::Get => match view.get_with(key, options).await {
                Ok(read) if read.value.is_some() => Ok(()),
                Ok(_) => Err(format!("key {number} is absent")),
                Err(error) => Err(error.to_string()),
            },
            Op::MultiGet => {
                let keys = drawn.numbers.iter().map(|number| workload.key(*number));
                let read = view.multi_get(keys).with(options).send().await.map_err(|error| error.to_string())?;
                if read.values.iter().all(Option::is_some) { Ok(()) } else { Err("a key is absent".to_owned()) }
            }
            Op::Scan => scan(view, key, self.plan.rows, options).await.map_err(|error| error.to_string()),
        }
    }
}

/// Reads up to `rows` rows from `key` on.
async fn scan(view: &View, key: Bytes, rows: u32, read: ReadOptions) -> Result<(), Error> {
    // Pages have neither hedges nor rescues, and a call that names one is refused.
    let read = ReadOptions { policy: read.policy.map(ReadPolicy::without_extras), ..read };
    let options = ScanOptions { limit: Some(rows.into()), page_rows: rows.max(1), read, ..ScanOptions::default() };
    let mut scan = view.scan(&ScanRange::starting_at(key), options)?;
    while scan.next().await?.is_some() {}
    Ok(())
}

/// One call before it is made.
struct Drawn {
    op: Op,
    /// At least one key, sorted.
    numbers: SmallVec<[u64; 1]>,
}

async fn open(caller: Arc<Caller>, rate: f64) -> Result<()> {
    let timer = SendTimer::new().context("timer")?;
    let rng = StdRng::seed_from_u64(caller.plan.seed);
    let arrivals = Arrivals::new(rng, rate, caller.views.len(), 1);
    let mut rng = StdRng::seed_from_u64(caller.plan.seed ^ 0x006b_6579_7300);
    let mut out: JoinSet<()> = JoinSet::new();
    for arrival in arrivals.take_while(|arrival| arrival.at < caller.end()) {
        timer.until(caller.start + arrival.at).await.context("timer")?;
        if caller.handle.stopped() {
            break;
        }
        let drawn = caller.draw(&mut rng);
        if out.len() >= IN_FLIGHT_MAX {
            let text = format!("over {IN_FLIGHT_MAX} calls in flight");
            caller.handle.add(caller.plan.turn(arrival.at), drawn.op, Err(text));
        } else {
            let caller = Arc::clone(&caller);
            out.spawn(async move { caller.call(arrival.at, arrival.view, drawn).await });
        }
        while let Some(done) = out.try_join_next() {
            done.context("a call was lost")?;
        }
        // Behind its plan this loop never waits; others on this thread, signals among them, must have their turn.
        tokio::task::coop::consume_budget().await;
    }
    while let Some(done) = out.join_next().await {
        done.context("a call was lost")?;
    }
    Ok(())
}

async fn closed(caller: Arc<Caller>, callers: usize) -> Result<()> {
    let mut out: JoinSet<()> = JoinSet::new();
    for index in 0..callers.max(1) {
        let caller = Arc::clone(&caller);
        let mut rng = StdRng::seed_from_u64(caller.plan.seed.wrapping_add(index as u64));
        out.spawn(async move {
            loop {
                let at = caller.start.elapsed();
                if at >= caller.end() || caller.handle.stopped() {
                    return;
                }
                let drawn = caller.draw(&mut rng);
                caller.call(at, index, drawn).await;
                // A call that fails at once must not make this loop spin.
                tokio::task::coop::consume_budget().await;
            }
        });
    }
    while let Some(done) = out.join_next().await {
        done.context("a caller was lost")?;
    }
    Ok(())
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(policies: usize) -> Mixed {
        Mixed {
            pace: Pace::Open(1.0),
            mix: Mix::only(Op::Get),
            width: 10,
            rows: 100,
            workload: Workload::default(),
            spread: Spread::Uniform,
            policies: vec![TurnPolicy::AsSet; policies],
            block: Duration::from_secs(1),
            warm_up: Duration::from_secs(2),
            measured: Duration::from_secs(10),
            seed: 1,
        }
    }

    #[test]
    fn policies_take_turns_after_the_warm_up() {
        let plan = plan(2);
        let turns: Vec<Option<usize>> =
            [0.0, 1.9, 2.0, 2.9, 3.1, 4.0].map(|at| plan.turn(Duration::from_secs_f64(at))).to_vec();
        assert_eq!(turns, [None, None, Some(0), Some(0), Some(1), Some(0)]);
        let warming = |at: f64| plan.warming(Duration::from_secs_f64(at));
        assert_eq!([0.0, 0.9, 1.1, 1.9].map(warming), [0, 0, 1, 1]);
        let short = Mixed { warm_up: Duration::from_millis(300), ..plan.clone() };
        assert_eq!(short.warming(Duration::from_millis(200)), 1, "each has a turn in a short warm-up");
        assert_eq!(Mixed { warm_up: Duration::ZERO, ..short }.warming(Duration::ZERO), 0);
    }

    #[test]
    fn the_time_of_a_policy_is_that_of_its_turns() {
        let plan = plan(3);
        let of = |seconds: f64| [0, 1, 2].map(|policy| plan.time_of(policy, Duration::from_secs_f64(seconds)));
        let spans = |all: [f64; 3]| all.map(Duration::from_secs_f64);
        assert_eq!(of(10.0), spans([4.0, 3.0, 3.0]));
        assert_eq!(of(4.5), spans([2.0, 1.5, 1.0]), "stopped in the middle of a turn");
        assert_eq!(of(0.0), spans([0.0; 3]));
    }

    #[test]
    fn only_counted_calls_are_kept_and_recent_ones_are_forgotten_when_looked_at() {
        let handle = Handle::new(&plan(2)).unwrap();
        handle.add(None, Op::Get, Ok(Duration::from_millis(9)));
        handle.add(Some(1), Op::Get, Ok(Duration::from_millis(2)));
        handle.add(Some(1), Op::Put, Err("no leader".to_owned()));
        assert_eq!(handle.look().2, 2);
        assert_eq!(handle.look().2, 0);
        let figures = handle.figures();
        assert_eq!((figures.calls[0][0].latency.len(), figures.calls[1][0].latency.len()), (0, 1));
        assert_eq!(
            {
                let puts = &figures.calls[1][Op::Put as usize];
                (puts.errors, puts.first_error.as_deref())
            },
            (1, Some("no leader"))
        );
    }
}
