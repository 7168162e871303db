//! One replica of a shard's Raft group: opens its folder, starts openraft on a thread of its own, and is the handle
//! that the rest of the node holds.
//!
//! What runs inside is in [`run`](crate::raft::run); here are start, questions and stop. Dropping the handle without
//! [`Group::stop`] ends it at once, as a crash would, except that the folder is closed in order.

use crate::peer::hello::Incarnations;
use crate::peer::raft_link::RaftLink;
use crate::raft::checksum::{Checker, Sums};
use crate::raft::disk_space::DiskSpace;
use crate::raft::folder::{Folder, FolderError};
use crate::raft::jitter::{Work, part};
use crate::raft::log_store::LogStore;
use crate::raft::membership;
use crate::raft::outcomes::OutcomeLimits;
use crate::raft::read_barrier::RaftReadBarrier;
use crate::raft::run::{self, Local, Started, Stop};
use crate::raft::state_machine::StateMachine;
use crate::raft::types::{Change, TypeConfig};
use crate::raft::write::WritePath;
use crate::request::barrier::ReadBarrier;
use crate::request::doors::{WriteFuture, Writer};
use crate::storage::fjall_store::{FjallStore, StoreSettings};
use crate::storage::state_store::{StorageError, View};
use crate::transport::tls::Credentials;
use bytes::Bytes;
use crossbeam::channel::RecvTimeoutError;
use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::{Ceiling, Member, Topology};
use tiedkv_protocol::ids::{CallerId, NodeId};
use tiedkv_protocol::request::WriteRequest;
use tiedkv_protocol::response::Failure;
use tokio::sync::{mpsc, oneshot, watch};

/// A group ends within this time unless its disk hangs.
pub const END_MAX: Duration = Duration::from_secs(3);

/// Timers of a group. The defaults suit a busy machine of two cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A leader is heard from this often; default 100 ms.
    pub heartbeat: Duration,
    /// When the leader's lease is over, a follower waits at least this long for it; default 400 ms.
    pub election_min: Duration,
    /// And at most this long, which is also the leader's lease; default 700 ms. So a dead leader is replaced after 1.1
    /// to 1.4 s and a round of votes.
    pub election_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(400),
            election_max: Duration::from_millis(700),
        }
    }
}

/// When state is made durable so that the log may be cut, and how much log stays for slow followers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// After this many entries (jittered by a fifth per node); default 10,000.
    pub entries: u64,
    /// After this many bytes of log (jittered likewise); default 64 MiB.
    pub bytes: u64,
    /// Entries that stay behind the snapshot; default 10,000.
    pub keep_entries: u64,
    /// Bytes of log that stay at most; default 256 MiB. A follower further behind gets a snapshot.
    pub keep_bytes: u64,
}

impl Default for SnapshotSettings {
    fn default() -> Self {
        Self { entries: 10_000, bytes: 64 << 20, keep_entries: 10_000, keep_bytes: 256 << 20 }
    }
}

/// What a group needs to start.
#[derive(Clone)]
pub struct GroupConfig {
    /// Certificates: who this node is, of which cluster.
    pub credentials: Arc<Credentials>,
    /// Folder of this node's log and state.
    pub data_dir: PathBuf,
    /// Where the peer port listens.
    pub peer_listen: SocketAddr,
    /// The members of a cluster that starts for the first time, the same on all of them. A node that is not among
    /// them, or meets a cluster that has begun, waits until it is added.
    pub members: Vec<Member>,
    /// Timers.
    pub timing: Timing,
    /// Snapshots and what stays of the log.
    pub snapshots: SnapshotSettings,
    /// How long outcomes are kept; the same on all members.
    pub outcomes: OutcomeLimits,
    /// Sizes of the store.
    pub store: StoreSettings,
    /// Buffers of the peer port's socket, bytes; default 2 MiB.
    pub udp_buffer_bytes: usize,
    /// Writes are refused while the disk has less than this free, bytes; default 128 MiB: two journals of the store.
    pub disk_reserve_bytes: u64,
    /// Replicas compare their states after so many entries; 0: never. The same on all members. Default 10 million: what is
    /// overwritten while a state waits to be hashed stays in memory.
    pub check_entries: u64,
    /// Each hashes its state at a moment of its own within this time; default 5 s.
    pub check_window: Duration,
}

impl GroupConfig {
    /// Defaults for everything that has one.
    pub fn new(
        credentials: Arc<Credentials>,
        data_dir: PathBuf,
        peer_listen: SocketAddr,
        members: Vec<Member>,
    ) -> Self {
        Self {
            credentials,
            data_dir,
            peer_listen,
            members,
            timing: Timing::default(),
            snapshots: SnapshotSettings::default(),
            outcomes: OutcomeLimits::default(),
            store: StoreSettings::default(),
            udp_buffer_bytes: 2 << 20,
            disk_reserve_bytes: 128 << 20,
            check_entries: 10_000_000,
            check_window: Duration::from_secs(5),
        }
    }
}

/// Why a group did not start; says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder is in use, somebody else's, or cannot be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The log cannot be opened.
    #[error("the Raft log: {0}")]
    Log(std::io::Error),
    /// The state cannot be opened.
    #[error("the store: {0}")]
    Store(#[from] StorageError),
    /// Threads, sockets or openraft.
    #[error("the Raft group: {0}")]
    Group(String),
}

/// A group at a glance, for status pages and metrics.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupStatus {
    /// `leader`, `follower`, `candidate`, `learner` or `shutdown`.
    pub state: String,
    /// Raft term.
    pub term: u64,
    /// Who leads, if known.
    pub leader: Option<u64>,
    /// Index of the last entry of the log.
    pub last_log: Option<u64>,
    /// Index of the last entry known to be committed.
    pub committed: Option<u64>,
    /// Index of the last applied entry.
    pub applied: u64,
    /// State is durable up to this index.
    pub snapshot: Option<u64>,
    /// The log is cut up to this index.
    pub purged: Option<u64>,
    /// On the leader: index up to which each peer holds the log.
    pub matched: Vec<(u64, Option<u64>)>,
    /// On the leader: milliseconds since each member was heard from; `None` if never.
    pub silent_ms: Vec<(u64, Option<u64>)>,
    /// Entries appended since the start.
    pub log_appended_total: u64,
    /// fsyncs of the log since the start.
    pub log_syncs_total: u64,
    /// Bytes of the log on disk.
    pub log_bytes: u64,
    /// Bytes of the state on disk.
    pub state_bytes: u64,
    /// Writes acknowledged by this node since the start.
    pub writes_acknowledged_total: u64,
    /// Batches that they were proposed in.
    pub write_batches_total: u64,
    /// States hashed since the start, to be compared with those of the other replicas.
    pub checks_total: u64,
    /// Of these, not the same on all replicas: an alarm.
    pub checks_differed_total: u64,
}

/// One replica of the group; dropping it stops it at once.
pub struct Group {
    own: NodeId,
    store: Arc<FjallStore>,
    sums: Arc<Sums>,
    log: LogStore,
    raft: Raft<TypeConfig, StateMachine>,
    link: Arc<RaftLink>,
    writes: WritePath,
    barrier: Arc<RaftReadBarrier>,
    topology: watch::Receiver<Topology>,
    fatal: watch::Receiver<Option<String>>,
    ceiling: watch::Receiver<Ceiling>,
    stop: mpsc::Sender<Stop>,
    /// Nothing is sent on it: it ends with the Raft thread.
    ended: crossbeam::channel::Receiver<()>,
    folder: Arc<Folder>,
}

impl Group {
    /// Opens the folder and starts the replica. Blocks while files are read back.
    ///
    /// # Errors
    /// When the folder, the log, the store or the peer port cannot be used.
    pub fn start(config: GroupConfig) -> Result<Self, StartError> {
        let own = config.credentials.node();
        let folder = Arc::new(Folder::open(&config.data_dir, config.credentials.cluster(), own)?);
        let make_log = |path: &Path| LogStore::open(path).map(drop).map_err(StartError::Log);
        let log = LogStore::open(&folder.inner("log", make_log)?).map_err(StartError::Log)?;
        let make_state = |path: &Path| {
            let made = FjallStore::open(path, config.store)?;
            Ok::<_, StartError>(made.persist()?)
        };
        let mut settings = config.store;
        settings.memtable_bytes = part(own, Work::Flush, 0, settings.memtable_bytes);
        let store = Arc::new(FjallStore::open(&folder.inner("state", make_state)?, settings)?);
        let (told, hashed) = mpsc::channel(4);
        let sums = Arc::new(Sums::default());
        let checker = Checker::start(own, config.check_entries, config.check_window, sums.clone(), told);
        let checker = checker.map_err(|error| StartError::Group(error.to_string()))?;
        let machine = StateMachine::start(store.clone(), config.outcomes, Some(checker))?;
        let ceiling = machine.ceiling();
        let known = folder.clone();
        let (ready, started) = std::sync::mpsc::sync_channel(1);
        let (stop, stops) = mpsc::channel(4);
        let (ending, ended) = crossbeam::channel::bounded(0);
        {
            let (log, store, sums) = (log.clone(), store.clone(), sums.clone());
            let body = move || {
                let _ends_with_the_thread: crossbeam::channel::Sender<()> = ending;
                run::thread(&config, folder, Local { log, store, machine, sums, hashed }, &ready, stops);
            };
            let thread = std::thread::Builder::new().name("tiedkv-raft".to_owned());
            thread.spawn(body).map_err(|error| StartError::Group(error.to_string()))?;
        }
        let started = started.recv().unwrap_or_else(|_| Err("its thread ended".to_owned()));
        let Started { raft, link, writes, barrier, topology, fatal } = started.map_err(StartError::Group)?;
        Ok(Self {
            own,
            store,
            sums,
            log,
            raft,
            link,
            writes,
            barrier,
            topology,
            fatal,
            ceiling,
            stop,
            ended,
            folder: known,
        })
    }

    /// Who this replica is.
    pub fn node(&self) -> NodeId {
        self.own
    }

    /// The replica's data.
    pub fn store(&self) -> &Arc<FjallStore> {
        &self.store
    }

    /// The room left on this replica's disk.
    pub fn disk(&self) -> &DiskSpace {
        self.writes.disk()
    }

    /// Asks for the positions of linearizable reads.
    pub fn read_barrier(&self) -> Arc<dyn ReadBarrier> {
        self.barrier.clone()
    }

    /// The address that the peer port took.
    ///
    /// # Errors
    /// When the socket cannot tell.
    pub fn peer_address(&self) -> std::io::Result<SocketAddr> {
        self.link.local_address()
    }

    /// Who leads, if known.
    pub fn leader(&self) -> Option<NodeId> {
        self.topology.borrow().leader
    }

    /// Members and leader, now and when they change.
    pub fn topology(&self) -> watch::Receiver<Topology> {
        self.topology.clone()
    }

    /// Why this replica can no longer go on, once it cannot: the node says so and exits.
    pub fn fatal(&self) -> watch::Receiver<Option<String>> {
        self.fatal.clone()
    }

    /// The group at a glance.
    pub fn status(&self) -> GroupStatus {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched().clone();
        let log = self.log.counters();
        let counters = self.writes.counters();
        GroupStatus {
            state: format!("{:?}", metrics.state).to_lowercase(),
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_log: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index),
            applied: self.store.current().position().0,
            snapshot: metrics.snapshot.map(|id| id.index),
            purged: metrics.purged.map(|id| id.index),
            matched: metrics
                .replication
                .iter()
                .flatten()
                .map(|(node, matched)| (*node, matched.as_ref().map(|id| id.index)))
                .collect(),
            silent_ms: membership::silence(&metrics)
                .into_iter()
                .map(|(node, silent)| (node, silent.map(|silent| silent.as_millis() as u64)))
                .collect(),
            log_appended_total: log.appended,
            log_syncs_total: log.syncs,
            log_bytes: log.disk_bytes,
            state_bytes: self.store.disk_bytes(),
            writes_acknowledged_total: counters.acknowledged.load(Ordering::Relaxed),
            write_batches_total: counters.batches.load(Ordering::Relaxed),
            checks_total: self.sums.counters.hashed.load(Ordering::Relaxed),
            checks_differed_total: self.sums.counters.differed.load(Ordering::Relaxed),
        }
    }

    /// Adds a member: learner first, then voter. To be asked of the leader.
    ///
    /// # Errors
    /// `NotLeader`, `Membership` or `Expired`, with what to do.
    ///
    /// # Cancel safety
    /// A dropped future leaves at most a learner; the same call goes on from there.
    pub async fn add_member(&self, member: &Member, wait: Duration) -> Result<(), Failure> {
        if self.folder.is_removed(member.node) {
            let text = format!(
                "{} was a member before and was removed; an id is used once: make a certificate with a new one \
                 (`tiedkv certs --add`)",
                member.node
            );
            return Err(Failure::new(ErrorCode::Membership, text));
        }
        membership::add(&self.raft, self.own, member, wait).await
    }

    /// Removes a member. To be asked of the leader.
    ///
    /// # Errors
    /// `NotLeader`, `Membership` (it would lose quorum, another change runs) or `UnknownOutcome`.
    ///
    /// # Cancel safety
    /// A dropped future may leave the change made or not; the same call goes on from there.
    pub async fn remove_member(&self, node: NodeId, wait: Duration) -> Result<(), Failure> {
        membership::remove(&self.raft, self.own, node, wait).await
    }

    /// Hands leadership to `to`, or to the voter that has most of the log. To be asked of the leader.
    ///
    /// # Errors
    /// `NotLeader`, `Membership` when there is nobody to hand it to, or `Expired`.
    ///
    /// # Cancel safety
    /// A dropped future may leave leadership handed over or not.
    pub async fn transfer_leader(&self, to: Option<NodeId>, wait: Duration) -> Result<NodeId, Failure> {
        run::transfer(&self.raft, self.own, to, wait).await
    }

    /// The operator's ceiling of read policies, now and when it changes.
    pub fn ceiling(&self) -> watch::Receiver<Ceiling> {
        self.ceiling.clone()
    }

    /// Sets the operator's ceiling in the whole cluster. To be asked of the leader.
    ///
    /// # Errors
    /// As a write.
    ///
    /// # Cancel safety
    /// A dropped future may leave it set or not.
    pub async fn set_ceiling(&self, ceiling: Ceiling, wait: Duration) -> Result<(), Failure> {
        self.writes.operate(Change::Ceiling(ceiling), wait).await.map(drop)
    }

    /// Ends the group; leadership does not move. Blocks until its thread has ended, at most `wait`: a disk that
    /// hangs keeps the thread, and with it the folder's lock, until the process ends. True if it ended.
    pub fn close(&self, wait: Duration) -> bool {
        // A full queue holds a stop already.
        let _stopping = self.stop.try_send(Stop::AtOnce);
        let ended = self.ended.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected);
        if !ended {
            tracing::error!(?wait, "the Raft thread does not end: does the disk hang?");
        }
        ended
    }

    /// Stops in order: leadership moves first (within `wait`), then the group ends and all is made durable (at most
    /// [`END_MAX`] longer).
    ///
    /// # Cancel safety
    /// A dropped future does not stop the stopping.
    pub async fn stop(&self, wait: Duration) {
        let (done, stopped) = oneshot::channel();
        if self.stop.send(Stop::Gently(wait, done)).await.is_ok() {
            // The sender is gone when the thread ended, which is what is waited for; a disk may hang.
            let _ended = tokio::time::timeout(wait + END_MAX, stopped).await;
        }
    }
}

impl Writer for Group {
    fn write(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> WriteFuture {
        self.writes.write(caller, request, value)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.close(END_MAX);
    }
}

#[cfg(test)]
#[path = "group_test.rs"]
mod tests;

#[cfg(test)]
#[path = "group_time_test.rs"]
mod time_tests;

#[cfg(test)]
#[path = "group_life_test.rs"]
mod life_tests;

#[cfg(test)]
#[path = "group_races_test.rs"]
mod races_tests;

#[cfg(test)]
#[path = "group_speed_test.rs"]
mod speed_tests;
