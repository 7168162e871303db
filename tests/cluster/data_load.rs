//! What fifty clients that scan everything do to the latency of gets, on the modelled device; long.

use crate::bed::Bed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tiedkv_benches::load::preload::{Writes, preload};
use tiedkv_benches::load::workload::Workload;
use tiedkv_client::{Client, Level, ReadOptions, ReadPolicy, ScanOptions, ScanRange};

const SCANNERS: u64 = 50;
const KEYS: u64 = 20_000;
/// Gets per second: .15 of what 3 nodes of 8 lanes serve at 5 ms.
const RATE: u32 = 720;
const SECONDS: u32 = 12;

fn read(policy: ReadPolicy) -> ReadOptions {
    ReadOptions {
        policy: Some(policy),
        level: Some(Level::Stale { bound: None }),
        deadline: Some(Duration::from_secs(5)),
        ..ReadOptions::default()
    }
}

/// p50 and p99 of gets sent at fixed times, whatever became of the ones before.
async fn gets(client: &Client, policy: ReadPolicy) -> (Duration, Duration) {
    let workload = Workload { count: KEYS, ..Workload::default() };
    let begun = Instant::now();
    let mut out = tokio::task::JoinSet::new();
    for number in 0..u64::from(RATE * SECONDS) {
        let due = begun + Duration::from_secs(1) / RATE * number as u32;
        tokio::time::sleep_until(due.into()).await;
        let (client, key) = (client.clone(), workload.key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS));
        out.spawn(async move {
            let sent = Instant::now();
            client.get_with(key, read(policy)).await.unwrap();
            sent.elapsed()
        });
    }
    let mut taken: Vec<Duration> = out.join_all().await;
    // The first two seconds warm up; which those are does not matter among so many.
    taken.sort_unstable();
    (taken[taken.len() / 2], taken[taken.len() * 99 / 100])
}

#[tokio::test]
#[ignore = "long: latency under fifty scanners, needs the machine to itself"]
async fn fifty_scanning_clients_leave_the_latency_of_gets_nearly_as_it_is() {
    let bed = Bed::with(3, |settings| settings.lanes = 8).await;
    let nodes = bed.nodes();
    preload(&bed.client, Workload { count: KEYS, ..Workload::default() }, &Writes::ToEveryNode(nodes), |_| {})
        .await
        .unwrap();
    for (policy, bound) in [(ReadPolicy::TIED2, 1.15), (ReadPolicy::UNTIED, 1.4)] {
        let quiet = gets(&bed.client, policy).await;
        let (stop, rows) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut scanners = tokio::task::JoinSet::new();
        for seed in 0..SCANNERS {
            let (view, stop, rows) = (bed.client.view(seed), stop.clone(), rows.clone());
            let options = ScanOptions { pages_ahead: 1, read: read(ReadPolicy::UNTIED), ..ScanOptions::default() };
            scanners.spawn(async move {
                while !stop.load(Relaxed) {
                    let mut scan = view.scan(&ScanRange::all(), options.clone()).unwrap();
                    while !stop.load(Relaxed) && scan.next().await.unwrap().is_some() {
                        rows.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        let scanned = gets(&bed.client, policy).await;
        stop.store(true, Relaxed);
        scanners.join_all().await;
        let ratio = scanned.1.as_secs_f64() / quiet.1.as_secs_f64();
        println!(
            "{policy}: p50/p99 {quiet:?} without scans, {scanned:?} with {SCANNERS} scanners ({} rows/s); p99 x {ratio:.2}",
            rows.load(Relaxed) / u64::from(SECONDS)
        );
        assert!(ratio <= bound, "{policy}: p99 x {ratio:.2}, the bound is {bound}");
    }
}
