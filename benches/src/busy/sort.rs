//! A real job beside the reads: sorts the cluster's own data by value and writes the order back, again and again.
//!
//! Its scans are in the batch class (what scans are by default) and untied; its writes go through the log like any.

use anyhow::{Context, Result};
use bytes::Bytes;
use std::time::Duration;
use tiedkv_client::scan::{ScanOptions, ScanRange};
use tiedkv_client::{Client, ReadOptions, ReadPolicy, WriteOptions};
use tokio::task::JoinSet;

/// Writes that are out at the same time.
const WRITES_OUT_MAX: usize = 32;
/// Longest wait for one write.
const DEADLINE: Duration = Duration::from_secs(10);
/// Keys of a page: small ones take turns with reads more often, as a job that is told to be kind would.
const PAGE_ROWS: u32 = 256;

/// Sorts until it is dropped.
///
/// # Errors
/// When a page cannot be read or a key cannot be written.
///
/// # Cancel safety
/// A part of one order may be written.
pub(super) async fn sort(client: &Client) -> Result<()> {
    loop {
        let read = ReadOptions { policy: Some(ReadPolicy::UNTIED), ..ReadOptions::default() };
        let options = ScanOptions { page_rows: PAGE_ROWS, read, ..ScanOptions::default() };
        let mut scan = client.scan(&ScanRange::prefix("key-"), options)?;
        let mut rows: Vec<(Bytes, Bytes)> = Vec::new();
        while let Some(row) = scan.next().await.context("a page of the sort")? {
            rows.push((row.value, row.key));
        }
        rows.sort_unstable_by(|one, other| other.cmp(one));
        write(client, &rows).await?;
    }
}

async fn write(client: &Client, rows: &[(Bytes, Bytes)]) -> Result<()> {
    let mut out = JoinSet::new();
    for (place, (_, key)) in rows.iter().enumerate() {
        if out.len() >= WRITES_OUT_MAX
            && let Some(written) = out.join_next().await
        {
            written.context("a write of the sort")??;
        }
        let (client, key) = (client.clone(), key.clone());
        out.spawn(async move {
            let options = WriteOptions { deadline: Some(DEADLINE), ..WriteOptions::default() };
            client.put_with(format!("order-{place:08}"), key, options).await
        });
    }
    while let Some(written) = out.join_next().await {
        written.context("a write of the sort")??;
    }
    Ok(())
}
