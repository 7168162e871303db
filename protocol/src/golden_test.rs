//! The bytes of every message, frame and datagram are those of docs/tie-protocol.md, and nothing else.

use crate::error::ErrorCode;
use crate::samples_test::{frames, messages};
use std::collections::BTreeMap;

/// The fenced blocks named `golden` of the document: one `name hex` per line.
fn documented() -> BTreeMap<String, String> {
    let text = include_str!("../../docs/tie-protocol.md");
    let mut inside = false;
    let mut vectors = BTreeMap::new();
    for line in text.lines() {
        match line {
            "```golden" => inside = true,
            "```" => inside = false,
            _ if inside => {
                let (name, hex) = line.split_once(' ').unwrap_or((line, ""));
                assert!(vectors.insert(name.to_owned(), hex.to_owned()).is_none(), "{name} stands there twice");
            }
            _ => {}
        }
    }
    vectors
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_documented_vectors_are_what_is_written() {
    let mut documented = documented();
    let current: Vec<(String, Vec<u8>)> =
        messages().into_iter().map(|sample| (sample.name, sample.bytes)).chain(frames()).collect();
    let mut wrong = Vec::new();
    for (name, bytes) in current {
        if documented.remove(&name) != Some(hex(&bytes)) {
            wrong.push(format!("{name} {}", hex(&bytes)));
        }
    }
    assert!(wrong.is_empty(), "not as documented; written today:\n{}", wrong.join("\n"));
    assert!(documented.is_empty(), "documented, but no such sample: {:?}", documented.keys());
}

#[test]
fn every_sample_is_read_as_it_was_written() {
    for sample in messages() {
        assert_eq!((sample.again)(&sample.bytes), Ok(sample.bytes), "{}", sample.name);
    }
}

#[test]
fn the_documented_error_codes_are_all_codes() {
    let text = include_str!("../../docs/tie-protocol.md");
    for code in ErrorCode::ALL {
        let row = format!("| {} | `{}` | {:?} |", *code as u16, code.name(), code.caller_move());
        assert!(text.contains(&row), "docs/tie-protocol.md lacks the row: {row}");
        assert_eq!(ErrorCode::from_number(*code as u16), *code);
    }
    assert_eq!(ErrorCode::from_number(u16::MAX), ErrorCode::Unknown);
}
