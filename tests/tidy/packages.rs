//! The packages that the design fixes are direct dependencies, and each is used by the code of its package.

use super::tree::{File, files, none};

/// The packages of this workspace.
const MEMBERS: [&str; 6] = ["protocol", "client", "server", "cli", "benches", "tests"];

/// Fixed by the design.
const FIXED: [&str; 8] = ["tokio", "quinn", "bytes", "crossbeam", "parking_lot", "serde", "bincode", "tracing"];

/// The names below `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> Vec<&str> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && !line.starts_with('#') {
            names.extend(line.split(['.', '=', ' ']).next().filter(|name| !name.is_empty()));
        }
    }
    names
}

/// Dependencies of `member` that no shipped line of it names.
fn unused(member: &str, manifest: &str, sources: &[File]) -> Vec<String> {
    let names = |prefix: &str| {
        sources.iter().filter(|file| file.path.starts_with(&format!("{member}/"))).any(|file| {
            let in_tests = member == "tests" && file.text.contains(prefix);
            in_tests || file.shipped_lines().any(|(_, line)| line.contains(prefix))
        })
    };
    dependencies(manifest)
        .into_iter()
        .filter(|name| !names(&format!("{}::", name.replace('-', "_"))))
        .map(|name| format!("{member}/Cargo.toml: `{name}` is not used"))
        .collect()
}

fn manifests() -> Vec<(&'static str, String)> {
    let read = |member: &str| std::fs::read_to_string(super::tree::root().join(member).join("Cargo.toml")).unwrap();
    MEMBERS.iter().map(|member| (*member, read(member))).collect()
}

#[test]
fn fixed_packages_are_direct_dependencies() {
    let manifests = manifests();
    let depended = |name: &str| manifests.iter().any(|(_, manifest)| dependencies(manifest).contains(&name));
    none(
        FIXED
            .iter()
            .filter(|name| !depended(name))
            .map(|name| format!("`{name}` is nobody's dependency"))
            .collect(),
    );
}

#[test]
fn every_dependency_is_used() {
    let sources = files(&[".rs"]);
    none(manifests().iter().flat_map(|(member, manifest)| unused(member, manifest, &sources)).collect());
}

#[test]
fn every_package_takes_the_lints_of_the_workspace() {
    let without = |manifest: &String| !manifest.contains("[lints]\nworkspace = true");
    none(
        manifests()
            .iter()
            .filter(|(_, manifest)| without(manifest))
            .map(|(member, _)| format!("{member}/Cargo.toml: no `[lints] workspace = true`"))
            .collect(),
    );
}

#[test]
fn planted_offences_are_found() {
    let manifest = "[package]\nname = \"a\"\n[dependencies]\ntokio.workspace = true\nraft-log = \"1\"\n[dev-dependencies]\nx = \"1\"\n";
    assert_eq!(dependencies(manifest), ["tokio", "raft-log"]);
    let sources = [
        super::tree::planted("server/src/a.rs", "//! tokio\n// tokio\nuse raft_log::A;\n"),
        super::tree::planted("client/src/a.rs", "use tokio::sync;\n"),
    ];
    assert_eq!(unused("server", manifest, &sources), ["server/Cargo.toml: `tokio` is not used"]);
}
