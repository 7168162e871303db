//! A closed loop: some callers, each with one call out at a time. Measures rates; its latencies hide waits
//! (coordinated omission), so policies are compared with the open loop only.

use super::cpu;
use super::workload::Workload;
use crate::clock;
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::{Duration, Instant};
use tiedkv_client::Client;
use tokio::task::JoinSet;

/// Longest latency that is told apart, microseconds.
const LATENCY_MAX_US: u64 = 120_000_000;

/// What each caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Reads, as the client's settings say.
    Get,
    /// Writes.
    Put,
}

/// What to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedLoop {
    /// What each caller does.
    pub calls: Calls,
    /// How many callers, at least 1.
    pub concurrency: usize,
    /// How long.
    pub duration: Duration,
    /// Keys (uniform) and values.
    pub workload: Workload,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Good calls per second.
    pub ops_per_s: f64,
    /// Median latency of good calls, microseconds.
    pub p50_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Processor time of this process per call, microseconds.
    pub cpu_us_per_op: f64,
}

/// Runs the loop on the current runtime.
///
/// # Errors
/// When a caller is lost. Failed calls are counted.
///
/// # Cancel safety
/// Safe for reads; writes that are out may be applied.
pub async fn run(client: &Client, plan: &ClosedLoop) -> Result<Figures> {
    let (begun, cpu_before) = (clock::now(), cpu::own());
    let end = begun + plan.duration;
    let mut callers = JoinSet::new();
    for seed in 0..plan.concurrency.max(1) as u64 {
        callers.spawn(caller(client.clone(), *plan, seed, end));
    }
    let mut latency = histogram()?;
    let mut errors = 0;
    while let Some(done) = callers.join_next().await {
        let (own, failed) = done.context("a caller was lost")??;
        latency.add(&own)?;
        errors += failed;
    }
    let (took, cpu_used) = (begun.elapsed(), cpu::own().saturating_sub(cpu_before));
    let good = latency.len();
    Ok(Figures {
        ops_per_s: good as f64 / took.as_secs_f64(),
        p50_us: latency.value_at_quantile(0.5),
        p99_us: latency.value_at_quantile(0.99),
        errors,
        cpu_us_per_op: cpu_used.as_secs_f64() * 1e6 / (good + errors).max(1) as f64,
    })
}

async fn caller(client: Client, plan: ClosedLoop, seed: u64, end: Instant) -> Result<(Histogram<u64>, u64)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut latency = histogram()?;
    let mut errors = 0;
    loop {
        let sent = clock::now();
        if sent >= end {
            return Ok((latency, errors));
        }
        let number = rng.random_range(0..plan.workload.count.max(1));
        let key = plan.workload.key(number);
        let good = match plan.calls {
            Calls::Get => client.get(key).await.is_ok_and(|value| value.is_some()),
            Calls::Put => client.put(key, plan.workload.value(number)).await.is_ok(),
        };
        if good {
            let took = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
            latency.saturating_record(took.max(1));
        } else {
            errors += 1;
            // A call that fails at once must not make this loop spin.
            tokio::task::yield_now().await;
        }
    }
}

fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_MAX_US, 3)?)
}
