//! Names of things: nodes, shards, reads, ties, callers, positions.
//!
//! Newtypes, so that two numbers of one type never stand side by side as arguments. This room makes no ids:
//! whoever needs a fresh one draws it from the operating system's randomness (rule R5, docs/tie-protocol.md).

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal, $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, $format), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A node of the cluster, for its whole life; never reused. Comes from the node's certificate.
    NodeId(u64), "n", "{}"
);
id!(
    /// A cluster, for its whole life. Comes from the certificates.
    ClusterId(u128), "", "{:032x}"
);
id!(
    /// A shard: one Raft group. One shard exists today; the name is on the wire from the first day.
    ShardId(u32), "s", "{}"
);
id!(
    /// One logical read of a caller, stable over all its copies, ties and retries.
    ReadId(u128), "r", "{:032x}"
);
id!(
    /// One tie: a set of copies that race. Drawn afresh for every tie, never used twice.
    TieId(u128), "t", "{:032x}"
);
id!(
    /// Who calls: derived from the certificate's identity, the same on every node of the cluster.
    CallerId(u128), "c", "{:032x}"
);
id!(
    /// One client process (or handle) of a caller: scopes idempotency keys.
    ClientId(u128), "", "{:032x}"
);
id!(
    /// One request on one connection: pairs an answer with what it answers. Unique per connection.
    RequestId(u64), "q", "{}"
);
id!(
    /// How many writes of the shard's order are applied: the index of the last applied entry.
    Position(u64), "p", "{}"
);
id!(
    /// The version of a value: the position of the write that made it. Versions never repeat.
    Version(u64), "v", "{}"
);

impl Default for Position {
    /// Nothing is applied.
    fn default() -> Self {
        Self(0)
    }
}

/// The first (and today only) shard.
pub const SHARD_ZERO: ShardId = ShardId(0);

/// A failure domain (rack, room, zone) as the operator names it; empty when zones are not used.
pub type Zone = String;

/// How far a session has seen a shard: handed out with every answer, handed on between clients.
///
/// Travels as text `cluster.shard.position` (hex, decimal, decimal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PositionToken {
    /// The cluster that gave it out; another cluster rejects it.
    pub cluster: ClusterId,
    /// The shard whose order it speaks of.
    pub shard: ShardId,
    /// The position seen.
    pub position: Position,
}

impl fmt::Display for PositionToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}.{}.{}", self.cluster.0, self.shard.0, self.position.0)
    }
}

/// Why a text is not a position token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a position token: want CLUSTER.SHARD.POSITION (32 hex digits, two decimal numbers)")]
pub struct BadPositionToken;

impl std::str::FromStr for PositionToken {
    type Err = BadPositionToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('.');
        let (Some(cluster), Some(shard), Some(position), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadPositionToken);
        };
        let signed = |part: &str| part.starts_with('+');
        if cluster.len() != 32 || signed(cluster) || signed(shard) || signed(position) {
            return Err(BadPositionToken);
        }
        Ok(Self {
            cluster: ClusterId(u128::from_str_radix(cluster, 16).map_err(|_| BadPositionToken)?),
            shard: ShardId(shard.parse().map_err(|_| BadPositionToken)?),
            position: Position(position.parse().map_err(|_| BadPositionToken)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_token_survives_its_text() {
        let token =
            PositionToken { cluster: ClusterId(u128::MAX), shard: ShardId(3), position: Position(u64::MAX) };
        assert_eq!(token.to_string().parse(), Ok(token));
    }

    #[test]
    fn other_texts_are_no_tokens() {
        let cluster = "0".repeat(32);
        for text in [
            String::new(),
            "..".into(),
            format!("{cluster}.0"),
            format!("{cluster}.0.1.2"),
            format!("{cluster}.+0.1"),
            format!("{cluster}.0.-1"),
            format!("{cluster}.4294967296.1"),
            format!("{cluster}.0.18446744073709551616"),
            format!("+{}.0.1", &cluster[1..]),
            format!("{}\u{e9}.0.1", "0".repeat(30)),
        ] {
            assert_eq!(text.parse::<PositionToken>(), Err(BadPositionToken), "{text}");
        }
    }

    #[test]
    fn ids_print_with_their_prefix() {
        assert_eq!(NodeId(3).to_string(), "n3");
        assert_eq!(format!("{:?}", TieId(255)), "t000000000000000000000000000000ff");
    }
}
