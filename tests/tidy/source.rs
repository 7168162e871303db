//! Rules for one Rust file: says its job, stays short, cannot panic by `unwrap`, owes nothing.

use super::tree::{File, files, none, planted};

const LINES_MAX: usize = 500;

/// What shipped code does not contain.
const FORBIDDEN: [&str; 7] =
    [".unwrap()", ".expect(", "todo!(", "unimplemented!(", "dbg!(", "unbounded_channel(", "process::exit("];

/// Where an entry of `FORBIDDEN` is right, and why.
const EXCUSED: [(&str, &str); 1] = [
    // The exit code of a command is its answer.
    ("cli/src/", "process::exit("),
];

fn complaints(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    if !file.text.starts_with("//!") {
        found.push(format!("{}: does not begin with `//!`: its job, what it does not do", file.path));
    }
    let lines = file.text.lines().count();
    if lines > LINES_MAX {
        found.push(format!("{}: {lines} lines; the bound is {LINES_MAX}", file.path));
    }
    for (number, line) in file.shipped_lines() {
        for word in FORBIDDEN {
            let excused = EXCUSED.iter().any(|(path, what)| *what == word && file.path.starts_with(path));
            if line.contains(word) && !excused {
                found.push(format!("{}:{number}: `{word}` outside tests", file.path));
            }
        }
    }
    found
}

#[test]
fn every_rust_file_keeps_the_rules() {
    none(files(&[".rs"]).iter().flat_map(complaints).collect());
}

#[test]
fn planted_offences_are_found() {
    let long = format!("//! Job.\n{}", "\n".repeat(LINES_MAX));
    for (text, offences) in [
        ("//! Job.\nfn a() {}\n", 0),
        ("fn a() {}\n", 1),
        ("//! Job.\nfn a() { b().unwrap(); }\n", 1),
        ("//! Job.\nfn a() { b().expect(\"c\"); todo!() }\n", 2),
        ("//! Job.\n// .unwrap() in a comment\n#[cfg(test)]\nmod tests { fn a() { b().unwrap() } }\n", 0),
        (long.as_str(), 1),
    ] {
        assert_eq!(complaints(&planted("server/src/a.rs", text)).len(), offences, "{text}");
    }
    let exit = "//! Job.\nfn a() { std::process::exit(1) }\n";
    assert_eq!(complaints(&planted("server/src/a.rs", exit)).len(), 1);
    assert_eq!(complaints(&planted("cli/src/main.rs", exit)).len(), 0);
    assert_eq!(complaints(&planted("server/src/a_test.rs", "//! Job.\nfn a() { b().unwrap(); }\n")).len(), 0);
}
