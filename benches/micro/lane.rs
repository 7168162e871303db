//! The lane at a depth of 10,000: push, pop, and withdraw (of a random waiting copy).

use criterion::Criterion;
use std::cell::RefCell;
use tiedkv_protocol::request::Class;
use tiedkv_server::request::lane::{Lane, Pushed};

const DEPTH: usize = 10_000;

/// Entries are indices into the flags of withdrawn ones.
struct Full {
    lane: Lane<usize>,
    withdrawn: RefCell<Vec<bool>>,
    next: usize,
}

impl Full {
    fn new() -> Self {
        let mut full =
            Self { lane: Lane::new(DEPTH * 2), withdrawn: RefCell::new(vec![false; DEPTH * 4]), next: 0 };
        (0..DEPTH).for_each(|_| full.push());
        full
    }

    fn push(&mut self) {
        let slot = self.next % (DEPTH * 4);
        self.next += 1;
        self.withdrawn.borrow_mut()[slot] = false;
        let pushed = self.lane.push(slot, Class::Interactive, false, |slot| self.withdrawn.borrow()[*slot]);
        debug_assert_eq!(pushed, Pushed::Queued);
        drop(pushed);
    }

    fn pop(&mut self) -> Option<usize> {
        self.lane.pop(|slot| self.withdrawn.borrow()[*slot]).map(|waiting| waiting.item)
    }

    fn withdraw_youngest(&mut self) {
        let slot = (self.next - 1) % (DEPTH * 4);
        self.withdrawn.borrow_mut()[slot] = true;
        self.lane.withdrawn();
    }
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
            full.withdraw_youngest();
        });
    });
}
