//! `tiedkv del`: removes one key (an absent one is no error), or every key of a range, with progress.

use crate::args::{Del, Format};
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::{output, progress, range, write};
use anyhow::{Result, anyhow};
use serde_json::json;
use tiedkv_client::ScanOptions;

/// Runs the command.
///
/// # Errors
/// When key, range or idempotency key are wrong, or a write fails.
pub async fn run(args: &Del, format: Format) -> Result<End> {
    let Some(text) = &args.key else { return whole_range(args, format).await };
    let key = unescape(text).map_err(usage)?;
    let options = write::options(args.idempotency_key.as_deref())?;
    let client = connect(&args.connect).await?;
    let report = client.delete_with(key.clone(), options).await?;
    client.close();
    write::print(&escape(&key), &report, format)?;
    Ok(End::Ok)
}

async fn whole_range(args: &Del, format: Format) -> Result<End> {
    if args.idempotency_key.is_some() {
        return Err(usage(anyhow!("an idempotency key names one write; a range is many")));
    }
    let range = range::parse(&args.range)?;
    let client = connect(&args.connect).await?;
    let bar = progress::work(Some(client.count(&range).await?), "keys");
    let removed = client.delete_range(&range, ScanOptions::default(), |gone| bar.set_position(gone)).await;
    bar.finish_and_clear();
    client.close();
    let removed = removed?;
    match format {
        Format::Raw => {}
        Format::Json => output::json(&json!({ "removed": removed }))?,
        Format::Table => output::bytes(format!("{removed} keys removed\n").as_bytes())?,
    }
    Ok(End::Ok)
}
