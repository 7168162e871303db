//! The bytes of a snapshot on its way between two nodes, and the staging of one that arrives.
//!
//! | part | bytes |
//! |---|---|
//! | block | u32 LE length of what follows, u8 kind, body |
//! | kind 1, header | u8 format 1, then bincode [`Header`] |
//! | kind 2, values | records: u32 LE key length, u32 LE value length, key, value (as on disk, ascending keys) |
//! | kind 3, outcomes | records as above; the key is the position, big-endian (ascending) |
//! | kind 4, end | u64 LE values, u64 LE outcomes, 32 bytes SHA-256 of all blocks before |
//!
//! A snapshot is staged in fresh keyspaces while it arrives, so memory holds a few blocks. Opening streams and
//! deciding to send is `network`'s job.

use crate::raft::state_machine::Note;
use crate::raft::types::SnapshotMeta;
use crate::storage::fjall_store::{FjallStore, Install};
use crate::storage::state_store::{StorageError, View};
use crate::storage::view::FjallView;
use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tiedkv_protocol::codec;
use tiedkv_protocol::hello::Ceiling;
use tiedkv_protocol::ids::Position;
use tiedkv_protocol::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Version of the stream.
pub const SNAPSHOT_FORMAT: u8 = 1;
/// Blocks are closed at about this size; a single large value makes a larger one.
pub const BLOCK_BYTES: usize = 256 * 1024;
/// Longest block that is accepted.
pub const BLOCK_BYTES_MAX: usize = BLOCK_BYTES + VALUE_BYTES_MAX + KEY_BYTES_MAX + 1024;

const HEADER: u8 = 1;
const VALUES: u8 = 2;
const OUTCOMES: u8 = 3;
const END: u8 = 4;

/// What a snapshot is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Last entry and membership.
    pub meta: SnapshotMeta,
    /// Log time there.
    pub stamp_ms: u64,
    /// Outcomes up to here are forgotten.
    pub forgotten: u64,
    /// The operator's ceiling of read policies.
    pub ceiling: Ceiling,
}

/// Writes the blocks of `view` one after the other into `sink`, which may block; it ends the stream by `false`.
///
/// # Errors
/// When the view cannot be read.
pub fn write_blocks(
    view: &FjallView,
    meta: &SnapshotMeta,
    mut sink: impl FnMut(Bytes) -> bool,
) -> Result<(), StorageError> {
    let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
    let header = Header {
        meta: meta.clone(),
        stamp_ms: view.stamp_ms(),
        forgotten: view.forgotten().0,
        ceiling: Note::decode(view.note())?.ceiling,
    };
    let mut body = vec![SNAPSHOT_FORMAT];
    body.extend(codec::encode_large(&header).map_err(|error| StorageError::Failed(error.to_string()))?);
    if !sink(block(HEADER, &body, Some(&mut hash))) {
        return Ok(());
    }
    let Some(values) = write_records(VALUES, view.values(), &mut hash, &mut sink)? else { return Ok(()) };
    let Some(outcomes) = write_records(OUTCOMES, view.kept_outcomes(), &mut hash, &mut sink)? else {
        return Ok(());
    };
    let mut end = Vec::with_capacity(48);
    end.extend_from_slice(&values.to_le_bytes());
    end.extend_from_slice(&outcomes.to_le_bytes());
    end.extend_from_slice(hash.finish().as_ref());
    sink(block(END, &end, None));
    Ok(())
}

fn write_records(
    kind: u8,
    records: impl Iterator<Item = Result<(Bytes, Bytes), StorageError>>,
    hash: &mut ring::digest::Context,
    sink: &mut impl FnMut(Bytes) -> bool,
) -> Result<Option<u64>, StorageError> {
    let mut body = Vec::with_capacity(BLOCK_BYTES + 4096);
    let mut count = 0;
    for record in records {
        let (key, value) = record?;
        body.extend_from_slice(&(key.len() as u32).to_le_bytes());
        body.extend_from_slice(&(value.len() as u32).to_le_bytes());
        body.extend_from_slice(&key);
        body.extend_from_slice(&value);
        count += 1;
        if body.len() >= BLOCK_BYTES {
            if !sink(block(kind, &body, Some(hash))) {
                return Ok(None);
            }
            body.clear();
        }
    }
    if !body.is_empty() && !sink(block(kind, &body, Some(hash))) {
        return Ok(None);
    }
    Ok(Some(count))
}

fn block(kind: u8, body: &[u8], hash: Option<&mut ring::digest::Context>) -> Bytes {
    let mut bytes = Vec::with_capacity(5 + body.len());
    bytes.extend_from_slice(&(body.len() as u32 + 1).to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(body);
    if let Some(hash) = hash {
        hash.update(&bytes);
    }
    bytes.into()
}

/// A snapshot that arrived whole and is not visible yet. Dropped, nothing of it stays.
pub struct Staged {
    pub(super) install: Install,
    /// What it is of.
    pub meta: SnapshotMeta,
    /// Log time.
    pub stamp_ms: u64,
    /// Outcomes up to here are forgotten.
    pub forgotten: Position,
    /// The operator's ceiling.
    pub ceiling: Ceiling,
}

impl Staged {
    /// A copy of a view of the same or another store.
    ///
    /// # Errors
    /// When either store fails.
    pub fn copy_of(store: &Arc<FjallStore>, view: &FjallView) -> Result<Self, StorageError> {
        let install = store.begin_install()?;
        install.write_values(view.values())?;
        install.write_outcomes(view.kept_outcomes())?;
        let note = Note::decode(view.note())?;
        Ok(Self {
            install,
            meta: note.snapshot_meta(),
            stamp_ms: view.stamp_ms(),
            forgotten: view.forgotten(),
            ceiling: note.ceiling,
        })
    }
}

/// Stages the snapshot whose blocks (without their length fields) `next` yields; `None` from it is a cut stream.
/// Blocks the thread while it waits for `next`.
///
/// # Errors
/// When the stream is cut, damaged or of another format, or the store cannot write; nothing stays then.
pub fn stage(store: &Arc<FjallStore>, next: impl FnMut() -> Option<Bytes>) -> Result<Staged, StorageError> {
    let mut blocks = Blocks { next, hash: Some(ring::digest::Context::new(&ring::digest::SHA256)), ahead: None };
    let header = blocks.header()?;
    let install = store.begin_install()?;
    let values = install.write_values(Records { blocks: &mut blocks, kind: VALUES, body: Bytes::new() })?;
    let outcomes = install.write_outcomes(Records { blocks: &mut blocks, kind: OUTCOMES, body: Bytes::new() })?;
    blocks.end(values, outcomes)?;
    Ok(Staged {
        install,
        meta: header.meta,
        stamp_ms: header.stamp_ms,
        forgotten: Position(header.forgotten),
        ceiling: header.ceiling,
    })
}

struct Blocks<N> {
    next: N,
    hash: Option<ring::digest::Context>,
    ahead: Option<(u8, Bytes)>,
}

fn corrupt(text: &str) -> StorageError {
    StorageError::Corrupt(format!("a snapshot stream {text}"))
}

impl<N: FnMut() -> Option<Bytes>> Blocks<N> {
    fn peek(&mut self) -> Result<&(u8, Bytes), StorageError> {
        if self.ahead.is_none() {
            let mut bytes = (self.next)().ok_or_else(|| corrupt("was cut"))?;
            if bytes.is_empty() {
                return Err(corrupt("has an empty block"));
            }
            let kind = bytes[0];
            if let Some(hash) = self.hash.as_mut().filter(|_| kind != END) {
                hash.update(&(bytes.len() as u32).to_le_bytes());
                hash.update(&bytes);
            }
            bytes.advance(1);
            self.ahead = Some((kind, bytes));
        }
        self.ahead.as_ref().ok_or_else(|| corrupt("was cut"))
    }

    fn header(&mut self) -> Result<Header, StorageError> {
        self.peek()?;
        let Some((HEADER, body)) = self.ahead.take() else { return Err(corrupt("does not begin with its header")) };
        match body.split_first() {
            Some((&SNAPSHOT_FORMAT, rest)) => {
                codec::decode_large(rest).map_err(|error| corrupt(&format!("has a header that {error}")))
            }
            Some((format, _)) => Err(corrupt(&format!("has format {format}, want {SNAPSHOT_FORMAT}"))),
            None => Err(corrupt("has an empty header")),
        }
    }

    fn end(&mut self, values: u64, outcomes: u64) -> Result<(), StorageError> {
        self.peek()?;
        let Some((END, body)) = self.ahead.take() else { return Err(corrupt("has blocks in a wrong order")) };
        let mut want = Vec::with_capacity(48);
        want.extend_from_slice(&values.to_le_bytes());
        want.extend_from_slice(&outcomes.to_le_bytes());
        let hash = self.hash.take().ok_or_else(|| corrupt("has two ends"))?;
        want.extend_from_slice(hash.finish().as_ref());
        if body == want { Ok(()) } else { Err(corrupt("does not match its counts and checksum")) }
    }
}

struct Records<'a, N> {
    blocks: &'a mut Blocks<N>,
    kind: u8,
    body: Bytes,
}

impl<N: FnMut() -> Option<Bytes>> Iterator for Records<'_, N> {
    type Item = Result<(Bytes, Bytes), StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.body.is_empty() {
            match self.blocks.peek() {
                Err(error) => return Some(Err(error)),
                Ok((kind, _)) if *kind != self.kind => return None,
                Ok(_) => self.body = self.blocks.ahead.take()?.1,
            }
        }
        Some(record(&mut self.body).ok_or_else(|| corrupt("has a damaged record")))
    }
}

fn record(body: &mut Bytes) -> Option<(Bytes, Bytes)> {
    let (key, rest) = body.split_first_chunk::<4>()?;
    let (value, _) = rest.split_first_chunk::<4>()?;
    let (key, value) = (u32::from_le_bytes(*key) as usize, u32::from_le_bytes(*value) as usize);
    if key.checked_add(value)?.checked_add(8)? > body.len() {
        return None;
    }
    body.advance(8);
    Some((body.split_to(key), body.split_to(value)))
}

#[cfg(test)]
#[path = "snapshot_test.rs"]
mod tests;
