//! What the operations of [`crate::data_model`] are drawn from: keys that meet, values that are numbers or nearly, writes
//! of every kind whose conditions hold more often than not. A seed repeats all of it; sends nothing.

use crate::data_model_map::{Known, Map, Write};
use bytes::Bytes;
use std::time::Duration;
use tiedkv_client::{Expect, ScanRange};
use tiedkv_protocol::atomic::{Condition, Operation};
use tiedkv_protocol::ids::Version;

/// Times to live: none ends within a test, and half of one is longer than another.
const TIMES: [Duration; 2] = [Duration::from_secs(3_600), Duration::from_secs(36_000)];
/// Most operations of a batch.
const BATCH_MAX: u64 = 6;

/// Draws that a seed repeats (SplitMix64).
pub struct Draws(pub u64);

impl Draws {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }

    /// An index of a list of `length`.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Few letters, so that keys meet; the edges of bytes among them.
    fn any_key(&mut self) -> Bytes {
        let length = 1 + self.below(3);
        (0..length).map(|_| [0, b'a', b'b', 0xfe, 0xff][self.index(5)]).collect()
    }

    /// One of the map's keys, or any.
    pub fn key(&mut self, map: &Map) -> Bytes {
        if self.below(2) == 0 || map.rows.is_empty() {
            return self.any_key();
        }
        let nth = self.index(map.rows.len());
        map.rows.keys().nth(nth).unwrap().clone()
    }

    fn value(&mut self) -> Bytes {
        match self.below(6) {
            0 => Bytes::from(self.number().to_string()),
            1 => Bytes::from([i64::MAX, i64::MIN, -1][self.index(3)].to_string()),
            2 => {
                // Nearly numbers.
                let texts = ["", "007", "-0", "+1", " 1", "1 ", "9223372036854775808", "0x1", "-"];
                Bytes::from_static(texts[self.index(texts.len())].as_bytes())
            }
            _ => {
                let length = self.below(40);
                (0..length).map(|_| self.below(256) as u8).collect()
            }
        }
    }

    fn number(&mut self) -> i64 {
        self.below(2_000) as i64 - 1_000
    }

    fn by(&mut self) -> i64 {
        match self.below(4) {
            0 => [i64::MAX, i64::MIN][self.index(2)],
            _ => self.number(),
        }
    }

    fn ttl_ms(&mut self) -> u64 {
        TIMES[self.index(TIMES.len())].as_millis() as u64
    }

    /// A range, and its bounds: also empty ones, and prefixes that end in 0xff.
    pub fn range(&mut self, map: &Map) -> (ScanRange, Bytes, Option<Bytes>) {
        let (lo, hi) = (self.key(map), self.key(map));
        match self.below(6) {
            0 => (ScanRange::all(), Bytes::new(), None),
            1 => (ScanRange::starting_at(lo.clone()), lo, None),
            2 => (ScanRange::before(hi.clone()), Bytes::new(), Some(hi)),
            3 => {
                let prefix = lo.slice(..1);
                let end = behind_prefix(&prefix);
                (ScanRange::prefix(prefix.clone()), prefix, end)
            }
            4 => {
                let end = behind_prefix(&lo);
                (ScanRange::prefix(lo.clone()), lo, end)
            }
            _ => (ScanRange::between(lo.clone(), hi.clone()), lo, Some(hi)),
        }
    }

    /// An expectation of a key that is so; two of three hold.
    fn expect(&mut self, known: Option<&Known>) -> Expect {
        let holds = self.below(3) > 0;
        match (known, holds, self.below(3)) {
            (None, true, _) => Expect::Absent,
            (None, false, 0) | (Some(_), true, 0) => Expect::Present,
            (None, false, 1) => Expect::Value(Bytes::new()),
            (None, false, _) => Expect::Version(Version(1)),
            (Some(known), true, 1) => Expect::Value(known.value.clone()),
            (Some(known), true, _) => Expect::Version(known.version),
            (Some(_), false, 0) => Expect::Absent,
            (Some(known), false, 1) => Expect::Value([&known.value[..], b"x"].concat().into()),
            (Some(known), false, _) => Expect::Version(Version(known.version.0 - 1)),
        }
    }

    fn operation(&mut self, key: Bytes) -> Operation {
        match self.below(8) {
            0 | 1 => Operation::Put { key, value: self.value() },
            2 => Operation::PutFor { key, value: self.value(), ttl_ms: self.ttl_ms() },
            3 => Operation::Delete { key },
            4 => Operation::Expire { key, ttl_ms: Some(self.ttl_ms()) },
            5 => Operation::Expire { key, ttl_ms: None },
            _ => Operation::Increment { key, by: self.by() },
        }
    }

    /// A write of any kind but one of a range.
    pub fn write(&mut self, map: &Map) -> Write {
        let key = self.key(map);
        let known = map.rows.get(&key);
        match self.below(10) {
            // Put, put with a time, delete, increment; touch and persist are conditional.
            0..=4 => match self.operation(key) {
                expire @ Operation::Expire { .. } => Write::when(Expect::Present, expire),
                other => Write::of(other),
            },
            5 => Write::when(Expect::Absent, Operation::Put { key, value: self.value() }),
            6 => Write::when(self.expect(known), Operation::Put { key, value: self.value() }),
            7 => Write::when(self.expect(known), Operation::Delete { key }),
            _ => self.batch(map),
        }
    }

    fn batch(&mut self, map: &Map) -> Write {
        let mut write = Write { conditions: Vec::new(), operations: Vec::new() };
        for _ in 0..self.below(4) {
            let key = self.key(map);
            let expect = self.expect(map.rows.get(&key));
            write.conditions.push(Condition { key, expect });
        }
        for _ in 0..1 + self.below(BATCH_MAX) {
            let key = self.key(map);
            // A batch changes a key once.
            if write.operations.iter().all(|operation| *operation.key() != key) {
                write.operations.push(self.operation(key));
            }
        }
        write
    }
}

/// The first key behind all that begin with `prefix`; `None`: there is none.
fn behind_prefix(prefix: &Bytes) -> Option<Bytes> {
    let counted = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix[..=counted].to_vec();
    end[counted] += 1;
    Some(end.into())
}
