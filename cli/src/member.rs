//! `tiedkv member`: who belongs to the cluster; adds, removes, hands leadership over.

use crate::args::{Format, Member, MemberCommand};
use crate::connect::connect;
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Context, Result, anyhow};
use serde_json::json;
use std::time::Duration;
use tiedkv_client::{Cause, Client};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello;
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;

/// Longest wait for a change: a new member first catches up.
const CHANGE_DEADLINE: Duration = Duration::from_secs(60);

/// Most leaders asked one after another.
const FOLLOWED_MAX: usize = 5;

/// Runs the command.
///
/// # Errors
/// When the leader is not known or refuses.
pub async fn run(args: &Member, format: Format) -> Result<End> {
    let operation = operation(&args.command)?;
    let client = connect(&args.connect).await?;
    match operation {
        None => list(&client, format)?,
        Some(operation) => change(&client, operation, format).await?,
    }
    client.close();
    Ok(End::Ok)
}

/// What to ask the leader; `None` for a list.
fn operation(command: &MemberCommand) -> Result<Option<AdminOperation>> {
    Ok(match command {
        MemberCommand::List => None,
        MemberCommand::Add { node, address, zone } => {
            let member = member(*node, address, zone).map_err(usage)?;
            Some(AdminOperation::MemberAdd { node: NodeId(*node), member })
        }
        MemberCommand::Remove { node } => Some(AdminOperation::MemberRemove { node: NodeId(*node) }),
        MemberCommand::Lead { node } => Some(AdminOperation::TransferLeader { to: node.map(NodeId) }),
    })
}

/// The ports of a member are in a row: client, peer, cancel.
fn member(node: u64, address: &str, zone: &str) -> Result<hello::Member> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| anyhow!("`{address}`: want HOST:PORT"))?;
    let port: u16 = port.parse().with_context(|| format!("`{address}`: the port"))?;
    let nth = |step| port.checked_add(step).map(|port| format!("{host}:{port}"));
    let ports = nth(1).zip(nth(2));
    let (peer_address, cancel_address) =
        ports.with_context(|| format!("`{address}`: three ports in a row are needed"))?;
    Ok(hello::Member {
        node: NodeId(node),
        zone: zone.to_owned(),
        client_address: address.to_owned(),
        peer_address,
        cancel_address,
        learner: false,
    })
}

/// Asks the leader, and whoever it names instead: leadership moves first when the leader itself is to go.
async fn change(client: &Client, operation: AdminOperation, format: Format) -> Result<()> {
    let mut leader = client.topology().leader;
    for _ in 0..FOLLOWED_MAX {
        let asked = leader.context("no node leads (or nothing is replicated)")?;
        match client.admin_within(asked, operation.clone(), CHANGE_DEADLINE).await {
            Ok(_) if format == Format::Json => return output::json(&json!({ "done": true, "leader": asked.0 })),
            Ok(_) => return output::bytes(b"done\n"),
            Err(error) => match named(&error) {
                Some(named) if named != asked => leader = Some(named),
                _ => return Err(error.into()),
            },
        }
    }
    Err(anyhow!("leadership moves from node to node; try again"))
}

/// The leader that a refusal names.
fn named(error: &tiedkv_client::Error) -> Option<NodeId> {
    match error.cause() {
        Cause::Call(failure) | Cause::Node(failure) if failure.code == ErrorCode::NotLeader => failure.leader,
        _ => None,
    }
}

fn list(client: &Client, format: Format) -> Result<()> {
    let topology = client.topology();
    if format == Format::Json {
        let members: Vec<_> = topology
            .members
            .iter()
            .map(|member| {
                json!({
                    "node": member.node.0,
                    "zone": member.zone,
                    "client_address": member.client_address,
                    "peer_address": member.peer_address,
                    "cancel_address": member.cancel_address,
                    "learner": member.learner,
                    "leader": topology.leader == Some(member.node),
                })
            })
            .collect();
        return output::json(&json!({ "version": topology.version, "members": members }));
    }
    for member in &topology.members {
        let role = match (topology.leader == Some(member.node), member.learner) {
            (true, _) => "leader",
            (false, true) => "learner",
            (false, false) => "member",
        };
        let zone = if member.zone.is_empty() { String::new() } else { format!("  zone {}", member.zone) };
        output::bytes(format!("node {}  {role}  {}{zone}\n", member.node.0, member.client_address).as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_follow_each_other() {
        let member = member(4, "[::1]:7400", "").unwrap();
        assert_eq!((member.peer_address.as_str(), member.cancel_address.as_str()), ("[::1]:7401", "[::1]:7402"));
        assert!(super::member(4, "host:65534", "").is_err());
        assert!(super::member(4, "host", "").is_err());
    }
}
