//! Micro benchmarks of the rooms on the path of a read: frame codec, lane, ring of early cancels, state word,
//! estimator. `cargo bench -p tiedkv-benches`; `-- --test` runs each once.

mod codec;
mod estimator;
mod lane;
mod recent_ties;
mod state_word;

use criterion::{criterion_group, criterion_main};

criterion_group!(
    rooms,
    codec::frames,
    lane::push_pop_withdraw,
    recent_ties::file_and_look_up,
    state_word::start_and_finish,
    state_word::withdraw,
    estimator::record_and_quantile
);
criterion_main!(rooms);
