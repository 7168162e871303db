//! `tiedkv start`: runs one node until it is told to stop.

use crate::args::Start;
use crate::outcome::End;
use anyhow::{Result, bail};

/// Environment variables that are settings of a node.
pub fn variables() -> Vec<String> {
    Vec::new()
}

/// Runs the command.
///
/// # Errors
/// When the settings are wrong or the node does not start.
pub fn run(_args: Start) -> Result<End> {
    bail!("not yet")
}
