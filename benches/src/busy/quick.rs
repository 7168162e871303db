//! `--quick`: relations between idle and busy, untied and tied2, that noise cannot flip. Pure.
//!
//! Counts (errors, reads, duplicates, messages) are right on however noisy a machine; relations of latencies have wide
//! factors, and still a machine that stands still can break one once. So the two are told apart.

use super::check::{Judged, Verdict};
use super::document::Document;
use super::row::BusyRow;
use std::time::Duration;

/// Scenes that are played.
pub const SCENES: &str = "idle,busy";
/// Policies that are played.
pub const POLICIES: &str = "untied,tied2";
/// Fewest reads a second of a cell: idle plans 720.
const READS_PER_S_MIN: f64 = 500.0;

/// What became of the relations.
#[derive(Clone, Debug, PartialEq)]
pub struct Relations {
    /// Of counts: a broken one is a defect.
    pub counts: Vec<Judged>,
    /// Of latencies: a machine that was disturbed can break one.
    pub latencies: Vec<Judged>,
}

/// All relations; `measured` is the counted time of each cell.
pub fn relations(document: &Document, measured: Duration) -> Relations {
    let cells = SCENES.split(',').flat_map(|scene| POLICIES.split(',').map(move |policy| (scene, policy)));
    let mut counts = Vec::new();
    for (scene, policy) in cells {
        match document.row(scene, policy) {
            Some(row) => counts_of(row, measured, &mut counts),
            None => counts.push(below(format!("{scene} {policy}: not played (1)"), Some(1.0), 0.0)),
        }
    }
    let messages = |policy| document.row("busy", policy).map(|row| row.messages_per_read);
    let over = messages("untied").zip(messages("tied2")).map(|(untied, tied)| untied / tied.max(f64::EPSILON));
    counts.push(below("busy: messages per read, untied over tied2".to_owned(), over, 0.99));

    let p90 = |row: &BusyRow| row.p90_us;
    let p99 = |row: &BusyRow| row.p99_us;
    let ratio = |one: (&str, &str), other: (&str, &str), of: fn(&BusyRow) -> Option<u64>| {
        let one = document.row(one.0, one.1).and_then(of)?;
        let other = document.row(other.0, other.1).and_then(of)?;
        Some(one as f64 / other.max(1) as f64)
    };
    let (idle, busy) = (("idle", "untied"), ("busy", "untied"));
    let (idle_tied, busy_tied) = (("idle", "tied2"), ("busy", "tied2"));
    let latencies = vec![
        below("idle untied p99 over busy untied p99".to_owned(), ratio(idle, busy, p99), 0.7),
        below("idle tied2 p90 over idle untied p90".to_owned(), ratio(idle_tied, idle, p90), 1.25),
        below("busy tied2 p99 over busy untied p99".to_owned(), ratio(busy_tied, busy, p99), 0.75),
        below("busy tied2 p90 over busy untied p90".to_owned(), ratio(busy_tied, busy, p90), 0.9),
    ];
    Relations { counts, latencies }
}

fn counts_of(row: &BusyRow, measured: Duration, counts: &mut Vec<Judged>) {
    let name = format!("{} {}", row.scene, row.policy);
    let planned = READS_PER_S_MIN * measured.as_secs_f64();
    let missing = (planned - row.reads as f64).max(0.0);
    let duplicates = if row.policy == "untied" { 0.0 } else { 12.0 };
    counts.push(below(format!("{name}: errors"), Some(row.errors as f64), 0.0));
    counts.push(below(format!("{name}: reads that are missing of {planned:.0}"), Some(missing), 0.0));
    counts.push(below(format!("{name}: duplicates %"), Some(row.duplicates_pct), duplicates));
    counts.push(below(format!("{name}: wasted work %"), Some(row.wasted_work_pct), 3.0));
}

/// What was not measured does not hold.
fn below(what: String, measured: Option<f64>, bound: f64) -> Judged {
    let holds = measured.is_some_and(|value| value <= bound);
    let verdict = if holds { Verdict::Ok } else { Verdict::Broken };
    Judged { what, measured, good_end: None, bound, verdict }
}

#[cfg(test)]
mod tests {
    use super::super::check::holds;
    use super::super::document::Run;
    use super::*;

    fn row(scene: &str, policy: &str, p99_us: u64) -> BusyRow {
        BusyRow {
            scene: scene.into(),
            policy: policy.into(),
            reads: 4_300,
            p90_us: Some(p99_us / 2),
            p99_us: Some(p99_us),
            messages_per_read: if policy == "untied" { 2.0 } else { 4.6 },
            ..BusyRow::default()
        }
    }

    /// Whether counts and latencies hold after a change.
    fn hold(change: fn(&mut Vec<BusyRow>)) -> (bool, bool) {
        let mut rows = vec![
            row("idle", "untied", 11_000),
            row("idle", "tied2", 9_000),
            row("busy", "untied", 28_000),
            row("busy", "tied2", 11_500),
        ];
        change(&mut rows);
        let relations = relations(&Document::new(Run::default(), rows), Duration::from_secs(6));
        (holds(&relations.counts), holds(&relations.latencies))
    }

    #[test]
    fn planted_faults_break_the_relations_they_belong_to() {
        assert_eq!(hold(|_| {}), (true, true));
        assert_eq!(hold(|rows| rows[3].p99_us = Some(27_000)), (true, false));
        assert_eq!(hold(|rows| rows[2].p99_us = Some(12_000)), (true, false));
        assert_eq!(hold(|rows| rows[1].p90_us = None), (true, false));
        assert_eq!(hold(|rows| rows[3].errors = 1), (false, true));
        assert_eq!(hold(|rows| rows[0].duplicates_pct = 0.1), (false, true));
        assert_eq!(hold(|rows| rows[1].wasted_work_pct = 4.0), (false, true));
        assert_eq!(hold(|rows| rows[3].messages_per_read = 2.0), (false, true));
        assert_eq!(hold(|rows| rows[1].reads = 10), (false, true));
        assert!(!hold(|rows| drop(rows.pop())).0);
    }
}
