//! `tiedkv get`: one read.

use crate::args::{Format, Get};
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::output;
use anyhow::Result;
use serde_json::json;
use tiedkv_client::{Read, ReadOptions};

/// Runs the command. Raw (the default) writes the value's bytes and nothing else.
///
/// # Errors
/// When the key is wrong or the read fails.
pub async fn run(args: &Get, format: Format) -> Result<End> {
    let key = unescape(&args.key).map_err(usage)?;
    let client = connect(&args.connect).await?;
    let read = client.get_with(key, ReadOptions::default()).await?;
    client.close();
    print(&args.key, &read, format)?;
    Ok(if read.value.is_some() { End::Ok } else { End::NotFound })
}

fn print(key: &str, read: &Read, format: Format) -> Result<()> {
    let report = &read.report;
    let value = read.value.as_ref();
    match format {
        Format::Raw => match value {
            Some(value) => output::bytes(&value.value),
            None => {
                eprintln!("tiedkv: no key `{key}`");
                Ok(())
            }
        },
        Format::Json => output::json(&json!({
            "key": key,
            "found": value.is_some(),
            "value": value.map(|value| escape(&value.value)),
            "version": value.map(|value| value.version.0),
            "token": report.token.to_string(),
            "node": report.node.0,
            "copies": report.copies.len(),
            "latency_us": micros(report.latency),
            "queue_wait_us": micros(report.queue_wait),
            "service_time_us": micros(report.service_time),
        })),
        Format::Table => output::pairs(&[
            ("key", key.to_owned()),
            ("value", value.map_or_else(|| "(absent)".to_owned(), |value| escape(&value.value))),
            ("version", value.map_or_else(|| "-".to_owned(), |value| value.version.0.to_string())),
            ("node", report.node.0.to_string()),
            ("copies", report.copies.len().to_string()),
            ("latency", format!("{:?}", report.latency)),
            ("token", report.token.to_string()),
        ]),
    }
}

fn micros(span: std::time::Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
