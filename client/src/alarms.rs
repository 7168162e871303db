//! A heap of alarms in which each can be moved and removed: memory is that of the alarms that are set.
//!
//! Knows no clock and no descriptor; [`crate::timer`] feeds it.

use slab::Slab;
use std::task::Waker;
use tiedkv_protocol::moment::Moment;

/// Names one alarm: its slot and how often the slot had been used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlarmKey {
    slot: usize,
    use_count: u64,
}

#[derive(Debug)]
struct Slot {
    at: Moment,
    waker: Waker,
    use_count: u64,
    /// Where it stands in the heap.
    place: usize,
}

/// Alarms by moment; a binary heap over the slots of a slab.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    slots: Slab<Slot>,
    heap: Vec<usize>,
    use_count: u64,
}

impl Alarms {
    /// The earliest moment.
    pub(crate) fn first(&self) -> Option<Moment> {
        self.heap.first().and_then(|slot| self.slots.get(*slot)).map(|slot| slot.at)
    }

    /// Adds an alarm.
    pub(crate) fn add(&mut self, at: Moment, waker: Waker) -> AlarmKey {
        self.use_count += 1;
        let use_count = self.use_count;
        let place = self.heap.len();
        let slot = self.slots.insert(Slot { at, waker, use_count, place });
        self.heap.push(slot);
        self.up(place);
        AlarmKey { slot, use_count }
    }

    /// Moves an alarm; false if it fired or was removed.
    pub(crate) fn set(&mut self, key: AlarmKey, at: Moment, waker: &Waker) -> bool {
        let Some(slot) = self.slots.get_mut(key.slot).filter(|slot| slot.use_count == key.use_count) else {
            return false;
        };
        slot.waker.clone_from(waker);
        let (before, place) = (slot.at, slot.place);
        slot.at = at;
        if at < before {
            self.up(place);
        } else {
            self.down(place);
        }
        true
    }

    /// Removes an alarm, if it is still there.
    pub(crate) fn remove(&mut self, key: AlarmKey) {
        if self.slots.get(key.slot).is_some_and(|slot| slot.use_count == key.use_count) {
            self.take(key.slot);
        }
    }

    /// Removes all that are due and appends their wakers.
    pub(crate) fn take_due(&mut self, now: Moment, due: &mut Vec<Waker>) {
        while let Some(slot) = self.heap.first().copied() {
            if self.slots[slot].at > now {
                return;
            }
            due.push(self.take(slot).waker);
        }
    }

    /// Alarms that are set.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    fn take(&mut self, slot: usize) -> Slot {
        let removed = self.slots.remove(slot);
        let place = removed.place;
        self.heap.swap_remove(place);
        if let Some(moved) = self.heap.get(place).copied() {
            self.slots[moved].place = place;
            self.up(place);
            self.down(self.slots[moved].place);
        }
        removed
    }

    fn at(&self, place: usize) -> Moment {
        self.slots[self.heap[place]].at
    }

    fn up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.at(parent) <= self.at(place) {
                return;
            }
            self.swap(parent, place);
            place = parent;
        }
    }

    fn down(&mut self, mut place: usize) {
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let mut least = place;
            if left < self.heap.len() && self.at(left) < self.at(least) {
                least = left;
            }
            if right < self.heap.len() && self.at(right) < self.at(least) {
                least = right;
            }
            if least == place {
                return;
            }
            self.swap(least, place);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.slots[self.heap[a]].place = a;
        self.slots[self.heap[b]].place = b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    #[test]
    fn behaves_like_a_sorted_map() {
        let mut random = StdRng::seed_from_u64(7);
        let mut alarms = Alarms::default();
        let mut model: BTreeMap<u64, (AlarmKey, Moment)> = BTreeMap::new();
        for step in 0..20_000u64 {
            let at = Moment(random.random_range(0..1_000));
            let some = model.keys().nth(random.random_range(0..8)).copied();
            match (random.random_range(0..4), some) {
                (0 | 1, _) => {
                    model.insert(step, (alarms.add(at, Waker::noop().clone()), at));
                }
                (2, Some(name)) => {
                    let (key, _) = model[&name];
                    assert!(alarms.set(key, at, Waker::noop()));
                    model.insert(name, (key, at));
                }
                (_, Some(name)) => alarms.remove(model.remove(&name).expect("known").0),
                _ => {}
            }
            assert_eq!(alarms.len(), model.len());
            assert_eq!(alarms.first(), model.values().map(|(_, at)| *at).min());
            if step % 50 == 0 {
                let mut due = Vec::new();
                alarms.take_due(Moment(300), &mut due);
                let before = model.len();
                model.retain(|_, (_, at)| *at > Moment(300));
                assert_eq!(due.len(), before - model.len());
            }
        }
    }

    #[test]
    fn a_key_of_a_fired_alarm_moves_nobody_else() {
        let mut alarms = Alarms::default();
        let old = alarms.add(Moment(1), Waker::noop().clone());
        alarms.take_due(Moment(1), &mut Vec::new());
        let new = alarms.add(Moment(9), Waker::noop().clone());
        assert_eq!(old.slot, new.slot);
        assert!(!alarms.set(old, Moment(2), Waker::noop()));
        alarms.remove(old);
        assert_eq!(alarms.first(), Some(Moment(9)));
    }
}
