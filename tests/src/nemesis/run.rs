//! One run from start to verdict: cluster, relays, load, faults, healing, last reads, checks; what is kept of a bad one.

use super::Clock;
use super::faults::{Fault, Victims, places};
use super::load::{Count, Seen, Session, counter};
use super::relay::Network;
use crate::check::history::Violation;
use crate::check::{linear, session};
use crate::powercut::library;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tiedkv_benches::cluster::local::{ClusterSpec, LocalCluster};
use tiedkv_benches::cluster::{Device, Storage};
use tiedkv_client::Client;
use tiedkv_client::options::{Level, ReadOptions};
use tiedkv_protocol::request::AdminOperation;
use tokio::task::JoinSet;

/// Sessions, over two clients.
const SESSIONS: u32 = 8;
/// Longest time for the cluster to serve again once all is healed.
const HEALED_MAX: Duration = Duration::from_secs(30);

/// How often a last read is tried again, and the pause between.
const LAST_READS: u32 = 50;
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The `tiedkv` binary.
    pub binary: PathBuf,
    /// How long the load lasts.
    pub span: Duration,
    /// Draws faults and calls.
    pub seed: u64,
    /// How many nodes: 3 or 5.
    pub nodes: usize,
    /// Where seed, history and logs of a run with violations are kept.
    pub kept: PathBuf,
    /// One node answers every read at once from a state that stands still: must be found.
    pub stale_read: bool,
}

/// How it went.
#[derive(Clone, Debug)]
pub struct Report {
    /// Calls made.
    pub operations: u64,
    /// Of these, failed and certainly not applied.
    pub failed: u64,
    /// Faults, in order.
    pub faults: Vec<String>,
    /// What was wrong.
    pub violations: Vec<Violation>,
}

impl Report {
    /// What is said of it, the last line as promised.
    pub fn lines(&self) -> Vec<String> {
        let violation = |one: &Violation| format!("VIOLATION of \"{}\": {}", one.promise, one.what);
        let mut lines: Vec<String> = self.violations.iter().map(violation).collect();
        lines.push(format!("{} faults, {} calls failed and changed nothing", self.faults.len(), self.failed));
        lines.push(format!("{} operations, {} violations", self.operations, self.violations.len()));
        lines
    }
}

/// Runs the nemesis.
///
/// # Errors
/// When the cluster cannot be started, or started again: nothing was judged then.
pub async fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Result<Report, String> {
    // Holds the program that starts nodes; gone after them.
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let mut settings = settings.clone();
    match library::wrap(folder.path(), &settings.binary) {
        Ok(program) => settings.binary = program,
        Err(why) => tell(&format!("no slow disks: {why}")),
    }
    let settings = &settings;
    let (mut cluster, network) = start(settings, &mut tell).await?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        clients.push(Client::connect_url(&cluster.url()).await.map_err(|error| error.to_string())?);
    }
    if settings.stale_read {
        let node = cluster.nodes()[1].id();
        for operation in [AdminOperation::Lag { on: true }, AdminOperation::AnswerEarly { on: true }] {
            let told = clients[0].admin_within(node, operation, Duration::from_secs(5)).await;
            told.map_err(|error| format!("planting: {error}"))?;
        }
    }
    let clock = Clock::start();
    let mut sessions = JoinSet::new();
    for number in 0..SESSIONS {
        let client = &clients[number as usize % clients.len()];
        sessions.spawn(Session::new(number, client, clock, settings.seed).run(settings.span));
    }
    let members = cluster.nodes().iter().map(|node| node.id()).collect();
    let mut victims = Victims { cluster: &mut cluster, network: &network, client: &clients[0], members };
    let faults = play(&mut victims, settings, clock, &mut tell).await?;
    let mut seen = Seen::default();
    while let Some(one) = sessions.join_next().await {
        seen.add(one.map_err(|error| format!("a session: {error}"))?);
    }
    let mut violations = Vec::new();
    if let Err(why) = serves_again(&mut cluster, &clients[0], clock).await {
        violations.push(Violation { promise: "serves again when faults end", what: why });
    }
    let keys: BTreeSet<u32> = seen.calls.iter().map(|call| call.key).collect();
    seen.add(Session::new(SESSIONS, &clients[1], clock, settings.seed).read_all(keys.into_iter()).await);
    violations.extend(linear::violations(&seen.calls));
    violations.extend(session::violations(&seen.calls));
    violations.extend(counters(&clients[0], &seen.counts).await);
    if !violations.is_empty() {
        keep(settings, &cluster, &seen, &faults, &violations).map_err(|error| format!("keeping: {error}"))?;
    }
    Ok(Report { operations: seen.operations(), failed: seen.failed, faults, violations })
}

/// Another process may take a port between its choice and its use, and a machine that is busy with dozens of nodes may
/// not start all in time: then once more, on other ports, and says so.
async fn start(settings: &Settings, tell: &mut impl FnMut(&str)) -> Result<(LocalCluster, Network), String> {
    let mut why = String::new();
    for _ in 0..3 {
        let mut cluster = LocalCluster::spawn(spec(settings)).map_err(|error| error.to_string())?;
        let opened = Network::open(&places(&cluster)).map_err(|error| format!("relays: {error}"));
        let ready = match &opened {
            Ok(_) => cluster.wait_ready().await.map_err(|error| error.to_string()),
            Err(why) => Err(why.clone()),
        };
        match (opened, ready) {
            (Ok(network), Ok(())) => return Ok((cluster, network)),
            (_, Err(error)) | (Err(error), _) => why = error,
        }
        tell(&format!("the cluster is started again: {why}"));
    }
    Err(why)
}

fn spec(settings: &Settings) -> ClusterSpec {
    let mut spec = ClusterSpec::of(&settings.binary);
    spec.nodes = settings.nodes;
    spec.relayed_by_caller = true;
    spec.ready_deadline = HEALED_MAX;
    spec.settings.device = Device::Modelled;
    spec.settings.service_mean_us = 500;
    spec.settings.lanes = 2;
    spec.settings.storage = Storage::Disk;
    spec.settings.faults = true;
    spec.settings.seed = settings.seed;
    spec
}

/// Faults one after the other until the load ends; all is healed then.
async fn play(
    victims: &mut Victims<'_>,
    settings: &Settings,
    clock: Clock,
    tell: &mut impl FnMut(&str),
) -> Result<Vec<String>, String> {
    let mut random = StdRng::seed_from_u64(settings.seed);
    let (mut round, mut done) = (Vec::new(), Vec::new());
    loop {
        let fault = match round.pop() {
            Some(fault) => fault,
            None => {
                round = Fault::round(&mut random);
                continue;
            }
        };
        let (calm, lasts) = (random.random_range(200..900), random.random_range(400..2_000));
        let (calm, lasts) = (Duration::from_millis(calm), Duration::from_millis(lasts));
        if clock.now() + calm + lasts > settings.span {
            return Ok(done);
        }
        tokio::time::sleep(calm).await;
        let struck = victims.begin(fault, &mut random).await;
        let names: Vec<String> = struck.iter().map(ToString::to_string).collect();
        let line = format!("{:7.2} s for {lasts:.1?}: {fault} ({})", clock.now().as_secs_f64(), names.join(", "));
        tell(&line);
        done.push(line);
        tokio::time::sleep(lasts).await;
        victims.heal(fault, &struck).await?;
    }
}

async fn serves_again(cluster: &mut LocalCluster, client: &Client, clock: Clock) -> Result<(), String> {
    cluster.check_all_run().map_err(|error| error.to_string())?;
    cluster.wait_ready().await.map_err(|error| error.to_string())?;
    let end = clock.now() + HEALED_MAX;
    let mut last = String::new();
    while clock.now() < end {
        match client.put("healed", "yes").await {
            Ok(_) => return client.all_connected(HEALED_MAX).await.map_err(|error| error.to_string()),
            Err(error) => last = error.to_string(),
        }
    }
    Err(format!("no write within {HEALED_MAX:?}: {last}"))
}

/// No increment is lost or counted twice, and no two make the same number.
async fn counters(client: &Client, counts: &[Count]) -> Vec<Violation> {
    let mut of: BTreeMap<u32, Vec<&Count>> = BTreeMap::new();
    for count in counts {
        of.entry(count.counter).or_default().push(count);
    }
    let mut found = Vec::new();
    for (name, counts) in of {
        let numbers: Vec<i64> = counts.iter().filter_map(|count| count.number).collect();
        let distinct: BTreeSet<i64> = numbers.iter().copied().collect();
        if distinct.len() != numbers.len() {
            let what = format!("two increments of {} made the same number: {numbers:?}", counter(name));
            found.push(Violation { promise: "applied exactly once", what });
        }
        let options = ReadOptions {
            level: Some(Level::Linearizable),
            deadline: Some(Duration::from_secs(10)),
            ..ReadOptions::default()
        };
        let mut read = client.get_with(counter(name), options.clone()).await;
        for _ in 0..LAST_READS {
            // A busy machine may answer no barrier in time: that is an error of the read, not of the state.
            if read.is_ok() {
                break;
            }
            tokio::time::sleep(LAST_PAUSE).await;
            read = client.get_with(counter(name), options.clone()).await;
        }
        let last = match read {
            Ok(read) => read.value.map_or(0, |value| String::from_utf8_lossy(&value.value).parse().unwrap_or(-1)),
            Err(error) => {
                let what = format!("{} cannot be read when all is healed: {error}", counter(name));
                found.push(Violation { promise: "serves again when faults end", what });
                continue;
            }
        };
        let acknowledged = counts.iter().filter(|count| count.acknowledged).count();
        if !(acknowledged..=counts.len()).contains(&usize::try_from(last).unwrap_or(usize::MAX)) {
            let what = format!(
                "{} is {last} after {acknowledged} acknowledged and {} unknown increments by one",
                counter(name),
                counts.len() - acknowledged
            );
            found.push(Violation { promise: "applied exactly once", what });
        }
    }
    found
}

/// Writes what is needed to look into a bad run.
fn keep(
    settings: &Settings,
    cluster: &LocalCluster,
    seen: &Seen,
    faults: &[String],
    violations: &[Violation],
) -> std::io::Result<()> {
    let folder: &Path = &settings.kept.join(format!("nemesis-{}", settings.seed));
    std::fs::create_dir_all(folder)?;
    let mut text = format!("seed {}, {} nodes, {:?}\n\n", settings.seed, settings.nodes, settings.span);
    for line in faults {
        text.push_str(&format!("{line}\n"));
    }
    for violation in violations {
        text.push_str(&format!("\n{}: {}\n", violation.promise, violation.what));
    }
    std::fs::write(folder.join("report.txt"), text)?;
    let calls: Vec<String> = seen.calls.iter().map(|call| format!("{call:?}\n")).collect();
    std::fs::write(folder.join("history.txt"), calls.concat())?;
    for node in cluster.nodes() {
        std::fs::copy(node.log(), folder.join(format!("node-{}.log", node.id().0)))?;
    }
    Ok(())
}
