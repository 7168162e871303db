//! `--check`: what is played for it, and the rows against the bounds of the design (docs/benchmarks.md). Pure.
//!
//! A bound is broken only if the whole 95 % interval lies beyond it, and a row that is not judged breaks none: noise fails
//! nobody. Intervals of percentiles are those of the row; those of counts and processor time are of the mean over repeats.
//! What has no interval is compared as it is, so that it is broken as soon as the figure lies beyond: the median of
//! seconds until recovered, counts and processor time of fewer than three repeats, percentiles of fewer than five seconds.

use super::document::Document;
use super::matrix::Part;
use super::policy;
use super::repeats::RepeatCounts;
use super::row::{BusyRow, QUANTILES};
use super::scene;
use anyhow::{Result, bail};
use std::fmt::Write;
use std::time::Duration;
use tiedkv_client::options::BadChoice;

/// What became of one bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Within it.
    Ok,
    /// Beyond it, but its interval is not.
    Unclear,
    /// Beyond it.
    Broken,
    /// The row was not played, has too few reads, or the machine was too busy.
    NotJudged,
}

/// One bound and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What is bounded.
    pub what: String,
    /// As measured; `None` where it was not.
    pub measured: Option<f64>,
    /// The end of its 95 % interval on the good side.
    pub good_end: Option<f64>,
    /// At most this.
    pub bound: f64,
    /// The verdict.
    pub verdict: Verdict,
}

/// Counted time of one playing so that it has 20,000 reads, between 5 and 30 s.
fn measured(reads_load: f64) -> Duration {
    let rate = reads_load * 4_800.0;
    Duration::from_secs_f64((20_500.0 / rate).clamp(5.0, 30.0).ceil())
}

/// What is played: `repeats` (five) of 20,000 reads where the rate allows, fewer of what is dear. `seconds` replaces
/// the time of every playing, to try it out.
///
/// # Errors
/// Never in practice: the names are those of this crate.
fn all_parts(seconds: Option<Duration>, repeats: u32) -> Result<Vec<Part>> {
    let part = |name: &str, policies: &str, own: Option<u64>, repeats: u32| -> Result<Part> {
        let scene = scene::named(name)?.remove(0);
        let own = own.map_or_else(|| measured(scene.reads_load), Duration::from_secs);
        Ok(Part { scene, policies: policy::named(policies)?, measured: seconds.unwrap_or(own), repeats })
    };
    let (all, some) = ("untied,tied2,tied3,default", repeats.min(3));
    Ok(vec![
        part("idle", all, None, repeats)?,
        part("busy", all, None, repeats)?,
        part("hard", all, None, repeats)?,
        part("load70", all, None, repeats)?,
        part("hard-background", "untied,tied2", None, some)?,
        part("stalls-after-start", "tied2,tied2+rescue", None, repeats)?,
        part("cancel-channel-down", "untied,tied2", Some(6), some)?,
        part("storm", "untied,hedged,tied2+rescue,tied3+rescue,default", Some(16), some)?,
        part("storm60", "hedged-unbudgeted", Some(16), some)?,
        part("in-memory", "untied,default", Some(6), some)?,
    ])
}

/// As [`all_parts`]; of these only the scenes and policies that are named (with commas between them), if any are; no scene
/// for `none`, where only files are judged.
///
/// # Errors
/// When a scene is named that no bound needs, or nothing is left to play.
pub fn parts(
    seconds: Option<Duration>,
    repeats: u32,
    (scenes, policies): (Option<&str>, Option<&str>),
) -> Result<Vec<Part>> {
    if scenes == Some("none") {
        return Ok(Vec::new());
    }
    let all = all_parts(seconds, repeats)?;
    let known: Vec<String> = all.iter().map(|part| part.scene.name.to_string()).collect();
    let names = |list: &str| list.split(',').map(str::to_owned).collect::<Vec<_>>();
    let (scenes, policies) = (scenes.map(names), policies.map(names));
    if let Some(unknown) = scenes.iter().flatten().find(|name| !known.contains(name)) {
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        return Err(BadChoice::new("scene of --check", unknown, &known).into());
    }
    let wanted = |names: &Option<Vec<String>>, name: &str| {
        names.as_ref().is_none_or(|all| all.iter().any(|one| one == name))
    };
    let mut chosen = Vec::new();
    for mut part in all.into_iter().filter(|part| wanted(&scenes, &part.scene.name)) {
        part.policies.retain(|policy| wanted(&policies, &policy.name));
        if !part.policies.is_empty() {
            chosen.push(part);
        }
    }
    if chosen.is_empty() {
        bail!("--check plays none of these policies in these scenes");
    }
    Ok(chosen)
}

/// p50, p90, p99, p99.9 over idle untied; 0: no bound.
const RATIOS: [(&str, &str, [f64; 4]); 10] = [
    ("idle", "tied2", [1.00, 0.95, 0.90, 0.85]),
    ("busy", "tied2", [1.12, 1.12, 1.12, 1.20]),
    ("busy", "tied3", [1.08, 1.02, 0.95, 0.92]),
    ("hard", "tied2", [0.0, 0.0, 1.55, 0.0]),
    ("hard", "tied3", [1.15, 1.15, 1.12, 1.15]),
    ("load70", "tied2", [0.0, 0.0, 1.15, 0.0]),
    ("load70", "tied3", [0.0, 0.0, 1.00, 0.0]),
    ("idle", "default", [0.0, 0.0, 1.00, 0.0]),
    ("busy", "default", [1.12, 1.12, 1.12, 1.20]),
    ("hard-background", "tied2", [0.0, 0.0, 1.05, 0.0]),
];

/// Names of [`QUANTILES`].
const NAMES: [&str; 4] = ["p50", "p90", "p99", "p99.9"];
/// Scenes in which measured is compared with the ideal.
const IDEAL_SCENES: [&str; 4] = ["idle", "busy", "hard", "load70"];

/// All bounds for which at least one row was played.
pub fn judge(document: &Document) -> Vec<Judged> {
    let mut all = Vec::new();
    ratios(document, &mut all);
    ideals(document, &mut all);
    costs(document, &mut all);
    after_start(document, &mut all);
    storms(document, &mut all);
    all
}

/// True if no bound is broken.
pub fn holds(judged: &[Judged]) -> bool {
    judged.iter().all(|one| one.verdict != Verdict::Broken)
}

/// The verdicts as lines.
pub fn text(judged: &[Judged]) -> String {
    let mut text = String::new();
    for one in judged {
        let word = match one.verdict {
            Verdict::Ok => "ok      ",
            Verdict::Unclear => "unclear ",
            Verdict::Broken => "BROKEN  ",
            Verdict::NotJudged => "-       ",
        };
        let measured = one.measured.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.3}"));
        let end = one.good_end.map_or_else(String::new, |value| format!(" (95 % from {value:.3})"));
        let _ = writeln!(text, "{word}{}: {measured}{end}, at most {:.3}", one.what, one.bound);
    }
    let count = |verdict| judged.iter().filter(|one| one.verdict == verdict).count();
    let _ = writeln!(
        text,
        "{} bounds: {} ok, {} unclear, {} broken, {} not judged",
        judged.len(),
        count(Verdict::Ok),
        count(Verdict::Unclear),
        count(Verdict::Broken),
        count(Verdict::NotJudged)
    );
    text
}

/// A value against a bound; `rows` are those it was made of.
fn at_most(
    what: String,
    (measured, good_end): (Option<f64>, Option<f64>),
    bound: f64,
    rows: &[Option<&BusyRow>],
) -> Judged {
    let judged = rows.iter().all(|row| row.is_some_and(|row| row.judged));
    let verdict = match measured {
        Some(_) if !judged => Verdict::NotJudged,
        Some(value) if value <= bound => Verdict::Ok,
        Some(value) if good_end.unwrap_or(value) <= bound => Verdict::Unclear,
        Some(_) => Verdict::Broken,
        None => Verdict::NotJudged,
    };
    Judged { what, measured, good_end, bound, verdict }
}

fn ratios(document: &Document, all: &mut Vec<Judged>) {
    let idle = document.row("idle", "untied");
    for (scene, policy, bounds) in RATIOS {
        let Some(row) = document.row(scene, policy) else { continue };
        for (index, bound) in bounds.into_iter().enumerate().filter(|(_, bound)| *bound > 0.0) {
            let found = idle.map_or((None, None), |idle| ratio(row, idle, index));
            let what = format!("{scene} {policy} {} over idle untied", NAMES[index]);
            all.push(at_most(what, found, bound, &[Some(row), idle]));
        }
    }
}

/// The ratio of two rows at a percentile, and the least that their intervals allow.
fn ratio(row: &BusyRow, base: &BusyRow, index: usize) -> (Option<f64>, Option<f64>) {
    let value = row.quantiles()[index].zip(base.quantiles()[index]);
    let ends = row.intervals()[index].zip(base.intervals()[index]);
    let over = |(own, base): (u64, u64)| own as f64 / base.max(1) as f64;
    (value.map(over), ends.map(|([low, _], [_, high])| over((low, high))))
}

fn ideals(document: &Document, all: &mut Vec<Judged>) {
    for scene in IDEAL_SCENES {
        for policy in ["tied2", "tied3"] {
            let Some(row) = document.row(scene, policy) else { continue };
            let measured = row.ideal.measured_over_ideal.and_then(|all| all[2]);
            let low = measured.zip(row.p99_interval_us).zip(row.p99_us);
            let good_end = low.map(|((measured, [low, _]), p99)| measured * low as f64 / p99.max(1) as f64);
            let what = format!("{scene} {policy} p99 over the ideal on its own trace");
            all.push(at_most(what, (measured, good_end), 1.10, &[Some(row)]));
        }
    }
}

fn costs(document: &Document, all: &mut Vec<Judged>) {
    for scene in IDEAL_SCENES {
        for (policy, duplicates) in [("tied2", 3.0), ("tied3", 5.0)] {
            let Some(row) = document.row(scene, policy) else { continue };
            let mut push = |what: &str, found: (Option<f64>, Option<f64>), bound: f64| {
                all.push(at_most(format!("{scene} {policy} {what}"), found, bound, &[Some(row)]));
            };
            let duplicate = low_mean(&repeats(row, |one| one.duplicates_pct));
            push("duplicates %", (Some(row.duplicates_pct), duplicate), duplicates);
            let wasted = low_mean(&repeats(row, |one| one.wasted_work_pct));
            push("wasted work %", (Some(row.wasted_work_pct), wasted), 0.3);
        }
        if let Some(row) = document.row(scene, "default") {
            let what = format!("{scene} default wasted work of rescues %");
            let low = low_mean(&repeats(row, |one| one.wasted_extra_pct));
            all.push(at_most(what, (Some(row.wasted_extra_pct), low), 4.0, &[Some(row)]));
        }
    }
    if let Some(row) = document.row("cancel-channel-down", "tied2") {
        let base = document.row("cancel-channel-down", "untied");
        let value = base.map(|base| row.served_us_per_read / base.served_us_per_read.max(f64::EPSILON));
        let served = |row: &BusyRow| repeats(row, |one| one.served_us_per_read);
        let low = base.and_then(|base| low_end(&served(row), &served(base)));
        let what = "cancel-channel-down tied2 service time per read over untied".to_owned();
        all.push(at_most(what, (value, low), 1.05, &[Some(row), base]));
    }
    for (scene, policy, bound) in [("idle", "tied2", 2.0), ("busy", "tied2", 1.6), ("in-memory", "default", 1.05)] {
        let Some(row) = document.row(scene, policy) else { continue };
        let base = document.row(scene, "untied");
        let value = base.map(|base| row.cpu_us_per_read / base.cpu_us_per_read.max(f64::EPSILON));
        let what = format!("{scene} {policy} processor time per read over untied");
        let good_end = base.and_then(|base| low_end(&row.cpu_us_of_repeats, &base.cpu_us_of_repeats));
        all.push(at_most(what, (value, good_end), bound, &[Some(row), base]));
    }
    in_memory(document, all);
}

/// Student's t at 97.5 % for 1, 2, ... degrees of freedom.
const STUDENT: [f64; 9] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

/// The same for any: beyond the table by the expansion around the normal quantile (Abramowitz and Stegun, 26.7.5), which
/// is right to .0002 there.
fn student(freedom: usize) -> f64 {
    const Z: f64 = 1.959_964;
    if let Some(known) = STUDENT.get(freedom.saturating_sub(1)) {
        return *known;
    }
    let free = freedom as f64;
    let first = (Z.powi(3) + Z) / 4.0;
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0;
    let third = (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0;
    Z + first / free + second / free.powi(2) + third / free.powi(3)
}

/// One count of every repeat of a row.
fn repeats(row: &BusyRow, of: fn(&RepeatCounts) -> f64) -> Vec<f64> {
    row.counts_of_repeats.iter().map(of).collect()
}

/// The low end of the 95 % interval of a ratio whose repeats were played in turn, each beside its base. `None` for fewer
/// than three, or if some are missing.
fn low_end(own: &[f64], base: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = own.iter().zip(base).map(|(own, base)| own / base.max(f64::EPSILON)).collect();
    if own.len() == base.len() { low_mean(&ratios) } else { None }
}

/// The low end of the 95 % interval of what repeats measured: mean less t standard errors. `None` for fewer than three.
fn low_mean(repeats: &[f64]) -> Option<f64> {
    let count = repeats.len();
    if count < 3 {
        return None;
    }
    let mean = repeats.iter().sum::<f64>() / count as f64;
    let spread = repeats.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (count - 1) as f64;
    Some(mean - student(count - 1) * (spread / count as f64).sqrt())
}

/// What the gate must spare the default where ties do not pay.
fn in_memory(document: &Document, all: &mut Vec<Judged>) {
    let Some(row) = document.row("in-memory", "default") else { return };
    let base = document.row("in-memory", "untied");
    let p50 = base.map_or((None, None), |base| ratio(row, base, 0));
    all.push(at_most("in-memory default p50 over untied".to_owned(), p50, 1.15, &[Some(row), base]));
    // At least .85 of untied's.
    let untied = base.map(good_reads).filter(|good| *good > 0.0);
    let missing = untied.map(|untied| 1.0 - good_reads(row) / untied);
    let good = |row: &BusyRow| repeats(row, |one| one.good_reads as f64);
    let shares = |base: &BusyRow| -> Vec<f64> {
        good(row).iter().zip(good(base)).map(|(own, untied)| 1.0 - own / untied.max(1.0)).collect()
    };
    let low = base.and_then(|base| low_mean(&shares(base)));
    let what = "in-memory default good reads per playing, missing share of untied's".to_owned();
    all.push(at_most(what, (missing, low), 0.15, &[Some(row), base]));
    let tied = (Some(100.0 - row.not_tied_pct), low_mean(&repeats(row, |one| 100.0 - one.not_tied_pct)));
    all.push(at_most("in-memory default reads tied %".to_owned(), tied, 5.0, &[Some(row)]));
}

/// Reads with a good answer per playing: all playings of a scene take the same time.
fn good_reads(row: &BusyRow) -> f64 {
    row.reads.saturating_sub(row.errors) as f64 / f64::from(row.repeats.max(1))
}

fn after_start(document: &Document, all: &mut Vec<Judged>) {
    let scene = "stalls-after-start";
    let (Some(row), base) = (document.row(scene, "tied2+rescue"), document.row(scene, "tied2")) else { return };
    let found = base.map_or((None, None), |base| ratio(row, base, QUANTILES.len() - 1));
    all.push(at_most(format!("{scene} tied2+rescue p99.9 over tied2"), found, 0.55, &[Some(row), base]));
}

/// A figure of each repeat of a row.
type Repeats = fn(&BusyRow) -> &[Option<f64>];

fn storms(document: &Document, all: &mut Vec<Judged>) {
    // What a budget is for: without one the storm never ends.
    if let Some(row) = document.row("storm60", "hedged-unbudgeted") {
        let recovered = f64::from(u8::from(median(&row.recovery_s).is_some()));
        let what = "storm60 hedged-unbudgeted: recovered (1) or not (0)".to_owned();
        all.push(at_most(what, (Some(recovered), None), 0.0, &[Some(row)]));
    }
    let Some(base) = document.row("storm", "untied") else { return };
    let medians = ("recovered", (|row| row.recovery_s.as_slice()) as Repeats);
    let tails = ("the p99 recovered", (|row| row.recovery_p99_s.as_slice()) as Repeats);
    for (what, of) in [medians, tails] {
        // Files of before tell nothing of the p99.
        if of(base).is_empty() {
            continue;
        }
        let untied = median(of(base));
        for policy in ["default", "hedged", "tied2+rescue", "tied3+rescue"] {
            let Some(row) = document.row("storm", policy).filter(|row| !of(row).is_empty()) else { continue };
            let bound = untied.unwrap_or(f64::INFINITY) + 1.0;
            let what = format!("storm {policy}: seconds until {what} (untied {})", seconds(untied));
            let mut judged = at_most(what, (median(of(row)), None), bound, &[Some(row), Some(base)]);
            if untied.is_some() && judged.measured.is_none() && row.judged && base.judged {
                judged.verdict = Verdict::Broken;
            }
            all.push(judged);
        }
    }
}

/// The median repeat; `None` if it did not recover.
fn median(repeats: &[Option<f64>]) -> Option<f64> {
    let mut sorted: Vec<f64> = repeats.iter().map(|one| one.unwrap_or(f64::INFINITY)).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().filter(|value| value.is_finite())
}

fn seconds(span: Option<f64>) -> String {
    span.map_or_else(|| "never".to_owned(), |span| format!("{span:.1}"))
}

#[cfg(test)]
#[path = "check_test.rs"]
mod tests;
