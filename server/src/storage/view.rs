//! One frozen state of the fjall store: value and position of a read come from the same one.
//!
//! A view pins what it shows until it is dropped. It writes nothing. A plain `Keyspace::get` reads between the
//! items of a batch; only views are read (a lint forbids the other).

use crate::storage::expiry::Expiry;
use crate::storage::hot_rows::{AsOf, HotRows};
use crate::storage::scan::{KeyRange, SeenRow};
use crate::storage::spaces::Spaces;
use crate::storage::state_store::{StorageError, Stored, View};
use crate::storage::unlocked::{Bounds, Rows, Unlocked};
use bytes::Bytes;
use fjall::{Readable, Slice, Snapshot};
use std::ops::{Bound, RangeInclusive};
use std::sync::Arc;
use tiedkv_protocol::ids::{Position, Version};

/// Version of the bytes of a value on disk.
pub const VALUE_FORMAT: u8 = 1;
/// The same of a value that expires.
pub const VALUE_FORMAT_EXPIRING: u8 = 2;
/// Bytes before the value: format and version.
pub const VALUE_PREFIX_BYTES: usize = 1 + 8;

/// A frozen state of a [`FjallStore`](crate::storage::fjall_store::FjallStore).
pub struct FjallView {
    pub(super) snapshot: Snapshot,
    /// The values, to be read without the engine's lock: while it writes tables, or soon will.
    pub(super) unlocked: Option<Unlocked>,
    pub(super) spaces: Spaces,
    pub(super) rows: Arc<HotRows>,
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

/// As [`encode_value`]; of a value that expires the format is another and the log time of its end (little-endian)
/// follows the version.
pub fn encode_stored(stored: &Stored) -> Vec<u8> {
    let Some(expires_ms) = stored.expires_ms else { return encode_value(stored.version, &stored.value) };
    let mut bytes = Vec::with_capacity(VALUE_PREFIX_BYTES + 8 + stored.value.len());
    bytes.push(VALUE_FORMAT_EXPIRING);
    bytes.extend_from_slice(&stored.version.0.to_le_bytes());
    bytes.extend_from_slice(&expires_ms.to_le_bytes());
    bytes.extend_from_slice(&stored.value);
    bytes
}

/// A value as kept on disk, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptValue<'a> {
    /// The position of the write that made it.
    pub version: Version,
    /// The log time at which it expires.
    pub expires_ms: Option<u64>,
    /// The bytes.
    pub value: &'a [u8],
}

/// Takes kept bytes apart.
///
/// # Errors
/// When they are of another format or too short.
pub fn decode_value(bytes: &[u8]) -> Result<KeptValue<'_>, StorageError> {
    let short = || StorageError::Corrupt("a value shorter than its version".to_owned());
    let (format, rest) =
        bytes.split_first().ok_or_else(|| StorageError::Corrupt("a value without a format".to_owned()))?;
    let (version, rest) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let version = Version(u64::from_le_bytes(*version));
    match *format {
        VALUE_FORMAT => Ok(KeptValue { version, expires_ms: None, value: rest }),
        VALUE_FORMAT_EXPIRING => {
            let (expires, value) = rest.split_first_chunk::<8>().ok_or_else(short)?;
            Ok(KeptValue { version, expires_ms: Some(u64::from_le_bytes(*expires)), value })
        }
        format => Err(StorageError::Corrupt(format!("a value of format {format}, want {VALUE_FORMAT}"))),
    }
}

/// What the engine says of each write after one of its own failed in the background, whose error it keeps to itself.
pub const POISONED: &str = "the storage engine takes no more writes since one of its own writes or fsyncs failed; the kernel's log names the disk's error";

/// What an engine error is to us.
pub(super) fn engine_error(error: fjall::Error) -> StorageError {
    match &error {
        fjall::Error::Poisoned => StorageError::Failed(POISONED.to_owned()),
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
        let as_of = AsOf { generation: self.generation, position: self.position };
        let mut found = self.rows.get(key, as_of);
        if found.is_none() {
            found = self.stored(key)?;
            if let Some(stored) = &found {
                self.rows.keep(key, stored, as_of);
            }
        }
        Ok(found.filter(|stored| stored.alive(self.stamp_ms)))
    }

    fn scan(&self, range: KeyRange<'_>, look: &mut dyn FnMut(SeenRow<'_>) -> bool) -> Result<(), StorageError> {
        if range.is_empty() {
            return Ok(());
        }
        let hi = range.hi.map_or(Bound::Unbounded, |hi| Bound::Excluded(Slice::from(hi)));
        let bounds: Bounds = (Bound::Included(Slice::from(range.lo)), hi);
        let mut rows: Rows<'_> = match self.unlocked() {
            Some(unlocked) => unlocked.rows(&bounds),
            None => Box::new(self.snapshot.range(&self.spaces.data, bounds).map(fjall::Guard::into_inner)),
        };
        while let Some(row) = if range.reverse { rows.next_back() } else { rows.next() } {
            let (key, bytes) = row.map_err(engine_error)?;
            let KeptValue { version, expires_ms, value } = decode_value(&bytes)?;
            if !look(SeenRow { key: &key, value, version, expires_ms }) {
                break;
            }
        }
        Ok(())
    }
}

impl FjallView {
    fn unlocked(&self) -> Option<&Unlocked> {
        self.unlocked.as_ref().filter(|unlocked| unlocked.pays())
    }

    /// What is kept of a key, expired or not.
    ///
    /// # Errors
    /// When the engine cannot read.
    pub fn stored(&self, key: &[u8]) -> Result<Option<Stored>, StorageError> {
        let kept = match self.unlocked() {
            Some(unlocked) => unlocked.get(key),
            None => self.snapshot.get(&self.spaces.data, key),
        };
        Self::taken_apart(kept)
    }

    /// As [`stored`](Self::stored), for the one thread that applies: it needs the engine's lock for its next view in any
    /// case, so it reads the cheap way, always.
    ///
    /// # Errors
    /// As [`stored`](Self::stored).
    pub fn stored_for_apply(&self, key: &[u8]) -> Result<Option<Stored>, StorageError> {
        Self::taken_apart(self.snapshot.get(&self.spaces.data, key))
    }

    fn taken_apart(kept: Result<Option<Slice>, fjall::Error>) -> Result<Option<Stored>, StorageError> {
        let Some(bytes) = kept.map_err(engine_error)? else { return Ok(None) };
        let KeptValue { version, expires_ms, value } = decode_value(&bytes)?;
        // Copied: a slice of the engine would pin its whole block.
        Ok(Some(Stored { value: Bytes::copy_from_slice(value), version, expires_ms }))
    }

    /// When keys expire, earliest first, behind `after` and up to and with `until_ms`. An entry may be of a key that was
    /// changed since.
    pub fn expiries(
        &self,
        after: Option<&Expiry>,
        until_ms: u64,
    ) -> impl Iterator<Item = Result<Expiry, StorageError>> + '_ {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.encode()));
        let until = match until_ms.checked_add(1) {
            // Nothing lies behind a bound that is below where it begins; the engine would not like to be asked.
            Some(until) => Bound::Excluded(until.to_be_bytes().to_vec().max(after.map_or(Vec::new(), |after| {
                let mut bytes = after.encode();
                bytes.push(0);
                bytes
            }))),
            None => Bound::Unbounded,
        };
        self.snapshot.range::<Vec<u8>, _>(&self.spaces.expiry, (from, until)).map(|guard| {
            let key = guard.key().map_err(engine_error)?;
            Expiry::decode(&key).ok_or_else(|| StorageError::Corrupt("an expiry shorter than its time".to_owned()))
        })
    }

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
        self.snapshot.iter(&self.spaces.data).map(pair)
    }

    /// The records of outcomes between two positions, in order; the key is the position, big-endian. Those up to
    /// [`FjallView::forgotten`] may or may not be there.
    pub fn outcomes(
        &self,
        within: RangeInclusive<u64>,
    ) -> impl Iterator<Item = Result<(Bytes, Bytes), StorageError>> + '_ {
        let (first, last) = within.into_inner();
        self.snapshot.range(&self.spaces.outcomes, first.to_be_bytes()..=last.to_be_bytes()).map(pair)
    }

    /// The records of all outcomes that are not forgotten.
    pub fn kept_outcomes(&self) -> impl Iterator<Item = Result<(Bytes, Bytes), StorageError>> + '_ {
        self.outcomes(self.forgotten.0 + 1..=u64::MAX)
    }
}

fn pair(guard: fjall::Guard) -> Result<(Bytes, Bytes), StorageError> {
    let (key, value) = guard.into_inner().map_err(engine_error)?;
    Ok((Bytes::copy_from_slice(&key), Bytes::copy_from_slice(&value)))
}
