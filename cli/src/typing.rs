//! How lines reach the shell: one by one from standard input, with a prompt if that is a terminal.

use anyhow::{Context, Result, bail};
use std::io::{BufRead, Read, Write};
use tiedkv_protocol::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Longest line: every byte of key and value as an escape, and room for the command.
const LINE_BYTES_MAX: u64 = 4 * (KEY_BYTES_MAX + VALUE_BYTES_MAX) as u64 + 1024;
const PROMPT: &str = "tiedkv> ";

/// What was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Typed {
    /// A line.
    Line(String),
    /// There are no more.
    End,
}

/// Where lines come from. Blocks while it waits.
pub enum Typing {
    /// A terminal.
    Terminal,
    /// Anything else: a pipe, a file.
    Input,
}

impl Typing {
    /// The next line.
    ///
    /// # Errors
    /// When it cannot be read, or is longer than any command.
    pub fn next(&mut self) -> Result<Typed> {
        if let Self::Terminal = self {
            let mut out = std::io::stdout().lock();
            out.write_all(PROMPT.as_bytes()).and_then(|()| out.flush()).context("the terminal")?;
        }
        read_line(&mut std::io::stdin().lock())
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

#[cfg(test)]
mod tests {
    use super::*;

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
