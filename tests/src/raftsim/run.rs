//! One world from its seed to its verdict.

use super::load::{COUNTER, Seen, Session};
use super::runtime::{play, spawn_for, within};
use super::types::Planted;
use super::watch::Broken;
use super::world::{CLIENTS, World};
use crate::check::history::Violation;
use crate::check::{linear, session};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long faults and load last.
const SPAN: Duration = Duration::from_secs(2);
const SESSIONS: u32 = 4;
/// A healed world serves again within this time.
const HEALED_MAX: Duration = Duration::from_secs(10);

/// How a world went.
#[derive(Clone, Debug)]
pub struct Told {
    /// The hash of everything that happened: entries applied, their outcomes, calls and answers, each with its time.
    pub trace: u64,
    /// What was wrong.
    pub broken: Vec<Broken>,
    /// Calls made.
    pub operations: u64,
    /// Of these, failed and certainly not applied.
    pub failed: u64,
    /// Entries applied, over all nodes.
    pub applied: u64,
    /// Snapshots installed.
    pub installs: u64,
    /// Terms led.
    pub terms: u64,
}

/// Plays the world of a seed, perhaps with a bug put in.
pub fn run(seed: u64, planted: Option<Planted>) -> Told {
    play(seed, async move {
        let world = match World::begin(if seed.is_multiple_of(4) { 5 } else { 3 }, planted).await {
            Ok(world) => world,
            Err(what) => return nothing(what),
        };
        let mut sessions = Vec::new();
        for number in 0..SESSIONS {
            let session = Session::new(number, &world);
            sessions.push(spawn_for(CLIENTS + u64::from(number), session.run(SPAN)));
        }
        if let Err(what) = world.trouble(SPAN).await {
            world.watch.lock().add("serves again when faults end", what);
        }
        let mut seen = Seen::default();
        for session in sessions {
            if let Ok(one) = session.await {
                add(&mut seen, one);
            }
        }
        end(&world, &mut seen).await;
        let mut watch = world.watch.lock();
        for Violation { promise, what } in
            linear::violations(&seen.calls).into_iter().chain(session::violations(&seen.calls))
        {
            watch.add(promise, what);
        }
        let told = Told {
            trace: watch.trace(),
            broken: watch.broken().to_vec(),
            operations: seen.calls.len() as u64 + seen.counts.0 + seen.counts.1 + seen.failed,
            failed: seen.failed,
            applied: watch.steps,
            installs: watch.installs,
            terms: watch.terms,
        };
        drop(watch);
        // Nodes know the world and the world knows them.
        world.nodes.lock().clear();
        told
    })
}

fn nothing(what: String) -> Told {
    let broken = vec![Broken { promise: "a world begins", what }];
    Told { trace: 0, broken, operations: 0, failed: 0, applied: 0, installs: 0, terms: 0 }
}

fn add(seen: &mut Seen, other: Seen) {
    seen.calls.extend(other.calls);
    seen.counts.0 += other.counts.0;
    seen.counts.1 += other.counts.1;
    seen.failed += other.failed;
}

/// All is healed: it serves again, the nodes agree, and what was acknowledged is there.
async fn end(world: &std::sync::Arc<World>, seen: &mut Seen) {
    let wrong = |what: String| world.watch.lock().add("serves again when faults end", what);
    let mut last = Session::new(SESSIONS, world);
    if within(HEALED_MAX, async { while !last.write_one().await {} }).await.is_none() {
        return wrong(format!("no write within {HEALED_MAX:?}: {}", world.described()));
    }
    let keys: BTreeSet<u32> = seen.calls.iter().map(|call| call.key).collect();
    match Session::new(SESSIONS + 1, world).read_all(keys.into_iter()).await {
        Ok(read) => add(seen, read),
        Err(what) => return wrong(what),
    }
    if let Err(what) = world.agree(HEALED_MAX).await {
        return world.watch.lock().add("replicas come to the same state", what);
    }
    let Some(node) = world.running(1) else { return };
    let counted = node.machine.view().get(COUNTER.as_bytes());
    let counted =
        counted.and_then(|stored| String::from_utf8_lossy(&stored.value).parse::<u64>().ok()).unwrap_or(0);
    let (sure, doubtful) = seen.counts;
    if !(sure..=sure + doubtful).contains(&counted) {
        let what = format!("the counter is {counted} after {sure} acknowledged and {doubtful} unknown increments");
        world.watch.lock().add("applied exactly once", what);
    }
}
