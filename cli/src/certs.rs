//! `tiedkv certs`: makes the authority and leaves of a cluster, or adds leaves to one.

use crate::args::{Certs, Format};
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Result, anyhow};
use serde_json::json;
use tiedkv_benches::cluster::certs::{Authority, CertsError};
use tiedkv_protocol::ids::NodeId;

/// Runs the command.
///
/// # Errors
/// When nothing is asked for, a file is there already, or a file cannot be written.
pub fn run(args: &Certs, format: Format) -> Result<End> {
    if args.nodes.is_empty() && args.client.is_none() && args.operator.is_none() {
        return Err(usage(anyhow!("nothing to make: name --nodes 1,2,3, --client NAME or --operator NAME")));
    }
    let authority = if args.add { Authority::open(&args.dir) } else { Authority::create(&args.dir) };
    let authority = authority.map_err(sort)?;
    // The first ones have the names that a connection string means when it names none.
    let file = |first: &'static str, name: &str| if args.add { name.to_owned() } else { first.to_owned() };
    let mut made = Vec::new();
    for node in &args.nodes {
        authority.issue_node(NodeId(*node)).map_err(sort)?;
        made.push(format!("node-{node}.pem"));
    }
    if let Some(name) = &args.client {
        let file = file("client", name);
        authority.issue_client(&file, name).map_err(sort)?;
        made.push(format!("{file}.pem"));
    }
    if let Some(name) = &args.operator {
        let file = file("operator", name);
        authority.issue_operator(&file, name).map_err(sort)?;
        made.push(format!("{file}.pem"));
    }
    let (cluster, folder) = (authority.cluster().to_string(), args.dir.display().to_string());
    let secret = args.dir.join("ca.key").display().to_string();
    match format {
        Format::Json => {
            output::json(&json!({ "cluster": cluster, "folder": folder, "made": made, "keep_secret": secret }))?;
        }
        Format::Raw | Format::Table => output::pairs(&[
            ("cluster", cluster),
            ("folder", folder),
            ("made", made.join(", ")),
            ("keep secret", secret),
        ])?,
    }
    Ok(End::Ok)
}

fn sort(error: CertsError) -> anyhow::Error {
    match error {
        CertsError::Randomness(_) | CertsError::Make(_) => error.into(),
        _ => usage(error),
    }
}
