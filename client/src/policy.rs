//! Read policies by name, and which kind of read has which.
//!
//! A policy is a composition of the same parts (choice, pacing, race, budget, gate), never a second
//! implementation: it only says how wide a tie is and which extra copies may follow. No policy takes a write.

use crate::operation::{LevelName, Operation, Sort, SortName};
use std::fmt;
use std::str::FromStr;

/// The shape of a read's copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// One copy.
    Untied,
    /// One copy, and one extra untied copy at p95 of latency, from the budget.
    Hedged,
    /// A tie of two.
    #[default]
    Tied2,
    /// A tie of three.
    Tied3,
    /// For measurements only: two untied copies at once, neither paid for nor withdrawn.
    #[cfg(feature = "bench-policies")]
    Duplicate,
    /// For measurements only: a hedge that is neither paid for nor withdrawn.
    #[cfg(feature = "bench-policies")]
    HedgedUnbudgeted,
}

/// Shapes that any build may have: the size of arrays by shape.
pub(crate) const SHAPES: usize = 6;

impl Shape {
    /// Every shape of this build.
    pub const ALL: &'static [Shape] = &[
        Self::Untied,
        Self::Hedged,
        Self::Tied2,
        Self::Tied3,
        #[cfg(feature = "bench-policies")]
        Self::Duplicate,
        #[cfg(feature = "bench-policies")]
        Self::HedgedUnbudgeted,
    ];

    /// The name in settings, metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Untied => "untied",
            Self::Hedged => "hedged",
            Self::Tied2 => "tied2",
            Self::Tied3 => "tied3",
            #[cfg(feature = "bench-policies")]
            Self::Duplicate => "duplicate",
            #[cfg(feature = "bench-policies")]
            Self::HedgedUnbudgeted => "hedged-unbudgeted",
        }
    }

    /// One of those that only measurements have: outside every budget, gate and rule.
    pub fn measures(self) -> bool {
        !matches!(self, Self::Untied | Self::Hedged | Self::Tied2 | Self::Tied3)
    }
}

/// How a read is sent. Default: `tied2+rescue`.
///
/// ```
/// use tiedkv_client::ReadPolicy;
///
/// let policy: ReadPolicy = "tied3+rescue".parse()?;
/// assert_eq!(policy, ReadPolicy::TIED3.with_rescue());
/// assert_eq!(policy.width(), 3);
/// # Ok::<(), tiedkv_client::policy::BadPolicy>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadPolicy {
    /// The copies that race.
    pub shape: Shape,
    /// Extra untied copies when no answer came by p98 of latency, from the budget.
    pub rescue: bool,
}

impl Default for ReadPolicy {
    fn default() -> Self {
        Self { shape: Shape::Tied2, rescue: true }
    }
}

impl ReadPolicy {
    /// One copy, nothing extra.
    pub const UNTIED: Self = Self { shape: Shape::Untied, rescue: false };
    /// One copy and a budgeted hedge.
    pub const HEDGED: Self = Self { shape: Shape::Hedged, rescue: false };
    /// A tie of two, no rescue.
    pub const TIED2: Self = Self { shape: Shape::Tied2, rescue: false };
    /// A tie of three, no rescue.
    pub const TIED3: Self = Self { shape: Shape::Tied3, rescue: false };
    /// For measurements only; see [`Shape::Duplicate`].
    #[cfg(feature = "bench-policies")]
    pub const DUPLICATE: Self = Self { shape: Shape::Duplicate, rescue: false };
    /// For measurements only; see [`Shape::HedgedUnbudgeted`].
    #[cfg(feature = "bench-policies")]
    pub const HEDGED_UNBUDGETED: Self = Self { shape: Shape::HedgedUnbudgeted, rescue: false };

    /// The same with rescue.
    pub const fn with_rescue(self) -> Self {
        Self { rescue: true, ..self }
    }

    /// Copies of a tie, 1 to 3.
    pub fn width(self) -> u8 {
        match self.shape {
            Shape::Tied2 => 2,
            Shape::Tied3 => 3,
            _ => 1,
        }
    }

    /// The same without hedges and rescues: for reads that are longer than a get, whose delays would be wrong.
    pub fn without_extras(self) -> Self {
        let shape = if self.shape == Shape::Hedged { Shape::Untied } else { self.shape };
        Self { shape, rescue: false }
    }

    /// Whether a hedge may follow.
    pub fn hedge(self) -> bool {
        self.shape == Shape::Hedged || self.shape.measures()
    }

    /// Whether the extra copy goes out with the first.
    pub fn at_once(self) -> bool {
        self.shape.name() == "duplicate"
    }

    /// Whether more than one copy may ever be sent for lateness: what switch, gate and ceiling can take away.
    pub fn is_plain(self) -> bool {
        self == Self::UNTIED
    }
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.shape.name(), if self.rescue { "+rescue" } else { "" })
    }
}

/// Why a text is not a read policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// It names nothing.
    #[error("{0:?} is no read policy: want untied, hedged, tied2 or tied3, each also with +rescue")]
    Unknown(String),
    /// It names what this build does not have.
    #[error("{0} is for measurements only: it multiplies load without a bound; build with feature bench-policies")]
    NotBuilt(String),
    /// A rescue of what has no budget.
    #[error("{0} is measured alone: it takes no rescue")]
    Alone(String),
}

impl FromStr for ReadPolicy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rescue) = match text.strip_suffix("+rescue") {
            Some(name) => (name, true),
            None => (text, false),
        };
        match Shape::ALL.iter().find(|shape| shape.name() == name) {
            Some(shape) if rescue && shape.measures() => Err(BadPolicy::Alone(name.to_owned())),
            Some(shape) => Ok(Self { shape: *shape, rescue }),
            None if ["duplicate", "hedged-unbudgeted"].contains(&name) => Err(BadPolicy::NotBuilt(name.to_owned())),
            None => Err(BadPolicy::Unknown(text.to_owned())),
        }
    }
}

/// Policies of operations and levels that differ from a client's general one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyTable {
    by_operation: [Option<ReadPolicy>; Operation::ALL.len()],
    by_sort: [Option<ReadPolicy>; Sort::COUNT],
}

impl PolicyTable {
    /// Sets the policy of an operation, or of one level of it; a level's own wins.
    pub fn set(&mut self, name: SortName, policy: ReadPolicy) {
        match name.level {
            None => self.by_operation[name.operation as usize] = Some(policy),
            Some(level) => self.by_sort[Sort { operation: name.operation, level }.index()] = Some(policy),
        }
    }

    /// The policy of a sort, where `general` holds for what is not set.
    pub fn of(&self, sort: Sort, general: ReadPolicy) -> ReadPolicy {
        self.named(sort).unwrap_or(general)
    }

    /// The policy that is set for a sort or its operation.
    pub fn named(&self, sort: Sort) -> Option<ReadPolicy> {
        self.by_sort[sort.index()].or(self.by_operation[sort.operation as usize])
    }

    /// Every policy in force somewhere, given the general one.
    pub fn all(&self, general: ReadPolicy) -> impl Iterator<Item = ReadPolicy> + '_ {
        let levels = |operation| LevelName::ALL.into_iter().map(move |level| Sort { operation, level });
        Operation::ALL.into_iter().flat_map(levels).map(move |sort| self.of(sort, general))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for shape in Shape::ALL {
            for rescue in [false, true] {
                let policy = ReadPolicy { shape: *shape, rescue };
                if rescue && shape.measures() {
                    assert!(policy.to_string().parse::<ReadPolicy>().is_err());
                } else {
                    assert_eq!(policy.to_string().parse(), Ok(policy));
                }
            }
        }
        assert_eq!(ReadPolicy::default().to_string(), "tied2+rescue");
        assert!("tied4".parse::<ReadPolicy>().is_err());
    }

    #[test]
    #[cfg(not(feature = "bench-policies"))]
    fn what_only_measures_says_why_it_is_not_there() {
        let error = "duplicate".parse::<ReadPolicy>().unwrap_err().to_string();
        assert!(error.contains("bench-policies"), "{error}");
    }

    #[test]
    fn a_level_wins_over_its_operation_and_that_over_the_general_one() {
        let mut table = PolicyTable::default();
        let sort = |operation, level| Sort { operation, level };
        table.set("scan".parse().unwrap(), ReadPolicy::UNTIED);
        table.set("scan.stale".parse().unwrap(), ReadPolicy::HEDGED);
        let of = |operation, level| table.of(sort(operation, level), ReadPolicy::TIED3);
        assert_eq!(of(Operation::Scan, LevelName::Stale), ReadPolicy::HEDGED);
        assert_eq!(of(Operation::Scan, LevelName::Session), ReadPolicy::UNTIED);
        assert_eq!(of(Operation::Get, LevelName::Stale), ReadPolicy::TIED3);
        assert_eq!(table.named(sort(Operation::Scan, LevelName::Session)), Some(ReadPolicy::UNTIED));
        assert_eq!(table.named(sort(Operation::Get, LevelName::Stale)), None);
        assert_eq!(table.all(ReadPolicy::TIED3).filter(|policy| *policy == ReadPolicy::TIED3).count(), 6);
    }
}
