//! What a call ends with when it does not succeed: the cause, every copy that was tried and how it ended, and
//! the caller's move. Decides nothing.

use crate::config::ConfigError;
use crate::cut_off;
use std::fmt;
use std::time::Duration;
use tiedkv_protocol::error::{ErrorCode, Move};
use tiedkv_protocol::ids::NodeId;
use tiedkv_protocol::request::CopyKind;
use tiedkv_protocol::response::Failure;

/// How one copy (or one try of a write) ended, as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyFate {
    /// Its good answer is the read's.
    Won,
    /// A good answer after the read had another one.
    Late,
    /// Answered without having started: `Busy`, `Behind`, `Expired`, ...
    Refused(Box<Failure>),
    /// Answered after the start, but not well.
    Failed(Box<Failure>),
    /// No answer before the call ended; it was withdrawn.
    Unanswered,
    /// The link was lost while the answer was owed.
    LinkLost(String),
    /// The node gave the link up while the answer was owed, because this client took nothing from it for too long or
    /// let too many answers wait; names the limit.
    CutOff(String),
    /// It was never put on the wire: no link to the node, or its outbox was full.
    NotSent(String),
}

impl CopyFate {
    /// Of a copy whose link is gone.
    pub(crate) fn lost(reason: &str) -> Self {
        let kind = if cut_off::is_cut_off(reason) { Self::CutOff } else { Self::LinkLost };
        kind(reason.to_owned())
    }
}

impl fmt::Display for CopyFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Won => f.write_str("won"),
            Self::Late => f.write_str("late"),
            Self::Refused(failure) => write!(f, "refused ({}: {})", failure.code, failure.message),
            Self::Failed(failure) => write!(f, "failed after its start ({}: {})", failure.code, failure.message),
            Self::Unanswered => f.write_str("no answer"),
            Self::LinkLost(reason) => write!(f, "link lost ({reason})"),
            Self::CutOff(reason) => f.write_str(reason),
            Self::NotSent(reason) => write!(f, "not sent ({reason})"),
        }
    }
}

/// One copy of a read, or one try of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyReport {
    /// Where it went.
    pub node: NodeId,
    /// Why it was sent.
    pub kind: CopyKind,
    /// How it ended.
    pub fate: CopyFate,
}

/// Why a call ended without success.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// A setting is wrong or a certificate cannot be used.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The deadline passed.
    #[error("no answer within the deadline of {0:?}")]
    Deadline(Duration),
    /// No replica is left that may be asked.
    #[error("no replica is left to ask{0}")]
    NoReplica(String),
    /// A node says that the call itself is wrong, or it is wrong by the limits known here.
    #[error("{}: {}", .0.code, .0.message)]
    Call(Failure),
    /// A node answered with a failure and nothing else can be tried.
    #[error("{}: {}", .0.code, .0.message)]
    Node(Failure),
    /// A write was sent and its outcome is not known.
    #[error("the write may or may not have been applied: {0}")]
    UnknownOutcome(String),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// A failed call: why, what was tried, and what to do.
#[derive(Clone, Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Clone, Debug)]
struct Inner {
    cause: Cause,
    copies: Vec<CopyReport>,
    elapsed: Duration,
}

impl Error {
    /// An error after `elapsed`, with the copies that were tried.
    pub fn new(cause: Cause, copies: Vec<CopyReport>, elapsed: Duration) -> Self {
        Self { inner: Box::new(Inner { cause, copies, elapsed }) }
    }

    /// An error of a call that is wrong by itself: nothing was sent.
    pub(crate) fn call(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::new(Cause::Call(Failure::new(code, message)), Vec::new(), Duration::ZERO)
    }

    /// What a node answered for good.
    pub(crate) fn node(failure: Failure) -> Self {
        Self::new(Cause::Node(failure), Vec::new(), Duration::ZERO)
    }

    /// A defect of a node or of this crate.
    pub(crate) fn internal(message: &str) -> Self {
        Self::node(Failure::new(ErrorCode::Internal, message))
    }

    /// Why the call failed.
    pub fn cause(&self) -> &Cause {
        &self.inner.cause
    }

    /// Every copy that was tried and how it ended, in the order they were sent.
    pub fn copies(&self) -> &[CopyReport] {
        &self.inner.copies
    }

    /// Time from the call to its end.
    pub fn elapsed(&self) -> Duration {
        self.inner.elapsed
    }

    /// The code of a node's answer, if the cause is one.
    pub fn code(&self) -> Option<ErrorCode> {
        match &self.inner.cause {
            Cause::Call(failure) | Cause::Node(failure) => Some(failure.code),
            _ => None,
        }
    }

    /// The longest wait that a node asked for before the next try; `None` without a hint.
    pub fn retry_after(&self) -> Option<Duration> {
        let hints = self.inner.copies.iter().filter_map(|copy| match &copy.fate {
            CopyFate::Refused(failure) | CopyFate::Failed(failure) if failure.retry_after_us > 0 => {
                Some(Duration::from_micros(failure.retry_after_us))
            }
            _ => None,
        });
        hints.max()
    }

    /// What the caller can do about it.
    pub fn caller_move(&self) -> Move {
        match &self.inner.cause {
            Cause::Config(_) => Move::FixTheCall,
            Cause::Deadline(_) => Move::GiveUp,
            Cause::NoReplica(_) | Cause::Closed => Move::RetryHere,
            Cause::Call(_) => Move::FixTheCall,
            Cause::Node(failure) => failure.code.caller_move(),
            Cause::UnknownOutcome(_) => Move::UnknownOutcome,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::new(Cause::Config(error), Vec::new(), Duration::ZERO)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.inner.cause)?;
        for (index, copy) in self.inner.copies.iter().enumerate() {
            let lead = if index == 0 { "; tried: " } else { ", " };
            write!(f, "{lead}{} copy to {}: {}", copy.kind.name(), copy.node, copy.fate)?;
        }
        match self.caller_move() {
            Move::RetryHere => f.write_str("; a later try may succeed"),
            Move::TryElsewhere => f.write_str("; another node or a later try may succeed"),
            Move::FixTheCall => Ok(()),
            Move::UnknownOutcome => {
                f.write_str("; send it again with the same idempotency key to learn the outcome")
            }
            Move::GiveUp => f.write_str("; give up or call again with more time"),
        }
    }
}

// Without a source: the text says the cause already, and whoever prints chains would say it twice.
impl std::error::Error for Error {}
