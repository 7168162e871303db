//! Runs the named searches of the tie: the short ones here, the rest when ignored tests are asked for.
//!
//! `cargo run --release -p tiedkv-tests --bin model -- --all` runs all of them and prints the same lines.

use std::collections::HashSet;
use tiedkv_tests::model::rows::{Expect, Row, rows};

/// Short searches end far below this; one that does not has grown without anybody noticing.
const STATES_MAX: usize = 2_000_000;

fn run(wanted: impl Fn(&Row) -> bool, states_max: usize) -> HashSet<std::mem::Discriminant<impl Sized>> {
    let (mut kinds, mut failures) = (HashSet::new(), Vec::new());
    for row in rows().into_iter().filter(|row| wanted(row)) {
        match row.run(states_max) {
            Ok(report) => {
                let complete = if holds(&row) && !report.complete { ", complete to this depth only" } else { "" };
                println!("{:>9} states, depth {:>2}{complete}: {}", report.states, report.depth, row.name);
                if !row.long && holds(&row) && !report.complete {
                    failures.push(format!("{}: more than {states_max} states", row.name));
                }
                kinds.extend(report.kinds);
            }
            Err(failure) => failures.push(failure),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    kinds
}

fn holds(row: &Row) -> bool {
    matches!(row.expect, Expect::Holds)
}

#[test]
fn model_holds_with_two_servers() {
    run(|row| !row.long && holds(row) && row.config.servers == 2, STATES_MAX);
}

#[test]
fn model_holds_with_three_servers() {
    run(|row| !row.long && holds(row) && row.config.servers == 3, STATES_MAX);
}

#[test]
fn model_finds_every_planted_bug() {
    run(|row| !row.long && !holds(row), STATES_MAX);
}

#[test]
fn model_takes_every_kind_of_step() {
    // The smallest rows that between them take all: planted ones for what no shipped carrier does.
    let small = |row: &Row| {
        row.config.wrong_clock > 0 && holds(row)
            || !holds(row)
            || row.config.servers == 2 && row.config.tokens < 2 && row.config.reads == 1
    };
    assert_eq!(
        run(|row| !row.long && !row.config.to_outcome && small(row), STATES_MAX).len(),
        29,
        "kinds of steps"
    );
}

#[test]
fn model_a_bound_on_states_holds_within_one_depth() {
    let row = rows().into_iter().find(|row| row.name == "2: hang, 2 rescues").unwrap();
    let report = row.run(1_000).unwrap();
    assert!(!report.complete && (1_000..1_100).contains(&report.states), "{} states", report.states);
}

#[test]
#[ignore = "long: up to 8 million states (about 7 GiB) per search"]
fn model_holds_in_the_long_searches() {
    run(|row| row.long, 8_000_000);
}
