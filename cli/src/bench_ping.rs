//! `tiedkv bench ping`: bare frames on one stream to the first node of the connection string.

use crate::args::{BenchPing, Format};
use crate::bench_run::print;
use crate::connect::config;
use crate::outcome::{End, usage};
use anyhow::{Context, Result};
use tiedkv_benches::load::ping::{PingLoop, run as play};
use tiedkv_client::options::parse_span;

/// Runs the command.
///
/// # Errors
/// When a flag is wrong or the node does not answer.
pub async fn run(args: &BenchPing, format: Format) -> Result<End> {
    let duration = parse_span(&args.duration).map_err(usage)?;
    let config = config(&args.connect)?;
    let seed = config.seeds.first().context("no address")?;
    let mut addresses = tokio::net::lookup_host(seed).await.with_context(|| seed.clone())?;
    let address = addresses.next().with_context(|| format!("{seed} has no address"))?;
    let plan = PingLoop { address, certs: &config.certs, concurrency: args.concurrency as usize, duration };
    let figures = play(&plan).await?;
    print(&figures, args.json.as_deref(), format)?;
    Ok(End::Ok)
}
