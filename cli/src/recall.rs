//! What was typed in the shell before: in memory, and in a file of the user's own between two shells.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Lines that are kept.
pub const LINES_MAX: usize = 1_000;
/// Longest line that is kept.
const LINE_BYTES_MAX: usize = 4_096;

/// Lines, newest first.
#[derive(Debug, Default)]
pub struct Recall {
    lines: VecDeque<String>,
    file: Option<File>,
}

impl Recall {
    /// That of a file, which is made for its owner's eyes if it is not there, and cut if it is long.
    ///
    /// # Errors
    /// When the file cannot be used.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
        let mut text = String::new();
        (&mut file).take((2 * LINES_MAX * LINE_BYTES_MAX) as u64).read_to_string(&mut text)?;
        let mut recall = Self::default();
        text.lines().for_each(|line| recall.add(line));
        if text.lines().count() > 2 * LINES_MAX {
            file.set_len(0)?;
            let kept: Vec<&str> = recall.lines.iter().rev().map(String::as_str).collect();
            file.write_all((kept.join("\n") + "\n").as_bytes())?;
        }
        Ok(Self { file: Some(file), ..recall })
    }

    fn add(&mut self, line: &str) {
        if self.lines.front().is_none_or(|newest| newest != line) {
            self.lines.push_front(line.to_owned());
            self.lines.truncate(LINES_MAX);
        }
    }

    /// All lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().rev().map(String::as_str)
    }

    /// Keeps a line, but for one that begins with a space, is empty or very long.
    pub fn write(&mut self, line: &str) {
        if line.is_empty() || line.starts_with(' ') || line.len() > LINE_BYTES_MAX {
            return;
        }
        self.add(line);
        if let Some(file) = &mut self.file
            && let Err(error) = file.write_all(format!("{line}\n").as_bytes())
        {
            eprintln!("tiedkv: the history is kept in memory only: {error}");
            self.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn lines_come_back_in_the_next_shell_and_secrets_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let mut recall = Recall::of(&path).unwrap();
        for line in ["get a", "get b", "get b", " put password x", ""] {
            recall.write(line);
        }
        let again = Recall::of(&path).unwrap();
        for recall in [recall, again] {
            assert_eq!(recall.lines().collect::<Vec<_>>(), ["get a", "get b"]);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let long: String = (0..5_000).map(|number| format!("get {number}\n")).collect();
        std::fs::write(&path, long).unwrap();
        assert_eq!(Recall::of(&path).unwrap().lines().last(), Some("get 4999"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), LINES_MAX);
        assert!(Recall::of(folder.path()).is_err());
    }
}
