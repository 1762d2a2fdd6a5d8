//! What the file sink wrote, as far as tests of the relay want to know it.

use std::path::Path;

use proof::writers::Arrival;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Line<'a> {
    id: String,
    #[serde(borrow)]
    json: Option<&'a RawValue>,
}

/// The messages in a file of JSON lines, as far as their lines are complete. None if there is no file yet.
pub fn arrivals_in(file: &Path) -> Vec<Arrival> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |line| {
        let line: Line<'_> = serde_json::from_str(line).unwrap();
        Arrival { message_id: line.id, payload: line.json.map(RawValue::get).unwrap_or_default().to_owned() }
    };
    complete.lines().map(read).collect()
}

/// Their ids.
pub fn ids_in(file: &Path) -> Vec<String> {
    arrivals_in(file).into_iter().map(|arrival| arrival.message_id).collect()
}
