//! How lines reach the shell: edited on a terminal, with history and completion, or read from whatever standard input is.

use crate::args::Cli;
use crate::words::last_word;
use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Editor, Helper};
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};
use tiedkv_protocol::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Lines that the history keeps.
const HISTORY_LINES_MAX: usize = 1_000;
/// Longest line: every byte of key and value as an escape, and room for the command.
const LINE_BYTES_MAX: u64 = 4 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) as u64 + 1024;
const PROMPT: &str = "tiedkv> ";

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// A line.
    Line(String),
    /// The line was given up (Ctrl-C).
    GivenUp,
    /// There are no more.
    End,
}

/// Where lines come from. Blocks while it waits.
pub enum Typing {
    /// A terminal.
    Terminal(Box<Editor<Commands, FileHistory>>, Option<PathBuf>),
    /// Anything else: a pipe, a file.
    Input,
}

impl Typing {
    /// On a terminal; lines are kept in `history`.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn on_terminal(history: Option<PathBuf>) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES_MAX)
            .context("history")?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .auto_add_history(true)
            .build();
        let lines = FileHistory::with_config(&config);
        let mut editor = Editor::with_history(config, lines).context("the terminal")?;
        editor.set_helper(Some(Commands::known()));
        let mut typing = Self::Terminal(Box::new(editor), history);
        typing.keep(|editor, path| if path.exists() { editor.load_history(path) } else { Ok(()) });
        Ok(typing)
    }

    /// The next line.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than any command.
    pub fn next(&mut self) -> Result<Typed> {
        match self {
            Self::Input => read_line(&mut std::io::stdin().lock()),
            Self::Terminal(editor, _) => match editor.readline(PROMPT) {
                Ok(line) => {
                    self.keep(|editor, path| editor.append_history(path));
                    Ok(Typed::Line(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Typed::GivenUp),
                Err(ReadlineError::Eof) => Ok(Typed::End),
                Err(error) => Err(error).context("the terminal"),
            },
        }
    }

    /// Reads or writes the history's file. One that cannot be used is said once: lines work without it.
    fn keep(&mut self, with: impl FnOnce(&mut Editor<Commands, FileHistory>, &Path) -> rustyline::Result<()>) {
        if let Self::Terminal(editor, kept @ Some(_)) = self
            && let Some(path) = kept.take()
        {
            match with(editor, &path) {
                Ok(()) => *kept = Some(path),
                Err(error) => eprintln!("tiedkv: no history in {}: {error}", path.display()),
            }
        }
    }
}

fn read_line(input: &mut impl BufRead) -> Result<Typed> {
    let mut line = Vec::new();
    let read = input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).context("standard input")?;
    if read == 0 {
        return Ok(Typed::End);
    }
    if read as u64 == LINE_BYTES_MAX {
        bail!("a line is longer than any command");
    }
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    let text = std::str::from_utf8(line).context("a line is no UTF-8: write such bytes as \\xNN")?;
    Ok(Typed::Line(text.to_owned()))
}

/// What can be completed: commands, and the flags and commands of each.
pub struct Commands {
    commands: Vec<(String, Vec<String>)>,
}

impl Commands {
    /// Those of the command line that work in the shell.
    fn known() -> Self {
        let whole = Cli::command();
        let usable = whole.get_subcommands().filter(|command| crate::shell::takes(command.get_name()));
        let mut commands: Vec<_> = usable
            .map(|command| {
                let inner = command.get_subcommands().map(|inner| inner.get_name().to_owned());
                let flags = command.get_arguments().filter(|argument| argument.get_id() != "cluster");
                let flags = flags.filter_map(|argument| argument.get_long()).map(|long| format!("--{long}"));
                (command.get_name().to_owned(), inner.chain(flags).collect())
            })
            .collect();
        commands.extend(["help", "exit"].map(|name| (name.to_owned(), Vec::new())));
        Self { commands }
    }

    /// What the word at the end of `line` may become, and where it begins.
    fn candidates(&self, line: &str) -> (usize, Vec<&str>) {
        let (before, from) = last_word(line);
        let all: Vec<&str> = match before.first() {
            None | Some(&"help") => self.commands.iter().map(|(name, _)| name.as_str()).collect(),
            Some(first) => {
                let own = self.commands.iter().find(|(name, _)| name == first);
                own.map(|(_, words)| words.iter().map(String::as_str).collect()).unwrap_or_default()
            }
        };
        (from, all.into_iter().filter(|word| word.starts_with(&line[from..])).collect())
    }
}

impl Completer for Commands {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (from, words) = self.candidates(line.get(..position).unwrap_or(line));
        let pair = |word: &str| Pair { display: word.to_owned(), replacement: format!("{word} ") };
        Ok((from, words.into_iter().map(pair).collect()))
    }
}

impl Helper for Commands {}
impl Highlighter for Commands {}
impl Hinter for Commands {
    type Hint = String;
}
impl Validator for Commands {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_flags_are_completed() {
        let commands = Commands::known();
        assert_eq!(commands.candidates("sc"), (0, vec!["scan"]));
        assert_eq!(commands.candidates("scan --pre"), (5, vec!["--prefix"]));
        assert_eq!(commands.candidates("policy ej"), (7, vec!["eject"]));
        assert_eq!(commands.candidates("help inc"), (5, vec!["incr"]));
        assert!(commands.candidates("").1.contains(&"exit"));
        for hidden in ["start", "bench", "shell", "demo"] {
            assert!(!commands.candidates("").1.contains(&hidden), "{hidden}");
        }
        assert!(!commands.candidates("get --").1.contains(&"--cluster"));
        assert_eq!(commands.candidates("nothing --"), (8, vec![]));
    }

    #[test]
    fn lines_of_a_pipe_are_read_one_by_one() {
        let mut input = &b"get a\n\nlast"[..];
        let mut line = || read_line(&mut input).unwrap();
        assert_eq!(line(), Typed::Line("get a".into()));
        assert_eq!(line(), Typed::Line(String::new()));
        assert_eq!(line(), Typed::Line("last".into()));
        assert_eq!(line(), Typed::End);
        assert!(read_line(&mut &b"\xff\n"[..]).unwrap_err().to_string().contains("\\xNN"));
    }
}
