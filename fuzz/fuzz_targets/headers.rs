//! Any text as headers and payload: no panic, one line, and what is valid JSON comes out as the same JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pgbaton::message::{Message, Payload, Timestamp};
use pgbaton::sink::jsonline;
use pgbaton::source::Opaque;

fuzz_target!(|text: &str| {
    // What a sink gives back is no more to be trusted.
    let _ = Opaque::from_bytes(text.as_bytes().to_vec()).read();
    let message = Message {
        id: "1",
        topic: text,
        key: Some(text),
        headers: Some(text),
        payload: Payload::Bytes(text.as_bytes()),
        created_at: Timestamp(0),
    };
    let mut line = Vec::new();
    if jsonline::write(&mut line, &message).is_ok() {
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        if text.len() < 1_000 {
            if let Ok(expected) = serde_json::from_str::<serde_json::Value>(text) {
                let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
                assert_eq!(line["headers"], expected);
                assert_eq!(line["topic"], text);
            }
        }
    }
});
