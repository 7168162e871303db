//! What the random operations of [`crate::data_model`] are held against: a sorted map, and what each write makes of it.
//! The rules of `docs/data-model.md` in other words: it shares no code with the nodes, and sends nothing.

use bytes::Bytes;
use std::collections::BTreeMap;
use tiedkv_client::Expect;
use tiedkv_protocol::atomic::{Condition, Operation};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Version;

/// What the map knows of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    pub value: Bytes,
    pub version: Version,
    /// As it was set; far longer than the test.
    pub ttl_ms: Option<u64>,
}

impl Known {
    /// Whether this is what was found.
    pub fn is(&self, value: &Bytes, version: Version, remaining_ms: Option<u64>) -> bool {
        // A test does not last half of a time to live: what is left tells one time from another.
        let remains = match (self.ttl_ms, remaining_ms) {
            (Some(ttl), Some(left)) => left <= ttl && left > ttl / 2,
            (ttl, left) => ttl.is_none() && left.is_none(),
        };
        self.value == *value && self.version == version && remains
    }
}

/// A write of any kind: all its operations if all its conditions hold.
#[derive(Clone, Debug)]
pub struct Write {
    pub conditions: Vec<Condition>,
    pub operations: Vec<Operation>,
}

impl Write {
    /// One operation.
    pub fn of(operation: Operation) -> Self {
        Self { conditions: Vec::new(), operations: vec![operation] }
    }

    /// One operation, if its key is so.
    pub fn when(expect: Expect, operation: Operation) -> Self {
        let key = operation.key().clone();
        Self { conditions: vec![Condition { key, expect }], operations: vec![operation] }
    }
}

/// What a write comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With the new numbers of its increments.
    Applied { numbers: Vec<i64> },
    /// The first condition that does not hold, and what its key is.
    Unmet { condition: usize, current: Option<(Version, Bytes)> },
    /// An increment of what is no number, or past an end.
    Refused(ErrorCode),
}

/// Rows in their order.
#[derive(Debug)]
pub struct Map {
    pub rows: BTreeMap<Bytes, Known>,
    /// Of the last write that was applied.
    pub last: Version,
}

impl Map {
    /// Without rows.
    pub fn empty() -> Self {
        Self { rows: BTreeMap::new(), last: Version(0) }
    }

    /// The rows from `lo` up to, without, `hi`.
    pub fn inside(&self, lo: &Bytes, hi: Option<&Bytes>) -> Vec<(Bytes, Known)> {
        let inside = |key: &Bytes| key >= lo && hi.is_none_or(|hi| key < hi);
        let rows = self.rows.iter().filter(|(key, _)| inside(key));
        rows.map(|(key, known)| (key.clone(), known.clone())).collect()
    }

    /// What a write comes to here.
    pub fn judge(&self, write: &Write) -> Outcome {
        for (index, condition) in write.conditions.iter().enumerate() {
            let known = self.rows.get(&condition.key);
            if !holds(&condition.expect, known) {
                let current = known.map(|known| (known.version, known.value.clone()));
                return Outcome::Unmet { condition: index, current };
            }
        }
        let mut numbers = Vec::new();
        for operation in &write.operations {
            let Operation::Increment { key, by } = operation else { continue };
            let before = self.rows.get(key).map_or(Some(0), |known| number(&known.value));
            match before.map(|before| before.checked_add(*by)) {
                None => return Outcome::Refused(ErrorCode::NotANumber),
                Some(None) => return Outcome::Refused(ErrorCode::NumberOverflow),
                Some(Some(sum)) => numbers.push(sum),
            }
        }
        Outcome::Applied { numbers }
    }

    /// Makes the changes of a write that was applied as `version`.
    pub fn apply(&mut self, write: &Write, version: Version) {
        for operation in &write.operations {
            match operation {
                Operation::Put { key, value } => self.set(key, value.clone(), version, None),
                Operation::PutFor { key, value, ttl_ms } => self.set(key, value.clone(), version, Some(*ttl_ms)),
                Operation::Delete { key } => drop(self.rows.remove(key)),
                Operation::Increment { key, by } => {
                    // It leaves the time.
                    let known = self.rows.get(key);
                    let ttl_ms = known.and_then(|known| known.ttl_ms);
                    let before = known.map_or(0, |known| number(&known.value).unwrap());
                    self.set(key, Bytes::from((before + by).to_string()), version, ttl_ms);
                }
                Operation::Expire { key, ttl_ms } => {
                    // Value and version stay.
                    if let Some(known) = self.rows.get_mut(key) {
                        known.ttl_ms = *ttl_ms;
                    }
                }
            }
        }
        self.last = version;
    }

    fn set(&mut self, key: &Bytes, value: Bytes, version: Version, ttl_ms: Option<u64>) {
        self.rows.insert(key.clone(), Known { value, version, ttl_ms });
    }
}

fn holds(expect: &Expect, known: Option<&Known>) -> bool {
    match expect {
        Expect::Absent => known.is_none(),
        Expect::Present => known.is_some(),
        Expect::Value(value) => known.is_some_and(|known| known.value == *value),
        Expect::Version(version) => known.is_some_and(|known| known.version == *version),
    }
}

/// Decimal text of 64 bits with sign: no plus, no leading zeros, no minus zero.
fn number(value: &Bytes) -> Option<i64> {
    let text = std::str::from_utf8(value).ok()?;
    let digits = text.strip_prefix('-').unwrap_or(text);
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    let shortest = text == "0" || !digits.starts_with('0');
    if plain && shortest { text.parse().ok() } else { None }
}
