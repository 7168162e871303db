//! The files of the work tree, as texts.

use std::fs;
use std::path::{Path, PathBuf};

/// One file: its path from the root of the repository, with `/`, and its text.
pub(super) struct File {
    pub(super) path: String,
    pub(super) text: String,
    /// Declared below `#[cfg(test)]` by the file that holds its module.
    test_only: bool,
}

impl File {
    /// True for files of which nothing is shipped.
    pub(super) fn is_test(&self) -> bool {
        self.test_only
            || self.path.starts_with("tests/")
            || self.path.starts_with("protocol/fuzz/")
            || self.path.starts_with("benches/micro/")
            || self.path.ends_with("_test.rs")
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
    let test_only: Vec<String> = found.iter().flat_map(|file| test_modules(&file.path, &file.text)).collect();
    for file in &mut found {
        file.test_only = test_only.contains(&file.path);
    }
    found
}

/// Files of the modules that a `lib.rs`, `main.rs` or `mod.rs` declares for tests only.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let Some((folder, _)) = path.rsplit_once('/') else { return Vec::new() };
    let declared = text.split("#[cfg(test)]\n").skip(1).filter_map(|rest| {
        let line = rest.lines().next()?.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(|name| format!("{folder}/{name}.rs")).collect()
}

#[test]
fn modules_for_tests_are_found_by_their_declaration() {
    let text =
        "pub mod a;\n#[cfg(test)]\nmod b;\n#[cfg(test)]\npub(crate) mod c;\n#[cfg(test)]\nmod d { }\nmod e;\n";
    assert_eq!(test_modules("server/src/lib.rs", text), ["server/src/b.rs", "server/src/c.rs"]);
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
            found.push(File { path, text, test_only: false });
        }
    }
}

/// Fails with one line per complaint.
pub(super) fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "{} complaints:\n{}", complaints.len(), complaints.join("\n"));
}

/// A made-up file, for planting.
pub(super) fn planted(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned(), test_only: false }
}
