//! What callers asked, when, and what came back. Times are nanoseconds of one clock, that of the test.

use std::collections::BTreeMap;

/// A value: unique over all writes of a run, so that a read names its write. 0 is never written.
pub type Value = u64;

/// What was asked of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    /// Read it.
    Read,
    /// Set it.
    Put(Value),
    /// Remove it.
    Delete,
    /// Set it if it is this (`None`: absent).
    CompareAndSet(Option<Value>, Value),
}

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Came {
    /// A read found this (`None`: absent).
    Found(Option<Value>),
    /// A write was applied.
    Done,
    /// A conditional write was not applied: the key was this.
    Unmet(Option<Value>),
    /// Not known: it may have been applied at any time after it was asked, or never.
    Unknown,
}

/// How fresh a read was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Freshness {
    /// Not before any write acknowledged before it began.
    Linearizable,
    /// Not before what its session has seen.
    Session,
    /// Any state; with a bound (nanoseconds), not older than that.
    Stale(Option<u64>),
}

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Who called; a session makes one call after the other.
    pub session: u32,
    /// Of which key.
    pub key: u32,
    /// What.
    pub asked: Asked,
    /// When.
    pub began: u64,
    /// When the answer came; of an unknown outcome it means nothing.
    pub ended: u64,
    /// What came back.
    pub came: Came,
    /// How fresh a read was to be; writes are always judged as linearizable.
    pub freshness: Freshness,
    /// The version that was made or found; 0 if there is none.
    pub version: u64,
    /// The position that the answer covers; 0 if none was told.
    pub position: u64,
}

impl Call {
    /// It is a read.
    pub fn is_read(&self) -> bool {
        self.asked == Asked::Read
    }

    /// The value that it made the key's, as far as known.
    pub fn made(&self) -> Option<Option<Value>> {
        match (self.asked, self.came) {
            (Asked::Put(value) | Asked::CompareAndSet(_, value), Came::Done) => Some(Some(value)),
            (Asked::Delete, Came::Done) => Some(None),
            _ => None,
        }
    }
}

/// What is wrong with a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise is broken.
    pub promise: &'static str,
    /// By what.
    pub what: String,
}

/// The calls of each key, in the order given.
pub fn by_key(calls: &[Call]) -> BTreeMap<u32, Vec<Call>> {
    let mut keys: BTreeMap<u32, Vec<Call>> = BTreeMap::new();
    for call in calls {
        keys.entry(call.key).or_default().push(*call);
    }
    keys
}
