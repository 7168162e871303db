//! Idempotency: what became of writes, by key, so that a repeat is answered and not applied again.
//!
//! Pure and deterministic: what is kept and forgotten depends on the order of commands alone, so every replica
//! decides alike, also one that restarted or was filled from a snapshot. Outcomes are kept in runs; a run closes
//! after [`RUN_LEN`] outcomes or [`RUN_SPAN_MS`] of log time and is forgotten whole, oldest first, when too many
//! outcomes are kept or its last one is too old by log time. Persisting the records is the state machine's job.

use crate::raft::types::{Command, WriteKey};
use std::collections::{HashMap, VecDeque};
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::ids::{CallerId, ClientId, Position, Version};

/// Outcomes of one run.
pub const RUN_LEN: u32 = 1024;
/// Longest log time within one run, milliseconds.
pub const RUN_SPAN_MS: u64 = 10_000;
/// Version of a record's bytes.
pub const RECORD_FORMAT: u8 = 1;
/// Bytes of one record.
pub const RECORD_BYTES: usize = 1 + 16 + 16 + 8 + 8 + 8 + 2;

/// How long outcomes are kept. The same on every member of a cluster: peers compare it when they say hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OutcomeLimits {
    /// Most outcomes kept, give or take a run of [`RUN_LEN`]; several runs at least. 24 bytes of memory and 67 of disk each, and 150 more per client.
    pub count_max: u64,
    /// Longest time kept, milliseconds of log time.
    pub age_max_ms: u64,
}

impl Default for OutcomeLimits {
    /// A million outcomes (24 MB of memory), ten minutes.
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
    /// Position in the lower 48 bits, code above: a table of a million is 24 MB.
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

/// The outcomes kept by one replica.
pub struct Outcomes {
    limits: OutcomeLimits,
    clients: HashMap<(CallerId, ClientId), VecDeque<Kept>, foldhash::fast::RandomState>,
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
            runs: VecDeque::new(),
            kept: 0,
            forgotten: forgotten.0,
            dropped: 0,
        }
    }

    /// Takes back a persisted record; in order of position, before the first [`decide`](Self::decide). One that
    /// is forgotten already is ignored.
    pub fn restore(&mut self, position: Position, record: &Record) {
        if position.0 > self.forgotten {
            self.keep(position, record);
        }
    }

    /// Decides on the command at `position`. Commands come in order of position, each once. One to apply must be
    /// [kept](Self::keep) before the next is decided, as applied or as refused by the state.
    pub fn decide(&mut self, command: &Command) -> Verdict {
        self.forget(command.stamp_ms);
        if let Some(kept) = self.find(&command.key) {
            return if kept.digest == command.digest {
                Verdict::Repeat(kept.repeat())
            } else {
                Verdict::Refuse(ErrorCode::KeyReused)
            };
        }
        if command.floor.0 < self.forgotten {
            return Verdict::Refuse(ErrorCode::KeyExpired);
        }
        Verdict::Apply(Record { key: command.key, digest: command.digest, stamp_ms: command.stamp_ms, code: 0 })
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

    fn find(&self, key: &WriteKey) -> Option<Kept> {
        let kept = self.clients.get(&(key.caller, key.client))?;
        let index = kept.binary_search_by_key(&key.sequence, |kept| kept.sequence).ok()?;
        Some(kept[index]).filter(|kept| kept.position() > self.forgotten)
    }

    /// Keeps the outcome of the command at `position`.
    pub fn keep(&mut self, position: Position, record: &Record) {
        let entry = Kept::new(position, record);
        let kept = self.clients.entry((record.key.caller, record.key.client)).or_default();
        if kept.len() == kept.capacity() {
            // Not doubled: a long table would waste half of its memory.
            kept.reserve_exact(kept.len().clamp(1, 65_536));
        }
        match kept.binary_search_by_key(&entry.sequence, |kept| kept.sequence) {
            // A forgotten outcome that was not swept yet.
            Ok(index) => kept[index] = entry,
            Err(index) => kept.insert(index, entry),
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
        self.clients.retain(|_, kept| {
            kept.retain(|entry| entry.position() > forgotten);
            kept.shrink_to(kept.len() + 65_536);
            !kept.is_empty()
        });
        self.dropped = 0;
    }
}

#[cfg(test)]
#[path = "outcomes_test.rs"]
mod tests;
