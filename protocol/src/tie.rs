//! What makes copies of a read race: the tie that every copy carries.
//!
//! Validation of a tie against the node that received it (`names itself`, `stranger`) needs the membership
//! and is done in the server's `admit`; here is only what the bytes alone can tell.

use crate::ids::{NodeId, TieId};
use crate::limits::TIE_COPIES_MAX;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Number of a copy within its tie: 0, 1 or 2; equals the index of its node in [`Tie::members`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CopyNumber(pub u8);

/// All replicas that may ever get a copy of one tie, in order (number = index).
pub type Members = SmallVec<[NodeId; TIE_COPIES_MAX]>;

/// The tie of one copy (rule R11, docs/tie-protocol.md).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tie {
    /// Drawn afresh per tie from the operating system's randomness.
    pub id: TieId,
    /// The number of the copy that carries this.
    pub number: CopyNumber,
    /// All that may ever hold a copy, at most [`TIE_COPIES_MAX`], each once.
    pub members: Members,
    /// How many of them, from the front, are planned to get one if no answer comes: 1..=members.
    pub width: u8,
}

/// Why a tie is not one, whatever node reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTie {
    /// Fewer than one or more than [`TIE_COPIES_MAX`] members.
    #[error("a tie names 1 to {TIE_COPIES_MAX} members, this one names {0}")]
    Members(usize),
    /// One node stands in it twice.
    #[error("a tie names each node once, this one names {0} twice")]
    Twice(NodeId),
    /// The number is no index into the members.
    #[error("copy number {0} is not below the number of members")]
    Number(u8),
    /// The width is 0 or more than the members.
    #[error("planned width {0} is not within 1 and the number of members")]
    Width(u8),
}

impl Tie {
    /// Checks what the bytes alone can tell.
    ///
    /// # Errors
    /// Names the first rule of the tie that is broken.
    pub fn check(&self) -> Result<(), BadTie> {
        let count = self.members.len();
        if count == 0 || count > TIE_COPIES_MAX {
            return Err(BadTie::Members(count));
        }
        for (index, member) in self.members.iter().enumerate() {
            if self.members[..index].contains(member) {
                return Err(BadTie::Twice(*member));
            }
        }
        if usize::from(self.number.0) >= count {
            return Err(BadTie::Number(self.number.0));
        }
        if self.width == 0 || usize::from(self.width) > count {
            return Err(BadTie::Width(self.width));
        }
        Ok(())
    }

    /// The node this copy was meant for.
    pub fn holder(&self) -> Option<NodeId> {
        self.members.get(usize::from(self.number.0)).copied()
    }

    /// The number of `node` in this tie, if it is named.
    pub fn number_of(&self, node: NodeId) -> Option<CopyNumber> {
        self.members.iter().position(|member| *member == node).map(|index| CopyNumber(index as u8))
    }

    /// Whom a start of this copy cancels: the planned members and all lower numbers, without itself (rule R11, docs/tie-protocol.md).
    pub fn cancelled_by_start(&self) -> impl Iterator<Item = NodeId> + '_ {
        let own = usize::from(self.number.0);
        let end = usize::from(self.width).max(own);
        self.members.iter().take(end).enumerate().filter(move |(index, _)| *index != own).map(|(_, node)| *node)
    }
}

#[cfg(test)]
#[path = "tie_test.rs"]
mod tests;
