//! Names of copies and of the races they are filed under. No state, no policy.

use tiedkv_protocol::ids::{CallerId, RequestId, TieId};
use tiedkv_protocol::peer::Cancel;
use tiedkv_protocol::request::ReadRequest;
use tiedkv_protocol::tie::CopyNumber;

/// What a copy is called within its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    /// A copy of a tie.
    Tied {
        /// The race.
        tie: TieId,
        /// Which of its copies.
        number: CopyNumber,
    },
    /// A copy that races with nobody.
    Untied {
        /// The client connection, unique within the process.
        connection: u64,
        /// The request on that connection.
        request: RequestId,
    },
}

/// The name of one copy on one node: ties are scoped by caller (rule R13, docs/tie-protocol.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CopyName {
    /// Who asked.
    pub caller: CallerId,
    /// Which of the caller's copies.
    pub which: Which,
}

/// What a node files copies, early cancels and ended ties under: at most one copy per race is on a node, since a
/// tie names each node once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Race {
    /// Who asked.
    pub caller: CallerId,
    /// Which race.
    pub id: RaceId,
}

/// Which race of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RaceId {
    /// The copies of a tie.
    Tie(TieId),
    /// One untied copy.
    Request {
        /// The client connection.
        connection: u64,
        /// The request on that connection.
        request: RequestId,
    },
}

impl CopyName {
    /// The name of the copy that `request` of `caller` on `connection` is.
    pub fn of(caller: CallerId, connection: u64, request: &ReadRequest) -> Self {
        let which = match &request.tie {
            Some(tie) => Which::Tied { tie: tie.id, number: tie.number },
            None => Which::Untied { connection, request: request.request },
        };
        Self { caller, which }
    }

    /// The race that this copy is part of.
    pub fn race(&self) -> Race {
        let id = match self.which {
            Which::Tied { tie, .. } => RaceId::Tie(tie),
            Which::Untied { connection, request } => RaceId::Request { connection, request },
        };
        Race { caller: self.caller, id }
    }

    /// Its number; 0 for an untied copy.
    pub fn number(&self) -> CopyNumber {
        match self.which {
            Which::Tied { number, .. } => number,
            Which::Untied { .. } => CopyNumber(0),
        }
    }
}

impl Race {
    /// The race that a cancel speaks of.
    pub fn of_cancel(cancel: &Cancel) -> Self {
        Self { caller: cancel.caller, id: RaceId::Tie(cancel.tie) }
    }

    /// Which of `stripes` registries keeps this race: all events of one race meet in one stripe. 0 for 0 stripes.
    pub fn stripe(&self, stripes: usize) -> usize {
        let id = match self.id {
            RaceId::Tie(tie) => (tie.0 >> 64) as u64 ^ tie.0 as u64,
            RaceId::Request { connection, request } => connection.rotate_left(32) ^ request.0,
        };
        // Fibonacci hashing (Knuth, TAOCP 6.4): spreads sequential ids; the high bits are the good ones.
        let spread = (id ^ self.caller.0 as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        (spread as usize).checked_rem(stripes).unwrap_or(0)
    }
}
