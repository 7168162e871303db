//! Any bytes as a key in the tool's escape form, and any text as one: bytes come back, texts are bytes or an error.
#![no_main]
#![allow(dead_code, reason = "the module of the tool, of which a part is used")]

#[path = "../../../cli/src/escape.rs"]
mod escape;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = escape::escape(bytes);
    assert!(text.chars().all(|c| !c.is_control()));
    assert_eq!(escape::unescape(&text).as_deref(), Ok(bytes));
    if let Some(bytes) = std::str::from_utf8(bytes).ok().and_then(|text| escape::unescape(text).ok()) {
        assert_eq!(escape::unescape(&escape::escape(&bytes)), Ok(bytes));
    }
});
