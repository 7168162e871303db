//! `tiedkv count`: how many keys lie in a range, counted by the nodes.

use crate::args::Format;
use crate::args_data::Count;
use crate::connect::connect;
use crate::outcome::End;
use crate::output;
use crate::range;
use anyhow::Result;
use serde_json::json;

/// Runs the command.
///
/// # Errors
/// When the range is wrong or a page cannot be read.
pub async fn run(args: &Count, format: Format) -> Result<End> {
    let range = range::parse(&args.range)?;
    let client = connect(&args.connect).await?;
    let count = client.count(&range).await?;
    client.close();
    match format {
        Format::Json => output::json(&json!({ "count": count }))?,
        Format::Table | Format::Raw => output::bytes(format!("{count}\n").as_bytes())?,
    }
    Ok(End::Ok)
}
