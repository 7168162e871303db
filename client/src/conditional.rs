//! Conditional and atomic writes as callers see them: what they ask, and what they get back. Plain data; sending is
//! done by [`crate::write`], judging by the nodes.

use crate::report::WriteReport;
use bytes::Bytes;
use tiedkv_protocol::atomic::{Atomic, Condition, Current, Expect, Operation};
use tiedkv_protocol::ids::{NodeId, PositionToken};

/// Conditions and operations that are applied together or not at all. At most 1,000 of each, at least one operation,
/// keys and values together at most 8 MiB (of one operation under at most one condition the values alone), no key changed
/// twice; reaching a bound is an error before anything is sent.
///
/// ```no_run
/// use tiedkv_client::{Batch, Client, Conditional, Expect};
///
/// # async fn example(client: Client) -> Result<(), tiedkv_client::Error> {
/// let batch = Batch::new().when("lock", Expect::Absent).put("lock", "me").increment("taken", 1);
/// match client.batch(batch).await? {
///     Conditional::Applied(applied) => println!("taken {:?} times", applied.numbers),
///     Conditional::Unmet(unmet) => println!("held: {:?}", unmet.current),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    atomic: Atomic,
}

impl Batch {
    /// Without conditions and operations.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition; all are judged on the state before the batch.
    #[must_use]
    pub fn when(mut self, key: impl Into<Bytes>, expect: Expect) -> Self {
        self.atomic.conditions.push(Condition { key: key.into(), expect });
        self
    }

    /// Sets a key.
    #[must_use]
    pub fn put(self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        self.add(Operation::Put { key: key.into(), value: value.into() })
    }

    /// Removes a key; an absent one is no error.
    #[must_use]
    pub fn delete(self, key: impl Into<Bytes>) -> Self {
        self.add(Operation::Delete { key: key.into() })
    }

    /// Adds to a number; a key that holds none is an error of the whole batch.
    #[must_use]
    pub fn increment(self, key: impl Into<Bytes>, by: i64) -> Self {
        self.add(Operation::Increment { key: key.into(), by })
    }

    pub(crate) fn add(mut self, operation: Operation) -> Self {
        self.atomic.operations.push(operation);
        self
    }

    pub(crate) fn into_atomic(self) -> Atomic {
        self.atomic
    }
}

/// What became of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditional {
    /// All conditions held.
    Applied(Applied),
    /// One did not: nothing was applied.
    Unmet(Unmet),
}

impl Conditional {
    /// The report, if it was applied.
    pub fn applied(self) -> Option<WriteReport> {
        match self {
            Self::Applied(applied) => Some(applied.report),
            Self::Unmet(_) => None,
        }
    }
}

/// A conditional write that was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// As for any write.
    pub report: WriteReport,
    /// The new number of each increment, in order; `None` where this answers a repeat and a later write has changed it.
    pub numbers: Vec<Option<i64>>,
}

/// A conditional write that was not applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// Who answered.
    pub node: NodeId,
    /// Index of the first condition that did not hold.
    pub condition: usize,
    /// What its key was; `None`: absent. Values over 64 KiB are left out. Of a repeated call: what it is now.
    pub current: Option<Current>,
    /// Covers the state that was judged.
    pub token: PositionToken,
    /// Times it was sent.
    pub tries: u32,
}

/// What an increment made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The new number; `None` if this answers a repeat and a later write has changed it.
    pub number: Option<i64>,
    /// As for any write.
    pub report: WriteReport,
}
