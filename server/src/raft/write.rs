//! The write path of a replica: many callers' writes become batches of log entries; each is answered when its
//! entry is on disk at a quorum and applied here.
//!
//! A follower answers `NotLeader` with the leader. A leader that has no lease yet (right after its election) keeps
//! the write and proposes it again. A write whose time is over before it was proposed was not applied; after that
//! its outcome is unknown to this node, and the caller's idempotency key makes a repeat harmless.

use crate::clock;
use crate::raft::command::{Settled, command, settled};
use crate::raft::disk_space::DiskSpace;
use crate::raft::expire::SharedTime;
use crate::raft::state_machine::StateMachine;
use crate::raft::types::{Change, Command, Told, TypeConfig, WriteKey, digest};
use crate::request::doors::WriteFuture;
use bytes::Bytes;
use openraft::Raft;
use openraft::errors::ClientWriteError;
use openraft::raft::ClientWriteResult;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, ClientId, NodeId, Position};
use tiedkv_protocol::limits::{INLINE_VALUE_BYTES_MAX, TIME_LEFT_MAX};
use tiedkv_protocol::request::WriteRequest;
use tiedkv_protocol::response::{Failure, WriteReply, Written};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout_at};

/// Most writes that are waited for at once; one more is refused.
pub const WRITES_MAX: usize = 8 * 1024;
/// Most bytes of keys and values that are waited for at once.
pub const WRITE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most writes proposed in one message.
const BATCH_MAX: usize = 1024;
/// Pause before a write is proposed again to a leader without a lease.
const LEASE_PAUSE: Duration = Duration::from_millis(15);

const QUEUED: u8 = 0;
const PROPOSED: u8 = 1;
const GIVEN_UP: u8 = 2;

struct Pending {
    command: Command,
    state: Arc<AtomicU8>,
    deadline: Instant,
    answer: oneshot::Sender<Settled>,
    _count: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// Counters of the write path since the start.
#[derive(Debug, Default)]
pub struct WriteCounters {
    /// Writes acknowledged.
    pub acknowledged: AtomicU64,
    /// Batches proposed.
    pub batches: AtomicU64,
    /// Writes proposed again because the leader had no lease yet.
    pub without_lease: AtomicU64,
}

/// Where writes are handed in; cheap to clone.
#[derive(Clone)]
pub struct WritePath {
    own: NodeId,
    leader: watch::Receiver<Option<NodeId>>,
    queue: mpsc::Sender<Pending>,
    count: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    counters: Arc<WriteCounters>,
    disk: Arc<DiskSpace>,
}

impl WritePath {
    /// Starts the proposing task within the group's runtime; it ends with the last handle.
    pub(super) fn start(
        own: NodeId,
        raft: Raft<TypeConfig, StateMachine>,
        leader: watch::Receiver<Option<NodeId>>,
        disk: Arc<DiskSpace>,
        time: Arc<SharedTime>,
    ) -> Self {
        let (queue, inbox) = mpsc::channel(WRITES_MAX);
        let counters = Arc::new(WriteCounters::default());
        let after = After { queue: queue.downgrade(), counters: counters.clone(), runtime: Handle::current() };
        let proposer = Proposer { raft, after: Arc::new(after), time };
        tokio::spawn(proposer.run(inbox));
        Self {
            own,
            leader,
            queue,
            count: Arc::new(Semaphore::new(WRITES_MAX)),
            bytes: Arc::new(Semaphore::new(WRITE_BYTES_MAX)),
            counters,
            disk,
        }
    }

    /// Who leads, as far as this node knows.
    pub(super) fn leader(&self) -> Option<NodeId> {
        *self.leader.borrow()
    }

    /// Counters since the start.
    pub fn counters(&self) -> &WriteCounters {
        &self.counters
    }

    /// The room left on this node's disk.
    pub(super) fn disk(&self) -> &DiskSpace {
        &self.disk
    }

    /// Takes one write; the future ends within the request's time left. It must be made and polled within a tokio
    /// runtime.
    pub fn write(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> WriteFuture {
        let (node, id) = (self.own, request.request);
        // Hashing a large body takes milliseconds, in which the caller's thread would serve nobody.
        let submitted = if value.len() > INLINE_VALUE_BYTES_MAX {
            let path = self.clone();
            Err(tokio::task::spawn_blocking(move || path.submit(caller, request, value)))
        } else {
            Ok(self.submit(caller, request, value))
        };
        Box::pin(async move {
            let submitted = match submitted {
                Ok(submitted) => submitted,
                Err(apart) => apart.await.unwrap_or_else(|_| Err(stopping())),
            };
            let mut settled = match submitted {
                Err(failure) => failure.into(),
                Ok(waiting) => waiting.outcome().await,
            };
            if let Err(failure) = &mut settled.outcome
                && failure.code == ErrorCode::KeyExpired
            {
                // Where a fresh key goes.
                failure.leader = Some(node);
            }
            (WriteReply { request: id, node, outcome: settled.outcome }, settled.detail)
        })
    }

    /// Takes a change that this node makes for an operator; under a key of its own.
    pub(super) async fn operate(&self, change: Change, wait: Duration) -> Result<Written, Failure> {
        let client = ClientId(rand::random());
        let key = WriteKey { caller: CallerId(0), client, sequence: 0 };
        let command = Command { stamp_ms: 0, key, floor: Position(u64::MAX), digest: digest(&change), change };
        self.queue(command, instant_now() + wait)?.outcome().await.outcome
    }

    fn submit(&self, caller: CallerId, request: WriteRequest, value: Bytes) -> Result<Waiting, Failure> {
        let left = Duration::from_micros(request.time_left_us).min(TIME_LEFT_MAX);
        let deadline = instant_now() + left;
        self.check_leads()?;
        self.queue(command(caller, request, value)?, deadline)
    }

    fn check_leads(&self) -> Result<(), Failure> {
        let leader = self.leader();
        if leader == Some(self.own) { Ok(()) } else { Err(not_leader(leader)) }
    }

    fn queue(&self, command: Command, deadline: Instant) -> Result<Waiting, Failure> {
        self.check_leads()?;
        self.disk.check()?;
        let busy = || {
            let message = format!(
                "at most {WRITES_MAX} writes and {WRITE_BYTES_MAX} bytes of them wait for their quorum at once"
            );
            let mut failure = Failure::new(ErrorCode::Busy, message);
            failure.retry_after_us = 5_000;
            failure
        };
        let bytes = u32::try_from(command.bytes()).unwrap_or(u32::MAX);
        let count = self.count.clone().try_acquire_owned().map_err(|_| busy())?;
        let bytes = self.bytes.clone().try_acquire_many_owned(bytes).map_err(|_| busy())?;
        let (sender, answer) = oneshot::channel();
        let state = Arc::new(AtomicU8::new(QUEUED));
        let pending =
            Pending { command, state: state.clone(), deadline, answer: sender, _count: count, _bytes: bytes };
        self.queue.try_send(pending).map_err(|_| stopping())?;
        Ok(Waiting { answer, state, deadline })
    }
}

struct Waiting {
    answer: oneshot::Receiver<Settled>,
    state: Arc<AtomicU8>,
    deadline: Instant,
}

impl Waiting {
    async fn outcome(self) -> Settled {
        match timeout_at(self.deadline, self.answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => unknown("the group stopped before the write was confirmed").into(),
            Err(_) => match self.state.compare_exchange(QUEUED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => expired().into(),
                Err(_) => unknown("no quorum confirmed the write in time").into(),
            },
        }
    }
}

fn stopping() -> Failure {
    Failure::new(ErrorCode::TryElsewhere, "the group has stopped")
}

fn expired() -> Failure {
    Failure::new(ErrorCode::Expired, "time was over before the write was proposed; not applied")
}

fn unknown(why: &str) -> Failure {
    Failure::new(
        ErrorCode::UnknownOutcome,
        format!("{why}; it may be applied later. Repeat it with the same idempotency key"),
    )
}

fn not_leader(leader: Option<NodeId>) -> Failure {
    let mut failure = match leader {
        Some(leader) => Failure::new(ErrorCode::NotLeader, format!("{leader} leads the shard")),
        None => Failure::new(ErrorCode::NotLeader, "the shard has no leader now"),
    };
    failure.leader = leader;
    failure.retry_after_us = if leader.is_none() { 30_000 } else { 0 };
    failure
}

/// Now, as tokio's timers say it.
fn instant_now() -> Instant {
    clock::instant(clock::now()).into()
}

struct Proposer {
    raft: Raft<TypeConfig, StateMachine>,
    after: Arc<After>,
    time: Arc<SharedTime>,
}

impl Proposer {
    async fn run(self, mut inbox: mpsc::Receiver<Pending>) {
        let mut arrived = Vec::new();
        // What arrives while a batch is proposed forms the next one.
        while inbox.recv_many(&mut arrived, BATCH_MAX).await > 0 {
            let stamp_ms = self.time.stamp_ms().await;
            let now = instant_now();
            let batch: Vec<Pending> =
                arrived.drain(..).filter_map(|pending| take(pending, now, stamp_ms)).collect();
            if batch.is_empty() {
                continue;
            }
            self.after.counters.batches.fetch_add(1, Ordering::Relaxed);
            for pending in batch {
                let (command, after) = (pending.command.clone(), self.after.clone());
                // Told by the apply thread itself: no way back through this one.
                let told = Told::new(move |result| after.proposed(pending, result));
                // A group that has stopped drops the responder, which tells the caller "unknown outcome".
                if let Err(fatal) = self.raft.client_write_ff(command, Some(told)).await {
                    tracing::debug!(%fatal, "a write met a group that has stopped");
                }
            }
        }
    }
}

/// A write that may be proposed now, stamped.
fn take(mut pending: Pending, now: Instant, stamp_ms: u64) -> Option<Pending> {
    let taken = pending.state.compare_exchange(QUEUED, PROPOSED, Ordering::AcqRel, Ordering::Acquire).is_ok();
    if !taken || pending.answer.is_closed() {
        // The caller gave up, which is its answer.
        return None;
    }
    if now >= pending.deadline {
        answer(pending, expired());
        return None;
    }
    pending.command.stamp_ms = stamp_ms;
    Some(pending)
}

/// What follows a proposal.
struct After {
    queue: mpsc::WeakSender<Pending>,
    counters: Arc<WriteCounters>,
    runtime: Handle,
}

impl After {
    fn proposed(&self, pending: Pending, result: ClientWriteResult<TypeConfig>) {
        match result {
            Ok(response) => {
                let settled = settled(response.data, Position(response.log_id.index));
                if settled.outcome.is_ok() {
                    self.counters.acknowledged.fetch_add(1, Ordering::Relaxed);
                }
                answer(pending, settled);
            }
            // Refused before it entered the log.
            Err(ClientWriteError::ForwardToLeader(forward)) => match forward.leader_id.map(NodeId) {
                Some(leader) => answer(pending, not_leader(Some(leader))),
                None => self.propose_again(pending),
            },
            Err(error) => answer(pending, unknown(&error.to_string())),
        }
    }

    /// No leader is known, or it is this node and it has no lease yet: the write waits for either.
    fn propose_again(&self, pending: Pending) {
        self.counters.without_lease.fetch_add(1, Ordering::Relaxed);
        pending.state.store(QUEUED, Ordering::Release);
        let Some(queue) = self.queue.upgrade() else {
            return answer(pending, not_leader(None));
        };
        self.runtime.spawn(async move {
            sleep(LEASE_PAUSE).await;
            if let Err(mpsc::error::TrySendError::Full(pending) | mpsc::error::TrySendError::Closed(pending)) =
                queue.try_send(pending)
            {
                answer(pending, not_leader(None));
            }
        });
    }
}

fn answer(pending: Pending, settled: impl Into<Settled>) {
    // A caller that is gone needs no answer.
    drop(pending.answer.send(settled.into()));
}
