//! Durable puts of three groups in one process: a small run with every test, the figures by hand:
//! `cargo test --profile ci -p tiedkv-server --lib -- --ignored --nocapture puts_per_second`.

#![allow(clippy::disallowed_methods, reason = "tests measure by the machine's clock")]

use super::tests::{Cluster, put};
use super::*;
use std::io::Write;
use std::time::Instant;

/// fdatasync calls per second of small appends in one stream, in `folder`.
fn syncs_per_second(folder: &std::path::Path, span: Duration) -> f64 {
    let mut file = std::fs::File::create(folder.join("probe")).unwrap();
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < span {
        file.write_all(&[7; 170]).unwrap();
        file.sync_data().unwrap();
        count += 1;
    }
    f64::from(count) / begun.elapsed().as_secs_f64()
}

/// Closed-loop puts of `callers` for `span`: puts and the latencies, sorted.
fn puts(cluster: &Cluster, callers: usize, span: Duration) -> Vec<Duration> {
    let group = cluster.group(cluster.leader());
    let value = Bytes::from(vec![7; 100]);
    let until = Instant::now() + span;
    let loops = (0..callers).map(|caller| {
        let (value, cluster) = (value.clone(), &cluster);
        async move {
            let mut latencies = Vec::new();
            while Instant::now() < until {
                let request = put(&format!("key-{caller}-{}", latencies.len() % 100), cluster.next());
                let begun = Instant::now();
                group.write(CallerId(7), request, value.clone()).await.0.outcome.unwrap();
                latencies.push(begun.elapsed());
            }
            latencies
        }
    });
    let mut all: Vec<_> = cluster.runtime.block_on(futures_util::future::join_all(loops)).concat();
    all.sort_unstable();
    all
}

fn report(cluster: &Cluster, callers: usize, span: Duration) -> (f64, f64) {
    let before: Vec<_> = (0..3).map(|index| cluster.group(index).status()).collect();
    let latencies = puts(cluster, callers, span);
    let rate = latencies.len() as f64 / span.as_secs_f64();
    let after: Vec<_> = (0..3).map(|index| cluster.group(index).status()).collect();
    let syncs = before.iter().zip(&after).map(|(before, after)| after.log_syncs_total - before.log_syncs_total);
    let per_put = syncs.max().unwrap_or(0) as f64 / latencies.len() as f64;
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize];
    println!(
        "{callers} callers: {rate:.0} puts/s, p50 {:?}, p99 {:?}, fsyncs per put and node {per_put:.3}",
        at(0.5),
        at(0.99)
    );
    (rate, per_put)
}

#[test]
fn many_callers_share_fsyncs() {
    let cluster = Cluster::start(|_| ());
    let (_, per_put) = report(&cluster, 64, Duration::from_millis(500));
    assert!(per_put < 0.5, "{per_put} fsyncs per put with 64 callers");
}

#[test]
#[ignore = "figures; wants the machine to itself"]
fn puts_per_second() {
    let cluster = Cluster::start(|_| ());
    cluster.put("warm", "up");
    let syncs = syncs_per_second(cluster.folder.path(), Duration::from_secs(2));
    println!("one fdatasync stream: {syncs:.0}/s, {:?} each", Duration::from_secs_f64(1.0 / syncs));
    report(&cluster, 1, Duration::from_secs(4));
    report(&cluster, 64, Duration::from_secs(4));
    report(&cluster, 256, Duration::from_secs(8));
    let syncs = syncs_per_second(cluster.folder.path(), Duration::from_secs(2));
    println!("one fdatasync stream: {syncs:.0}/s");
}
