//! `check-demo FILE`: is what `tiedkv demo --json FILE` wrote what a tie must do, on however noisy a machine?
//!
//! Only relations within one run are judged, with room that noise does not use up; the bounds of a quiet machine
//! are printed beside them and judged by nobody. Exit code 1 if a count is wrong (errors, reads, duplicates,
//! messages, a scene missing), 3 if only relations of latencies do not hold, which a machine that stood still can
//! do to any one run.

use serde::Deserialize;
use std::process::ExitCode;

/// The exit code when only relations of latencies do not hold.
const ONLY_LATENCIES: u8 = 3;

#[derive(Deserialize)]
struct Report {
    scenes: Vec<Scene>,
}

#[derive(Deserialize)]
struct Scene {
    scene: String,
    policy: String,
    reads: u64,
    errors: u64,
    p50_us: f64,
    p90_us: f64,
    p99_us: f64,
    duplicates_pct: f64,
    wasted_work_pct: f64,
    messages_per_read: f64,
    machine_busy_pct: f64,
    machine_steal_pct: f64,
    machine_standstill_pct: f64,
}

/// One relation.
struct Relation {
    text: String,
    holds: bool,
    /// Can a disturbed machine alone break it?
    of_latencies: bool,
}

impl Relation {
    fn of_counts(text: String, holds: bool) -> Self {
        Self { text, holds, of_latencies: false }
    }
}

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: check-demo FILE");
        return ExitCode::from(2);
    };
    let report = match read(&path) {
        Ok(report) => report,
        Err(error) => {
            eprintln!("{path}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let relations = judge(&report);
    for relation in &relations {
        println!("{} {}", if relation.holds { "ok  " } else { "FAIL" }, relation.text);
    }
    quiet_bounds(&report);
    for one in &report.scenes {
        println!(
            "note {} {}: machine {:.0} % busy, {:.1} % taken by its host, {:.2} % at a standstill",
            one.scene, one.policy, one.machine_busy_pct, one.machine_steal_pct, one.machine_standstill_pct
        );
    }
    verdict(&relations)
}

fn verdict(relations: &[Relation]) -> ExitCode {
    let broken: Vec<&Relation> = relations.iter().filter(|relation| !relation.holds).collect();
    if broken.is_empty() {
        ExitCode::SUCCESS
    } else if broken.iter().all(|relation| relation.of_latencies) {
        ExitCode::from(ONLY_LATENCIES)
    } else {
        ExitCode::FAILURE
    }
}

fn read(path: &str) -> Result<Report, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn find<'a>(report: &'a Report, scene: &str, policy: &str) -> Option<&'a Scene> {
    report.scenes.iter().find(|one| one.scene == scene && one.policy == policy)
}

fn judge(report: &Report) -> Vec<Relation> {
    let wanted = [("idle", "untied"), ("idle", "tied2"), ("busy", "untied"), ("busy", "tied2"), ("busy", "tied3")];
    let scenes: Vec<&Scene> = wanted.iter().filter_map(|(scene, policy)| find(report, scene, policy)).collect();
    let &[idle, idle_tied2, busy, tied2, tied3] = scenes.as_slice() else {
        return vec![Relation::of_counts(format!("all of {wanted:?} were played"), false)];
    };
    let mut relations = Vec::new();
    for one in &report.scenes {
        let name = format!("{} {}", one.scene, one.policy);
        let errors = format!("{name}: {} errors in {} reads", one.errors, one.reads);
        relations.push(Relation::of_counts(errors, one.errors == 0));
        relations.push(Relation::of_counts(format!("{name}: at least 3000 reads"), one.reads >= 3000));
    }
    let mut below = |what: &str, one: f64, factor: f64, other: f64| {
        let text = format!("{what}: {one:.0} <= {factor} x {other:.0}");
        relations.push(Relation { text, holds: one <= factor * other, of_latencies: true });
    };
    below("idle untied p99 against busy untied p99", idle.p99_us, 0.7, busy.p99_us);
    below("idle tied2 p90 against idle untied p90", idle_tied2.p90_us, 1.25, idle.p90_us);
    for tied in [tied2, tied3] {
        below(&format!("busy {} p99 against busy untied p99", tied.policy), tied.p99_us, 0.75, busy.p99_us);
        below(&format!("busy {} p90 against busy untied p90", tied.policy), tied.p90_us, 0.9, busy.p90_us);
    }
    let mut at_most = |what: String, one: f64, bound: f64| {
        relations.push(Relation::of_counts(format!("{what}: {one:.2} <= {bound}"), one <= bound));
    };
    for tied in [tied2, tied3] {
        at_most(format!("busy {} duplicates %", tied.policy), tied.duplicates_pct, 12.0);
        at_most(format!("busy {} wasted work %", tied.policy), tied.wasted_work_pct, 3.0);
    }
    for untied in [idle, busy] {
        at_most(format!("{} untied duplicates %", untied.scene), untied.duplicates_pct, 0.0);
    }
    let (few, many) = (busy.messages_per_read, tied3.messages_per_read);
    relations.push(Relation::of_counts(format!("ties send more messages: {few:.2} < {many:.2}"), few < many));
    relations
}

/// Ratios to idle untied beside the bounds that a quiet machine keeps.
fn quiet_bounds(report: &Report) {
    let Some(idle) = find(report, "idle", "untied") else { return };
    let bounds = [
        ("idle", "tied2", [1.00, 0.95, 0.90]),
        ("busy", "tied2", [1.12, 1.12, 1.12]),
        ("busy", "tied3", [1.08, 1.02, 0.95]),
    ];
    for (scene, policy, bound) in bounds {
        if let Some(one) = find(report, scene, policy) {
            let ratios = [one.p50_us / idle.p50_us, one.p90_us / idle.p90_us, one.p99_us / idle.p99_us];
            let within = ratios.iter().zip(bound).all(|(ratio, bound)| *ratio <= bound);
            let verdict = if within { "within" } else { "over" };
            println!("note {scene} {policy} p50/p90/p99 {ratios:.2?}, {verdict} the quiet machine's {bound:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(scene: &str, policy: &str, p90_us: f64, p99_us: f64) -> Scene {
        let tied = policy != "untied";
        Scene {
            scene: scene.into(),
            policy: policy.into(),
            reads: 7000,
            errors: 0,
            p50_us: 5000.0,
            p90_us,
            p99_us,
            duplicates_pct: if tied { 1.5 } else { 0.0 },
            wasted_work_pct: 0.05,
            messages_per_read: if tied { 2.4 } else { 2.0 },
            machine_busy_pct: 40.0,
            machine_steal_pct: 0.0,
            machine_standstill_pct: 0.0,
        }
    }

    fn good() -> Report {
        Report {
            scenes: vec![
                scene("idle", "untied", 7500.0, 11000.0),
                scene("idle", "tied2", 6800.0, 9000.0),
                scene("busy", "untied", 15000.0, 28000.0),
                scene("busy", "tied2", 7900.0, 11500.0),
                scene("busy", "tied3", 7000.0, 9500.0),
            ],
        }
    }

    fn exit(change: impl Fn(&mut Report)) -> ExitCode {
        let mut report = good();
        change(&mut report);
        verdict(&judge(&report))
    }

    #[test]
    fn a_good_run_passes_and_each_planted_fault_fails() {
        assert_eq!(exit(|_| {}), ExitCode::SUCCESS);
        let latencies = ExitCode::from(ONLY_LATENCIES);
        assert_eq!(exit(|report| report.scenes[3].p99_us = 27000.0), latencies);
        assert_eq!(exit(|report| report.scenes[4].p90_us = 15000.0), latencies);
        assert_eq!(exit(|report| report.scenes[2].p99_us = 12000.0), latencies);
        assert_eq!(exit(|report| report.scenes[3].errors = 1), ExitCode::FAILURE);
        assert_eq!(exit(|report| report.scenes[3].duplicates_pct = 40.0), ExitCode::FAILURE);
        assert_eq!(exit(|report| report.scenes[4].wasted_work_pct = 4.0), ExitCode::FAILURE);
        assert_eq!(exit(|report| report.scenes[0].duplicates_pct = 0.1), ExitCode::FAILURE);
        assert_eq!(exit(|report| report.scenes[4].messages_per_read = 2.0), ExitCode::FAILURE);
        assert_eq!(exit(|report| report.scenes.truncate(4)), ExitCode::FAILURE);
        assert_eq!(exit(|report| report.scenes[1].reads = 10), ExitCode::FAILURE);
    }

    #[test]
    fn a_wrong_count_beside_a_slow_scene_is_no_matter_of_the_machine() {
        let both = |report: &mut Report| {
            report.scenes[3].p99_us = 27000.0;
            report.scenes[3].errors = 1;
        };
        assert_eq!(exit(both), ExitCode::FAILURE);
    }
}
