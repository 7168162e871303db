//! Datagrams of the cancel channel between nodes (RFC 9221).
//!
//! The sender's NodeId is the peer's certificate, never a field. A cancel is never retransmitted: a lost one
//! costs a duplicate.

use crate::ids::{CallerId, TieId};
use crate::tie::CopyNumber;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// "Copy `number` of tie `tie` of `caller` started here."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cancel {
    /// Scopes the tie: only copies of the same caller are meant.
    pub caller: CallerId,
    /// The race.
    pub tie: TieId,
    /// The copy that started at the sender.
    pub number: CopyNumber,
}

/// One datagram.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerDatagram {
    /// At most [`crate::limits::CANCELS_PER_DATAGRAM_MAX`]; what waited for the socket travels together.
    Cancels(SmallVec<[Cancel; 4]>),
    /// Measures flight time and health.
    Ping {
        /// Pairs the echo.
        nonce: u64,
    },
    /// Echo of a ping.
    Pong {
        /// Of which ping.
        nonce: u64,
        /// Receipt to echo, microseconds.
        held_us: u32,
    },
}
