//! Environment variables of the tool: unknown names that look like ours are errors, not silence.

use tiedkv_client::ReadPolicy;

/// Every variable of the tool itself; `start` also knows one per setting of a node.
pub const NAMES: [&str; 3] = ["TIEDKV_CLUSTER", "TIEDKV_OUTPUT", TIED];
/// Switches tied reads off for a whole process.
const TIED: &str = "TIEDKV_TIED";

/// A variable that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVariable {
    /// No such variable.
    #[error("environment variable `{name}` is not known; did you mean `{nearest}`?")]
    Unknown {
        /// As set.
        name: String,
        /// The nearest that exists.
        nearest: String,
    },
    /// A wrong value.
    #[error("environment variable TIEDKV_TIED: `{0}` is neither `on` nor `off`")]
    Tied(String),
}

/// Checks that every `TIEDKV_*` name is known.
///
/// # Errors
/// Names the first unknown one and the nearest right one.
pub fn check_names(names: impl Iterator<Item = String>) -> Result<(), BadVariable> {
    for name in names.filter(|name| name.starts_with("TIEDKV_")) {
        if !NAMES.contains(&name.as_str()) {
            let by_distance = |right: &&str| strsim::osa_distance(right, &name);
            let nearest = NAMES.into_iter().min_by_key(by_distance).unwrap_or(TIED).to_owned();
            return Err(BadVariable::Unknown { name, nearest });
        }
    }
    Ok(())
}

/// Whether reads may be tied: `TIEDKV_TIED`, default on.
///
/// # Errors
/// When the value is neither `on` nor `off`.
pub fn tied(value: Option<&str>) -> Result<bool, BadVariable> {
    match value {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => Err(BadVariable::Tied(other.to_owned())),
    }
}

/// The policy that the environment leaves of `policy`.
///
/// # Errors
/// As [`tied`].
pub fn policy(policy: ReadPolicy) -> Result<ReadPolicy, BadVariable> {
    let allowed = tied(std::env::var(TIED).ok().as_deref())?;
    Ok(if allowed { policy } else { ReadPolicy { rescue: policy.rescue, ..ReadPolicy::UNTIED } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str) -> Result<(), BadVariable> {
        check_names([name.to_owned()].into_iter())
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest() {
        assert_eq!(check("PATH"), Ok(()));
        assert_eq!(check("TIEDKV_TIED"), Ok(()));
        let text = check("TIEDKV_CLUSTRE").unwrap_err().to_string();
        assert!(text.contains("`TIEDKV_CLUSTER`"), "{text}");
    }

    #[test]
    fn the_switch_has_two_values() {
        assert_eq!((tied(None), tied(Some("off"))), (Ok(true), Ok(false)));
        assert!(tied(Some("no")).is_err());
    }
}
