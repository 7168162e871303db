//! `tiedkv slow`: the slow-read logs of all members, joined by read: every copy that was slow on its node, how long it
//! waited and was served, and who cancelled whom.

use crate::args::{Format, Slow};
use crate::connect::connect;
use crate::outcome::End;
use crate::output;
use anyhow::{Result, anyhow};
use serde_json::json;
use std::collections::HashMap;
use tiedkv_client::Client;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;
use tiedkv_server::request::slow_log::{SlowEnd, SlowRead};

/// One read and its copies, by node.
struct Joined {
    read: String,
    copies: Vec<(NodeId, SlowRead)>,
}

/// Runs the command; the end is `Unavailable` if a member did not answer.
///
/// # Errors
/// When no node answers at all.
pub async fn run(args: &Slow, format: Format) -> Result<End> {
    let client = connect(&args.connect).await?;
    let members: Vec<NodeId> = client.topology().members.iter().map(|member| member.node).collect();
    let (mut logs, mut silent) = (Vec::new(), Vec::new());
    for node in members {
        match log(&client, node).await {
            Ok(lines) => logs.push((node, lines)),
            Err(error) => silent.push((node, format!("{error:#}"))),
        }
    }
    client.close();
    let mut reads = join(logs);
    reads.drain(..reads.len().saturating_sub(args.last));
    match format {
        Format::Json => output::json(&to_json(&reads, &silent))?,
        Format::Table | Format::Raw => {
            let lines: String = reads.iter().map(text).collect();
            output::bytes(lines.as_bytes())?;
            silent.iter().for_each(|(node, error)| eprintln!("tiedkv: {node}: {error}"));
        }
    }
    Ok(if silent.is_empty() { End::Ok } else { End::Unavailable })
}

async fn log(client: &Client, node: NodeId) -> Result<Vec<SlowRead>> {
    let page = client.admin(node, AdminOperation::SlowReads).await?;
    serde_json::from_slice(&page).map_err(|error| anyhow!("its slow-read log is of another version: {error}"))
}

/// By read, in the order in which the first copy of each ended.
fn join(logs: Vec<(NodeId, Vec<SlowRead>)>) -> Vec<Joined> {
    let lines = logs.into_iter().flat_map(|(node, lines)| lines.into_iter().map(move |line| (node, line)));
    let mut lines: Vec<(NodeId, SlowRead)> = lines.collect();
    lines.sort_by_key(|(_, line)| line.ended_unix_ms);
    let (mut reads, mut places): (Vec<Joined>, HashMap<String, usize>) = (Vec::new(), HashMap::new());
    for (node, line) in lines {
        let place = *places.entry(line.read.clone()).or_insert_with(|| {
            reads.push(Joined { read: line.read.clone(), copies: Vec::new() });
            reads.len() - 1
        });
        reads[place].copies.push((node, line));
    }
    reads
}

fn to_json(reads: &[Joined], silent: &[(NodeId, String)]) -> serde_json::Value {
    let copy = |(node, line): &(NodeId, SlowRead)| json!({ "node": node.0, "copy": line });
    let read = |read: &Joined| {
        let copies: Vec<_> = read.copies.iter().map(copy).collect();
        json!({ "read": read.read, "copies": copies })
    };
    let reads: Vec<_> = reads.iter().map(read).collect();
    let errors: Vec<_> = silent.iter().map(|(node, error)| json!({ "node": node.0, "error": error })).collect();
    json!({ "reads": reads, "errors": errors })
}

fn text(read: &Joined) -> String {
    let mut text = format!("read {}\n", read.read);
    for (node, line) in &read.copies {
        text.push_str(&format!("  {}\n", copy_text(*node, line)));
    }
    text
}

fn copy_text(node: NodeId, line: &SlowRead) -> String {
    let number = line.number.map_or_else(String::new, |number| format!(" {number}"));
    let mut text = format!("{node}: {}{number} copy ", line.kind);
    let by = line.ended_by.map_or_else(|| "a peer".to_owned(), |by| by.to_string());
    text.push_str(&match line.end {
        SlowEnd::Answered => "answered".to_owned(),
        SlowEnd::Refused => "refused".to_owned(),
        SlowEnd::Failed => "failed".to_owned(),
        SlowEnd::Cancelled => format!("cancelled by {by}"),
        SlowEnd::Yielded => format!("yielded to {by}"),
        SlowEnd::Withdrawn => "withdrawn by its client".to_owned(),
    });
    text.push_str(&format!(
        ", lane {}, waited {} us, served {} us",
        line.lane, line.queue_wait_us, line.service_time_us
    ));
    if !line.cancelled.is_empty() {
        let peers: Vec<String> = line.cancelled.iter().map(ToString::to_string).collect();
        text.push_str(&format!("; its start cancelled {}", peers.join(" and ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(read: &str, ended_unix_ms: u64, end: SlowEnd) -> SlowRead {
        SlowRead {
            ended_unix_ms,
            read: read.to_owned(),
            tie: Some("7".to_owned()),
            number: Some(0),
            members: vec![NodeId(1), NodeId(2)],
            kind: "first".to_owned(),
            lane: 0,
            queue_wait_us: 5,
            service_time_us: 6,
            end,
            ended_by: (end == SlowEnd::Cancelled).then_some(NodeId(2)),
            cancelled: if end == SlowEnd::Answered { vec![NodeId(1)] } else { Vec::new() },
        }
    }

    #[test]
    fn copies_of_one_read_stand_together_and_say_who_cancelled_whom() {
        let one = vec![line("a", 20, SlowEnd::Cancelled), line("b", 10, SlowEnd::Answered)];
        let two = vec![line("a", 30, SlowEnd::Answered)];
        let reads = join(vec![(NodeId(1), one), (NodeId(2), two)]);
        assert_eq!(reads.iter().map(|read| read.read.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        let text = text(&reads[1]);
        assert!(text.contains("n1: first 0 copy cancelled by n2"), "{text}");
        assert!(text.contains("n2: first 0 copy answered") && text.contains("its start cancelled n1"), "{text}");
    }
}
