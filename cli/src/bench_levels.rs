//! `tiedkv bench levels`: three servers on this machine, and what guarantees cost, as ratios of one run. Reads are untied and
//! spread over all replicas, so two of three linearizable ones ask the leader over the network.

use crate::args::Format;
use crate::bench_args::BenchLevels;
use crate::figures::{CONNECT_DEADLINE, FigureTable, of_own_cluster};
use crate::outcome::End;
use crate::output;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tiedkv_benches::clock;
use tiedkv_benches::cluster::local::LocalCluster;
use tiedkv_benches::load::ping::{PingLoop, run as ping};
use tiedkv_client::{Client, Config, Expect, Level, ReadOptions, ReadPolicy, View, WriteOptions};
use tokio::task::JoinSet;

const MANY: u32 = 64;

/// Runs the command.
///
/// # Errors
/// When a server does not start or answer.
pub async fn run(args: &BenchLevels, format: Format) -> Result<End> {
    of_own_cluster("", async |cluster| measure(args, cluster, format).await).await
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Put,
    CompareAndSet,
    Get(Level),
}

const SESSION: Call = Call::Get(Level::Session);
const STALE: Call = Call::Get(Level::Stale { bound: None });
const LINEARIZABLE: Call = Call::Get(Level::Linearizable);

/// Calls per second and their median, microseconds.
#[derive(Clone, Copy)]
struct Figures {
    per_s: f64,
    p50_us: f64,
}

async fn measure(args: &BenchLevels, cluster: &LocalCluster, format: Format) -> Result<()> {
    let client = Client::connect(Config::from_url(&cluster.url())?).await?;
    client.all_connected(CONNECT_DEADLINE).await?;
    let span = Duration::from_secs(args.seconds.into());
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        let address = cluster.nodes()[0].ports().client();
        let certs = cluster.certs();
        let link =
            ping(&PingLoop { address, certs: &certs, key: None, concurrency: 1, duration: span / 2 }).await?;
        // One, other, other, one: what drifts, such as the state of disk and tables, hits both alike.
        let pair = async |one, other, callers| {
            let calls = if round % 2 == 0 { [one, other] } else { [other, one] };
            let first = play(&client, calls[0], callers, span / 2).await?;
            let second = play(&client, calls[1], callers, span).await?;
            let first = first.and(play(&client, calls[0], callers, span / 2).await?);
            anyhow::Ok(if round % 2 == 0 { (first, second) } else { (second, first) })
        };
        let (linearizable, session) = pair(LINEARIZABLE, SESSION, MANY).await?;
        let (waited, stale) = pair(SESSION, STALE, MANY).await?;
        let (alone, bare) = pair(LINEARIZABLE, STALE, 1).await?;
        let (cas, put) = pair(Call::CompareAndSet, Call::Put, MANY).await?;
        let trip = link.p50_us as f64;
        rounds.push(json!({
            "linearizable_64_per_s": linearizable.per_s,
            "session_64_per_s": session.per_s,
            "linearizable_over_session": linearizable.per_s / session.per_s,
            "session_over_stale": waited.per_s / stale.per_s,
            "round_trip_p50_us": trip,
            "linearizable_1_p50_us": alone.p50_us,
            "stale_1_p50_us": bare.p50_us,
            "extra_over_trip_and_quorum": (alone.p50_us - bare.p50_us) / (2.0 * trip),
            "cas_over_put": cas.per_s / put.per_s,
        }));
    }
    let document = json!({ "rounds": rounds.len(), "median": medians(&rounds), "all": rounds });
    match format {
        Format::Json => output::json(&document),
        Format::Table | Format::Raw => output::bytes(table(&document["median"]).as_bytes()),
    }
}

impl Figures {
    /// Of two plays of the same length.
    fn and(self, other: Self) -> Self {
        let half = |one: f64, other: f64| (one + other) / 2.0;
        Self { per_s: half(self.per_s, other.per_s), p50_us: half(self.p50_us, other.p50_us) }
    }
}

/// So many callers, each with a key of its own and one call out at a time.
async fn play(client: &Client, call: Call, callers: u32, span: Duration) -> Result<Figures> {
    let end = clock::now() + span;
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let view = client.view(u64::from(caller));
        tasks.spawn(one(view, format!("caller {caller}"), call, end));
    }
    let mut spans = Vec::new();
    while let Some(own) = tasks.join_next().await {
        spans.extend(own??);
    }
    spans.sort_unstable();
    let p50 = spans.get(spans.len() / 2).context("no calls")?;
    Ok(Figures { per_s: spans.len() as f64 / span.as_secs_f64(), p50_us: p50.as_secs_f64() * 1e6 })
}

async fn one(view: View, key: String, call: Call, end: Instant) -> Result<Vec<Duration>> {
    let (value, mut spans) = ("x".repeat(100), Vec::new());
    let mut last = view.put_with(key.clone(), value.clone(), WriteOptions::default()).await?.version;
    while clock::now() < end {
        let began = clock::now();
        match call {
            Call::Put => drop(view.put_with(key.clone(), value.clone(), WriteOptions::default()).await?),
            Call::CompareAndSet => {
                let expect = Expect::Version(last);
                let set = view.compare_and_set(key.clone(), expect, value.clone(), WriteOptions::default()).await?;
                last = set.applied().context("nobody else writes this key")?.version;
            }
            Call::Get(level) => {
                let (policy, level) = (Some(ReadPolicy::UNTIED), Some(level));
                view.get_with(key.clone(), ReadOptions { policy, level, ..ReadOptions::default() }).await?;
            }
        }
        spans.push(began.elapsed());
    }
    Ok(spans)
}

fn medians(rounds: &[Value]) -> Value {
    let names = rounds.first().and_then(Value::as_object).into_iter().flat_map(|round| round.keys());
    let median = |name: &String| {
        let mut figures: Vec<f64> = rounds.iter().filter_map(|round| round[name].as_f64()).collect();
        figures.sort_unstable_by(f64::total_cmp);
        (name.clone(), json!(figures.get(figures.len() / 2)))
    };
    Value::Object(names.map(median).collect())
}

fn table(median: &Value) -> String {
    let mut table = FigureTable::of(median);
    table.number("session gets/s, 64 callers", "session_64_per_s", 0, "");
    table.number("linearizable gets/s over that", "linearizable_over_session", 2, ">= 0.4");
    table.number("session gets/s over stale gets/s", "session_over_stale", 3, ">= 0.95");
    table.number("one round trip p50, us", "round_trip_p50_us", 0, "");
    table.number("stale get p50, one caller, us", "stale_1_p50_us", 0, "");
    table.number("linearizable get p50, one caller, us", "linearizable_1_p50_us", 0, "");
    table.number("what it takes longer, over two round trips", "extra_over_trip_and_quorum", 2, "<= 1.2");
    table.number("compare-and-sets/s over puts/s, 64 callers", "cas_over_put", 2, ">= 0.9");
    table.text()
}
