//! What the reads of one replica came to within a window of time, and how that is shown. Pure.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;

/// One read of a replica that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Since the watch began.
    pub at: Duration,
    /// From the planned send to the answer; `None`: it failed.
    pub took: Option<Duration>,
    /// How long it waited in its queue.
    pub queue_wait: Duration,
}

/// The reads of one replica, oldest first.
#[derive(Debug, Default)]
pub struct Watched {
    samples: VecDeque<Sample>,
    /// Good answers since the watch began.
    good: u64,
}

/// Figures of one replica over a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Good answers.
    pub reads: usize,
    /// Reads that failed, or were not sent because too many were out.
    pub errors: usize,
    /// Median from the planned send on; `None` without an answer.
    pub p50: Option<Duration>,
    /// 99th percentile; `None` with less than [`P99_MIN`] answers.
    pub p99: Option<Duration>,
    /// The longest.
    pub max: Option<Duration>,
    /// 99th percentile of the wait in the queue.
    pub queue_p99: Option<Duration>,
}

/// Fewest answers for a 99th percentile.
pub const P99_MIN: usize = 100;

impl Watched {
    /// Adds a read and forgets those that are older than `window`.
    pub fn add(&mut self, sample: Sample, window: Duration) {
        self.good += u64::from(sample.took.is_some());
        self.samples.push_back(sample);
        self.forget(sample.at, window);
    }

    /// Whether it ever answered.
    pub fn ever_answered(&self) -> bool {
        self.good > 0
    }

    fn forget(&mut self, now: Duration, window: Duration) {
        while self.samples.front().is_some_and(|sample| sample.at + window < now) {
            self.samples.pop_front();
        }
    }

    /// What the window before `now` holds.
    pub fn figures(&mut self, now: Duration, window: Duration) -> Figures {
        self.forget(now, window);
        let mut took: Vec<Duration> = self.samples.iter().filter_map(|sample| sample.took).collect();
        let good = self.samples.iter().filter(|sample| sample.took.is_some());
        let mut waits: Vec<Duration> = good.map(|sample| sample.queue_wait).collect();
        took.sort_unstable();
        waits.sort_unstable();
        let at = |sorted: &[Duration], hundredth: usize| {
            sorted.get((sorted.len() * hundredth / 100).min(sorted.len().saturating_sub(1))).copied()
        };
        let enough = took.len() >= P99_MIN;
        Figures {
            reads: took.len(),
            errors: self.samples.len() - took.len(),
            p50: at(&took, 50),
            p99: at(&took, 99).filter(|_| enough),
            max: took.last().copied(),
            queue_p99: at(&waits, 99).filter(|_| enough),
        }
    }
}

/// One replica as it is shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Who.
    pub node: u64,
    /// It leads.
    pub leader: bool,
    /// Its figures.
    pub figures: Figures,
}

const HEAD: [&str; 7] = ["node", "p50", "p99", "max", "queue p99", "reads", "errors"];
const RED: &str = "\u{1b}[31m";
const BOLD: &str = "\u{1b}[1m";
const PLAIN: &str = "\u{1b}[0m";

/// The table of one look; a replica that fails, or whose p99 is over twice the least, is red if `colour`.
pub fn table(lines: &[Line], colour: bool) -> String {
    let cells: Vec<[String; 7]> = std::iter::once(HEAD.map(str::to_owned)).chain(lines.iter().map(cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let least = lines.iter().filter_map(|line| line.figures.p99).min();
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate() {
        let line: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
        let line = line.join("  ");
        let paint = match row.checked_sub(1).and_then(|row| lines.get(row)) {
            _ if !colour => "",
            None => BOLD,
            Some(line) if stands_out(&line.figures, least) => RED,
            Some(_) => "",
        };
        let end = if paint.is_empty() { "" } else { PLAIN };
        text.push_str(&format!("{paint}{line}{end}\n"));
    }
    text
}

fn stands_out(figures: &Figures, least: Option<Duration>) -> bool {
    figures.errors > 0 || figures.p99.zip(least).is_some_and(|(p99, least)| p99 > 2 * least)
}

fn cells(line: &Line) -> [String; 7] {
    let Figures { reads, errors, p50, p99, max, queue_p99 } = &line.figures;
    let name = format!("{}{}", line.node, if line.leader { " leads" } else { "" });
    [name, span(*p50), span(*p99), span(*max), span(*queue_p99), reads.to_string(), errors.to_string()]
}

/// Three digits at least, in the unit that fits.
fn span(span: Option<Duration>) -> String {
    match span {
        None => "-".to_owned(),
        Some(span) if span < Duration::from_millis(1) => format!("{} us", span.as_micros()),
        Some(span) => format!("{:.2} ms", span.as_secs_f64() * 1e3),
    }
}

/// The same as JSON; times in microseconds.
pub fn document(at: Duration, window: Duration, lines: &[Line]) -> Value {
    let us = |span: Option<Duration>| span.map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    let replica = |line: &Line| {
        let Figures { reads, errors, p50, p99, max, queue_p99 } = &line.figures;
        json!({
            "node": line.node, "leader": line.leader, "reads": reads, "errors": errors, "p50_us": us(*p50),
            "p99_us": us(*p99), "max_us": us(*max), "queue_p99_us": us(*queue_p99),
        })
    };
    json!({
        "at_ms": u64::try_from(at.as_millis()).unwrap_or(u64::MAX),
        "window_ms": u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
        "replicas": lines.iter().map(replica).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn of(count: u32, error_every: u32) -> Watched {
        let mut watched = Watched::default();
        for number in 1..=count {
            let took = (!number.is_multiple_of(error_every)).then_some(number * MS);
            watched.add(Sample { at: number * MS, took, queue_wait: number * MS / 2 }, 1_000 * MS);
        }
        watched
    }

    #[test]
    fn figures_are_those_of_the_window() {
        let mut watched = of(200, u32::MAX);
        let figures = watched.figures(200 * MS, 1_000 * MS);
        assert_eq!((figures.reads, figures.errors), (200, 0));
        assert_eq!((figures.p50, figures.p99, figures.max), (Some(101 * MS), Some(199 * MS), Some(200 * MS)));
        assert_eq!(figures.queue_p99, Some(199 * MS / 2));
        // Half of them are too old.
        let figures = watched.figures(1_100 * MS, 1_000 * MS);
        assert_eq!((figures.reads, figures.p50), (101, Some(150 * MS)));
        let figures = watched.figures(5_000 * MS, 1_000 * MS);
        assert_eq!((figures.reads, figures.p50, figures.p99), (0, None, None));
        assert!(watched.ever_answered() && !Watched::default().ever_answered());
    }

    #[test]
    fn failures_count_and_few_reads_have_no_p99() {
        let figures = of(99, 2).figures(99 * MS, 1_000 * MS);
        assert_eq!((figures.reads, figures.errors, figures.p99), (50, 49, None));
        assert!(figures.p50.is_some());
    }

    #[test]
    fn a_replica_that_stands_out_is_red_only_where_colour_is_wanted() {
        let line = |node, p99: u32, errors| Line {
            node,
            leader: node == 1,
            figures: Figures { reads: 200, errors, p50: Some(MS), p99: Some(p99 * MS), ..Figures::default() },
        };
        let lines = [line(1, 3, 0), line(2, 7, 0), line(3, 4, 1)];
        let plain = table(&lines, false);
        assert!(!plain.contains('\u{1b}'), "{plain}");
        assert_eq!(plain.lines().count(), 4);
        assert!(
            plain
                .lines()
                .map(|line| line.chars().count())
                .all(|width| width == plain.lines().next().unwrap().len())
        );
        assert!(plain.contains("1 leads") && plain.contains("7.00 ms") && plain.contains(" - "), "{plain}");
        let red: Vec<bool> = table(&lines, true).lines().map(|line| line.starts_with(RED)).collect();
        assert_eq!(red, [false, false, true, true]);
        let json = document(MS, 10 * MS, &lines);
        assert_eq!((&json["replicas"][1]["p99_us"], &json["replicas"][1]["max_us"]), (&7_000.into(), &Value::Null));
    }
}
