//! One page of a scan in the making: chunk by chunk from one view, within the page's bounds. Pure.
//!
//! The view is taken by the first chunk and kept until the page ends, so a page is consistent in itself, whatever is
//! written meanwhile. Who runs the chunks, and what waits between them, is the request path's job.

use crate::storage::state_store::{StateStore, StorageError, View};
use bytes::Bytes;
use std::sync::Arc;
use tiedkv_protocol::ids::{Position, Version};
use tiedkv_protocol::limits::{SCAN_CHUNK_BYTES_MAX, SCAN_CHUNK_ROWS_MAX, SCAN_PAGE_CHUNKS_MAX};
use tiedkv_protocol::scan::{Columns, PageRequest, PageWriter};

/// Keys from `lo` up to, without, `hi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'a> {
    /// First key that may be in it.
    pub lo: &'a [u8],
    /// First key behind it; `None`: there is no end.
    pub hi: Option<&'a [u8]>,
    /// From the greatest key downwards.
    pub reverse: bool,
}

impl KeyRange<'_> {
    /// It holds no key.
    pub fn is_empty(&self) -> bool {
        self.hi.is_some_and(|hi| hi <= self.lo)
    }
}

/// A key as a scan looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeenRow<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// The position of the write that made it.
    pub version: Version,
    /// The log time at which it expires; `None`: it does not.
    pub expires_ms: Option<u64>,
}

/// A page that is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageDone {
    /// The rows and what is left, as they travel.
    pub payload: Bytes,
    /// The position of the view that all rows come from.
    pub position: Position,
}

/// A page in the making.
pub struct PageProgress {
    /// What is left of the range.
    rest: PageRequest,
    writer: Option<PageWriter>,
    view: Option<Arc<dyn View>>,
    last: Option<Bytes>,
    chunks: u32,
}

impl PageProgress {
    /// Nothing is read yet. The request must have been checked.
    pub fn new(request: PageRequest) -> Self {
        Self { writer: Some(PageWriter::new(request.columns)), rest: request, view: None, last: None, chunks: 0 }
    }

    /// Chunks run so far.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Runs the next chunk; the page, if it was the last one.
    ///
    /// # Errors
    /// When the engine cannot read.
    pub fn chunk(&mut self, store: &dyn StateStore) -> Result<Option<PageDone>, StorageError> {
        let view = Arc::clone(self.view.get_or_insert_with(|| store.view()));
        self.chunks += 1;
        let Some(writer) = self.writer.as_mut() else {
            return Err(StorageError::Failed("a page was read on behind its end".to_owned()));
        };
        let (rows_max, bytes_max) = (self.rest.rows_max, self.rest.bytes_max as usize);
        let mut chunk = Chunk::default();
        let range = KeyRange { lo: &self.rest.lo, hi: self.rest.hi.as_deref(), reverse: self.rest.reverse };
        let stamp_ms = view.stamp_ms();
        if !range.is_empty() {
            view.scan(range, &mut |row: SeenRow<'_>| {
                if row.expires_ms.is_some_and(|expires| expires <= stamp_ms) && !chunk.is_full() {
                    chunk.saw(&row, self.rest.columns);
                    return true;
                }
                let full = writer.rows() >= rows_max
                    || (!writer.is_empty() && writer.len() + writer.row_bytes(row.key, row.value) > bytes_max);
                if full || chunk.is_full() {
                    chunk.ended = if full { Ended::PageFull } else { Ended::ChunkFull };
                    return false;
                }
                let remaining_ms = row.expires_ms.map(|expires| expires.saturating_sub(stamp_ms));
                writer.push(row.key, row.value, row.version, remaining_ms);
                chunk.saw(&row, self.rest.columns);
                true
            })?;
        }
        let more = chunk.ended != Ended::AtTheEnd;
        if let Some(last) = chunk.last {
            let last = Bytes::from(last);
            self.rest = self.rest.after(&last);
            self.last = Some(last);
        }
        if chunk.ended == Ended::ChunkFull && self.chunks < SCAN_PAGE_CHUNKS_MAX {
            return Ok(None);
        }
        let position = view.position();
        self.view = None;
        let payload = self.writer.take().map(|writer| writer.finish(self.last.as_deref(), more));
        Ok(payload.map(|payload| PageDone { payload, position }))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ended {
    #[default]
    AtTheEnd,
    ChunkFull,
    PageFull,
}

/// What one chunk looked at.
#[derive(Default)]
struct Chunk {
    rows: usize,
    bytes: usize,
    last: Option<Vec<u8>>,
    ended: Ended,
}

impl Chunk {
    fn is_full(&self) -> bool {
        self.rows >= SCAN_CHUNK_ROWS_MAX || self.bytes >= SCAN_CHUNK_BYTES_MAX
    }

    fn saw(&mut self, row: &SeenRow<'_>, columns: Columns) {
        self.rows += 1;
        // What is only counted is not copied, but its bytes were read.
        self.bytes += row.key.len() + if columns == Columns::All { row.value.len() } else { 0 };
        let last = self.last.get_or_insert_with(Vec::new);
        last.clear();
        last.extend_from_slice(row.key);
    }
}

#[cfg(test)]
#[path = "scan_test.rs"]
mod tests;
