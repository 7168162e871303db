//! Keys of one call that travel in one copy: what is asked, and the bytes of the answer's payload.
//!
//! Where no tie pays, a copy per key costs far more than the key. Keys that go to the same node share one then: one
//! frame, one place in a lane, one view. A node answers the first keys, as many as fit
//! [`INLINE_VALUE_BYTES_MAX`] (at least one) and its time allows; the others are asked for again.
//!
//! The payload is one entry per key answered, in the order asked for:
//!
//! | size | field |
//! |---|---|
//! | 1 | 0: absent; 1: a value; 2: a value that expires |
//! | 8 | version (not if absent) |
//! | 8 | milliseconds of log time left (only if it expires) |
//! | 4 | length n of the value (not if absent) |
//! | n | the value |
//!
//! All numbers little-endian.

use crate::error::ErrorCode;
use crate::ids::Version;
use crate::limits::{INLINE_VALUE_BYTES_MAX, KEY_BYTES_MAX, KEYS_TOGETHER_BYTES_MAX, KEYS_TOGETHER_MAX};
use crate::response::Failure;
use bytes::{Buf, Bytes};

const ABSENT: u8 = 0;
const FOUND: u8 = 1;
const EXPIRES: u8 = 2;

/// Checks the keys of one copy.
///
/// # Errors
/// Names the limit and the size that was asked for.
pub fn check(keys: &[Bytes]) -> Result<(), Failure> {
    let over = |message| Err(Failure::new(ErrorCode::OverLimit, message));
    if !(1..=KEYS_TOGETHER_MAX).contains(&keys.len()) {
        return over(format!("a copy asks for 1 to {KEYS_TOGETHER_MAX} keys, this one for {}", keys.len()));
    }
    let bytes: usize = keys.iter().map(Bytes::len).sum();
    if bytes > KEYS_TOGETHER_BYTES_MAX {
        return over(format!(
            "the keys of a copy have at most {KEYS_TOGETHER_BYTES_MAX} bytes, these have {bytes}"
        ));
    }
    match keys.iter().map(Bytes::len).find(|bytes| !(1..=KEY_BYTES_MAX).contains(bytes)) {
        Some(bytes) => over(format!("a key has 1 to {KEY_BYTES_MAX} bytes, this one has {bytes}")),
        None => Ok(()),
    }
}

/// What became of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The bytes.
    pub value: Bytes,
    /// The position of the write that made it.
    pub version: Version,
    /// Log time that it has left, milliseconds; `None`: it does not expire.
    pub remaining_ms: Option<u64>,
}

/// Writes the payload.
#[derive(Debug, Default)]
pub struct AnswersWriter {
    bytes: Vec<u8>,
    keys: usize,
}

impl AnswersWriter {
    /// For the answers to so many keys: space is taken once, for values of like length.
    pub fn new(keys: usize) -> Self {
        Self { bytes: Vec::new(), keys }
    }

    /// Adds what became of the next key; false if it does not fit beside those before it, and nothing was added.
    #[must_use = "one that does not fit is not answered"]
    pub fn push(&mut self, found: Option<(&[u8], Version, Option<u64>)>) -> bool {
        let Some((value, version, remaining_ms)) = found else {
            self.bytes.push(ABSENT);
            return true;
        };
        const FIXED: usize = 1 + 8 + 8 + 4;
        if self.bytes.capacity() < FIXED + value.len() {
            let all = self.keys.saturating_mul(FIXED + value.len());
            self.bytes.reserve(all.min(INLINE_VALUE_BYTES_MAX));
        }
        if !self.bytes.is_empty() && self.bytes.len() + FIXED + value.len() > INLINE_VALUE_BYTES_MAX {
            return false;
        }
        self.bytes.push(if remaining_ms.is_some() { EXPIRES } else { FOUND });
        self.bytes.extend_from_slice(&version.0.to_le_bytes());
        if let Some(remaining) = remaining_ms {
            self.bytes.extend_from_slice(&remaining.to_le_bytes());
        }
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
        true
    }

    /// The payload.
    pub fn finish(self) -> Bytes {
        self.bytes.into()
    }
}

/// Why bytes are no answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answers to many keys {0}")]
pub struct BadAnswers(&'static str);

/// Reads the payload, one key after the other. A value is a slice of the payload: one that is kept keeps it whole.
#[derive(Clone, Debug)]
pub struct Answers {
    body: Bytes,
}

impl Answers {
    /// The answers of a payload. Entries are looked at when they are taken.
    pub fn new(payload: Bytes) -> Self {
        Self { body: payload }
    }

    /// Takes what became of the next key: `Some(None)` when it is absent, `None` when no more keys were answered.
    ///
    /// # Errors
    /// When the bytes are no entry.
    pub fn next_answer(&mut self) -> Result<Option<Option<Answer>>, BadAnswers> {
        let body = &mut self.body;
        let short = BadAnswers("end within an entry");
        let Ok(head) = body.try_get_u8() else { return Ok(None) };
        let expires = match head {
            ABSENT => return Ok(Some(None)),
            FOUND => false,
            EXPIRES => true,
            _ => return Err(BadAnswers("have an entry of a kind that this version does not know")),
        };
        let version = Version(body.try_get_u64_le().map_err(|_| short)?);
        let remaining_ms = expires.then(|| body.try_get_u64_le()).transpose().map_err(|_| short)?;
        let bytes = body.try_get_u32_le().map_err(|_| short)? as usize;
        if body.len() < bytes {
            return Err(short);
        }
        Ok(Some(Some(Answer { value: body.split_to(bytes), version, remaining_ms })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(count: usize, bytes: usize) -> Vec<Bytes> {
        vec![Bytes::from(vec![b'k'; bytes]); count]
    }

    #[test]
    fn limits_are_named() {
        assert_eq!(check(&keys(KEYS_TOGETHER_MAX, 100)), Ok(()));
        let message = |keys: &[Bytes]| check(keys).unwrap_err().message;
        assert!(message(&[]).contains("1 to 64 keys, this one for 0"));
        assert!(message(&keys(KEYS_TOGETHER_MAX + 1, 1)).contains("this one for 65"));
        assert!(message(&keys(3, 4_000)).contains("at most 8192 bytes, these have 12000"));
        assert!(message(&keys(1, 5_000)).contains("a key has 1 to 4096 bytes, this one has 5000"));
        assert!(message(&[Bytes::new()]).contains("this one has 0"));
    }

    #[test]
    fn what_is_written_is_read_and_absent_is_not_empty() {
        let mut writer = AnswersWriter::default();
        assert!(writer.push(Some((b"one", Version(7), None))));
        assert!(writer.push(None));
        assert!(writer.push(Some((b"", Version(8), Some(1_500)))));
        let mut answers = Answers::new(writer.finish());
        let one = Answer { value: Bytes::from_static(b"one"), version: Version(7), remaining_ms: None };
        let empty = Answer { value: Bytes::new(), version: Version(8), remaining_ms: Some(1_500) };
        assert_eq!(answers.next_answer(), Ok(Some(Some(one))));
        assert_eq!(answers.next_answer(), Ok(Some(None)));
        assert_eq!(answers.next_answer(), Ok(Some(Some(empty))));
        assert_eq!(answers.next_answer(), Ok(None));
    }

    #[test]
    fn a_large_value_travels_alone_and_what_does_not_fit_is_not_begun() {
        let large = vec![1; 3 * INLINE_VALUE_BYTES_MAX];
        let mut writer = AnswersWriter::default();
        assert!(writer.push(Some((&large, Version(1), None))));
        assert!(!writer.push(Some((b"x", Version(2), None))));
        let mut answers = Answers::new(writer.finish());
        assert_eq!(answers.next_answer().unwrap().unwrap().unwrap().value.len(), large.len());
        assert_eq!(answers.next_answer(), Ok(None));
    }

    #[test]
    fn bytes_that_are_no_answers_are_refused_wherever_they_end() {
        let mut writer = AnswersWriter::default();
        assert!(writer.push(Some((b"value", Version(7), Some(3)))));
        let payload = writer.finish();
        for end in 1..payload.len() {
            assert!(Answers::new(payload.slice(..end)).next_answer().is_err(), "{end} bytes");
        }
        assert!(Answers::new(Bytes::from_static(&[9])).next_answer().unwrap_err().to_string().contains("kind"));
    }
}
