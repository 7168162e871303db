//! `tiedkv del`: removes one key; an absent key is no error.

use crate::args::{Del, Format};
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::write;
use anyhow::Result;

/// Runs the command.
///
/// # Errors
/// When key or idempotency key are wrong, or the write fails.
pub async fn run(args: &Del, format: Format) -> Result<End> {
    let key = unescape(&args.key).map_err(usage)?;
    let options = write::options(args.idempotency_key.as_deref())?;
    let client = connect(&args.connect).await?;
    let report = client.delete_with(key.clone(), options).await?;
    client.close();
    write::print(&escape(&key), &report, format)?;
    Ok(End::Ok)
}
