//! The ring of early cancels and ended ties: filing into a full ring, and the look-up of an arriving copy.

use criterion::Criterion;
use std::hint::black_box;
use tiedkv_protocol::ids::{CallerId, NodeId, TieId};
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::tie::CopyNumber;
use tiedkv_server::request::copy_name::{Race, RaceId};
use tiedkv_server::request::recent_ties::{Filer, RecentTies, RecentTiesBounds};

/// File and look up.
pub fn file_and_look_up(criterion: &mut Criterion) {
    let mut ring = RecentTies::new(RecentTiesBounds::of_stripes(1));
    let mut next = 0u64;
    let mut file = move |ring: &mut RecentTies| {
        next += 1;
        let tie = TieId(u128::from(next).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let race = Race { caller: CallerId(1), id: RaceId::Tie(tie) };
        // 10 us apart: entries come to their age as the ring is full.
        let filer = Filer::Peer(NodeId(next % 2));
        (ring.file(race, filer, CopyNumber(0), Moment(next * 10_000)), race, Moment(next * 10_000))
    };
    for _ in 0..100_000 {
        let _ = file(&mut ring);
    }
    criterion.bench_function("ring/file into a full ring", |bench| bench.iter(|| file(&mut ring)));
    let (_, race, now) = file(&mut ring);
    criterion.bench_function("ring/look up an early cancel", |bench| {
        bench.iter(|| ring.filed(black_box(&race), now).count());
    });
}
