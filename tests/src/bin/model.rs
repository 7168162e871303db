//! Explores the named searches of the tie and prints their state counts.
//!
//! `model` runs the short rows, `model --all` all of them, `model TEXT` those whose name contains the text;
//! `--states N` bounds each search (default 12 million, which takes about 10 GiB). Exit status 1 when a row does not come to what it must.

use std::process::ExitCode;
use tiedkv_client::clock;
use tiedkv_tests::model::rows::{Expect, rows};

fn main() -> ExitCode {
    let (mut all, mut states_max, mut wanted) = (false, 12_000_000, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => all = true,
            "--states" => states_max = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(states_max),
            text => wanted.push(text.to_owned()),
        }
    }
    let mut failed = 0;
    for row in rows() {
        let named = wanted.iter().any(|text| row.name.contains(text.as_str()));
        if !(named || wanted.is_empty() && (all || !row.long)) {
            continue;
        }
        let start = clock::now();
        match row.run(states_max) {
            Ok(report) => {
                let kind = match row.expect {
                    Expect::Holds if report.complete => "holds".to_owned(),
                    Expect::Holds => "holds to this depth".to_owned(),
                    Expect::Finds(_) => report
                        .violation
                        .map(|(p, trace)| format!("{p:?} in {} steps", trace.len()))
                        .unwrap_or_default(),
                };
                let seconds = clock::now().since(start).as_secs_f64();
                println!(
                    "{:>10} states  depth {:>2}  {seconds:>6.1} s  {kind:<20} {}",
                    report.states, report.depth, row.name
                );
            }
            Err(text) => {
                failed += 1;
                println!("FAILED {text}");
            }
        }
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
