//! One frozen state of the fjall store: value and position of a read come from the same one.
//!
//! A view pins what it shows until it is dropped. It writes nothing. A plain `Keyspace::get` reads between the
//! items of a batch; only views are read (a lint forbids the other).

use crate::storage::scan::{KeyRange, SeenRow};
use crate::storage::state_store::{StorageError, Stored, View};
use bytes::Bytes;
use fjall::{Keyspace, Readable, Snapshot};
use std::ops::Bound;
use tiedkv_protocol::ids::{Position, Version};

/// Version of the bytes of a value on disk.
pub const VALUE_FORMAT: u8 = 1;
/// Bytes before the value: format and version.
pub const VALUE_PREFIX_BYTES: usize = 1 + 8;

/// A frozen state of a [`FjallStore`](crate::storage::fjall_store::FjallStore).
pub struct FjallView {
    pub(super) snapshot: Snapshot,
    pub(super) data: Keyspace,
    pub(super) outcomes: Keyspace,
    pub(super) position: Position,
    pub(super) stamp_ms: u64,
    pub(super) generation: u64,
    /// What the state machine keeps beside the position; opaque here.
    pub(super) note: Bytes,
    /// Outcomes up to here are forgotten.
    pub(super) forgotten: Position,
}

/// A value as kept on disk: format, version (little-endian), bytes. Blocks and journal of the engine carry
/// checksums (xxh3), so the value has none of its own.
pub fn encode_value(version: Version, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(VALUE_PREFIX_BYTES + value.len());
    bytes.push(VALUE_FORMAT);
    bytes.extend_from_slice(&version.0.to_le_bytes());
    bytes.extend_from_slice(value);
    bytes
}

/// Splits kept bytes into version and value.
///
/// # Errors
/// When they are of another format or too short.
pub fn decode_value(bytes: &[u8]) -> Result<(Version, &[u8]), StorageError> {
    match bytes.split_first() {
        Some((&VALUE_FORMAT, rest)) => match rest.split_first_chunk::<8>() {
            Some((version, value)) => Ok((Version(u64::from_le_bytes(*version)), value)),
            None => Err(StorageError::Corrupt("a value shorter than its version".to_owned())),
        },
        Some((format, _)) => Err(StorageError::Corrupt(format!("a value of format {format}, want {VALUE_FORMAT}"))),
        None => Err(StorageError::Corrupt("a value without a format".to_owned())),
    }
}

/// What an engine error is to us.
pub(super) fn engine_error(error: fjall::Error) -> StorageError {
    match &error {
        fjall::Error::Io(io) if io.kind() == std::io::ErrorKind::StorageFull => StorageError::Full(io.to_string()),
        _ => StorageError::Failed(error.to_string()),
    }
}

impl View for FjallView {
    fn position(&self) -> Position {
        self.position
    }

    fn stamp_ms(&self) -> u64 {
        self.stamp_ms
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    fn get(&self, key: &[u8]) -> Result<Option<Stored>, StorageError> {
        match self.snapshot.get(&self.data, key).map_err(engine_error)? {
            None => Ok(None),
            Some(bytes) => {
                let (version, value) = decode_value(&bytes)?;
                // Copied: a slice of the engine would pin its whole block.
                Ok(Some(Stored { value: Bytes::copy_from_slice(value), version }))
            }
        }
    }

    fn scan(&self, range: KeyRange<'_>, look: &mut dyn FnMut(SeenRow<'_>) -> bool) -> Result<(), StorageError> {
        if range.is_empty() {
            return Ok(());
        }
        let hi = range.hi.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(range.lo), hi);
        let mut rows = self.snapshot.range::<&[u8], _>(&self.data, bounds);
        while let Some(guard) = if range.reverse { rows.next_back() } else { rows.next() } {
            let (key, bytes) = guard.into_inner().map_err(engine_error)?;
            let (version, value) = decode_value(&bytes)?;
            if !look(SeenRow { key: &key, value, version }) {
                break;
            }
        }
        Ok(())
    }
}

impl FjallView {
    /// What the state machine keeps beside the position.
    pub fn note(&self) -> &Bytes {
        &self.note
    }

    /// Up to where outcomes are forgotten.
    pub fn forgotten(&self) -> Position {
        self.forgotten
    }

    /// All values in order of key, as kept on disk.
    pub fn values(&self) -> impl Iterator<Item = Result<(Bytes, Bytes), StorageError>> + '_ {
        self.snapshot.iter(&self.data).map(pair)
    }

    /// All records of outcomes in order of position; the key is the position, big-endian.
    pub fn outcomes(&self) -> impl Iterator<Item = Result<(Bytes, Bytes), StorageError>> + '_ {
        self.snapshot.range(&self.outcomes, (self.forgotten.0 + 1).to_be_bytes()..).map(pair)
    }
}

fn pair(guard: fjall::Guard) -> Result<(Bytes, Bytes), StorageError> {
    let (key, value) = guard.into_inner().map_err(engine_error)?;
    Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
}
