//! Keeps one connection (or as many as set) to every member: seeds first, then all that they name; redials with
//! backoff and jitter for as long as the client lives. Names are resolved at each dial.

use crate::clock;
use crate::config::Config;
use crate::dial::{Dialled, Dialler};
use crate::exchange::Link;
use crate::link_task::{self, OnNotice};
use crate::pace::{Pace, PaceSettings};
use crate::peer::Peer;
use crate::retry::{BackoffSettings, backoff};
use crate::slow::SlowReads;
use crate::stats::Counters;
use crate::switch_file;
use crate::switchboard::Switchboard;
use crate::timer::Timer;
use crate::topology::Table;
use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;
use tiedkv_protocol::hello::{Notice, Topology};
use tiedkv_protocol::moment::Moment;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Pauses between dials of one node.
const REDIAL: BackoffSettings = BackoffSettings { base: Duration::from_millis(20), cap: Duration::from_secs(1) };
/// The next seed is dialled when the one before has not answered for this long.
const SEED_STAGGER: Duration = Duration::from_millis(150);
/// With no link at all for this long, the seeds are asked again.
const SEEDS_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// See the head of this room.
#[derive(Debug)]
pub(crate) struct Connections {
    config: Config,
    dialler: Dialler,
    pub(crate) counters: Arc<Counters>,
    pub(crate) slow: SlowReads,
    pub(crate) timer: Timer,
    table: ArcSwap<Table>,
    /// Makes changes of the table one after another.
    learning: Mutex<()>,
    /// How far policies may act.
    pub(crate) board: Arc<Switchboard>,
    /// Grows when a link comes up or goes down, or the table changes.
    changes: watch::Sender<u64>,
    closed: watch::Sender<bool>,
    /// The same, for a quick look by each read.
    is_closed: AtomicBool,
    /// The last handle is gone: nobody waits for the timer any more.
    dropped: watch::Sender<bool>,
    seed_errors: Mutex<Vec<String>>,
}

impl Connections {
    /// Begins to dial, in the current runtime.
    pub(crate) fn start(config: Config, dialler: Dialler, timer: Timer, board: Arc<Switchboard>) -> Arc<Self> {
        let connections = Arc::new(Self {
            config,
            dialler,
            counters: Arc::default(),
            slow: SlowReads::default(),
            timer: timer.clone(),
            table: ArcSwap::default(),
            learning: Mutex::new(()),
            board,
            changes: watch::Sender::new(0),
            closed: watch::Sender::new(false),
            is_closed: AtomicBool::new(false),
            dropped: watch::Sender::new(false),
            seed_errors: Mutex::default(),
        });
        // Not ended by closing: calls that wait still end by their deadlines.
        spawn_until(&connections.dropped, async move {
            if let Err(error) = timer.drive().await {
                tracing::error!(%error, "the timer of the client failed");
            }
        });
        connections.spawn(ask_seeds(connections.clone()));
        connections
    }

    /// Watches a file of switches, whose text was `text`, for as long as the client lives.
    pub(crate) fn watch_switches(&self, path: Arc<std::path::Path>, text: Option<String>) {
        self.spawn(switch_file::watch(path, self.board.clone(), text));
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn dialler(&self) -> &Dialler {
        &self.dialler
    }

    /// The members as last heard.
    pub(crate) fn table(&self) -> Guard<Arc<Table>> {
        self.table.load()
    }

    /// Ends all tasks and connections.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Release);
        if !self.closed.send_replace(true) {
            for peer in &self.table().peers {
                peer.close_links("the client is closed");
            }
            self.changed();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Acquire)
    }

    /// True if at least one member can be sent to.
    pub(crate) fn any_link(&self) -> bool {
        self.table().any_link()
    }

    /// Waits until `wanted` holds, is looked at after each change, or `until` passes or the client is closed
    /// (false).
    pub(crate) async fn wait(&self, until: Moment, wanted: impl Fn(&Self) -> bool) -> bool {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if wanted(self) {
                return true;
            }
            if self.is_closed() || !matches!(self.timer.within(until, changes.changed()).await, Some(Ok(()))) {
                return false;
            }
        }
    }

    /// Why nobody can be sent to, for people.
    pub(crate) fn dial_errors(&self) -> String {
        let mut reasons: Vec<String> = Vec::new();
        for peer in &self.table().peers {
            if let Some(reason) = peer.dial_error() {
                reasons.push(format!("{}: {reason}", peer.node));
            }
        }
        if reasons.is_empty() {
            reasons = self.seed_errors.lock().clone();
        }
        if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) }
    }

    /// Takes over a topology, dials who is new, drops who is gone.
    fn learn(self: &Arc<Self>, heard: Topology, mut dialled: Option<Dialled>) {
        let _one_after_another = self.learning.lock();
        let pace = || Pace::new(self.pace_settings());
        let make = |heard: &Topology, index: usize| Peer::new(heard.members[index].clone(), pace());
        let Some(change) = self.table().change(heard, make) else { return };
        self.table.store(Arc::new(change.table));
        for peer in &change.removed {
            peer.remove();
        }
        for peer in &change.added {
            for _ in 0..self.config.connections_per_node {
                let first = dialled.take_if(|dialled| dialled.welcome.node == peer.node);
                self.spawn(keep_linked(self.clone(), peer.clone(), first));
            }
        }
        self.changed();
    }

    fn pace_settings(&self) -> PaceSettings {
        let config = &self.config;
        PaceSettings {
            floor: config.tie_delay_floor,
            cap: config.tie_delay_cap,
            silence_min: config.silence_min,
            ..PaceSettings::default()
        }
    }

    fn on_notice(self: &Arc<Self>, peer: &Peer, notice: Notice) {
        match notice {
            Notice::Topology(topology) => self.learn(topology, None),
            Notice::Ceiling(ceiling) => {
                peer.heard_ceiling(&ceiling);
                self.board.learn_ceiling(ceiling);
            }
            Notice::Refused(failure) => {
                tracing::warn!(node = %peer.node, code = %failure.code, message = %failure.message, "refused");
            }
        }
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Closes, and ends the timer too: for the last handle.
    pub(crate) fn drop_all(&self) {
        self.close();
        self.dropped.send_replace(true);
    }

    /// Runs `work` until it ends or the client is closed.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        spawn_until(&self.closed, work);
    }
}

fn spawn_until(ended: &watch::Sender<bool>, work: impl Future<Output = ()> + Send + 'static) {
    let mut ended = ended.subscribe();
    tokio::spawn(async move {
        tokio::select! {
            () = work => {}
            _ = ended.wait_for(|ended| *ended) => {}
        }
    });
}

/// Finds the cluster through the seeds, again whenever all links have been gone for long.
async fn ask_seeds(connections: Arc<Connections>) {
    let mut failures: u8 = 0;
    let mut changes = connections.changes.subscribe();
    loop {
        match first_seed(&connections).await {
            Ok(dialled) => {
                failures = 0;
                connections.seed_errors.lock().clear();
                connections.board.learn_ceiling(dialled.welcome.ceiling);
                connections.learn(dialled.welcome.topology.clone(), Some(dialled));
                for peer in &connections.table().peers {
                    peer.redial.notify_waiters();
                }
            }
            Err(errors) => {
                *connections.seed_errors.lock() = errors;
                tokio::time::sleep(pause(failures)).await;
                failures = failures.saturating_add(1);
                continue;
            }
        }
        loop {
            tokio::time::sleep(SEEDS_AGAIN_AFTER).await;
            if !connections.any_link() {
                break;
            }
            let _ = changes.changed().await;
        }
    }
}

fn pause(failures: u8) -> Duration {
    backoff(&REDIAL, failures, Duration::ZERO, &mut rand::rng())
}

/// The first seed that answers; they are dialled one after another, the next when the last one is slow.
async fn first_seed(connections: &Arc<Connections>) -> Result<Dialled, Vec<String>> {
    let mut dials = JoinSet::new();
    for (index, seed) in connections.config.seeds.iter().enumerate() {
        let (connections, seed) = (connections.clone(), seed.clone());
        dials.spawn(async move {
            tokio::time::sleep(SEED_STAGGER * index as u32).await;
            connections.dialler.dial(&seed, None).await
        });
    }
    let mut errors = Vec::new();
    while let Some(ended) = dials.join_next().await {
        match ended {
            Ok(Ok(dialled)) if dialled.welcome.topology.members.is_empty() => {
                errors.push(format!("{} knows no member of its cluster", dialled.welcome.node));
            }
            Ok(Ok(dialled)) => return Ok(dialled),
            Ok(Err(reason)) => errors.push(reason),
            Err(error) => errors.push(error.to_string()),
        }
    }
    Err(errors)
}

/// Keeps one connection to one node, until it leaves the cluster.
async fn keep_linked(connections: Arc<Connections>, peer: Arc<Peer>, mut first: Option<Dialled>) {
    let mut failures: u8 = 0;
    while !peer.is_removed() {
        let dialled = match first.take() {
            Some(dialled) => Ok(dialled),
            None => connections.dialler.dial(&peer.member().client_address, Some(peer.node)).await,
        };
        match dialled {
            Ok(dialled) => {
                let began = clock::now();
                let reason = serve(&connections, &peer, dialled).await;
                tracing::info!(node = %peer.node, %reason, "link lost");
                // A node that takes connections only to end them is not dialled in a tight loop.
                failures = if clock::now().since(began) > REDIAL.cap { 0 } else { failures.saturating_add(1) };
            }
            Err(reason) => {
                tracing::debug!(node = %peer.node, %reason, "not reached");
                peer.dial_failed(reason);
                failures = failures.saturating_add(1);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause(failures)) => {}
            () = peer.redial.notified() => {}
        }
    }
}

/// One connection from its greeting to its end.
async fn serve(connections: &Arc<Connections>, peer: &Arc<Peer>, dialled: Dialled) -> Arc<str> {
    let Dialled { connection, streams, welcome } = dialled;
    let config = &connections.config;
    let counters = connections.counters.clone();
    let link = Link::new(peer.clone(), connection, counters, config.pending_max, config.outbox_bytes_max);
    let link = Arc::new(link);
    peer.heard_modelled(welcome.modelled);
    peer.heard_ceiling(&welcome.ceiling);
    peer.relearn();
    let mut up = Up::new(connections, &link);
    connections.board.learn_ceiling(welcome.ceiling);
    connections.learn(welcome.topology, None);
    let on_notice: OnNotice = {
        let (connections, peer) = (connections.clone(), peer.clone());
        Arc::new(move |notice| connections.on_notice(&peer, notice))
    };
    up.reason = link_task::run(&link, streams, &connections.timer, on_notice).await;
    up.reason.clone()
}

/// A link that callers can use; taken from them when dropped.
struct Up<'a> {
    connections: &'a Arc<Connections>,
    link: &'a Arc<Link>,
    reason: Arc<str>,
}

impl<'a> Up<'a> {
    fn new(connections: &'a Arc<Connections>, link: &'a Arc<Link>) -> Self {
        link.peer.link_up(link);
        connections.counters.links_up.fetch_add(1, Relaxed);
        connections.changed();
        Self { connections, link, reason: "the client was dropped".into() }
    }
}

impl Drop for Up<'_> {
    fn drop(&mut self) {
        self.link.peer.link_down(self.link, &self.reason);
        self.connections.counters.links_lost.fetch_add(1, Relaxed);
        self.connections.changed();
    }
}
