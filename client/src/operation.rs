//! What a read is, where policies, switches and counters differ by it: its operation and its level.
//!
//! Names only. Which policy a kind of read has is [`crate::policy`]'s to say.

use crate::nearest::nearest;
use crate::options::Level;
use std::fmt;
use std::str::FromStr;

/// What is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// One key.
    #[default]
    Get,
    /// A key of a call for many.
    MultiGet,
    /// A chunk of a range.
    Scan,
}

impl Operation {
    /// All operations, in the order of every array by operation.
    pub const ALL: [Operation; 3] = [Self::Get, Self::MultiGet, Self::Scan];

    /// The name in settings, metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::MultiGet => "multi_get",
            Self::Scan => "scan",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How fresh a read is, without its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LevelName {
    /// Any replica's state.
    Stale,
    /// Read-your-writes and monotonic.
    #[default]
    Session,
    /// Not before any acknowledged write.
    Linearizable,
}

impl LevelName {
    /// All levels, in the order of every array by level.
    pub const ALL: [LevelName; 3] = [Self::Stale, Self::Session, Self::Linearizable];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Session => "session",
            Self::Linearizable => "linearizable",
        }
    }
}

impl From<Level> for LevelName {
    fn from(level: Level) -> Self {
        match level {
            Level::Stale { .. } => Self::Stale,
            Level::Session => Self::Session,
            Level::Linearizable => Self::Linearizable,
        }
    }
}

/// The kind of a read: operation and level. Delays are learned and policies set per sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sort {
    /// What is read.
    pub operation: Operation,
    /// How fresh.
    pub level: LevelName,
}

impl Sort {
    /// How many sorts there are.
    pub const COUNT: usize = Operation::ALL.len() * LevelName::ALL.len();

    /// Its place in every array by sort.
    pub fn index(self) -> usize {
        self.operation as usize * LevelName::ALL.len() + self.level as usize
    }
}

/// `get`, `multi_get`, `scan`, or one of them with a level: `scan.stale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SortName {
    /// Which operation.
    pub operation: Operation,
    /// `None`: every level of it.
    pub level: Option<LevelName>,
}

impl FromStr for SortName {
    type Err = NoSort;

    fn from_str(text: &str) -> Result<Self, NoSort> {
        let (operation, level) = match text.split_once('.') {
            Some((operation, level)) => (operation, Some(level)),
            None => (text, None),
        };
        if ["put", "delete", "del", "write", "batch", "cas", "increment"].contains(&operation) {
            return Err(NoSort::Write(operation.to_owned()));
        }
        let unknown = || unknown_sort(text, operation, level);
        let operation = Operation::ALL.into_iter().find(|one| one.name() == operation).ok_or_else(unknown)?;
        let level = match level {
            None => None,
            Some(level) => Some(LevelName::ALL.into_iter().find(|one| one.name() == level).ok_or_else(unknown)?),
        };
        Ok(Self { operation, level })
    }
}

/// Names the nearest right one, with a level if the wrong one has one.
fn unknown_sort(text: &str, operation: &str, level: Option<&str>) -> NoSort {
    let operation = nearest(operation, &Operation::ALL.map(Operation::name));
    let right = match level {
        None => operation.to_owned(),
        Some(level) => format!("{operation}.{}", nearest(level, &LevelName::ALL.map(LevelName::name))),
    };
    NoSort::Unknown { text: text.chars().take(80).collect(), nearest: right }
}

/// Why a text names no sort of read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSort {
    /// It names a write.
    #[error(
        "`{0}` is a write, and no read policy takes one: a second copy could apply it twice; it is sent to the leader, once per try, with an idempotency key"
    )]
    Write(String),
    /// It names nothing.
    #[error(
        "`{text}` is no read; did you mean `{nearest}`? (want get, multi_get or scan, each also with .stale, .session or .linearizable)"
    )]
    Unknown {
        /// The wrong text.
        text: String,
        /// The nearest right one.
        nearest: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_have_places_of_their_own() {
        let mut places = Vec::new();
        for operation in Operation::ALL {
            for level in LevelName::ALL {
                places.push(Sort { operation, level }.index());
            }
        }
        assert_eq!(places, (0..Sort::COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_read_and_writes_are_refused_with_the_reason() {
        let scan = SortName { operation: Operation::Scan, level: Some(LevelName::Stale) };
        assert_eq!("scan.stale".parse(), Ok(scan));
        assert_eq!("get".parse(), Ok(SortName { operation: Operation::Get, level: None }));
        assert!("put".parse::<SortName>().unwrap_err().to_string().contains("apply it twice"));
        assert!("get.fresh".parse::<SortName>().unwrap_err().to_string().contains("no read"));
    }

    #[test]
    fn a_mistyped_name_is_told_the_nearest_one() {
        for (wrong, right) in [
            ("gte", "`get`"),
            ("multiget", "`multi_get`"),
            ("scna.stal", "`scan.stale`"),
            ("get.linearisable", "`get.linearizable`"),
        ] {
            let error = wrong.parse::<SortName>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{wrong}` is no read; did you mean {right}?")), "{error}");
        }
    }
}
