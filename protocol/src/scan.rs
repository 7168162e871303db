//! A page of an ordered scan: what is asked, and the bytes of the answer's payload.
//!
//! A scan is a sequence of pages; each is one read (a copy may be tied), seen from one view. Nodes keep nothing
//! between two pages: the next one begins behind the last key that this one looked at. Pages are at most
//! [`SCAN_PAGE_ROWS_MAX`] rows and [`SCAN_PAGE_BYTES_MAX`] bytes; one larger row travels alone.
//!
//! | offset | size | field of the payload |
//! |---|---|---|
//! | 0 | 1 | format, 1 |
//! | 1 | 1 | bit 0: the range may go on behind the last key; other bits 0 |
//! | 2 | 4 | rows, little-endian |
//! | 6 | 2 | length n of the last key, little-endian; 0: none was looked at |
//! | 8 | | the rows, unless they are only counted |
//! | end - n | n | the last key looked at |
//!
//! A row: 2 bytes (bits 0 to 12: length of the key; bit 15: a time to live follows), with values 4 bytes (length of the
//! value), 8 bytes version, if bit 15 is set 8 bytes (milliseconds of log time left), the key, the value. All numbers
//! little-endian.

use crate::error::ErrorCode;
use crate::ids::Version;
use crate::limits::{KEY_BYTES_MAX, SCAN_PAGE_BYTES_MAX, SCAN_PAGE_ROWS_MAX};
use crate::response::Failure;
use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};

/// Version of the payload's bytes.
pub const PAGE_FORMAT: u8 = 1;
const HEAD_BYTES: usize = 8;
const MORE: u8 = 1;
const KEY_BITS: u16 = 0x1fff;
const REMAINING: u16 = 1 << 15;

/// What a page holds of each row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Columns {
    /// Key, version, time to live and value.
    #[default]
    All,
    /// Key, version and time to live.
    Keys,
    /// Nothing: rows are counted.
    Count,
}

/// Asks for one page of the keys in `[lo, hi)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageRequest {
    /// First key that may be in it; empty: from the first key on.
    pub lo: Bytes,
    /// First key behind it; `None`: up to the last key. At or below `lo` the range is empty.
    pub hi: Option<Bytes>,
    /// From the greatest key downwards.
    pub reverse: bool,
    /// What is wanted of each row.
    pub columns: Columns,
    /// Most rows; 1 to [`SCAN_PAGE_ROWS_MAX`].
    pub rows_max: u32,
    /// Most bytes of rows (one larger row travels alone); 1 to [`SCAN_PAGE_BYTES_MAX`].
    pub bytes_max: u32,
}

impl PageRequest {
    /// The key whose lane is charged: where the page begins, as far as that is known.
    pub fn first_key(&self) -> &Bytes {
        match &self.hi {
            Some(hi) if self.reverse => hi,
            _ => &self.lo,
        }
    }

    /// The bounds hold no key.
    pub fn is_empty(&self) -> bool {
        self.hi.as_ref().is_some_and(|hi| *hi <= self.lo)
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// Names the limit and the size that was asked for.
    pub fn check(&self) -> Result<(), Failure> {
        let over = |what: &str, least: usize, most: usize, asked: usize| {
            let message = format!("{what} of a scan must be {least} to {most}, {asked} were asked for");
            Err(Failure::new(ErrorCode::OverLimit, message))
        };
        // A bound behind the longest key is that key and a zero byte.
        for (what, bound) in
            [("bytes of the lower bound", Some(&self.lo)), ("bytes of the upper bound", self.hi.as_ref())]
        {
            match bound.map_or(0, Bytes::len) {
                asked if asked > KEY_BYTES_MAX + 1 => return over(what, 0, KEY_BYTES_MAX + 1, asked),
                _ => {}
            }
        }
        let (rows, bytes) = (self.rows_max as usize, self.bytes_max as usize);
        if !(1..=SCAN_PAGE_ROWS_MAX).contains(&rows) {
            return over("rows of a page", 1, SCAN_PAGE_ROWS_MAX, rows);
        }
        if !(1..=SCAN_PAGE_BYTES_MAX).contains(&bytes) {
            return over("bytes of a page", 1, SCAN_PAGE_BYTES_MAX, bytes);
        }
        Ok(())
    }

    /// What is left behind the last key that a page looked at.
    pub fn after(&self, last: &Bytes) -> Self {
        let mut rest = self.clone();
        if self.reverse {
            rest.hi = Some(last.clone());
        } else {
            rest.lo = after(last);
        }
        rest
    }
}

/// The least key greater than `key`.
pub fn after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

/// The least key that is greater than all keys with this prefix; `None` when there is none (the prefix is empty or all
/// 0xff).
pub fn prefix_end(prefix: &[u8]) -> Option<Bytes> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut end = prefix.get(..=last)?.to_vec();
    if let Some(byte) = end.last_mut() {
        *byte += 1;
    }
    Some(end.into())
}

/// One row of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: Bytes,
    /// The value; empty when only keys were asked for.
    pub value: Bytes,
    /// The position of the write that made it.
    pub version: Version,
    /// Milliseconds of log time until it expires, at the page's position; `None`: it does not.
    pub remaining_ms: Option<u64>,
}

/// Writes a page's payload, row by row.
#[derive(Debug)]
pub struct PageWriter {
    bytes: Vec<u8>,
    rows: u32,
    columns: Columns,
}

impl PageWriter {
    /// An empty page.
    pub fn new(columns: Columns) -> Self {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[0] = PAGE_FORMAT;
        Self { bytes, rows: 0, columns }
    }

    /// Bytes that a row of this key and value takes.
    pub fn row_bytes(&self, key: &[u8], value: &[u8]) -> usize {
        const FIXED: usize = 2 + 8 + 8;
        match self.columns {
            Columns::All => FIXED + 4 + key.len() + value.len(),
            Columns::Keys => FIXED + key.len(),
            Columns::Count => 0,
        }
    }

    /// Adds a row; of the value only what the columns want.
    pub fn push(&mut self, key: &[u8], value: &[u8], version: Version, remaining_ms: Option<u64>) {
        self.rows += 1;
        if self.columns == Columns::Count {
            return;
        }
        let head = key.len() as u16 & KEY_BITS | if remaining_ms.is_some() { REMAINING } else { 0 };
        self.bytes.extend_from_slice(&head.to_le_bytes());
        if self.columns == Columns::All {
            self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        }
        self.bytes.extend_from_slice(&version.0.to_le_bytes());
        if let Some(remaining) = remaining_ms {
            self.bytes.extend_from_slice(&remaining.to_le_bytes());
        }
        self.bytes.extend_from_slice(key);
        if self.columns == Columns::All {
            self.bytes.extend_from_slice(value);
        }
    }

    /// Rows so far.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of rows so far.
    pub fn len(&self) -> usize {
        self.bytes.len() - HEAD_BYTES
    }

    /// No row yet.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The payload. `last`: the last key looked at; `more`: the range may go on behind it.
    pub fn finish(mut self, last: Option<&[u8]>, more: bool) -> Bytes {
        let last = last.unwrap_or_default();
        self.bytes[1] = if more { MORE } else { 0 };
        self.bytes[2..6].copy_from_slice(&self.rows.to_le_bytes());
        self.bytes[6..8].copy_from_slice(&(last.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(last);
        self.bytes.into()
    }
}

/// Why bytes are no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of a scan {0}")]
pub struct BadPage(&'static str);

/// A page as received. Its rows are slices of the payload: a row that is kept keeps the whole page in memory.
#[derive(Clone, Debug)]
pub struct Page {
    rows: u32,
    columns: Columns,
    body: Bytes,
    last: Option<Bytes>,
    more: bool,
}

impl Page {
    /// The page of a payload.
    ///
    /// # Errors
    /// When the head is of another format or longer than the bytes. Rows are looked at when they are taken.
    pub fn decode(mut payload: Bytes, columns: Columns) -> Result<Self, BadPage> {
        if payload.len() < HEAD_BYTES {
            return Err(BadPage("is shorter than its head"));
        }
        if payload[0] != PAGE_FORMAT {
            return Err(BadPage("is of a format that this version does not know"));
        }
        let more = payload[1] & MORE != 0;
        payload.advance(2);
        let (rows, last) = (payload.get_u32_le(), usize::from(payload.get_u16_le()));
        let body = payload.len().checked_sub(last).ok_or(BadPage("is shorter than its last key"))?;
        let last = Some(payload.split_off(body)).filter(|last| !last.is_empty());
        Ok(Self { rows, columns, body: payload, last, more })
    }

    /// Rows of the whole page, also when they are only counted.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// The last key looked at; rows that had expired count.
    pub fn last(&self) -> Option<&Bytes> {
        self.last.as_ref()
    }

    /// The range may go on behind the last key.
    pub fn more(&self) -> bool {
        self.more
    }

    /// Bytes of the rows not taken yet.
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// No row is left to take.
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Takes the next row.
    ///
    /// # Errors
    /// When the bytes are no row.
    pub fn next_row(&mut self) -> Result<Option<Row>, BadPage> {
        if self.body.is_empty() {
            return Ok(None);
        }
        let body = &mut self.body;
        let short = BadPage("ends within a row");
        let head = body.try_get_u16_le().map_err(|_| short)?;
        let value = match self.columns {
            Columns::All => body.try_get_u32_le().map_err(|_| short)? as usize,
            Columns::Keys | Columns::Count => 0,
        };
        let version = Version(body.try_get_u64_le().map_err(|_| short)?);
        let remaining = head & REMAINING != 0;
        let remaining_ms = remaining.then(|| body.try_get_u64_le()).transpose().map_err(|_| short)?;
        let key = usize::from(head & KEY_BITS);
        if body.len() < key || body.len() - key < value {
            return Err(short);
        }
        Ok(Some(Row { key: body.split_to(key), value: body.split_to(value), version, remaining_ms }))
    }
}

#[cfg(test)]
#[path = "scan_test.rs"]
mod tests;
