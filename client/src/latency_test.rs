//! Tests of the estimators.

use super::*;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn ms(ms: u64) -> Moment {
    Moment(ms * 1_000_000)
}

fn near(measured: Duration, wanted: Duration, share: f64) -> bool {
    (measured.as_secs_f64() / wanted.as_secs_f64() - 1.0).abs() <= share
}

#[test]
fn too_few_samples_are_no_estimate() {
    let mut durations = Durations::new(Memory::default());
    (0..29).for_each(|i| durations.record(Duration::from_millis(5), ms(i)));
    assert_eq!(durations.quantile(0.5), None);
    durations.record(Duration::from_millis(5), ms(30));
    assert!(near(durations.quantile(0.5).unwrap(), Duration::from_millis(5), 0.05));
}

#[test]
fn buckets_are_those_of_the_logarithm() {
    for step in 0..60_000 {
        // From 0.1 us to 200 s.
        let duration = Duration::from_nanos((100.0 * (f64::from(step) * 0.000_357).exp()) as u64);
        let place = (duration.as_nanos() as f64 / 1_000.0).log2() * 16.0;
        let wanted = if place <= 0.0 { 0 } else { (place as usize + 1).min(BUCKETS - 1) };
        let on_a_bound = (place - place.round()).abs() < 1e-9;
        assert!(on_a_bound || bucket(duration) == wanted, "{duration:?}");
    }
}

#[test]
fn slow_traffic_never_gets_an_estimate() {
    let mut durations = Durations::new(Memory::default());
    (0..500).for_each(|i| durations.record(Duration::from_millis(5), ms(i * 1_000)));
    assert_eq!(durations.quantile(0.95), None, "one read a second is too few: {}", durations.samples());
}

#[test]
fn cut_samples_do_not_make_the_tail_vanish() {
    // Exponential latencies of mean 10 ms; whatever is longer than 8 ms is cut off there.
    let mut rng = StdRng::seed_from_u64(7);
    let (mut fooled, mut honest) = (Durations::new(Memory::default()), Durations::new(Memory::default()));
    for i in 0..4_000 {
        let latency = Duration::from_secs_f64(-0.010 * (1.0 - rng.random::<f64>()).ln());
        let cut = Duration::from_millis(8);
        // Half of the copies are cut, the rest is the hold-out that runs to its end.
        if i % 2 == 0 && latency > cut {
            fooled.record(cut, ms(i));
            honest.record_longer_than(cut, ms(i));
        } else {
            fooled.record(latency, ms(i));
            honest.record(latency, ms(i));
        }
    }
    let p95 = Duration::from_secs_f64(0.010 * 20.0_f64.ln());
    assert!(near(honest.quantile(0.95).unwrap(), p95, 0.12), "{:?} for {p95:?}", honest.quantile(0.95));
    assert!(fooled.quantile(0.95).unwrap() < p95.mul_f64(0.85));
}

#[test]
fn old_samples_fade() {
    let mut durations = Durations::new(Memory::default());
    (0..1_000).for_each(|i| durations.record(Duration::from_millis(100), ms(i)));
    (0..1_000).for_each(|i| durations.record(Duration::from_millis(1), ms(120_000 + i)));
    assert!(durations.quantile(0.98).unwrap() < Duration::from_millis(2));
    durations.record(Duration::from_millis(1), ms(u64::MAX / 2_000_000));
    assert!(durations.samples() < 2.0, "a long pause forgets all");
}

#[test]
fn a_killed_replica_does_not_raise_the_delay_step_by_step() {
    // One of three replicas is dead: a third of the reads ends by a rescue at the delay, so only "longer than" is
    // known of their own copies.
    let mut latency = Latency::new(LatencySettings::default());
    (0..2_000).for_each(|i| latency.record(Duration::from_micros(4_000 + i * 3), false, ms(i)));
    let mut delays = Vec::new();
    for i in 0..20_000_u64 {
        let delay = latency.rescue_delay();
        if i % 3 == 0 {
            latency.record_longer_than(delay + Duration::from_millis(5), false, ms(2_000 + i));
        } else {
            latency.record(Duration::from_micros(4_000 + i % 6_000), false, ms(2_000 + i));
        }
        delays.push(delay);
    }
    let last = delays[delays.len() - 1];
    assert!(last <= Duration::from_millis(12), "the delay climbed to {last:?}");
}

#[test]
fn relearning_freezes_the_delays() {
    let mut latency = Latency::new(LatencySettings::default());
    assert_eq!(latency.rescue_delay(), LatencySettings::default().fallback);
    (0..200).for_each(|i| latency.record(Duration::from_millis(5), i % 2 == 0, ms(i)));
    let before = (latency.hedge_delay(), latency.rescue_delay());
    assert!(near(before.0, Duration::from_millis(5), 0.06));
    assert!(latency.quantile_without(0.5).is_some());
    latency.relearn();
    assert_eq!((latency.hedge_delay(), latency.rescue_delay()), before);
    (0..200).for_each(|i| latency.record(Duration::from_millis(20), false, ms(200 + i)));
    assert!(near(latency.hedge_delay(), Duration::from_millis(20), 0.06));
}

#[test]
fn delays_do_not_outlive_the_traffic_that_they_come_from() {
    let mut latency = Latency::new(LatencySettings::default());
    let fallback = LatencySettings::default().fallback;
    // So many samples that the last computed delays would serve some thousand further ones.
    (0..400_000).for_each(|i| latency.record(Duration::from_millis(5), false, ms(i / 40)));
    assert!(near(latency.hedge_delay(), Duration::from_millis(5), 0.06));
    // Then one every two seconds, slower: a few minutes later too little is known.
    (0..150).for_each(|i| latency.record(Duration::from_millis(20), false, ms(10_000 + i * 2_000)));
    assert_eq!((latency.hedge_delay(), latency.rescue_delay()), (fallback, fallback));
}

proptest! {
    #[test]
    fn quantiles_are_within_a_bucket_of_the_samples(
        mut micros in prop::collection::vec(1_u64..5_000_000, 50..400),
        q in 0.05_f64..0.99,
    ) {
        let mut durations = Durations::new(Memory::default());
        micros.iter().for_each(|us| durations.record(Duration::from_micros(*us), Moment::ZERO));
        micros.sort_unstable();
        let rank = ((q * micros.len() as f64).ceil() as usize).clamp(1, micros.len());
        let exact = Duration::from_micros(micros[rank - 1]);
        let measured = durations.quantile(q).unwrap();
        prop_assert!(near(measured, exact, 0.07), "{measured:?} for {exact:?}");
    }

    #[test]
    fn quantiles_rise_with_q_and_never_panic(
        steps in prop::collection::vec((any::<u64>(), any::<bool>(), 0_u64..1 << 40), 1..200),
    ) {
        let mut durations = Durations::new(Memory { samples_min: 1.0, ..Memory::default() });
        let mut now = Moment::ZERO;
        for (nanos, cut, wait) in steps {
            now = now + Duration::from_nanos(wait);
            let duration = Duration::from_nanos(nanos);
            if cut { durations.record_longer_than(duration, now) } else { durations.record(duration, now) }
        }
        let all: Vec<_> = (0..=20).map(|i| durations.quantile(f64::from(i) / 20.0)).collect();
        prop_assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{all:?}");
    }
}
