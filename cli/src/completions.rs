//! `tiedkv completions` and `tiedkv man`: made from the definition of the command line, so that they cannot differ.

use crate::args::Cli;
use crate::args_data::Completions;
use crate::outcome::End;
use crate::output;
use anyhow::{Context, Result};
use clap::CommandFactory;

/// Prints the completions of a shell.
///
/// # Errors
/// When standard output is closed.
pub fn run(args: &Completions) -> Result<End> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tiedkv", &mut script);
    output::bytes(&script)?;
    Ok(End::Ok)
}

/// Prints the man page.
///
/// # Errors
/// When standard output is closed.
pub fn man() -> Result<End> {
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).context("the man page")?;
    output::bytes(&page)?;
    Ok(End::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_completions_and_the_page_names_the_commands() {
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tiedkv", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("keys-only") && script.contains("export"), "{shell}");
        }
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("tiedkv") && page.contains("import"));
    }
}
