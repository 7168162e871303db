//! What a started copy reads: one view, from which value *and* position come; of a page, one chunk at a time. Also
//! whether the replica can serve a copy yet. Knows no tie.

use crate::request::held::HeldCopy;
use crate::request::set_aside::Need;
use crate::storage::state_store::{StateStore, StorageError, Stored, View};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::multi_get::AnswersWriter;
use tiedkv_protocol::request::{ReadLevel, ReadOperation};
use tiedkv_protocol::response::{Failure, Found};

/// Whether a copy can be served from a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Now.
    Yes,
    /// Not before this.
    NotBefore(Need),
    /// Never: the read barrier failed.
    Never(Failure),
}

/// Entries that a replica may lack of what a copy needs; one that lacks more refuses at once.
pub const BEHIND_MAX: u64 = 10_000;

/// Whether a copy can be served at this position. `age` is how old the state at this position may be at most, if
/// that is known: it is asked only for a copy with a bound of staleness.
pub fn ready(copy: &HeldCopy, applied: Position, age: impl FnOnce() -> Option<Duration>) -> Ready {
    let needed = match copy.request.level {
        ReadLevel::Stale { bound_us: None } => return Ready::Yes,
        ReadLevel::Stale { bound_us: Some(bound) } => {
            if age().is_some_and(|age| age <= Duration::from_micros(bound)) {
                return Ready::Yes;
            }
            match barrier(copy) {
                // Applied, and yet too old: the copy has waited longer than its bound.
                Some(Asked::Answered(position)) if position <= applied => return Ready::Never(too_stale(applied)),
                Some(Asked::Answered(position)) => position,
                Some(Asked::Failed(failure)) => return Ready::Never(failure),
                Some(Asked::Out(number)) => return Ready::NotBefore(Need::Barrier(number)),
                // Fresh enough when it was admitted.
                None => return Ready::Never(too_stale(applied)),
            }
        }
        ReadLevel::Session { seen } => match impossible(copy) {
            Some(failure) if seen > applied => return Ready::Never(failure),
            _ => seen,
        },
        ReadLevel::Linearizable => match barrier(copy) {
            Some(Asked::Answered(position)) => position,
            Some(Asked::Failed(failure)) => return Ready::Never(failure),
            Some(Asked::Out(number)) => return Ready::NotBefore(Need::Barrier(number)),
            None => {
                return Ready::Never(Failure::new(ErrorCode::Internal, "a linearizable copy without a barrier"));
            }
        },
    };
    match far_behind(needed, applied) {
        _ if needed <= applied => Ready::Yes,
        Some(failure) if copy.request.level == ReadLevel::Linearizable => Ready::Never(failure),
        _ => Ready::NotBefore(Need::Position(needed)),
    }
}

/// The refusal of a session whose token is ahead of everything: a barrier that left after the read came knows all that was
/// ever acknowledged, so a greater position is of another life of the cluster.
pub fn impossible(copy: &HeldCopy) -> Option<Failure> {
    let ReadLevel::Session { seen } = copy.request.level else { return None };
    match barrier(copy) {
        Some(Asked::Answered(newest)) if newest < seen => {
            let message = format!("the token says {seen}, but this cluster has not come further than {newest}");
            Some(Failure { need: Some(seen), have: Some(newest), ..Failure::new(ErrorCode::BadToken, message) })
        }
        _ => None,
    }
}

/// What the question of a copy has come to.
enum Asked {
    Out(u64),
    Answered(Position),
    Failed(Failure),
}

fn barrier(copy: &HeldCopy) -> Option<Asked> {
    let barrier = copy.barrier.as_ref()?;
    Some(match barrier.answer.answer() {
        None => Asked::Out(barrier.number),
        Some(Ok(position)) => Asked::Answered(*position),
        Some(Err(failure)) => Asked::Failed(failure.clone()),
    })
}

/// The refusal of a replica that lacks more than it can get while a copy waits.
pub fn far_behind(need: Position, have: Position) -> Option<Failure> {
    let lacks = need.0.saturating_sub(have.0);
    (lacks > BEHIND_MAX).then(|| {
        let message = format!("this replica has applied {have}, the read needs {need}: too far to wait for");
        Failure { need: Some(need), have: Some(have), ..Failure::new(ErrorCode::Behind, message) }
    })
}

/// The refusal of a copy whose bound of staleness cannot be kept.
pub fn too_stale(have: Position) -> Failure {
    let message = "no barrier that was sent within the bound is applied on this replica";
    Failure { have: Some(have), ..Failure::new(ErrorCode::TooStale, message) }
}

/// The position a copy needs, as far as it is known: for `Behind`.
pub fn position_needed(copy: &HeldCopy) -> Option<Position> {
    match copy.request.level {
        ReadLevel::Stale { bound_us: None } => None,
        ReadLevel::Session { seen } => Some(seen),
        ReadLevel::Stale { .. } | ReadLevel::Linearizable => {
            copy.barrier.as_ref()?.answer.answer()?.as_ref().ok().copied()
        }
    }
}

/// Keys that travel together are read so many at a time before it is asked whether to go on.
const KEYS_PER_LOOK: usize = 8;

/// Reads, or reads the next chunk of a page: `None` when more chunks follow. The value is empty when the key is
/// absent. Of keys that travel together the first ones are read, and others while `goes_on`.
///
/// # Errors
/// When the engine cannot read.
pub fn execute(
    store: &dyn StateStore,
    copy: &HeldCopy,
    goes_on: impl Fn() -> bool,
) -> Result<Option<(Found, Bytes)>, StorageError> {
    let level = copy.request.level;
    match &copy.request.operation {
        ReadOperation::Get { key } => {
            let view: Arc<dyn View> = store.view();
            let stored = view.get(key)?;
            let found = Found {
                version: stored.as_ref().map(|stored| stored.version),
                level,
                position: view.position(),
                remaining_ms: stored.as_ref().and_then(|stored| remaining(stored, view.stamp_ms())),
            };
            Ok(Some((found, stored.map_or_else(Bytes::new, |stored| stored.value))))
        }
        ReadOperation::MultiGet { keys } => {
            let view: Arc<dyn View> = store.view();
            let mut answers = AnswersWriter::new(keys.len());
            for (index, key) in keys.iter().enumerate() {
                if index > 0 && index % KEYS_PER_LOOK == 0 && !goes_on() {
                    break;
                }
                let stored = view.get(key)?;
                let stamp_ms = view.stamp_ms();
                let found =
                    stored.as_ref().map(|stored| (&stored.value[..], stored.version, remaining(stored, stamp_ms)));
                if !answers.push(found) {
                    break;
                }
            }
            let found = Found { version: None, level, position: view.position(), remaining_ms: None };
            Ok(Some((found, answers.finish())))
        }
        ReadOperation::Scan(_) => {
            let page = copy.page.as_ref();
            let page = page.ok_or_else(|| StorageError::Failed("a scan was admitted without a page".to_owned()))?;
            let done = page.progress.lock().chunk(store)?;
            Ok(done.map(|done| {
                (Found { version: None, level, position: done.position, remaining_ms: None }, done.payload)
            }))
        }
    }
}

/// Milliseconds of log time that a value has left.
fn remaining(stored: &Stored, stamp_ms: u64) -> Option<u64> {
    stored.expires_ms.map(|expires| expires.saturating_sub(stamp_ms))
}
