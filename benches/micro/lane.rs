//! The lane at a depth of 10,000: push, pop, and withdraw (of a random waiting copy). The bookkeeping of which copies
//! wait, some nanoseconds, is in the figures.

use criterion::Criterion;
use tiedkv_protocol::request::Class;
use tiedkv_server::request::lane::{Lane, Pushed};

const DEPTH: usize = 10_000;
/// Places for entries that wait.
const SLOTS: usize = DEPTH * 2;

/// A slot and its generation when the entry was pushed: a withdrawn one lies in the lane with an old generation.
type Entry = (usize, u32);

struct Full {
    lane: Lane<Entry>,
    generations: Vec<u32>,
    free: Vec<usize>,
    /// Slots of entries that wait, in any order.
    live: Vec<usize>,
    /// Where each slot stands in `live`.
    places: Vec<usize>,
    /// State of an xorshift generator (Marsaglia 2003).
    random: u64,
}

impl Full {
    fn new() -> Self {
        let mut full = Self {
            lane: Lane::new(SLOTS),
            generations: vec![0; SLOTS],
            free: (0..SLOTS).collect(),
            live: Vec::with_capacity(SLOTS),
            places: vec![0; SLOTS],
            random: 0x9E37_79B9_7F4A_7C15,
        };
        (0..DEPTH).for_each(|_| full.push());
        full
    }

    fn push(&mut self) {
        let Some(slot) = self.free.pop() else { return };
        self.places[slot] = self.live.len();
        self.live.push(slot);
        let generations = &self.generations;
        let entry = (slot, generations[slot]);
        let pushed = self.lane.push(entry, Class::Interactive, false, |entry| is_withdrawn(generations, entry));
        debug_assert_eq!(pushed, Pushed::Queued);
        drop(pushed);
    }

    fn pop(&mut self) -> Option<usize> {
        let generations = &self.generations;
        let (slot, _) = self.lane.pop(|entry| is_withdrawn(generations, entry))?.item;
        self.leave(slot);
        Some(slot)
    }

    fn withdraw_random(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let index = (self.random % self.live.len() as u64) as usize;
        self.leave(self.live[index]);
        self.lane.withdrawn();
    }

    /// The entry of a slot waits no more.
    fn leave(&mut self, slot: usize) {
        let place = self.places[slot];
        self.live.swap_remove(place);
        if let Some(moved) = self.live.get(place) {
            self.places[*moved] = place;
        }
        self.generations[slot] = self.generations[slot].wrapping_add(1);
        self.free.push(slot);
    }
}

fn is_withdrawn(generations: &[u32], (slot, generation): &Entry) -> bool {
    generations[*slot] != *generation
}

/// Push and pop; push and withdraw.
pub fn push_pop_withdraw(criterion: &mut Criterion) {
    let mut full = Full::new();
    criterion.bench_function("lane/push and pop at depth 10,000", |bench| {
        bench.iter(|| {
            full.push();
            full.pop()
        });
    });
    let mut full = Full::new();
    criterion.bench_function("lane/push and withdraw at depth 10,000", |bench| {
        bench.iter(|| {
            full.push();
            full.withdraw_random();
        });
    });
}
