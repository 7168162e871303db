//! Any text as an identity and as a position token: one value has one text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tiedkv_protocol::identity::Identity;
use tiedkv_protocol::ids::PositionToken;

fuzz_target!(|text: &str| {
    if let Ok(identity) = text.parse::<Identity>() {
        assert_eq!(identity.to_string(), text);
    }
    if let Ok(token) = text.parse::<PositionToken>() {
        assert_eq!(token.to_string().parse(), Ok(token));
    }
});
