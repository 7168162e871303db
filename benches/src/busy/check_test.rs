//! Tests of the verdicts: intervals decide, noise fails nobody, planted faults are found.

use super::super::document::Run;
use super::*;

fn row(scene: &str, policy: &str, p99_us: u64, interval: [u64; 2]) -> BusyRow {
    BusyRow {
        scene: scene.into(),
        policy: policy.into(),
        p90_us: Some(p99_us / 2),
        p99_us: Some(p99_us),
        p99_interval_us: Some(interval),
        judged: true,
        cpu_us_per_read: 100.0,
        ..BusyRow::default()
    }
}

fn verdict(rows: Vec<BusyRow>, what: &str) -> Verdict {
    let judged = judge(&Document::new(Run::default(), rows));
    judged.iter().find(|one| one.what.starts_with(what)).unwrap_or_else(|| panic!("{what} in {judged:#?}")).verdict
}

#[test]
fn only_a_whole_interval_beyond_the_bound_breaks_it() {
    let idle = row("idle", "untied", 10_000, [9_800, 10_200]);
    let of = |busy: BusyRow| verdict(vec![idle.clone(), busy], "busy tied2 p99 over idle untied");
    assert_eq!(of(row("busy", "tied2", 11_000, [10_500, 11_500])), Verdict::Ok);
    assert_eq!(of(row("busy", "tied2", 11_600, [11_300, 12_000])), Verdict::Unclear);
    assert_eq!(of(row("busy", "tied2", 13_000, [12_500, 13_500])), Verdict::Broken);
    let mut noisy = row("busy", "tied2", 13_000, [12_500, 13_500]);
    noisy.judged = false;
    assert_eq!(of(noisy), Verdict::NotJudged);
}

#[test]
fn a_storm_that_never_ends_is_broken() {
    let storm = |policy: &str, recovery: [Option<f64>; 3]| BusyRow {
        recovery_s: recovery.to_vec(),
        ..row("storm", policy, 90_000, [80_000, 100_000])
    };
    let untied = storm("untied", [Some(4.0), None, Some(5.0)]);
    let of = |hedged: BusyRow| verdict(vec![untied.clone(), hedged], "storm hedged");
    assert_eq!(of(storm("hedged", [Some(5.5), Some(9.0), Some(5.0)])), Verdict::Ok);
    assert_eq!(of(storm("hedged", [Some(6.5), Some(9.0), Some(5.0)])), Verdict::Broken);
    assert_eq!(of(storm("hedged", [None, None, Some(5.0)])), Verdict::Broken);
    let high = |policy: &str, p99: Option<f64>| BusyRow {
        recovery_p99_s: vec![p99; 3],
        ..storm(policy, [Some(4.0), Some(4.0), Some(4.0)])
    };
    let of = |hedged: BusyRow| {
        verdict(
            vec![high("untied", Some(6.0)), hedged],
            "storm hedged: seconds until the p99 recovered (untied 6.0)",
        )
    };
    assert_eq!(of(high("hedged", Some(7.0))), Verdict::Ok);
    assert_eq!(of(high("hedged", Some(7.1))), Verdict::Broken, "the median alone says nothing of the tail");
    assert_eq!(of(high("hedged", None)), Verdict::Broken);
}

#[test]
fn what_was_not_played_is_not_asked_for() {
    assert_eq!(judge(&Document::new(Run::default(), Vec::new())), []);
    let costly = BusyRow { cpu_us_per_read: 170.0, ..row("busy", "tied2", 10_000, [9_000, 11_000]) };
    let rows = vec![row("busy", "untied", 25_000, [24_000, 26_000]), costly];
    assert_eq!(verdict(rows, "busy tied2 processor time"), Verdict::Broken);
}

#[test]
fn processor_time_is_broken_only_beyond_its_interval_over_repeats() {
    let of = |policy: &str, repeats: [f64; 5]| BusyRow {
        cpu_us_per_read: repeats.iter().sum::<f64>() / 5.0,
        cpu_us_of_repeats: repeats.to_vec(),
        ..row("busy", policy, 10_000, [9_000, 11_000])
    };
    let verdict_of = |repeats: [f64; 5]| {
        let rows = vec![of("untied", [100.0, 102.0, 98.0, 100.0, 100.0]), of("tied2", repeats)];
        verdict(rows, "busy tied2 processor time")
    };
    assert_eq!(verdict_of([150.0, 155.0, 149.0, 151.0, 150.0]), Verdict::Ok);
    assert_eq!(verdict_of([150.0, 180.0, 155.0, 175.0, 150.0]), Verdict::Unclear);
    assert_eq!(verdict_of([170.0, 173.0, 168.0, 171.0, 169.0]), Verdict::Broken);
}

#[test]
fn the_interval_of_many_repeats_is_students_too() {
    // From tables, with two-sided 95 %.
    for (freedom, known) in [(1, 12.706), (9, 2.262), (10, 2.228), (19, 2.093), (30, 2.042), (99, 1.984)] {
        assert!((student(freedom) - known).abs() < 1e-3, "{freedom}: {}", student(freedom));
    }
    // Twelve ratios, half of them 1.0 and half 1.2: mean 1.1, standard error .03015, t of 11 degrees 2.201.
    let own: Vec<f64> = (0..12).map(|repeat| if repeat % 2 == 0 { 100.0 } else { 120.0 }).collect();
    let low = low_end(&own, &[100.0; 12]).unwrap();
    assert!((low - 1.0336).abs() < 5e-4, "{low}");
}

#[test]
fn counts_are_broken_only_beyond_their_interval_over_repeats() {
    let of = |duplicates: [f64; 5]| BusyRow {
        duplicates_pct: duplicates.iter().sum::<f64>() / 5.0,
        counts_of_repeats: duplicates
            .map(|duplicates_pct| RepeatCounts { duplicates_pct, ..RepeatCounts::default() })
            .to_vec(),
        ..row("busy", "tied2", 10_000, [9_000, 11_000])
    };
    let verdict_of = |duplicates: [f64; 5]| verdict(vec![of(duplicates)], "busy tied2 duplicates %");
    assert_eq!(verdict_of([2.5, 3.1, 2.9, 3.0, 2.8]), Verdict::Ok);
    assert_eq!(verdict_of([2.5, 3.9, 2.9, 3.6, 3.1]), Verdict::Unclear);
    assert_eq!(verdict_of([3.3, 3.2, 3.4, 3.3, 3.2]), Verdict::Broken);
    let old = BusyRow { counts_of_repeats: Vec::new(), ..of([2.5, 3.9, 2.9, 3.6, 3.1]) };
    assert_eq!(verdict(vec![old], "busy tied2 duplicates %"), Verdict::Broken, "no interval is known");
}

#[test]
fn good_reads_are_missing_by_their_interval_over_repeats() {
    let of = |policy: &str, good: [u64; 3]| BusyRow {
        reads: good.iter().sum(),
        repeats: 3,
        counts_of_repeats: good.map(|good_reads| RepeatCounts { good_reads, ..RepeatCounts::default() }).to_vec(),
        ..row("in-memory", policy, 900, [800, 1_000])
    };
    let verdict_of = |good: [u64; 3]| {
        let rows = vec![of("untied", [10_000; 3]), of("default", good)];
        verdict(rows, "in-memory default good reads")
    };
    assert_eq!(verdict_of([9_000, 9_100, 9_050]), Verdict::Ok);
    assert_eq!(verdict_of([9_500, 7_000, 8_000]), Verdict::Unclear);
    assert_eq!(verdict_of([8_000, 8_050, 8_020]), Verdict::Broken);
}

#[test]
fn in_memory_the_default_keeps_the_rate_and_the_p50_by_its_interval() {
    let of = |policy: &str, (p50, interval): (u64, [u64; 2]), reads: u64, repeats: u32| BusyRow {
        p50_us: Some(p50),
        p50_interval_us: Some(interval),
        reads,
        repeats,
        ..row("in-memory", policy, 900, [800, 1_000])
    };
    let untied = of("untied", (300, [290, 310]), 30_000, 3);
    let (rate, p50) = ("in-memory default good reads", "in-memory default p50");
    let verdict_of = |row: BusyRow, what: &str| verdict(vec![untied.clone(), row], what);
    assert_eq!(verdict_of(of("default", (330, [325, 335]), 26_000, 3), rate), Verdict::Ok);
    assert_eq!(verdict_of(of("default", (330, [325, 335]), 20_000, 2), rate), Verdict::Ok, "a repeat fewer");
    assert_eq!(verdict_of(of("default", (330, [325, 335]), 25_000, 3), rate), Verdict::Broken);
    assert_eq!(verdict_of(of("default", (330, [325, 335]), 30_000, 3), p50), Verdict::Ok);
    assert_eq!(verdict_of(of("default", (350, [340, 360]), 30_000, 3), p50), Verdict::Unclear);
    assert_eq!(verdict_of(of("default", (400, [390, 410]), 30_000, 3), p50), Verdict::Broken);
}

#[test]
fn the_check_fits_into_45_minutes() {
    let minutes = super::super::matrix::estimate(&parts(None, 5, (None, None)).unwrap()).as_secs() / 60;
    assert!((20..=45).contains(&minutes), "{minutes} minutes");
}

#[test]
fn a_part_of_the_check_can_be_played() {
    let some = parts(None, 1, (Some("storm,idle"), Some("untied,hedged"))).unwrap();
    let names: Vec<(&str, usize)> = some.iter().map(|part| (&*part.scene.name, part.policies.len())).collect();
    assert_eq!(names, [("idle", 1), ("storm", 2)]);
    let wrong = parts(None, 1, (Some("storm,sort"), None)).unwrap_err().to_string();
    assert!(wrong.contains("`sort`") && wrong.contains("storm60"), "{wrong}");
    assert!(parts(None, 1, (Some("storm60"), Some("tied2"))).is_err());
    assert!(parts(None, 1, (Some("none"), None)).unwrap().is_empty(), "files alone are judged");
}
