//! Conditional and atomic writes: conditions that must all hold and operations that are applied together or not at
//! all. Also what a node says about one that was not applied.
//!
//! The body travels in the payload of a [`WriteRequest`](crate::request::WriteRequest), what follows from it in the
//! payload of the [`WriteReply`](crate::response::WriteReply); both by [`crate::codec`]. Judging is the node's job.

use crate::codec::{self, CodecError};
use crate::ids::Version;
use crate::limits::{
    BATCH_BYTES_MAX, BATCH_OPERATIONS_MAX, KEY_BYTES_MAX, TTL_MS_MAX, TTL_MS_MIN, VALUE_BYTES_MAX,
};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a key must be for a condition to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// It is not there.
    Absent,
    /// It is there, whatever its value.
    Present,
    /// It has exactly this value; an empty value is not an absent key.
    Value(Bytes),
    /// Its value was made by this write.
    Version(Version),
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// 1 to 4096 bytes.
    pub key: Bytes,
    /// What it must be.
    pub expect: Expect,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Sets a key.
    Put {
        /// 1 to 4096 bytes.
        key: Bytes,
        /// At most 8 MiB.
        value: Bytes,
    },
    /// Removes a key; an absent one is no error.
    Delete {
        /// 1 to 4096 bytes.
        key: Bytes,
    },
    /// Adds to a number kept as decimal text (`-?[0-9]+`, no leading zeros, 64 bits signed); an absent key is 0.
    Increment {
        /// 1 to 4096 bytes.
        key: Bytes,
        /// What is added.
        by: i64,
    },
    /// Sets a key that expires.
    PutFor {
        /// 1 to 4096 bytes.
        key: Bytes,
        /// At most 8 MiB.
        value: Bytes,
        /// Milliseconds of log time from this write on.
        ttl_ms: u64,
    },
    /// Sets when a key expires, or that it does not; its value and version stay. An absent key stays absent.
    Expire {
        /// 1 to 4096 bytes.
        key: Bytes,
        /// Milliseconds of log time from this write on; `None`: never.
        ttl_ms: Option<u64>,
    },
}

impl Operation {
    /// The key that is changed.
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. }
            | Self::Delete { key }
            | Self::Increment { key, .. }
            | Self::PutFor { key, .. }
            | Self::Expire { key, .. } => key,
        }
    }

    /// The value that it carries.
    fn value(&self) -> Option<&Bytes> {
        match self {
            Self::Put { value, .. } | Self::PutFor { value, .. } => Some(value),
            Self::Delete { .. } | Self::Increment { .. } | Self::Expire { .. } => None,
        }
    }

    /// The time to live that it carries.
    pub fn ttl_ms(&self) -> Option<u64> {
        match self {
            Self::PutFor { ttl_ms, .. } => Some(*ttl_ms),
            Self::Expire { ttl_ms, .. } => *ttl_ms,
            Self::Put { .. } | Self::Delete { .. } | Self::Increment { .. } => None,
        }
    }
}

/// Conditions and operations of one atomic write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Atomic {
    /// All must hold, on the state before the write.
    pub conditions: Vec<Condition>,
    /// All are applied, each to a key of its own.
    pub operations: Vec<Operation>,
}

/// A bound or rule that an atomic write breaks; nothing of it was sent or applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AtomicError {
    /// No operation, or too many operations or conditions.
    #[error("{what}: {count}; the bounds are {least} and {BATCH_OPERATIONS_MAX}")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// Fewest allowed.
        least: usize,
    },
    /// A key is empty or too long.
    #[error("a key of {0} bytes; the bounds are 1 and {KEY_BYTES_MAX}")]
    Key(usize),
    /// A value is too long.
    #[error("a value of {0} bytes; at most {VALUE_BYTES_MAX} are allowed")]
    Value(usize),
    /// All that the bound counts is too long together; see [`Atomic::check`].
    #[error("a batch of {0} bytes; at most {BATCH_BYTES_MAX} are allowed")]
    Bytes(usize),
    /// A time to live is out of its range.
    #[error("a time to live of {0} ms; the bounds are {TTL_MS_MIN} and {TTL_MS_MAX}")]
    Ttl(u64),
    /// Two operations name one key.
    #[error("two operations of a batch change the same key of {0} bytes; one batch changes a key once")]
    Twice(usize),
}

impl Atomic {
    /// One condition and one operation: compare and set.
    pub fn compare(key: Bytes, expect: Expect, operation: Operation) -> Self {
        Self { conditions: vec![Condition { key, expect }], operations: vec![operation] }
    }

    /// Bytes of all keys and values.
    pub fn bytes(&self) -> usize {
        let conditions = self.conditions.iter().map(|condition| {
            condition.key.len()
                + match &condition.expect {
                    Expect::Value(value) => value.len(),
                    _ => 0,
                }
        });
        let operations =
            self.operations.iter().map(|operation| operation.key().len() + operation.value().map_or(0, Bytes::len));
        conditions.chain(operations).sum()
    }

    fn keys(&self) -> impl Iterator<Item = &Bytes> {
        let conditions = self.conditions.iter().map(|condition| &condition.key);
        conditions.chain(self.operations.iter().map(Operation::key))
    }

    /// What the bound of a batch counts. One operation under at most one condition is held to the bounds of a put: its
    /// keys do not count, as frames have room for two of the longest beside the longest value.
    fn counted_bytes(&self) -> usize {
        let all = self.bytes();
        if self.operations.len() > 1 || self.conditions.len() > 1 {
            return all;
        }
        all - self.keys().map(Bytes::len).sum::<usize>()
    }

    /// Checks every bound and that no key is changed twice. Of one operation under at most one condition only the values
    /// count for the bound of a batch, so that it takes a value as long as that of a put; a value that is compared
    /// counts with it. Of all others keys and values count.
    ///
    /// # Errors
    /// Names the first bound that is broken, and the size.
    pub fn check(&self) -> Result<(), AtomicError> {
        for (what, count, least) in [
            ("operations in a batch", self.operations.len(), 1),
            ("conditions of a batch", self.conditions.len(), 0),
        ] {
            if !(least..=BATCH_OPERATIONS_MAX).contains(&count) {
                return Err(AtomicError::Count { what, count, least });
            }
        }
        if let Some(key) = self.keys().find(|key| key.is_empty() || key.len() > KEY_BYTES_MAX) {
            return Err(AtomicError::Key(key.len()));
        }
        for operation in &self.operations {
            match (operation.value(), operation.ttl_ms()) {
                (Some(value), _) if value.len() > VALUE_BYTES_MAX => return Err(AtomicError::Value(value.len())),
                (_, Some(ttl)) if !(TTL_MS_MIN..=TTL_MS_MAX).contains(&ttl) => return Err(AtomicError::Ttl(ttl)),
                _ => {}
            }
        }
        let counted = self.counted_bytes();
        if counted > BATCH_BYTES_MAX {
            return Err(AtomicError::Bytes(counted));
        }
        if self.operations.len() > 1 {
            let mut seen = BTreeSet::new();
            if let Some(twice) = self.operations.iter().map(Operation::key).find(|key| !seen.insert(&key[..])) {
                return Err(AtomicError::Twice(twice.len()));
            }
        }
        Ok(())
    }

    /// The bytes of the payload.
    ///
    /// # Errors
    /// When it is over the codec's bound; never after [`check`](Self::check).
    pub fn encode(&self) -> Result<Bytes, CodecError> {
        codec::encode_large(self).map(Bytes::from)
    }

    /// The atomic write of a payload.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        codec::decode_large(bytes)
    }
}

/// What a key was when a condition or operation did not fit it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Current {
    /// The write that made the value.
    pub version: Version,
    /// Its length in bytes.
    pub value_bytes: u64,
    /// The value; `None` if it is over [`INLINE_VALUE_BYTES_MAX`](crate::limits::INLINE_VALUE_BYTES_MAX).
    pub value: Option<Bytes>,
}

/// What follows the header of a write's answer in its payload; an empty payload says nothing more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteDetail {
    /// What became of each increment, in order; `None` where a later write has changed the number before this
    /// repeated answer.
    Numbers(Vec<Option<i64>>),
    /// The first condition that did not hold, or the increment that could not be made.
    Unmet {
        /// Its index among the conditions, or among the operations.
        index: u32,
        /// What the key was; `None`: absent. Of a repeated answer: what it is now.
        current: Option<Current>,
    },
}

impl WriteDetail {
    /// The bytes of the payload.
    ///
    /// # Errors
    /// When it is over the codec's bound.
    pub fn encode(&self) -> Result<Bytes, CodecError> {
        codec::encode_large(self).map(Bytes::from)
    }

    /// The detail of a payload; `None` if it is empty.
    ///
    /// # Errors
    /// When the bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, CodecError> {
        if bytes.is_empty() { Ok(None) } else { codec::decode_large(bytes).map(Some) }
    }
}

/// The number of a value: decimal text as an increment writes it, nothing else.
pub fn number(value: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(value).ok()?;
    let number: i64 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str) -> Operation {
        Operation::Put { key: Bytes::copy_from_slice(key.as_bytes()), value: Bytes::new() }
    }

    #[test]
    fn every_bound_is_a_typed_error() {
        let of = |operations| Atomic { conditions: Vec::new(), operations }.check();
        assert!(matches!(of(vec![]), Err(AtomicError::Count { count: 0, .. })));
        let many = |count: usize| (0..count).map(|number| put(&number.to_string())).collect::<Vec<_>>();
        assert_eq!(of(many(BATCH_OPERATIONS_MAX)), Ok(()));
        assert!(matches!(of(many(BATCH_OPERATIONS_MAX + 1)), Err(AtomicError::Count { count: 1_001, .. })));
        assert_eq!(of(vec![put("")]), Err(AtomicError::Key(0)));
        assert_eq!(of(vec![put(&"k".repeat(KEY_BYTES_MAX + 1))]), Err(AtomicError::Key(KEY_BYTES_MAX + 1)));
        assert_eq!(of(vec![put("a"), put("a")]), Err(AtomicError::Twice(1)));
        let large = |bytes| Operation::Put { key: "k".into(), value: vec![0; bytes].into() };
        assert!(matches!(of(vec![large(VALUE_BYTES_MAX + 1)]), Err(AtomicError::Value(_))));
        assert_eq!(of(vec![large(BATCH_BYTES_MAX - 1)]), Ok(()));
        assert_eq!(of(vec![large(BATCH_BYTES_MAX - 1), put("b")]), Err(AtomicError::Bytes(BATCH_BYTES_MAX + 1)));
        let ttl = |ttl_ms| Operation::Expire { key: "k".into(), ttl_ms };
        assert_eq!(of(vec![ttl(Some(0))]), Err(AtomicError::Ttl(0)));
        assert_eq!(of(vec![ttl(Some(TTL_MS_MAX + 1))]), Err(AtomicError::Ttl(TTL_MS_MAX + 1)));
        assert_eq!(of(vec![ttl(Some(TTL_MS_MAX))]), Ok(()));
        assert_eq!(of(vec![ttl(None)]), Ok(()));
        let both = Atomic::compare("k".into(), Expect::Value(vec![0; BATCH_BYTES_MAX + 1].into()), put("k"));
        assert!(matches!(both.check(), Err(AtomicError::Bytes(_))));
    }

    #[test]
    fn a_batch_has_at_most_a_thousand_conditions_and_changes_a_key_once() {
        let of = |count: usize| {
            let conditions = (0..count)
                .map(|index| Condition { key: Bytes::from(index.to_string()), expect: Expect::Absent })
                .collect();
            Atomic { conditions, operations: vec![put("a")] }.check()
        };
        assert_eq!(of(BATCH_OPERATIONS_MAX), Ok(()));
        let over = AtomicError::Count { what: "conditions of a batch", count: BATCH_OPERATIONS_MAX + 1, least: 0 };
        assert_eq!(of(BATCH_OPERATIONS_MAX + 1), Err(over));
        let operations = vec![put("a"), put("b"), Operation::Delete { key: "a".into() }];
        assert_eq!(Atomic { conditions: Vec::new(), operations }.check(), Err(AtomicError::Twice(1)));
    }

    #[test]
    fn one_operation_takes_the_longest_value_beside_the_longest_keys() {
        let key = || Bytes::from(vec![b'k'; KEY_BYTES_MAX]);
        let value = |bytes: usize| Bytes::from(vec![7; bytes]);
        let put_for = |bytes: usize| Operation::PutFor { key: key(), value: value(bytes), ttl_ms: TTL_MS_MAX };
        let alone = |bytes: usize| Atomic { conditions: Vec::new(), operations: vec![put_for(bytes)] }.check();
        assert_eq!(alone(VALUE_BYTES_MAX), Ok(()));
        let over = alone(VALUE_BYTES_MAX + 1).unwrap_err();
        assert_eq!(over, AtomicError::Value(VALUE_BYTES_MAX + 1));
        assert!(over.to_string().contains(&VALUE_BYTES_MAX.to_string()), "{over}");

        let longest = [Expect::Absent, Expect::Version(Version(u64::MAX)), Expect::Value(Bytes::new())];
        for expect in longest {
            let atomic = Atomic::compare(key(), expect, put_for(VALUE_BYTES_MAX));
            assert_eq!(atomic.check(), Ok(()));
            let body = atomic.encode().unwrap();
            assert!(body.len() + crate::limits::HEADER_BYTES_MAX + 64 <= crate::limits::FRAME_BYTES_MAX);
        }
        let delete = Operation::Delete { key: key() };
        assert_eq!(Atomic::compare(key(), Expect::Value(value(VALUE_BYTES_MAX)), delete).check(), Ok(()));

        // A value that is compared counts with the new one: both may not be the longest.
        let of = |old: usize, new: usize| Atomic::compare(key(), Expect::Value(value(old)), put_for(new)).check();
        assert_eq!(of(BATCH_BYTES_MAX - 5, 5), Ok(()));
        assert_eq!(of(BATCH_BYTES_MAX - 5, 6), Err(AtomicError::Bytes(BATCH_BYTES_MAX + 1)));
        // So do the keys where there are more than two.
        let mut two = Atomic::compare(key(), Expect::Present, put_for(VALUE_BYTES_MAX));
        two.conditions.push(Condition { key: "other".into(), expect: Expect::Absent });
        assert_eq!(two.check(), Err(AtomicError::Bytes(two.bytes())));
    }

    #[test]
    fn numbers_are_exact() {
        for (text, want) in [("0", Some(0)), ("-7", Some(-7)), ("9223372036854775807", Some(i64::MAX))] {
            assert_eq!(number(text.as_bytes()), want);
        }
        for text in ["", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "x"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_whole_batch_fits_a_frame() {
        let keys = (0..BATCH_OPERATIONS_MAX).map(|number| Bytes::from(format!("{number:04}")));
        let value = Bytes::from(vec![7; (BATCH_BYTES_MAX / BATCH_OPERATIONS_MAX) - 8]);
        let operations = keys.clone().map(|key| Operation::Put { key, value: value.clone() }).collect();
        let conditions = keys.map(|key| Condition { key, expect: Expect::Absent }).collect();
        let atomic = Atomic { conditions, operations };
        atomic.check().unwrap();
        let body = atomic.encode().unwrap();
        assert!(body.len() + crate::limits::HEADER_BYTES_MAX + 64 <= crate::limits::FRAME_BYTES_MAX);
        assert_eq!(Atomic::decode(&body), Ok(atomic));
    }
}
