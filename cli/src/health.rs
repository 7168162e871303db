//! `tiedkv health`: whether every member answers, one line each.

use crate::args::{Format, Health};
use crate::connect::connect;
use crate::outcome::End;
use crate::output;
use anyhow::Result;
use serde_json::json;
use std::time::Duration;
use tiedkv_benches::clock;

/// Longest wait for all members to be connected.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// Runs the command; the end is `Unavailable` unless every member answers.
///
/// # Errors
/// When no node answers at all.
pub async fn run(args: &Health, format: Format) -> Result<End> {
    let client = connect(&args.connect).await?;
    // Members without a link are told apart below.
    let _ = client.all_connected(CONNECT_DEADLINE).await;
    let mut lines = Vec::new();
    for view in client.nodes() {
        let node = view.member.node;
        let begun = clock::now();
        let answer = client.status(node).await;
        lines.push((node, answer.err().map(|error| error.to_string()), begun.elapsed()));
    }
    client.close();
    let healthy = lines.iter().all(|(_, error, _)| error.is_none());
    match format {
        Format::Json => {
            let nodes: Vec<_> = lines
                .iter()
                .map(|(node, error, took)| {
                    let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                    json!({ "node": node.0, "healthy": error.is_none(), "error": error, "took_us": took_us })
                })
                .collect();
            output::json(&json!({ "healthy": healthy, "nodes": nodes }))?;
        }
        Format::Table | Format::Raw => {
            for (node, error, took) in &lines {
                let text = match error {
                    None => format!("node {}  answers in {took:.1?}\n", node.0),
                    Some(error) => format!("node {}  {error}\n", node.0),
                };
                output::bytes(text.as_bytes())?;
            }
        }
    }
    Ok(if healthy { End::Ok } else { End::Unavailable })
}
