//! `nemesis --minutes N --seed S [--nodes 3|5] [--binary PATH] [--seconds N] [--keep DIR] [--planted stale-read]`: real
//! processes under seeded faults and a mixed load with ties on; are the promises of docs/guarantees.md kept?
//!
//! The last line of standard output is `N operations, V violations`; exit code 1 on a violation (seed, faults, history
//! and logs are kept under DIR, the current folder by default), 2 on wrong arguments, 3 if nothing could be judged.
//! Without `--binary` it builds `tiedkv` in its own profile first.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;
use tiedkv_tests::nemesis::{Settings, run};

fn main() -> ExitCode {
    match settings(std::env::args().skip(1)) {
        Ok(settings) => judge(&settings),
        Err(why) => {
            eprintln!("nemesis: {why}");
            eprintln!(
                "usage: nemesis --minutes N --seed S [--nodes 3|5] [--binary PATH] [--seconds N] [--keep DIR] \
                 [--planted stale-read]"
            );
            ExitCode::from(2)
        }
    }
}

fn judge(settings: &Settings) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("nemesis: {error}");
            return ExitCode::from(3);
        }
    };
    match runtime.block_on(run(settings, |line| println!("{line}"))) {
        Ok(report) => {
            report.lines().iter().for_each(|line| println!("{line}"));
            if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(why) => {
            eprintln!("nemesis: nothing was judged: {why}");
            ExitCode::from(3)
        }
    }
}

fn settings(mut arguments: impl Iterator<Item = String>) -> Result<Settings, String> {
    let (mut span, mut seed, mut nodes, mut binary, mut kept) = (None, None, 3, None, PathBuf::from("."));
    let mut stale_read = false;
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: no whole number"));
        match name.as_str() {
            "--minutes" => span = Some(Duration::from_secs(60 * number()?)),
            "--seconds" => span = Some(Duration::from_secs(number()?)),
            "--seed" => seed = Some(number()?),
            "--nodes" => {
                nodes = match number()? {
                    3 => 3,
                    5 => 5,
                    other => return Err(format!("--nodes {other}: 3 or 5")),
                }
            }
            "--binary" => binary = Some(PathBuf::from(&value)),
            "--keep" => kept = PathBuf::from(&value),
            "--planted" if value == "stale-read" => stale_read = true,
            other => return Err(format!("{other} is no argument")),
        }
    }
    let span = span.filter(|span| !span.is_zero()).ok_or("--minutes is missing")?;
    let seed = seed.ok_or("--seed is missing")?;
    let binary = binary.map_or_else(built, Ok)?;
    Ok(Settings { binary, span, seed, nodes, kept, stale_read })
}

/// Builds the binary beside this program, in the same profile; cargo does nothing if it is up to date.
fn built() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = own.parent().ok_or("this program lies nowhere")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built =
        Command::new(cargo).args(["build", "--quiet", "--profile", profile, "--package", "tiedkv"]).status();
    match built {
        Ok(status) if status.success() => Ok(folder.join("tiedkv")),
        Ok(status) => Err(format!("tiedkv could not be built ({status}); name one with --binary")),
        Err(error) => Err(format!("cargo: {error}; name a binary with --binary")),
    }
}
