//! What runs on the Raft thread: openraft, the peer port, proposing, and the tasks that watch over them.

use crate::peer::hello::{PEER_VERSION, PeerHello};
use crate::peer::raft_link::{LinkError, RaftLink};
use crate::raft::checksum::{Sum, Sums};
use crate::raft::compare::Compare;
use crate::raft::contact::{self, Contact};
use crate::raft::disk_space::{self, DiskSpace};
use crate::raft::expire::{Keeper, SharedTime};
use crate::raft::first_start::{FirstMembers, first_start, state_of};
use crate::raft::folder::Folder;
use crate::raft::group::{GroupConfig, SnapshotSettings};
use crate::raft::jitter::{Work, part};
use crate::raft::log_store::LogStore;
use crate::raft::membership::{heir, topology};
use crate::raft::network::NetworkFactory;
use crate::raft::read_barrier::RaftReadBarrier;
use crate::raft::serve::GroupService;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::TypeConfig;
use crate::raft::write::WritePath;
use crate::storage::fjall_store::FjallStore;
use crate::storage::state_store::View;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::{Config, Raft, SnapshotPolicy};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::{Member, Topology};
use tiedkv_protocol::ids::{NodeId, SHARD_ZERO};
use tiedkv_protocol::response::Failure;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{interval, timeout};

/// How a group is told to end.
pub(super) enum Stop {
    /// Leadership first, within the time; then told that it is done.
    Gently(Duration, oneshot::Sender<()>),
    /// As a crash.
    AtOnce,
}

/// What the thread hands to the handle.
pub(super) struct Started {
    pub(super) raft: Raft<TypeConfig, StateMachine>,
    pub(super) link: Arc<RaftLink>,
    pub(super) writes: WritePath,
    pub(super) barrier: Arc<RaftReadBarrier>,
    pub(super) topology: watch::Receiver<Topology>,
    pub(super) fatal: watch::Receiver<Option<String>>,
}

/// What the group has on this machine.
pub(super) struct Local {
    pub(super) log: LogStore,
    pub(super) store: Arc<FjallStore>,
    pub(super) machine: StateMachine,
    pub(super) sums: Arc<Sums>,
    pub(super) hashed: mpsc::Receiver<Sum>,
}

/// Runs the group until it is stopped.
pub(super) fn thread(
    config: &GroupConfig,
    folder: Arc<Folder>,
    local: Local,
    ready: &SyncSender<Result<Started, String>>,
    mut stops: mpsc::Receiver<Stop>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(8).build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error.to_string()))),
    };
    let store = local.store.clone();
    runtime.block_on(async {
        let started = match start(config, folder, local).await {
            Ok(started) => started,
            Err(why) => return drop(ready.send(Err(why))),
        };
        let (raft, link) = (started.raft.clone(), started.link.clone());
        if ready.send(Ok(started)).is_err() {
            return;
        }
        let own = config.credentials.node();
        // Without a sender the handle is gone, which is a stop at once.
        let stop = stops.recv().await.unwrap_or(Stop::AtOnce);
        let done = match stop {
            Stop::AtOnce => None,
            Stop::Gently(wait, done) => {
                // A single voter or a minority has nobody to hand over to.
                if !wait.is_zero()
                    && let Err(failure) = transfer(&raft, own, None, wait).await
                    && failure.code != ErrorCode::NotLeader
                {
                    tracing::warn!(%failure.message, "leadership was not handed over");
                }
                Some(done)
            }
        };
        if let Err(error) = raft.shutdown().await {
            tracing::warn!(%error, "openraft ended badly");
        }
        link.close().await;
        if let Some(done) = done {
            if let Err(error) = store.persist() {
                tracing::warn!(%error, "the store could not be made durable; the log is replayed at the next start");
            }
            // Whoever asked may have given up waiting.
            let _gone = done.send(());
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(2));
}

async fn start(config: &GroupConfig, folder: Arc<Folder>, local: Local) -> Result<Started, String> {
    let Local { log, store, machine, sums, hashed } = local;
    let own = config.credentials.node();
    let hello = PeerHello {
        version: PEER_VERSION,
        cluster: config.credentials.cluster(),
        node: own,
        shard: SHARD_ZERO,
        incarnation: folder.incarnation(),
        outcomes: config.outcomes,
    };
    let link = RaftLink::bind(
        config.peer_listen,
        config.udp_buffer_bytes,
        config.credentials.clone(),
        hello,
        folder.clone(),
    )
    .map_err(|error| error.to_string())?;
    let raft_config = Arc::new(raft_config(config).validate().map_err(|error| error.to_string())?);
    let members = machine.members();
    let network = NetworkFactory::new(link.clone());
    let raft =
        Raft::new(own.0, raft_config, network, log.clone(), machine).await.map_err(|error| error.to_string())?;
    let first = FirstMembers::of(&config.members);
    let (contact, installing) = (Arc::new(Contact::started()), Arc::new(Semaphore::new(1)));
    let service = GroupService {
        raft: raft.clone(),
        store: store.clone(),
        installing: installing.clone(),
        first: first.clone(),
        contact: contact.clone(),
        sums: sums.clone(),
    };
    let silence_max = config.timing.election_max;
    tokio::spawn(contact::watch(contact.clone(), own, raft.clone(), installing, silence_max));
    tokio::spawn(link.clone().accept(Arc::new(service)));
    let (topology, leader) = watch_topology(&raft);
    let fatal = watch_fatal(&raft, &link);
    tokio::spawn(keep_snapshots(raft.clone(), log, own, config.snapshots));
    tokio::spawn(first_start(raft.clone(), link.clone(), own, config.members.clone(), first));
    let compare = Compare { own, raft: raft.clone(), link: link.clone(), sums, folder: folder.clone() };
    tokio::spawn(compare.run(hashed, config.check_window));
    tokio::spawn(watch_removals(members, link.clone(), folder, own));
    tokio::spawn(ask_to_be_told(raft.clone(), link.clone(), own));
    let time = SharedTime::new(store.current().stamp_ms());
    let disk = Arc::new(DiskSpace::new(config.disk_reserve_bytes));
    tokio::spawn(disk_space::watch(disk.clone(), config.data_dir.clone()));
    let writes = WritePath::start(own, raft.clone(), leader, disk, time.clone());
    let keeper =
        Keeper { own, link: link.clone(), store, writes: writes.clone(), topology: topology.clone(), time };
    tokio::spawn(keeper.run());
    let barrier = Arc::new(RaftReadBarrier::start(own, raft.clone(), link.clone(), contact));
    Ok(Started { raft, link, writes, barrier, topology, fatal })
}

fn raft_config(config: &GroupConfig) -> Config {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: config.credentials.cluster().to_string(),
        heartbeat_interval: ms(config.timing.heartbeat),
        election_timeout_min: ms(config.timing.election_min),
        election_timeout_max: ms(config.timing.election_max),
        enable_pre_vote: Some(true),
        // A restarted leader stands for election again: its state may be older than what it once acknowledged.
        enable_leader_restore: Some(false),
        // Bytes bound an append as well, in the log reader.
        max_payload_entries: 1024,
        install_snapshot_timeout: 60_000,
        // `keep_snapshots` triggers them, by entries and bytes.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: config.snapshots.keep_entries,
        purge_batch_size: 1024,
        replication_lag_threshold: 1_000,
        ..Config::default()
    }
}

fn watch_topology(
    raft: &Raft<TypeConfig, StateMachine>,
) -> (watch::Receiver<Topology>, watch::Receiver<Option<NodeId>>) {
    // Not all metrics: they change with every entry, these with members, votes and leaders.
    let mut metrics = raft.server_metrics();
    let first = topology(&metrics.borrow_watched());
    let (leader_sender, leader) = watch::channel(first.leader);
    let (sender, receiver) = watch::channel(first);
    tokio::spawn(async move {
        while metrics.changed().await.is_ok() {
            let now = topology(&metrics.borrow_watched());
            leader_sender.send_if_modified(|leader| std::mem::replace(leader, now.leader) != now.leader);
            sender.send_if_modified(|known| {
                let changed = *known != now;
                *known = now;
                changed
            });
        }
    });
    (receiver, leader)
}

fn watch_fatal(raft: &Raft<TypeConfig, StateMachine>, link: &Arc<RaftLink>) -> watch::Receiver<Option<String>> {
    let (sender, receiver) = watch::channel(None);
    let (mut metrics, mut refusal) = (raft.metrics(), link.refusal());
    tokio::spawn(async move {
        loop {
            let failed = metrics.borrow_watched().running_state.clone().err().map(|fatal| fatal.to_string());
            let refused = refusal.borrow_and_update().clone().map(|error| error.to_string());
            if let Some(why) = failed.or(refused) {
                sender.send_replace(Some(why));
                return;
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { return },
                changed = refusal.changed() => if changed.is_err() { return },
            }
        }
    });
    receiver
}

/// Remembers who is removed, by memberships that are committed; a node that sees its own removal stops.
async fn watch_removals(
    mut members: watch::Receiver<BTreeSet<u64>>,
    link: Arc<RaftLink>,
    folder: Arc<Folder>,
    own: NodeId,
) {
    let mut before = members.borrow_and_update().clone();
    while members.changed().await.is_ok() {
        let now = members.borrow_and_update().clone();
        let removed: Vec<u64> = before.difference(&now).copied().collect();
        before = now;
        if removed.is_empty() {
            continue;
        }
        if let Err(error) = folder.note_removed(removed.iter().copied()) {
            tracing::warn!(%error, "a removed member is remembered until this process ends only");
        }
        if removed.contains(&own.0) {
            link.stop_for(LinkError::Removed(own));
        }
    }
}

/// A removed member may never hear of its removal: nobody sends it anything any more. So a node that does not lead asks
/// the others in turn; one that is removed is refused.
async fn ask_to_be_told(raft: Raft<TypeConfig, StateMachine>, link: Arc<RaftLink>, own: NodeId) {
    let mut ticks = interval(Duration::from_secs(2));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for turn in 0usize.. {
        ticks.tick().await;
        let others: Vec<Member> = {
            let metrics = raft.server_metrics();
            let metrics = metrics.borrow_watched();
            if metrics.current_leader == Some(own.0) {
                continue;
            }
            topology(&metrics).members.into_iter().filter(|member| member.node != own).collect()
        };
        if let Some(member) = others.get(turn % others.len().max(1)) {
            // The answer is the connection's: it stands, or this node is refused.
            let _begun = state_of(&link, member).await;
        }
    }
}

/// Makes state durable after so many entries or bytes, so that the log may be cut.
async fn keep_snapshots(
    raft: Raft<TypeConfig, StateMachine>,
    log: LogStore,
    own: NodeId,
    settings: SnapshotSettings,
) {
    let mut bytes_at_last = 0;
    let mut ticks = interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        let counters = log.counters();
        let (applied, snapshot) = {
            let metrics = raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.last_applied.map_or(0, |id| id.index), metrics.snapshot.map_or(0, |id| id.index))
        };
        // Drawn anew after each, so that two nodes do not stay in step.
        let [entries, bytes] =
            [settings.entries, settings.bytes].map(|period| part(own, Work::Snapshot, snapshot, period));
        let due = applied.saturating_sub(snapshot) >= entries || counters.appended_bytes - bytes_at_last >= bytes;
        if due && applied > snapshot {
            bytes_at_last = counters.appended_bytes;
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
        if let Some(upto) = log.purge_hint(settings.keep_bytes)
            && raft.trigger().purge_log(upto.min(snapshot)).await.is_err()
        {
            return;
        }
    }
}

/// Hands leadership over and waits until another node leads.
pub(super) async fn transfer(
    raft: &Raft<TypeConfig, StateMachine>,
    own: NodeId,
    to: Option<NodeId>,
    wait: Duration,
) -> Result<NodeId, Failure> {
    let mut metrics = raft.metrics();
    let (leader, heir) = {
        let metrics = metrics.borrow_watched();
        let voter = to.filter(|to| metrics.membership_config.voter_ids().any(|voter| voter == to.0));
        (metrics.current_leader.map(NodeId), if to.is_some() { voter } else { heir(&metrics, own) })
    };
    if leader != Some(own) {
        let mut failure = Failure::new(ErrorCode::NotLeader, "this node does not lead");
        failure.leader = leader;
        return Err(failure);
    }
    let Some(heir) = heir else {
        return Err(Failure::new(ErrorCode::Membership, "no other voter to hand leadership to"));
    };
    if heir == own {
        return Ok(own);
    }
    let stopped =
        |error: &dyn std::fmt::Display| Failure::new(ErrorCode::TryElsewhere, format!("stopped: {error}"));
    let handed = timeout(wait, async {
        raft.trigger().transfer_leader(heir.0).await.map_err(|error| stopped(&error))?;
        loop {
            match metrics.borrow_watched().current_leader {
                Some(leader) if leader != own.0 => return Ok(NodeId(leader)),
                _ => {}
            }
            metrics.changed().await.map_err(|error| stopped(&error))?;
        }
    });
    handed
        .await
        .unwrap_or_else(|_| Err(Failure::new(ErrorCode::Expired, format!("{heir} has not taken over in {wait:?}"))))
}
