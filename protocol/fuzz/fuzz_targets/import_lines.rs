//! Any bytes as a line of an import: a row that is read is written as a line that is the same row.
#![no_main]
#![allow(dead_code, reason = "modules of the tool, of which a part is used")]

#[path = "../../../cli/src/base64.rs"]
mod base64;
#[path = "../../../cli/src/lines.rs"]
mod lines;

use libfuzzer_sys::fuzz_target;
use lines::Line;
use tiedkv_client::Row;
use tiedkv_protocol::ids::Version;

fuzz_target!(|line: &[u8]| {
    if let Ok(Line::Row { key, value, ttl_ms }) = lines::read(line) {
        let mut again = Vec::new();
        let row = Row { key: key.clone(), value: value.clone(), version: Version(0), remaining_ms: ttl_ms };
        lines::write_row(&row, &mut again);
        let read = lines::read(again.strip_suffix(b"\n").unwrap_or(&again));
        assert_eq!(read.ok(), Some(Line::Row { key, value, ttl_ms }));
    }
});
