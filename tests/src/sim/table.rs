//! The table of the design from the simulation: idle and busy, untied and tied, on the profile of the benchmark.
//!
//! Ratios to idle untied, so that real measurements can be held against them. The simulated cancels and answers
//! cost no CPU.

use crate::sim::config::WorldConfig;
use crate::sim::rest::Outturn;
use crate::sim::world::World;
use std::time::Duration;
use tiedkv_client::policy::ReadPolicy;
use tiedkv_client::select::Choice;
use tiedkv_protocol::moment::Moment;

/// One line: what it is called, its policy, its order of replicas, and the load of reads and jobs.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// For people.
    pub name: &'static str,
    /// How reads are sent.
    pub policy: ReadPolicy,
    /// Order of replicas.
    pub choice: Choice,
    /// Load of reads alone, untied.
    pub reads: f64,
    /// Load of background jobs.
    pub jobs: f64,
}

const fn scene(name: &'static str, policy: ReadPolicy, reads: f64, jobs: f64) -> Scene {
    Scene { name, policy, choice: Choice::Random, reads, jobs }
}

const RESCUED: ReadPolicy = ReadPolicy { rescue: true, ..ReadPolicy::TIED2 };

/// The rows of the table, idle untied first.
pub const SCENES: [Scene; 14] = [
    scene("idle untied", ReadPolicy::UNTIED, 0.15, 0.0),
    scene("idle tied2", ReadPolicy::TIED2, 0.15, 0.0),
    scene("busy untied", ReadPolicy::UNTIED, 0.30, 0.20),
    Scene { choice: Choice::C3, ..scene("busy untied, C3", ReadPolicy::UNTIED, 0.30, 0.20) },
    scene("busy hedged", ReadPolicy::HEDGED, 0.30, 0.20),
    scene("busy tied2", ReadPolicy::TIED2, 0.30, 0.20),
    scene("busy tied2+rescue", RESCUED, 0.30, 0.20),
    scene("busy tied3", ReadPolicy::TIED3, 0.30, 0.20),
    scene("hard untied", ReadPolicy::UNTIED, 0.30, 0.35),
    scene("hard tied2", ReadPolicy::TIED2, 0.30, 0.35),
    scene("hard tied3", ReadPolicy::TIED3, 0.30, 0.35),
    scene(".7 untied", ReadPolicy::UNTIED, 0.70, 0.0),
    scene(".7 tied2", ReadPolicy::TIED2, 0.70, 0.0),
    scene(".7 tied3", ReadPolicy::TIED3, 0.70, 0.0),
];

/// What a scene yields.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// p50, p90, p99, p99.9.
    pub quantiles: [Duration; 4],
    /// Reads counted.
    pub reads: usize,
    /// Reads without a good answer.
    pub errors: usize,
    /// Copies that started although another of their tie did, share of started.
    pub duplicates: f64,
    /// Service time of copies whose answer was not used, share of all.
    pub wasted: f64,
    /// Copies sent per read.
    pub copies: f64,
}

/// Plays one scene for so many simulated seconds.
pub fn play_scene(scene: &Scene, seed: u64, seconds: u64) -> Row {
    let mut config = WorldConfig::profile(seed, scene.policy, scene.reads, scene.jobs, seconds);
    config.engine.choice = scene.choice;
    let warm_up = config.load.warm_up;
    row(&World::new(config).run(), warm_up)
}

fn row(outturn: &Outturn, warm_up: Duration) -> Row {
    let counted = outturn.reads.iter().filter(|read| read.began >= Moment::ZERO + warm_up);
    let mut latencies: Vec<Duration> = counted.clone().filter_map(|read| read.latency).collect();
    latencies.sort_unstable();
    let at = |q: f64| {
        let rank = ((latencies.len() as f64 * q).ceil() as usize).clamp(1, latencies.len().max(1));
        latencies.get(rank - 1).copied().unwrap_or_default()
    };
    Row {
        quantiles: [at(0.5), at(0.9), at(0.99), at(0.999)],
        reads: latencies.len(),
        errors: counted.filter(|read| read.latency.is_none()).count(),
        duplicates: share(outturn.duplicates as f64, outturn.copies_started as f64),
        wasted: share(outturn.wasted.0.as_secs_f64(), outturn.wasted.1.as_secs_f64()),
        copies: share(outturn.copies_sent as f64, outturn.reads.len() as f64),
    }
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Prints all scenes.
pub fn print(seed: u64, seconds: u64, out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "Simulated, {seconds} s a scene, seed {seed}; ratios to idle untied")?;
    writeln!(
        out,
        "{:<20}{:>8}{:>8}{:>8}{:>8}{:>9}{:>8}{:>8}{:>9}{:>8}",
        "scene", "p50", "p90", "p99", "p99.9", "reads", "errors", "dup %", "waste %", "copies"
    )?;
    let mut idle: Option<Row> = None;
    for scene in &SCENES {
        let row = play_scene(scene, seed, seconds);
        let base = *idle.get_or_insert(row);
        write!(out, "{:<20}", scene.name)?;
        for (own, idle) in row.quantiles.iter().zip(&base.quantiles) {
            write!(out, "{:>8.2}", own.as_secs_f64() / idle.as_secs_f64().max(1e-9))?;
        }
        writeln!(
            out,
            "{:>9}{:>8}{:>8.2}{:>9.3}{:>8.2}",
            row.reads,
            row.errors,
            row.duplicates * 100.0,
            row.wasted * 100.0,
            row.copies
        )?;
    }
    if let Some(idle) = idle {
        let micros: Vec<u128> = idle.quantiles.iter().map(Duration::as_micros).collect();
        writeln!(out, "idle untied p50/p90/p99/p99.9: {micros:?} us")?;
    }
    Ok(())
}
