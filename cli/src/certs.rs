//! `tiedkv certs`: makes the authority and leaves of a cluster, or adds leaves to one.

use crate::args::Certs;
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Result, anyhow};
use tiedkv_benches::cluster::certs::{Authority, CertsError};
use tiedkv_protocol::ids::NodeId;

/// Runs the command.
///
/// # Errors
/// When nothing is asked for, or a file cannot be written.
pub fn run(args: &Certs) -> Result<End> {
    if args.nodes.is_empty() && args.client.is_none() {
        return Err(usage(anyhow!("nothing to make: name --nodes 1,2,3 or --client NAME")));
    }
    let authority = if args.add { Authority::open(&args.dir) } else { Authority::create(&args.dir) };
    let authority = authority.map_err(sort)?;
    for node in &args.nodes {
        authority.issue_node(NodeId(*node)).map_err(sort)?;
    }
    if let Some(client) = &args.client {
        authority.issue_client(client).map_err(sort)?;
    }
    output::pairs(&[
        ("cluster", authority.cluster().to_string()),
        ("folder", args.dir.display().to_string()),
        ("keep secret", args.dir.join("ca.key").display().to_string()),
    ])?;
    Ok(End::Ok)
}

fn sort(error: CertsError) -> anyhow::Error {
    match error {
        CertsError::Randomness(_) | CertsError::Make(_) => error.into(),
        _ => usage(error),
    }
}
