//! `tiedkv incr`: adds to a number kept as decimal text; an absent key is 0.

use crate::args::Format;
use crate::args_data::Incr;
use crate::connect::connect;
use crate::escape::{escape, unescape};
use crate::outcome::{End, usage};
use crate::{output, write};
use anyhow::Result;
use serde_json::json;

/// Runs the command.
///
/// # Errors
/// When key or idempotency key are wrong, the value is no number or would be none, or the write fails.
pub async fn run(args: &Incr, format: Format) -> Result<End> {
    let key = unescape(&args.key).map_err(usage)?;
    let shown = escape(&key);
    let options = write::options(args.idempotency_key.as_deref())?;
    let client = connect(&args.connect).await?;
    let counted = client.increment_with(key, args.by, options).await?;
    client.close();
    let number = counted.number.map_or_else(|| "changed since".to_owned(), |number| number.to_string());
    let report = &counted.report;
    match format {
        Format::Raw => output::bytes(format!("{number}\n").as_bytes())?,
        Format::Json => output::json(&json!({
            "key": shown,
            "number": counted.number,
            "version": report.version.0,
            "token": report.token.to_string(),
            "repeated": report.repeated,
        }))?,
        Format::Table => output::pairs(&[
            ("key", shown),
            ("number", number),
            ("version", report.version.0.to_string()),
            ("token", report.token.to_string()),
        ])?,
    }
    Ok(End::Ok)
}
