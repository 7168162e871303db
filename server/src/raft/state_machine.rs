//! Applies committed entries to the fjall store on a thread of its own: data, position, membership and outcomes
//! of a batch in one commit, then the answers. Also builds and installs snapshots.
//!
//! Nothing is fsynced per batch: the log is replayed after a crash. A built snapshot is "persisted up to here":
//! no copy is made, and only then openraft may purge the log.

use crate::raft::checksum::Checker;
use crate::raft::command;
use crate::raft::outcomes::{OutcomeLimits, Outcomes, Verdict};
use crate::raft::records::{outcome_of, restore};
use crate::raft::snapshot::Staged;
use crate::raft::types::{
    Answer, Change, Command, Entry, LogId, Payload, SnapshotMeta, StoredMembership, TypeConfig,
};
use crate::storage::atomic::Now;
use crate::storage::expiry::Expiry;
use crate::storage::fjall_store::{Commit, FjallStore, Meta};
use crate::storage::state_store::View as _;
use crate::storage::state_store::{Mutation, StorageError, Stored};
use crate::storage::view::FjallView;
use bytes::Bytes;
use crossbeam::channel::{Receiver, Sender, bounded};
use foldhash::HashMap;
use futures_util::{Stream, TryStreamExt};
use openraft::storage::{ApplyResponder, EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use tiedkv_protocol::codec;
use tiedkv_protocol::hello::Ceiling;
use tiedkv_protocol::ids::{Position, Version};
use tokio::sync::{oneshot, watch};

/// Version of the note that is kept beside the position.
pub const NOTE_FORMAT: u8 = 1;
/// Most entries of one commit.
const COMMIT_ENTRIES_MAX: usize = 1024;
/// Most bytes of one commit (one entry may be larger).
const COMMIT_BYTES_MAX: usize = 8 * 1024 * 1024;

/// What is kept beside the position: the last applied entry and the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The last applied entry.
    pub applied: Option<LogId>,
    /// The last membership applied.
    pub membership: StoredMembership,
    /// The operator's ceiling of read policies.
    pub ceiling: Ceiling,
}

impl Note {
    /// Format, then bincode.
    ///
    /// # Errors
    /// When the membership is too large.
    pub fn encode(&self) -> Result<Bytes, StorageError> {
        let mut bytes = vec![NOTE_FORMAT];
        bytes.extend(codec::encode_large(self).map_err(|error| StorageError::Failed(error.to_string()))?);
        Ok(bytes.into())
    }

    /// The note of bytes; none at all is the note of an empty store.
    ///
    /// # Errors
    /// When they are of another format.
    pub fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        match bytes.split_first() {
            None => Ok(Self::default()),
            Some((&NOTE_FORMAT, body)) => codec::decode_large(body)
                .map_err(|error| StorageError::Corrupt(format!("the applied note {error}"))),
            Some((format, _)) => {
                Err(StorageError::Corrupt(format!("an applied note of format {format}, want {NOTE_FORMAT}")))
            }
        }
    }

    /// As openraft names it.
    pub fn snapshot_meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }
}

/// A snapshot on its way out (a view to stream) or in (staged in the store, not visible yet).
pub enum SnapshotData {
    /// To be streamed.
    Outgoing(Arc<FjallView>),
    /// To be made the state.
    Incoming(Box<Staged>),
}

enum Job {
    Apply(Vec<EntryResponder<TypeConfig>>, oneshot::Sender<Result<(), StorageError>>),
    Install(SnapshotMeta, SnapshotData, oneshot::Sender<Result<(), StorageError>>),
}

/// The state machine as openraft sees it; the work is done on the apply thread, which ends with the last handle.
#[derive(Clone)]
pub struct StateMachine {
    jobs: Sender<Job>,
    store: Arc<FjallStore>,
    note: Arc<Mutex<Note>>,
    ceilings: watch::Receiver<Ceiling>,
    members: watch::Receiver<BTreeSet<u64>>,
}

impl StateMachine {
    /// Starts the apply thread over `store`; states are handed to `check`, if there is one.
    ///
    /// # Errors
    /// When the store holds what this version does not understand, or cannot be made durable.
    pub fn start(
        store: Arc<FjallStore>,
        limits: OutcomeLimits,
        check: Option<Checker>,
    ) -> Result<Self, StorageError> {
        // What survived a crash of the process alone may still be in the page cache; openraft takes the position
        // found here for a snapshot's and may purge up to it.
        store.persist()?;
        let view = store.current();
        let note = Note::decode(view.note())?;
        let (ceiling, ceilings) = watch::channel(note.ceiling);
        let (member, members) = watch::channel(nodes(&note));
        let note = Arc::new(Mutex::new(note));
        let outcomes = restore(&view, limits)?;
        let (jobs, inbox) = bounded(4);
        let applier = Applier {
            stamp_ms: view.stamp_ms(),
            position: view.position(),
            announced: None,
            store: store.clone(),
            note: note.clone(),
            outcomes,
            limits,
            ceiling,
            members: member,
            swept: None,
            checker: check,
        };
        std::thread::Builder::new()
            .name("tiedkv-apply".to_owned())
            .spawn(move || applier.run(&inbox))
            .map_err(|error| StorageError::Failed(format!("no thread for applying: {error}")))?;
        Ok(Self { jobs, store, note, ceilings, members })
    }

    /// The operator's ceiling, now and when it changes.
    pub fn ceiling(&self) -> watch::Receiver<Ceiling> {
        self.ceilings.clone()
    }

    /// The members by the last membership applied, hence committed; now and when it changes. Empty before the first.
    pub fn members(&self) -> watch::Receiver<BTreeSet<u64>> {
        self.members.clone()
    }

    async fn done(&self, job: Job, answer: oneshot::Receiver<Result<(), StorageError>>) -> io::Result<()> {
        // openraft sends one job at a time and awaits it, so the queue never fills.
        self.jobs.send(job).map_err(|_| io::Error::other("the apply thread ended"))?;
        answer.await.map_err(|_| io::Error::other("the apply thread ended"))?.map_err(io::Error::other)
    }
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let note = self.note.lock();
        Ok((note.applied, note.membership.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let mut entries = entries;
        loop {
            // A part at a time: a replica that has much to catch up with holds no more of it in memory.
            let (mut part, mut bytes) = (Vec::new(), 0);
            while part.len() < COMMIT_ENTRIES_MAX && bytes < COMMIT_BYTES_MAX {
                let Some(next) = entries.try_next().await? else { break };
                bytes += crate::raft::log_store::payload_bytes(&next.0.payload);
                part.push(next);
            }
            if part.is_empty() {
                return Ok(());
            }
            let (sender, answer) = oneshot::channel();
            self.done(Job::Apply(part, sender), answer).await?;
        }
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, snapshot: SnapshotData) -> io::Result<()> {
        let (sender, answer) = oneshot::channel();
        self.done(Job::Install(meta.clone(), snapshot, sender), answer).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<TypeConfig, SnapshotData>>> {
        let view = self.store.current();
        let note = Note::decode(view.note()).map_err(io::Error::other)?;
        Ok(note.applied.is_some().then(|| SnapshotOf::<TypeConfig, _> {
            meta: note.snapshot_meta(),
            snapshot: SnapshotData::Outgoing(view),
        }))
    }
}

impl RaftSnapshotBuilder<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<TypeConfig, SnapshotData>> {
        let view = self.store.current();
        let note = Note::decode(view.note()).map_err(io::Error::other)?;
        let store = self.store.clone();
        // Its own short thread: the fsync must not hold up this runtime.
        tokio::task::spawn_blocking(move || store.persist())
            .await
            .map_err(io::Error::other)?
            .map_err(io::Error::other)?;
        Ok(SnapshotOf::<TypeConfig, _> { meta: note.snapshot_meta(), snapshot: SnapshotData::Outgoing(view) })
    }
}

fn nodes(note: &Note) -> BTreeSet<u64> {
    note.membership.nodes().map(|(node, _)| *node).collect()
}

/// What the apply thread owns.
struct Applier {
    store: Arc<FjallStore>,
    note: Arc<Mutex<Note>>,
    outcomes: Outcomes,
    limits: OutcomeLimits,
    position: Position,
    stamp_ms: u64,
    /// The membership that was announced last.
    announced: Option<LogId>,
    ceiling: watch::Sender<Ceiling>,
    members: watch::Sender<BTreeSet<u64>>,
    /// Expiries up to here are removed: what was added later lies behind the log time of then. Spares the engine to
    /// look through what it has deleted.
    swept: Option<Expiry>,
    checker: Option<Checker>,
}

/// One commit in the making.
#[derive(Default)]
struct Batch {
    mutations: Vec<(Version, Mutation)>,
    /// The last mutation of each key.
    latest: HashMap<Bytes, usize>,
    /// The state before this commit; opened by the first command that must see it.
    before: Option<Arc<FjallView>>,
    swept: Vec<Expiry>,
    records: Vec<(Position, Vec<u8>)>,
    answers: Vec<(ApplyResponder<TypeConfig>, Answer)>,
    entries: usize,
    bytes: usize,
}

impl Batch {
    fn change(&mut self, version: Version, mutation: Mutation) {
        self.latest.insert(mutation.key().clone(), self.mutations.len());
        self.mutations.push((version, mutation));
    }

    /// The state of a key as the next command sees it: what has expired at its log time is absent.
    fn state(&self, before: &FjallView, stamp_ms: u64, key: &[u8]) -> Result<Option<Stored>, StorageError> {
        let stored = match self.latest.get(key).map(|index| &self.mutations[*index]) {
            Some((version, mutation)) => mutation.stored(*version),
            None => before.stored_for_apply(key)?,
        };
        Ok(stored.filter(|stored| stored.alive(stamp_ms)))
    }

    /// All items of one engine batch share a sequence number, so two of one key would tie.
    fn keep_last_of_each_key(&mut self) {
        if self.latest.len() == self.mutations.len() {
            return;
        }
        let latest = &self.latest;
        let mut index = 0;
        self.mutations.retain(|(_, mutation)| {
            index += 1;
            latest.get(mutation.key()) == Some(&(index - 1))
        });
    }
}

impl Applier {
    fn run(mut self, inbox: &Receiver<Job>) {
        while let Ok(job) = inbox.recv() {
            // A receiver that is gone belongs to a group that stops.
            match job {
                Job::Apply(entries, done) => drop(done.send(self.apply(entries))),
                Job::Install(meta, data, done) => drop(done.send(self.install(&meta, data))),
            }
        }
    }

    fn apply(&mut self, entries: Vec<EntryResponder<TypeConfig>>) -> Result<(), StorageError> {
        let mut batch = Batch::default();
        let mut note = self.note.lock().clone();
        for (entry, responder) in entries {
            let bytes = crate::raft::log_store::payload_bytes(&entry.payload);
            let full = batch.entries >= COMMIT_ENTRIES_MAX || batch.bytes + bytes > COMMIT_BYTES_MAX;
            // A sweep goes by the committed index, so that it is the same however entries are batched.
            if batch.entries > 0 && (full || sweeps(&entry.payload)) {
                self.commit(std::mem::take(&mut batch), &note)?;
            }
            batch.entries += 1;
            batch.bytes += bytes;
            note.applied = Some(entry.log_id);
            self.position = Position(entry.log_id.index);
            let answer = self.entry(entry, &mut batch, &mut note)?;
            if let Some(responder) = responder {
                batch.answers.push((responder, answer));
            }
            if self.checker.as_ref().is_some_and(|checker| checker.is_due(self.position)) {
                // A commit ends here, so that it is the same state on all replicas, however entries are batched.
                self.commit(std::mem::take(&mut batch), &note)?;
                self.checker.iter().for_each(|checker| checker.offer(|| self.store.committed()));
            }
        }
        self.commit(batch, &note)
    }

    fn entry(&mut self, entry: Entry, batch: &mut Batch, note: &mut Note) -> Result<Answer, StorageError> {
        match entry.payload {
            Payload::Blank => Ok(Answer::None),
            Payload::Membership(membership) => {
                note.membership = StoredMembership::new(Some(entry.log_id), membership);
                Ok(Answer::None)
            }
            Payload::Normal(command) => self.command(command, batch, note),
        }
    }

    fn command(&mut self, command: Command, batch: &mut Batch, note: &mut Note) -> Result<Answer, StorageError> {
        self.stamp_ms = self.stamp_ms.max(command.stamp_ms);
        let version = Version(self.position.0);
        if let Change::Tick { sweep_to } = command.change {
            if let Some(bound) = sweep_to {
                self.sweep(&bound, version, batch)?;
            }
            return Ok(Answer::Applied(version));
        }
        let now = Now { version, stamp_ms: self.stamp_ms };
        let store = &self.store;
        let verdict = self.outcomes.decide(&command, |key, within| outcome_of(&store.committed(), key, within))?;
        let mut record = match verdict {
            Verdict::Refuse(code) => return Ok(Answer::Refused(code)),
            Verdict::Repeat(repeat) => {
                let before = self.before(batch);
                return command::repeated(&command.change, repeat, now, |key| {
                    batch.state(&before, now.stamp_ms, key)
                });
            }
            Verdict::Apply(record) => record,
        };
        let answer = match command.change {
            Change::Put { key, value } => {
                batch.change(version, Mutation::Put { key, value });
                Answer::Applied(version)
            }
            Change::Delete { key } => {
                batch.change(version, Mutation::Delete { key });
                Answer::Applied(version)
            }
            Change::Ceiling(ceiling) => {
                note.ceiling = Ceiling { version: note.ceiling.version + 1, ..ceiling };
                Answer::Applied(version)
            }
            // Done above.
            Change::Tick { .. } => Answer::Applied(version),
            Change::Atomic(atomic) => {
                let before = self.before(batch);
                let (mutations, answer) =
                    command::judged(atomic, now, |key| batch.state(&before, now.stamp_ms, key))?;
                for mutation in mutations {
                    batch.change(version, mutation);
                }
                answer
            }
        };
        if let Answer::Unmet(unmet) = &answer {
            record.code = unmet.code as u16;
        }
        self.outcomes.keep(self.position, &record);
        batch.records.push((self.position, record.encode().to_vec()));
        Ok(answer)
    }

    /// Removes what has expired, up to and with `bound`: the same keys on every replica, whatever stale entries its
    /// index holds.
    fn sweep(&mut self, bound: &Expiry, version: Version, batch: &mut Batch) -> Result<(), StorageError> {
        let before = self.before(batch);
        for expiry in before.expiries(self.swept.as_ref(), self.stamp_ms.min(bound.at_ms)) {
            let expiry = expiry?;
            if expiry > *bound {
                break;
            }
            let stored = match batch.latest.get(&expiry.key).map(|index| &batch.mutations[*index]) {
                Some((version, mutation)) => mutation.stored(*version),
                None => before.stored_for_apply(&expiry.key)?,
            };
            if stored.is_some_and(|stored| stored.expires_ms == Some(expiry.at_ms)) {
                batch.change(version, Mutation::Delete { key: expiry.key.clone() });
            }
            batch.swept.push(expiry);
        }
        if let Some(last) = batch.swept.last() {
            self.swept = Some(last.clone());
        }
        Ok(())
    }

    /// The state before this commit, also while publication is held back.
    fn before(&self, batch: &mut Batch) -> Arc<FjallView> {
        batch.before.get_or_insert_with(|| self.store.committed()).clone()
    }

    fn commit(&mut self, mut batch: Batch, note: &Note) -> Result<(), StorageError> {
        if batch.entries == 0 {
            return Ok(());
        }
        batch.keep_last_of_each_key();
        self.store.commit(&Commit {
            mutations: &batch.mutations,
            swept: &batch.swept,
            outcomes: &batch.records,
            forgotten: self.outcomes.forgotten(),
            position: self.position,
            stamp_ms: self.stamp_ms,
            note: note.encode()?,
        })?;
        *self.note.lock() = note.clone();
        self.announce(note);
        for (responder, answer) in batch.answers {
            responder.send(answer);
        }
        Ok(())
    }

    fn install(&mut self, meta: &SnapshotMeta, data: SnapshotData) -> Result<(), StorageError> {
        let position = Position(meta.last_log_id.map_or(0, |id| id.index));
        let staged = match data {
            SnapshotData::Incoming(staged) => *staged,
            SnapshotData::Outgoing(view) => Staged::copy_of(&self.store, &view)?,
        };
        let note =
            Note { applied: meta.last_log_id, membership: meta.last_membership.clone(), ceiling: staged.ceiling };
        let meta = Meta {
            generation: 0,
            position,
            stamp_ms: staged.stamp_ms,
            forgotten: staged.forgotten,
            note: note.encode()?,
        };
        staged.install.flip(meta)?;
        let view = self.store.current();
        self.outcomes = restore(&view, self.limits)?;
        self.position = position;
        self.stamp_ms = view.stamp_ms();
        self.swept = None;
        self.announce(&note);
        *self.note.lock() = note;
        Ok(())
    }

    fn announce(&mut self, note: &Note) {
        self.ceiling.send_if_modified(|known| std::mem::replace(known, note.ceiling) != note.ceiling);
        if self.announced != *note.membership.log_id() {
            self.announced = *note.membership.log_id();
            self.members.send_replace(nodes(note));
        }
    }
}

fn sweeps(payload: &Payload) -> bool {
    matches!(payload, Payload::Normal(Command { change: Change::Tick { sweep_to: Some(_) }, .. }))
}

#[cfg(test)]
#[path = "expire_test.rs"]
mod expire_tests;

#[cfg(test)]
#[path = "state_machine_test.rs"]
mod tests;
