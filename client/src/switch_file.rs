//! A watched file of switches: read again four times a second, so that an operator can turn ties off in a live process.
//!
//! Lines of `name = value`; `#` begins a comment. `mode` (off, observe, on), `share` and `sample` hold for all
//! operations, `get.mode`, `multi_get.share`, `scan.sample` for one. A file that is missing says nothing; one that is
//! wrong leaves in force what it said before, and the log names the line.

use crate::control::Switch;
use crate::nearest::nearest;
use crate::operation::Operation;
use crate::switchboard::{Switchboard, Switches};
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tiedkv_protocol::hello::Mode;

/// Between looks at the file.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longer files are refused.
const BYTES_MAX: u64 = 64 * 1024;

/// Watches until dropped. Decides nothing.
pub(crate) async fn watch(path: Arc<Path>, board: Arc<Switchboard>, mut before: Option<String>) {
    let mut told: Option<String> = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let path_there = path.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || read(&path_there)).await else { continue };
        let taken = read.and_then(|text| {
            if before != text || told.is_some() {
                board.set_file(parse(text.as_deref().unwrap_or(""))?);
                before = text;
            }
            Ok(())
        });
        match taken {
            Ok(()) => told = None,
            Err(reason) if told.as_ref() != Some(&reason) => {
                tracing::error!(path = %path.display(), %reason, "the file of switches is not taken; what it said before holds");
                told = Some(reason);
            }
            Err(_) => {}
        }
    }
}

/// The text of the file; `None` if there is none.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > BYTES_MAX {
        return Err(format!("it is longer than {BYTES_MAX} bytes"));
    }
    Ok(Some(text))
}

/// The switches that a text says; what it does not say is on.
pub(crate) fn parse(text: &str) -> Result<Switches, String> {
    let mut switches = [Switch::ON; Operation::ALL.len()];
    let mut names: Vec<(&str, &str, usize)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let number = index + 1;
        let (name, value) = line.split_once('=').ok_or_else(|| format!("line {number}: want name = value"))?;
        let (name, value) = (name.trim(), value.trim().trim_matches('"'));
        if names.iter().any(|(other, ..)| *other == name) {
            return Err(format!("line {number}: `{name}` stands twice"));
        }
        names.push((name, value, number));
    }
    // What holds for all comes first, whatever the order of lines.
    names.sort_by_key(|(name, ..)| name.contains('.'));
    for (name, value, number) in names {
        apply(&mut switches, name, value).map_err(|reason| format!("line {number}: {reason}"))?;
    }
    for (operation, switch) in Operation::ALL.into_iter().zip(switches) {
        switch.check().map_err(|reason| format!("{operation}: {reason}"))?;
    }
    Ok(switches)
}

fn apply(switches: &mut Switches, name: &str, value: &str) -> Result<(), String> {
    let (operation, setting) = match name.split_once('.') {
        None => (None, name),
        Some((operation, setting)) => {
            let found = Operation::ALL.into_iter().find(|one| one.name() == operation);
            let unknown = || {
                let right = nearest(operation, &Operation::ALL.map(Operation::name));
                format!("`{operation}` is no operation; did you mean `{right}`? (one of: get, multi_get, scan)")
            };
            (Some(found.ok_or_else(unknown)?), setting)
        }
    };
    let share = || value.parse::<f64>().map_err(|_| format!("`{value}` is no share within 0.0 and 1.0"));
    let one = |switch: &mut Switch| {
        match setting {
            "mode" => switch.mode = parse_mode(value)?,
            "share" => switch.share = share()?,
            "sample" => switch.sample = share()?,
            other => {
                let right = nearest(other, &["mode", "share", "sample"]);
                return Err(format!("`{other}` is not known; did you mean `{right}`?"));
            }
        }
        Ok(())
    };
    match operation {
        Some(operation) => one(&mut switches[operation as usize]),
        None => switches.iter_mut().try_for_each(one),
    }
}

/// `off`, `observe` or `on`.
///
/// # Errors
/// Names the three and the nearest.
pub fn parse_mode(text: &str) -> Result<Mode, String> {
    match text {
        "off" => Ok(Mode::Off),
        "observe" => Ok(Mode::Observe),
        "on" => Ok(Mode::On),
        other => Err(not_a_mode(other)),
    }
}

/// Why a text is no mode.
pub(crate) fn not_a_mode(text: &str) -> String {
    let text: String = text.chars().take(80).collect();
    let right = nearest(&text, &["off", "observe", "on"]);
    format!("`{text}` is neither `off`, `observe` nor `on`; did you mean `{right}`?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_for_all_comes_first_and_what_is_wrong_is_named_with_its_line() {
        let text = "# switches\nscan.mode = off\nmode = observe # for now\nsample = 0.01\nscan.sample = 0\n";
        let switches = parse(text).unwrap();
        let observed = Switch { sample: 0.01, ..Switch::OBSERVE };
        assert_eq!(switches, [observed, observed, Switch::OFF]);
        assert_eq!(parse("").unwrap(), [Switch::ON; 3]);
        let error = |text: &str| parse(text).unwrap_err();
        assert!(error("mode = on\nmode = off").contains("line 2: `mode` stands twice"));
        assert!(error("\nmod = off").contains("line 2: `mod` is not known; did you mean `mode`?"));
        assert!(error("gte.mode = off").contains("did you mean `get`? (one of: get, multi_get, scan)"));
        assert!(error("mode = maybe").contains("neither"));
        assert!(error("share = 0.5\nmode = off").contains("only in mode `on`"));
        assert!(error("off").contains("want name = value"));
    }
}
