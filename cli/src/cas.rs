//! `tiedkv cas`: sets or removes one key if it is what the caller expects; else prints what it is and ends with 1.

use crate::args::{Cas, Format};
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::{output, put, write};
use anyhow::{Result, anyhow};
use bytes::Bytes;
use serde_json::json;
use std::time::Duration;
use tiedkv_client::conditional::{Conditional, Unmet};
use tiedkv_client::options::parse_span;
use tiedkv_client::{Batch, Client, Expect, WriteOptions};
use tiedkv_protocol::ids::Version;

/// Runs the command.
///
/// # Errors
/// When key, value, expectation, time to live or idempotency key are wrong, or the write fails.
pub async fn run(args: &Cas, format: Format) -> Result<End> {
    let expect = expectation(args)?;
    let options = write::options(args.idempotency_key.as_deref())?;
    let key = unescape(&args.key).map_err(usage)?;
    let shown = escape(&key);
    let ttl = args.ttl.as_deref().map(parse_span).transpose().map_err(usage)?;
    let change = match (&args.value, ttl) {
        _ if args.delete => Change::Delete,
        (Some(text), ttl) => Change::Set(unescape(text).map_err(usage)?, ttl),
        (None, ttl) => Change::Set(put::standard_input().map_err(usage)?, ttl),
    };
    let client = connect(&args.connect).await?;
    let became = send(&client, key, expect, change, options).await?;
    client.close();
    match became {
        Conditional::Applied(applied) => {
            write::print(&shown, &applied.report, format)?;
            Ok(End::Ok)
        }
        Conditional::Unmet(unmet) => {
            print(&shown, &unmet, format)?;
            Ok(End::NotFound)
        }
    }
}

/// What is done if the key is as expected.
enum Change {
    /// A value, and after what time it expires.
    Set(Bytes, Option<Duration>),
    Delete,
}

async fn send(
    client: &Client,
    key: Bytes,
    expect: Expect,
    change: Change,
    options: WriteOptions,
) -> Result<Conditional, tiedkv_client::Error> {
    match change {
        Change::Set(value, None) => client.compare_and_set_with(key, expect, value, options).await,
        Change::Set(value, Some(ttl)) => {
            let batch = Batch::new().when(key.clone(), expect).put_for(key, value, ttl);
            client.batch_with(batch, options).await
        }
        Change::Delete => client.delete_if_with(key, expect, options).await,
    }
}

fn expectation(args: &Cas) -> Result<Expect> {
    match (args.absent, &args.expect, args.version) {
        (true, None, None) => Ok(Expect::Absent),
        (false, Some(text), None) => Ok(Expect::Value(unescape(text).map_err(usage)?)),
        (false, None, Some(version)) => Ok(Expect::Version(Version(version))),
        _ => Err(usage(anyhow!("say what the key must be: --absent, --expect VALUE or --version N, one of them"))),
    }
}

fn print(key: &str, unmet: &Unmet, format: Format) -> Result<()> {
    let current = unmet.current.as_ref();
    let value = current.and_then(|current| current.value.as_ref()).map(|value| escape(value));
    match format {
        Format::Raw => {
            eprintln!("tiedkv: `{key}` is not as expected");
            Ok(())
        }
        Format::Json => output::json(&json!({
            "key": key,
            "applied": false,
            "found": current.is_some(),
            "value": value,
            "value_bytes": current.map(|current| current.value_bytes),
            "version": current.map(|current| current.version.0),
            "token": unmet.token.to_string(),
            "node": unmet.node.0,
            "tries": unmet.tries,
        })),
        Format::Table => output::pairs(&[
            ("key", key.to_owned()),
            ("applied", "no: the key is not as expected".to_owned()),
            (
                "value",
                match (current, value) {
                    (None, _) => "(absent)".to_owned(),
                    (Some(_), Some(value)) => value,
                    (Some(current), None) => format!("({} bytes)", current.value_bytes),
                },
            ),
            ("version", current.map_or_else(|| "-".to_owned(), |current| current.version.0.to_string())),
            ("token", unmet.token.to_string()),
        ]),
    }
}
