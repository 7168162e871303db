//! `tiedkv get`: one read, and with `--explain` how it went.

use crate::args::{Format, Get};
use crate::connect::{connect, connect_with};
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::output;
use anyhow::Result;
use serde_json::{Value, json};
use std::time::Duration;
use tiedkv_client::{Read, ReadOptions, SlowCopy, SlowRead};

/// Runs the command. Raw (the default) writes the value's bytes and nothing else.
///
/// # Errors
/// When the key is wrong or the read fails.
pub async fn run(args: &Get, format: Format) -> Result<End> {
    let key = unescape(&args.key).map_err(usage)?;
    let client = match args.explain {
        // Every read is slow enough to be explained.
        true => connect_with(&args.connect, |config| config.slow_read = Duration::from_nanos(1)).await?,
        false => connect(&args.connect).await?,
    };
    let read = client.get_with(key.clone(), ReadOptions::default()).await;
    let explained = if args.explain { client.slow_reads().pop() } else { None };
    client.close();
    if let (Some(explained), Format::Raw | Format::Table) = (&explained, format) {
        eprintln!("{}", explain(explained));
    }
    let read = read?;
    print(&escape(&key), &read, explained.as_ref(), format)?;
    Ok(if read.value.is_some() { End::Ok } else { End::NotFound })
}

fn explain(read: &SlowRead) -> String {
    let mut text = format!("read {:032x} took {:.1?}", read.read.0, read.latency);
    match read.tie_delay {
        Some(delay) => text.push_str(&format!(", tie delay {delay:.1?}")),
        None => text.push_str(", not tied"),
    }
    read.copies.iter().for_each(|copy| text.push_str(&format!("\n  {copy}")));
    text
}

fn print(key: &str, read: &Read, explained: Option<&SlowRead>, format: Format) -> Result<()> {
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
        Format::Json => {
            let mut document = json!({
                "key": key,
                "found": value.is_some(),
                "value": value.map(|value| escape(&value.value)),
                "version": value.map(|value| value.version.0),
                "ttl_ms": value.and_then(|value| value.remaining).map(|left| micros(left) / 1_000),
                "token": report.token.to_string(),
                "node": report.node.0,
                "copies": report.copies.len(),
                "latency_us": micros(report.latency),
                "queue_wait_us": micros(report.queue_wait),
                "service_time_us": micros(report.service_time),
            });
            if let Some(explained) = explained {
                document["explain"] = explained_json(explained);
            }
            output::json(&document)
        }
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

fn explained_json(read: &SlowRead) -> Value {
    let copy = |copy: &SlowCopy| {
        json!({
            "node": copy.node.0,
            "kind": copy.kind.name(),
            "number": copy.number,
            "sent_after_us": micros(copy.sent_after),
            "started": copy.started,
            "queue_wait_us": copy.queue_wait.map(micros),
            "service_time_us": copy.service_time.map(micros),
            "end": copy.fate.to_string(),
            "cancelled_by": copy.cancelled_by.map(|node| node.0),
        })
    };
    json!({
        "read": format!("{:032x}", read.read.0),
        "latency_us": micros(read.latency),
        "tie_delay_us": read.tie_delay.map(micros),
        "copies": read.copies.iter().map(copy).collect::<Vec<_>>(),
    })
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
