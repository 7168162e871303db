//! Environment variables of the tool: unknown names that look like ours are errors, not silence.

use tiedkv_client::switchboard::{VARIABLE as TIED, from_environment};

/// Every variable of the tool itself; `start` also knows one per setting of a node.
pub const NAMES: [&str; 3] = ["TIEDKV_CLUSTER", "TIEDKV_OUTPUT", TIED];

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
    #[error("environment variable: {0}")]
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

/// Checks `TIEDKV_TIED`; the client obeys it by itself.
///
/// # Errors
/// When the value is neither `off`, `observe` nor `on`.
pub fn check_tied(value: Option<&str>) -> Result<(), BadVariable> {
    from_environment(value).map(drop).map_err(|error| BadVariable::Tied(error.to_string()))
}

/// [`check_tied`] of this process.
///
/// # Errors
/// As [`check_tied`].
pub fn check_own_tied() -> Result<(), BadVariable> {
    check_tied(std::env::var(TIED).ok().as_deref())
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
    fn the_switch_has_three_values() {
        assert_eq!(
            (check_tied(None), check_tied(Some("off")), check_tied(Some("observe"))),
            (Ok(()), Ok(()), Ok(()))
        );
        assert!(check_tied(Some("no")).unwrap_err().to_string().contains("TIEDKV_TIED"));
    }
}
