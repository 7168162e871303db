//! `tiedkv bench busy`: plays a matrix of scenes and policies on clusters of this machine, repeats interleaved, and
//! says what came of it: table, JSON, report, verdicts.
//!
//! An interrupt ends the playing; what was measured until then is printed and written all the same.

use crate::args::Format;
use crate::bench_args::BenchBusy;
use crate::device_model::ServerModel;
use crate::outcome::{End, usage};
use crate::output;
use crate::progress::bar;
use crate::signals::Signals;
use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::path::Path;
use std::time::Duration;
use tiedkv_benches::busy::bed::Bed;
use tiedkv_benches::busy::check::{self, Judged};
use tiedkv_benches::busy::document::{Document, Run};
use tiedkv_benches::busy::matrix::{Part, Turn, estimate, turns};
use tiedkv_benches::busy::player::{Cell, check_length, event_at, play_cell};
use tiedkv_benches::busy::report::figures::figures;
use tiedkv_benches::busy::report::page::page;
use tiedkv_benches::busy::row::BusyRow;
use tiedkv_benches::busy::sample::Sample;
use tiedkv_benches::busy::table::table;
use tiedkv_benches::busy::{policy, quick, scene};

/// Played unless told otherwise.
const SCENES: &str = "idle,busy,hard,load70";
const POLICIES: &str = "untied,hedged,tied2,tied3,default";
/// Repeats unless told otherwise.
const REPEATS: u32 = 5;
/// Counted seconds unless told otherwise.
const SECONDS: u32 = 10;
/// The same of `--quick`: it ends within 75 s.
const QUICK_SECONDS: u32 = 6;
const QUICK_REPEATS: u32 = 1;
/// Of this many playings one may be played again because the machine was disturbed.
const AGAIN_ONE_OF: usize = 5;

/// Runs the command.
///
/// # Errors
/// When a flag is wrong, a cluster does not start, or a file cannot be read or written.
pub async fn run(args: &BenchBusy, format: Format) -> Result<End> {
    if format == Format::Raw {
        return Err(usage(anyhow::anyhow!("rows are printed as a table or as JSON: -o raw has no meaning here")));
    }
    if args.list {
        return output::bytes(list().as_bytes()).map(|()| End::Ok);
    }
    let mut document = Document::default();
    for path in &args.from {
        document.merge(Document::read(path).map_err(usage)?);
    }
    let parts = parts(args)?;
    if parts.is_empty() && args.from.is_empty() {
        return Err(usage(anyhow::anyhow!("nothing to play and nothing to show: --scenes none needs --from")));
    }
    parts.iter().try_for_each(check_length).map_err(usage)?;
    let mut signals = Signals::listen()?;
    let mut played = Played::new(&parts);
    let end = tokio::select! {
        end = played.all(args.seed) => end.map(|()| End::Ok),
        () = signals.next() => Ok(End::Interrupted),
    };
    let command = crate::typed().skip(1).fold("tiedkv".to_owned(), |all, one| all + " " + &one);
    let run = Run::here(command, env!("BUILT_VERSION"), args.seed);
    if !parts.is_empty() {
        document.merge(Document::new(run, played.rows()));
    }
    document.rows.retain(|row| row.judged || !args.judged);
    // A cluster that broke fails the command, but not without what was measured before.
    show(args, &document, format)?;
    let judged = verdict(args, &document, format)?;
    match end? {
        End::Ok => Ok(judged),
        end => Ok(end),
    }
}

fn list() -> String {
    let mut text = String::from("scenes:\n");
    scene::all().iter().for_each(|scene| text += &format!("  {:22} {}\n", scene.name, scene.about));
    text += "policies:\n";
    policy::POLICIES.iter().for_each(|policy| text += &format!("  {:22} {}\n", policy.name, policy.about));
    text
}

fn parts(args: &BenchBusy) -> Result<Vec<Part>> {
    let (scenes, policies) = (args.scenes.as_deref(), args.policies.as_deref());
    if args.check {
        let seconds = args.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        return check::parts(seconds, args.repeats.unwrap_or(REPEATS), (scenes, policies)).map_err(usage);
    }
    let (scenes, policies, repeats) = match args.quick {
        true => (quick::SCENES, quick::POLICIES, QUICK_REPEATS),
        false => (scenes.unwrap_or(SCENES), policies.unwrap_or(POLICIES), REPEATS),
    };
    if scenes == "none" {
        return Ok(Vec::new());
    }
    let policies = policy::named(policies).map_err(usage)?;
    if policies.is_empty() {
        return Err(usage(anyhow::anyhow!("--policies names none")));
    }
    let (measured, repeats) = (measured(args), args.repeats.unwrap_or(repeats));
    let part = |scene| Part { scene, policies: policies.clone(), measured, repeats };
    Ok(scene::named(scenes).map_err(usage)?.into_iter().map(part).collect())
}

/// Counted time of one playing; not with --check.
fn measured(args: &BenchBusy) -> Duration {
    let unless_told = if args.quick { QUICK_SECONDS } else { SECONDS };
    Duration::from_secs(args.seconds.unwrap_or(unless_told).into())
}

fn show(args: &BenchBusy, document: &Document, format: Format) -> Result<()> {
    match format {
        Format::Json => output::json(&serde_json::to_value(document)?)?,
        Format::Table | Format::Raw => output::bytes(table(document).as_bytes())?,
    }
    if let Some(path) = &args.json {
        document.write(path)?;
    }
    if let Some(path) = &args.report {
        write(path, &page(document))?;
    }
    if let Some(folder) = &args.figures {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        for figure in figures(document) {
            write(&folder.join(format!("{}.svg", figure.name)), &figure.file())?;
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// How the command ends by what was measured; says why.
fn verdict(args: &BenchBusy, document: &Document, format: Format) -> Result<End> {
    let tell = |judged: &[Judged]| match format {
        // Standard output is one document.
        Format::Json => {
            eprint!("{}", check::text(judged));
            Ok(())
        }
        Format::Table | Format::Raw => output::bytes(check::text(judged).as_bytes()),
    };
    if args.check {
        let judged = check::judge(document);
        tell(&judged)?;
        return Ok(if check::holds(&judged) { End::Ok } else { End::NotFound });
    }
    if args.quick {
        let quick::Relations { counts, latencies } = quick::relations(document, measured(args));
        let holds = (check::holds(&counts), check::holds(&latencies));
        tell(&[counts, latencies].concat())?;
        return Ok(match holds {
            (true, true) => End::Ok,
            (true, false) => End::Latencies,
            (false, _) => End::NotFound,
        });
    }
    Ok(End::Ok)
}

/// What was played so far, per part and policy.
struct Played<'a> {
    parts: &'a [Part],
    samples: Vec<Vec<Vec<Sample>>>,
    again: usize,
}

impl<'a> Played<'a> {
    fn new(parts: &'a [Part]) -> Self {
        let samples = parts.iter().map(|part| vec![Vec::new(); part.policies.len()]).collect();
        Self { parts, samples, again: turns(parts).len().div_ceil(AGAIN_ONE_OF) }
    }

    async fn all(&mut self, seed: u64) -> Result<()> {
        let turns = turns(self.parts);
        if turns.is_empty() {
            return Ok(());
        }
        let whole = estimate(self.parts);
        eprintln!("{} playings, about {}", turns.len(), minutes(whole));
        let bar = bar(whole.as_millis() as u64, "");
        let mut bed: Option<Bed> = None;
        for turn in turns {
            let part = &self.parts[turn.part];
            let kind = (part.scene.bed, part.scene.service_us);
            if bed.as_ref().is_some_and(|bed| bed.kind() != kind)
                && let Some(old) = bed.take()
            {
                old.stop().await;
            }
            if bed.is_none() {
                bar.set_message(format!("starting: {}", part.scene.bed.about()));
                let binary = std::env::current_exe().context("the path of this program")?;
                bed = Some(Bed::start(kind, &binary, |_| {}).await?);
            }
            let Some(bed) = &mut bed else { bail!("no cluster") };
            let sample = self.turn(bed, turn, seed, &bar).await?;
            self.samples[turn.part][turn.policy].push(sample);
        }
        if let Some(bed) = bed {
            bed.stop().await;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Plays one turn; once more if the machine stood still meanwhile and tries are left.
    async fn turn(&mut self, bed: &mut Bed, turn: Turn, seed: u64, bar: &ProgressBar) -> Result<Sample> {
        let part = &self.parts[turn.part];
        let (scene, policy) = (&part.scene, &part.policies[turn.policy]);
        let name = format!("{} {}, repeat {}", scene.name, policy.name, turn.repeat + 1);
        bar.set_message(name.clone());
        loop {
            let from = bar.position();
            // Scenes differ in their arrivals, repeats too, policies do not.
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(u64::from(turn.repeat) * 101 + turn.part as u64);
            let cell = Cell { scene, policy, measured: part.measured, seed };
            let progress = |at: Duration| bar.set_position(from + at.as_millis() as u64);
            let sample = match play_cell(bed, cell, &ServerModel::new(scene.service_us), progress).await {
                Ok(sample) => sample,
                // A server that died explains more than the call that failed because of it.
                Err(error) => {
                    return Err(match bed.check() {
                        Err(dead) => error.context(dead.to_string()),
                        Ok(()) => error,
                    }
                    .context(name));
                }
            };
            if let Some(error) = &sample.first_error {
                bar.suspend(|| eprintln!("{name}: {} errors, the first: {error}", sample.errors));
            }
            if !sample.machine.is_disturbed() || self.again == 0 {
                return Ok(sample);
            }
            self.again -= 1;
            bar.set_position(from);
            let still = sample.machine.standstill_pct;
            bar.suspend(|| eprintln!("{name}: the machine stood still {still:.2} % of the time; played again"));
        }
    }

    fn rows(&self) -> Vec<BusyRow> {
        let mut rows = Vec::new();
        for (part, samples) in self.parts.iter().zip(&self.samples) {
            for (policy, samples) in part.policies.iter().zip(samples).filter(|(_, samples)| !samples.is_empty()) {
                rows.push(BusyRow::of(&part.scene, policy, samples, event_at(part.measured)));
            }
        }
        rows
    }
}

fn minutes(span: Duration) -> String {
    match span.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}
