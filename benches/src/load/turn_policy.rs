//! How the reads of one turn of `bench run` are sent: as the client is set, by an order, or as a client does that was told
//! nothing. Sends nothing.

use std::fmt;
use std::str::FromStr;
use tiedkv_client::options::{BadChoice, POLICY_NAMES, parse_policy};
use tiedkv_client::{ReadOptions, ReadPolicy};

/// The name of [`TurnPolicy::Usual`], as `bench busy` has it.
const USUAL: &str = "default";

/// The policy of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnPolicy {
    /// As the client is set.
    AsSet,
    /// This one for every read: an order, which no gate judges.
    Ordered(ReadPolicy),
    /// What a client does that was told nothing: tied2+rescue behind its gate, budget and hold-out.
    Usual,
}

impl TurnPolicy {
    /// The options of a read of this turn.
    pub fn options(self) -> ReadOptions {
        let (policy, gate) = match self {
            Self::AsSet => (None, None),
            Self::Ordered(policy) => (Some(policy), Some(false)),
            Self::Usual => (Some(ReadPolicy::default()), Some(true)),
        };
        ReadOptions { policy, gate, ..ReadOptions::default() }
    }
}

impl fmt::Display for TurnPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsSet => f.write_str("as set"),
            Self::Ordered(policy) => write!(f, "{policy}"),
            Self::Usual => f.write_str(USUAL),
        }
    }
}

impl FromStr for TurnPolicy {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        if text == USUAL {
            return Ok(Self::Usual);
        }
        parse_policy(text).map(Self::Ordered).map_err(|_| {
            let names: Vec<&str> = POLICY_NAMES.into_iter().chain([USUAL]).collect();
            BadChoice::new("policy", text, &names)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_default_is_judged() {
        let options = |name: &str| {
            let options = name.parse::<TurnPolicy>().unwrap().options();
            (options.policy, options.gate)
        };
        assert_eq!(options("default"), (Some(ReadPolicy::TIED2.with_rescue()), Some(true)));
        assert_eq!(options("tied2+rescue"), (Some(ReadPolicy::TIED2.with_rescue()), Some(false)));
        let set = TurnPolicy::AsSet.options();
        assert_eq!((set.policy, set.gate), (None, None), "the client's settings hold");
    }

    #[test]
    fn a_wrong_name_lists_the_default_among_the_right_ones() {
        let error = "defualt".parse::<TurnPolicy>().unwrap_err();
        assert_eq!(error.nearest, "default");
        assert!(error.all.contains("untied, hedged") && error.all.ends_with(", default"), "{error}");
        for name in ["default", "untied", "tied3+rescue"] {
            assert_eq!(name.parse::<TurnPolicy>().unwrap().to_string(), name);
        }
    }
}
