//! Simulated worlds: a thousand seeds hold all invariants, planted bugs are found, one seed is one trace.
//!
//! `cargo run --profile ci -p tiedkv-tests --bin sim -- --seed N` plays one again.

mod storm;

use std::collections::BTreeMap;
use std::time::Duration;
use tiedkv_tests::sim::table::{SCENES, play_scene};
use tiedkv_tests::sim::watch::Rule;
use tiedkv_tests::sim::{Planted, play};

/// Plays seeds on all cores and returns those with a violation.
fn bad_seeds(seeds: std::ops::Range<u64>, planted: Option<Planted>) -> Vec<(u64, String)> {
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let bad = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    if let Some(violation) = play(seed, planted).violations.first() {
                        bad.lock().unwrap().push((seed, violation.to_string()));
                    }
                }
            });
        }
    });
    let mut bad = bad.into_inner().unwrap();
    bad.sort();
    bad
}

#[test]
fn a_thousand_seeds_hold_all_invariants() {
    let bad = bad_seeds(0..1_000, None);
    let shown: Vec<String> = bad.iter().take(3).map(|(seed, what)| format!("seed {seed}: {what}")).collect();
    assert!(bad.is_empty(), "{} of 1000 seeds, among them\n{}", bad.len(), shown.join("\n"));
}

#[test]
fn the_same_seed_is_the_same_trace() {
    let mut traces = BTreeMap::new();
    for seed in 0..40 {
        let (once, again) = (play(seed, None), play(seed, None));
        assert_eq!((once.trace, once.happenings), (again.trace, again.happenings), "seed {seed}");
        traces.insert(once.trace, seed);
    }
    assert_eq!(traces.len(), 40, "each seed is another world");
}

#[test]
fn every_planted_bug_is_found_by_its_invariant() {
    let finders = [
        (Planted::NoEarlyCancels, Rule::EarlyCancelHolds),
        (Planted::StartWithoutCancel, Rule::DuplicateHasExcuse),
        (Planted::RunningYieldsToAny, Rule::SomebodyGoesOn),
        (Planted::WaitingChunkCountsAsQueued, Rule::SomebodyGoesOn),
        (Planted::SetAsideCancels, Rule::CancelFollowsStart),
        (Planted::WithdrawOvertakes, Rule::WithdrawHolds),
        (Planted::StallEndedByYield, Rule::StallKeepsWorker),
        (Planted::DecidesByCode, Rule::NoLostRead),
        (Planted::NoSilenceRule, Rule::NoLostRead),
        (Planted::ExpiresSilently, Rule::NoSilence),
    ];
    assert_eq!(finders.len(), Planted::ALL.len());
    for (planted, rule) in finders {
        let found = (0..1_000).find_map(|seed| play(seed, Some(planted)).violations.first().cloned());
        let found = found.unwrap_or_else(|| panic!("no seed finds {planted:?}"));
        assert_eq!(found.rule, rule, "{planted:?} is found as {found}");
    }
}

#[test]
fn the_profile_is_busy_and_ties_repair_it() {
    let play = |name: &str| {
        let scene = SCENES.iter().find(|scene| scene.name == name).unwrap();
        play_scene(scene, 7, 24)
    };
    let (idle, untied, tied) = (play("idle untied"), play("busy untied"), play("busy tied2"));
    let p99 = |row: &tiedkv_tests::sim::table::Row| row.quantiles[2].as_secs_f64();
    assert!(idle.quantiles[0] > Duration::from_millis(4) && idle.errors + untied.errors + tied.errors == 0);
    let (untied_ratio, tied_ratio) = (p99(&untied) / p99(&idle), p99(&tied) / p99(&idle));
    assert!(untied_ratio > 2.0, "busy untied p99 is {untied_ratio:.2} x idle");
    assert!(tied_ratio < 1.15, "busy tied2 p99 is {tied_ratio:.2} x idle");
    assert!(tied.duplicates < 0.03, "{:.4} of started copies were duplicates", tied.duplicates);
}
