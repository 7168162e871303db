//! Plays an open loop and counts what it cost: messages, processor time, duplicates, wasted work. The engine of the
//! demo and of the benchmark; both only say what to play and what to make of it.

use super::cpu;
use super::join::{Joined, join};
use super::machine::{Machine, Ticks, Watch};
use super::nodes::Nodes;
use super::run::{OpenLoop, Outcome, play};
use anyhow::Result;
use std::time::Duration;
use tiedkv_client::{Client, Stats, View};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::StartRecord;

/// Who is measured.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// The client whose views send; its counters are read.
    pub client: &'a Client,
    /// Who sends.
    pub views: &'a [View],
    /// Who serves.
    pub nodes: &'a Nodes,
    /// The server processes, for their processor time.
    pub server_pids: &'a [u32],
}

/// What was played and what it cost. Messages and copies are those of all reads, the warm-up's among them; processor time
/// and reads with fewer copies are those of the counted time, in which the client has learned what it needs: from the first
/// counted read to the end of the plan, without the time in which the last answers are waited for.
#[derive(Debug)]
pub struct Counted {
    /// The open loop's own figures.
    pub outcome: Outcome,
    /// Copies, withdraws, cancels and answers.
    pub messages: u64,
    /// Copies sent.
    pub copies: u64,
    /// Of these, hedges, rescues, retries and shadows.
    pub extra_copies: u64,
    /// Reads of the counted time that went with fewer copies than their policy says.
    pub not_tied: u64,
    /// Processor time of this process in the counted time.
    pub cpu_client: Duration,
    /// The same of the servers that live at the end.
    pub cpu_servers: Duration,
    /// The machine meanwhile: `busy_pct` of the counted time, all else of the whole playing.
    pub machine: Machine,
    /// The start records of nodes that live at the end.
    pub records: Vec<(NodeId, Vec<StartRecord>)>,
    /// The same, joined.
    pub joined: Joined,
}

/// Plays `plan` while `events` runs (dropped when the plan is over); `gone` are nodes that will not answer any more when it is over.
///
/// # Errors
/// When a node does not answer, the plan cannot be kept, or an event fails. Failed reads are counted.
///
/// # Cancel safety
/// Recording may stay on.
pub async fn play_counted(
    ground: Ground<'_>,
    plan: &OpenLoop,
    gone: &[NodeId],
    events: impl Future<Output = Result<()>>,
    mut progress: impl FnMut(Duration),
) -> Result<Counted> {
    let Ground { client, views, nodes, server_pids } = ground;
    let left = nodes.without(gone);
    nodes.record_starts(true).await?;
    let (cancels, stats) = (left.cancels_sent().await?, client.stats());
    let mut from = Spent::now(client, server_pids);
    let mut to = None;
    let mut warm = plan.warm_up.is_zero();
    let told = |at: Duration| {
        if !warm && at >= plan.warm_up {
            (warm, from) = (true, Spent::now(client, server_pids));
        }
        if at >= plan.end() {
            to = Some(Spent::now(client, server_pids));
        }
        progress(at);
    };
    let watch = Watch::start();
    let mut played = Box::pin(play(views, plan, told));
    let mut events = std::pin::pin!(events);
    let mut over = false;
    // What goes on for as long as the scene does has no end of its own.
    let outcome = loop {
        tokio::select! {
            outcome = &mut played => break outcome?,
            event = &mut events, if !over => {
                event?;
                over = true;
            }
        }
    };
    drop(played);
    let mut machine = watch.end();
    let to = to.unwrap_or_else(|| Spent::now(client, server_pids));
    if let Some((from, to)) = from.ticks.zip(to.ticks) {
        machine.busy_pct = to.since(from).busy_pct;
    }
    let after = client.stats();
    left.wait_at_rest().await?;
    let cancels = left.cancels_sent().await?.saturating_sub(cancels);
    left.record_starts(false).await?;
    let records = left.take_starts().await?;
    let copies = after.sent.total() - stats.sent.total();
    let withdraws = after.withdraw_frames - stats.withdraw_frames;
    // What a layer outside of the client sends twice are two reads to the client.
    let one_winner = plan.fan.is_none() && plan.outside.is_none();
    Ok(Counted {
        messages: copies + withdraws + answered(&after) - answered(&stats) + cancels,
        copies,
        extra_copies: extra_copies(&after) - extra_copies(&stats),
        not_tied: to.not_tied.saturating_sub(from.not_tied),
        cpu_client: to.own.saturating_sub(from.own),
        cpu_servers: spent(&from.servers, &to.servers),
        machine,
        joined: join(&records, one_winner.then_some(&outcome.winners)),
        records,
        outcome,
    })
}

/// What only grows, at one moment.
struct Spent {
    own: Duration,
    servers: Vec<Option<Duration>>,
    not_tied: u64,
    ticks: Option<Ticks>,
}

impl Spent {
    fn now(client: &Client, server_pids: &[u32]) -> Self {
        let not_tied = client.stats().not_tied.iter().sum();
        Self { own: cpu::own(), servers: cpu_of(server_pids), not_tied, ticks: Ticks::now() }
    }
}

/// Hedges, rescues, retries and shadows sent so far.
pub fn extra_copies(stats: &Stats) -> u64 {
    [CopyKind::Hedge, CopyKind::Rescue, CopyKind::Retry, CopyKind::Shadow]
        .into_iter()
        .map(|kind| stats.sent.of(kind))
        .sum()
}

/// Answers received so far, good or not.
fn answered(stats: &Stats) -> u64 {
    [stats.won, stats.late, stats.refused, stats.expired, stats.failed].iter().map(|ends| ends.total()).sum()
}

fn cpu_of(pids: &[u32]) -> Vec<Option<Duration>> {
    pids.iter().map(|pid| cpu::of(*pid)).collect()
}

/// Of processes that live at both ends.
fn spent(before: &[Option<Duration>], after: &[Option<Duration>]) -> Duration {
    let pairs = before.iter().zip(after).filter_map(|(before, after)| before.zip(*after));
    pairs.map(|(before, after)| after.saturating_sub(before)).sum()
}
