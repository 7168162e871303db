//! The `tiedkv` command. Parses, picks the command, turns its end into an exit code; one file per command.

mod args;
mod args_data;
mod args_live;
mod base64;
mod bench_args;
mod bench_busy;
mod bench_data;
mod bench_levels;
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
mod figures;
mod get;
mod health;
mod help;
mod huge_pages;
mod import;
mod incr;
mod lines;
mod member;
mod mget;
mod outcome;
mod output;
mod policy;
mod print_config;
mod progress;
mod put;
mod range;
mod recall;
mod scan;
mod shell;
mod signals;
mod slow;
mod start;
mod status;
mod ttl;
mod typing;
mod watch_latency;
mod watched;
mod words;
mod write;

use args::{Cli, Command, Format};
use bench_args::Bench;
use clap::{CommandFactory, Parser};
use outcome::{End, end_of, error_text};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: huge_pages::HugePages = huge_pages::HugePages;

fn main() -> ExitCode {
    let cli = match Cli::try_parse().map_err(|error| help::name_nearest(error, &Cli::command(), typed())) {
        Ok(cli) => cli,
        // clap prints help by itself, and usage errors unless they are to be JSON: exit code 0 or 2.
        Err(error) if error.exit_code() == 0 || !asked_for_json() => error.exit(),
        Err(error) => {
            let error = outcome::usage(anyhow::anyhow!(error.render().to_string().trim().to_owned()));
            eprintln!("{}", error_text(&error, Some(Format::Json)));
            return end_of(&error).into();
        }
    };
    let format = cli.output;
    match run(cli) {
        Ok(end) => end.into(),
        // Who read has seen enough: no failure, and nobody is left to be told.
        Err(error) if output::reader_is_gone(&error) => End::Ok.into(),
        Err(error) => {
            eprintln!("{}", error_text(&error, format));
            end_of(&error).into()
        }
    }
}

/// The command line; what is no UTF-8 in it is replaced, for it names no command and no flag.
fn typed() -> impl Iterator<Item = String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned())
}

/// Whether the command line, which could not be parsed, asks for JSON; the environment has a say if no flag has.
fn asked_for_json() -> bool {
    let words: Vec<String> = typed().take_while(|word| word != "--").collect();
    let environment = std::env::var("TIEDKV_OUTPUT").ok();
    typed_form(&words).or(environment.as_deref()) == Some("json")
}

/// The form that a flag names.
fn typed_form(words: &[String]) -> Option<&str> {
    words.iter().enumerate().find_map(|(at, word)| {
        if matches!(word.as_str(), "-o" | "--output") {
            return words.get(at + 1).map(String::as_str);
        }
        let short = word.strip_prefix("-o").map(|form| form.strip_prefix('=').unwrap_or(form));
        word.strip_prefix("--output=").or(short)
    })
}

/// Whether rows flow through a pipe while the command runs.
fn flows(command: &Command) -> bool {
    matches!(command, Command::Scan(_) | Command::Export(_) | Command::Import(_) | Command::Shell(_))
}

fn run(cli: Cli) -> anyhow::Result<End> {
    // A node also takes its settings from the environment and checks all names itself.
    if !matches!(cli.command, Command::Start(_)) {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        environment::check_names(names).map_err(outcome::usage)?;
    }
    if let Command::Start(args) = &cli.command {
        return start::run(args, cli.output.unwrap_or(Format::Table));
    }
    // Reading and writing a pipe blocks the main thread for as long as the other side likes; the connections must
    // live on meanwhile, on a thread of their own. The other commands read before they connect, and write little or
    // after their answer: one thread is the least to wait for.
    let mut builder = match flows(&cli.command) {
        true => tokio::runtime::Builder::new_multi_thread(),
        false => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = builder.worker_threads(1).enable_all().build()?;
    let end = runtime.block_on(dispatch(cli));
    // A thread that reads standard input may never come back.
    runtime.shutdown_background();
    end
}

/// Runs a command that was typed: on the command line, or in the shell.
///
/// # Errors
/// As the command.
async fn dispatch(mut cli: Cli) -> anyhow::Result<End> {
    let output = cli.output;
    if let Some(connect) = cli.command.connect_mut().filter(|connect| connect.print_config) {
        return print_config::run(connect, output.unwrap_or(Format::Table));
    }
    let table = output.unwrap_or(Format::Table);
    match cli.command {
        Command::Demo(args) => demo::run(&args, table).await,
        Command::Start(_) => Err(outcome::usage(anyhow::anyhow!("a node is started by tiedkv start alone"))),
        Command::Certs(args) => certs::run(&args, table),
        Command::Get(args) => get::run(&args, output.unwrap_or(Format::Raw)).await,
        Command::Mget(args) => mget::run(&args, table).await,
        Command::Put(args) => put::run(&args, table).await,
        Command::Cas(args) => cas::run(&args, table).await,
        Command::Del(args) => del::run(&args, table).await,
        Command::Scan(args) => scan::run(&args, table).await,
        Command::Count(args) => count::run(&args, table).await,
        Command::Export(args) => export::run(&args).await,
        Command::Import(args) => import::run(&args, table).await,
        Command::Incr(args) => incr::run(&args, table).await,
        Command::Ttl(args) => ttl::run(&args, table).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man => completions::man(),
        Command::Status(args) => status::run(&args, table).await,
        Command::Health(args) => health::run(&args, table).await,
        Command::Slow(args) => slow::run(&args, table).await,
        Command::WatchLatency(args) => watch_latency::run(&args, table).await,
        Command::Shell(args) => shell::run(&args, output).await,
        Command::Member(args) => member::run(&args, table).await,
        Command::Policy(args) => policy::run(&args, table).await,
        Command::Bench(Bench::Busy(args)) => bench_busy::run(&args, table).await,
        Command::Bench(Bench::Ping(args)) => bench_ping::run(&args, table).await,
        Command::Bench(Bench::Levels(args)) => bench_levels::run(&args, table).await,
        Command::Bench(Bench::Writes(args)) => bench_writes::run(&args, table).await,
        Command::Bench(Bench::Data(args)) => bench_data::run(&args, table).await,
        Command::Bench(Bench::Run(args)) => bench_run::run(&args, table).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_that_is_typed_is_found_in_every_spelling() {
        for (line, form) in [
            ("tiedkv got a -o json", Some("json")),
            ("tiedkv -o table got a", Some("table")),
            ("tiedkv -ojson got", Some("json")),
            ("tiedkv -o=raw got", Some("raw")),
            ("tiedkv --output json got", Some("json")),
            ("tiedkv --output=table got", Some("table")),
            ("tiedkv got --other json", None),
            ("tiedkv got -o", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(typed_form(&words), form, "{line}");
        }
    }
}
