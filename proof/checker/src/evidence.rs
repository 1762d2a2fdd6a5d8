//! From lines to the records that are shown: each one read again from its file, its long lists cut to what the violation is
//! about.

use std::collections::HashMap;
use std::io;

use serde_json::Value;

use crate::facts::{Facts, Line, Publish};
use crate::found::{About, Finding};
use crate::lanes::related;
use crate::read::Sources;
use crate::verdict::{Shown, Violation};

/// So many characters of a line that is no record.
const TEXT: usize = 200;
/// Lists up to this length are shown whole if nothing of them is what the violation is about.
const SHORT: usize = 4;

/// Writes violations down.
///
/// # Errors
/// A file cannot be read any more.
pub fn show(facts: &Facts, sources: &Sources, findings: Vec<Finding>) -> io::Result<Vec<Violation>> {
    let mut calls: HashMap<Line, &Publish> = HashMap::new();
    for publish in &facts.publishes {
        if let Some((_, line)) = publish.answered {
            calls.insert(line, publish);
        }
    }
    findings
        .into_iter()
        .map(|finding| {
            let Finding { check, text, lines, about } = finding;
            let show = |line: &Line| {
                let letters = calls.get(line).map(|publish| letters(facts, publish, &about));
                let crate::read::Shown { file, line, text } = sources.show(*line)?;
                Ok(Shown { file, line, record: record(&text, &about, letters) })
            };
            Ok(Violation { check, text, history: lines.iter().map(show).collect::<io::Result<_>>()? })
        })
        .collect()
}

/// The letters that a call has for the messages in question.
fn letters(facts: &Facts, publish: &Publish, about: &About) -> String {
    let ids = facts.ids_of(publish).iter().map(|message| facts.ids.text(*message));
    let of_them = ids
        .zip(facts.letters_of(publish))
        .filter(|(id, letter)| **letter != 0 && about.ids.iter().any(|known| known == id));
    of_them.map(|(_, letter)| char::from(*letter)).collect()
}

/// A line as it is shown.
fn record(text: &[u8], about: &About, letters: Option<String>) -> Value {
    let Ok(mut record) = serde_json::from_slice::<Value>(text) else {
        let text: String = String::from_utf8_lossy(text).chars().take(TEXT).collect();
        return Value::String(text);
    };
    if let Some(fields) = record.as_object_mut() {
        let mut cut = 0;
        for (name, value) in fields.iter_mut() {
            if let Value::Array(list) = value {
                cut += shorten(name, list, about);
            }
        }
        if let (Some(letters), Some(Value::String(answer))) = (letters, fields.get_mut("answer"))
            && !letters.is_empty()
        {
            cut += answer.len().saturating_sub(letters.len());
            *answer = letters;
        }
        if cut > 0 {
            fields.insert("not_shown".to_owned(), Value::from(cut));
        }
    }
    record
}

/// Cuts a list to what is in question; how many entries were cut.
fn shorten(name: &str, list: &mut Vec<Value>, about: &About) -> usize {
    let before = list.len();
    let grant = |value: &Value| {
        let grant = serde_json::from_value(value.get("grant").unwrap_or(value).clone());
        about.lane.as_ref().zip(grant.ok()).is_some_and(|(lane, grant)| related(lane, &grant))
    };
    let wanted = |value: &Value| match name {
        "ids" => value.as_str().is_some_and(|id| about.ids.iter().any(|known| known == id)),
        "messages" => {
            value.get("id").and_then(Value::as_str).is_some_and(|id| about.ids.iter().any(|known| known == id))
        }
        "transactions" => value.as_u64().is_some_and(|number| about.transactions.contains(&number)),
        "grants" | "positions" => grant(value),
        _ => true,
    };
    if list.iter().any(wanted) {
        list.retain(wanted);
    } else {
        list.truncate(SHORT);
    }
    before - list.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, grant};

    #[test]
    fn lists_are_cut_to_what_is_in_question() {
        let g = grant(1, 4, 1);
        let story = Story::default()
            .published(10, "r", &g, 1, &["a", "b", "c"], "dt-")
            .claimed(12, "r", &[grant(0, 4, 1), g.clone()])
            .ledger(13, &[1, 2, 3, 4, 5, 6]);
        let about = About { ids: vec!["b".into()], transactions: vec![4], lane: Some(grant(5, 8, 2)) };
        let facts = story.facts();
        let letters = letters(&facts, &facts.publishes[0], &about);
        let shown: Vec<Value> =
            story.lines().iter().map(|line| record(line.as_bytes(), &about, Some(letters.clone()))).collect();
        assert_eq!(shown[0]["ids"], serde_json::json!(["b"]));
        assert_eq!((&shown[2]["answer"], &shown[2]["not_shown"]), (&Value::from("t"), &Value::from(2)));
        assert_eq!(shown[3]["grants"].as_array().map(Vec::len), Some(1));
        assert_eq!(shown[4]["transactions"], serde_json::json!([4]));
    }

    #[test]
    fn what_is_no_record_is_shown_as_text() {
        assert_eq!(record(b"{\"t\":1,", &About::default(), None), Value::from("{\"t\":1,"));
    }
}
