//! The word that start and withdraw race for, without contention.

use criterion::Criterion;
use tiedkv_server::request::copy_state::{CopyState, Phase};

/// Queued -> running -> finished.
pub fn start_and_finish(criterion: &mut Criterion) {
    criterion.bench_function("word/start and finish", |bench| {
        bench.iter(|| {
            let state: CopyState = CopyState::default();
            let started = state.step(Phase::start);
            (started, state.step(Phase::finish))
        });
    });
}

/// Queued -> withdrawn.
pub fn withdraw(criterion: &mut Criterion) {
    criterion.bench_function("word/withdraw", |bench| {
        bench.iter(|| {
            let state: CopyState = CopyState::default();
            state.step(Phase::withdraw)
        });
    });
}
