//! The types of the simulated group: those of the shipped one, but for the runtime and the way to a member.

use super::runtime::SeededRuntime;
use openraft::type_config::alias;
use tiedkv_server::raft::types::{Answer, Command};

/// See the head of this room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimTypes;

impl openraft::RaftTypeConfig for SimTypes {
    type D = Command;
    type R = Answer;
    type NodeId = u64;
    type Node = openraft::impls::EmptyNode;
    type Term = u64;
    type LeaderId = openraft::impls::leader_id_adv::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Command, u64, openraft::impls::EmptyNode>;
    type Entry = openraft::Entry<alias::CommittedLeaderIdOf<Self>, Self::Payload>;
    type AsyncRuntime = SeededRuntime;
    type Responder<T>
        = openraft::impls::OneshotResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Term, proposer and index of an entry.
pub type LogId = alias::LogIdOf<SimTypes>;
/// A vote.
pub type Vote = alias::VoteOf<SimTypes>;
/// An entry of the log.
pub type Entry = alias::EntryOf<SimTypes>;
/// What an entry carries.
pub type Payload = alias::PayloadOf<SimTypes>;
/// The membership and the entry that set it.
pub type StoredMembership = alias::StoredMembershipOf<SimTypes>;
/// Position and membership of a snapshot.
pub type SnapshotMeta = alias::SnapshotMetaOf<SimTypes>;

/// Bugs that can be put in on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A vote is answered and never reaches the disk.
    VoteNotSynced,
    /// Entries are acknowledged and never reach the disk.
    AppendNotSynced,
    /// A read joins a barrier that left before it came.
    BarrierJoinedLate,
    /// A linearizable read asks nobody.
    NoBarrier,
    /// A leader confirms itself with what a follower said before its read came.
    BallotRemembered,
    /// A session's read does not wait for its token.
    SessionNotWaited,
    /// The outcome table is left out of the snapshot.
    OutcomesNotInSnapshot,
    /// The applied position reaches the disk apart from the data.
    PositionApart,
    /// A read sees a state between two items of a batch, as a plain get does instead of a view.
    HalfBatch,
    /// Outcomes are not looked up: a repeat is applied again.
    RepeatsApplied,
}
