//! What a started copy reads: one view, from which value *and* position come; of a page, one chunk at a time. Also
//! whether the replica can serve a copy yet. Knows no tie.

use crate::request::held::HeldCopy;
use crate::request::set_aside::Need;
use crate::storage::state_store::{StateStore, StorageError, Stored, View};
use bytes::Bytes;
use std::sync::Arc;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::Position;
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

/// Whether a copy can be served at this position.
pub fn ready(copy: &HeldCopy, applied: Position) -> Ready {
    let needed = match copy.request.level {
        ReadLevel::Stale { .. } => return Ready::Yes,
        ReadLevel::Session { seen } => seen,
        ReadLevel::Linearizable => {
            match copy.barrier.as_ref().map(|barrier| (barrier.number, barrier.answer.answer())) {
                Some((_, Some(Ok(position)))) => *position,
                Some((_, Some(Err(failure)))) => return Ready::Never(failure.clone()),
                Some((number, None)) => return Ready::NotBefore(Need::Barrier(number)),
                None => {
                    return Ready::Never(Failure::new(
                        ErrorCode::Internal,
                        "a linearizable copy without a barrier",
                    ));
                }
            }
        }
    };
    if needed <= applied { Ready::Yes } else { Ready::NotBefore(Need::Position(needed)) }
}

/// The position a copy needs, as far as it is known: for `Behind`.
pub fn position_needed(copy: &HeldCopy) -> Option<Position> {
    match copy.request.level {
        ReadLevel::Stale { .. } => None,
        ReadLevel::Session { seen } => Some(seen),
        ReadLevel::Linearizable => copy.barrier.as_ref()?.answer.answer()?.as_ref().ok().copied(),
    }
}

/// Reads, or reads the next chunk of a page: `None` when more chunks follow. The value is empty when the key is
/// absent.
///
/// # Errors
/// When the engine cannot read.
pub fn execute(store: &dyn StateStore, copy: &HeldCopy) -> Result<Option<(Found, Bytes)>, StorageError> {
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
