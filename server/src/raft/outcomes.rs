//! Idempotency: what became of writes, by key, so that a repeat is answered and not applied again.
//!
//! Pure and deterministic: what is kept and forgotten depends on the order of commands alone, so every replica
//! decides alike, also one that restarted or was filled from a snapshot. Outcomes are kept in runs; a run closes
//! after [`RUN_LEN`] outcomes or [`RUN_SPAN_MS`] of log time and is forgotten whole, oldest first, when too many
//! outcomes are kept or its last one is too old by log time. Persisting the records is the state machine's job.
//!
//! Memory does not grow with the outcomes kept: only the [`RECENT`] youngest stand here. Of an older one it is known
//! within [`PLACE_LEN`] positions where its record is, which [`Outcomes::decide`] asks for when a key is repeated so
//! late. A new key asks for nothing.

use crate::raft::types::{Command, WriteKey};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::RangeInclusive;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, ClientId, Position, Version};

/// Outcomes of one run.
pub const RUN_LEN: u32 = 1024;
/// Longest log time within one run, milliseconds.
pub const RUN_SPAN_MS: u64 = 10_000;
/// Outcomes kept in memory: more than any commit holds, so that what is looked for is committed, and more than a
/// client repeats within its deadline as a rule.
pub const RECENT: usize = 16 * 1024;
/// Sequences of a client whose places are kept together, and most positions that one place spans.
pub const PLACE_LEN: u64 = 64;
/// Version of a record's bytes.
pub const RECORD_FORMAT: u8 = 1;
/// Bytes of one record.
pub const RECORD_BYTES: usize = 1 + 16 + 16 + 8 + 8 + 8 + 2;

/// How long outcomes are kept. The same on every member of a cluster: peers compare it when they say hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OutcomeLimits {
    /// Most outcomes kept, give or take a run of [`RUN_LEN`]; several runs at least. 67 bytes of disk each, one of
    /// memory (16 where a client writes rarely), and 200 more per client.
    pub count_max: u64,
    /// Longest time kept, milliseconds of log time.
    pub age_max_ms: u64,
}

impl Default for OutcomeLimits {
    /// A million outcomes, ten minutes.
    fn default() -> Self {
        Self { count_max: 1_000_000, age_max_ms: 600_000 }
    }
}

/// One outcome as persisted under its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whose write.
    pub key: WriteKey,
    /// Of what change.
    pub digest: u64,
    /// Log time of the write.
    pub stamp_ms: u64,
    /// 0: applied; else the [`ErrorCode`] for which the state refused it.
    pub code: u16,
}

impl Record {
    /// The bytes: format, caller, client, sequence, digest, stamp, code; all little-endian.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = RECORD_FORMAT;
        bytes[1..17].copy_from_slice(&self.key.caller.0.to_le_bytes());
        bytes[17..33].copy_from_slice(&self.key.client.0.to_le_bytes());
        bytes[33..41].copy_from_slice(&self.key.sequence.to_le_bytes());
        bytes[41..49].copy_from_slice(&self.digest.to_le_bytes());
        bytes[49..57].copy_from_slice(&self.stamp_ms.to_le_bytes());
        bytes[57..59].copy_from_slice(&self.code.to_le_bytes());
        bytes
    }

    /// The record of bytes; `None` if they are of another format or length.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; RECORD_BYTES] = bytes.try_into().ok()?;
        if bytes[0] != RECORD_FORMAT {
            return None;
        }
        let (caller, rest) = bytes[1..].split_first_chunk()?;
        let (client, rest) = rest.split_first_chunk()?;
        let (sequence, rest) = rest.split_first_chunk()?;
        let (digest, rest) = rest.split_first_chunk()?;
        let (stamp, rest) = rest.split_first_chunk()?;
        let (code, _) = rest.split_first_chunk()?;
        Some(Self {
            key: WriteKey {
                caller: CallerId(u128::from_le_bytes(*caller)),
                client: ClientId(u128::from_le_bytes(*client)),
                sequence: u64::from_le_bytes(*sequence),
            },
            digest: u64::from_le_bytes(*digest),
            stamp_ms: u64::from_le_bytes(*stamp),
            code: u16::from_le_bytes(*code),
        })
    }
}

/// What to do with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// New: apply it, keep this record and persist it under its position, with the code of a refusal by the state.
    Apply(Record),
    /// Do not apply: it was decided before.
    Repeat(Repeat),
    /// Do not apply, for this reason (`KeyReused` or `KeyExpired`).
    Refuse(ErrorCode),
}

/// What became of a write when it was first seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It was applied as this version.
    Applied(Version),
    /// The state refused it, for this reason.
    Refused(ErrorCode),
}

#[derive(Clone, Copy)]
struct Kept {
    sequence: u64,
    digest: u64,
    /// Position in the lower 48 bits, code above.
    place: u64,
}

const POSITION_BITS: u32 = 48;

impl Kept {
    fn new(position: Position, record: &Record) -> Self {
        let place = u64::from(record.code) << POSITION_BITS | position.0;
        Self { sequence: record.key.sequence, digest: record.digest, place }
    }

    fn position(self) -> u64 {
        self.place & ((1 << POSITION_BITS) - 1)
    }

    fn repeat(self) -> Repeat {
        match (self.place >> POSITION_BITS) as u16 {
            0 => Repeat::Applied(Version(self.position())),
            code => Repeat::Refused(ErrorCode::from_number(code)),
        }
    }
}

/// One run: its last position and stamp, its first stamp, how many.
#[derive(Clone, Copy)]
struct Run {
    last: u64,
    first_stamp_ms: u64,
    last_stamp_ms: u64,
    len: u32,
    closed: bool,
}

/// Positions between which records lie; with some of other keys between them.
type Place = (u64, u64);

/// The outcomes of one client.
#[derive(Default)]
struct ClientOutcomes {
    /// Sorted by sequence.
    recent: VecDeque<Kept>,
    /// Where the records of older ones are, by sequence / [`PLACE_LEN`].
    older: BTreeMap<u64, SmallVec<[Place; 1]>>,
}

impl ClientOutcomes {
    fn find_recent(&self, sequence: u64) -> Option<Kept> {
        let index = self.recent.binary_search_by_key(&sequence, |kept| kept.sequence).ok()?;
        Some(self.recent[index])
    }

    fn keep(&mut self, entry: Kept) {
        match self.recent.binary_search_by_key(&entry.sequence, |kept| kept.sequence) {
            // A forgotten outcome that was not swept yet.
            Ok(index) => self.recent[index] = entry,
            Err(index) => self.recent.insert(index, entry),
        }
    }

    /// One of the recent outcomes is not recent any more.
    fn age(&mut self, sequence: u64, position: u64) {
        if let Ok(index) = self.recent.binary_search_by_key(&sequence, |kept| kept.sequence)
            && self.recent[index].position() == position
        {
            self.recent.remove(index);
            // Else each client that wrote much once would hold the space of RECENT outcomes until all are forgotten.
            if self.recent.len() < self.recent.capacity() / 4 {
                self.recent.shrink_to(self.recent.len() * 2);
            }
        }
        let places = self.older.entry(sequence / PLACE_LEN).or_default();
        match places.last_mut().filter(|(first, _)| position - *first < PLACE_LEN) {
            Some((_, last)) => *last = position,
            None => places.push((position, position)),
        }
    }

    fn sweep(&mut self, forgotten: u64) {
        self.recent.retain(|entry| entry.position() > forgotten);
        self.older.retain(|_, places| {
            places.retain(|(_, last)| *last > forgotten);
            !places.is_empty()
        });
    }

    fn is_empty(&self) -> bool {
        self.recent.is_empty() && self.older.is_empty()
    }
}

/// The outcomes kept by one replica.
pub struct Outcomes {
    limits: OutcomeLimits,
    clients: HashMap<(CallerId, ClientId), ClientOutcomes, foldhash::fast::RandomState>,
    /// The recent ones in order of position.
    recent: VecDeque<(WriteKey, u64)>,
    recent_max: usize,
    runs: VecDeque<Run>,
    kept: u64,
    forgotten: u64,
    dropped: u64,
}

impl Outcomes {
    /// An empty table that has forgotten everything up to `forgotten`.
    pub fn new(limits: OutcomeLimits, forgotten: Position) -> Self {
        Self {
            limits,
            clients: HashMap::default(),
            recent: VecDeque::new(),
            recent_max: RECENT,
            runs: VecDeque::new(),
            kept: 0,
            forgotten: forgotten.0,
            dropped: 0,
        }
    }

    /// As [`Outcomes::new`], for who persists no records: nothing is looked for, and memory grows up to the limits.
    pub fn all_in_memory(limits: OutcomeLimits, forgotten: Position) -> Self {
        Self { recent_max: usize::MAX, ..Self::new(limits, forgotten) }
    }

    /// Takes back a persisted record; in order of position, before the first [`decide`](Self::decide). One that
    /// is forgotten already is ignored.
    pub fn restore(&mut self, position: Position, record: &Record) {
        if position.0 > self.forgotten {
            self.keep(position, record);
        }
    }

    /// Decides on a command. Commands come in order of position, each once. One to apply must be
    /// [kept](Self::keep) before the next is decided, as applied or as refused by the state. `look` finds the record
    /// of a key that is persisted between two positions, if it is there.
    ///
    /// # Errors
    /// Those of `look`; nothing is decided then.
    pub fn decide<E>(
        &mut self,
        command: &Command,
        look: impl FnMut(&WriteKey, RangeInclusive<u64>) -> Result<Option<(Position, Record)>, E>,
    ) -> Result<Verdict, E> {
        self.forget(command.stamp_ms);
        if let Some((kept, digest)) = self.find(&command.key, look)? {
            return Ok(if digest == command.digest {
                Verdict::Repeat(kept.repeat())
            } else {
                Verdict::Refuse(ErrorCode::KeyReused)
            });
        }
        if command.floor.0 < self.forgotten {
            return Ok(Verdict::Refuse(ErrorCode::KeyExpired));
        }
        let Command { key, digest, stamp_ms, .. } = *command;
        Ok(Verdict::Apply(Record { key, digest, stamp_ms, code: 0 }))
    }

    /// Up to where outcomes are forgotten: their records may be deleted, and a key with an older floor is expired.
    pub fn forgotten(&self) -> Position {
        Position(self.forgotten)
    }

    /// How many outcomes are kept.
    pub fn len(&self) -> u64 {
        self.kept
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.kept == 0
    }

    fn find<E>(
        &self,
        key: &WriteKey,
        mut look: impl FnMut(&WriteKey, RangeInclusive<u64>) -> Result<Option<(Position, Record)>, E>,
    ) -> Result<Option<(Kept, u64)>, E> {
        let Some(client) = self.clients.get(&(key.caller, key.client)) else { return Ok(None) };
        if let Some(kept) = client.find_recent(key.sequence).filter(|kept| kept.position() > self.forgotten) {
            return Ok(Some((kept, kept.digest)));
        }
        for (first, last) in client.older.get(&(key.sequence / PLACE_LEN)).into_iter().flatten() {
            let within = (self.forgotten + 1).max(*first)..=*last;
            if let Some((position, record)) = if within.is_empty() { None } else { look(key, within)? } {
                return Ok(Some((Kept::new(position, &record), record.digest)));
            }
        }
        Ok(None)
    }

    /// Keeps the outcome of the command at `position`.
    pub fn keep(&mut self, position: Position, record: &Record) {
        let entry = Kept::new(position, record);
        self.clients.entry((record.key.caller, record.key.client)).or_default().keep(entry);
        self.recent.push_back((record.key, position.0));
        if self.recent.len() > self.recent_max
            && let Some((key, position)) = self.recent.pop_front()
            && let Some(client) = self.clients.get_mut(&(key.caller, key.client))
            && position > self.forgotten
        {
            client.age(key.sequence, position);
        }
        self.kept += 1;
        match self.runs.back_mut().filter(|run| !run.closed) {
            Some(run) => {
                run.last = position.0;
                run.last_stamp_ms = record.stamp_ms;
                run.len += 1;
                run.closed =
                    run.len >= RUN_LEN || record.stamp_ms.saturating_sub(run.first_stamp_ms) >= RUN_SPAN_MS;
            }
            None => self.runs.push_back(Run {
                last: position.0,
                first_stamp_ms: record.stamp_ms,
                last_stamp_ms: record.stamp_ms,
                len: 1,
                closed: false,
            }),
        }
    }

    fn forget(&mut self, stamp_ms: u64) {
        while let Some(run) = self.runs.front().copied() {
            let old = run.last_stamp_ms.saturating_add(self.limits.age_max_ms) < stamp_ms;
            // An open run that is too old is as good as closed: nothing was added for longer than its span.
            if !(old || (run.closed && self.kept > self.limits.count_max)) {
                break;
            }
            self.runs.pop_front();
            self.kept -= u64::from(run.len);
            self.dropped += u64::from(run.len);
            self.forgotten = run.last;
        }
        // Lookups ignore what is forgotten, so memory may be swept rarely.
        if self.dropped > (self.limits.count_max / 16).max(u64::from(RUN_LEN)) {
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        let forgotten = self.forgotten;
        self.clients.retain(|_, client| {
            client.sweep(forgotten);
            !client.is_empty()
        });
        self.dropped = 0;
    }
}

#[cfg(test)]
#[path = "outcomes_test.rs"]
mod tests;
