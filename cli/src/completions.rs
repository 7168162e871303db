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
    output::bytes(page().context("the man page")?.as_bytes())?;
    Ok(End::Ok)
}

/// One page: the program, then every command with its flags and examples.
fn page() -> std::io::Result<String> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    add_commands(&command, "tiedkv", &mut page)?;
    Ok(page)
}

fn add_commands(command: &clap::Command, path: &str, page: &mut String) -> std::io::Result<()> {
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        let path = format!("{path} {}", inner.get_name());
        let man = clap_mangen::Man::new(inner.clone());
        let mut part = Vec::new();
        man.render_synopsis_section(&mut part)?;
        man.render_description_section(&mut part)?;
        man.render_options_section(&mut part)?;
        man.render_extra_section(&mut part)?;
        // Its sections stand one below that of the command.
        let part = String::from_utf8_lossy(&part).replace(".SH ", ".SS ");
        page.push_str(&format!(".SH \"{}\"\n{part}", path.to_uppercase()));
        add_commands(inner, &path, page)?;
    }
    Ok(())
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
        let page = page().unwrap();
        for part in ["TIEDKV IMPORT", "TIEDKV BENCH BUSY", "keys\\-only", "Exit codes", "NO_COLOR", "tiedkv scan"] {
            assert!(page.contains(part), "{part}");
        }
    }
}
