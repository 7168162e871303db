//! Results on standard output: one JSON document, columns for people, or a value's bytes.

use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Write};

/// Who read standard output has closed it, as `head` does. A type of its own, since a connection can break with the
/// same error.
#[derive(Debug, thiserror::Error)]
#[error("standard output: nobody reads it any more")]
pub struct ReaderGone;

/// Whether a command ended because nobody reads what it prints.
pub fn reader_is_gone(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ReaderGone>().is_some()
}

/// Prints one JSON document and a line end.
///
/// # Errors
/// When standard output is closed.
pub fn json(value: &Value) -> Result<()> {
    bytes(format!("{value:#}\n").as_bytes())
}

/// Prints `name: value` lines, names padded to one width.
///
/// # Errors
/// When standard output is closed.
pub fn pairs(pairs: &[(&str, String)]) -> Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: String = pairs.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    bytes(lines.as_bytes())
}

/// Prints bytes as they are.
///
/// # Errors
/// When standard output is closed: [`ReaderGone`] if it was a pipe.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(ReaderGone.into()),
        written => written.context("standard output"),
    }
}

/// Bytes that are held back before they are written.
const LINES_BYTES: usize = 64 * 1024;

/// Many lines, written in large pieces: to standard output or a file.
pub struct Lines {
    held: Vec<u8>,
    file: Option<File>,
}

impl Lines {
    /// To standard output.
    pub fn new() -> Self {
        Self { held: Vec::with_capacity(2 * LINES_BYTES), file: None }
    }

    /// To a file, at its place.
    pub fn to(file: File) -> Self {
        Self { file: Some(file), ..Self::new() }
    }

    /// Adds what `write` appends.
    ///
    /// # Errors
    /// When the output is closed or full.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        write(&mut self.held);
        if self.held.len() >= LINES_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes what is held back; a file is on disk then.
    ///
    /// # Errors
    /// As [`Lines::add`].
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.file.map_or(Ok(()), |file| file.sync_all().context("the file"))
    }

    fn flush(&mut self) -> Result<()> {
        match &mut self.file {
            Some(file) => file.write_all(&self.held).context("the file")?,
            None => bytes(&self.held)?,
        }
        self.held.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reader_of_standard_output_is_meant() {
        assert!(reader_is_gone(&anyhow::Error::from(ReaderGone).context("line 3")));
        let connection = anyhow::Error::from(std::io::Error::from(ErrorKind::BrokenPipe));
        assert!(!reader_is_gone(&connection.context("standard output")));
    }
}
