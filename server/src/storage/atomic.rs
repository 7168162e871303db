//! Judging an atomic write against a state: either its changes, or why none is made.
//!
//! Pure: the state comes in as a function, so that the state machine can show what is not committed yet. The same
//! state gives the same judgement on every replica. Bounds were checked before the write entered the log.

use crate::storage::state_store::{Mutation, StorageError, Stored};
use bytes::Bytes;
use tiedkv_protocol::atomic::{Atomic, Current, Expect, Operation, WriteDetail, number};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Version;
use tiedkv_protocol::limits::INLINE_VALUE_BYTES_MAX;

/// What an atomic write comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// All conditions hold.
    Apply {
        /// The changes, each to a key of its own.
        mutations: Vec<Mutation>,
        /// The new number of each increment, in order.
        numbers: Vec<Option<i64>>,
    },
    /// Nothing is changed.
    Refuse(Unmet),
}

/// Why an atomic write was not applied.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Unmet {
    /// `ConditionFailed`, `NotANumber` or `NumberOverflow`.
    pub code: ErrorCode,
    /// Which condition or operation.
    pub index: u32,
    /// What its key was.
    pub current: Option<Current>,
}

impl Unmet {
    fn new(code: ErrorCode, index: usize, stored: Option<Stored>) -> Self {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        Self { code, index, current: stored.map(current) }
    }

    /// As the payload of an answer.
    pub fn detail(self) -> WriteDetail {
        WriteDetail::Unmet { index: self.index, current: self.current }
    }

    /// For people.
    pub fn message(&self) -> String {
        let index = self.index;
        match self.code {
            ErrorCode::NotANumber => format!("the value that operation {index} increments is no 64-bit number"),
            ErrorCode::NumberOverflow => format!("operation {index} would take its number beyond 64 bits"),
            _ => format!("condition {index} does not hold; nothing was applied"),
        }
    }
}

fn current(stored: Stored) -> Current {
    let value_bytes = stored.value.len() as u64;
    let inline = stored.value.len() <= INLINE_VALUE_BYTES_MAX;
    Current { version: stored.version, value_bytes, value: inline.then_some(stored.value) }
}

/// The write that is judged: what it makes gets its version, times to live begin at its log time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Its version.
    pub version: Version,
    /// Its log time, milliseconds.
    pub stamp_ms: u64,
}

/// Judges `atomic` on `state`, which shows no expired key.
///
/// # Errors
/// When the state cannot be read.
pub fn judge(
    atomic: Atomic,
    now: Now,
    state: impl Fn(&[u8]) -> Result<Option<Stored>, StorageError>,
) -> Result<Judgement, StorageError> {
    for (index, condition) in atomic.conditions.iter().enumerate() {
        let stored = state(&condition.key)?;
        if !holds(&condition.expect, stored.as_ref()) {
            return Ok(Judgement::Refuse(Unmet::new(ErrorCode::ConditionFailed, index, stored)));
        }
    }
    let mut mutations = Vec::with_capacity(atomic.operations.len());
    let mut numbers = Vec::new();
    for (index, operation) in atomic.operations.into_iter().enumerate() {
        let until = |ttl_ms: u64| Some(now.stamp_ms.saturating_add(ttl_ms));
        mutations.push(match operation {
            Operation::Put { key, value } => Mutation::Put { key, value },
            Operation::Delete { key } => Mutation::Delete { key },
            Operation::PutFor { key, value, ttl_ms } => {
                let stored = Stored { value, version: now.version, expires_ms: until(ttl_ms) };
                Mutation::PutUntil { key, stored }
            }
            Operation::Expire { key, ttl_ms } => match state(&key)? {
                Some(stored) => {
                    let stored = Stored { expires_ms: ttl_ms.and_then(until), ..stored };
                    Mutation::PutUntil { key, stored }
                }
                None => continue,
            },
            Operation::Increment { key, by } => {
                let stored = state(&key)?;
                let Some(before) = stored.as_ref().map_or(Some(0), |stored| number(&stored.value)) else {
                    return Ok(Judgement::Refuse(Unmet::new(ErrorCode::NotANumber, index, stored)));
                };
                let Some(after) = before.checked_add(by) else {
                    return Ok(Judgement::Refuse(Unmet::new(ErrorCode::NumberOverflow, index, stored)));
                };
                numbers.push(Some(after));
                let value = Bytes::from(after.to_string());
                match stored.and_then(|stored| stored.expires_ms) {
                    // A number keeps its time to live.
                    Some(expires) => {
                        let stored = Stored { value, version: now.version, expires_ms: Some(expires) };
                        Mutation::PutUntil { key, stored }
                    }
                    None => Mutation::Put { key, value },
                }
            }
        });
    }
    Ok(Judgement::Apply { mutations, numbers })
}

fn holds(expect: &Expect, stored: Option<&Stored>) -> bool {
    match (expect, stored) {
        (Expect::Absent, stored) => stored.is_none(),
        (_, None) => false,
        (Expect::Present, Some(_)) => true,
        (Expect::Value(value), Some(stored)) => *value == stored.value,
        (Expect::Version(version), Some(stored)) => *version == stored.version,
    }
}

/// What a repeat of a write that was applied as `version` is told: the numbers of its increments, where no later write
/// has changed them.
///
/// # Errors
/// When the state cannot be read.
pub fn repeat_applied(
    atomic: &Atomic,
    version: Version,
    state: impl Fn(&[u8]) -> Result<Option<Stored>, StorageError>,
) -> Result<Vec<Option<i64>>, StorageError> {
    let keys = atomic.operations.iter().filter_map(|operation| match operation {
        Operation::Increment { key, .. } => Some(key),
        _ => None,
    });
    keys.map(|key| {
        let stored = state(key)?.filter(|stored| stored.version == version);
        Ok(stored.and_then(|stored| number(&stored.value)))
    })
    .collect()
}

/// What a repeat of a write that was refused with `code` is told: the first condition that does not hold now, else the
/// key of its first condition or operation, with its state now.
///
/// # Errors
/// When the state cannot be read.
pub fn repeat_refused(
    atomic: &Atomic,
    code: ErrorCode,
    now: Now,
    state: impl Fn(&[u8]) -> Result<Option<Stored>, StorageError>,
) -> Result<Unmet, StorageError> {
    if let Judgement::Refuse(unmet) = judge(atomic.clone(), now, &state)?
        && unmet.code == code
    {
        return Ok(unmet);
    }
    let condition = atomic.conditions.first().map(|condition| &condition.key);
    let key = match code {
        ErrorCode::ConditionFailed => condition,
        _ => atomic.operations.first().map(Operation::key),
    };
    let stored = key.map(|key| state(key)).transpose()?.flatten();
    Ok(Unmet::new(code, 0, stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tiedkv_protocol::atomic::Condition;

    fn stored(value: &'static str, version: u64) -> Stored {
        Stored { value: Bytes::from_static(value.as_bytes()), version: Version(version), expires_ms: None }
    }

    fn judged(atomic: Atomic, state: &[(&'static str, Stored)]) -> Judgement {
        let state: BTreeMap<&[u8], Stored> =
            state.iter().map(|(key, stored)| (key.as_bytes(), stored.clone())).collect();
        let now = Now { version: Version(9), stamp_ms: 1_000 };
        judge(atomic, now, |key| Ok(state.get(key).cloned())).unwrap()
    }

    fn when(expect: Expect) -> Atomic {
        Atomic::compare("k".into(), expect, Operation::Delete { key: "k".into() })
    }

    #[test]
    fn each_expectation_holds_exactly_when_it_says() {
        let full = [("k", stored("v", 7))];
        let empty = [("k", stored("", 7))];
        let none = [];
        let applies = |atomic, state: &[_]| matches!(judged(atomic, state), Judgement::Apply { .. });
        let table = [
            (Expect::Absent, [false, false, true]),
            (Expect::Present, [true, true, false]),
            (Expect::Value("v".into()), [true, false, false]),
            (Expect::Value("".into()), [false, true, false]),
            (Expect::Version(Version(7)), [true, true, false]),
            (Expect::Version(Version(6)), [false, false, false]),
        ];
        for (expect, want) in table {
            let got = [&full[..], &empty, &none].map(|state| applies(when(expect.clone()), state));
            assert_eq!(got, want, "{expect:?}");
        }
    }

    #[test]
    fn a_failed_condition_names_itself_and_shows_what_is_there() {
        let mut atomic = when(Expect::Present);
        atomic.conditions.push(Condition { key: "k".into(), expect: Expect::Version(Version(1)) });
        let Judgement::Refuse(unmet) = judged(atomic, &[("k", stored("v", 7))]) else { panic!("applied") };
        assert_eq!((unmet.code, unmet.index), (ErrorCode::ConditionFailed, 1));
        let current = unmet.current.unwrap();
        assert_eq!((current.version, current.value_bytes, current.value), (Version(7), 1, Some("v".into())));
        for (bytes, inline) in [(INLINE_VALUE_BYTES_MAX, true), (INLINE_VALUE_BYTES_MAX + 1, false)] {
            let large = Stored { value: vec![0; bytes].into(), ..stored("", 7) };
            let Judgement::Refuse(unmet) = judged(when(Expect::Absent), &[("k", large)]) else { panic!("applied") };
            let current = unmet.current.unwrap();
            assert_eq!((current.value_bytes, current.value.is_some()), (bytes as u64, inline));
        }
    }

    #[test]
    fn increments_are_exact_or_nothing_is_applied() {
        let add = |by| Atomic {
            conditions: vec![],
            operations: vec![
                Operation::Put { key: "other".into(), value: "x".into() },
                Operation::Increment { key: "n".into(), by },
            ],
        };
        let Judgement::Apply { mutations, numbers } = judged(add(-3), &[]) else { panic!("refused") };
        assert_eq!(numbers, [Some(-3)]);
        assert_eq!(mutations[1], Mutation::Put { key: "n".into(), value: "-3".into() });
        let most = [("n", stored("9223372036854775807", 1))];
        let refusal = |atomic, state: &[_]| match judged(atomic, state) {
            Judgement::Refuse(unmet) => (unmet.code, unmet.index),
            Judgement::Apply { .. } => panic!("applied"),
        };
        assert_eq!(refusal(add(1), &most), (ErrorCode::NumberOverflow, 1));
        assert_eq!(refusal(add(1), &[("n", stored("12x", 1))]), (ErrorCode::NotANumber, 1));
    }

    #[test]
    fn a_time_to_live_begins_at_the_writes_log_time_and_leaves_value_and_version() {
        let of = |operation| Atomic { conditions: vec![], operations: vec![operation] };
        let mutation = |operation, state: &[_]| match judged(of(operation), state) {
            Judgement::Apply { mutations, .. } => mutations.into_iter().next(),
            Judgement::Refuse(unmet) => panic!("{unmet:?}"),
        };
        let until = |stored: Stored, expires_ms| {
            Some(Mutation::PutUntil { key: "k".into(), stored: Stored { expires_ms, ..stored } })
        };
        let put = Operation::PutFor { key: "k".into(), value: "new".into(), ttl_ms: 500 };
        assert_eq!(mutation(put, &[]), until(stored("new", 9), Some(1_500)));
        let expire = |ttl_ms| Operation::Expire { key: "k".into(), ttl_ms };
        let state = [("k", Stored { expires_ms: Some(1_001), ..stored("old", 7) })];
        assert_eq!(mutation(expire(Some(60)), &state), until(stored("old", 7), Some(1_060)));
        assert_eq!(mutation(expire(None), &state), until(stored("old", 7), None));
        assert_eq!(mutation(expire(Some(60)), &[]), None, "an absent key stays absent");
        let number = [("k", Stored { expires_ms: Some(2_000), ..stored("41", 7) })];
        let increment = Operation::Increment { key: "k".into(), by: 1 };
        assert_eq!(mutation(increment, &number), until(stored("42", 9), Some(2_000)), "a number keeps its time");
        let put = Operation::Put { key: "k".into(), value: "new".into() };
        assert_eq!(mutation(put, &state), Some(Mutation::Put { key: "k".into(), value: "new".into() }));
    }
}
