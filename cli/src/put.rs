//! `tiedkv put`: one write, the value from an argument or byte for byte from standard input.

use crate::args::{Format, Put};
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::write;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use std::io::Read;
use tiedkv_client::options::parse_span;
use tiedkv_protocol::limits::VALUE_BYTES_MAX;

/// Runs the command.
///
/// # Errors
/// When key, value or idempotency key are wrong, or the write fails.
pub async fn run(args: &Put, format: Format) -> Result<End> {
    let key = unescape(&args.key).map_err(usage)?;
    let options = write::options(args.idempotency_key.as_deref())?;
    let value = match &args.value {
        Some(text) => unescape(text).map_err(usage)?,
        None => standard_input().map_err(usage)?,
    };
    let ttl = args.ttl.as_deref().map(parse_span).transpose().map_err(usage)?;
    let client = connect(&args.connect).await?;
    let report = match ttl {
        Some(ttl) => client.put_for_with(key.clone(), value, ttl, options).await?,
        None => client.put_with(key.clone(), value, options).await?,
    };
    client.close();
    write::print(&escape(&key), &report, format)?;
    Ok(End::Ok)
}

/// All of standard input.
///
/// # Errors
/// When it cannot be read or is longer than a value may be.
pub fn standard_input() -> Result<Bytes> {
    let mut value = Vec::new();
    let limit = VALUE_BYTES_MAX as u64;
    std::io::stdin().lock().take(limit + 1).read_to_end(&mut value).context("standard input")?;
    if value.len() > VALUE_BYTES_MAX {
        bail!("the value on standard input is over {VALUE_BYTES_MAX} bytes");
    }
    Ok(Bytes::from(value))
}
