//! Error codes on the wire and the five moves a caller has.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Move {
    /// The same node may answer a little later.
    RetryHere,
    /// Another node may answer now.
    TryElsewhere,
    /// The call itself is wrong; sending it again changes nothing.
    FixTheCall,
    /// A write may or may not have been applied.
    UnknownOutcome,
    /// The deadline is over.
    GiveUp,
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal, $moves:ident;)*) => {
        /// Every error code a node answers with. Numbers are the wire format: never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum ErrorCode {
            $($(#[$doc])* $name = $number,)*
            /// A code that this version does not know; treated as `Internal`.
            Unknown = 0,
        }

        impl ErrorCode {
            /// All codes that are sent.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code of a wire number; `Unknown` for one that this version does not know.
            pub fn from_number(number: u16) -> Self {
                match number {
                    $($number => Self::$name,)*
                    _ => Self::Unknown,
                }
            }

            /// The name used in logs, metrics and JSON.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    Self::Unknown => "unknown",
                }
            }

            /// What a caller can do about it.
            pub fn caller_move(self) -> Move {
                match self {
                    $(Self::$name => Move::$moves,)*
                    Self::Unknown => Move::TryElsewhere,
                }
            }
        }
    };
}

codes! {
    /// The queue (or another bound of the node) is full.
    Busy = 1, "busy", TryElsewhere;
    /// The replica has not applied what the level asks for.
    Behind = 2, "behind", TryElsewhere;
    /// The time left would not have sufficed, or ran out.
    Expired = 3, "expired", GiveUp;
    /// The node knows that it cannot serve: draining, restoring, cut off, not a member of the shard.
    TryElsewhere = 4, "try-elsewhere", TryElsewhere;
    /// Reading or writing storage failed.
    Storage = 5, "storage", TryElsewhere;
    /// A defect of the node.
    Internal = 6, "internal", TryElsewhere;
    /// The frame or message cannot be understood.
    Malformed = 7, "malformed", FixTheCall;
    /// A key, value, batch or page is over its bound, or empty where it must not be.
    OverLimit = 8, "over-limit", FixTheCall;
    /// The tie breaks a rule: names itself wrongly, a stranger, a node twice, too many.
    BadTie = 9, "bad-tie", FixTheCall;
    /// The caller's role or cluster does not allow this.
    NotAllowed = 10, "not-allowed", FixTheCall;
    /// A copy of the same tie and number, or the same request id, is here already.
    Duplicate = 11, "duplicate", FixTheCall;
    /// This node does not lead the shard.
    NotLeader = 12, "not-leader", TryElsewhere;
    /// The write may or may not have been applied.
    UnknownOutcome = 13, "unknown-outcome", UnknownOutcome;
    /// The idempotency key was used for another body.
    KeyReused = 14, "key-reused", FixTheCall;
    /// The idempotency key is older than the outcomes kept: not applied.
    KeyExpired = 15, "key-expired", FixTheCall;
    /// A position token of another cluster, or ahead of what can be.
    BadToken = 16, "bad-token", FixTheCall;
    /// The operation or version is not supported by this node.
    Unsupported = 17, "unsupported", FixTheCall;
    /// The shard is not known here.
    NoShard = 18, "no-shard", TryElsewhere;
    /// Disk full: writes are refused, reads go on.
    DiskFull = 19, "disk-full", RetryHere;
    /// A bound on staleness could not be kept.
    TooStale = 20, "too-stale", TryElsewhere;
    /// A change of the membership is refused: it would lose quorum, or another one runs.
    Membership = 21, "membership", FixTheCall;
    /// A condition of the write does not hold: nothing was applied.
    ConditionFailed = 22, "condition-failed", FixTheCall;
    /// The value to increment is no number: nothing was applied.
    NotANumber = 23, "not-a-number", FixTheCall;
    /// The number would not fit 64 bits signed: nothing was applied.
    NumberOverflow = 24, "number-overflow", FixTheCall;
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// By number, so that a code of a newer version decodes as `Unknown` instead of breaking the frame.
impl Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(*self as u16)
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u16::deserialize(deserializer).map(Self::from_number)
    }
}
