//! `tiedkv ttl`: what a key has left, or a new time to live for it.

use crate::args::Format;
use crate::args_data::Ttl;
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::{output, write};
use anyhow::{Result, anyhow};
use serde_json::json;
use std::time::Duration;
use tiedkv_client::options::parse_span;

/// Runs the command. An absent key ends with 1.
///
/// # Errors
/// When key or span are wrong, or the call fails.
pub async fn run(args: &Ttl, format: Format) -> Result<End> {
    let key = unescape(&args.key).map_err(usage)?;
    let shown = escape(&key);
    let set = args.set.as_deref().map(parse_span).transpose().map_err(usage)?;
    let options = write::options(args.idempotency_key.as_deref())?;
    if args.idempotency_key.is_some() && set.is_none() && !args.never {
        return Err(usage(anyhow!("an idempotency key names a write: give --set or --never")));
    }
    let client = connect(&args.connect).await?;
    let found = match (set, args.never) {
        (Some(ttl), _) => client.touch_with(key.clone(), ttl, options).await?,
        (None, true) => client.persist_with(key.clone(), options).await?,
        (None, false) => true,
    };
    let value = if found { client.get(key).await? } else { None };
    client.close();
    let Some(value) = value else {
        match format {
            Format::Json => {
                output::json(&json!({ "key": shown, "found": false, "ttl_ms": null, "version": null }))?;
            }
            Format::Table | Format::Raw => eprintln!("tiedkv: no key `{shown}`"),
        }
        return Ok(End::NotFound);
    };
    let left = value.remaining.map(milliseconds);
    let text = left.map_or_else(|| "never".to_owned(), |left| format!("{left} ms"));
    match format {
        Format::Json => {
            let version = value.version.0;
            output::json(&json!({ "key": shown, "found": true, "ttl_ms": left, "version": version }))?;
        }
        Format::Table => output::pairs(&[("key", shown), ("expires in", text)])?,
        Format::Raw => output::bytes(format!("{text}\n").as_bytes())?,
    }
    Ok(End::Ok)
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
