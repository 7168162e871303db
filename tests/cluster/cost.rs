//! What guarantees cost, as ratios in one run: figures for a quiet machine, so never part of the gate.

use crate::bed::Bed;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_client::options::{Level, ReadOptions, WriteOptions};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::{Expect, View};
use tokio::task::JoinSet;

const CALLERS: u64 = 64;
const SPAN: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug)]
enum Call {
    Put,
    CompareAndSet,
    Get(Level),
}

/// Calls per second and median latency of so many callers, each with a key of its own and one call out at a time.
async fn rate(bed: &Bed, call: Call, callers: u64) -> (f64, Duration) {
    let (done, end) = (Arc::new(AtomicU64::new(0)), Instant::now() + SPAN);
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let (view, done) = (bed.client.view(caller), done.clone());
        tasks.spawn(async move {
            let key = format!("caller {caller}");
            let mut last = view.put_with(key.clone(), "begin", WriteOptions::default()).await.unwrap().version;
            let mut spans = Vec::new();
            while Instant::now() < end {
                let began = Instant::now();
                match call {
                    Call::Put => {
                        view.put_with(key.clone(), "x".repeat(100), WriteOptions::default()).await.unwrap();
                    }
                    Call::CompareAndSet => {
                        let expect = Expect::Version(last);
                        let set =
                            view.compare_and_set(key.clone(), expect, "x".repeat(100), WriteOptions::default());
                        last = set.await.unwrap().applied().unwrap().version;
                    }
                    Call::Get(level) => get(&view, key.clone(), level).await,
                }
                spans.push(began.elapsed());
                done.fetch_add(1, Relaxed);
            }
            spans
        });
    }
    let mut spans = Vec::new();
    while let Some(own) = tasks.join_next().await {
        spans.extend(own.unwrap());
    }
    spans.sort_unstable();
    (done.load(Relaxed) as f64 / SPAN.as_secs_f64(), spans[spans.len() / 2])
}

async fn get(view: &View, key: String, level: Level) {
    let options = ReadOptions { policy: Some(ReadPolicy::UNTIED), level: Some(level), ..ReadOptions::default() };
    view.get_with(key, options).await.unwrap();
}

#[tokio::test]
#[ignore = "figures; wants the machine to itself"]
async fn what_guarantees_cost() {
    let bed = Bed::with(3, |settings| {
        settings.storage = Storage::Disk;
        settings.device = Device::Real;
    })
    .await;
    for (callers, round) in [(CALLERS, 1), (CALLERS, 2), (CALLERS, 3), (1, 1), (1, 2)] {
        let mut line = format!("{callers} callers, round {round}:");
        for (name, call) in [
            ("put", Call::Put),
            ("cas", Call::CompareAndSet),
            ("stale get", Call::Get(Level::Stale { bound: None })),
            ("session get", Call::Get(Level::Session)),
            ("bounded get", Call::Get(Level::Stale { bound: Some(Duration::from_millis(400)) })),
            ("linearizable get", Call::Get(Level::Linearizable)),
        ] {
            let (rate, median) = rate(&bed, call, callers).await;
            line.push_str(&format!("  {name} {rate:.0}/s {median:.0?}"));
        }
        println!("{line}");
    }
}
