//! Validates the recursions against formulas that everybody can look up.

use super::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MEAN_US: f64 = 5_000.0;

fn exponential(rng: &mut StdRng, mean: f64) -> f64 {
    -(1.0 - rng.random::<f64>()).ln() * mean
}

/// The modelled device's draw: 0.3 S + 0.7 S x Erlang-4 of mean 1.
fn device(rng: &mut StdRng) -> f64 {
    let erlang = (0..4).map(|_| exponential(rng, 0.25)).sum::<f64>();
    MEAN_US * (0.3 + 0.7 * erlang)
}

/// `nodes` nodes of `lanes` one-worker lanes each; reads name one lane per node in random order of nodes.
fn trace(
    seed: u64,
    count: usize,
    load: f64,
    (nodes, lanes): (usize, usize),
    mut service: impl FnMut(&mut StdRng) -> f64,
) -> Trace {
    let mut rng = StdRng::seed_from_u64(seed);
    let gap = MEAN_US / (load * (nodes * lanes) as f64);
    let mut at_us = 0.0;
    let items = (0..count)
        .map(|_| {
            at_us += exponential(&mut rng, gap);
            let first = rng.random_range(0..nodes);
            let places =
                (0..nodes).map(|step| (first + step) % nodes * lanes + rng.random_range(0..lanes)).collect();
            Item { at_us, service_us: service(&mut rng), places, counted: true }
        })
        .collect();
    Trace { items, workers: vec![1; nodes * lanes] }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn percentile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() as f64 * q) as usize).min(sorted.len() - 1)]
}

fn close(name: &str, found: f64, wanted: f64, within: f64) {
    assert!((found / wanted - 1.0).abs() < within, "{name}: found {found:.1}, wanted {wanted:.1}");
}

#[test]
fn one_copy_is_m_m_1() {
    let load = 0.6;
    let trace = trace(1, 400_000, load, (1, 1), |rng| exponential(rng, MEAN_US));
    let responses = join_shortest_workload(&trace, 1);
    // The response time of M/M/1 is exponential with mean S / (1 - load).
    close("mean", mean(&responses), MEAN_US / (1.0 - load), 0.03);
    close("p99", percentile(&responses, 0.99), 100f64.ln() * MEAN_US / (1.0 - load), 0.05);
}

#[test]
fn one_copy_is_m_g_1() {
    let load = 0.6;
    let trace = trace(2, 400_000, load, (1, 1), device);
    let responses = join_shortest_workload(&trace, 1);
    // Pollaczek-Khinchine: wait = load x S x (1 + cv^2) / (2 (1 - load)); cv = 0.7 / 2.
    let wait = load * MEAN_US * (1.0 + 0.35 * 0.35) / (2.0 * (1.0 - load));
    close("mean", mean(&responses), MEAN_US + wait, 0.03);
}

#[test]
fn the_central_queue_is_m_m_k() {
    let (load, workers) = (0.8, 4usize);
    let trace = trace(3, 400_000, load, (1, workers), |rng| exponential(rng, MEAN_US));
    let offered = load * workers as f64;
    let term = |k: usize| (1..=k).fold(1.0, |product, i| product * offered / i as f64);
    let waits = term(workers) / (1.0 - load);
    let erlang_c = waits / ((0..workers).map(term).sum::<f64>() + waits);
    let wanted = MEAN_US + erlang_c * MEAN_US / (workers as f64 * (1.0 - load));
    close("mean", mean(&central_queue(&trace)), wanted, 0.03);
}

#[test]
fn more_places_are_never_worse_and_the_central_queue_is_best() {
    let trace = trace(4, 100_000, 0.5, (3, 8), device);
    let [one, two, three] = [1, 2, 3].map(|copies| percentile(&join_shortest_workload(&trace, copies), 0.99));
    let central = percentile(&central_queue(&trace), 0.99);
    assert!(one > two && two > three && three >= central, "{one} {two} {three} {central}");
}

#[test]
fn a_job_is_in_the_way_and_not_counted() {
    let job = Item { at_us: 0.0, service_us: 100.0, places: vec![0], counted: false };
    let read = Item { at_us: 10.0, service_us: 5.0, places: vec![0, 1], counted: true };
    let trace = Trace { items: vec![job, read], workers: vec![1, 1] };
    assert_eq!(join_shortest_workload(&trace, 1), [95.0]);
    assert_eq!(join_shortest_workload(&trace, 2), [5.0]);
}

#[test]
fn a_place_with_two_workers_serves_two_at_once() {
    let item = |at_us| Item { at_us, service_us: 10.0, places: vec![0], counted: true };
    let trace = Trace { items: vec![item(0.0), item(1.0), item(2.0)], workers: vec![2] };
    assert_eq!(join_shortest_workload(&trace, 1), [10.0, 10.0, 18.0]);
}
