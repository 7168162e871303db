//! The adapter room of raft-log: the Raft log, vote and committed position of one shard, fsynced in batches.
//!
//! Appends are readable at once and acknowledged by a callback after the fsync; votes are awaited. The flush
//! thread takes everything that queued while its last fsync ran into the next one. A failed write or fsync
//! latches: nothing after it is acknowledged. Which entries to keep is not decided here.

use crate::raft::log_codec::{LoggedId, LoggedPayload, LoggedVote};
use crate::raft::types::{Entry, LogId, Payload, TypeConfig, Vote};
use futures_util::{Stream, TryStreamExt, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use raft_log::api::raft_log_writer::RaftLogWriter;
use raft_log::{Config, RaftLog, Types};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// A chunk file is deleted once all of its entries are purged; the entries of the newest two stay in memory. A small
/// entry takes more than twice its bytes there, so chunks of 4 MiB meant 40 MB of resident memory under load.
const CHUNK_BYTES: usize = 2 * 1024 * 1024;
/// Payloads kept in memory beyond those of the newest chunks.
const CACHE_BYTES: usize = 1024 * 1024;
/// Entries kept in memory beyond those of the newest chunks.
const CACHE_ENTRIES: usize = 2 * 1024;
/// Buffer of the replay at start-up.
const REPLAY_BUFFER_BYTES: usize = 1024 * 1024;
/// How long the flush thread looks for one more request before it syncs. All that queued during the previous
/// fsync is taken anyway; with this thread's timer slack of 1 ns a longer wait only adds to a lone write's time.
const FLUSH_WAIT: Duration = Duration::from_micros(5);
/// Most bytes of requests that wait for the flush thread.
const FLUSH_QUEUE_BYTES: usize = 96 * 1024 * 1024;
/// Most bytes of entries in one append to a follower (one entry may be larger).
const READ_BYTES_MAX: usize = 1024 * 1024;

/// raft-log's type parameters.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LogTypes;

impl Types for LogTypes {
    type LogId = LoggedId;
    type LogPayload = LoggedPayload;
    type Vote = LoggedVote;
    type Callback = Flushed;
    type UserData = String;

    fn log_index(log_id: &Self::LogId) -> u64 {
        log_id.0.index
    }

    fn payload_size(payload: &Self::LogPayload) -> u64 {
        payload.bytes() as u64
    }
}

/// Who is told when a flush is done; called on the flush thread.
pub struct Flushed {
    shared: Arc<Shared>,
    whom: Whom,
}

enum Whom {
    Append(IOFlushed<TypeConfig>),
    Vote(oneshot::Sender<io::Result<()>>),
}

impl raft_log::Callback for Flushed {
    fn send(self, result: io::Result<()>) {
        let result = match result {
            Ok(()) => self.shared.check(),
            Err(error) => {
                self.shared.fail(format!("the log could not be written: {error}"));
                Err(error)
            }
        };
        match self.whom {
            Whom::Append(callback) => callback.io_completed(result),
            // The receiver is gone when the node stops.
            Whom::Vote(sender) => drop(sender.send(result)),
        }
    }
}

struct Shared {
    failed: Mutex<Option<String>>,
    appended: AtomicU64,
    appended_bytes: AtomicU64,
}

impl Shared {
    fn fail(&self, why: String) {
        tracing::error!(%why, "log failed; this node stops acknowledging");
        self.failed.lock().get_or_insert(why);
    }

    fn check(&self) -> io::Result<()> {
        match &*self.failed.lock() {
            None => Ok(()),
            Some(why) => Err(io::Error::other(why.clone())),
        }
    }
}

/// The log of one shard; a cheap handle.
#[derive(Clone)]
pub struct LogStore {
    log: Arc<Mutex<RaftLog<LogTypes>>>,
    shared: Arc<Shared>,
}

impl LogStore {
    /// Opens or creates the log in `folder`, which must exist.
    ///
    /// # Errors
    /// When the folder cannot be read or written, or holds a damaged log.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let dir = folder.to_str().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{}: not UTF-8", folder.display()))
        })?;
        let mut config = Config::new(dir);
        config.wal.read_buffer_size = Some(REPLAY_BUFFER_BYTES);
        config.wal.chunk_max_size = Some(CHUNK_BYTES);
        config.wal.flush_batch_wait = Some(FLUSH_WAIT);
        config.wal.flush_queue_max_bytes = Some(FLUSH_QUEUE_BYTES);
        config.log_cache_capacity = Some(CACHE_BYTES);
        config.log_cache_max_items = Some(CACHE_ENTRIES);
        // The flush thread inherits the timer slack of the thread that makes it.
        let log = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _unsupported_is_slower =
                        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
                    RaftLog::open(Arc::new(config))
                })
                .join()
        })
        .map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the log in {dir} cannot be replayed"))
        })??;
        let shared =
            Shared { failed: Mutex::new(None), appended: AtomicU64::new(0), appended_bytes: AtomicU64::new(0) };
        Ok(Self { log: Arc::new(Mutex::new(log)), shared: Arc::new(shared) })
    }

    /// Why the log no longer takes writes, if so.
    pub fn failure(&self) -> Option<String> {
        self.shared.failed.lock().clone()
    }

    /// Makes every later flush fail, as a broken disk would.
    #[cfg(test)]
    pub(crate) fn break_for_test(&self) {
        self.shared.fail("broken by a test".to_owned());
    }

    /// Entries and bytes appended since the start, and fsyncs done.
    pub fn counters(&self) -> LogCounters {
        let (stat, disk_bytes) = {
            let log = self.log.lock();
            (log.stat(), log.on_disk_size())
        };
        LogCounters {
            appended: self.shared.appended.load(Ordering::Relaxed),
            appended_bytes: self.shared.appended_bytes.load(Ordering::Relaxed),
            syncs: stat.flush_metrics.sync_batch_count,
            cache_bytes: stat.payload_cache_size,
            disk_bytes,
        }
    }

    /// Index and size are the caller's to choose: the index up to which everything may go so that at most
    /// `bytes_max` of log stay, if more is there.
    pub fn purge_hint(&self, bytes_max: u64) -> Option<u64> {
        let log = self.log.lock();
        if log.on_disk_size() <= bytes_max {
            return None;
        }
        let state = log.log_state();
        let last = state.last().map(|id| id.0.index)?;
        let first = state.purged().map_or(0, |id| id.0.index + 1);
        let keep = bytes_max as f64 / log.on_disk_size() as f64;
        Some(last - ((last - first) as f64 * keep) as u64)
    }

    fn read(&self, from: u64, to: u64, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let log = self.log.lock();
        let mut entries = Vec::new();
        let mut bytes = 0;
        for item in log.read(from, to) {
            let (LoggedId(log_id), payload) = item?;
            bytes += payload.bytes();
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            entries.push(Entry::new(log_id, payload.0));
        }
        Ok(entries)
    }

    fn flushed(&self, whom: Whom) -> Option<Flushed> {
        Some(Flushed { shared: self.shared.clone(), whom })
    }

    fn write<T>(&self, write: impl FnOnce(&mut RaftLog<LogTypes>) -> io::Result<T>) -> io::Result<T> {
        self.shared.check()?;
        write(&mut self.log.lock())
            .inspect_err(|error| self.shared.fail(format!("the log refused a write: {error}")))
    }
}

/// Counters of the log since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCounters {
    /// Entries appended.
    pub appended: u64,
    /// Bytes of their payloads.
    pub appended_bytes: u64,
    /// fsyncs.
    pub syncs: u64,
    /// Bytes of payloads in memory.
    pub cache_bytes: u64,
    /// Bytes of chunk files.
    pub disk_bytes: u64,
}

impl RaftLogReader<TypeConfig> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<Entry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        self.read(from, to, usize::MAX)
    }

    // The default reads the whole range first, which for a replica far behind is all that it has to apply.
    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<Entry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let parts = stream::try_unfold((self.clone(), from), move |(log, from)| async move {
            if from >= to {
                return Ok(None);
            }
            let part = log.read(from, to, READ_BYTES_MAX)?;
            let next = part.last().map_or(to, |entry| entry.log_id.index + 1);
            Ok::<_, io::Error>(Some((stream::iter(part.into_iter().map(Ok)), (log, next))))
        });
        Box::pin(parts.try_flatten())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.read(start, end, READ_BYTES_MAX)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        Ok(self.log.lock().log_state().vote().map(|vote| vote.0))
    }
}

impl RaftLogStorage<TypeConfig> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<TypeConfig>> {
        let log = self.log.lock();
        let state = log.log_state();
        Ok(LogState { last_purged_log_id: state.purged().map(|id| id.0), last_log_id: state.last().map(|id| id.0) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        let (sender, receiver) = oneshot::channel();
        let callback = self.flushed(Whom::Vote(sender));
        self.write(|log| {
            log.save_vote(LoggedVote(*vote))?;
            log.flush(true, callback)
        })?;
        receiver.await.map_err(|_| io::Error::other("the flush thread stopped"))?
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let Some(committed) = committed.map(LoggedId) else { return Ok(()) };
        self.write(|log| {
            let state = log.log_state();
            // raft-log refuses what goes back or lies beyond the end; neither is an error of ours.
            if Some(&committed) <= state.committed() || Some(&committed) > state.last() {
                return Ok(());
            }
            // Goes to disk with the next append: a lost one costs a replay from the leader's knowledge, never an
            // entry, and is not worth waking the flush thread for each write of a lone caller.
            log.commit(committed).map(drop)
        })
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        Ok(self.log.lock().log_state().committed().map(|id| id.0))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<TypeConfig>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let callback = self.flushed(Whom::Append(callback));
        let (mut count, mut bytes) = (0, 0);
        let entries = entries.into_iter().map(|entry| {
            let payload = LoggedPayload(entry.payload);
            count += 1;
            bytes += payload.bytes() as u64;
            (LoggedId(entry.log_id), payload)
        });
        self.write(|log| {
            log.append(entries)?;
            log.flush(true, callback)
        })?;
        self.shared.appended.fetch_add(count, Ordering::Relaxed);
        self.shared.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> io::Result<()> {
        self.write(|log| {
            let keep = last_kept.map_or(0, |id| id.index + 1);
            let end = LogTypes::next_log_index(log.log_state().last());
            let start = LogTypes::next_log_index(log.log_state().purged());
            // raft-log makes an error of a cut past the end, openraft means "nothing to do".
            if keep >= end {
                return Ok(());
            }
            log.truncate(keep.max(start))?;
            log.flush(true, None)
        })
    }

    async fn purge(&mut self, upto: LogId) -> io::Result<()> {
        self.write(|log| {
            log.purge(LoggedId(upto))?;
            // Only a synced flush lets the chunk files go.
            log.flush(true, None)
        })
    }
}

/// First index, and the one after the last.
fn bounds(range: &impl RangeBounds<u64>) -> (u64, u64) {
    let from = match range.start_bound() {
        Bound::Included(index) => *index,
        Bound::Excluded(index) => index.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(index) => index.saturating_add(1),
        Bound::Excluded(index) => *index,
        Bound::Unbounded => u64::MAX,
    };
    (from, to)
}

/// Payload bytes, for bounds.
pub(crate) fn payload_bytes(payload: &Payload) -> usize {
    match payload {
        Payload::Normal(command) => command.bytes(),
        Payload::Blank => 16,
        Payload::Membership(membership) => 64 + 256 * membership.nodes().count(),
    }
}

#[cfg(test)]
#[path = "log_store_test.rs"]
mod tests;
