//! The files of the work tree, as texts.

use std::fs;
use std::path::{Path, PathBuf};

/// One file: its path from the root of the repository, with `/`, and its text.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
}

impl File {
    /// True for files of which nothing is shipped.
    pub(super) fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.starts_with("protocol/fuzz/")
            || self.path.starts_with("benches/micro/")
            || self.path.ends_with("_test.rs")
            || self.path.rsplit('/').next().is_some_and(|name| name.starts_with("test_"))
    }

    /// The shipped lines with their numbers: no comments, and nothing from the test module on.
    pub(super) fn shipped_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let end = self.text.find("#[cfg(test)]\nmod ").unwrap_or(self.text.len());
        self.text[..end].lines().enumerate().filter_map(|(index, line)| {
            let code = line.split("//").next().unwrap_or_default();
            (!self.is_test() && !code.trim().is_empty()).then_some((index + 1, code))
        })
    }
}

/// The root of the repository.
pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All texts below the root whose names end in one of `endings`, without build products.
pub(super) fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    walk(&root(), "", endings, &mut found);
    assert!(found.len() > 3, "the work tree is not where it was expected");
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn walk(directory: &Path, prefix: &str, endings: &[&str], found: &mut Vec<File>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            if !["target", ".git", "corpus", "artifacts", "coverage"].contains(&name.as_str()) {
                walk(&entry.path(), &format!("{path}/"), endings, found);
            }
        } else if endings.iter().any(|ending| name.ends_with(ending)) {
            let text = fs::read_to_string(entry.path()).unwrap_or_else(|error| panic!("{path}: {error}"));
            found.push(File { path, text });
        }
    }
}

/// Fails with one line per complaint.
pub(super) fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// A made-up file, for planting.
pub(super) fn planted(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}
