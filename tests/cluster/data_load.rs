//! What work on much data does to the latency of gets beside it: scans, large values, keys that expire. The same policy
//! with and without, in one run; figures are printed. Long, but for a small round of expiring keys.

use crate::bed::{Bed, PATIENCE, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_benches::load::preload::{Writes, preload};
use tiedkv_benches::load::workload::{Sizes, Workload};
use tiedkv_client::{Batch, Client, Level, ReadOptions, ReadPolicy, ScanOptions, ScanRange, WriteOptions};
use tokio::task::JoinSet;

const SCANNERS: u64 = 50;
const WORKLOAD: Workload = Workload { count: 20_000, sizes: Sizes::of(100) };
/// Gets per second: .15 of what 3 nodes of 8 lanes serve at 5 ms.
const RATE: u32 = 720;
const SPAN: Duration = Duration::from_secs(10);
/// Most that a node may take while it is scanned: 128 pages of 1 MiB, and what it takes idle.
const RESIDENT_MIB_MAX: u64 = 128 + 100;

fn read(policy: ReadPolicy) -> ReadOptions {
    ReadOptions {
        policy: Some(policy),
        level: Some(Level::Stale { bound: None }),
        deadline: Some(Duration::from_secs(5)),
        ..ReadOptions::default()
    }
}

fn write() -> WriteOptions {
    WriteOptions { deadline: Some(PATIENCE), ..WriteOptions::default() }
}

/// Latency of gets, and what of it was spent where.
#[derive(Clone, Copy)]
struct Taken {
    p50: Duration,
    p99: Duration,
    /// p99 of the wait in the winner's lane, of its service, and of all the rest: client, network, threads.
    parts: [Duration; 3],
}

/// Gets sent at fixed times, whatever became of the ones before; from the planned time on.
async fn gets(client: &Client, policy: ReadPolicy, rate: u32, span: Duration) -> Taken {
    let begun = Instant::now();
    let mut out = JoinSet::new();
    for number in 0..u64::from(rate) * span.as_millis() as u64 / 1_000 {
        let due = begun + Duration::from_secs(number) / rate;
        tokio::time::sleep_until(due.into()).await;
        let key = WORKLOAD.key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % WORKLOAD.count);
        let client = client.clone();
        out.spawn(async move {
            let report = client.get_with(key, read(policy)).await.unwrap().report;
            let (all, wait, service) = (due.elapsed(), report.queue_wait, report.service_time);
            [all, wait, service, all.saturating_sub(wait + service)]
        });
    }
    let taken: Vec<[Duration; 4]> = out.join_all().await;
    let quantile = |part: usize, share: usize| {
        let mut spans: Vec<Duration> = taken.iter().map(|one| one[part]).collect();
        spans.sort_unstable();
        spans[spans.len() * share / 100]
    };
    Taken { p50: quantile(0, 50), p99: quantile(0, 99), parts: [1, 2, 3].map(|part| quantile(part, 99)) }
}

/// The thread that measures comes before those that load the machine, as the generator of the benchmarks does: where the
/// clients are on machines of their own, theirs is not the work of a neighbour. What it starts is as others are.
fn measure_undisturbed() {
    if let Err(error) = tiedkv_benches::load::realtime::raise_this_thread() {
        println!("measured at the priority of everything else: {error}");
    }
}

/// A modelled cluster whose every node has all keys.
async fn modelled() -> Bed {
    measure_undisturbed();
    let bed = Bed::with(3, |settings| {
        settings.lanes = 8;
        settings.storage = Storage::Disk;
    })
    .await;
    bed.leader().await;
    preload(&bed.client, WORKLOAD, &Writes::Replicated, |_| {}).await.unwrap();
    bed.until_applied(&bed.nodes(), bed.client.token().position).await;
    bed
}

/// What runs beside the gets: clients of their own, in a thread of its own.
struct Beside {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<u64>,
}

impl Beside {
    /// Plays `work` until it is stopped; it counts what it did.
    fn start<F: Future<Output = u64>>(work: impl FnOnce(Arc<AtomicBool>) -> F + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work(stopped))
        });
        Self { stop, thread }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

/// Scans everything again and again; gives the rows.
async fn scanner(url: String, stop: Arc<AtomicBool>) -> u64 {
    let client = Client::connect_url(&url).await.unwrap();
    let options = ScanOptions { pages_ahead: 1, read: read(ReadPolicy::UNTIED), ..ScanOptions::default() };
    let mut rows = 0;
    while !stop.load(Relaxed) {
        let mut scan = client.scan(&ScanRange::all(), options.clone()).unwrap();
        while !stop.load(Relaxed) && scan.next().await.unwrap().is_some() {
            rows += 1;
        }
    }
    rows
}

/// Puts and gets values of 8 MiB, two of each a second; gives how many.
async fn large_values(url: String, stop: Arc<AtomicBool>) -> u64 {
    let client = Client::connect_url(&url).await.unwrap();
    let value = bytes::Bytes::from(vec![7; 8 << 20]);
    let mut out = JoinSet::new();
    let mut twice_a_second = tokio::time::interval(Duration::from_millis(500));
    let mut done = 0;
    while !stop.load(Relaxed) {
        twice_a_second.tick().await;
        let (writer, reader, value) = (client.clone(), client.clone(), value.clone());
        let (key, other) = (format!("large-{}", done % 4), format!("large-{}", (done + 3) % 4));
        out.spawn(async move { writer.put_with(key, value, write()).await.map(drop).unwrap() });
        out.spawn(async move { reader.get_with(other, read(ReadPolicy::UNTIED)).await.map(drop).unwrap() });
        done += 1;
    }
    out.join_all().await;
    done
}

/// p99 with something over p99 without it; printed.
fn relation(name: &str, policy: ReadPolicy, without: Taken, with: Taken) -> f64 {
    let ratio = with.p99.as_secs_f64() / without.p99.as_secs_f64();
    let said = |taken: Taken| {
        format!("{:.2?} / {:.2?} (wait, service, rest: p99 {:.2?})", taken.p50, taken.p99, taken.parts)
    };
    println!("{policy}: p50 / p99 {} without {name}, {} with; p99 x {ratio:.2}", said(without), said(with));
    ratio
}

/// Resident memory of the largest node, MiB.
fn resident_mib(bed: &Bed) -> u64 {
    let of = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    bed.cluster.nodes().iter().filter_map(|node| node.pid()).map(of).max().unwrap()
}

#[tokio::test]
#[ignore = "long: latency under fifty scanners, needs the machine to itself"]
async fn fifty_scanning_clients_leave_the_latency_of_gets_nearly_as_it_is() {
    let bed = modelled().await;
    let mut broken = Vec::new();
    for (policy, bound) in [(ReadPolicy::TIED2, 1.15), (ReadPolicy::UNTIED, 1.4)] {
        let without = gets(&bed.client, policy, RATE, SPAN).await;
        let url = bed.cluster.url();
        let scanners = Beside::start(async move |stop| {
            let all = (0..SCANNERS).map(|_| scanner(url.clone(), stop.clone()));
            all.collect::<JoinSet<_>>().join_all().await.iter().sum()
        });
        let with = gets(&bed.client, policy, RATE, SPAN).await;
        let resident = resident_mib(&bed);
        let scanned = scanners.stop() / SPAN.as_secs();
        let ratio = relation("scans", policy, without, with);
        println!("{SCANNERS} scanners: {scanned} rows/s; the largest node takes {resident} MiB");
        assert!(scanned > 10_000, "the scanners starve: {scanned} rows/s");
        if ratio > bound || resident > RESIDENT_MIB_MAX {
            broken.push(format!("{policy}: p99 x {ratio:.2} (bound {bound}), {resident} MiB"));
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

#[tokio::test]
#[ignore = "long: latency beside large values, needs the machine to itself"]
async fn large_values_leave_the_latency_of_small_gets_nearly_as_it_is() {
    const BOUND: f64 = 1.3;
    let bed = modelled().await;
    let mut broken = Vec::new();
    for policy in [ReadPolicy::TIED2, ReadPolicy::UNTIED] {
        let without = gets(&bed.client, policy, RATE, SPAN).await;
        let url = bed.cluster.url();
        let large = Beside::start(move |stop| large_values(url, stop));
        let with = gets(&bed.client, policy, RATE, SPAN).await;
        let done = large.stop();
        let ratio = relation(&format!("{done} puts and gets of 8 MiB"), policy, without, with);
        if ratio > BOUND {
            broken.push(format!("{policy}: p99 x {ratio:.2} (bound {BOUND})"));
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

/// `count` keys that end within `span`, which begins at `from`.
async fn expiring(client: &Client, count: u64, from: Instant, span: Duration) {
    let mut out = JoinSet::new();
    for first in (0..count).step_by(1_000) {
        let left = (from + span.mul_f64(first as f64 / count as f64)).saturating_duration_since(Instant::now());
        let keys = first..count.min(first + 1_000);
        let batch = keys.fold(Batch::new(), |batch, n| batch.put_for(format!("brief-{n:07}"), "v", left));
        while out.len() >= 8 {
            out.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        out.spawn(async move { client.batch_with(batch, write()).await.map(drop).unwrap() });
    }
    out.join_all().await;
}

async fn count(client: &Client) -> u64 {
    let options = ReadOptions { deadline: Some(PATIENCE), token: Some(client.token()), ..ReadOptions::default() };
    client.view(7).count(&ScanRange::prefix("brief-"), options).await.unwrap()
}

/// Plays gets before and while keys expire; gives the relation of p99.
async fn while_keys_expire(bed: &Bed, keys: u64, ahead: Duration, span: Duration, rate: u32) -> f64 {
    let from = Instant::now() + ahead;
    expiring(&bed.client, keys, from, span).await;
    assert!(Instant::now() < from, "written too slowly");
    assert_eq!(count(&bed.client).await, keys);
    let before = gets(&bed.client, ReadPolicy::TIED2, rate, (from - Instant::now()).min(SPAN)).await;
    tokio::time::sleep_until(from.into()).await;
    let during = gets(&bed.client, ReadPolicy::TIED2, rate, span).await;
    let ratio = relation(&format!("{keys} keys that expire within {span:?}"), ReadPolicy::TIED2, before, during);
    until("all are gone", async || count(&bed.client).await, |left| *left == 0).await;
    ratio
}

#[tokio::test]
async fn keys_that_expire_together_go_and_gets_go_on() {
    let mut bed = crate::data::replicated().await;
    bed.client = Client::connect_url(&crate::data::patient_url(&bed)).await.unwrap();
    let ratio = while_keys_expire(&bed, 3_000, Duration::from_secs(3), Duration::from_secs(2), 100).await;
    // A loaded machine says little; the million has the bound.
    assert!(ratio < 50.0, "p99 x {ratio:.1}");
}

#[tokio::test]
#[ignore = "long: a million keys expire within a minute, needs the machine to itself"]
async fn a_million_keys_expire_within_a_minute_and_the_tail_of_gets_stays() {
    let bed = Bed::replicated_with(3, |settings| {
        settings.lanes = 8;
        settings.device = Device::Modelled;
    })
    .await;
    measure_undisturbed();
    preload(&bed.client, WORKLOAD, &Writes::Replicated, |_| {}).await.unwrap();
    let minute = Duration::from_secs(60);
    let ratio = while_keys_expire(&bed, 1_000_000, Duration::from_secs(45), minute, RATE).await;
    println!("the largest node takes {} MiB", resident_mib(&bed));
    assert!(ratio <= 1.3, "p99 x {ratio:.2}");
}
