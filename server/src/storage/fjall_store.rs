//! The adapter room of fjall: one database per shard, data + position + outcomes in one batch, views.
//!
//! Nothing is fsynced per batch: after a crash the Raft log is replayed from the position that survived.
//! [`FjallStore::persist`] makes all of it durable before the log may be purged. A snapshot is installed into
//! new keyspaces (a *generation*) and becomes visible by one write that flips the generation; a half-done
//! install is swept at the next open. An error of the engine latches. Raft is not known here: what the state
//! machine keeps beside the position is an opaque note.

use crate::clock;
use crate::storage::expiry::Expiry;
use crate::storage::hot_rows::HotRows;
use crate::storage::spaces::{Spaces, generation_of, ingest, sync_names};
use crate::storage::state_store::{Mutation, PositionListener, StateStore, StorageError, View};
use crate::storage::unlocked::Unlocked;
use crate::storage::view::{FjallView, decode_value, encode_stored, encode_value, engine_error};
use arc_swap::ArcSwap;
use bytes::Bytes;
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use parking_lot::{Mutex, RwLock};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tiedkv_protocol::ids::{Position, Version};
use tiedkv_protocol::moment::Moment;

/// Version of the meta record's bytes.
pub const META_FORMAT: u8 = 1;
/// Entries of the index of expiries that one batch of an install writes.
const EXPIRIES_PER_BATCH: usize = 4096;
/// Most outcomes deleted along with one batch.
const FORGET_PER_BATCH: u64 = 512;
const META_KEY: &[u8] = b"applied";
/// For this long a view is read without the engine's lock if no other one follows: a flush of 8 MiB takes less.
const UNLOCKED_FOR: Duration = Duration::from_secs(1);
/// For this long after the engine was last seen to write tables it may do so again: compactions follow flushes.
const AT_WORK_FOR: Duration = Duration::from_millis(250);

/// Sizes of a store. Defaults fit a node of 100 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Block cache, bytes; default 8 MiB.
    pub cache_bytes: u64,
    /// Rows read lately that are found without the engine, bytes; default 4 MiB, 0: none.
    pub rows_bytes: u64,
    /// Memtable of the data, bytes; default 4 MiB. Up to four sealed ones may wait to be written.
    pub memtable_bytes: u64,
    /// Cap of the engine's journals, bytes, at least 64 MiB (default).
    pub journal_bytes: u64,
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self { cache_bytes: 8 << 20, rows_bytes: 4 << 20, memtable_bytes: 4 << 20, journal_bytes: 64 << 20 }
    }
}

/// One atomic change of everything.
#[derive(Debug, Default)]
pub struct Commit<'a> {
    /// Changes of data, each with the position of its own write.
    pub mutations: &'a [(Version, Mutation)],
    /// Entries of the index of expiries that are done with.
    pub swept: &'a [Expiry],
    /// Records of outcomes to keep, by position.
    pub outcomes: &'a [(Position, Vec<u8>)],
    /// Outcomes up to here are forgotten.
    pub forgotten: Position,
    /// The position after this commit.
    pub position: Position,
    /// Log time at that position.
    pub stamp_ms: u64,
    /// What the state machine keeps beside the position.
    pub note: Bytes,
}

/// Position, log time, generation and note as one record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Which keyspaces are in force.
    pub generation: u64,
    /// Applied up to here.
    pub position: Position,
    /// Log time there.
    pub stamp_ms: u64,
    /// Outcomes up to here are forgotten.
    pub forgotten: Position,
    /// The state machine's note.
    pub note: Bytes,
}

impl Meta {
    /// Format, generation, position, stamp, forgotten (little-endian), note.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![META_FORMAT];
        for number in [self.generation, self.position.0, self.stamp_ms, self.forgotten.0] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.note);
        bytes
    }

    /// The record of bytes.
    ///
    /// # Errors
    /// When they are of another format or too short.
    pub fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let corrupt = |text: &str| StorageError::Corrupt(format!("the position record {text}"));
        let (&format, mut rest) = bytes.split_first().ok_or_else(|| corrupt("is empty"))?;
        if format != META_FORMAT {
            return Err(corrupt(&format!("has format {format}, want {META_FORMAT}: written by a newer version?")));
        }
        let mut number = || {
            let (number, tail) = rest.split_first_chunk::<8>().ok_or_else(|| corrupt("is too short"))?;
            rest = tail;
            Ok(u64::from_le_bytes(*number))
        };
        let (generation, position, stamp_ms, forgotten) = (number()?, number()?, number()?, number()?);
        Ok(Self {
            generation,
            position: Position(position),
            stamp_ms,
            forgotten: Position(forgotten),
            note: Bytes::copy_from_slice(rest),
        })
    }
}

struct Writing {
    meta: Meta,
    spaces: Spaces,
    /// Outcomes up to here are deleted from disk.
    swept: u64,
    /// The engine writes tables of values, as far as is known, up to then.
    at_work_until: Moment,
}

/// A replica's data on disk.
pub struct FjallStore {
    folder: PathBuf,
    database: Database,
    meta: Keyspace,
    rows: Arc<HotRows>,
    writing: Mutex<Writing>,
    view: ArcSwap<FjallView>,
    listeners: RwLock<Vec<Arc<dyn PositionListener>>>,
    lagging: AtomicBool,
    failed: Mutex<Option<StorageError>>,
    settings: StoreSettings,
    next_generation: Mutex<u64>,
}

impl FjallStore {
    /// Opens or creates the database in `folder`.
    ///
    /// # Errors
    /// When it cannot be read or written, is of a newer format, or is open elsewhere.
    pub fn open(folder: &Path, settings: StoreSettings) -> Result<Self, StorageError> {
        let database = Database::builder(folder)
            .cache_size(settings.cache_bytes)
            .worker_threads(1)
            .max_journaling_size(settings.journal_bytes)
            .open()
            .map_err(engine_error)?;
        let meta_keyspace = database
            .keyspace("meta", || KeyspaceCreateOptions::default().max_memtable_size(1 << 20))
            .map_err(engine_error)?;
        let meta =
            match fjall::Readable::get(&database.snapshot(), &meta_keyspace, META_KEY).map_err(engine_error)? {
                Some(bytes) => Meta::decode(&bytes)?,
                None => Meta::default(),
            };
        let mut newest = meta.generation;
        for name in database.list_keyspace_names() {
            let Some(generation) = generation_of(&name) else { continue };
            newest = newest.max(generation);
            if generation != meta.generation {
                tracing::info!(%name, "deleting what a snapshot left behind");
                let left = database.keyspace(&name, KeyspaceCreateOptions::default).map_err(engine_error)?;
                database.delete_keyspace(left).map_err(engine_error)?;
            }
        }
        let spaces = Spaces::open(&database, meta.generation, &settings)?;
        sync_names(folder)?;
        let rows = Arc::new(HotRows::new(settings.rows_bytes));
        let view = publishable(&database, &spaces, &rows, &meta);
        let swept = deleted(&view)?;
        Ok(Self {
            folder: folder.to_owned(),
            database,
            meta: meta_keyspace,
            rows,
            writing: Mutex::new(Writing { meta, spaces, swept, at_work_until: Moment(0) }),
            view: ArcSwap::from_pointee(view),
            listeners: RwLock::new(Vec::new()),
            lagging: AtomicBool::new(false),
            failed: Mutex::new(None),
            settings,
            next_generation: Mutex::new(newest + 1),
        })
    }

    /// The newest published view.
    pub fn current(&self) -> Arc<FjallView> {
        self.view.load_full()
    }

    /// A view of the newest commit, published or not.
    pub fn committed(&self) -> Arc<FjallView> {
        let writing = self.writing.lock();
        let view = self.view.load_full();
        if view.position == writing.meta.position && view.generation == writing.meta.generation {
            return view;
        }
        Arc::new(publishable(&self.database, &writing.spaces, &self.rows, &writing.meta))
    }

    /// Makes one commit atomically, then publishes a view of it and tells the listeners.
    ///
    /// # Errors
    /// When the engine cannot write, now or before; nothing of the commit is visible then.
    pub fn commit(&self, commit: &Commit<'_>) -> Result<(), StorageError> {
        self.check()?;
        let mut writing = self.writing.lock();
        let meta = Meta {
            generation: writing.meta.generation,
            position: commit.position,
            stamp_ms: commit.stamp_ms,
            forgotten: commit.forgotten,
            note: commit.note.clone(),
        };
        let mut batch = self.database.batch();
        for (version, mutation) in commit.mutations {
            self.rows.changes(mutation.key(), commit.position);
            match mutation {
                Mutation::Put { key, value } => {
                    batch.insert(&writing.spaces.data, key.as_ref(), encode_value(*version, value))
                }
                Mutation::Delete { key } => batch.remove(&writing.spaces.data, key.as_ref()),
                Mutation::PutUntil { key, stored } => {
                    batch.insert(&writing.spaces.data, key.as_ref(), encode_stored(stored));
                    if let Some(at_ms) = stored.expires_ms {
                        batch.insert(&writing.spaces.expiry, Expiry { at_ms, key: key.clone() }.encode(), []);
                    }
                }
            }
        }
        for expiry in commit.swept {
            batch.remove(&writing.spaces.expiry, expiry.encode());
        }
        for (position, record) in commit.outcomes {
            batch.insert(&writing.spaces.outcomes, position.0.to_be_bytes(), record.as_slice());
        }
        let swept = Self::forget(&mut batch, &writing, commit.forgotten);
        batch.insert(&self.meta, META_KEY, meta.encode());
        batch.commit().map_err(|error| self.latch(engine_error(error)))?;
        writing.swept = swept;
        writing.meta = meta;
        self.publish(&mut writing);
        Ok(())
    }

    /// Makes all that was committed durable.
    ///
    /// # Errors
    /// When the engine cannot sync, now or before.
    pub fn persist(&self) -> Result<(), StorageError> {
        self.check()?;
        self.database.persist(PersistMode::SyncAll).map_err(|error| self.latch(engine_error(error)))
    }

    /// Why the store no longer takes writes, if so.
    pub fn failure(&self) -> Option<StorageError> {
        self.failed.lock().clone()
    }

    /// Holds publication back or catches up, for tests: batches are applied meanwhile, nobody sees them.
    pub fn set_lag(&self, on: bool) {
        let mut writing = self.writing.lock();
        self.lagging.store(on, Ordering::Release);
        if !on {
            self.publish(&mut writing);
        }
    }

    /// Bytes on disk.
    pub fn disk_bytes(&self) -> u64 {
        self.database.disk_space().unwrap_or(0)
    }

    /// Begins the install of a snapshot: fresh keyspaces that nobody sees before [`Install::flip`].
    ///
    /// # Errors
    /// When the engine cannot create them.
    pub fn begin_install(self: &Arc<Self>) -> Result<Install, StorageError> {
        self.check()?;
        let generation = {
            let mut next = self.next_generation.lock();
            *next += 1;
            *next - 1
        };
        let spaces = Spaces::open(&self.database, generation, &self.settings)?;
        sync_names(&self.folder)?;
        Ok(Install { store: self.clone(), generation, spaces, flipped: false })
    }

    /// Deletes some outcomes that are forgotten; gives up to where all are deleted. Nothing is read to know which there
    /// are: that would fill the cache with blocks that nobody asks for again.
    fn forget(batch: &mut fjall::OwnedWriteBatch, writing: &Writing, forgotten: Position) -> u64 {
        let to = forgotten.0.min(writing.swept.saturating_add(FORGET_PER_BATCH));
        for position in writing.swept + 1..=to {
            batch.remove(&writing.spaces.outcomes, position.to_be_bytes());
        }
        to.max(writing.swept)
    }

    fn publish(&self, writing: &mut Writing) {
        if !self.lagging.load(Ordering::Acquire) {
            self.publish_now(writing);
        }
    }

    fn publish_now(&self, writing: &mut Writing) {
        let mut view = publishable(&self.database, &writing.spaces, &self.rows, &writing.meta);
        if self.engine_at_work(writing) {
            let until = clock::now() + UNLOCKED_FOR;
            let seqno = view.snapshot.seqno();
            view.unlocked = Some(Unlocked::pin(&self.database, &writing.spaces.data, seqno, until));
        }
        self.view.store(Arc::new(view));
        for listener in self.listeners.read().iter() {
            listener.published(writing.meta.position);
        }
    }

    /// Whether the engine writes tables of values, or soon will: then reads of a view should not need its lock.
    fn engine_at_work(&self, writing: &mut Writing) -> bool {
        let (data, now) = (&writing.spaces.data, clock::now());
        let full = data.tree.active_memtable().size() >= self.settings.memtable_bytes;
        if full || data.sealed_memtable_count() > 0 || self.database.active_compactions() > 0 {
            writing.at_work_until = now + AT_WORK_FOR;
        }
        now < writing.at_work_until
    }

    fn check(&self) -> Result<(), StorageError> {
        self.failed.lock().clone().map_or(Ok(()), Err)
    }

    fn latch(&self, error: StorageError) -> StorageError {
        tracing::error!(%error, "the store failed; this node stops acknowledging");
        self.failed.lock().get_or_insert(error).clone()
    }
}

impl StateStore for FjallStore {
    fn view(&self) -> Arc<dyn View> {
        self.view.load_full()
    }

    fn applied(&self) -> Arc<dyn View> {
        self.committed()
    }

    fn apply(&self, batch: &[Mutation], position: Position, stamp_ms: u64) -> Result<(), StorageError> {
        let mutations: Vec<_> = batch.iter().map(|mutation| (Version(position.0), mutation.clone())).collect();
        let (note, forgotten) = {
            let view = self.view.load();
            (view.note.clone(), view.forgotten)
        };
        self.commit(&Commit {
            mutations: &mutations,
            swept: &[],
            outcomes: &[],
            forgotten,
            position,
            stamp_ms,
            note,
        })
    }

    fn watch(&self, listener: Arc<dyn PositionListener>) {
        self.listeners.write().push(listener);
    }
}

/// A snapshot on its way in. Dropped before the flip, nothing of it stays.
pub struct Install {
    store: Arc<FjallStore>,
    generation: u64,
    spaces: Spaces,
    flipped: bool,
}

impl Install {
    /// Writes values (as kept on disk), in ascending order of key.
    ///
    /// # Errors
    /// When the engine cannot write or `source` fails.
    pub fn write_values(
        &self,
        source: impl Iterator<Item = Result<(Bytes, Bytes), StorageError>>,
    ) -> Result<u64, StorageError> {
        let mut expiries = Vec::new();
        let indexed = source.map(|item| {
            if let Ok((key, bytes)) = &item
                && let Some(at_ms) = decode_value(bytes)?.expires_ms
            {
                expiries.push(Expiry { at_ms, key: key.clone() });
                if expiries.len() >= EXPIRIES_PER_BATCH {
                    self.index(&mut expiries)?;
                }
            }
            item
        });
        let count = ingest(&self.spaces.data, indexed)?;
        self.index(&mut expiries)?;
        Ok(count)
    }

    /// Writes records of outcomes, in ascending order of position (the key, big-endian).
    ///
    /// # Errors
    /// As [`write_values`](Self::write_values).
    pub fn write_outcomes(
        &self,
        source: impl Iterator<Item = Result<(Bytes, Bytes), StorageError>>,
    ) -> Result<u64, StorageError> {
        ingest(&self.spaces.outcomes, source)
    }

    /// The index of expiries is not part of a snapshot: it follows from the values.
    fn index(&self, expiries: &mut Vec<Expiry>) -> Result<(), StorageError> {
        let mut batch = self.store.database.batch();
        expiries.drain(..).for_each(|expiry| batch.insert(&self.spaces.expiry, expiry.encode(), []));
        batch.commit().map_err(engine_error)
    }

    /// Makes this the store's state: persist, flip, persist, publish, delete the old one.
    ///
    /// # Errors
    /// When the engine cannot write; the old state stays then, unless the flip itself was written.
    pub fn flip(mut self, mut meta: Meta) -> Result<(), StorageError> {
        let store = self.store.clone();
        store.check()?;
        let mut writing = store.writing.lock();
        store.persist()?;
        meta.generation = self.generation;
        let mut batch = store.database.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(&store.meta, META_KEY, meta.encode());
        batch.commit().map_err(|error| store.latch(engine_error(error)))?;
        self.flipped = true;
        let swept = deleted(&publishable(&store.database, &self.spaces, &store.rows, &meta))?;
        let old = std::mem::replace(
            &mut *writing,
            Writing { meta, spaces: self.spaces.clone(), swept, at_work_until: Moment(0) },
        );
        // Also while publication is held back: nothing may go on from a view of the old keyspaces.
        store.publish_now(&mut writing);
        // Views of the old state go on; its files go with the last of them, or at the next open.
        old.spaces.delete(&store.database).map_err(|error| store.latch(error))
    }
}

impl Drop for Install {
    fn drop(&mut self) {
        if !self.flipped
            && let Err(error) = self.spaces.clone().delete(&self.store.database)
        {
            tracing::warn!(%error, "what a snapshot left behind is deleted at the next start");
        }
    }
}

/// Outcomes up to here are deleted: those before the first that is there.
fn deleted(view: &FjallView) -> Result<u64, StorageError> {
    let first = view.outcomes(1..=u64::MAX).next().transpose()?;
    let position = first.and_then(|(key, _)| key.as_ref().try_into().ok()).map(u64::from_be_bytes);
    Ok(position.map_or(view.forgotten.0, |first| first.saturating_sub(1)))
}

fn publishable(database: &Database, spaces: &Spaces, rows: &Arc<HotRows>, meta: &Meta) -> FjallView {
    FjallView {
        snapshot: database.snapshot(),
        unlocked: None,
        spaces: spaces.clone(),
        rows: rows.clone(),
        position: meta.position,
        stamp_ms: meta.stamp_ms,
        generation: meta.generation,
        note: meta.note.clone(),
        forgotten: meta.forgotten,
    }
}

#[cfg(test)]
#[path = "fjall_store_test.rs"]
mod tests;
