//! The nemesis, short: twenty seconds of faults against real processes under a mixed load, and every promise judged.
//! Longer: `cargo run --release -p tiedkv-tests --bin nemesis -- --minutes N --seed S`.

use std::path::PathBuf;
use std::time::Duration;
use tiedkv_tests::nemesis::{Settings, run};

fn settings(seed: u64, nodes: usize, seconds: u64) -> Settings {
    Settings {
        binary: PathBuf::from(env!("CARGO_BIN_EXE_tiedkv")),
        span: Duration::from_secs(seconds),
        seed,
        nodes,
        kept: std::env::temp_dir(),
        stale_read: false,
    }
}

async fn play(seed: u64, nodes: usize, seconds: u64) {
    let settings = settings(seed, nodes, seconds);
    let report = run(&settings, |line| println!("{line}")).await.unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    assert_eq!(report.violations, [], "seed {seed}: {} calls; kept in {:?}", report.operations, settings.kept);
    assert!(report.operations > 300, "seed {seed}: only {} calls", report.operations);
    assert!(
        report.operations > 2 * report.failed,
        "seed {seed}: {} of {} failed",
        report.failed,
        report.operations
    );
    assert!(report.faults.len() > 3, "{:?}", report.faults);
}

/// Three clusters at once: they wait more than they work.
#[tokio::test]
async fn every_promise_holds_for_twenty_seconds_of_three_seeds() {
    tokio::join!(play(1, 3, 20), play(2, 3, 20), play(3, 3, 20));
}

/// One node of three answers every read at once from a state that stands still.
#[tokio::test]
async fn a_server_with_a_stale_read_is_found_and_what_proves_it_is_kept() {
    let kept = tempfile::tempdir().unwrap();
    let settings = Settings { stale_read: true, kept: kept.path().to_owned(), ..settings(6, 3, 2) };
    let report = run(&settings, |line| println!("{line}")).await.unwrap();
    assert!(report.violations.iter().any(|one| one.promise == "linearizable"), "{:?}", report.lines());
    let last = format!("{} operations, {} violations", report.operations, report.violations.len());
    assert_eq!(report.lines().last(), Some(&last));
    let folder = kept.path().join("nemesis-6");
    assert!(std::fs::read_to_string(folder.join("report.txt")).unwrap().contains("seed 6, 3 nodes"));
    assert!(std::fs::read_to_string(folder.join("history.txt")).unwrap().lines().count() > 100);
    (1..=3).for_each(|node| assert!(folder.join(format!("node-{node}.log")).exists()));
}

#[tokio::test]
#[ignore = "long: a minute each, three seeds on three nodes, one on five"]
async fn every_promise_holds_for_more_seeds_and_nodes() {
    for (seed, nodes) in [(2, 3), (3, 3), (4, 3), (5, 5)] {
        play(seed, nodes, 60).await;
    }
}
