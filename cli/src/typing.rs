//! How lines reach the shell: edited on a terminal, with history and completion, or read from whatever standard input is.

use crate::args::Cli;
use crate::recall::{LINES_MAX, Recall};
use crate::words::last_word;
use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::MemHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Editor, Helper};
use std::io::{BufRead, Read};
use std::sync::Arc;
use tiedkv_protocol::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Longest line: every byte of key and value as an escape, and room for the command.
const LINE_BYTES_MAX: u64 = 4 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) as u64 + 1024;
const PROMPT: &str = "tiedkv: ";

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
    /// A terminal, what was typed before, and what can be completed.
    Terminal(Recall, Arc<Commands>),
    /// Anything else: a pipe, a file.
    Input,
}

impl Typing {
    /// On a terminal.
    pub fn on_terminal(recall: Recall) -> Self {
        Self::Terminal(recall, Arc::new(Commands::known()))
    }

    /// The next line.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than any command.
    pub fn next(&mut self) -> Result<Typed> {
        match self {
            Self::Input => read_line(&mut std::io::stdin().lock()),
            Self::Terminal(recall, commands) => {
                let line = editor(recall, commands.clone()).and_then(|mut editor| editor.readline(PROMPT));
                match line {
                    Ok(line) => {
                        recall.write(&line);
                        Ok(Typed::Line(line))
                    }
                    Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Typed::GivenUp),
                    Err(ReadlineError::Eof) => Ok(Typed::End),
                    Err(error) => Err(error).context("the terminal"),
                }
            }
        }
    }
}

/// An editor for one line: for as long as it exists, SIGINT is its own.
fn editor(recall: &Recall, commands: Arc<Commands>) -> rustyline::Result<Editor<Completing, MemHistory>> {
    let config = Config::builder().max_history_size(LINES_MAX)?.completion_type(CompletionType::List).build();
    let history = MemHistory::with_config(&config);
    let mut editor = Editor::with_history(config, history)?;
    editor.set_helper(Some(Completing(commands)));
    for line in recall.lines() {
        editor.add_history_entry(line)?;
    }
    Ok(editor)
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

    /// The same as they would stand in the line: a word that is the only one is done, and a space follows.
    fn completed(&self, line: &str) -> (usize, Vec<String>) {
        let (from, words) = self.candidates(line);
        match words.as_slice() {
            [only] => (from, vec![format!("{only} ")]),
            all => (from, all.iter().map(|word| (*word).to_owned()).collect()),
        }
    }
}

/// Completes the words of a line; hints and colours nothing.
struct Completing(Arc<Commands>);

impl Completer for Completing {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &rustyline::Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.0.completed(line.get(..pos).unwrap_or(line)))
    }
}

impl Hinter for Completing {
    type Hint = String;
}

impl Highlighter for Completing {}

impl Validator for Completing {}

impl Helper for Completing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_flags_are_completed() {
        let commands = Commands::known();
        let completed = |line: &str| {
            let (from, words) = commands.completed(line);
            words.into_iter().map(|word| line[..from].to_owned() + &word).collect::<Vec<_>>()
        };
        assert_eq!(completed("sc"), ["scan "]);
        assert_eq!(completed("scan --pre"), ["scan --prefix "]);
        assert_eq!(completed("policy ej"), ["policy eject "]);
        assert_eq!(completed("help inc"), ["help incr "]);
        assert_eq!(completed("e"), ["export", "exit"]);
        assert!(commands.candidates("").1.contains(&"exit"));
        for hidden in ["start", "bench", "shell", "demo"] {
            assert!(!commands.candidates("").1.contains(&hidden), "{hidden}");
        }
        assert!(!commands.candidates("get --").1.contains(&"--cluster"));
        assert!(completed("nothing --").is_empty());
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
