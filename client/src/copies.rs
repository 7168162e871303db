//! The words of a race: plan, events, actions, timers, copies and outcomes.
//!
//! Only shapes; [`crate::race`] decides with them.

use smallvec::SmallVec;
use std::time::Duration;
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::ids::{NodeId, TieId};
use tiedkv_protocol::limits::TIE_COPIES_MAX;
use tiedkv_protocol::moment::Moment;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::{Failure, Found, Service};
use tiedkv_protocol::tie::{CopyNumber, Tie};

/// Replicas in order of choice, each once.
pub type Order = SmallVec<[NodeId; 4]>;

/// Most rounds over the replicas of one read; the budget and the deadline end most reads earlier.
pub const ROUNDS_MAX: u8 = 16;

/// What one read sets out to do; decided before its first copy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    /// All replicas of the shard, best first, each once.
    pub order: Order,
    /// Copies of a tie, 1 to 3; 1 is untied. Cut to the replicas there are.
    pub width: u8,
    /// One extra untied copy when no answer came by the hedge delay.
    pub hedge: bool,
    /// Extra untied copies when no answer came by the rescue delay.
    pub rescue: bool,
    /// When the read ends at the latest.
    pub deadline: Moment,
    /// For policies that only measure what others may do: extra copies are sent unmarked, and nothing is withdrawn.
    pub naive: bool,
}

/// One copy of a read, in order of sending: an index into [`crate::race::Race::copies`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyIndex(pub u16);

/// What a race waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// The tie delay: the next planned copy of the current tie.
    NextCopy,
    /// The hedge delay.
    Hedge,
    /// The rescue delay.
    Rescue,
    /// The pause before another round.
    Backoff,
    /// The end of the read.
    Deadline,
}

impl Timer {
    /// All timers of a race.
    pub const ALL: [Timer; 5] = [Self::NextCopy, Self::Hedge, Self::Rescue, Self::Backoff, Self::Deadline];
}

/// The timers of one race; each is armed at most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Timers([Option<Moment>; Timer::ALL.len()]);

impl Timers {
    pub(crate) fn at(&self, timer: Timer) -> Option<Moment> {
        self.0[timer as usize]
    }

    pub(crate) fn arm(&mut self, timer: Timer, at: Moment) {
        self.0[timer as usize] = Some(at);
    }

    pub(crate) fn disarm(&mut self, timer: Timer) {
        self.0[timer as usize] = None;
    }
}

/// What came back for one copy, judged by `started`, never by the code (R4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The caller can be answered with it.
    Good,
    /// It had not started: the tie lives.
    Refused {
        /// Why; `None` when the copy never reached the link.
        code: Option<ErrorCode>,
        /// The node's hint when to try again; zero for none.
        hint: Duration,
    },
    /// It had started and failed: the tie is suspect.
    Failed {
        /// Why.
        code: ErrorCode,
    },
    /// The call itself is wrong: the read ends.
    FixTheCall {
        /// Why.
        code: ErrorCode,
    },
}

impl Answer {
    /// Judges an answer as received.
    pub fn judge(service: &Service, outcome: &Result<Found, Failure>) -> Self {
        match outcome {
            Ok(_) => Self::Good,
            // Not the caller's fault: client and node know different members while those change.
            Err(failure) if failure.code == ErrorCode::BadTie && !service.started => {
                Self::Refused { code: Some(failure.code), hint: Duration::ZERO }
            }
            Err(failure) if failure.code.caller_move() == Move::FixTheCall => {
                Self::FixTheCall { code: failure.code }
            }
            Err(failure) if service.started => Self::Failed { code: failure.code },
            Err(failure) => {
                Self::Refused { code: Some(failure.code), hint: Duration::from_micros(failure.retry_after_us) }
            }
        }
    }
}

/// What happens to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The read begins; sent once, first.
    Begin,
    /// A copy could not be handed to its link and for certain never left: no link, full link.
    NotSent {
        /// Which.
        copy: CopyIndex,
    },
    /// A copy was answered.
    Answer {
        /// Which.
        copy: CopyIndex,
        /// How.
        answer: Answer,
    },
    /// The link to a replica is gone; what was out on it may or may not have arrived.
    LinkLost {
        /// Whose.
        replica: NodeId,
    },
    /// The link to a replica owes an answer and is silent for too long; it may still speak again.
    LinkSilent {
        /// Whose.
        replica: NodeId,
    },
    /// A timer that was armed is due. One that was moved or disarmed since does nothing.
    Timer(Timer),
    /// The caller no longer waits.
    Dropped,
}

/// One copy to send.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Send {
    /// Names it in later events.
    pub copy: CopyIndex,
    /// To whom.
    pub replica: NodeId,
    /// `None` for an untied copy.
    pub tie: Option<Tie>,
    /// Why it is sent.
    pub kind: CopyKind,
}

/// What the driver of a race has to do, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a copy; if it cannot leave, [`Event::NotSent`].
    Send(Send),
    /// Withdraw copies, each in the stream that carried it (R14).
    Withdraw(SmallVec<[CopyIndex; 4]>),
    /// Fire a timer at a moment; replaces the former moment of the same timer.
    Arm {
        /// Which.
        timer: Timer,
        /// When.
        at: Moment,
    },
    /// The read is over; always the last action.
    Finish(Outcome),
}

/// The actions of one event.
pub type Actions = SmallVec<[Action; 4]>;

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// This copy's answer is the caller's.
    Won(CopyIndex),
    /// An error; the copies tell what was tried.
    GaveUp(GiveUp),
    /// The caller left.
    Dropped,
}

/// Why a read ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GiveUp {
    /// The deadline is over.
    Deadline,
    /// Nothing may be sent any more and no copy lives that can be counted on.
    NothingLeft,
    /// This copy's answer says that the call is wrong.
    FixTheCall(CopyIndex),
    /// The shard has no replica.
    NoReplica,
}

/// One copy that was sent and how it ended so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SentCopy {
    /// Where it went.
    pub replica: NodeId,
    /// Why.
    pub kind: CopyKind,
    /// Its number, if it was tied.
    pub number: Option<CopyNumber>,
    /// Which tie of the read it belongs to; `None` for hedges and rescues, which stand alone.
    pub tie: Option<u8>,
    /// What became of it.
    pub end: End,
}

/// What became of a copy, as the client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Not answered yet.
    Out,
    /// Its answer is the read's.
    Won,
    /// It was refused before its start; without a code it never left.
    Refused(Option<ErrorCode>),
    /// It failed after its start, or the call is wrong.
    Failed(ErrorCode),
    /// Its link was lost; a good answer that still arrives wins.
    LinkLost,
    /// Its link fell silent; a good answer that still arrives wins.
    LinkSilent,
}

impl End {
    /// True once the copy was answered.
    pub fn is_answer(self) -> bool {
        matches!(self, Self::Won | Self::Refused(_) | Self::Failed(_))
    }
}

/// What a race asks of its surroundings. A model checker enumerates the answers.
pub trait Host {
    /// A fresh tie id, from the operating system's randomness (R5).
    fn tie_id(&mut self) -> TieId;
    /// How long after copy 0, sent to `first`, copy 1 goes out. The cap when unknown, never "never" (R7).
    fn tie_delay(&mut self, first: NodeId) -> Duration;
    /// How long without an answer until a hedge.
    fn hedge_delay(&mut self) -> Duration;
    /// How long without an answer until a rescue.
    fn rescue_delay(&mut self) -> Duration;
    /// Most copies of a tie that begins now; a switch that was turned meanwhile holds for reads under way too.
    fn width_max(&self) -> u8 {
        TIE_COPIES_MAX as u8
    }
    /// Takes a token for one extra copy: hedge, rescue or retry. False: it is not sent now.
    fn token(&mut self, kind: CopyKind, now: Moment) -> bool;
    /// The pause before round `round` + 1, not below `hint`.
    fn backoff(&mut self, round: u8, hint: Duration) -> Duration;
}
