//! The values that a DSN and the environment give, and what is wrong with them.

use std::collections::BTreeMap;

use super::Environment;
use super::keys::{KEYS, Use};
use super::text::Pair;
use crate::error::{Error, Kind};

/// A value and who gave it.
pub(super) struct Given {
    pub(super) text: String,
    /// The key or the variable, for problems.
    pub(super) by: String,
}

/// What was given, and what is wrong with it.
#[derive(Default)]
pub(super) struct Values {
    given: BTreeMap<&'static str, Given>,
    problems: Vec<String>,
}

impl Values {
    /// What the DSN itself says; of a key that is given twice, the last.
    pub(super) fn take(&mut self, pairs: Vec<Pair>) {
        for pair in pairs {
            match KEYS.iter().find(|key| key.name == pair.key) {
                Some(key) => {
                    self.given.insert(key.name, Given { text: pair.value, by: format!("`{}`", key.name) });
                }
                None => self.problems.push(format!("{} is unknown", pair.called)),
            }
        }
    }

    /// What the environment says of keys that the DSN does not name. An empty variable says nothing.
    pub(super) fn fill(&mut self, environment: &Environment<'_>) {
        let named: Vec<&str> = self.given.keys().copied().collect();
        for key in KEYS.iter().filter(|key| !named.contains(&key.name)) {
            let Some((variable, text)) = key.variable.and_then(|name| Some((name, (environment.variable)(name)?)))
            else {
                continue;
            };
            match text.into_string() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    self.given.insert(key.name, Given { text, by: variable.to_owned() });
                }
                Err(_) => self.problems.push(format!("{variable} is not UTF-8")),
            }
        }
        // The oldest of them, which libpq still reads.
        let demanded =
            (environment.variable)("PGREQUIRESSL").is_some_and(|value| value.as_encoded_bytes().starts_with(b"1"));
        if demanded {
            self.given.entry("sslmode").or_insert_with(|| Given { text: "require".into(), by: "PGREQUIRESSL".into() });
        }
        for key in KEYS {
            if let (Use::Only(values, instead), Some(given)) = (&key.usage, self.given.get(key.name))
                && !given.text.is_empty()
                && !values.contains(&given.text.as_str())
            {
                self.problems.push(format!("{} cannot be honoured: {instead}", given.by));
            }
        }
    }

    pub(super) fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// A value; an empty one is none, but still beats the environment's.
    pub(super) fn given(&self, key: &str) -> Option<&Given> {
        self.given.get(key).filter(|given| !given.text.is_empty())
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.given(key).map(|given| given.text.clone())
    }

    /// A value that is one of these words. Here an empty one is a problem: it might stand for a stricter word.
    pub(super) fn choice<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let given = self.given.get(key)?;
        let found = words.iter().find(|(word, _)| *word == given.text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.problems.push(format!("{} is none of {}", given.by, words.join(", ")));
        }
        found
    }

    pub(super) fn into_result(self) -> Result<(), Error> {
        if self.problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::Config, format!("the DSN cannot be used: {}", self.problems.join("; "))))
    }
}
