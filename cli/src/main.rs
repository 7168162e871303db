//! The `tiedkv` command. Parses, picks the command, turns its end into an exit code; one file per command.

mod args;
mod args_data;
mod base64;
mod bench_args;
mod bench_busy;
mod bench_ping;
mod bench_run;
mod bench_writes;
mod cas;
mod certs;
mod completions;
mod connect;
mod count;
mod del;
mod demo;
mod device_model;
mod environment;
mod escape;
mod export;
mod get;
mod health;
mod import;
mod incr;
mod lines;
mod member;
mod outcome;
mod output;
mod policy;
mod print_config;
mod progress;
mod put;
mod range;
mod scan;
mod signals;
mod slow;
mod start;
mod status;
mod ttl;
mod write;

use args::{Cli, Command, Format};
use bench_args::Bench;
use clap::Parser;
use outcome::{End, end_of, error_text};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap prints help by itself, and usage errors unless they are to be JSON: exit code 0 or 2.
        Err(error) if error.exit_code() == 0 || !asks_for_json(std::env::args()) => error.exit(),
        Err(error) => {
            let error = outcome::usage(anyhow::anyhow!(error.render().to_string().trim().to_owned()));
            eprintln!("{}", error_text(&error, Some(Format::Json)));
            return end_of(&error).into();
        }
    };
    let format = cli.output;
    match run(cli) {
        Ok(end) => end.into(),
        Err(error) => {
            eprintln!("{}", error_text(&error, format));
            end_of(&error).into()
        }
    }
}

/// Whether the command line, which could not be parsed, or the environment asks for JSON.
fn asks_for_json(arguments: impl Iterator<Item = String>) -> bool {
    let arguments: Vec<String> = arguments.collect();
    let joined = ["-ojson", "-o=json", "--output=json"];
    let apart = arguments.windows(2).any(|pair| matches!(pair[0].as_str(), "-o" | "--output") && pair[1] == "json");
    let named = apart || arguments.iter().any(|argument| joined.contains(&argument.as_str()));
    named || std::env::var("TIEDKV_OUTPUT").is_ok_and(|output| output == "json")
}

fn run(cli: Cli) -> anyhow::Result<End> {
    // A node also takes its settings from the environment and checks all names itself.
    if !matches!(cli.command, Command::Start(_)) {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        environment::check_names(names).map_err(outcome::usage)?;
    }
    let output = cli.output;
    if let Some(connect) = cli.command.connect().filter(|connect| connect.print_config) {
        return print_config::run(connect, output.unwrap_or(Format::Table));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match cli.command {
        Command::Demo(args) => runtime.block_on(demo::run(&args)),
        Command::Start(args) => start::run(&args, output.unwrap_or(Format::Table)),
        Command::Certs(args) => certs::run(&args, output.unwrap_or(Format::Table)),
        Command::Get(args) => runtime.block_on(get::run(&args, output.unwrap_or(Format::Raw))),
        Command::Put(args) => runtime.block_on(put::run(&args, output.unwrap_or(Format::Table))),
        Command::Cas(args) => runtime.block_on(cas::run(&args, output.unwrap_or(Format::Table))),
        Command::Del(args) => runtime.block_on(del::run(&args, output.unwrap_or(Format::Table))),
        Command::Scan(args) => runtime.block_on(scan::run(&args, output.unwrap_or(Format::Table))),
        Command::Count(args) => runtime.block_on(count::run(&args, output.unwrap_or(Format::Table))),
        Command::Export(args) => runtime.block_on(export::run(&args)),
        Command::Import(args) => runtime.block_on(import::run(&args, output.unwrap_or(Format::Table))),
        Command::Incr(args) => runtime.block_on(incr::run(&args, output.unwrap_or(Format::Table))),
        Command::Ttl(args) => runtime.block_on(ttl::run(&args, output.unwrap_or(Format::Table))),
        Command::Completions(args) => completions::run(&args),
        Command::Man => completions::man(),
        Command::Status(args) => runtime.block_on(status::run(&args, output.unwrap_or(Format::Table))),
        Command::Health(args) => runtime.block_on(health::run(&args, output.unwrap_or(Format::Table))),
        Command::Slow(args) => runtime.block_on(slow::run(&args, output.unwrap_or(Format::Table))),
        Command::Member(args) => runtime.block_on(member::run(&args, output.unwrap_or(Format::Table))),
        Command::Policy(args) => runtime.block_on(policy::run(&args, output.unwrap_or(Format::Table))),
        Command::Bench(Bench::Busy(args)) => runtime.block_on(bench_busy::run(&args)),
        Command::Bench(Bench::Ping(args)) => {
            runtime.block_on(bench_ping::run(&args, output.unwrap_or(Format::Table)))
        }
        Command::Bench(Bench::Writes(args)) => {
            runtime.block_on(bench_writes::run(&args, output.unwrap_or(Format::Table)))
        }
        Command::Bench(Bench::Run(args)) => {
            runtime.block_on(bench_run::run(&args, output.unwrap_or(Format::Table)))
        }
    }
}
