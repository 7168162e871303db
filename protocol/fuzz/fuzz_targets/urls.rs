//! Any text as a connection string: settings that hold, or an error with a text.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tiedkv_client::Config;

fuzz_target!(|text: &str| match Config::from_url(text) {
    Ok(config) => assert!(config.check().is_ok() && !config.seeds.is_empty()),
    Err(error) => assert!(!error.to_string().is_empty()),
});
