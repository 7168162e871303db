//! Tests of pooling: percentiles of few reads, ratios to idle, keys of the JSON.

use super::*;

#[test]
fn spans_of_too_few_reads_are_not_told() {
    let mut spans = Histogram::<u64>::new_with_bounds(1, 120_000_000, 3).unwrap();
    spans.record_n(500, 999).unwrap();
    let merged = Merged::of(std::iter::once(&spans));
    assert_eq!((merged.quantile(0.5), merged.quantile(0.99)), (Some(500), None));
    spans.record(500).unwrap();
    assert_eq!(Merged::of(std::iter::once(&spans)).quantile(0.99), Some(500));
    assert_eq!(Merged::of(std::iter::empty()).quantile(0.5), None);
    assert_eq!((told(&[7; 19], 0.5), told(&[7; 20], 0.5), told(&[], 0.5)), (None, Some(7), None));
    let pairs = [(120, 0), (5_999, 0), (6_000, 0), (6_000, 1)].map(|(reads, not_tied)| {
        let cancels = cancels_of_a_pair(reads, not_tied);
        (enough(cancels, 0.5), enough(cancels, 0.99))
    });
    assert_eq!(pairs, [(true, false), (true, false), (true, true), (true, false)]);
}

#[test]
fn ratios_are_to_idle_untied_and_to_ones_own_idle() {
    let row = |scene: &str, policy: &str, p99_us: u64| BusyRow {
        scene: scene.into(),
        policy: policy.into(),
        p95_us: Some(p99_us / 2),
        p99_us: Some(p99_us),
        p999_us: (scene == "idle").then_some(2 * p99_us),
        ..BusyRow::default()
    };
    let mut rows = [
        row("idle", "untied", 10_000),
        row("idle", "tied2", 8_000),
        row("busy", "tied2", 12_000),
        row("in-memory", "tied2", 100),
    ];
    relate(&mut rows);
    assert_eq!(rows[2].ratio_to_idle_untied, Some([None, None, Some(1.2), None]));
    assert_eq!(rows[2].ratio_to_own_idle, Some([None, None, Some(1.5), None]), "its p99.9 is not known");
    assert_eq!(rows[2].p99_ratio_to_own_idle, Some(1.5));
    assert_eq!((rows[2].p95_ratio_to_idle_untied, rows[2].p95_ratio_to_own_idle), (Some(1.2), Some(1.5)));
    assert_eq!(rows[1].ratio_to_idle_untied, Some([None, None, Some(0.8), Some(0.8)]));
    assert_eq!((rows[3].ratio_to_idle_untied, rows[3].ratio_to_own_idle), (None, None));
}

#[test]
fn series_of_files_without_the_budget_are_read() {
    let old = r#"{"at_ms":100,"reads":9,"p50_us":5,"p99_us":9,"copies":12,"extra_copies":3,"messages":30}"#;
    let tick: Tick = serde_json::from_str(old).unwrap();
    assert_eq!((tick.extra_copies, tick.no_token, tick.messages), (3, 0, 30));
}

/// Ideals and intervals are documented by the first and the last of their keys.
fn is_one_of_many(key: &str) -> bool {
    key.starts_with("ideal_") || key.ends_with("_interval_us")
}

#[test]
fn every_key_is_documented() {
    let docs = include_str!("../../../docs/benchmarks.md");
    let value = serde_json::to_value(BusyRow::default()).unwrap();
    for key in value.as_object().unwrap().keys().filter(|key| !is_one_of_many(key)) {
        assert!(docs.contains(&format!("`{key}`")), "{key} is not in docs/benchmarks.md");
    }
}

#[test]
fn a_row_survives_json_and_has_the_keys_of_the_demo() {
    let row = BusyRow { scene: "busy".into(), p99_us: Some(1), curve: vec![(1.0, 5)], ..BusyRow::default() };
    let value = serde_json::to_value(&row).unwrap();
    let demo = crate::report::Row::new(crate::report::SceneName::Busy, tiedkv_client::ReadPolicy::TIED2);
    for key in serde_json::to_value(&demo).unwrap().as_object().unwrap().keys() {
        assert!(value.get(key).is_some(), "the demo's {key} is missing");
    }
    assert!(value.get("ideal_jsw2_p99_us").is_some() && value.get("p95_us").is_some());
    assert_eq!(serde_json::from_value::<BusyRow>(value).unwrap(), row);
}
