//! What `put` and `del` share: the idempotency key's text, writing to a cluster that is not replicated, printing.

use crate::args::Format;
use crate::outcome::usage;
use crate::output;
use anyhow::{Result, anyhow};
use serde_json::json;
use tiedkv_client::{WriteOptions, WriteReport};
use tiedkv_protocol::ids::{ClientId, Position};
use tiedkv_protocol::request::IdempotencyKey;

/// Options of a write with the key that the caller named, if any.
///
/// # Errors
/// When the text is no idempotency key.
pub fn options(idempotency_key: Option<&str>) -> Result<WriteOptions> {
    let idempotency = idempotency_key.map(|text| parse(text).ok_or_else(|| wrong(text))).transpose()?;
    Ok(WriteOptions { idempotency, ..WriteOptions::default() })
}

fn wrong(text: &str) -> anyhow::Error {
    usage(anyhow!("`{text}` is no idempotency key: want CLIENT.SEQUENCE.FLOOR (hex digits, two decimal numbers)"))
}

fn parse(text: &str) -> Option<IdempotencyKey> {
    let mut parts = text.split('.');
    let (client, sequence, floor) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    Some(IdempotencyKey {
        client: ClientId(u128::from_str_radix(client, 16).ok()?),
        sequence: sequence.parse().ok()?,
        floor: Position(floor.parse().ok()?),
    })
}

/// Prints what a write made.
///
/// # Errors
/// When standard output is closed.
pub fn print(key: &str, report: &WriteReport, format: Format) -> Result<()> {
    match format {
        Format::Raw => Ok(()),
        Format::Json => output::json(&json!({
            "key": key,
            "version": report.version.0,
            "token": report.token.to_string(),
            "node": report.node.0,
            "repeated": report.repeated,
            "tries": report.tries,
        })),
        Format::Table => output::pairs(&[
            ("key", key.to_owned()),
            ("version", report.version.0.to_string()),
            ("token", report.token.to_string()),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idempotency_keys_have_three_parts() {
        let key = options(Some("ff.7.0")).unwrap().idempotency.unwrap();
        assert_eq!((key.client, key.sequence, key.floor), (ClientId(255), 7, Position(0)));
        for text in ["", "ff", "ff.7", "ff.7.0.1", "xyz.7.0"] {
            assert!(options(Some(text)).is_err(), "{text}");
        }
    }
}
