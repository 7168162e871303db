//! Plays simulated worlds: one seed with its violations, many seeds, the table of the design, or the cost of the
//! client's pure rooms.
//!
//! `sim --table [--seconds N] [--seed N]`, `sim --storm [--seed N]`, `sim --cost`,
//! `sim --seed N [--planted NAME]`, `sim --seeds N [--from N] [--planted NAME]`,
//! `sim --raft --seed N`, `sim --raft --seeds N [--from N]`: worlds of replication.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tiedkv_client::policy::ReadPolicy;
use tiedkv_tests::raftsim;
use tiedkv_tests::sim::{Planted, WorldConfig, cost, play, storm, table};

/// Counts what is allocated, for `--cost`.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands everything on to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(1, Relaxed);
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: allocated by `System` with this layout.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sim: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[String]) -> Result<bool, String> {
    let known = ["--table", "--storm", "--cost", "--seconds", "--seed", "--seeds", "--from", "--planted", "--raft"];
    if let Some(other) = words.iter().find(|word| word.starts_with("--") && !known.contains(&word.as_str())) {
        return Err(format!("{other} is not known; there are {}", known.join(", ")));
    }
    let after = |flag: &str| words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1));
    let number = |flag: &str, default: u64| match after(flag) {
        Some(text) => text.parse().map_err(|_| format!("{flag} wants a number, not {text}")),
        None => Ok(default),
    };
    let planted = match after("--planted") {
        None => None,
        Some(name) => {
            let found = Planted::ALL.into_iter().find(|planted| format!("{planted:?}") == *name);
            Some(found.ok_or_else(|| format!("{name} is no planted bug; there are {:?}", Planted::ALL))?)
        }
    };
    if words.iter().any(|word| word == "--table") {
        let (seed, seconds) = (number("--seed", 1)?, number("--seconds", 200)?);
        table::print(seed, seconds, &mut std::io::stdout().lock()).map_err(|error| error.to_string())?;
        return Ok(true);
    }
    if words.iter().any(|word| word == "--storm") {
        storm::print(number("--seed", 3)?, &mut std::io::stdout().lock()).map_err(|error| error.to_string())?;
        return Ok(true);
    }
    if words.iter().any(|word| word == "--cost") {
        for policy in [ReadPolicy::UNTIED, ReadPolicy::TIED2, ReadPolicy::TIED3] {
            let (time, allocations) = cost::per_read(policy, 200_000, || ALLOCATED.load(Relaxed));
            println!(
                "{policy}: {time:?} and {allocations:.3} allocations per read in the pure rooms of the client"
            );
        }
        return Ok(true);
    }
    let (from, count) = match after("--seed") {
        Some(_) => (number("--seed", 1)?, 1),
        None => (number("--from", 0)?, number("--seeds", 1_000)?),
    };
    if words.iter().any(|word| word == "--raft") {
        return Ok(raft(from, count));
    }
    let mut bad = 0_u64;
    for seed in from..from.saturating_add(count) {
        let outturn = play(seed, planted);
        if count == 1 {
            let world = WorldConfig::drawn(seed, planted);
            println!(
                "{} nodes, {} lanes, {} workers, queue {}, {:.0} reads/s, deadline {:?}\n{:?}\n{:?}",
                world.nodes,
                world.lanes,
                world.workers,
                world.queue_max,
                world.load.reads_per_second,
                world.load.deadline,
                world.disturbance,
                world.network
            );
            world.faults.iter().for_each(|fault| println!("{fault:?}"));
            println!(
                "seed {seed}: {} happenings, {} reads, trace {:016x}",
                outturn.happenings,
                outturn.reads.len(),
                outturn.trace
            );
        }
        bad += u64::from(!outturn.violations.is_empty());
        outturn.violations.iter().for_each(|violation| println!("seed {seed}: {violation}"));
    }
    println!("{count} seeds, {bad} with violations");
    Ok(bad == 0)
}

/// Worlds of replication; true when every promise held.
fn raft(from: u64, count: u64) -> bool {
    let mut bad = 0_u64;
    for seed in from..from.saturating_add(count) {
        let told = raftsim::run(seed, None);
        if count == 1 {
            println!("seed {seed}: {told:#?}");
        }
        bad += u64::from(!told.broken.is_empty());
        told.broken.iter().for_each(|broken| println!("seed {seed}: \"{}\": {}", broken.promise, broken.what));
    }
    println!("{count} seeds, {bad} with violations");
    bad == 0
}
