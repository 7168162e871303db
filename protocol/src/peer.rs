//! Datagrams of the cancel channel between nodes (RFC 9221).
//!
//! The sender's NodeId is the peer's certificate, never a field. A cancel is never retransmitted: a lost one
//! costs a duplicate.

use crate::codec::{self, CodecError};
use crate::ids::{CallerId, TieId};
use crate::limits::{CANCELS_PER_DATAGRAM_MAX, PEER_DATAGRAM_BYTES_MAX};
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

impl PeerDatagram {
    /// The bytes of one datagram.
    ///
    /// # Errors
    /// When more than [`CANCELS_PER_DATAGRAM_MAX`] cancels are in it.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        self.check()?;
        codec::encode(self)
    }

    /// Reads one datagram.
    ///
    /// # Errors
    /// When it is over [`PEER_DATAGRAM_BYTES_MAX`], holds too many cancels, or is no datagram of this protocol.
    pub fn decode(bytes: &[u8]) -> Result<Self, CodecError> {
        if bytes.len() > PEER_DATAGRAM_BYTES_MAX {
            return Err(CodecError::Decode(format!("{} bytes are over the bound of a datagram", bytes.len())));
        }
        let datagram: Self = codec::decode(bytes)?;
        datagram.check()?;
        Ok(datagram)
    }

    fn check(&self) -> Result<(), CodecError> {
        match self {
            Self::Cancels(cancels) if cancels.len() > CANCELS_PER_DATAGRAM_MAX => {
                Err(CodecError::Decode(format!("{} cancels in one datagram", cancels.len())))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cancels(count: usize) -> PeerDatagram {
        let one = Cancel { caller: CallerId(u128::MAX), tie: TieId(u128::MAX), number: CopyNumber(2) };
        PeerDatagram::Cancels(std::iter::repeat_n(one, count).collect())
    }

    #[test]
    fn a_full_datagram_of_the_longest_cancels_fits() {
        let full = cancels(CANCELS_PER_DATAGRAM_MAX);
        let bytes = full.encode().unwrap();
        assert!(bytes.len() <= PEER_DATAGRAM_BYTES_MAX, "{} bytes", bytes.len());
        assert_eq!(PeerDatagram::decode(&bytes), Ok(full));
    }

    #[test]
    fn one_cancel_more_is_refused_on_both_sides() {
        let over = cancels(CANCELS_PER_DATAGRAM_MAX + 1);
        assert!(over.encode().is_err());
        assert!(PeerDatagram::decode(&codec::encode(&over).unwrap()).is_err());
    }

    #[test]
    fn a_datagram_over_its_bound_is_refused_unread() {
        assert!(PeerDatagram::decode(&vec![0; PEER_DATAGRAM_BYTES_MAX + 1]).is_err());
    }
}
