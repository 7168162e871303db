//! `tiedkv bench data`: three servers on this machine (on disk, real device), and what many keys at once cost: rows
//! imported, rows scanned, and a call for 100 keys beside one get.

use crate::args::Format;
use crate::figures::{CONNECT_DEADLINE, FigureTable, of_own_cluster};
use crate::import::Importing;
use crate::lines;
use crate::outcome::End;
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tiedkv_benches::clock;
use tiedkv_benches::cluster::local::LocalCluster;
use tiedkv_benches::load::workload::{Sizes, Workload};
use tiedkv_client::{Client, Config, Level, Operation, ReadPolicy, Row, ScanOptions, ScanRange};
use tiedkv_protocol::ids::Version;

/// Bytes of each value.
const VALUE_BYTES: usize = 100;
/// Keys of one call for many.
const HOT_KEYS: u64 = 100;
/// How long one kind of call has the machine before the other has its turn.
const BLOCK: Duration = Duration::from_millis(200);
/// Batches of the import that are out at a time: what `tiedkv import` does unless told otherwise.
const CONCURRENCY: usize = 16;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tiedkv bench data
  tiedkv bench data --rounds 1 --rows 50000 -o json")]
pub struct BenchData {
    /// Rounds of all figures, one after another; the table shows their medians
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Rows with values of 100 bytes
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub rows: u64,
    /// Seconds of the gets, and as many of the calls for many keys, of a round
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub seconds: u32,
    /// Further settings of the client, as in a connection string
    #[arg(long, value_name = "SETTINGS", default_value = "")]
    pub client: String,
    /// Also write the figures to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// When a server does not start or answer, or a row is missing.
pub async fn run(args: &BenchData, format: Format) -> Result<End> {
    of_own_cluster("", async |cluster| measure(args, cluster, format).await).await
}

async fn measure(args: &BenchData, cluster: &LocalCluster, format: Format) -> Result<()> {
    let workload = Workload { count: args.rows, sizes: Sizes::of(VALUE_BYTES) };
    let file = cluster.folder().join("rows.jsonl");
    write_rows(&file, workload).context("the rows to import")?;
    let settings = if args.client.is_empty() { String::new() } else { format!("&{}", args.client) };
    let mut config = Config::from_url(&(cluster.url() + &settings))?;
    config.policy = ReadPolicy::UNTIED;
    config.level = Level::Session;
    let client = Client::connect(config).await?;
    client.all_connected(CONNECT_DEADLINE).await?;
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        rounds.push(round(&client, &file, workload, Duration::from_secs(args.seconds.into())).await?);
    }
    client.close();
    let document = document(args.rows, &rounds);
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{document:#}\n")).with_context(|| path.display().to_string())?;
    }
    match format {
        Format::Json => output::json(&document),
        Format::Table | Format::Raw => output::bytes(table(&document).as_bytes()),
    }
}

fn write_rows(path: &std::path::Path, workload: Workload) -> Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    let mut line = Vec::new();
    for number in 0..workload.count {
        line.clear();
        let (key, value) = (workload.key(number), workload.value(number));
        lines::write_row(&Row { key, value, version: Version(0), remaining_ms: None }, &mut line);
        out.write_all(&line)?;
    }
    line.clear();
    lines::write_end(workload.count, &mut line);
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// The figures of one round.
struct Round {
    imported_per_s: f64,
    scanned_per_s: f64,
    counted_per_s: f64,
    get_p50: Duration,
    many_p50: Duration,
    /// Copies that a call for many sent.
    copies_per_many: f64,
    /// Processor time of this process per scanned row.
    cpu_us_per_row: f64,
    /// The same per key of a call for many.
    cpu_us_per_key: f64,
}

async fn round(client: &Client, file: &std::path::Path, workload: Workload, span: Duration) -> Result<Round> {
    let rows = workload.count as f64;
    let begun = clock::now();
    let input = BufReader::new(std::fs::File::open(file)?);
    let mut importing = Importing::new(client.clone(), CONCURRENCY);
    importing.run(input, 0, |_| {}).await?;
    let imported_per_s = rows / begun.elapsed().as_secs_f64();

    let (begun, cpu) = (clock::now(), tiedkv_benches::load::cpu::own());
    let mut scan = client.scan(&ScanRange::all(), ScanOptions::default())?;
    let mut seen = 0_u64;
    while let Some(row) = scan.next().await? {
        ensure!(row.value.len() == VALUE_BYTES, "a value of {} bytes", row.value.len());
        seen += 1;
    }
    let took = begun.elapsed().as_secs_f64();
    let cpu = tiedkv_benches::load::cpu::own().saturating_sub(cpu);
    ensure!(seen == workload.count, "{seen} of {} rows were scanned", workload.count);

    let begun = clock::now();
    ensure!(client.count(&ScanRange::all()).await? == workload.count, "not all rows were counted");
    let counted_per_s = rows / begun.elapsed().as_secs_f64();

    let sent =
        || client.stats().of(Operation::MultiGet, ReadPolicy::UNTIED).map_or(0, |stats| stats.copies.sent.total());
    let (mut gets, mut many, mut many_cpu, sent_before) = (Vec::new(), Vec::new(), Duration::ZERO, sent());
    let end = clock::now() + 2 * span;
    // In blocks that take turns, so that both meet the same machine, each with caches of its own making.
    while clock::now() < end {
        let block = clock::now();
        while block.elapsed() < BLOCK {
            gets.push(timed(async |number| client.get(workload.key(number)).await.map(drop), gets.len()).await?);
        }
        let (block, cpu) = (clock::now(), tiedkv_benches::load::cpu::own());
        while block.elapsed() < BLOCK {
            many.push(timed(async |_| hot(client, workload).await, many.len()).await?);
        }
        many_cpu += tiedkv_benches::load::cpu::own().saturating_sub(cpu);
    }
    Ok(Round {
        imported_per_s,
        scanned_per_s: rows / took,
        counted_per_s,
        cpu_us_per_key: many_cpu.as_secs_f64() * 1e6 / (many.len() as u64 * HOT_KEYS) as f64,
        get_p50: median(gets),
        copies_per_many: (sent() - sent_before) as f64 / many.len() as f64,
        many_p50: median(many),
        cpu_us_per_row: cpu.as_secs_f64() * 1e6 / rows,
    })
}

async fn timed<E: Into<anyhow::Error>>(
    call: impl AsyncFnOnce(u64) -> Result<(), E>,
    turn: usize,
) -> Result<Duration> {
    let begun: Instant = clock::now();
    call(turn as u64 % HOT_KEYS).await.map_err(Into::into)?;
    Ok(begun.elapsed())
}

async fn hot(client: &Client, workload: Workload) -> Result<()> {
    let keys = (0..HOT_KEYS).map(|number| workload.key(number));
    let read = client.multi_get(keys).send().await?;
    ensure!(read.values.iter().all(Option::is_some), "a key was absent");
    Ok(())
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans.get(spans.len() / 2).copied().unwrap_or_default()
}

fn document(rows: u64, rounds: &[Round]) -> Value {
    let of = |figure: &dyn Fn(&Round) -> f64| {
        let mut figures: Vec<f64> = rounds.iter().map(figure).collect();
        figures.sort_unstable_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let us = |span: Duration| span.as_secs_f64() * 1e6;
    json!({
        "rows": rows,
        "rounds": rounds.len(),
        "imported_rows_per_s": of(&|round| round.imported_per_s),
        "scanned_rows_per_s": of(&|round| round.scanned_per_s),
        "scan_cpu_us_per_row": of(&|round| round.cpu_us_per_row),
        "counted_rows_per_s": of(&|round| round.counted_per_s),
        "get_p50_us": of(&|round| us(round.get_p50)),
        "multi_get_cpu_us_per_key": of(&|round| round.cpu_us_per_key),
        "multi_get_100_copies": of(&|round| round.copies_per_many),
        "multi_get_100_p50_us": of(&|round| us(round.many_p50)),
        "multi_get_100_over_get": of(&|round| us(round.many_p50) / us(round.get_p50)),
    })
}

fn table(document: &Value) -> String {
    let mut table = FigureTable::of(document);
    table.number("rows of 100 bytes scanned per second, one client", "scanned_rows_per_s", 0, ">= 400000");
    table.number("rows counted per second", "counted_rows_per_s", 0, "");
    table.number("rows imported per second, three nodes", "imported_rows_per_s", 0, ">= 30000");
    table.number("get p50, one caller, us", "get_p50_us", 0, "");
    table.number("multi_get of 100 keys p50, us", "multi_get_100_p50_us", 0, "");
    table.number("copies that it sent, mean", "multi_get_100_copies", 1, "");
    table.number("that over the get", "multi_get_100_over_get", 2, "<= 3");
    table.text()
}
