//! Tells the program which commit it is built from, for `--version` and for reports that are to be repeated. Without git, or
//! outside of a repository, it knows its version alone. Not named TIEDKV_...: cargo passes the name on to programs it runs, and
//! those are settings.

use std::path::Path;
use std::process::Command;

fn main() {
    let version = std::env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let version = match git(&["rev-parse", "--short=10", "HEAD"]) {
        Some(commit) => format!("{version} ({commit})"),
        None => version,
    };
    println!("cargo:rustc-env=BUILT_VERSION={version}");
    println!("cargo:rerun-if-changed=build.rs");
    // A commit changes the log of HEAD, but not the file that names the branch.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
