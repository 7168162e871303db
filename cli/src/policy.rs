//! `tiedkv policy`: how far every client of the cluster may use read policies, and which nodes are out for reads. An
//! operator's ceiling; clients obey it within a second. Each client's own switch can only be lower.

use crate::args::{Format, Policy, PolicyCommand, PolicySet};
use crate::connect::connect;
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Result, anyhow, bail};
use serde_json::json;
use tiedkv_client::Client;
use tiedkv_client::switch_file::parse_mode;
use tiedkv_protocol::hello::{Ceiling, EJECTED_MAX, Mode};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::AdminOperation;

/// Runs the command.
///
/// # Errors
/// When a value is wrong, or no node takes the ceiling.
pub async fn run(args: &Policy, format: Format) -> Result<End> {
    let client = connect(&args.connect).await?;
    let known = client.policy().ceiling();
    match &args.command {
        PolicyCommand::Show => show(&known, format)?,
        PolicyCommand::Set(set) => {
            let ceiling = changed(known, set).map_err(usage)?;
            put_in_force(&client, ceiling).await?;
            show(&ceiling, format)?;
        }
        PolicyCommand::Eject { node } => {
            let mut ceiling = known;
            check_member(&client, NodeId(*node)).map_err(usage)?;
            if !ceiling.ejected.eject(NodeId(*node)) {
                return Err(usage(anyhow!("{EJECTED_MAX} nodes are out for reads already: restore one first")));
            }
            put_in_force(&client, ceiling).await?;
            show(&ceiling, format)?;
        }
        PolicyCommand::Restore { node } => {
            let mut ceiling = known;
            if !ceiling.ejected.restore(NodeId(*node)) {
                return Err(usage(anyhow!("node {node} is not out for reads")));
            }
            put_in_force(&client, ceiling).await?;
            show(&ceiling, format)?;
        }
    }
    client.close();
    Ok(End::Ok)
}

fn check_member(client: &Client, node: NodeId) -> Result<()> {
    let topology = client.topology();
    if topology.members.iter().any(|member| member.node == node) {
        return Ok(());
    }
    let members: Vec<String> = topology.members.iter().map(|member| member.node.0.to_string()).collect();
    bail!("node {} is no member; members are {}", node.0, members.join(", "))
}

/// The ceiling with what was asked for changed.
fn changed(known: Ceiling, set: &PolicySet) -> Result<Ceiling> {
    let ppm = |name: &str, share: f64| {
        if (0.0..=1.0).contains(&share) {
            Ok((share * 1e6).round() as u32)
        } else {
            bail!("--{name} {share}: want 0.0 to 1.0")
        }
    };
    let mut ceiling = known;
    if let Some(mode) = &set.mode {
        ceiling.mode = parse_mode(mode).map_err(|reason| anyhow!("--mode: {reason}"))?;
    }
    if let Some(copies) = set.copies {
        ceiling.copies_max = copies;
    }
    match set.budget.as_deref() {
        None => {}
        Some("own") => ceiling.budget_ppm = None,
        Some(text) => {
            let share =
                text.parse().map_err(|_| anyhow!("--budget {text}: want a share such as 0.02, or `own`"))?;
            ceiling.budget_ppm = Some(ppm("budget", share)?);
        }
    }
    match set.share {
        Some(_) if ceiling.mode != Mode::On => {
            bail!("--share has an effect only with --mode on: it is the share of reads to which `on` applies")
        }
        Some(share) => ceiling.share_ppm = ppm("share", share)?,
        // Back to on after a trial is on for all.
        None if set.mode.is_some() => ceiling.share_ppm = 1_000_000,
        None => {}
    }
    Ok(ceiling)
}

/// Through the leader; where nothing is replicated, on every node.
async fn put_in_force(client: &Client, ceiling: Ceiling) -> Result<()> {
    let ceiling = Ceiling { version: ceiling.version + 1, ..ceiling };
    let topology = client.topology();
    let targets = match topology.leader {
        Some(leader) => vec![leader],
        None => topology.members.iter().map(|member| member.node).collect(),
    };
    for node in targets {
        client.admin(node, AdminOperation::SetCeiling(ceiling)).await?;
    }
    Ok(())
}

fn show(ceiling: &Ceiling, format: Format) -> Result<()> {
    let mode = match ceiling.mode {
        Mode::Off => "off",
        Mode::Observe => "observe",
        Mode::On => "on",
    };
    let ejected: Vec<u64> = ceiling.ejected.nodes().map(|node| node.0).collect();
    let share = f64::from(ceiling.share_ppm) / 1e6;
    let budget = ceiling.budget_ppm.map(|ppm| f64::from(ppm) / 1e6);
    if format == Format::Json {
        return output::json(&json!({
            "mode": mode,
            "share": share,
            "copies": ceiling.copies_max,
            "budget": budget,
            "ejected": ejected,
        }));
    }
    let budget = budget.map_or("each client's own".to_owned(), |budget| budget.to_string());
    let out = if ejected.is_empty() { "none".to_owned() } else { format!("{ejected:?}") };
    let text = format!(
        "mode {mode}  share {share}  copies {}  budget {budget}  out for reads: {out}\n",
        ceiling.copies_max
    );
    output::bytes(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(mode: Option<&str>, share: Option<f64>, budget: Option<&str>) -> PolicySet {
        PolicySet { mode: mode.map(str::to_owned), copies: None, budget: budget.map(str::to_owned), share }
    }

    #[test]
    fn what_is_not_named_stays_and_what_can_have_no_effect_is_refused() {
        let known = Ceiling { copies_max: 2, budget_ppm: Some(10_000), share_ppm: 250_000, ..Ceiling::default() };
        let off = changed(known, &set(Some("off"), None, None)).unwrap();
        assert_eq!((off.mode, off.copies_max, off.budget_ppm), (Mode::Off, 2, Some(10_000)));
        let on = changed(off, &set(Some("on"), None, Some("own"))).unwrap();
        assert_eq!((on.mode, on.share_ppm, on.budget_ppm), (Mode::On, 1_000_000, None));
        assert_eq!(changed(on, &set(None, Some(0.1), Some("0.02"))).unwrap().budget_ppm, Some(20_000));
        assert!(changed(off, &set(None, Some(0.1), None)).unwrap_err().to_string().contains("--mode on"));
        assert!(changed(on, &set(Some("maybe"), None, None)).is_err());
        assert!(changed(on, &set(None, None, Some("2"))).is_err());
    }
}
