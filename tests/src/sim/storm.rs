//! What read policies do in bad weather: overload and recovery, a node killed or slow under load, a wrong delay, hardly any
//! traffic. Worlds of the benchmark's profile with one fault, and how to read what came out.

use crate::sim::config::{Fault, PlannedFault, WorldConfig};
use crate::sim::rest::{Outturn, ReadSample};
use crate::sim::world::World;
use std::time::Duration;
use tiedkv_client::gate::GateSettings;
use tiedkv_client::policy::ReadPolicy;
use tiedkv_protocol::moment::Moment;

/// When the fault begins: before it views have learned what is usual.
pub const FAULT_AT: Duration = Duration::from_secs(8);
/// Steps in which latencies are looked at.
pub const STEP: Duration = Duration::from_millis(250);
/// Width of a look: so many reads that their p99 is steady.
const LOOK: Duration = Duration::from_secs(2);
/// A p99 is back when it is at most so many times its former value.
const BACK: f64 = 1.25;

/// A world of the profile at `read_load`, with one fault that begins at [`FAULT_AT`].
pub fn world(
    seed: u64,
    policy: ReadPolicy,
    read_load: f64,
    fault: Fault,
    lasts: Duration,
    until: u64,
) -> WorldConfig {
    let mut config = WorldConfig::profile(seed, policy, read_load, 0.0, until);
    config.views = 16;
    config.faults = vec![PlannedFault { at: FAULT_AT, lasts, fault }];
    config
}

/// A storm: every device takes three times as long for two seconds.
pub fn overload(seed: u64, policy: ReadPolicy, read_load: f64, until: u64) -> WorldConfig {
    let fault = Fault::SlowDevice { node: None, factor: 3.0 };
    world(seed, policy, read_load, fault, Duration::from_secs(2), until)
}

/// Half of the lanes, and half of the reads: the same load, half of the events.
pub fn halved(mut config: WorldConfig) -> WorldConfig {
    config.lanes /= 2;
    config.load.reads_per_second /= 2.0;
    config
}

/// The same with the default's gate.
pub fn gated(mut config: WorldConfig) -> WorldConfig {
    config.engine.gate = Some(GateSettings::default());
    config
}

/// Plays a world.
pub fn play(config: WorldConfig) -> Outturn {
    World::new(config).run()
}

fn planned_in(outturn: &Outturn, from: Duration, to: Duration) -> impl Iterator<Item = &ReadSample> {
    let (from, to) = (Moment::ZERO + from, Moment::ZERO + to);
    outturn.reads.iter().filter(move |read| read.began >= from && read.began < to)
}

/// The latency that a share `q` of the reads planned in a span does not exceed; one without an answer never ends.
pub fn quantile(outturn: &Outturn, from: Duration, to: Duration, q: f64) -> Duration {
    let mut latencies: Vec<Duration> =
        planned_in(outturn, from, to).map(|read| read.latency.unwrap_or(Duration::MAX)).collect();
    latencies.sort_unstable();
    let rank = ((latencies.len() as f64 * q).ceil() as usize).clamp(1, latencies.len().max(1));
    latencies.get(rank - 1).copied().unwrap_or_default()
}

/// How long after the fault began the p99 of the next two seconds' reads is back at what it was before; `None`: not
/// before `until`.
pub fn back_after(outturn: &Outturn, until: Duration) -> Option<Duration> {
    let former = quantile(outturn, FAULT_AT / 2, FAULT_AT, 0.99).mul_f64(BACK);
    let steps = ((until - LOOK - FAULT_AT).as_nanos() / STEP.as_nanos()) as u32;
    let bad = |step: &u32| {
        let from = FAULT_AT + STEP * *step;
        quantile(outturn, from, from + LOOK, 0.99) > former
    };
    let first_bad = (0..steps).find(|step| bad(step));
    let Some(first_bad) = first_bad else { return Some(Duration::ZERO) };
    (first_bad..steps).find(|step| !bad(step)).map(|step| STEP * step)
}

/// Prints when each policy is back after a storm at load .8, and what an unbudgeted hedge does at load .6.
pub fn print(seed: u64, out: &mut impl std::io::Write) -> std::io::Result<()> {
    writeln!(out, "Simulated; every device 3 x slower for 2 s; p99 in ms before and by second after; seed {seed}")?;
    let seconds = [1, 2, 3, 4, 5, 6, 8, 10, 12, 14];
    let mut line = |name: &str, config: WorldConfig, until: u64| {
        let outturn = play(config);
        let until = Duration::from_secs(until);
        let ms = |from: Duration, wide: Duration| quantile(&outturn, from, from + wide, 0.99).as_secs_f64() * 1e3;
        let before = ms(FAULT_AT / 2, FAULT_AT / 2);
        let second = Duration::from_secs(1);
        let after: Vec<String> =
            seconds.iter().map(|n| format!("{:.0}", ms(FAULT_AT + second * *n, second))).collect();
        let back = back_after(&outturn, until).map_or("never".to_owned(), |back| format!("{back:?}"));
        let extra = extra_rate(&outturn, FAULT_AT, until) * 100.0;
        writeln!(
            out,
            "{name:<32} back {back:>8}  before {before:.0}  after {}  extra {extra:.1} %",
            after.join(" ")
        )
    };
    let until = 25;
    for policy in [ReadPolicy::UNTIED, ReadPolicy::HEDGED, ReadPolicy::TIED2, ReadPolicy::TIED3] {
        line(&format!(".8 {policy}"), overload(seed, policy, 0.8, until), until)?;
        if policy.width() > 1 {
            let rescued = policy.with_rescue();
            line(&format!(".8 {rescued}"), overload(seed, rescued, 0.8, until), until)?;
        }
    }
    line(".8 default (gated)", gated(overload(seed, ReadPolicy::default(), 0.8, until)), until)?;
    let calm = play(overload(seed, ReadPolicy::UNTIED, 0.6, 8));
    let p95 = quantile(&calm, FAULT_AT / 2, FAULT_AT, 0.95);
    for policy in [ReadPolicy::HEDGED, ReadPolicy::HEDGED_UNBUDGETED] {
        let mut config = overload(seed, policy, 0.6, 30);
        config.engine.latency.hedge_fixed = Some(p95);
        config.queue_max = 1 << 20;
        line(&format!(".6 {policy} at {:.0} ms", p95.as_secs_f64() * 1e3), config, 30)?;
    }
    Ok(())
}

/// Hedges and rescues per read planned in a span.
pub fn extra_rate(outturn: &Outturn, from: Duration, to: Duration) -> f64 {
    let reads = planned_in(outturn, from, to).count();
    let (from, to) = (Moment::ZERO + from, Moment::ZERO + to);
    let extras = outturn.extras.iter().filter(|at| **at >= from && **at < to).count();
    if reads == 0 { 0.0 } else { extras as f64 / reads as f64 }
}
