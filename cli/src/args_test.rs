//! The definition of the command line: sound, with examples, near misses named.

use super::*;
use clap::CommandFactory;

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_shows_examples() {
    let mut whole = Cli::command();
    for command in whole.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        if command.has_subcommands() && command.get_name() == "bench" {
            let inner: Vec<String> =
                command.get_subcommands_mut().map(|inner| inner.render_help().to_string()).collect();
            assert!(inner.iter().all(|help| help.contains("Example")), "{inner:?}");
        } else {
            let help = command.render_help().to_string();
            assert!(help.contains("Example"), "{}: {help}", command.get_name());
        }
    }
}

#[test]
fn a_wrong_flag_names_the_nearest() {
    let error = Cli::try_parse_from(["tiedkv", "demo", "--scene", "none"]).unwrap_err().to_string();
    assert!(error.contains("--scenes"), "{error}");
}

#[test]
fn bench_run_takes_one_kind_of_call_or_a_mix() {
    let parse = |words: &[&str]| Cli::try_parse_from(["tiedkv", "bench", "run"].iter().chain(words));
    assert!(parse(&["--op", "put", "--concurrency", "64", "--duration", "10s", "--json", "file"]).is_ok());
    assert!(parse(&["--mix", "get=9,put=1"]).is_ok());
    assert!(parse(&["--op", "get", "--mix", "get=9,put=1"]).is_err());
    let error = parse(&["--op", "puts"]).unwrap_err().to_string();
    assert!(error.contains("get, multi_get, put or scan"), "{error}");
}
