//! What can be typed after `tiedkv bench`. Parses, decides nothing.

use crate::args::Connect;
use crate::bench_data::BenchData;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tiedkv_benches::load::keys::Spread;
use tiedkv_benches::load::mix::{Mix, Op};
use tiedkv_benches::load::workload::Sizes;

#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Busy against idle: scenes times policies on clusters of this machine, beside the theoretical limit
    Busy(BenchBusy),
    /// Load on a cluster of yours: reads and writes, open or closed loop, policies side by side
    Run(BenchRun),
    /// Bare frames on one stream to the first node: the floor that gets are compared with
    Ping(BenchPing),
    /// Starts three servers on this machine and prints what durable writes cost, as ratios
    Writes(BenchWrites),
    /// Starts three servers on this machine and prints what scans, imports and calls for many keys cost
    Data(BenchData),
    /// Starts three servers on this machine and prints what guarantees cost, as ratios
    Levels(BenchLevels),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tiedkv bench ping --cluster \"$URL\" --concurrency 64 --duration 10s --json ping.json")]
pub struct BenchPing {
    #[command(flatten)]
    pub connect: Connect,
    /// Get this key instead of pinging: a get without anything that the client crate does
    #[arg(long, value_name = "KEY")]
    pub get: Option<String>,
    /// Requests out at a time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub concurrency: u32,
    /// How long
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub duration: String,
    /// Also write the figures to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv bench run --cluster \"$URL\" --rate 2000 --duration 30s --policies untied,tied2 --hdr run.hlog
  tiedkv bench run --cluster \"$URL\" --concurrency 16 --policies untied,default --duration 30s
  tiedkv bench run --cluster \"$URL\" --op put --concurrency 256 --duration 10s --json run.json
  tiedkv bench run --cluster \"$URL\" --mix get=85,multi_get=5,put=9,scan=1 --spread zipf --duration 30s

With --rate latencies run from the planned send, so that a server that stands still shows; with
--concurrency they hide such waits, and the rate is the figure. Without --policies reads are
untied and stale unless the URL says otherwise. A policy of --policies is an order: every read
is sent so, whether that pays or not. The name default is what a client does that was told
nothing: tied2+rescue behind the gate, the budget and the hold-out. An interrupt ends the run
and prints what it has.")]
pub struct BenchRun {
    #[command(flatten)]
    pub connect: Connect,
    /// Calls per second on average, whatever became of earlier ones (open loop)
    #[arg(long, value_name = "N", conflicts_with = "concurrency")]
    pub rate: Option<f64>,
    /// Callers, each with one call out at a time (closed loop)
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub concurrency: u32,
    /// What calls do: get, multi_get, put or scan
    #[arg(long, value_name = "KIND", default_value = "get")]
    pub op: Op,
    /// Several kinds of calls and their weights, instead of --op
    #[arg(long, value_name = "KIND=WEIGHT,...", conflicts_with = "op")]
    pub mix: Option<Mix>,
    /// Keys of a multi_get
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub width: u32,
    /// Rows of a scan
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub rows: u32,
    /// Read policies that take turns, for comparison on one cluster: untied,tied2,default
    #[arg(long, value_name = "POLICIES", value_delimiter = ',')]
    pub policies: Vec<String>,
    /// How long each policy has its turn
    #[arg(long, value_name = "SPAN", default_value = "1s")]
    pub block: String,
    /// How long
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub duration: String,
    /// Not counted at the beginning
    #[arg(long, value_name = "SPAN", default_value = "1s")]
    pub warm_up: String,
    /// Keys used, key-00000000 on; they are written first unless all calls write, over what stands there, and stay
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// How calls spread over the keys: uniform, zipf or zipf:EXPONENT
    #[arg(long, value_name = "SPREAD", default_value = "uniform")]
    pub spread: Spread,
    /// Bytes of each value, or a range over which they are evenly spread: 100..4096
    #[arg(long, value_name = "BYTES", default_value = "100")]
    pub value_bytes: Sizes,
    /// Seeds arrivals, keys and the mix
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write the figures to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the histograms to FILE, as an HdrHistogram interval log
    #[arg(long, value_name = "FILE")]
    pub hdr: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv bench busy --quick                                   idle and busy, untied and tied2: about a minute
  tiedkv bench busy --scenes busy,stalls --policies untied,tied2,tied2+rescue --repeats 3 --json run.json
  tiedkv bench busy --scenes none --from a.json --from b.json --report report.html
  tiedkv bench busy --check --json check.json                 against the bounds of docs/benchmarks.md, 40 minutes

  tiedkv bench busy --check --scenes storm,storm60            a part of it

Scenes and policies are listed by --list. Exit code 1: a bound of --check or a relation of
--quick is broken; 6: only relations of latencies of --quick, which a machine that stood still
can break.")]
pub struct BenchBusy {
    /// Scenes, in order: names with commas between them, loads for load10 to load90, services, all, none [default:
    /// idle,busy,hard,load70; with --check: all that it needs]
    #[arg(long, value_name = "SCENES")]
    pub scenes: Option<String>,
    /// Policies: names with commas between them, or all [default: untied,hedged,tied2,tied3,default; with --check: all
    /// that it needs]
    #[arg(long, value_name = "POLICIES")]
    pub policies: Option<String>,
    /// Playings of each cell, interleaved between the policies; 5 unless --quick
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Counted seconds of each playing; 10 unless --quick or --check say otherwise
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: Option<u32>,
    /// Seeds arrivals, keys, jobs and stalls
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Idle and busy, untied and tied2, and whether they relate as they must
    #[arg(long, conflicts_with_all = ["check", "scenes", "policies"])]
    pub quick: bool,
    /// Play what the bounds of the design need, and judge it
    #[arg(long)]
    pub check: bool,
    /// Print the scenes and policies there are, and stop
    #[arg(long)]
    pub list: bool,
    /// Rows of earlier runs (of --json) to add
    #[arg(long, value_name = "FILE")]
    pub from: Vec<PathBuf>,
    /// Leave rows out that are not judged: the machine was too busy or stood still
    #[arg(long)]
    pub judged: bool,
    /// Write every row to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a report to FILE: one HTML page that needs nothing else
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write the report's figures to FOLDER, one SVG each
    #[arg(long, value_name = "FOLDER")]
    pub figures: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv bench writes
  tiedkv bench writes --rounds 1 --writes 0")]
pub struct BenchWrites {
    /// Rounds of all figures, one after another; the table shows their medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Writes over which memory is watched afterwards
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub writes: u64,
    /// Seconds of each figure of a round
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Further settings of the nodes, lines of TOML
    #[arg(long, value_name = "TOML", default_value = "")]
    pub settings: String,
    /// Also write the figures to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tiedkv bench levels --rounds 1 --seconds 1")]
pub struct BenchLevels {
    /// Rounds of all figures, one after another; the table shows their medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Seconds of each figure of a round
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
}
