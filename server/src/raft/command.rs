//! From a client's write to the command that is replicated, and from what applying it came to back to the answer.
//!
//! Every bound is checked here, before anything enters a log. Pure: the state comes in as a function. Used by the replicated writer and by the local one.

use crate::raft::outcomes::Repeat;
use crate::raft::types::{Answer, Change, Command, WriteKey, digest};
use crate::storage::atomic::{Judgement, Now, judge, repeat_applied, repeat_refused};
use crate::storage::state_store::{Mutation, StorageError, Stored};
use bytes::Bytes;
use tiedkv_protocol::atomic::{Atomic, WriteDetail};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, Position, SHARD_ZERO};
use tiedkv_protocol::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use tiedkv_protocol::request::{WriteOperation, WriteRequest};
use tiedkv_protocol::response::{Failure, Written};

/// What became of a write: the outcome, and the payload that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Good or not.
    pub outcome: Result<Written, Failure>,
    /// A [`WriteDetail`]; often nothing.
    pub detail: Bytes,
}

impl From<Failure> for Settled {
    fn from(failure: Failure) -> Self {
        Self { outcome: Err(failure), detail: Bytes::new() }
    }
}

impl From<Written> for Settled {
    fn from(written: Written) -> Self {
        Self { outcome: Ok(written), detail: Bytes::new() }
    }
}

/// The command of a request, not stamped yet.
///
/// # Errors
/// `NoShard`, `OverLimit` (names the bound and the size) or `Malformed`.
pub fn command(caller: CallerId, request: WriteRequest, payload: Bytes) -> Result<Command, Failure> {
    if request.shard != SHARD_ZERO {
        return Err(Failure::new(ErrorCode::NoShard, format!("shard {} is not here", request.shard)));
    }
    let change = match request.operation {
        WriteOperation::Put { key } => checked(key, payload.len(), |key| Change::Put { key, value: payload })?,
        WriteOperation::Delete { key } => checked(key, 0, |key| Change::Delete { key })?,
        WriteOperation::Atomic => {
            let wrong = |error| Failure::new(ErrorCode::Malformed, format!("the body of an atomic write {error}"));
            let atomic = Atomic::decode(&payload).map_err(wrong)?;
            atomic.check().map_err(|error| Failure::new(ErrorCode::OverLimit, error.to_string()))?;
            Change::Atomic(atomic)
        }
    };
    let key = request.idempotency;
    Ok(Command {
        stamp_ms: 0,
        key: WriteKey { caller, client: key.client, sequence: key.sequence },
        floor: key.floor,
        digest: digest(&change),
        change,
    })
}

fn checked(key: Bytes, value_len: usize, change: impl FnOnce(Bytes) -> Change) -> Result<Change, Failure> {
    let key_len = key.len();
    if key_len == 0 || key_len > KEY_BYTES_MAX || value_len > VALUE_BYTES_MAX {
        let text = format!(
            "key of {key_len} and value of {value_len} bytes; bounds are 1 to {KEY_BYTES_MAX} and {VALUE_BYTES_MAX}"
        );
        return Err(Failure::new(ErrorCode::OverLimit, text));
    }
    Ok(change(key))
}

/// What the caller is told when its command is applied at `position`.
pub fn settled(answer: Answer, position: Position) -> Settled {
    match answer {
        Answer::Applied(version) => Written { version, position, repeated: false }.into(),
        Answer::Repeated(version) => Written { version, position, repeated: true }.into(),
        Answer::Counted { version, repeated, numbers } => {
            let outcome = Ok(Written { version, position, repeated });
            with_detail(outcome, &WriteDetail::Numbers(numbers))
        }
        Answer::Unmet(unmet) => {
            let mut failure = Failure::new(unmet.code, unmet.message());
            failure.have = Some(position);
            with_detail(Err(failure), &unmet.detail())
        }
        Answer::Refused(code) => {
            let text = match code {
                ErrorCode::KeyReused => "the idempotency key was used for another write; not applied",
                _ => "outcomes as old as this idempotency key's floor are forgotten; not applied now",
            };
            let mut failure = Failure::new(code, text);
            // Floor for a fresh key.
            failure.have = Some(position);
            failure.into()
        }
        Answer::None => Failure::new(ErrorCode::Internal, "a write became an entry of another kind").into(),
    }
}

/// What an atomic write that was never seen comes to: its changes (none if the state refuses it) and the answer.
///
/// # Errors
/// When the state cannot be read.
pub fn judged(
    atomic: Atomic,
    now: Now,
    state: impl Fn(&[u8]) -> Result<Option<Stored>, StorageError>,
) -> Result<(Vec<Mutation>, Answer), StorageError> {
    let version = now.version;
    Ok(match judge(atomic, now, state)? {
        Judgement::Refuse(unmet) => (Vec::new(), Answer::Unmet(unmet)),
        Judgement::Apply { mutations, numbers } if numbers.is_empty() => (mutations, Answer::Applied(version)),
        Judgement::Apply { mutations, numbers } => {
            (mutations, Answer::Counted { version, repeated: false, numbers })
        }
    })
}

/// The answer to a change that was decided before.
///
/// # Errors
/// When the state cannot be read.
pub fn repeated(
    change: &Change,
    repeat: Repeat,
    now: Now,
    state: impl Fn(&[u8]) -> Result<Option<Stored>, StorageError>,
) -> Result<Answer, StorageError> {
    match (repeat, change) {
        (Repeat::Applied(version), Change::Atomic(atomic)) => {
            let numbers = repeat_applied(atomic, version, state)?;
            Ok(match numbers.is_empty() {
                true => Answer::Repeated(version),
                false => Answer::Counted { version, repeated: true, numbers },
            })
        }
        (Repeat::Applied(version), _) => Ok(Answer::Repeated(version)),
        (Repeat::Refused(code), Change::Atomic(atomic)) => {
            repeat_refused(atomic, code, now, state).map(Answer::Unmet)
        }
        // Nothing else can be refused by the state.
        (Repeat::Refused(code), _) => Ok(Answer::Refused(code)),
    }
}

fn with_detail(outcome: Result<Written, Failure>, detail: &WriteDetail) -> Settled {
    match detail.encode() {
        Ok(detail) => Settled { outcome, detail },
        // Cannot happen: at most 1,000 numbers, or one value of 64 KiB. The outcome stands without it.
        Err(_) => Settled { outcome, detail: Bytes::new() },
    }
}
