//! `tiedkv shell`: commands typed one after another over one client, which is one session.
//!
//! Lines become words in [`crate::words`], are typed in [`crate::typing`], and run where the commands of the command
//! line run; nothing is defined twice.

use crate::args::{Cli, Command, Format};
use crate::args_live::Shell;
use crate::connect::connect;
use crate::help::name_nearest;
use crate::outcome::{End, error_text, usage};
use crate::output::reader_is_gone;
use crate::recall::Recall;
use crate::signals::Signals;
use crate::typing::{Typed, Typing};
use crate::words;
use anyhow::{Context, Result, anyhow};
use clap::{CommandFactory, Parser};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tiedkv_client::Client;

/// Commands of the command line that make no sense over one connection.
const REFUSED: [&str; 8] = ["demo", "start", "certs", "bench", "shell", "completions", "man", "watch-latency"];

/// Whether the shell takes a command.
pub fn takes(name: &str) -> bool {
    !REFUSED.contains(&name)
}

/// Runs the command.
///
/// # Errors
/// When no node answers at first, or, without a terminal, when a line fails.
pub async fn run(args: &Shell, format: Option<Format>) -> Result<End> {
    let client = connect(&args.connect).await?;
    let terminal = std::io::stdin().is_terminal();
    let mut typing = match terminal {
        true => Typing::on_terminal(recall(args)),
        false => Typing::Input,
    };
    if terminal {
        println!("connected to cluster {}; help lists the commands, Tab completes, exit ends", client.cluster());
    }
    let shell = Lines { client: &client, url: args.connect.cluster.clone(), format, terminal };
    let mut signals = Signals::listen()?;
    let settings = Settings::now();
    let mut number = 0_u64;
    let end = loop {
        // Reading blocks; the connections need the runtime meanwhile.
        let mut reading = tokio::task::spawn_blocking(move || {
            let typed = typing.next();
            (typing, typed)
        });
        let read = tokio::select! {
            read = &mut reading => read,
            // From elsewhere: while a line is edited Ctrl-C is a key, which ends the line alone. The thread that reads cannot be
            // stopped, and nothing is lost with it but the terminal's settings.
            () = signals.next() => {
                settings.restore();
                std::process::exit(i32::from(End::Interrupted as u8));
            }
        };
        let read = read.context("reading a line")?;
        let typed_line = read.1;
        typing = read.0;
        number += 1;
        let line = match typed_line.map_err(usage)? {
            Typed::End => break Ok(End::Ok),
            Typed::GivenUp => continue,
            Typed::Line(line) => line,
        };
        let ended = tokio::select! {
            ended = shell.line(&line) => ended,
            () = signals.next() => Ok(Some(End::Interrupted)),
        };
        match ended {
            Ok(None) => break Ok(End::Ok),
            Ok(Some(End::Interrupted)) if terminal => eprintln!("interrupted"),
            Ok(Some(End::Ok | End::NotFound)) => {}
            Ok(Some(_)) if terminal => {}
            Ok(Some(end)) => break Ok(end),
            Err(error) if reader_is_gone(&error) => break Err(error),
            Err(error) if terminal => eprintln!("{}", error_text(&error, format)),
            Err(error) => break Err(error).with_context(|| format!("line {number}")),
        }
    };
    client.close();
    end
}

/// Those of the terminal, if there is one: an editor that is cut off leaves its own.
struct Settings(Option<Termios>);

impl Settings {
    fn now() -> Self {
        Self(tcgetattr(std::io::stdin()).ok())
    }

    fn restore(&self) {
        if let Some(settings) = &self.0 {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, settings);
        }
    }
}

/// What every line is run with.
struct Lines<'a> {
    client: &'a Client,
    url: Option<String>,
    format: Option<Format>,
    terminal: bool,
}

impl Lines<'_> {
    /// Runs one line; `None` when it asks for the end.
    ///
    /// # Errors
    /// As the command that it holds.
    async fn line(&self, line: &str) -> Result<Option<End>> {
        let words = words::split(line).map_err(usage)?;
        match words.first().map(String::as_str) {
            None => return Ok(Some(End::Ok)),
            Some(first) if first.starts_with('#') => return Ok(Some(End::Ok)),
            Some("exit" | "quit") => return Ok(None),
            Some("help") => return help(words.get(1)).map(|()| Some(End::Ok)),
            Some(first) if !takes(first) => {
                return Err(usage(anyhow!("`{first}` is not for the shell: run tiedkv {first}")));
            }
            Some(_) => {}
        }
        let typed: Vec<String> = std::iter::once("tiedkv".to_owned()).chain(words).collect();
        let parsed = Cli::try_parse_from(&typed).map_err(|error| name_nearest(error, &Cli::command(), typed));
        let mut cli = match parsed {
            Ok(cli) => cli,
            // Help that was asked for.
            Err(error) if error.exit_code() == 0 => {
                return error.print().map(|()| Some(End::Ok)).map_err(Into::into);
            }
            Err(error) => return Err(usage(anyhow!(error.render().to_string().trim().to_owned()))),
        };
        self.check(&cli.command)?;
        if let Some(connect) = cli.command.connect_mut() {
            let own = std::env::var("TIEDKV_CLUSTER").ok();
            if connect.cluster.is_some() && connect.cluster != own && connect.cluster != self.url {
                return Err(usage(anyhow!("the shell is connected already: --cluster has no place in it")));
            }
            connect.cluster.clone_from(&self.url);
            connect.shared = Some(self.client.clone());
        }
        // A value without a line end would share its line with the next prompt.
        cli.output = cli.output.or(self.format).or(self.terminal.then_some(Format::Table));
        Box::pin(crate::dispatch(cli)).await.map(Some)
    }

    /// Standard input is where the lines come from: no command may read it.
    fn check(&self, command: &Command) -> Result<()> {
        let dash = |file: &Option<PathBuf>| file.as_deref().is_none_or(|file| file == Path::new("-"));
        let what = match command {
            Command::Put(put) if put.value.is_none() => "put needs its value as an argument",
            Command::Cas(cas) if cas.value.is_none() && !cas.delete => "cas needs its value as an argument",
            Command::Import(import) if dash(&import.file) => "import needs a file",
            Command::Mget(mget) if mget.keys.iter().any(|key| key == "-") => "mget needs its keys as arguments",
            _ => return Ok(()),
        };
        let why = if self.terminal { "commands are typed there" } else { "the commands come from there" };
        Err(usage(anyhow!("in the shell {what}: standard input is taken, {why}")))
    }
}

/// Prints the help of one command, or what there is.
fn help(name: Option<&String>) -> Result<()> {
    let mut whole = Cli::command();
    whole.build();
    let text = match name {
        Some(name) => {
            let command = whole.find_subcommand_mut(name).filter(|command| takes(command.get_name()));
            command.with_context(|| format!("no command `{name}`")).map_err(usage)?.render_help().to_string()
        }
        None => {
            let usable = whole.get_subcommands().filter(|command| takes(command.get_name()));
            let line = |command: &clap::Command| {
                format!("  {:<10} {}\n", command.get_name(), command.get_about().unwrap_or_default())
            };
            let lines: String = usable.filter(|command| command.get_name() != "help").map(line).collect();
            lines + "  help       This list, or more about one command: help scan\n  exit       Leave\n"
        }
    };
    crate::output::bytes(text.as_bytes())
}

/// What was typed before, if lines are to be kept. A file that cannot be used is said: lines work without it.
fn recall(args: &Shell) -> Recall {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|folder| Path::new(folder).is_dir());
    let default = || match state {
        Some(folder) => Some(PathBuf::from(folder).join("tiedkv-history")),
        None => std::env::home_dir().map(|home| home.join(".tiedkv-history")),
    };
    let path = if args.no_history { None } else { args.history.clone().or_else(default) };
    path.map(|path| (Recall::of(&path), path)).map_or_else(Recall::default, |(recall, path)| {
        recall.unwrap_or_else(|error| {
            eprintln!("tiedkv: no history in {}: {error}", path.display());
            Recall::default()
        })
    })
}
