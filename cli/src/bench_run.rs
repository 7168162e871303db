//! `tiedkv bench run`: a closed loop against a running cluster.

use crate::args::{BenchRun, Format, Operation};
use crate::connect::{config, url};
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::Path;
use tiedkv_benches::load::closed::{Calls, ClosedLoop, Figures, run as play};
use tiedkv_benches::load::preload::{Writes, preload};
use tiedkv_benches::load::workload::Workload;
use tiedkv_client::options::parse_span;
use tiedkv_client::{Client, Level, ReadPolicy};

/// Runs the command. Reads are untied and stale unless the connection string says otherwise.
///
/// # Errors
/// When a flag is wrong or the cluster does not answer. Failed calls are counted.
pub async fn run(args: &BenchRun, format: Format) -> Result<End> {
    let duration = parse_span(&args.duration).map_err(usage)?;
    let mut config = config(&args.connect)?;
    let url = url(&args.connect)?;
    if !names(url, "policy") {
        config.policy = ReadPolicy::UNTIED;
    }
    if !names(url, "read") {
        config.level = Level::Stale { bound: None };
    }
    let client = Client::connect(config).await?;
    let workload = Workload { count: args.keys, value_bytes: args.value_bytes };
    if args.op == Operation::Get {
        preload(&client, workload, &writes(&client), |_| {}).await?;
    }
    let calls = match args.op {
        Operation::Get => Calls::Get,
        Operation::Put => Calls::Put,
    };
    let plan = ClosedLoop { calls, concurrency: args.concurrency as usize, duration, workload };
    let figures = play(&client, &plan).await?;
    client.close();
    print(&figures, args.json.as_deref(), format)?;
    Ok(End::Ok)
}

/// Whether the connection string sets `name` itself.
fn names(url: &str, name: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').any(|pair| pair.split('=').next() == Some(name))
}

/// Replicated if somebody leads; otherwise every node is written to.
fn writes(client: &Client) -> Writes {
    let topology = client.topology();
    match topology.leader {
        Some(_) => Writes::Replicated,
        None => Writes::ToEveryNode(topology.members.iter().map(|member| member.node).collect()),
    }
}

/// Writes the figures to `file`, if asked for, and prints them.
///
/// # Errors
/// When the file cannot be written or standard output is closed.
pub fn print(figures: &Figures, file: Option<&Path>, format: Format) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_of_the_url_is_seen() {
        let url = "tiedkv://a:1/?certs=x&policy=tied2";
        assert!(names(url, "policy") && !names(url, "read"));
    }
}
