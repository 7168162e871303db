//! The state machine of the simulated group: a sorted map, decided by the shipped rooms (`outcomes`, `command`,
//! `atomic`). Like the shipped one it syncs nothing per batch: after a crash it is what the last snapshot made durable.

use super::channel::{self, SimWatch};
use super::runtime::{draw_time, sleep};
use super::types::{Entry, LogId, Payload, Planted, SimTypes, SnapshotMeta, StoredMembership};
use super::watch::SharedWatch;
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use openraft::async_runtime::watch::{Watch as _, WatchReceiver as _, WatchSender as _};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::SnapshotOf;
use openraft::{OptionalSend, RaftSnapshotBuilder};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::atomic::Operation;
use tiedkv_protocol::ids::{Position, Version};
use tiedkv_server::raft::command;
use tiedkv_server::raft::outcomes::{OutcomeLimits, Outcomes, Record, Repeat, Verdict};
use tiedkv_server::raft::types::{Answer, Change, Command, WriteKey};
use tiedkv_server::storage::atomic::Now;
use tiedkv_server::storage::state_store::{Mutation, StorageError, Stored};

/// Outcomes live this long by log time: short, so that worlds see them forgotten.
pub const OUTCOME_LIMITS: OutcomeLimits = OutcomeLimits { count_max: 100_000, age_max_ms: 60_000 };

/// All of it at one position.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The keys.
    pub data: BTreeMap<Bytes, Stored>,
    records: BTreeMap<u64, Record>,
    forgotten: Position,
    stamp_ms: u64,
    applied: Option<LogId>,
    membership: StoredMembership,
}

impl State {
    /// The position that it is the state of.
    pub fn position(&self) -> Position {
        Position(self.applied.map_or(0, |id| id.index))
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Stored> {
        self.data.get(key).filter(|stored| stored.alive(self.stamp_ms)).cloned()
    }

    fn meta(&self) -> SnapshotMeta {
        SnapshotMeta { last_log_id: self.applied, last_membership: self.membership.clone() }
    }

    fn outcomes(&self) -> Outcomes {
        let mut outcomes = Outcomes::new(OUTCOME_LIMITS, self.forgotten);
        for (position, record) in &self.records {
            outcomes.restore(Position(*position), record);
        }
        outcomes
    }
}

struct Memory {
    state: Arc<State>,
    outcomes: Outcomes,
}

/// The state machine of one node. What is durable outlives it: [`SimMachine::after_crash`].
#[derive(Clone)]
pub struct SimMachine {
    node: u64,
    planted: Option<Planted>,
    memory: Arc<Mutex<Memory>>,
    durable: Arc<Mutex<Arc<State>>>,
    /// Not tokio's: that wakes in an order of its own.
    position: channel::Sender<Position>,
    watch: SharedWatch,
}

impl SimMachine {
    /// An empty one.
    pub fn new(node: u64, planted: Option<Planted>, watch: SharedWatch) -> Self {
        Self::of(node, planted, watch, Arc::default())
    }

    fn of(node: u64, planted: Option<Planted>, watch: SharedWatch, durable: Arc<Mutex<Arc<State>>>) -> Self {
        let state = durable.lock().clone();
        let (position, _) = SimWatch::channel(state.position());
        let memory = Arc::new(Mutex::new(Memory { outcomes: state.outcomes(), state }));
        Self { node, planted, memory, durable, position, watch }
    }

    /// The one that is found after a crash.
    pub fn after_crash(&self) -> Self {
        if self.planted == Some(Planted::PositionApart) {
            let ahead = self.memory.lock().state.clone();
            let mut found = State::clone(&self.durable.lock());
            (found.applied, found.membership) = (ahead.applied, ahead.membership.clone());
            *self.durable.lock() = Arc::new(found);
        }
        Self::of(self.node, self.planted, self.watch.clone(), self.durable.clone())
    }

    /// The state now.
    pub fn view(&self) -> Arc<State> {
        self.memory.lock().state.clone()
    }

    /// Waits until this position is applied.
    pub async fn applied(&self, position: Position) {
        let mut seen = self.position.subscribe();
        // The sender is here.
        let _ = seen.wait_until_ge(&position).await;
    }

    fn entry(&self, memory: &mut Memory, entry: Entry) -> Answer {
        let Memory { state, outcomes } = memory;
        let state = Arc::make_mut(state);
        state.applied = Some(entry.log_id);
        let command = match entry.payload {
            Payload::Blank => return Answer::None,
            Payload::Membership(membership) => {
                state.membership = StoredMembership::new(Some(entry.log_id), membership);
                return Answer::None;
            }
            Payload::Normal(command) => command,
        };
        // A map in memory does not fail.
        decide(self.planted, state, outcomes, Position(entry.log_id.index), command).unwrap_or(Answer::None)
    }

    fn publish(&self) {
        let position = self.memory.lock().state.position();
        self.position.send_if_modified(|known| std::mem::replace(known, position) != position);
    }
}

/// As the shipped applier does, without expiries.
fn decide(
    planted: Option<Planted>,
    state: &mut State,
    outcomes: &mut Outcomes,
    position: Position,
    command: Command,
) -> Result<Answer, StorageError> {
    state.stamp_ms = state.stamp_ms.max(command.stamp_ms);
    let now = Now { version: Version(position.0), stamp_ms: state.stamp_ms };
    let records = &state.records;
    let look = |key: &WriteKey, within: RangeInclusive<u64>| {
        let found = records.range(within).find(|(_, record)| record.key == *key);
        Ok::<_, StorageError>(found.map(|(position, record)| (Position(*position), *record)))
    };
    let record = match outcomes.decide(&command, look)? {
        Verdict::Refuse(code) => return Ok(Answer::Refused(code)),
        Verdict::Repeat(Repeat::Applied(_)) if planted == Some(Planted::RepeatsApplied) => {
            Record { key: command.key, digest: command.digest, stamp_ms: command.stamp_ms, code: 0 }
        }
        Verdict::Repeat(repeat) => {
            return command::repeated(&command.change, repeat, now, |key| Ok(state.get(key)));
        }
        Verdict::Apply(record) => record,
    };
    let mut record = record;
    let (mutations, answer) = match command.change {
        Change::Put { key, value } => (vec![Mutation::Put { key, value }], Answer::Applied(now.version)),
        Change::Delete { key } => (vec![Mutation::Delete { key }], Answer::Applied(now.version)),
        Change::Atomic(atomic) => command::judged(atomic, now, |key| Ok(state.get(key)))?,
        Change::Ceiling(_) | Change::Tick { .. } => (Vec::new(), Answer::Applied(now.version)),
    };
    for mutation in mutations {
        match mutation.stored(now.version) {
            Some(stored) => state.data.insert(mutation.key().clone(), stored),
            None => state.data.remove(mutation.key()),
        };
    }
    if let Answer::Unmet(unmet) = &answer {
        record.code = unmet.code as u16;
    }
    outcomes.keep(position, &record);
    state.records.insert(position.0, record);
    if outcomes.forgotten() > state.forgotten {
        state.forgotten = outcomes.forgotten();
        state.records = state.records.split_off(&(state.forgotten.0 + 1));
    }
    Ok(answer)
}

impl RaftStateMachine<SimTypes> for SimMachine {
    type SnapshotData = Arc<State>;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let state = self.view();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = Result<EntryResponder<SimTypes>, io::Error>> + Unpin + OptionalSend,
    {
        let mut answers = Vec::new();
        while let Some((entry, responder)) = entries.try_next().await? {
            if self.planted == Some(Planted::HalfBatch) {
                self.show_half(&entry).await;
            }
            let (id, payload) = (entry.log_id, format!("{:?}", entry.payload));
            let answer = self.entry(&mut self.memory.lock(), entry);
            self.watch.lock().applied(self.node, id, &payload, &answer);
            answers.extend(responder.map(|responder| (responder, answer)));
        }
        // Published whole, then answered.
        self.publish();
        answers.into_iter().for_each(|(responder, answer)| responder.send(answer));
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _meta: &SnapshotMeta, snapshot: Arc<State>) -> io::Result<()> {
        sleep(draw_time(Duration::from_millis(5))).await;
        *self.durable.lock() = snapshot.clone();
        *self.memory.lock() = Memory { outcomes: snapshot.outcomes(), state: snapshot.clone() };
        self.watch.lock().installed(self.node, snapshot.position());
        self.publish();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<SimTypes, Arc<State>>>> {
        let state = self.outgoing();
        Ok(state.applied.is_some().then(|| SnapshotOf::<SimTypes, _> { meta: state.meta(), snapshot: state }))
    }
}

impl SimMachine {
    /// The bug: the first of two items is there at the batch's position, for a while.
    async fn show_half(&self, entry: &Entry) {
        let Payload::Normal(Command { change: Change::Atomic(atomic), .. }) = &entry.payload else { return };
        let [Operation::Put { key, value }, _] = &atomic.operations[..] else { return };
        let before = self.view();
        let mut half = State::clone(&before);
        half.applied = Some(entry.log_id);
        let version = Version(entry.log_id.index);
        half.data.insert(key.clone(), Stored { value: value.clone(), version, expires_ms: None });
        self.memory.lock().state = Arc::new(half);
        self.publish();
        sleep(Duration::from_millis(3)).await;
        self.memory.lock().state = before;
    }

    fn outgoing(&self) -> Arc<State> {
        let state = self.view();
        if self.planted == Some(Planted::OutcomesNotInSnapshot) {
            return Arc::new(State { records: BTreeMap::new(), ..State::clone(&state) });
        }
        state
    }
}

impl RaftSnapshotBuilder<SimTypes> for SimMachine {
    type SnapshotData = Arc<State>;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<SimTypes, Arc<State>>> {
        let state = self.outgoing();
        sleep(draw_time(Duration::from_millis(5))).await;
        *self.durable.lock() = state.clone();
        Ok(SnapshotOf::<SimTypes, _> { meta: state.meta(), snapshot: state })
    }
}
