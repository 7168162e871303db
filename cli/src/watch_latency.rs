//! `tiedkv watch-latency`: reads one key from every replica at a fixed rate and shows p50 and p99 of each, look after
//! look. Measures the way from this machine to each replica, its queue and its service; sends nothing tied.

use crate::args::Format;
use crate::args_live::WatchLatency;
use crate::connect::connect;
use crate::escape::unescape;
use crate::outcome::{End, usage};
use crate::output;
use crate::signals::Signals;
use crate::watched::{Line, Sample, Watched, document, table};
use anyhow::{Result, anyhow};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;
use tiedkv_benches::clock;
use tiedkv_client::options::parse_span;
use tiedkv_client::{Client, Level, ReadOptions, ReadPolicy};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::limits::KEY_BYTES_MAX;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

/// Most reads of one replica that are out; one that is due beyond counts as failed.
const OUT_MAX: usize = 256;
/// Bounds of the window and of the time between two looks.
const SPANS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(600));

/// Runs the command until it has looked often or long enough, or a signal comes.
///
/// # Errors
/// When a flag is wrong or no node answers at first. A read that fails is counted.
pub async fn run(args: &WatchLatency, format: Format) -> Result<End> {
    let plan = Plan::new(args)?;
    let client = connect(&args.connect).await?;
    let mut signals = Signals::listen()?;
    let mut watch = Watch { client: &client, plan: &plan, replicas: BTreeMap::new() };
    let look = Show::new(format);
    tokio::select! {
        ended = watch.play(look) => ended?,
        () = signals.next() => {}
    }
    let answered = watch.replicas.values().any(|replica| replica.watched.ever_answered());
    client.close();
    Ok(if answered { End::Ok } else { End::Unavailable })
}

/// What was typed, checked.
struct Plan {
    key: Bytes,
    rate: u32,
    interval: Duration,
    window: Duration,
    count: Option<u64>,
    duration: Option<Duration>,
}

impl Plan {
    fn new(args: &WatchLatency) -> Result<Self> {
        let bounded = |name: &str, text: &str| {
            let span = parse_span(text).map_err(usage)?;
            if span < SPANS.0 || span > SPANS.1 {
                return Err(usage(anyhow!("--{name} is {text}; it must be {:?} to {:?}", SPANS.0, SPANS.1)));
            }
            Ok(span)
        };
        let key = unescape(&args.key).map_err(usage)?;
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(usage(anyhow!("a key has 1 to {KEY_BYTES_MAX} bytes, this one has {}", key.len())));
        }
        Ok(Self {
            key,
            rate: args.rate,
            interval: bounded("interval", &args.interval)?,
            window: bounded("window", &args.window)?,
            count: args.count,
            duration: args.duration.as_deref().map(parse_span).transpose().map_err(usage)?,
        })
    }
}

struct Replica {
    watched: Watched,
    out: usize,
}

/// The reads of all replicas.
struct Watch<'a> {
    client: &'a Client,
    plan: &'a Plan,
    replicas: BTreeMap<NodeId, Replica>,
}

impl Watch<'_> {
    async fn play(&mut self, mut show: Show) -> Result<()> {
        let begun = clock::now();
        let mut sends = interval(Duration::from_secs(1) / self.plan.rate);
        // One that comes late is sent late, and its wait is counted.
        sends.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let mut looks = interval(self.plan.interval);
        looks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        looks.tick().await;
        let mut reads = JoinSet::new();
        let mut looked = 0;
        self.members();
        loop {
            tokio::select! {
                due = sends.tick() => self.send(due.into_std(), begun, &mut reads),
                Some(ended) = reads.join_next(), if !reads.is_empty() => {
                    let (node, sample) = ended?;
                    if let Some(replica) = self.replicas.get_mut(&node) {
                        replica.out -= 1;
                        replica.watched.add(sample, self.plan.window);
                    }
                }
                _ = looks.tick() => {
                    self.members();
                    let at = begun.elapsed();
                    show.show(at, self.plan.window, &self.lines(at))?;
                    looked += 1;
                    let enough = self.plan.count.is_some_and(|count| looked >= count);
                    if enough || self.plan.duration.is_some_and(|duration| at >= duration) {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Those that left are no longer shown; those that came are.
    fn members(&mut self) {
        let topology = self.client.topology();
        let members: Vec<NodeId> = topology.members.iter().map(|member| member.node).collect();
        self.replicas.retain(|node, _| members.contains(node));
        for node in members {
            self.replicas.entry(node).or_insert_with(|| Replica { watched: Watched::default(), out: 0 });
        }
    }

    fn send(&mut self, due: std::time::Instant, begun: std::time::Instant, reads: &mut JoinSet<(NodeId, Sample)>) {
        let at = due.saturating_duration_since(begun);
        for (node, replica) in &mut self.replicas {
            if replica.out >= OUT_MAX {
                replica.watched.add(Sample { at, took: None, queue_wait: Duration::ZERO }, self.plan.window);
                continue;
            }
            replica.out += 1;
            let (client, key, node) = (self.client.clone(), self.plan.key.clone(), *node);
            let options = ReadOptions {
                policy: Some(ReadPolicy::UNTIED),
                level: Some(Level::Stale { bound: None }),
                node: Some(node),
                ..ReadOptions::default()
            };
            reads.spawn(async move {
                let read = client.get_with(key, options).await;
                let now = clock::now();
                let queue_wait = read.as_ref().map_or(Duration::ZERO, |read| read.report.queue_wait);
                let took = read.is_ok().then(|| now.saturating_duration_since(due));
                (node, Sample { at: now.saturating_duration_since(begun), took, queue_wait })
            });
        }
    }

    fn lines(&mut self, at: Duration) -> Vec<Line> {
        let (leader, window) = (self.client.topology().leader, self.plan.window);
        let line = |(node, replica): (&NodeId, &mut Replica)| Line {
            node: node.0,
            leader: leader == Some(*node),
            figures: replica.watched.figures(at, window),
        };
        self.replicas.iter_mut().map(line).collect()
    }
}

/// How looks reach standard output.
struct Show {
    format: Format,
    /// Looks are drawn in place.
    live: bool,
    colour: bool,
    /// Lines of the look before.
    drawn: usize,
}

impl Show {
    fn new(format: Format) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let live = terminal && format == Format::Table && !dumb;
        Self { format, live, colour: live && !set("NO_COLOR"), drawn: 0 }
    }

    fn show(&mut self, at: Duration, window: Duration, lines: &[Line]) -> Result<()> {
        let text = match self.format {
            Format::Json => format!("{}\n", document(at, window, lines)),
            Format::Table | Format::Raw => {
                let up = if self.drawn > 0 { format!("\u{1b}[{}A\u{1b}[J", self.drawn) } else { String::new() };
                let text = format!(
                    "after {:.1} s, reads of the last {window:?}\n{}",
                    at.as_secs_f64(),
                    table(lines, self.colour)
                );
                self.drawn = if self.live { text.lines().count() } else { 0 };
                up + &text
            }
        };
        output::bytes(text.as_bytes())
    }
}
