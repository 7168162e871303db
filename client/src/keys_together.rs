//! Keys of one call that share a copy: which, and how their answers come back.
//!
//! How many may share is [`Gate::keys_together`](crate::gate::Gate::keys_together)'s to say: while ties pay each key
//! is a copy of its own. A copy of many keys is one read for choice, race, budget and counters.

use crate::engine::CallId;
use crate::error::{Cause, Error};
use crate::fanout::Entry;
use crate::operation::Operation;
use crate::options::ReadOptions;
use crate::report::Value;
use crate::tied_read::{OneRead, Whole, read, tied_read};
use crate::view::ViewInner;
use bytes::Bytes;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::limits::KEYS_TOGETHER_BYTES_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::multi_get::Answers;
use tiedkv_protocol::request::ReadOperation;
use tiedkv_protocol::response::Failure;

/// How many keys of a call of `keys` share a copy, if `most` may: as few copies as that allows, of like size. One more
/// would cost its round trip and save less than that.
pub(crate) fn size(keys: usize, most: usize) -> usize {
    keys.div_ceil(keys.div_ceil(most.max(1)).max(1)).max(1)
}

/// The parts of a call, in order: each at most `size` keys that fit one copy.
pub(crate) struct Together<'k> {
    keys: &'k [Bytes],
    next: usize,
    size: usize,
}

impl<'k> Together<'k> {
    pub(crate) fn new(keys: &'k [Bytes], size: usize) -> Self {
        Self { keys, next: 0, size }
    }

    /// No part is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.next >= self.keys.len()
    }
}

impl Iterator for Together<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let rest = self.keys.get(self.next..).filter(|rest| !rest.is_empty())?;
        let mut bytes = 0;
        let fits = rest.iter().take(self.size).take_while(|key| {
            bytes += key.len();
            bytes <= KEYS_TOGETHER_BYTES_MAX
        });
        let part = self.next..self.next + fits.count().max(1);
        self.next = part.end;
        Some(part)
    }
}

/// A part of a call that ended.
pub(crate) struct Part {
    /// Which keys.
    pub(crate) keys: Range<usize>,
    /// What the first of them came to; all of them without an error.
    pub(crate) entries: SmallVec<[Entry; 1]>,
    /// Why the others did not come.
    pub(crate) error: Option<Error>,
}

/// Reads the keys of one part.
///
/// # Cancel safety
/// Dropping the future withdraws every copy.
pub(crate) async fn read_part(
    view: &Arc<ViewInner>,
    keys: &[Bytes],
    part: Range<usize>,
    options: &ReadOptions,
    call: CallId,
    began: Moment,
) -> Part {
    let (operation, call) = (Operation::MultiGet, Some(call));
    let mut done = Part { keys: part.clone(), entries: SmallVec::new(), error: None };
    while let Some(rest) = keys.get(part.start + done.entries.len()..part.end).filter(|rest| !rest.is_empty()) {
        let came = if let [key] = rest {
            let one = OneRead { key: key.clone(), options, operation, call, began };
            let entry = tied_read(view, one).await.map(|read| read.value.map_or(Entry::Absent, Entry::Found));
            entry.map(|entry| done.entries.push(entry))
        } else {
            let what = ReadOperation::MultiGet { keys: rest.to_vec() };
            let whole = Whole { what, options, operation, call, began };
            match read(view, whole).await {
                Ok(answer) => {
                    let came = entries(answer.payload, answer.found.position, rest.len(), &mut done.entries);
                    if let Ok(keys) = came {
                        view.own.lock().engine.keys_served(keys, answer.report.service_time);
                    }
                    came.map(|_| ())
                }
                Err(error) => Err(error),
            }
        };
        if let Err(error) = came {
            done.error = Some(error);
            break;
        }
    }
    done
}

/// Takes the answers of a payload: at least one, at most `asked`. Gives how many.
fn entries(
    payload: Bytes,
    position: tiedkv_protocol::ids::Position,
    asked: usize,
    entries: &mut SmallVec<[Entry; 1]>,
) -> Result<usize, Error> {
    let wrong = |message: String| {
        Error::new(Cause::Node(Failure::new(ErrorCode::Internal, message)), Vec::new(), Duration::ZERO)
    };
    // One value alone may be kept as it came; of many, each one kept would keep all.
    let (mut answers, whole, before) = (Answers::new(payload.clone()), payload.len(), entries.len());
    while let Some(answer) = answers.next_answer().map_err(|bad| wrong(bad.to_string()))? {
        if entries.len() - before == asked {
            return Err(wrong("a node answered more keys than it was asked for".to_owned()));
        }
        entries.push(answer.map_or(Entry::Absent, |answer| {
            let alone = answer.value.len() * 2 > whole;
            let value = if alone { answer.value } else { Bytes::copy_from_slice(&answer.value) };
            let remaining = answer.remaining_ms.map(Duration::from_millis);
            Entry::Found(Value { value, version: answer.version, position, remaining })
        }));
    }
    match entries.len() - before {
        0 => Err(wrong("a node answered none of the keys it was asked for".to_owned())),
        keys => Ok(keys),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_like_size_and_cover_all_keys_once() {
        assert_eq!((size(100, 64), size(100, 20), size(10, 64)), (50, 20, 10));
        assert_eq!((size(10_000, 64), size(500, 1), size(65, 64), size(0, 64), size(3, 0)), (64, 1, 33, 1, 1));
        let keys = vec![Bytes::from_static(b"key"); 100];
        let parts: Vec<_> = Together::new(&keys, 34).collect();
        assert_eq!(parts, [0..34, 34..68, 68..100]);
        let long = vec![Bytes::from(vec![1; 4_096]); 5];
        let parts: Vec<_> = Together::new(&long, 64).collect();
        assert_eq!(parts, [0..2, 2..4, 4..5], "the bytes of the keys have a bound too");
        assert!(Together::new(&[], 3).next().is_none());
    }
}
