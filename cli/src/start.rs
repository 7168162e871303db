//! `tiedkv start`: runs one node until it is told to stop.
//!
//! Flags are the server's table of settings, one flag per setting; layers (defaults, file, environment, flags) are
//! the server's business.

use crate::args::{Format, Start};
use crate::environment;
use crate::outcome::{End, usage};
use crate::output;
use crate::signals::Signals;
use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use serde_json::json;
use std::io::IsTerminal;
use std::sync::LazyLock;
use tiedkv_server::config::{Config, ConfigBuilder, ConfigError, Row, SETTINGS};
use tiedkv_server::error::NodeError;
use tiedkv_server::node::Node;
use tokio::sync::oneshot;

/// The settings' names as flags: `queue-max`.
static LONG_NAMES: LazyLock<Vec<String>> =
    LazyLock::new(|| SETTINGS.iter().map(|setting| setting.name.replace('_', "-")).collect());

/// One flag per setting of a node, by the setting's name, in the order of the table.
#[derive(Clone, Debug, Default)]
pub struct NodeFlags(Vec<(&'static str, Vec<String>)>);

impl clap::FromArgMatches for NodeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = SETTINGS.iter().filter(|setting| {
            matches.value_source(setting.name).is_some_and(|source| source == ValueSource::CommandLine)
        });
        let values = |name| matches.get_many::<String>(name).into_iter().flatten().cloned().collect();
        Ok(Self(given.map(|setting| (setting.name, values(setting.name))).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for NodeFlags {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().zip(LONG_NAMES.iter()).fold(command, |command, (setting, long)| {
            let default = if setting.default.is_empty() { "none" } else { setting.default };
            let flag = Arg::new(setting.name)
                .long(long.as_str())
                .value_name("VALUE")
                .action(clap::ArgAction::Append)
                .help_heading("Settings")
                .help(format!("{} [default: {default}]", setting.help.trim()));
            command.arg(flag)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Runs the command.
///
/// # Errors
/// When the settings are wrong or the node does not start.
pub fn run(args: &Start, format: Format) -> Result<End> {
    let config = config(args).map_err(usage)?;
    if args.print_config {
        return print(&config, format);
    }
    start_log();
    frugal_heap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(config, args.until_stdin_closes))
}

/// Keeps glibc from holding on to memory that is free. It gives each busy thread a heap of its own and keeps what is
/// freed in it, while a node's threads hand memory to each other all the time; two heaps are enough, their lock was
/// never seen in a profile. And after one large block is freed, blocks up to that size come from the heaps and leave
/// holes there: a node that merged tables held 20 MiB more ever after. A threshold that is set does not move.
fn frugal_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (option, value) in [(libc::M_ARENA_MAX, 2), (libc::M_MMAP_THRESHOLD, 128 << 10)] {
        // SAFETY: mallopt only sets a number; it is called before the node's threads are made.
        let set = unsafe { libc::mallopt(option, value) };
        if set == 0 {
            tracing::debug!(option, "the heap stays as it is");
        }
    }
}

async fn serve(config: Config, until_stdin_closes: bool) -> Result<End> {
    let mut signals = Signals::listen()?;
    let node = Node::start(config).map_err(sort)?;
    let closed = stdin_closed(until_stdin_closes);
    tokio::select! {
        () = signals.next() => {}
        why = node.failed() => {
            // Ends at once: what is not acknowledged must not be.
            drop(node);
            bail!("this node cannot go on: {why}");
        }
        () = closed => {
            // The parent is gone, and with it whoever could wait for answers.
            tracing::info!("standard input closed: stopping at once");
            return Ok(End::Ok);
        }
    }
    let (stopped, report) = oneshot::channel();
    std::thread::Builder::new().name("tiedkv-stop".to_owned()).spawn(move || stopped.send(node.stop()))?;
    tokio::select! {
        // The thread ends with its report; an end without one is as unclean as threads that did not end.
        report = report => Ok(if report.is_ok_and(|report| report.threads_ended) { End::Ok } else { End::Unavailable }),
        () = signals.next() => Ok(End::Interrupted),
    }
}

/// Ends when standard input does; never if it is not to be watched.
async fn stdin_closed(watched: bool) {
    if !watched {
        return std::future::pending().await;
    }
    let (closed, seen) = oneshot::channel();
    let watch = move || {
        // What is written to it is thrown away; an error is as good as an end.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = closed.send(());
    };
    if let Err(error) = std::thread::Builder::new().name("tiedkv-stdin".to_owned()).spawn(watch) {
        tracing::warn!(%error, "standard input cannot be watched");
        return std::future::pending().await;
    }
    let _ = seen.await;
}

/// What the operator can mend by other settings is a usage error.
fn sort(error: NodeError) -> anyhow::Error {
    match error {
        NodeError::Thread { .. } | NodeError::Path(_) | NodeError::Storage(_) => error.into(),
        _ => usage(error),
    }
}

/// Log lines go to standard error; `RUST_LOG` chooses which.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env();
    let filter = filter.unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,openraft=warn,quinn=warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Fails only if a log was set up already.
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let _ = log.with_ansi(std::io::stderr().is_terminal() && !plain).try_init();
}

fn config(args: &Start) -> Result<Config, ConfigError> {
    let mut builder = ConfigBuilder::new();
    if let Some(path) = &args.config {
        builder = builder.file(path)?;
    }
    let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    let variables = variables.map(|(name, value)| (name, value.to_string_lossy().into_owned()));
    builder = builder.environment(variables, &environment::NAMES)?;
    for (name, values) in &args.settings.0 {
        for value in values {
            builder = builder.flag(name, value)?;
        }
    }
    builder.build()
}

fn print(config: &Config, format: Format) -> Result<End> {
    if format == Format::Json {
        let row = |row: &Row| {
            let (source, default) = (row.source.to_string(), row.default);
            json!({ "name": row.name, "value": row.value, "source": source, "default": default })
        };
        output::json(&json!({ "settings": config.explain().iter().map(row).collect::<Vec<_>>() }))?;
        return Ok(End::Ok);
    }
    for row in config.explain() {
        let default = if row.default.is_empty() { "none".to_owned() } else { format!("`{}`", row.default) };
        let line = format!("{} = `{}`  ({}; default {default})\n", row.name, row.value, row.source);
        output::bytes(line.as_bytes())?;
    }
    Ok(End::Ok)
}
