//! `tiedkv mget`: many keys in one call, in the order asked for; in part, if the caller allows it.

use crate::args::Format;
use crate::args_data::MultiGet;
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::output::Lines;
use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use serde_json::json;
use std::io::{BufRead, Read};
use std::time::Duration;
use tiedkv_client::completeness::KEYS_MAX;
use tiedkv_client::options::parse_span;
use tiedkv_client::{Client, Entry, MultiGetError};
use tiedkv_protocol::limits::KEY_BYTES_MAX;

/// Longest line of a key on standard input: every byte as an escape, and the line end.
const LINE_BYTES_MAX: u64 = 4 * KEY_BYTES_MAX as u64 + 2;

/// Runs the command. A key that is absent or missing ends with 1.
///
/// # Errors
/// When a key or flag is wrong, or the call ends without enough keys: what came is printed before.
pub async fn run(args: &MultiGet, format: Format) -> Result<End> {
    let keys = keys(&args.keys)?;
    let by = args.by.as_deref().map(parse_span).transpose().map_err(usage)?;
    let client = connect(&args.connect).await?;
    let ended = read(&client, &keys, args.partial.zip(by)).await;
    client.close();
    match ended {
        Ok(entries) => {
            print(&keys, &entries, format)?;
            let all_found = entries.iter().all(|entry| matches!(entry, Entry::Found(_)));
            Ok(if all_found { End::Ok } else { End::NotFound })
        }
        Err(error) => {
            print(&keys, &error.entries, format)?;
            let answered = error.entries.iter().filter(|entry| entry.is_answered()).count();
            let said = format!("{answered} of {} keys were answered", keys.len());
            Err(anyhow::Error::from(error.error).context(said))
        }
    }
}

async fn read(
    client: &Client,
    keys: &[Bytes],
    partial: Option<(f64, Duration)>,
) -> Result<Vec<Entry>, MultiGetError> {
    let call = client.multi_get(keys.iter().cloned());
    match partial {
        Some((share, by)) => Ok(call.partial(share, by).send().await?.entries),
        None => {
            let entry = |value: Option<_>| value.map_or(Entry::Absent, Entry::Found);
            Ok(call.send().await?.values.into_iter().map(entry).collect())
        }
    }
}

/// The keys that were typed; those of standard input in the place of `-`.
fn keys(typed: &[String]) -> Result<Vec<Bytes>> {
    let mut keys = Vec::with_capacity(typed.len());
    for text in typed {
        if text == "-" {
            lines(std::io::stdin().lock(), &mut keys)?;
        } else {
            keys.push(unescape(text).map_err(usage)?);
        }
    }
    Ok(keys)
}

/// One key per line; no more of them than a call may have, and one, so that the client says so.
fn lines(mut input: impl BufRead, keys: &mut Vec<Bytes>) -> Result<()> {
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX).read_until(b'\n', &mut line).context("standard input")?;
        if read == 0 || keys.len() > KEYS_MAX {
            break;
        }
        let wrong = |what: &str| usage(anyhow!("line {number} of standard input {what}"));
        let text = std::str::from_utf8(line.strip_suffix(b"\n").unwrap_or(&line));
        let text = text.map_err(|_| wrong("is no UTF-8: write such bytes as \\xNN"))?;
        if read as u64 == LINE_BYTES_MAX {
            return Err(wrong("is longer than any key"));
        }
        keys.push(unescape(text).with_context(|| format!("line {number} of standard input")).map_err(usage)?);
    }
    Ok(())
}

fn print(keys: &[Bytes], entries: &[Entry], format: Format) -> Result<()> {
    let mut out = Lines::new();
    for (key, entry) in keys.iter().zip(entries) {
        if let (Format::Raw, Entry::Absent | Entry::Missing) = (format, entry) {
            let what = if *entry == Entry::Absent { "no key" } else { "no answer for key" };
            eprintln!("tiedkv: {what} `{}`", escape(key));
        }
        out.add(|line| write_line(key, entry, format, line))?;
    }
    out.finish()
}

/// One key as a line, appended to `out`.
fn write_line(key: &[u8], entry: &Entry, format: Format, out: &mut Vec<u8>) {
    let value = match entry {
        Entry::Found(value) => Some(value),
        Entry::Absent | Entry::Missing => None,
    };
    match format {
        Format::Raw => out.extend_from_slice(value.map_or(b"", |value| &value.value)),
        Format::Table => {
            let text = match entry {
                Entry::Found(value) => escape(&value.value),
                Entry::Absent => "(absent)".to_owned(),
                Entry::Missing => "(no answer)".to_owned(),
            };
            out.extend_from_slice(format!("{}\t{text}", escape(key)).as_bytes());
        }
        Format::Json => {
            let object = json!({
                "key": escape(key),
                "answered": entry.is_answered(),
                "found": value.is_some(),
                "value": value.map(|value| escape(&value.value)),
                "version": value.map(|value| value.version.0),
                "ttl_ms": value.and_then(|value| value.remaining).map(milliseconds),
            });
            out.extend_from_slice(object.to_string().as_bytes());
        }
    }
    out.push(b'\n');
}

fn milliseconds(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiedkv_client::Value;
    use tiedkv_protocol::ids::{Position, Version};

    #[test]
    fn absent_empty_and_missing_are_told_apart() {
        let value = Value {
            value: Bytes::new(),
            version: Version(7),
            position: Position(9),
            remaining: Some(Duration::from_millis(1_500)),
        };
        let text = |entry: &Entry, format| {
            let mut out = Vec::new();
            write_line(b"a\xff", entry, format, &mut out);
            String::from_utf8(out).unwrap()
        };
        let found = Entry::Found(value);
        assert_eq!(text(&found, Format::Table), "a\\xff\t\n");
        assert_eq!(text(&Entry::Absent, Format::Table), "a\\xff\t(absent)\n");
        assert_eq!(text(&Entry::Missing, Format::Table), "a\\xff\t(no answer)\n");
        assert_eq!(text(&found, Format::Raw), "\n");
        let json = |entry| serde_json::from_str::<serde_json::Value>(&text(entry, Format::Json)).unwrap();
        assert_eq!(json(&found)["ttl_ms"], 1_500);
        assert_eq!((&json(&found)["value"], &json(&found)["found"]), (&"".into(), &true.into()));
        let absent = json(&Entry::Absent);
        assert_eq!(
            (&absent["answered"], &absent["found"], &absent["value"]),
            (&true.into(), &false.into(), &serde_json::Value::Null)
        );
        assert_eq!(json(&Entry::Missing)["answered"], false);
    }

    #[test]
    fn keys_of_lines_are_unescaped_and_bounded() {
        let mut keys = Vec::new();
        lines(&b"a\nb\\xff\n\\\\\nlast"[..], &mut keys).unwrap();
        assert_eq!(keys, [&b"a"[..], b"b\xff", b"\\", b"last"]);
        let error = lines(&b"a\n\\q\n"[..], &mut keys).unwrap_err();
        assert!(format!("{error:#}").contains("line 2"), "{error:#}");
        let long = vec![b'k'; LINE_BYTES_MAX as usize];
        assert!(lines(&long[..], &mut keys).is_err());
        assert!(lines(&b"\xff\n"[..], &mut keys).unwrap_err().to_string().contains("\\xNN"));
        let many = "k\n".repeat(2 * KEYS_MAX);
        keys.clear();
        lines(many.as_bytes(), &mut keys).unwrap();
        assert_eq!(keys.len(), KEYS_MAX + 1);
    }
}
