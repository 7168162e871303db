//! Rows that were read lately, so that hot keys are not searched for in the engine's tables again: those take some
//! microseconds per key, most of what a read in memory costs.
//!
//! A row may be shown by a view if its key has changed neither since the row was read nor since the view was made. For
//! that a write marks, before a view of it is published, the place of its key in a table of positions; several keys
//! share a place, which costs a search and is never wrong. Nothing is removed by writes: what is out of date is not
//! shown, read again and replaced. Which rows stay is the cache's to say (quick_cache: S3-FIFO, Yang et al., SOSP
//! 2023).

use crate::storage::state_store::Stored;
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tiedkv_protocol::ids::Position;

/// Places of positions of change: 128 KiB.
const PLACES: usize = 1 << 14;
/// A row with a longer value is not kept.
const VALUE_BYTES_MAX: usize = 4 * 1024;
/// What a row takes beside its key and value, about: its place in the cache, two allocations, reference counts.
const ROW_BYTES: usize = 224;

type Hasher = foldhash::fast::RandomState;

/// Which state of the store a row was read in, or is to be shown for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsOf {
    /// Grows when a snapshot replaces the whole store.
    pub generation: u64,
    /// Applied up to here.
    pub position: Position,
}

#[derive(Clone, Debug)]
struct Row {
    read: AsOf,
    stored: Stored,
}

#[derive(Clone, Debug)]
struct RowBytes;

impl Weighter<Bytes, Row> for RowBytes {
    fn weight(&self, key: &Bytes, row: &Row) -> u64 {
        (key.len() + row.stored.value.len() + ROW_BYTES) as u64
    }
}

/// See the head of this room.
pub struct HotRows {
    rows: Cache<Bytes, Row, RowBytes, Hasher>,
    /// Position of the last change of any key that has its place here.
    changed: Box<[AtomicU64]>,
    hasher: Hasher,
}

impl HotRows {
    /// Keeps rows of at most about `bytes`; 0: none. The cache remembers some keys beyond that, without their values.
    pub fn new(bytes: u64) -> Self {
        let hasher = Hasher::default();
        let expected = usize::try_from(bytes).unwrap_or(usize::MAX) / (2 * ROW_BYTES);
        let rows = Cache::with(expected, bytes, RowBytes, hasher.clone(), DefaultLifecycle::default());
        Self { rows, changed: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), hasher }
    }

    /// The row of a key for a view of `view`, expired or not, if it is known. That the key is absent is never known.
    pub fn get(&self, key: &[u8], view: AsOf) -> Option<Stored> {
        let row = self.rows.get(key)?;
        // Looked up after the row was taken: whoever put it there had seen at least the change that it shows.
        let changed = self.place(key).load(Relaxed);
        let same = row.read.generation == view.generation;
        (same && changed <= row.read.position.0.min(view.position.0)).then_some(row.stored)
    }

    /// A view of `read` showed this row of a key.
    pub fn keep(&self, key: &[u8], stored: &Stored, read: AsOf) {
        if stored.value.len() <= VALUE_BYTES_MAX && self.place(key).load(Relaxed) <= read.position.0 {
            self.rows.insert(Bytes::copy_from_slice(key), Row { read, stored: stored.clone() });
        }
    }

    /// A key changes at `position`. Before a view of that position is published.
    pub fn changes(&self, key: &[u8], position: Position) {
        self.place(key).fetch_max(position.0, Relaxed);
    }

    fn place(&self, key: &[u8]) -> &AtomicU64 {
        &self.changed[self.hasher.hash_one(key) as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiedkv_protocol::ids::Version;

    fn at(position: u64) -> AsOf {
        AsOf { generation: 0, position: Position(position) }
    }

    fn stored(version: u64) -> Stored {
        Stored { value: Bytes::from(version.to_string()), version: Version(version), expires_ms: None }
    }

    #[test]
    fn a_row_is_shown_only_where_its_key_is_the_same() {
        let rows = HotRows::new(1 << 20);
        rows.changes(b"k", Position(3));
        assert_eq!(rows.get(b"k", at(3)), None);
        rows.keep(b"k", &stored(3), at(5));
        assert_eq!(rows.get(b"k", at(3)), Some(stored(3)), "nothing changed since");
        assert_eq!(rows.get(b"k", at(9)), Some(stored(3)));
        assert_eq!(rows.get(b"k", at(2)), None, "a view from before the write");
        assert_eq!(rows.get(b"k", AsOf { generation: 1, ..at(9) }), None, "another store");
        rows.changes(b"k", Position(10));
        for view in [9, 10, 11] {
            assert_eq!(rows.get(b"k", at(view)), None, "read before the change");
        }
        rows.keep(b"k", &stored(3), at(9));
        assert_eq!(rows.get(b"k", at(11)), None, "a slow reader of an old view");
        rows.keep(b"k", &stored(10), at(11));
        assert_eq!(rows.get(b"k", at(10)), Some(stored(10)));
        assert_eq!(rows.get(b"k", at(9)), None);
    }

    #[test]
    fn rows_have_a_bound_and_large_ones_no_place() {
        let rows = HotRows::new(64 << 10);
        let large = Stored { value: Bytes::from(vec![0; VALUE_BYTES_MAX + 1]), ..stored(1) };
        rows.keep(b"large", &large, at(1));
        assert_eq!(rows.get(b"large", at(1)), None);
        let key = |n: u32| n.to_be_bytes();
        (0..10_000).for_each(|n| rows.keep(&key(n), &stored(1), at(1)));
        let kept = (0..10_000).filter(|n| rows.get(&key(*n), at(1)).is_some()).count();
        assert!((50..=64 * 1024 / ROW_BYTES).contains(&kept), "{kept}");
        let none = HotRows::new(0);
        none.keep(b"k", &stored(1), at(1));
        assert_eq!(none.get(b"k", at(1)), None);
    }
}
