//! `tiedkv status`: the status page of every member.

use crate::args::{Format, Status};
use crate::connect::connect;
use crate::outcome::End;
use crate::output;
use anyhow::Result;
use serde_json::{Map, Value, json};
use tiedkv_client::Client;
use tiedkv_protocol::ids::NodeId;

/// Runs the command; members that do not answer are shown with the reason, and the end is `Unavailable`.
///
/// # Errors
/// When no node answers at all.
pub async fn run(args: &Status, format: Format) -> Result<End> {
    let client = connect(&args.connect).await?;
    let members: Vec<NodeId> = client.topology().members.iter().map(|member| member.node).collect();
    let mut pages = Vec::new();
    for node in members {
        pages.push((node, page(&client, node).await));
    }
    client.close();
    let all_answered = pages.iter().all(|(_, page)| page.is_ok());
    match format {
        Format::Json => output::json(&json!({ "nodes": pages.iter().map(to_json).collect::<Vec<_>>() }))?,
        Format::Table | Format::Raw => {
            for (node, page) in &pages {
                print(*node, page)?;
            }
        }
    }
    Ok(if all_answered { End::Ok } else { End::Unavailable })
}

async fn page(client: &Client, node: NodeId) -> Result<Value> {
    Ok(serde_json::from_slice(&client.status(node).await?)?)
}

fn to_json((node, page): &(NodeId, Result<Value>)) -> Value {
    match page {
        Ok(page) => json!({ "node": node.0, "status": page }),
        Err(error) => json!({ "node": node.0, "error": format!("{error:#}") }),
    }
}

fn print(node: NodeId, page: &Result<Value>) -> Result<()> {
    output::bytes(format!("node {}\n", node.0).as_bytes())?;
    let lines = match page {
        Ok(Value::Object(fields)) => flat("", fields),
        Ok(other) => vec![("status".to_owned(), other.to_string())],
        Err(error) => vec![("error".to_owned(), format!("{error:#}"))],
    };
    let pairs: Vec<(&str, String)> = lines.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    output::pairs(&pairs)
}

/// Nested objects as `outer.inner`; lists as JSON on one line.
fn flat(prefix: &str, fields: &Map<String, Value>) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Object(inner) => lines.extend(flat(&format!("{prefix}{name}."), inner)),
            Value::String(text) => lines.push((format!("  {prefix}{name}"), text.clone())),
            other => lines.push((format!("  {prefix}{name}"), other.to_string())),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_pages_become_dotted_names() {
        let page = json!({ "term": 3, "raft": { "role": "leader" } });
        let lines = flat("", page.as_object().unwrap());
        assert!(lines.contains(&("  raft.role".to_owned(), "leader".to_owned())), "{lines:?}");
    }
}
