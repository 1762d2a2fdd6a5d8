//! Message ids as numbers: ten million texts would not fit into memory several times over, their numbers do.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Gives each text a number, counted from 0, and the text back for a number.
#[derive(Debug, Default)]
pub struct Ids {
    text: String,
    /// Where each text ends in `text`.
    ends: Vec<usize>,
    table: HashTable<u32>,
    hasher: RandomState,
}

impl Ids {
    /// The number of this text, a new one if it was never seen.
    pub fn number(&mut self, id: &str) -> u32 {
        let Self { text, ends, table, hasher } = self;
        let hash = hasher.hash_one(id);
        let same = |known: &u32| span(text, ends, *known) == id;
        match table.entry(hash, same, |known| hasher.hash_one(span(text, ends, *known))) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(free) => {
                // The reader stops before there are as many as that.
                let number = u32::try_from(ends.len()).unwrap_or(u32::MAX);
                free.insert(number);
                text.push_str(id);
                ends.push(text.len());
                number
            }
        }
    }

    /// The text of a number; empty for one that was never given out.
    #[must_use]
    pub fn text(&self, number: u32) -> &str {
        span(&self.text, &self.ends, number)
    }

    /// How many different texts there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }
}

fn span<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let number = number as usize;
    let start = number.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or_default();
    ends.get(number).and_then(|end| text.get(start..*end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_has_one_number_and_comes_back() {
        let mut ids = Ids::default();
        let numbers: Vec<u32> = (0..1000).map(|n| ids.number(&format!("m{n}"))).collect();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
        assert_eq!(ids.number("m500"), 500);
        assert_eq!((ids.text(999), ids.text(0), ids.text(1000)), ("m999", "m0", ""));
        assert_eq!(ids.number(""), 1000);
        assert_eq!(ids.number(""), 1000);
        assert_eq!(ids.count(), 1001);
    }
}
