//! The line format of export and import: one JSON object per line, any key and value comes back byte for byte.
//!
//! | member | what |
//! |---|---|
//! | `key` or `key64` | the key: a JSON string if it is UTF-8, else base64 |
//! | `value` or `value64` | the value, likewise |
//! | `ttl_ms` | milliseconds it has left; absent if it does not expire |
//! | `end` | alone in the last line: how many rows there are before it |

use crate::base64;
use bytes::Bytes;
use serde_json::{Map, Value};
use tiedkv_client::Row;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A key and its value.
    Row {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
        /// What it has left, milliseconds.
        ttl_ms: Option<u64>,
    },
    /// The last line.
    End {
        /// Rows before it.
        rows: u64,
    },
}

/// A text that is no line of an export.
#[derive(Debug, thiserror::Error)]
pub enum BadLine {
    /// Not JSON.
    #[error("no JSON object: {0}")]
    Json(serde_json::Error),
    /// JSON, but not ours.
    #[error("{0}; want `key` (or `key64`), `value` (or `value64`) and perhaps `ttl_ms`")]
    Member(String),
}

impl From<serde_json::Error> for BadLine {
    // No source of it: its words stand in those of this error already.
    fn from(error: serde_json::Error) -> Self {
        Self::Json(error)
    }
}

/// Appends a row as a line.
pub fn write_row(row: &Row, out: &mut Vec<u8>) {
    out.push(b'{');
    member("key", &row.key, out);
    out.push(b',');
    member("value", &row.value, out);
    if let Some(left) = row.remaining_ms {
        out.extend_from_slice(format!(",\"ttl_ms\":{left}").as_bytes());
    }
    out.extend_from_slice(b"}\n");
}

/// Appends the last line.
pub fn write_end(rows: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("{{\"end\":{rows}}}\n").as_bytes());
}

fn member(name: &str, bytes: &[u8], out: &mut Vec<u8>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => out.extend_from_slice(format!("\"{name}\":{}", Value::from(text)).as_bytes()),
        Err(_) => out.extend_from_slice(format!("\"{name}64\":\"{}\"", base64::encode(bytes)).as_bytes()),
    }
}

/// Reads a line, without its line end.
///
/// # Errors
/// Says what is wrong with it.
pub fn read(line: &[u8]) -> Result<Line, BadLine> {
    let mut object: Map<String, Value> = serde_json::from_slice(line)?;
    let wrong = |text: String| Err(BadLine::Member(text));
    if let Some(end) = object.remove("end") {
        return match (end.as_u64(), object.is_empty()) {
            (Some(rows), true) => Ok(Line::End { rows }),
            _ => wrong("`end` must be a number and stand alone".to_owned()),
        };
    }
    let key = take(&mut object, "key")?;
    let value = take(&mut object, "value")?;
    let ttl_ms = match object.remove("ttl_ms") {
        None => None,
        Some(left) => match left.as_u64() {
            Some(left) => Some(left),
            None => return wrong(format!("`ttl_ms` is {left}")),
        },
    };
    match object.keys().next() {
        Some(stranger) => wrong(format!("`{stranger}` is not known")),
        None => Ok(Line::Row { key, value, ttl_ms }),
    }
}

fn take(object: &mut Map<String, Value>, name: &str) -> Result<Bytes, BadLine> {
    let wrong = |text: String| Err(BadLine::Member(text));
    match (object.remove(name), object.remove(&format!("{name}64"))) {
        (Some(Value::String(text)), None) => Ok(text.into_bytes().into()),
        (None, Some(Value::String(text))) => match base64::decode(&text) {
            Some(bytes) => Ok(bytes.into()),
            None => wrong(format!("`{name}64` is no base64")),
        },
        (None, None) => wrong(format!("`{name}` is missing")),
        (Some(_), Some(_)) => wrong(format!("`{name}` and `{name}64` are both there")),
        _ => wrong(format!("`{name}` is no string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tiedkv_protocol::ids::Version;

    fn row(key: &[u8], value: &[u8], remaining_ms: Option<u64>) -> Row {
        let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        Row { key, value, version: Version(1), remaining_ms }
    }

    fn text(row: &Row) -> String {
        let mut out = Vec::new();
        write_row(row, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_lines_are_these() {
        assert_eq!(text(&row(b"a\"b\n", "ä".as_bytes(), None)), "{\"key\":\"a\\\"b\\n\",\"value\":\"ä\"}\n");
        assert_eq!(text(&row(b"\xff", b"", Some(9))), "{\"key64\":\"/w==\",\"value\":\"\",\"ttl_ms\":9}\n");
        let mut out = Vec::new();
        write_end(3, &mut out);
        assert_eq!(out, b"{\"end\":3}\n");
        assert_eq!(read(b"{\"end\":3}").unwrap(), Line::End { rows: 3 });
    }

    #[test]
    fn every_key_and_value_comes_back() {
        // All pairs of bytes, valid UTF-8 and not, and what JSON escapes.
        for first in 0..=255_u8 {
            for second in (0..=255).step_by(7).chain([b'"', b'\\', 0xff, 0x7f]) {
                let row = row(&[first, second], &[second, first, second], (first > 9).then_some(u64::from(second)));
                let line = text(&row);
                assert_eq!(line.lines().count(), 1, "{line:?}");
                let (key, value, ttl_ms) = (row.key, row.value, row.remaining_ms);
                assert_eq!(read(line.trim_end().as_bytes()).unwrap(), Line::Row { key, value, ttl_ms });
            }
        }
    }

    proptest! {
        #[test]
        fn any_row_comes_back_and_any_line_is_read_or_refused(
            key in prop::collection::vec(any::<u8>(), 0..32),
            value in prop::collection::vec(any::<u8>(), 0..64),
            ttl_ms in prop::option::of(any::<u64>()),
            junk in "[\\[\\]{}:,\"a-z0-9+/= .-]{0,64}",
            cut in 0_usize..200,
        ) {
            let line = text(&row(&key, &value, ttl_ms));
            let whole = read(line.trim_end_matches('\n').as_bytes()).unwrap();
            prop_assert_eq!(whole, Line::Row { key: key.into(), value: value.into(), ttl_ms });
            // A line that was cut is never taken for a whole one.
            prop_assert!(line.get(..cut.min(line.len() - 2)).is_none_or(|part| read(part.as_bytes()).is_err()));
            let _ = read(junk.as_bytes());
        }
    }

    #[test]
    fn what_is_no_line_is_named() {
        for (line, named) in [
            ("", "JSON"),
            ("[]", "JSON"),
            ("{\"key\":\"a\"}", "`value` is missing"),
            ("{\"value\":\"a\"}", "`key` is missing"),
            ("{\"key\":1,\"value\":\"a\"}", "no string"),
            ("{\"key\":\"a\",\"value64\":\"a\"}", "no base64"),
            ("{\"key\":\"a\",\"key64\":\"YQ==\",\"value\":\"\"}", "both"),
            ("{\"key\":\"a\",\"value\":\"a\",\"vlaue\":\"a\"}", "`vlaue`"),
            ("{\"key\":\"a\",\"value\":\"a\",\"ttl_ms\":-1}", "ttl_ms"),
            ("{\"end\":3,\"key\":\"a\"}", "alone"),
            ("{\"key\":\"a\",\"value\":\"a\"} x", "JSON"),
        ] {
            let error = read(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(named), "{line}: {error}");
        }
    }
}
