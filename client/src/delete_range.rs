//! Removes every key of a range: pages of keys, deleted in batches, a bounded number at a time.
//!
//! Each batch is atomic, the whole is not: it removes what its pages show, at the level of the scan, and a key written
//! meanwhile may stay. An error leaves what was removed removed; calling again goes on.

use crate::error::Error;
use crate::options::WriteOptions;
use crate::scan::{ScanOptions, ScanRange, scan};
use crate::view::ViewInner;
use crate::write::write_atomic;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::atomic::{Atomic, Operation};
use tokio::task::JoinSet;

/// Keys of one batch.
const BATCH_KEYS: usize = 128;
/// Batches that are out at the same time.
const OUT_MAX: usize = 4;
/// Longest wait for one batch, retries included.
const DEADLINE: Duration = Duration::from_secs(10);

type Out = JoinSet<Result<u64, Error>>;

/// Removes the keys of `range`; `progress` is told how many are gone. Returns how many there were.
///
/// # Cancel safety
/// Some keys may be removed; batches that are out may still be applied.
pub(crate) async fn delete_range(
    view: &Arc<ViewInner>,
    range: &ScanRange,
    options: ScanOptions,
    mut progress: impl FnMut(u64),
) -> Result<u64, Error> {
    let mut keys = scan(view, range, ScanOptions { keys_only: true, ..options })?;
    let (mut out, mut batch, mut gone) = (Out::new(), Vec::new(), 0);
    while let Some(row) = keys.next().await? {
        // Copied: a slice would keep its whole page in memory.
        batch.push(Operation::Delete { key: Bytes::copy_from_slice(&row.key) });
        if batch.len() < BATCH_KEYS {
            continue;
        }
        while out.len() >= OUT_MAX {
            gone += one_done(&mut out).await?;
            progress(gone);
        }
        out.spawn(delete(view.clone(), std::mem::take(&mut batch)));
    }
    if !batch.is_empty() {
        out.spawn(delete(view.clone(), batch));
    }
    while !out.is_empty() {
        gone += one_done(&mut out).await?;
        progress(gone);
    }
    Ok(gone)
}

async fn delete(view: Arc<ViewInner>, operations: Vec<Operation>) -> Result<u64, Error> {
    let count = operations.len() as u64;
    let options = WriteOptions { deadline: Some(DEADLINE), ..WriteOptions::default() };
    write_atomic(&view, &Atomic { conditions: Vec::new(), operations }, options).await.map(|_| count)
}

async fn one_done(out: &mut Out) -> Result<u64, Error> {
    match out.join_next().await {
        Some(Ok(deleted)) => deleted,
        Some(Err(_)) => Err(Error::internal("a batch of deletes was lost: its task panicked")),
        None => Ok(0),
    }
}
