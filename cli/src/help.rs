//! The screen that `tiedkv --help` prints, and the command that a mistyped one comes nearest to.
//!
//! One screen of 80 columns and 24 lines: commands by what they are for. What each does and takes stands in its own
//! help and in the man page, which clap makes from their definitions.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// See the head of this room.
pub const SCREEN: &str = "\
A replicated key-value store that keeps reads fast when its machines are busy

Usage: tiedkv [-o json|table|raw] <COMMAND>     tiedkv help <COMMAND> tells more

  Data       get mget put cas del incr ttl scan count export import
  Look       status health slow watch-latency shell
  Operate    start certs member policy
  Measure    demo bench
  Help       help completions man

  -o, --output <FORM>  json, table or raw; the default depends on the command
  -h, --help           Print help             -V, --version  Print version

Examples:
  tiedkv demo                                   three servers, a table of scenes
  tiedkv demo --keep --scenes none              a cluster to try; prints its URL
  tiedkv put --cluster \"$URL\" greeting hello    set a key
  tiedkv scan --cluster \"$URL\" --prefix user/   keys in order, with their values
  tiedkv shell --cluster \"$URL\"                 type commands, without --cluster

Exit codes: 0 ok, 1 not found, 2 usage, 3 unavailable, 4 deadline, 5 unknown
            outcome of a write, 6 bench --quick: latencies only, 130 interrupted
Environment: TIEDKV_CLUSTER (--cluster), TIEDKV_OUTPUT (-o), TIEDKV_TIED";

/// What the man page says behind the commands.
pub const AFTER: &str = "\
Exit codes: 0 ok; 1 not found, or what was to be checked does not hold; 2 usage; 3 unavailable; 4 deadline; 5 unknown
outcome of a write; 6 bench busy --quick: only relations of latencies do not hold; 130 interrupted.

Environment: TIEDKV_CLUSTER (--cluster), TIEDKV_OUTPUT (-o), TIEDKV_TIED (off, observe, on), NO_COLOR.";

/// Names the command nearest to one that does not exist, by letters changed, left out, added or swapped. `words`: what
/// was typed, with or without the name of the program.
pub fn name_nearest(
    mut error: clap::Error,
    command: &clap::Command,
    words: impl IntoIterator<Item = String>,
) -> clap::Error {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand)
    {
        // Of the commands that may stand in its place: `bench` has commands of its own.
        let before = words.into_iter().take_while(|word| word != typed);
        let level = before.fold(command, |level, word| level.find_subcommand(word).unwrap_or(level));
        // clap adds `help` itself, later; of equally near ones it is the harmless one.
        let names = ["help"].into_iter().chain(level.get_subcommands().map(clap::Command::get_name));
        let by_distance = names.map(|name| (strsim::osa_distance(name, typed), name));
        // Further away it is no misspelling.
        let near = |(distance, _): &(usize, &str)| *distance <= 2 && *distance < typed.chars().count();
        if let Some((_, name)) = by_distance.min_by_key(|(distance, _)| *distance).filter(near) {
            let nearest = ContextValue::Strings(vec![name.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, nearest);
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_help_fits_a_screen_and_shows_examples_and_every_command() {
        let mut command = Cli::command();
        for help in [command.render_long_help().to_string(), command.render_help().to_string()] {
            assert!(help.lines().count() <= 24, "{} lines:\n{help}", help.lines().count());
            assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
            assert!(help.contains("Examples:") && help.contains("Exit codes:"));
            let words: Vec<&str> = help.lines().skip(4).take(5).flat_map(str::split_whitespace).collect();
            for name in command.get_subcommands().map(clap::Command::get_name) {
                assert!(words.contains(&name), "{name} is missing:\n{help}");
            }
        }
    }

    #[test]
    fn what_stands_below_the_options_is_broken_where_it_is_written() {
        fn look(command: &clap::Command, path: &str) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            // Help is at most 100 wide; examples are lines of their own and may be broken.
            for line in text.lines().filter(|line| !line.starts_with(' ')) {
                assert!(line.chars().count() <= 98, "{path}: {line}");
            }
            for sub in command.get_subcommands() {
                look(sub, &format!("{path} {}", sub.get_name()));
            }
        }
        for sub in Cli::command().get_subcommands() {
            look(sub, sub.get_name());
        }
    }

    #[test]
    fn a_mistyped_command_names_the_nearest() {
        let told = |typed: &str| {
            let words: Vec<String> = format!("tiedkv {typed} key").split(' ').map(str::to_owned).collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            name_nearest(error, &Cli::command(), words).to_string()
        };
        let cases = [
            ("gte", "get"),
            ("mgte", "mget"),
            ("statsu", "status"),
            ("expotr", "export"),
            ("bench bysu", "busy"),
            ("hel", "help"),
        ];
        for (typed, meant) in cases {
            assert!(told(typed).contains(&format!("'{meant}'")), "{typed}: {}", told(typed));
        }
        assert!(!told("frobnicate").contains("similar"), "{}", told("frobnicate"));
    }
}
