//! What is replicated: commands, their answers, members; and the bytes that an entry is on disk.
//!
//! An entry's payload begins with its format version (the oldest that can say it) and its kind; golden bytes are in the test beside this
//! file. Values are whole here: they are bounded by `limits::VALUE_BYTES_MAX`. This room starts nothing.

use crate::storage::atomic::Unmet;
use crate::storage::expiry::Expiry;
use bytes::Bytes;
use openraft::type_config::alias;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use tiedkv_protocol::atomic::{Atomic, Expect, Operation};
use tiedkv_protocol::codec;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::{Ceiling, Member};
use tiedkv_protocol::ids::{CallerId, ClientId, NodeId, Position, Version};

/// Newest version of the bytes of an entry's payload in the log. Version 2 added [`Change::Atomic`], version 3 times to
/// live and [`Change::Tick`].
pub const ENTRY_FORMAT: u8 = 3;
/// Oldest version that is read. What an older version can say is still written as that.
pub const ENTRY_FORMAT_OLDEST: u8 = 1;

/// Where a member is reached, as the replicated membership keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Failure domain, empty if zones are not used.
    pub zone: String,
    /// Where clients dial.
    pub client_address: String,
    /// Where peers dial for Raft.
    pub peer_address: String,
    /// Where peers dial for cancels.
    pub cancel_address: String,
}

impl From<&Member> for MemberRecord {
    fn from(member: &Member) -> Self {
        Self {
            zone: member.zone.clone(),
            client_address: member.client_address.clone(),
            peer_address: member.peer_address.clone(),
            cancel_address: member.cancel_address.clone(),
        }
    }
}

impl MemberRecord {
    /// The member under its identity.
    pub fn member(&self, node: NodeId, learner: bool) -> Member {
        Member {
            node,
            zone: self.zone.clone(),
            client_address: self.client_address.clone(),
            peer_address: self.peer_address.clone(),
            cancel_address: self.cancel_address.clone(),
            learner,
        }
    }
}

/// Names one intent to write within the whole cluster: the caller's identity and the client's own key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WriteKey {
    /// From the certificate.
    pub caller: CallerId,
    /// The client that made the key.
    pub client: ClientId,
    /// Its sequence within the client.
    pub sequence: u64,
}

/// The change that a command makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Sets a key.
    Put {
        /// The key.
        key: Bytes,
        /// The value.
        value: Bytes,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Sets the operator's ceiling of read policies; its version becomes one more than that in force.
    Ceiling(Ceiling),
    /// Conditions and operations, all or nothing.
    Atomic(Atomic),
    /// Moves log time on while nothing is written, and removes what has expired.
    Tick {
        /// Remove expired keys up to and with this one, in order of expiry; `None`: none.
        sweep_to: Option<Expiry>,
    },
}

impl Change {
    /// Bytes that the change holds, for bounds.
    pub fn bytes(&self) -> usize {
        /// Of one condition or operation beside its key and value.
        const EACH: usize = 64;
        match self {
            Self::Put { key, value } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
            Self::Ceiling(_) => 0,
            Self::Tick { sweep_to } => sweep_to.as_ref().map_or(0, |expiry| expiry.key.len()),
            Self::Atomic(atomic) => atomic.bytes() + EACH * (atomic.conditions.len() + atomic.operations.len()),
        }
    }

    /// The oldest entry format that can say it.
    fn format(&self) -> u8 {
        match self {
            Self::Put { .. } | Self::Delete { .. } | Self::Ceiling(_) => 1,
            Self::Atomic(atomic) if atomic.operations.iter().all(is_plain) => 2,
            Self::Atomic(_) | Self::Tick { .. } => 3,
        }
    }
}

/// What entry format 2 can say.
fn is_plain(operation: &Operation) -> bool {
    match operation {
        Operation::Put { .. } | Operation::Delete { .. } | Operation::Increment { .. } => true,
        Operation::PutFor { .. } | Operation::Expire { .. } => false,
    }
}

/// One replicated write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Log time: milliseconds since the Unix epoch by the leader's clock, never smaller than an earlier entry's.
    pub stamp_ms: u64,
    /// Makes a repeat harmless.
    pub key: WriteKey,
    /// The position known when the key was made.
    pub floor: Position,
    /// Digest of the change: the same key with another digest is `KeyReused`.
    pub digest: u64,
    /// What to do.
    pub change: Change,
}

impl Command {
    /// Bytes that this command holds, for bounds.
    pub fn bytes(&self) -> usize {
        const FIXED: usize = 96;
        FIXED + self.change.bytes()
    }
}

/// First 8 bytes of the SHA-256 of the change (FIPS 180-4), the same on every version of this program.
pub fn digest(change: &Change) -> u64 {
    let mut hash = Hash(ring::digest::Context::new(&ring::digest::SHA256));
    match change {
        Change::Put { key, value } => hash.kind(1).sized(key).0.update(value),
        Change::Delete { key } => drop(hash.kind(2).sized(key)),
        // Made afresh for every command of an operator: never repeated under another body.
        Change::Ceiling(_) | Change::Tick { .. } => drop(hash.kind(3).sized(&[])),
        Change::Atomic(atomic) => hash.kind(4).atomic(atomic),
    }
    let whole = hash.0.finish();
    let mut first = [0; 8];
    first.copy_from_slice(&whole.as_ref()[..8]);
    u64::from_le_bytes(first)
}

struct Hash(ring::digest::Context);

impl Hash {
    fn kind(&mut self, kind: u8) -> &mut Self {
        self.0.update(&[kind]);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.0.update(&number.to_le_bytes());
        self
    }

    fn sized(&mut self, bytes: &[u8]) -> &mut Self {
        self.number(bytes.len() as u64).0.update(bytes);
        self
    }

    fn atomic(&mut self, atomic: &Atomic) {
        self.number(atomic.conditions.len() as u64);
        for condition in &atomic.conditions {
            self.sized(&condition.key);
            match &condition.expect {
                Expect::Absent => drop(self.kind(1)),
                Expect::Present => drop(self.kind(2)),
                Expect::Value(value) => drop(self.kind(3).sized(value)),
                Expect::Version(version) => drop(self.kind(4).number(version.0)),
            }
        }
        for operation in &atomic.operations {
            self.sized(operation.key());
            match operation {
                Operation::Put { value, .. } => drop(self.kind(1).sized(value)),
                Operation::Delete { .. } => drop(self.kind(2)),
                Operation::Increment { by, .. } => drop(self.kind(3).number(by.cast_unsigned())),
                Operation::PutFor { value, ttl_ms, .. } => drop(self.kind(4).sized(value).number(*ttl_ms)),
                Operation::Expire { ttl_ms: Some(ttl_ms), .. } => drop(self.kind(5).number(*ttl_ms)),
                Operation::Expire { ttl_ms: None, .. } => drop(self.kind(6)),
            }
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match &self.change {
            Change::Put { .. } => "put",
            Change::Delete { .. } => "delete",
            Change::Ceiling(_) => "ceiling",
            Change::Atomic(_) => "atomic",
            Change::Tick { .. } => "tick",
        };
        write!(f, "{verb} of {} bytes by {}", self.change.bytes(), self.key.caller)
    }
}

/// What applying a command came to; the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Not a write (blank or membership entry).
    None,
    /// Applied now.
    Applied(Version),
    /// Applied before under the same key and digest.
    Repeated(Version),
    /// Not applied, for this reason (`KeyReused` or `KeyExpired`).
    Refused(ErrorCode),
    /// Increments applied, now or before.
    Counted {
        /// As in `Applied`.
        version: Version,
        /// Applied before.
        repeated: bool,
        /// What became of each.
        numbers: Vec<Option<i64>>,
    },
    /// Not applied because of the state, now or when it was first seen.
    Unmet(Unmet),
}

/// The types of the one Raft group of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TypeConfig;

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Command;
    type R = Answer;
    type NodeId = u64;
    type Node = MemberRecord;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Command, u64, MemberRecord>;
    type Entry = openraft::Entry<alias::CommittedLeaderIdOf<Self>, Self::Payload>;
    type AsyncRuntime = openraft::TokioRuntime;
    type Responder<T>
        = Told<T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Runs with the result of a proposal, on the thread that knows it: the apply thread, usually. It must not block.
pub struct Told<T>(Box<dyn FnOnce(T) + Send>);

impl<T> Told<T> {
    /// Tells `whom`; dropped without a result, `whom` is dropped.
    pub fn new(whom: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(whom))
    }
}

impl<T: openraft::OptionalSend + 'static> openraft::raft::responder::Responder<TypeConfig, T> for Told<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

/// Term, proposer and index of an entry.
pub type LogId = alias::LogIdOf<TypeConfig>;
/// A vote as persisted.
pub type Vote = alias::VoteOf<TypeConfig>;
/// An entry of the log.
pub type Entry = alias::EntryOf<TypeConfig>;
/// What an entry carries.
pub type Payload = alias::PayloadOf<TypeConfig>;
/// The membership and the entry that set it.
pub type StoredMembership = alias::StoredMembershipOf<TypeConfig>;
/// Position and membership of a snapshot.
pub type SnapshotMeta = alias::SnapshotMetaOf<TypeConfig>;

#[derive(Serialize)]
enum PayloadRef<'a> {
    Blank,
    Normal(&'a Command),
    Membership(&'a openraft::Membership<u64, MemberRecord>),
}

#[derive(Deserialize)]
enum PayloadOwned {
    Blank,
    Normal(Command),
    Membership(openraft::Membership<u64, MemberRecord>),
}

/// The bytes of a payload: format version, then kind and body.
///
/// # Errors
/// When the payload is over the codec's bound.
pub fn encode_payload(payload: &Payload) -> io::Result<Vec<u8>> {
    let message = match payload {
        Payload::Blank => PayloadRef::Blank,
        Payload::Normal(command) => PayloadRef::Normal(command),
        Payload::Membership(membership) => PayloadRef::Membership(membership),
    };
    let format = match payload {
        Payload::Normal(command) => command.change.format(),
        Payload::Blank | Payload::Membership(_) => ENTRY_FORMAT_OLDEST,
    };
    codec::encode_large_after(vec![format], &message).map_err(io::Error::other)
}

/// The payload of bytes.
///
/// # Errors
/// `InvalidData` when the bytes are of another format version or no payload.
pub fn decode_payload(bytes: &[u8]) -> io::Result<Payload> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    match bytes.split_first() {
        Some((ENTRY_FORMAT_OLDEST..=ENTRY_FORMAT, body)) => match codec::decode_large(body) {
            Ok(PayloadOwned::Blank) => Ok(Payload::Blank),
            Ok(PayloadOwned::Normal(command)) => Ok(Payload::Normal(command)),
            Ok(PayloadOwned::Membership(membership)) => Ok(Payload::Membership(membership)),
            Err(error) => Err(invalid(format!("a log entry {error}"))),
        },
        Some((format, _)) => Err(invalid(format!(
            "a log entry of format {format}; this version reads formats {ENTRY_FORMAT_OLDEST} to {ENTRY_FORMAT}: was \
             the folder written by a newer version?"
        ))),
        None => Err(invalid("an empty log entry".to_owned())),
    }
}
