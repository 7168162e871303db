//! `tiedkv start`: runs one node until it is told to stop.
//!
//! Flags are the server's table of settings, one flag per setting; layers (defaults, file, environment, flags) are
//! the server's business.

use crate::args::Start;
use crate::environment;
use crate::outcome::{End, usage};
use crate::output;
use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::sync::LazyLock;
use tiedkv_server::config::{Config, ConfigBuilder, ConfigError, SETTINGS};

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
pub fn run(args: &Start) -> Result<End> {
    let config = config(args).map_err(usage)?;
    if args.print_config {
        return print(&config);
    }
    bail!("not yet")
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

fn print(config: &Config) -> Result<End> {
    for row in config.explain() {
        let default = if row.default.is_empty() { "none".to_owned() } else { format!("`{}`", row.default) };
        let line = format!("{} = `{}`  ({}; default {default})\n", row.name, row.value, row.source);
        output::bytes(line.as_bytes())?;
    }
    Ok(End::Ok)
}
