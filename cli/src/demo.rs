//! `tiedkv demo`: three server processes on this machine, 20,000 keys, five scenes, one table.
//!
//! Whatever ends it (done, an error, a signal), the servers are stopped and their folder is removed.

use crate::args::{Demo, Device, Format, Storage};
use crate::outcome::{End, usage};
use crate::output;
use crate::progress::bar;
use crate::signals::Signals;
use anyhow::{Context, Result, anyhow};
use std::time::Duration;
use tiedkv_benches::cluster::local::{ClusterSpec, LocalCluster};
use tiedkv_benches::cluster::{self};
use tiedkv_benches::load::machine::Machine;
use tiedkv_benches::load::preload::{Writes, preload};
use tiedkv_benches::load::workload::Workload;
use tiedkv_benches::report::{Row, conditions, sentence, table, to_json};
use tiedkv_benches::scenes::{Profile, Stage};
use tiedkv_client::{Client, Config, Level};

/// Longest wait for the client to reach all three nodes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Scenes that are played again because the machine was disturbed, in all: the demo ends within 90 s nevertheless.
const PLAYED_AGAIN_MAX: u32 = 2;
/// Longest wait for the servers to stop in order; then they are killed.
const STOP_DEADLINE: Duration = Duration::from_secs(3);

/// Runs the command.
///
/// # Errors
/// When the cluster does not start or cannot be measured.
pub async fn run(args: &Demo, format: Format) -> Result<End> {
    if format == Format::Raw {
        return Err(usage(anyhow!("the demo prints its rows as a table or as JSON: -o raw has no meaning here")));
    }
    if args.device == Device::Real && !args.scenes.0.is_empty() {
        return Err(usage(anyhow!(
            "--device real needs --scenes none: the scenes are a profile of the modelled device"
        )));
    }
    let mut signals = Signals::listen()?;
    let spec = spec(args)?;
    let mut cluster = tokio::select! {
        cluster = LocalCluster::start(spec) => cluster?,
        () = signals.next() => return Ok(End::Interrupted),
    };
    let end = tokio::select! {
        played = play(args, format, &mut cluster) => played.map(|()| End::Ok),
        () = signals.next() => Ok(End::Interrupted),
    };
    let end = match end {
        Ok(End::Ok) if args.keep => keep(&cluster, &mut signals).await,
        // A server that died explains more than the call that failed because of it.
        Err(error) => Err(match cluster.check_all_run() {
            Err(dead) => error.context(dead.to_string()),
            Ok(()) => error,
        }),
        end => end,
    };
    cluster.stop_all(STOP_DEADLINE).await;
    end
}

async fn keep(cluster: &LocalCluster, signals: &mut Signals) -> Result<End> {
    eprintln!("the cluster stays up until Ctrl-C; its URL works in every command (--cluster):");
    output::bytes(format!("{}\n", cluster.url()).as_bytes())?;
    signals.next().await;
    Ok(End::Ok)
}

fn spec(args: &Demo) -> Result<ClusterSpec> {
    let mut spec = ClusterSpec::of_this_program().context("the path of this program")?;
    spec.settings.device = match args.device {
        Device::Real => cluster::Device::Real,
        Device::Modelled => cluster::Device::Modelled,
    };
    spec.settings.storage = match args.storage {
        Storage::Memory => cluster::Storage::Memory,
        Storage::Disk => cluster::Storage::Disk,
    };
    Ok(spec)
}

async fn play(args: &Demo, format: Format, cluster: &mut LocalCluster) -> Result<()> {
    if args.scenes.0.is_empty() {
        return Ok(());
    }
    let settings = if args.client.is_empty() { String::new() } else { format!("&{}", args.client) };
    let config = Config::from_url(&(cluster.url() + &settings)).map_err(usage)?;
    let client = Client::connect(config).await?;
    client.all_connected(CONNECT_DEADLINE).await?;
    let replicated = args.storage == Storage::Disk;
    let profile = Profile {
        warm_up: Duration::from_secs(args.seconds.into()) / 6,
        measured: Duration::from_secs(args.seconds.into()) * 5 / 6,
        level: if replicated { Level::Session } else { Level::Stale { bound: None } },
        ..Profile::default()
    };
    load(&client, cluster, profile.workload, replicated).await?;
    let rows = measure(args, &client, cluster, profile).await?;
    client.close();
    let document = to_json(&rows)? + "\n";
    match format {
        Format::Json => output::bytes(document.as_bytes())?,
        Format::Table | Format::Raw => output::bytes(text(&rows, replicated).as_bytes())?,
    }
    if let Some(path) = &args.json {
        std::fs::write(path, document).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

async fn load(client: &Client, cluster: &LocalCluster, workload: Workload, replicated: bool) -> Result<()> {
    let nodes = cluster.nodes().iter().map(|node| node.id()).collect();
    let writes = if replicated { Writes::Replicated } else { Writes::ToEveryNode(nodes) };
    let bar = bar(workload.count, "loading keys");
    preload(client, workload, &writes, |done| bar.set_position(done)).await?;
    bar.finish_and_clear();
    Ok(())
}

async fn measure(args: &Demo, client: &Client, cluster: &mut LocalCluster, profile: Profile) -> Result<Vec<Row>> {
    let pids = cluster.nodes().iter().filter_map(|node| node.pid()).collect();
    let stage = Stage::new(client, pids, profile);
    let scene_ms = (profile.warm_up + profile.measured).as_millis() as u64;
    let bar = bar(scene_ms * args.scenes.0.len() as u64, "");
    let (mut rows, mut again) = (Vec::new(), PLAYED_AGAIN_MAX);
    for (index, scene) in args.scenes.0.iter().copied().enumerate() {
        bar.set_message(format!("{} {}", scene.name.name(), scene.policy));
        let before = scene_ms * index as u64;
        let name = format!("{} {}", scene.name.name(), scene.policy);
        let played = loop {
            let played = stage.play(scene, |at| bar.set_position(before + at.as_millis() as u64)).await;
            cluster.check_all_run()?;
            let played = played.with_context(|| format!("scene {name}"))?;
            if !played.machine.is_disturbed() {
                break played;
            }
            let machine = disturbed(&played.machine);
            if again == 0 {
                bar.suspend(|| eprintln!("{name}: {machine}; its figures say little"));
                break played;
            }
            again -= 1;
            bar.suspend(|| eprintln!("{name}: {machine}; played again"));
        };
        if let Some(error) = &played.outcome.first_error {
            bar.suspend(|| eprintln!("{name}: first error: {error}"));
        }
        if args.details {
            let (machine, details) = (disturbed(&played.machine), played.outcome.details());
            let troubles = if played.troubles.is_empty() { "none" } else { &played.troubles };
            bar.suspend(|| eprint!("{name} (p50, p90, p99 in us)\n{details}  {machine}\n  troubles: {troubles}\n"));
        }
        rows.push(played.row);
    }
    bar.finish_and_clear();
    Ok(rows)
}

fn disturbed(machine: &Machine) -> String {
    format!(
        "the machine: {:.0} % busy, {:.1} % taken by its host, {:.2} % at a standstill, longest {} ms",
        machine.busy_pct,
        machine.steal_pct,
        machine.standstill_pct,
        machine.standstill_max.as_millis()
    )
}

fn text(rows: &[Row], replicated: bool) -> String {
    let mut text = table(rows);
    text.push_str(&conditions(replicated, true));
    text.push('\n');
    if let Some(sentence) = sentence(rows) {
        text.push_str(&sentence);
        text.push('\n');
    }
    text
}
