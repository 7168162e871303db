//! The table of a run, its conditions, and one sentence that says what it shows.

use super::format::{columns, millis};
use super::row::{Row, SceneName};
use std::fmt::Write;
use tiedkv_client::ReadPolicy;

/// Fewest reads for which a p99.9 is printed without a warning: ten lie above it.
const READS_FOR_P999: u64 = 10_000;

/// The rows as a table: latencies in milliseconds, ratios to idle untied where that was played.
pub fn table(rows: &[Row]) -> String {
    let base = idle_untied(rows);
    let head = ["scene", "policy", "reads", "err", "p50", "p90", "p99", "p99.9", "ratio to idle untied"];
    let tail = ["dup %", "wasted %", "msg/read", "cpu us/read"];
    let mut cells = vec![head.iter().chain(&tail).map(|text| (*text).to_owned()).collect::<Vec<_>>()];
    for row in rows {
        let ratios = base.map_or_else(|| "-".to_owned(), |base| ratios(row, base));
        let mark = if row.reads < READS_FOR_P999 { "*" } else { "" };
        cells.push(vec![
            row.scene.name().to_owned(),
            row.policy.to_string(),
            row.reads.to_string(),
            row.errors.to_string(),
            millis(row.p50_us),
            millis(row.p90_us),
            millis(row.p99_us),
            format!("{}{mark}", millis(row.p999_us)),
            ratios,
            format!("{:.2}", row.duplicates_pct),
            format!("{:.3}", row.wasted_work_pct),
            format!("{:.2}", row.messages_per_read),
            format!("{:.0}", row.cpu_us_per_read),
        ]);
    }
    let mut text = columns(&cells, 2);
    text.push_str("latencies in ms from the planned send time; ratios in the order p50 p90 p99 p99.9\n");
    for row in rows.iter().filter(|row| row.reads < READS_FOR_P999) {
        let above = row.reads as f64 / 1_000.0;
        let (scene, policy) = (row.scene.name(), row.policy);
        let _ = writeln!(text, "* {scene} {policy}: p99.9 rests on {above:.0} of {} reads above it", row.reads);
    }
    text
}

/// What the figures hold for, in words.
pub fn conditions(replicated: bool, modelled: bool) -> String {
    let device = if modelled {
        "The device is modelled: each read waits for a drawn service time (mean 5 ms), so the ratio of network to \
         service time is small, which favours ties."
    } else {
        "The device is real: all three nodes share this machine's disk and processors."
    };
    let written = if replicated {
        "The keys were written through Raft."
    } else {
        "Writes are not replicated yet: the loader wrote to every node."
    };
    format!("3 server processes on this machine, mutual TLS, loopback. {device} {written}")
}

/// One sentence that says what the table shows; `None` without idle untied and busy tied2.
pub fn sentence(rows: &[Row]) -> Option<String> {
    let idle = idle_untied(rows)?;
    let of = |policy| rows.iter().find(|row| row.scene == SceneName::Busy && row.policy == policy);
    let p99 = |row: &Row| row.ratios(idle)[2];
    let tied = p99(of(ReadPolicy::TIED2)?)?;
    let mut text = String::new();
    if let Some(untied) = of(ReadPolicy::UNTIED).and_then(p99) {
        let _ = write!(text, "Busy servers multiply the p99 of an untied read by {untied:.2}; ");
    }
    let _ = write!(text, "two tied copies bring it to {tied:.2} x the idle untied one");
    if let Some(three) = of(ReadPolicy::TIED3).and_then(p99) {
        let _ = write!(text, ", three to {three:.2} x");
    }
    let wasted = of(ReadPolicy::TIED2).map_or(0.0, |row| row.wasted_work_pct);
    let _ = write!(text, ", for {wasted:.3} % wasted work.");
    Some(text)
}

fn idle_untied(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| row.scene == SceneName::Idle && row.policy == ReadPolicy::UNTIED)
}

fn ratios(row: &Row, base: &Row) -> String {
    let one = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
    row.ratios(base).map(one).join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(scene: SceneName, policy: ReadPolicy, p99_us: u64) -> Row {
        let mut row = Row::new(scene, policy);
        row.reads = 20_000;
        (row.p50_us, row.p90_us, row.p99_us, row.p999_us) = (p99_us / 3, p99_us / 2, p99_us, p99_us * 2);
        row
    }

    #[test]
    fn the_table_shows_ratios_to_idle_untied() {
        let rows =
            [row(SceneName::Idle, ReadPolicy::UNTIED, 10_000), row(SceneName::Busy, ReadPolicy::UNTIED, 25_000)];
        let text = table(&rows);
        assert!(text.contains("2.50 / 2.50 / 2.50 / 2.50"), "{text}");
        assert!(!text.contains('*'), "{text}");
    }

    #[test]
    fn few_reads_are_marked() {
        let mut few = row(SceneName::Idle, ReadPolicy::UNTIED, 10_000);
        few.reads = 2_000;
        assert!(table(&[few]).contains("p99.9 rests on 2 of 2000 reads"));
    }

    #[test]
    fn the_sentence_needs_both_ends() {
        let idle = row(SceneName::Idle, ReadPolicy::UNTIED, 10_000);
        assert_eq!(sentence(std::slice::from_ref(&idle)), None);
        let text = sentence(&[idle, row(SceneName::Busy, ReadPolicy::TIED2, 10_400)]).unwrap();
        assert!(text.contains("1.04 x"), "{text}");
    }
}
