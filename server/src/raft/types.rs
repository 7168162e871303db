//! What is replicated: commands, their answers, members; and the bytes that an entry is on disk.
//!
//! An entry's payload begins with its format version and its kind; golden bytes are in the test beside this
//! file. Values are whole here: they are bounded by `limits::VALUE_BYTES_MAX`. This room starts nothing.

use bytes::Bytes;
use openraft::type_config::alias;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use tiedkv_protocol::codec;
use tiedkv_protocol::error::ErrorCode;
use tiedkv_protocol::hello::{Ceiling, Member};
use tiedkv_protocol::ids::{CallerId, ClientId, NodeId, Position, Version};

/// Version of the bytes of an entry's payload in the log.
pub const ENTRY_FORMAT: u8 = 1;

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
}

impl Change {
    /// Lengths of the key and value carried; zero where there is none.
    pub fn lengths(&self) -> (usize, usize) {
        match self {
            Self::Put { key, value } => (key.len(), value.len()),
            Self::Delete { key } => (key.len(), 0),
            Self::Ceiling(_) => (0, 0),
        }
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
        let (key, value) = self.change.lengths();
        FIXED + key + value
    }
}

/// First 8 bytes of the SHA-256 of the change (FIPS 180-4), the same on every version of this program.
pub fn digest(change: &Change) -> u64 {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    let (kind, key, value): (u8, &[u8], &[u8]) = match change {
        Change::Put { key, value } => (1, key, value),
        Change::Delete { key } => (2, key, &[]),
        // Made afresh for every command of an operator: never repeated under another body.
        Change::Ceiling(_) => (3, &[], &[]),
    };
    context.update(&[kind]);
    context.update(&(key.len() as u64).to_le_bytes());
    context.update(key);
    context.update(value);
    let whole = context.finish();
    let mut first = [0; 8];
    first.copy_from_slice(&whole.as_ref()[..8]);
    u64::from_le_bytes(first)
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match &self.change {
            Change::Put { .. } => "put",
            Change::Delete { .. } => "delete",
            Change::Ceiling(_) => "ceiling",
        };
        write!(f, "{verb} with a key of {} bytes by {}", self.change.lengths().0, self.key.caller)
    }
}

/// What applying a command came to; the same on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Not a write (blank or membership entry).
    None,
    /// Applied now.
    Applied(Version),
    /// Applied before under the same key and digest.
    Repeated(Version),
    /// Not applied, for this reason (`KeyReused` or `KeyExpired`).
    Refused(ErrorCode),
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
    let body = codec::encode_large(&message).map_err(io::Error::other)?;
    let mut bytes = Vec::with_capacity(1 + body.len());
    bytes.push(ENTRY_FORMAT);
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// The payload of bytes.
///
/// # Errors
/// `InvalidData` when the bytes are of another format version or no payload.
pub fn decode_payload(bytes: &[u8]) -> io::Result<Payload> {
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    match bytes.split_first() {
        Some((&ENTRY_FORMAT, body)) => match codec::decode_large(body) {
            Ok(PayloadOwned::Blank) => Ok(Payload::Blank),
            Ok(PayloadOwned::Normal(command)) => Ok(Payload::Normal(command)),
            Ok(PayloadOwned::Membership(membership)) => Ok(Payload::Membership(membership)),
            Err(error) => Err(invalid(format!("a log entry {error}"))),
        },
        Some((format, _)) => Err(invalid(format!(
            "a log entry of format {format}; this version reads format {ENTRY_FORMAT}: was the folder written by a \
             newer version?"
        ))),
        None => Err(invalid("an empty log entry".to_owned())),
    }
}
