//! Any text as a configuration: no panic, and what is refused says why.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = pgbaton::config::Config::parse(text, []) {
        assert_eq!(error.code(), "config.invalid");
        assert!(!error.to_string().is_empty());
    }
});
