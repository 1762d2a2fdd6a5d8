//! Any text as a DSN: no panic, and what is refused says why.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = pgbaton::Database::new(text, Duration::from_secs(1)) {
        assert_eq!(error.code(), "config.invalid");
        assert!(!error.to_string().is_empty());
    }
});
