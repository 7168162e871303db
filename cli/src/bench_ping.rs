//! `tiedkv bench ping`: bare pings or gets on one stream to the first node of the connection string.

use crate::args::Format;
use crate::bench_args::BenchPing;
use crate::bench_run::span;
use crate::connect::config;
use crate::escape::unescape;
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::Path;
use tiedkv_benches::load::ping::{Figures, PingLoop, run as play};

/// Runs the command.
///
/// # Errors
/// When a flag is wrong or the node does not answer.
pub async fn run(args: &BenchPing, format: Format) -> Result<End> {
    let duration = span("--duration", &args.duration)?;
    let config = config(&args.connect)?;
    let seed = config.seeds.first().context("no address")?;
    let mut addresses = tokio::net::lookup_host(seed).await.with_context(|| seed.clone())?;
    let address = addresses.next().with_context(|| format!("{seed} has no address"))?;
    let key = args.get.as_deref().map(unescape).transpose().map_err(usage)?;
    let plan = PingLoop { address, certs: &config.certs, key, concurrency: args.concurrency as usize, duration };
    let figures = play(&plan).await?;
    print(&figures, args.json.as_deref(), format)?;
    Ok(End::Ok)
}

/// Writes the figures to `file`, if asked for, and prints them.
///
/// # Errors
/// When the file cannot be written or standard output is closed.
fn print(figures: &Figures, file: Option<&Path>, format: Format) -> Result<()> {
    let document = json!({
        "ops_per_s": figures.ops_per_s,
        "p50_us": figures.p50_us,
        "p99_us": figures.p99_us,
        "errors": figures.errors,
        "cpu_us_per_op": figures.cpu_us_per_op,
    });
    if let Some(path) = file {
        std::fs::write(path, format!("{document:#}\n")).with_context(|| path.display().to_string())?;
    }
    match format {
        Format::Json => output::json(&document),
        Format::Table | Format::Raw => output::pairs(&[
            ("ops/s", format!("{:.0}", figures.ops_per_s)),
            ("p50", format!("{} us", figures.p50_us)),
            ("p99", format!("{} us", figures.p99_us)),
            ("errors", figures.errors.to_string()),
            ("cpu/op", format!("{:.1} us (this process only)", figures.cpu_us_per_op)),
        ]),
    }
}
