//! The decaying histogram behind hedge and rescue delays.

use criterion::Criterion;
use std::time::Duration;
use tiedkv_client::latency::{Durations, Memory};
use tiedkv_protocol::moment::Moment;

/// Record; quantile.
pub fn record_and_quantile(criterion: &mut Criterion) {
    let mut durations = Durations::new(Memory::default());
    let mut next = 0u64;
    let mut record = move |durations: &mut Durations| {
        next += 1;
        durations.record(Duration::from_micros(100 + next * 7_919 % 10_000), Moment(next * 1_000_000));
    };
    for _ in 0..10_000 {
        record(&mut durations);
    }
    criterion.bench_function("estimator/record", |bench| bench.iter(|| record(&mut durations)));
    criterion.bench_function("estimator/quantile", |bench| bench.iter(|| durations.quantile(0.98)));
}
