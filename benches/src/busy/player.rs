//! Plays one scene under one policy once: disturb, record, open loop, event, join; leaves the bed as it was.

use super::bed::{Bed, STARTS_MAX};
use super::disk;
use super::matrix::{Part, WARM_UP};
use super::policy::{BusyPolicy, ClientKind};
use super::quantiles::told;
use super::recovery::SMOOTHED;
use super::sample::{Sample, Tick};
use super::scene::{BusyScene, Event};
use super::sort::sort;
use super::trace::{DeviceModel, Ingredients, ideals};
use crate::load::counted::{Counted, Ground, extra_copies, play_counted};
use crate::load::nodes::Nodes;
use crate::load::run::{OpenLoop, Traced};
use crate::load::workload::Workload;
use anyhow::{Context, Result, bail};
use std::ops::Range;
use std::time::Duration;
use tiedkv_client::engine_host::Suppressed;
use tiedkv_client::{Client, Stats};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::Disturbance;

/// Lanes of one node with a modelled device, one worker each.
pub const LANES: u16 = 8;
/// Workers of all nodes.
const WORKERS: f64 = 24.0;
/// The node that a scene kills: not the first, which clients dial first.
const VICTIM: NodeId = NodeId(2);

/// Reads (or calls for many keys) per second of a scene.
pub fn rate_per_s(scene: &BusyScene) -> f64 {
    let width = scene.fan.map_or(1, |fan| fan.width.max(1));
    scene.reads_load * WORKERS * 1e6 / scene.service_us as f64 / width as f64
}

/// Checks that every node can keep the start records of a playing: at most one of each read (of each key of a call).
///
/// # Errors
/// Names the longest counted time of the scene.
pub fn check_length(part: &Part) -> Result<()> {
    let width = part.scene.fan.map_or(1, |fan| fan.width.max(1));
    let starts_per_s = rate_per_s(&part.scene) * width as f64;
    let seconds_max = (STARTS_MAX as f64 / starts_per_s) as u64;
    let seconds_max = seconds_max.saturating_sub(WARM_UP.as_secs());
    if part.measured > Duration::from_secs(seconds_max) {
        let (scene, seconds) = (&part.scene.name, part.measured.as_secs());
        bail!("--seconds is {seconds}; {scene} starts so many reads that it must be at most {seconds_max}");
    }
    Ok(())
}

/// What is played once.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    /// Which scene.
    pub scene: &'a BusyScene,
    /// Under which policy.
    pub policy: &'a BusyPolicy,
    /// Counted time.
    pub measured: Duration,
    /// Seeds arrivals, keys, jobs and stalls: the same for all policies of one scene and repeat.
    pub seed: u64,
}

/// Plays `cell` on `bed`; `progress` is told the time played so far.
///
/// # Errors
/// When a node does not answer, a plan cannot be kept, or a killed node does not come back.
///
/// # Cancel safety
/// The disturbance may stay in force.
pub async fn play_cell(
    bed: &mut Bed,
    cell: Cell<'_>,
    model: &dyn DeviceModel,
    mut progress: impl FnMut(Duration),
) -> Result<Sample> {
    let kind = cell.policy.client_in(cell.scene);
    bed.connect(kind).await?;
    let one_way_us = bed.one_way_us(kind);
    let modelled = bed.kind.is_modelled();
    let disturbance = Disturbance { seed: cell.seed, ..cell.scene.disturbance.clone() };
    let since = if modelled { bed.nodes.disturb(&disturbance).await? } else { Vec::new() };
    let no_cancels = cell.scene.event == Event::NoCancels;
    if no_cancels {
        bed.nodes.drop_cancels(1.0).await?;
    }
    let mut plan = plan(bed, cell);
    let gone: &[NodeId] = if cell.scene.event == Event::Kill { &[VICTIM] } else { &[] };
    let pids = bed.pids();
    let Bed { cluster, nodes, clients, .. } = &mut *bed;
    let connected = clients.get(&kind).context("connected above")?;
    plan.outside = connected.hedge.clone();
    let ground = Ground { client: &connected.client, views: &connected.views, nodes, server_pids: &pids };
    let mut watched: Vec<(Duration, Stats)> = vec![(Duration::ZERO, connected.client.stats())];
    let watch = |at: Duration| {
        if cell.scene.event != Event::None {
            watched.push((at, connected.client.stats()));
        }
        progress(at);
    };
    let folder = cluster.folder().to_owned();
    let event = async {
        match cell.scene.event {
            Event::Disk => disk::disturb(&connected.client, plan.workload, &folder, cell.seed).await,
            _ => event(cell, &disturbance, (&connected.client, nodes), || cluster.kill(VICTIM)).await,
        }
    };
    let counted = play_counted(ground, &plan, gone, event, watch).await?;
    let live = nodes.without(gone);
    let flight = live.cancel_flight_us().await?;
    if no_cancels {
        live.drop_cancels(0.0).await?;
    }
    if modelled {
        live.disturb(&Disturbance::default()).await?;
    }
    let limits = cell.scene.ideals.then(|| {
        let from = Ingredients {
            reads: &counted.outcome.trace,
            key: &|number| plan.workload.key(number).to_vec(),
            records: &counted.records,
            disturbance: &disturbance,
            since: &since,
            lanes: LANES,
            span: WARM_UP + cell.measured,
            crossings: median(&crossings(&counted.outcome.trace)),
        };
        ideals(&from, model)
    });
    let mut sample = Sample {
        measured: cell.measured,
        ideals: limits.flatten(),
        cancel_flight_us: flight,
        one_way_us,
        ..sample(counted, &watched, cell.scene.service_us)
    };
    if plan.outside.is_some() {
        // The client cannot know that one of two reads is a hedge.
        sample.extra_copies += sample.copies.saturating_sub(sample.sent);
        let joined = &mut sample.joined;
        joined.wasted_extra_us += std::mem::take(&mut joined.wasted_us);
    }
    if !gone.is_empty() {
        bed.revive(gone).await?;
    }
    bed.check()?;
    Ok(sample)
}

fn plan(bed: &Bed, cell: Cell<'_>) -> OpenLoop {
    let count = if cell.scene.keys == 0 { bed.workload.count } else { cell.scene.keys };
    OpenLoop {
        seed: cell.seed,
        rate_per_s: rate_per_s(cell.scene),
        warm_up: WARM_UP,
        measured: cell.measured,
        policy: cell.policy.read,
        gated: cell.policy.client == ClientKind::Gated,
        level: bed.level(),
        deadline: cell.scene.deadline,
        workload: Workload { count, ..bed.workload },
        fan: cell.scene.fan,
        outside: None,
    }
}

/// Waits for the moment of the event and lets it happen.
async fn event(
    cell: Cell<'_>,
    base: &Disturbance,
    (client, nodes): (&Client, &Nodes),
    kill: impl FnOnce(),
) -> Result<()> {
    let at = WARM_UP + event_at(cell.measured);
    match cell.scene.event {
        Event::None | Event::NoCancels | Event::Disk => {}
        Event::Sort => sort(client).await?,
        Event::Kill => {
            tokio::time::sleep(at).await;
            kill();
        }
        Event::Storm { factor, span } => {
            tokio::time::sleep(at).await;
            nodes.disturb(&Disturbance { slow_factor: factor, ..base.clone() }).await?;
            tokio::time::sleep(span).await;
            nodes.disturb(base).await?;
        }
    }
    Ok(())
}

/// When the event of a scene happens, from the start of the measured time.
pub fn event_at(measured: Duration) -> Duration {
    measured / 4
}

/// Sorted, microseconds.
fn crossings(trace: &[Traced]) -> Vec<u64> {
    let counted = trace.iter().filter(|read| read.counted);
    let mut spans: Vec<u64> = counted.filter_map(|read| Some(micros(read.crossings?))).collect();
    spans.sort_unstable();
    spans
}

fn median(spans: &[u64]) -> Duration {
    Duration::from_micros(spans.get(spans.len() / 2).copied().unwrap_or(0))
}

fn sample(counted: Counted, watched: &[(Duration, Stats)], service_us: u64) -> Sample {
    let outcome = counted.outcome;
    let good = outcome.trace.iter().filter(|read| read.counted);
    let latencies = good
        .filter_map(|read| {
            let second = read.at.saturating_sub(WARM_UP).as_secs();
            Some((u32::try_from(second).ok()?, micros(read.latency?).max(1)))
        })
        .collect();
    Sample {
        measured: Duration::ZERO,
        series: series(&outcome.trace, watched),
        crossings: crossings(&outcome.trace),
        slow_pairs: slow_pairs(&outcome.trace, Duration::from_micros(3 * service_us)),
        sent: outcome.sent,
        reads: outcome.reads,
        errors: outcome.errors,
        answered_shares: outcome.answered_shares,
        first_error: outcome.first_error,
        latencies,
        queue_wait: outcome.queue_wait,
        client_wait: outcome.client_wait,
        tie_delay: outcome.tie_delay,
        tie_delay_realised: outcome.tie_delay_realised,
        joined: counted.joined,
        messages: counted.messages,
        copies: counted.copies,
        extra_copies: counted.extra_copies,
        not_tied: counted.not_tied,
        cpu_client: counted.cpu_client,
        cpu_servers: counted.cpu_servers,
        cancel_flight_us: None,
        one_way_us: None,
        machine: counted.machine,
        ideals: None,
    }
}

/// How near in time two reads are to be looked at together.
const TOGETHER: Duration = Duration::from_millis(5);

/// Pairs of untied reads on different nodes due within [`TOGETHER`] of which the first was slower than `slow`: how many
/// second ones were too, and how many there are.
fn slow_pairs(trace: &[Traced], slow: Duration) -> [u64; 2] {
    let untied = trace.iter().filter(|read| read.counted && read.nodes.len() == 1);
    let mut reads: Vec<(Duration, NodeId, bool)> =
        untied.filter_map(|read| Some((read.at, read.nodes[0], read.latency? > slow))).collect();
    reads.sort_unstable_by_key(|(at, ..)| *at);
    let mut pairs = [0; 2];
    for (index, (at, node, _)) in reads.iter().enumerate().filter(|(_, (.., slow))| *slow) {
        let before = reads[..index].iter().rev().take_while(|(other, ..)| *at - *other <= TOGETHER);
        let after = reads[index + 1..].iter().take_while(|(other, ..)| *other - *at <= TOGETHER);
        for (_, _, other_slow) in before.chain(after).filter(|(_, other, _)| other != node) {
            pairs[0] += u64::from(*other_slow);
            pairs[1] += 1;
        }
    }
    pairs
}

/// Cuts the scene where the counters were looked at.
fn series(trace: &[Traced], watched: &[(Duration, Stats)]) -> Vec<Tick> {
    let mut reads: Vec<&Traced> = trace.iter().collect();
    reads.sort_unstable_by_key(|read| read.at);
    let due = |at: &Duration| reads.partition_point(|read| read.at <= *at);
    let ends: Vec<usize> = watched.iter().map(|(at, _)| if at.is_zero() { 0 } else { due(at) }).collect();
    let frames = |stats: &Stats| stats.frames_sent + stats.frames_received;
    let no_token = |stats: &Stats| stats.suppressed[Suppressed::NoToken as usize];
    let ticks = watched.windows(2).enumerate().filter_map(|(index, pair)| {
        let [(_, before), (at, after)] = pair else { return None };
        let around = around(index, watched.len() - 1);
        Some(Tick {
            at_ms: at.as_millis() as i64 - WARM_UP.as_millis() as i64,
            reads: (ends[index + 1] - ends[index]) as u64,
            p50_us: told(&good(&reads[ends[index]..ends[index + 1]]), 0.5),
            p99_us: told(&good(&reads[ends[around.start]..ends[around.end]]), 0.99),
            copies: after.sent.total() - before.sent.total(),
            extra_copies: extra_copies(after) - extra_copies(before),
            no_token: no_token(after) - no_token(before),
            messages: frames(after) - frames(before),
        })
    });
    ticks.collect()
}

/// The ticks of which a percentile high up is told: half a second around this one, within the series.
fn around(index: usize, ticks: usize) -> Range<usize> {
    let start = index.saturating_sub(SMOOTHED / 2).min(ticks.saturating_sub(SMOOTHED));
    start..(start + SMOOTHED).min(ticks)
}

/// Latencies of the good ones, sorted, microseconds.
fn good(reads: &[&Traced]) -> Vec<u64> {
    let mut good: Vec<u64> = reads.iter().filter_map(|read| Some(micros(read.latency?))).collect();
    good.sort_unstable();
    good
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{policy, scene};
    use super::*;

    #[test]
    fn half_a_second_around_a_tick_lies_within_the_series() {
        assert_eq!([0, 1, 2, 3, 8, 9].map(|index| around(index, 10)), [0..5, 0..5, 0..5, 1..6, 5..10, 5..10]);
        assert_eq!([around(0, 1), around(2, 3)], [0..1, 0..3], "a short one is told whole");
    }

    #[test]
    fn a_tick_tells_only_percentiles_that_ten_reads_lie_above() {
        let read = |number: u64| Traced {
            at: Duration::from_micros(number * 1_000),
            latency: Some(Duration::from_micros(1 + number)),
            ..Traced::default()
        };
        // 100 reads a tick: enough for its median, and half a second has too few for a p99.
        let watched: Vec<(Duration, Stats)> =
            (0..=10).map(|tick| (Duration::from_millis(100 * tick), Stats::default())).collect();
        let trace: Vec<Traced> = (1..=1_000).map(read).collect();
        let ticks = series(&trace, &watched);
        assert_eq!(ticks.iter().map(|tick| tick.reads).collect::<Vec<_>>(), [100; 10]);
        assert_eq!((ticks[0].p50_us, ticks[0].p99_us), (Some(51), None));
        // Three times as many: 1,500 reads around a tick.
        let dense: Vec<Traced> = trace.iter().flat_map(|read| vec![read.clone(); 3]).collect();
        let ticks = series(&dense, &watched);
        assert_eq!((ticks[4].reads, ticks[4].p50_us, ticks[4].p99_us), (300, Some(451), Some(696)));
    }

    #[test]
    fn a_playing_whose_starts_nodes_cannot_keep_is_refused() {
        let part = |name: &str, seconds: u64| Part {
            scene: scene::named(name).unwrap().remove(0),
            policies: policy::named("untied").unwrap(),
            measured: Duration::from_secs(seconds),
            repeats: 1,
        };
        assert!(check_length(&part("load90", 900)).is_ok());
        let error = check_length(&part("load90", 3_600)).unwrap_err().to_string();
        assert!(error.contains("load90") && error.contains("at most 968"), "{error}");
        assert!(check_length(&part("idle", 3_600)).is_ok() && check_length(&part("fanout-100", 3_600)).is_err());
    }
}
