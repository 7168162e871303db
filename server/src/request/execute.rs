//! What a started copy reads: one view, from which value *and* position come. Also whether the replica can serve a
//! copy yet. Takes no lock and knows no tie.

use crate::request::held::HeldCopy;
use crate::request::set_aside::Need;
use crate::storage::state_store::{StateStore, StorageError, View};
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

/// Reads. The value is empty when the key is absent.
///
/// # Errors
/// When the engine cannot read.
pub fn execute(store: &dyn StateStore, copy: &HeldCopy) -> Result<(Found, Bytes), StorageError> {
    let view: Arc<dyn View> = store.view();
    let ReadOperation::Get { key } = &copy.request.operation;
    let stored = view.get(key)?;
    let found =
        Found { version: stored.as_ref().map(|s| s.version), level: copy.request.level, position: view.position() };
    Ok((found, stored.map_or_else(Bytes::new, |stored| stored.value)))
}
