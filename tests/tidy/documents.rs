//! Documents name what exists: files, links between them, metrics and settings; and nothing that is not here.

use super::tree::{File, files, none, planted, root};
use std::collections::BTreeSet;

/// Endings that make a word in backticks the name of a file.
const ENDINGS: [&str; 6] = [".rs", ".md", ".toml", ".yml", "/", ".lock"];

/// Words in backticks that look like paths of this repository: they hold a `/` or stand at its root.
fn named_files(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|part| part.split('`').skip(1).step_by(2))
        .filter(|word| word.contains('/') && ENDINGS.iter().any(|ending| word.ends_with(ending)))
        .filter(|word| !word.contains([' ', '*', '<', ':', '$', '{']) && !word.starts_with('/'))
        .collect()
}

/// Targets of relative links.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .collect()
}

/// Pages that are not part of this repository must not be referred to.
fn strangers(file: &File) -> Vec<String> {
    let pages = [
        concat!("DESIGN", ".md"),
        concat!("DESIGN", " section"),
        concat!("TIE-", "MODEL"),
        concat!("STYLE", ".md"),
        concat!("MEASURED", ".md"),
    ];
    let found = pages.iter().filter(|page| file.text.contains(**page));
    found.map(|page| format!("{}: refers to {page}, which is not here", file.path)).collect()
}

#[test]
fn files_and_links_in_documents_exist() {
    let mut complaints = Vec::new();
    for file in files(&[".md"]) {
        for name in named_files(&file.text) {
            if !root().join(name).exists() {
                complaints.push(format!("{}: `{name}` does not exist", file.path));
            }
        }
        let directory = root().join(&file.path).parent().unwrap().to_path_buf();
        for target in links(&file.text) {
            if !directory.join(target).exists() {
                complaints.push(format!("{}: link to {target}, which does not exist", file.path));
            }
        }
    }
    none(complaints);
}

#[test]
fn nothing_refers_to_pages_that_are_not_here() {
    none(files(&[".rs", ".md", ".toml"]).iter().flat_map(strangers).collect());
}

#[test]
fn planted_offences_are_found() {
    let text = "See `client/src/race.rs`, `server/src/nowhere.rs` and `put|get`.\n```\n`in/a/block.rs`\n```\n";
    assert_eq!(named_files(text), ["client/src/race.rs", "server/src/nowhere.rs"]);
    assert_eq!(links("[a](docs/a.md#b) [c](https://x/y) [d](#e)"), ["docs/a.md"]);
    let page = concat!("see DESIGN", ".md");
    assert_eq!(strangers(&planted("a.rs", page)).len(), 1);
}

/// Settings of a node without a row of their own, with their default, in the operator's document.
fn undocumented_settings(text: &str) -> Vec<String> {
    let row = |name: &str, default: &str| match default {
        "" => format!("| `{name}` | none |"),
        default => format!("| `{name}` | `{default}` |"),
    };
    tiedkv_server::config::SETTINGS
        .iter()
        .map(|setting| row(setting.name, setting.default))
        .filter(|row| !text.contains(row))
        .map(|row| format!("docs/operations.md lacks the row {row}"))
        .collect()
}

#[test]
fn every_setting_of_a_node_is_documented_with_its_default() {
    let text = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    none(undocumented_settings(&text));
    assert_eq!(undocumented_settings("").len(), tiedkv_server::config::SETTINGS.len());
}

#[test]
fn every_error_code_has_a_remedy() {
    let text = std::fs::read_to_string(root().join("docs/operations.md")).unwrap();
    let codes = tiedkv_protocol::error::ErrorCode::ALL.iter();
    let rows = codes.map(|code| format!("| `{}` |", code.name()));
    none(rows.filter(|row| !text.contains(row)).map(|row| format!("docs/operations.md lacks {row}")).collect());
}

/// The last cell of each row below a header whose last cell is `test`.
fn test_cells(text: &str) -> Vec<&str> {
    let (mut below, mut cells) = (false, Vec::new());
    for line in text.lines() {
        let row = line.trim_end().strip_prefix('|').and_then(|row| row.strip_suffix('|'));
        let Some(cell) = row.and_then(|row| row.rsplit('|').next()).map(str::trim) else {
            below = false;
            continue;
        };
        match cell {
            "test" => below = true,
            _ if below && !cell.starts_with("---") => cells.push(cell),
            _ => {}
        }
    }
    cells
}

/// Whatever a cell names that is no test: `name`, `module::name`, `name_that_goes_on_...` or `a_few_*`.
fn not_tests<'a>(cell: &'a str, functions: &BTreeSet<&str>) -> Vec<&'a str> {
    let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
    if named.is_empty() && cell != "the same" && !cell.contains("nemesis") {
        return vec![cell];
    }
    let is_test = |name: &str| {
        let name = name.rsplit("::").next().unwrap_or(name);
        match name.strip_suffix("...").or(name.strip_suffix('*')) {
            None => functions.contains(name),
            Some(begin) => functions.range(begin..).next().is_some_and(|function| function.starts_with(begin)),
        }
    };
    named.into_iter().filter(|name| !is_test(name)).collect()
}

#[test]
fn every_promise_and_every_rule_of_the_data_model_names_a_test_that_exists() {
    let sources = files(&[".rs"]);
    let after = |text: &str| text.find(|byte: char| !byte.is_alphanumeric() && byte != '_').unwrap_or(text.len());
    let functions: BTreeSet<&str> =
        sources.iter().flat_map(|file| file.text.split("fn ").skip(1)).map(|rest| &rest[..after(rest)]).collect();
    let mut complaints = Vec::new();
    for (page, least) in [("docs/guarantees.md", 20), ("docs/data-model.md", 30)] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let cells = test_cells(&text);
        assert!(cells.len() >= least, "{page}: only {} rows with a test", cells.len());
        for cell in cells {
            complaints.extend(not_tests(cell, &functions).iter().map(|name| format!("{page}: no test: {name}")));
        }
    }
    none(complaints);
    let table = "| rule | test |\n|---|---|\n| a | `x::one`, `two_...` |\n| b | |\n\n| c | d |\n";
    assert_eq!(test_cells(table), ["`x::one`, `two_...`", ""]);
    let functions = BTreeSet::from(["one", "two_and_more"]);
    assert_eq!(not_tests("`x::one`, `two_...`, `three`", &functions), ["three"]);
    assert_eq!(not_tests("", &functions), [""]);
}
