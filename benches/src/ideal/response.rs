//! What a lane of the modelled device does under reads alone, told before anything was measured. Pure.
//!
//! A lane is one worker with Poisson arrivals (M/G/1). The wait has the tail P(W > t) ~ C e^(-r t), where r > 0 solves
//! load (M(r) - 1) = r, M is the moment generating function of the service time (its mean is the unit of time), and
//! C = (1 - load) / (load M'(r) - 1) (Cramér and Lundberg; Asmussen, *Applied Probability and Queues*). A response is a
//! wait and a service of its own: P(R > t) ~ M(r) C e^(-r t).

/// The service time over its mean: this, and [`SPREAD`] times an Erlang-4 of mean 1.
const FIXED: f64 = 0.3;
/// See [`FIXED`].
const SPREAD: f64 = 0.7;
/// Phases of the Erlang distribution.
const PHASES: f64 = 4.0;
/// Share of responses above the percentile.
const ABOVE: f64 = 0.05;
/// Halvings of the span in which r is looked for.
const HALVINGS: u32 = 60;

/// The p95 of the response time of the modelled device, microseconds, when reads alone load its lanes so (0 to 1);
/// crossings are not in it. `None` where no such queue comes to rest.
pub fn response_p95_us(load: f64, service_us: u64) -> Option<u64> {
    if !load.is_finite() || load <= 0.0 || load >= 1.0 {
        return None;
    }
    // M has its pole there, and load (M(r) - 1) - r is convex: below 0 up to the one root.
    let (mut low, mut high) = (0.0, PHASES / SPREAD);
    for _ in 0..HALVINGS {
        let r = (low + high) / 2.0;
        if load * (generating(r) - 1.0) < r {
            low = r;
        } else {
            high = r;
        }
    }
    let r = low;
    let slope = generating(r) * (FIXED + SPREAD / (1.0 - r * SPREAD / PHASES));
    let factor = (1.0 - load) / (load * slope - 1.0);
    let p95 = (generating(r) * factor / ABOVE).ln() / r;
    (p95.is_finite() && p95 > 0.0).then(|| (p95 * service_us as f64).round() as u64)
}

/// The moment generating function of the service time over its mean.
fn generating(r: f64) -> f64 {
    (FIXED * r).exp() * (1.0 - r * SPREAD / PHASES).powf(-PHASES)
}

#[cfg(test)]
mod tests {
    use super::super::{Item, Trace, join_shortest_workload};
    use super::*;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    fn exponential(rng: &mut StdRng, mean: f64) -> f64 {
        -mean * (1.0 - rng.random::<f64>()).ln()
    }

    #[test]
    fn the_formula_is_that_of_a_played_queue() {
        // The fuller a queue is, the longer it remembers, and the less a playing of it says.
        for (load, tolerance) in [(0.5, 0.05), (0.6, 0.05), (0.8, 0.10)] {
            let mut rng = StdRng::seed_from_u64(7);
            let mut at_us = 0.0;
            let mut item = || {
                at_us += exponential(&mut rng, 5_000.0 / load);
                let erlang: f64 = (0..4).map(|_| exponential(&mut rng, 0.25)).sum();
                let service_us = 5_000.0 * (0.3 + 0.7 * erlang);
                Item { at_us, service_us, places: vec![0], counted: true }
            };
            let items: Vec<Item> = (0..400_000).map(|_| item()).collect();
            let mut spans = join_shortest_workload(&Trace { items, workers: vec![1] }, 1);
            spans.sort_by(f64::total_cmp);
            let played = spans[spans.len() * 95 / 100];
            let told = response_p95_us(load, 5_000).unwrap() as f64;
            assert!((told / played - 1.0).abs() < tolerance, "load {load}: {told} us told, {played} us played");
        }
    }

    #[test]
    fn a_queue_that_never_rests_has_none() {
        assert_eq!((response_p95_us(0.0, 5_000), response_p95_us(1.0, 5_000)), (None, None));
        assert_eq!(response_p95_us(f64::NAN, 5_000), None);
    }
}
