//! The records of outcomes as the store keeps them: all of them at a start, one of them for a repeat that comes late.
//!
//! What is kept and for how long is `outcomes`' to decide.

use crate::raft::outcomes::{OutcomeLimits, Outcomes, Record};
use crate::raft::types::WriteKey;
use crate::storage::state_store::StorageError;
use crate::storage::view::FjallView;
use bytes::Bytes;
use std::ops::RangeInclusive;
use tiedkv_protocol::ids::Position;

/// The outcomes that a view holds.
///
/// # Errors
/// Those of the engine; `Corrupt` for a record of another format.
pub(super) fn restore(view: &FjallView, limits: OutcomeLimits) -> Result<Outcomes, StorageError> {
    let mut outcomes = Outcomes::new(limits, view.forgotten());
    for item in view.kept_outcomes() {
        let (position, record) = decoded(item)?;
        outcomes.restore(position, &record);
    }
    Ok(outcomes)
}

/// The record of a key, if it lies between these positions.
///
/// # Errors
/// As [`restore`].
pub(super) fn outcome_of(
    view: &FjallView,
    key: &WriteKey,
    within: RangeInclusive<u64>,
) -> Result<Option<(Position, Record)>, StorageError> {
    let mut records = view.outcomes(within).map(decoded);
    records.find(|item| item.as_ref().map_or(true, |(_, record)| record.key == *key)).transpose()
}

fn decoded(item: Result<(Bytes, Bytes), StorageError>) -> Result<(Position, Record), StorageError> {
    let (key, value) = item?;
    let position = key.as_ref().try_into().map(u64::from_be_bytes);
    match (position, Record::decode(&value)) {
        (Ok(position), Some(record)) => Ok((Position(position), record)),
        _ => Err(StorageError::Corrupt("an outcome of an unknown format".to_owned())),
    }
}
