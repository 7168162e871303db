//! Read policies by name, and how far a switch lets them act.
//!
//! A policy is a composition of the same parts (choice, pacing, race, budget, gate), never a second
//! implementation: it only says how wide a tie is and which extra copies may follow.

use std::fmt;
use std::str::FromStr;

/// The shape of a read's copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
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
}

/// How a read is sent. Default: `tied2+rescue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

    /// Copies of a tie, 1 to 3.
    pub fn width(self) -> u8 {
        match self.shape {
            Shape::Untied | Shape::Hedged => 1,
            Shape::Tied2 => 2,
            Shape::Tied3 => 3,
        }
    }

    /// Whether a hedge may follow.
    pub fn hedge(self) -> bool {
        self.shape == Shape::Hedged
    }
}

impl fmt::Display for ReadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = match self.shape {
            Shape::Untied => "untied",
            Shape::Hedged => "hedged",
            Shape::Tied2 => "tied2",
            Shape::Tied3 => "tied3",
        };
        write!(f, "{shape}{}", if self.rescue { "+rescue" } else { "" })
    }
}

/// Why a text is not a read policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no read policy: want untied, hedged, tied2 or tied3, each also with +rescue")]
pub struct BadPolicy(pub String);

impl FromStr for ReadPolicy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, rescue) = match text.strip_suffix("+rescue") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let shape = match name {
            "untied" => Shape::Untied,
            "hedged" => Shape::Hedged,
            "tied2" => Shape::Tied2,
            "tied3" => Shape::Tied3,
            _ => return Err(BadPolicy(text.to_owned())),
        };
        Ok(Self { shape, rescue })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for shape in [Shape::Untied, Shape::Hedged, Shape::Tied2, Shape::Tied3] {
            for rescue in [false, true] {
                let policy = ReadPolicy { shape, rescue };
                assert_eq!(policy.to_string().parse(), Ok(policy));
            }
        }
        assert_eq!(ReadPolicy::default().to_string(), "tied2+rescue");
        assert!("tied4".parse::<ReadPolicy>().is_err());
    }
}
