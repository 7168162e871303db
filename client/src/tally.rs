//! The living counters of reads by operation and policy, behind [`crate::stats`].
//!
//! A slot is one operation and policy. Its number travels in the ids of its copies, so that also an answer to a copy of
//! which nothing is kept is counted where it belongs.

use crate::engine_host::Suppressed;
use crate::gate::NotTied;
use crate::operation::Operation;
use crate::policy::{ReadPolicy, SHAPES, Shape};
use crate::spread::Spread;
use crate::stats::{ByKind, CopyCounts, KINDS, PolicyStats};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tiedkv_protocol::request::CopyKind;

/// One operation and policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u8);

/// How many slots there are; an id of a copy has six bits for one.
const SLOTS: usize = Operation::ALL.len() * SHAPES * 2;
/// Bits that any slot fits into.
pub(crate) const SLOT_BITS: u32 = 6;
const _: () = assert!(SLOTS <= 1 << SLOT_BITS);

/// Some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotSet(u64);

impl SlotSet {
    /// Takes `slot` in, or out; true if it was otherwise before.
    pub(crate) fn set(&mut self, slot: Slot, within: bool) -> bool {
        let before = self.0;
        let bit = 1_u64 << slot.0;
        self.0 = if within { before | bit } else { before & !bit };
        self.0 != before
    }

    /// All of them.
    pub(crate) fn iter(self) -> impl Iterator<Item = Slot> {
        (0..SLOTS as u8).filter(move |slot| self.0 & (1 << slot) != 0).map(Slot)
    }
}

impl Slot {
    pub(crate) fn new(operation: Operation, policy: ReadPolicy) -> Self {
        let policy_index = policy.shape as usize * 2 + usize::from(policy.rescue);
        Self((operation as usize * SHAPES * 2 + policy_index) as u8)
    }

    /// For an id.
    pub(crate) fn bits(self) -> u64 {
        u64::from(self.0)
    }

    /// From an id; the first slot for what is none.
    pub(crate) fn of_bits(bits: u64) -> Self {
        Self(u8::try_from(bits).ok().filter(|slot| usize::from(*slot) < SLOTS).unwrap_or(0))
    }

    fn name(self) -> Option<(Operation, ReadPolicy)> {
        let (operation, policy) = (usize::from(self.0) / (SHAPES * 2), usize::from(self.0) % (SHAPES * 2));
        let shape = Shape::ALL.get(policy / 2)?;
        Some((*Operation::ALL.get(operation)?, ReadPolicy { shape: *shape, rescue: policy % 2 == 1 }))
    }
}

/// One counter per kind of copy.
#[derive(Debug, Default)]
pub(crate) struct KindCounter([AtomicU64; KINDS]);

impl KindCounter {
    /// Adds one.
    pub(crate) fn add(&self, kind: CopyKind) {
        self.add_many(kind, 1);
    }

    /// Adds some.
    pub(crate) fn add_many(&self, kind: CopyKind, count: u64) {
        self.0[kind as usize].fetch_add(count, Relaxed);
    }

    /// Takes one back; false, and stays at 0, if there is none.
    pub(crate) fn take_back(&self, kind: CopyKind) -> bool {
        self.0[kind as usize].fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1)).is_ok()
    }

    fn read(&self) -> ByKind {
        let mut counts = [0; KINDS];
        for (count, counter) in counts.iter_mut().zip(&self.0) {
            *count = counter.load(Relaxed);
        }
        ByKind(counts)
    }
}

/// What is counted of one slot.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) reads: AtomicU64,
    pub(crate) answered: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) ties: AtomicU64,
    pub(crate) fresh_ties: AtomicU64,
    pub(crate) not_tied: [AtomicU64; NotTied::ALL.len()],
    pub(crate) suppressed: [AtomicU64; Suppressed::ALL.len()],
    pub(crate) sent: KindCounter,
    pub(crate) won: KindCounter,
    pub(crate) late: KindCounter,
    pub(crate) refused: KindCounter,
    pub(crate) expired: KindCounter,
    pub(crate) copies_failed: KindCounter,
    pub(crate) outstanding: KindCounter,
    pub(crate) unanswered: KindCounter,
    pub(crate) lost_links: KindCounter,
    pub(crate) withdrawn: KindCounter,
    /// Reads won by copy 0, 1, 2 of their first tie.
    pub(crate) won_by_number: [AtomicU64; 3],
    /// What observed reads would have sent, and when the first of it.
    pub(crate) unsent: KindCounter,
    pub(crate) unsent_after: Spread,
    pub(crate) samples: AtomicU64,
    pub(crate) samples_stale: AtomicU64,
    /// Reads as the policy sent them; those of a policy without a bet on lateness too.
    pub(crate) with: Spread,
    /// Hold-out and observed reads.
    pub(crate) without: Spread,
    /// Reads that switch, ceiling, gate or nodes left with one copy and no hedge.
    pub(crate) cut: Spread,
    /// Hand-over to answer of hedges and rescues that were answered well.
    pub(crate) extra_path: Spread,
    pub(crate) client_wait: Spread,
    /// Views that say so.
    pub(crate) delay_too_long: AtomicU64,
}

impl Tally {
    fn copies(&self) -> CopyCounts {
        // Read in the order opposite to that of counting: what is out may show twice for a moment, never not at all.
        let outstanding = self.outstanding.read();
        let mut unanswered = self.unanswered.read();
        for (count, out) in unanswered.0.iter_mut().zip(outstanding.0) {
            *count += out;
        }
        CopyCounts {
            sent: self.sent.read(),
            won: self.won.read(),
            late: self.late.read(),
            refused: self.refused.read(),
            expired: self.expired.read(),
            failed: self.copies_failed.read(),
            unanswered,
            outstanding,
            lost_links: self.lost_links.read(),
            withdrawn: self.withdrawn.read(),
        }
    }

    fn snapshot(&self, operation: Operation, policy: ReadPolicy) -> PolicyStats {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        PolicyStats {
            operation,
            policy,
            reads: load(&self.reads),
            answered: load(&self.answered),
            failed: load(&self.failed),
            dropped: load(&self.dropped),
            ties: load(&self.ties),
            fresh_ties: load(&self.fresh_ties),
            copies: self.copies(),
            won_by_number: std::array::from_fn(|number| load(&self.won_by_number[number])),
            not_tied: std::array::from_fn(|reason| load(&self.not_tied[reason])),
            suppressed: std::array::from_fn(|reason| load(&self.suppressed[reason])),
            unsent: self.unsent.read(),
            unsent_after: self.unsent_after.snapshot(),
            samples: load(&self.samples),
            samples_stale: load(&self.samples_stale),
            with: self.with.snapshot(),
            without: self.without.snapshot(),
            cut: self.cut.snapshot(),
            extra_path: self.extra_path.snapshot(),
            client_wait: self.client_wait.snapshot(),
            delay_too_long: load(&self.delay_too_long) > 0,
        }
    }
}

/// The tallies of a client; one is made when its slot is first used.
#[derive(Debug)]
pub(crate) struct Tallies([OnceLock<Box<Tally>>; SLOTS]);

impl Default for Tallies {
    fn default() -> Self {
        Self([const { OnceLock::new() }; SLOTS])
    }
}

impl Tallies {
    pub(crate) fn of(&self, slot: Slot) -> &Tally {
        self.0[usize::from(slot.0)].get_or_init(Box::default)
    }

    /// Those that were used.
    pub(crate) fn snapshot(&self) -> Vec<PolicyStats> {
        let used = (0..).zip(&self.0).filter_map(|(slot, tally)| Some((Slot(slot), tally.get()?)));
        used.filter_map(|(slot, tally)| slot.name().map(|(operation, policy)| tally.snapshot(operation, policy)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_back_stops_at_zero() {
        let counter = KindCounter::default();
        assert!(!counter.take_back(CopyKind::First));
        counter.add(CopyKind::First);
        assert!(counter.take_back(CopyKind::First));
        assert_eq!(counter.read().total(), 0);
    }

    #[test]
    fn a_set_of_slots_knows_what_is_news() {
        let (first, last) = (Slot(0), Slot(SLOTS as u8 - 1));
        let mut set = SlotSet::default();
        assert!(set.set(last, true) && !set.set(last, true) && set.set(first, true));
        assert_eq!(set.iter().collect::<Vec<_>>(), [first, last]);
        assert!(set.set(last, false) && !set.set(last, false));
        assert_eq!(set.iter().collect::<Vec<_>>(), [first]);
    }

    #[test]
    fn slots_go_both_ways() {
        for operation in Operation::ALL {
            for shape in Shape::ALL {
                for rescue in [false, true] {
                    let policy = ReadPolicy { shape: *shape, rescue };
                    let slot = Slot::new(operation, policy);
                    assert_eq!(slot.name(), Some((operation, policy)));
                    assert_eq!(Slot::of_bits(slot.bits()), slot);
                }
            }
        }
        assert_eq!(Slot::of_bits(63), Slot(0));
    }
}
