//! What can be wrong with settings. Every error names the setting, its value and where the value came from.

use super::layers::Source;
use std::path::PathBuf;

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {reason}", .path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The file is no TOML, or holds a table where a value is wanted.
    #[error("{} line {line}: {reason}", .path.display())]
    Syntax {
        /// Which file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// No setting has this name.
    #[error("{source_}: unknown setting `{name}`{}", did_you_mean(.nearest))]
    Unknown {
        /// As written.
        name: String,
        /// Where.
        source_: Source,
        /// The right name that looks most like it.
        nearest: Option<&'static str>,
    },
    /// The value cannot be what the setting wants.
    #[error("{source_}: `{name}` = `{value}`: {reason}")]
    Value {
        /// Which setting.
        name: &'static str,
        /// As written.
        value: String,
        /// Where.
        source_: Source,
        /// What is wanted.
        reason: String,
    },
    /// Two values contradict each other.
    #[error("{first} and {second} contradict each other: {reason}")]
    Clash {
        /// One setting, its value and where it came from.
        first: String,
        /// The other.
        second: String,
        /// Why they cannot both hold.
        reason: String,
    },
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
