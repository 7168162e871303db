//! Results on standard output: one JSON document, columns for people, or a value's bytes.

use anyhow::{Context, Result};
use serde_json::Value;
use std::io::Write;

/// Prints one JSON document and a line end.
///
/// # Errors
/// When standard output is closed.
pub fn json(value: &Value) -> Result<()> {
    bytes(format!("{value:#}\n").as_bytes())
}

/// Prints `name: value` lines, names padded to one width.
///
/// # Errors
/// When standard output is closed.
pub fn pairs(pairs: &[(&str, String)]) -> Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: String = pairs.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    bytes(lines.as_bytes())
}

/// Prints bytes as they are.
///
/// # Errors
/// When standard output is closed.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).context("standard output")
}
