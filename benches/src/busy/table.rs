//! Rows as a table for people.

use super::document::Document;
use super::row::{BUSY_MAX_PCT, BusyRow};
use crate::report::{columns, millis};
use std::fmt::Write;

/// All rows: latencies in milliseconds, ratios to idle untied, extra work, ideals.
pub fn table(document: &Document) -> String {
    let head = [
        "scene",
        "policy",
        "reads",
        "err",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "p99 interval",
        "ratio to idle untied",
        "of ideal",
        "slow|slow %",
        "dup %",
        "wasted %",
        "extra %",
        "msg",
        "cpu us",
        "busy %",
    ];
    let mut cells = vec![head.map(str::to_owned).to_vec()];
    cells.extend(document.rows.iter().map(line));
    let mut text = columns(&cells, 2);
    text.push_str("latencies in ms from the planned send time; ratios, and of ideal, in the order p50 p90 p99 p99.9; of ideal:\n");
    text.push_str("measured over the limit of the policy's width on the run's own trace; extra: hedges and rescues per read; -: too few reads\n");
    text.push_str("slow|slow: of untied reads on other nodes within 5 ms of a slow one (over 3 S), the slow ones: P(B slow | A slow)\n");
    if document.rows.iter().any(|row| row.scene == "real-disk") {
        text.push_str("real-disk: the three replicas share this machine's disk, so that they are slow together and ties can dodge little\n");
    }
    if document.rows.iter().any(|row| !row.judged) {
        let _ = writeln!(
            text,
            "! not judged: processors over {BUSY_MAX_PCT} % busy, or the machine stood still meanwhile"
        );
    }
    text
}

fn line(row: &BusyRow) -> Vec<String> {
    let span = |span: Option<u64>| span.map_or_else(|| "-".to_owned(), millis);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    let interval = |interval: Option<[u64; 2]>| {
        interval.map_or_else(|| "-".to_owned(), |[low, high]| format!("{}..{}", millis(low), millis(high)))
    };
    let ratios =
        |four: Option<[Option<f64>; 4]>| four.map_or_else(|| "-".to_owned(), |four| four.map(ratio).join(" / "));
    vec![
        row.scene.clone(),
        row.policy.clone(),
        row.reads.to_string(),
        row.errors.to_string(),
        span(row.p50_us),
        span(row.p90_us),
        span(row.p99_us),
        span(row.p999_us),
        interval(row.p99_interval_us),
        ratios(row.ratio_to_idle_untied),
        ratios(row.ideal.measured_over_ideal),
        row.slow_given_slow_pct.map_or_else(|| "-".to_owned(), |share| format!("{share:.1}")),
        format!("{:.2}", row.duplicates_pct),
        format!("{:.3}", row.wasted_work_pct + row.wasted_extra_pct),
        format!("{:.1}", row.extra_copies_pct),
        format!("{:.2}", row.messages_per_read),
        format!("{:.0}", row.cpu_us_per_read),
        format!("{:.0}{}", row.machine_busy_pct, if row.judged { "" } else { "!" }),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::document::Run;
    use super::*;

    #[test]
    fn what_is_not_known_is_a_dash_and_what_is_not_judged_is_marked() {
        let mut row =
            BusyRow { scene: "busy".into(), policy: "tied2".into(), p50_us: Some(5_000), ..BusyRow::default() };
        row.slow_given_slow_pct = Some(21.34);
        row.ideal.measured_over_ideal = Some([Some(1.09), Some(1.07), Some(1.04), None]);
        let text = table(&Document::new(Run::default(), vec![row]));
        assert!(text.contains("busy   tied2") && text.contains("5.00"), "{text}");
        assert!(text.contains("1.09 / 1.07 / 1.04 / -") && text.contains(" 21.3 "), "{text}");
        assert!(text.contains("0!") && text.contains("! not judged"), "{text}");
    }
}
