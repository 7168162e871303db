//! `tiedkv bench writes`: three servers on this machine, and what durable writes cost, held against the disk and the link
//! of the same run. Ratios travel between machines, the figures beside them do not.

use crate::args::Format;
use crate::bench_args::BenchWrites;
use crate::figures::{CONNECT_DEADLINE, FigureTable, of_own_cluster};
use crate::outcome::End;
use crate::output;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::Duration;
use tiedkv_benches::cluster::admin_page::fetch;
use tiedkv_benches::cluster::local::LocalCluster;
use tiedkv_benches::load::disk::{SyncFigures, fdatasyncs};
use tiedkv_benches::load::keys::Spread;
use tiedkv_benches::load::mix::{Mix, Op};
use tiedkv_benches::load::mixed::{Handle, Mixed, Pace, run as play};
use tiedkv_benches::load::ping::{Figures as Link, PingLoop, run as ping};
use tiedkv_benches::load::preload::{Writes, preload};
use tiedkv_benches::load::turn_policy::TurnPolicy;
use tiedkv_benches::load::workload::{Sizes, Workload};
use tiedkv_client::{Client, Config, Level, ReadPolicy};

/// Callers of the figures of throughput, of reads, and of the series of memory.
const MANY: usize = 256;
const READERS: usize = 64;
/// Pairs of session and stale gets within a round.
const READ_PAIRS: usize = 4;
const WORKLOAD: Workload = Workload { count: 1_000, sizes: Sizes::of(100) };
/// Writes after which memory is looked at.
const LOOKS: [u64; 8] = [0, 200_000, 500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000, 3_000_000];

/// Runs the command.
///
/// # Errors
/// When a server does not start or answer.
pub async fn run(args: &BenchWrites, format: Format) -> Result<End> {
    of_own_cluster(&args.settings, async |cluster| measure(args, cluster, format).await).await
}

async fn measure(args: &BenchWrites, cluster: &LocalCluster, format: Format) -> Result<()> {
    let stand = Stand::new(cluster, Duration::from_secs(args.seconds.into())).await?;
    let idle_mib = resident_mib(cluster);
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        rounds.push(stand.round().await?);
    }
    let memory = stand.memory(args.writes).await?;
    let document = document(&rounds, &idle_mib, &memory);
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{document:#}\n")).with_context(|| path.display().to_string())?;
    }
    match format {
        Format::Json => output::json(&document),
        Format::Table | Format::Raw => output::bytes(table(&document).as_bytes()),
    }
}

/// The cluster, and clients that read at two levels.
struct Stand<'c> {
    cluster: &'c LocalCluster,
    stale: Client,
    session: Client,
    span: Duration,
}

/// What callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calls {
    Get,
    Put,
}

/// Good calls per second and their latency.
struct Figures {
    ops_per_s: f64,
    p50_us: u64,
    p99_us: u64,
}

/// The figures of one round.
struct Round {
    disk: SyncFigures,
    link: Link,
    one: Figures,
    many: Figures,
    syncs_per_write: f64,
    /// Session over stale, one per pair.
    session_over_stale: Vec<f64>,
}

impl<'c> Stand<'c> {
    async fn new(cluster: &'c LocalCluster, span: Duration) -> Result<Self> {
        let client = async |level| {
            let mut config = Config::from_url(&cluster.url())?;
            config.policy = ReadPolicy::UNTIED;
            config.level = level;
            let client = Client::connect(config).await?;
            client.all_connected(CONNECT_DEADLINE).await?;
            anyhow::Ok(client)
        };
        let stale = client(Level::Stale { bound: None }).await?;
        let session = client(Level::Session).await?;
        preload(&stale, WORKLOAD, &Writes::Replicated, |_| {}).await?;
        session.observe(stale.token())?;
        Ok(Self { cluster, stale, session, span })
    }

    async fn play(&self, client: &Client, calls: Calls, callers: usize, span: Duration) -> Result<Figures> {
        let plan = Mixed {
            pace: Pace::Closed(callers),
            mix: Mix::only(if calls == Calls::Put { Op::Put } else { Op::Get }),
            width: 1,
            rows: 1,
            workload: WORKLOAD,
            spread: Spread::Uniform,
            policies: vec![TurnPolicy::AsSet],
            block: span,
            warm_up: Duration::ZERO,
            measured: span,
            seed: 1,
        };
        let handle = Handle::new(&plan)?;
        play(client, &plan, &handle).await?;
        let figures = handle.figures();
        let op = if calls == Calls::Put { Op::Put } else { Op::Get };
        let played = &figures.calls.first().context("no figures")?[op as usize];
        if let Some(error) = &played.first_error {
            anyhow::bail!("{} calls failed ({calls:?}, {callers} callers), the first: {error}", played.errors);
        }
        Ok(Figures {
            ops_per_s: played.latency.len() as f64 / figures.took.as_secs_f64(),
            p50_us: played.latency.value_at_quantile(0.5),
            p99_us: played.latency.value_at_quantile(0.99),
        })
    }

    async fn round(&self) -> Result<Round> {
        let (folder, span) = (self.cluster.folder().to_owned(), self.span / 2);
        let disk = tokio::task::spawn_blocking(move || fdatasyncs(&folder, span)).await??;
        let address = self.cluster.nodes()[0].ports().client();
        let certs = self.cluster.certs();
        let link = ping(&PingLoop { address, certs: &certs, key: None, concurrency: 1, duration: span }).await?;
        let one = self.play(&self.stale, Calls::Put, 1, self.span).await?;
        let mut session_over_stale = Vec::new();
        for pair in 0..READ_PAIRS {
            // Either goes first as often as the other.
            let clients = if pair % 2 == 0 { [&self.stale, &self.session] } else { [&self.session, &self.stale] };
            let first = self.play(clients[0], Calls::Get, READERS, self.span / 2).await?.ops_per_s;
            let second = self.play(clients[1], Calls::Get, READERS, self.span / 2).await?.ops_per_s;
            session_over_stale.push(if pair % 2 == 0 { second / first } else { first / second });
        }
        let before = self.syncs().await?;
        let many = self.play(&self.stale, Calls::Put, MANY, self.span * 2).await?;
        let after = self.syncs().await?;
        let writes = many.ops_per_s * self.span.as_secs_f64() * 2.0;
        let syncs = before.iter().zip(&after).map(|(before, after)| after - before).max().unwrap_or(0);
        Ok(Round { disk, link, one, many, syncs_per_write: syncs as f64 / writes, session_over_stale })
    }

    /// fsyncs of each node's log since its start.
    async fn syncs(&self) -> Result<Vec<u64>> {
        let mut syncs = Vec::new();
        for node in self.cluster.nodes() {
            let page = fetch(node.ports().admin(), "/status", CONNECT_DEADLINE).await?;
            let page: Value = serde_json::from_str(&page.body)?;
            syncs.push(page["replica"]["log"]["syncs_total"].as_u64().context("no fsyncs in the status page")?);
        }
        Ok(syncs)
    }

    /// Writes `count` values over the same keys: writes so far, MiB of each node.
    async fn memory(&self, count: u64) -> Result<Vec<(u64, Vec<u64>)>> {
        let mut series = Vec::new();
        let mut done = 0;
        for goal in LOOKS.into_iter().filter(|goal| *goal <= count) {
            while done < goal {
                let figures = self.play(&self.stale, Calls::Put, MANY, Duration::from_secs(1)).await?;
                done += figures.ops_per_s as u64;
            }
            series.push((done, resident_mib(self.cluster)));
        }
        Ok(series)
    }
}

/// Resident memory of each node, MiB.
fn resident_mib(cluster: &LocalCluster) -> Vec<u64> {
    let of = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
    };
    cluster.nodes().iter().map(|node| node.pid().and_then(of).unwrap_or(0)).collect()
}

fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn document(rounds: &[Round], idle_mib: &[u64], memory: &[(u64, Vec<u64>)]) -> Value {
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
    let floor = |round: &Round| (round.disk.p50_us + 2 * round.link.p50_us) as f64;
    let ratios = rounds.iter().flat_map(|round| round.session_over_stale.iter().copied());
    json!({
        "rounds": rounds.len(),
        "fdatasyncs_per_s": of(|round| round.disk.per_s),
        "fdatasync_p50_us": of(|round| round.disk.p50_us as f64),
        "round_trip_p50_us": of(|round| round.link.p50_us as f64),
        "put_1_p50_us": of(|round| round.one.p50_us as f64),
        "put_1_over_floor": median(rounds.iter().map(|round| round.one.p50_us as f64 / floor(round))),
        "put_256_per_s": of(|round| round.many.ops_per_s),
        "put_256_p50_us": of(|round| round.many.p50_us as f64),
        "put_256_p99_us": of(|round| round.many.p99_us as f64),
        "put_256_over_fdatasyncs": median(rounds.iter().map(|round| round.many.ops_per_s / round.disk.per_s)),
        "fsyncs_per_put_and_node": of(|round| round.syncs_per_write),
        "session_over_stale": median(ratios.clone()),
        "session_over_stale_all": ratios.collect::<Vec<f64>>(),
        "idle_mib": idle_mib,
        "memory": memory.iter().map(|(writes, mib)| json!({ "writes": writes, "mib": mib })).collect::<Vec<_>>(),
    })
}

fn table(document: &Value) -> String {
    let mut table = FigureTable::of(document);
    table.number("puts/s, 256 callers", "put_256_per_s", 0, ">= 8000");
    table.number("that over one stream of fdatasyncs/s", "put_256_over_fdatasyncs", 2, "");
    table.number("fsyncs per put and node", "fsyncs_per_put_and_node", 3, "< 0.2");
    table.number("put p50, one caller, us", "put_1_p50_us", 0, "");
    table.number("one fdatasync p50, us", "fdatasync_p50_us", 0, "");
    table.number("one round trip p50, us", "round_trip_p50_us", 0, "");
    table.number("put p50 over (fdatasync + 2 round trips)", "put_1_over_floor", 2, "<= 3");
    table.number("session gets/s over stale gets/s, 64 callers", "session_over_stale", 3, ">= 0.95");
    table.row("resident memory of each node, idle, MiB", &mib(&document["idle_mib"]), "< 100");
    for look in document["memory"].as_array().into_iter().flatten() {
        let figure = format!("the same after {} puts in place, MiB", look["writes"]);
        table.row(&figure, &mib(&look["mib"]), "flat");
    }
    table.text()
}

fn mib(nodes: &Value) -> String {
    nodes.as_array().into_iter().flatten().map(Value::to_string).collect::<Vec<_>>().join(" / ")
}
