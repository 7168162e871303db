//! Writes the keys of a workload before it is read, through the client crate.

use super::workload::Workload;
use anyhow::{Context, Result};
use std::time::Duration;
use tiedkv_client::{Client, WriteOptions};
use tiedkv_protocol::ids::NodeId;
use tokio::task::JoinSet;

/// Writes that are out at the same time.
const OUT_MAX: usize = 256;
/// Longest wait for one write, retries included.
const DEADLINE: Duration = Duration::from_secs(10);

/// How writes reach all replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writes {
    /// Each key is written once; the cluster replicates it.
    Replicated,
    /// Each key is written to each of these nodes: nothing is replicated.
    ToEveryNode(Vec<NodeId>),
}

/// Writes all keys; `progress` is told how many keys are done.
///
/// # Errors
/// The first write that fails ends it.
///
/// # Cancel safety
/// Some keys may be written.
pub async fn preload(
    client: &Client,
    workload: Workload,
    writes: &Writes,
    mut progress: impl FnMut(u64),
) -> Result<()> {
    let mut out: JoinSet<Result<()>> = JoinSet::new();
    let mut done = 0;
    for number in 0..workload.count {
        while out.len() >= OUT_MAX {
            if let Some(written) = out.join_next().await {
                written.context("a write was lost")??;
                done += 1;
                progress(done);
            }
        }
        out.spawn(write(client.clone(), workload, number, writes.clone()));
    }
    while let Some(written) = out.join_next().await {
        written.context("a write was lost")??;
        done += 1;
        progress(done);
    }
    Ok(())
}

async fn write(client: Client, workload: Workload, number: u64, writes: Writes) -> Result<()> {
    let nodes = match writes {
        Writes::Replicated => vec![None],
        Writes::ToEveryNode(nodes) => nodes.into_iter().map(Some).collect(),
    };
    for node in nodes {
        let options = WriteOptions { deadline: Some(DEADLINE), node, ..WriteOptions::default() };
        let written = client.put_with(workload.key(number), workload.value(number), options).await;
        written.with_context(|| format!("writing key {number}"))?;
    }
    Ok(())
}
