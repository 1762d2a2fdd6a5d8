//! What the simulated relay delivers to.

use std::collections::{BTreeMap, HashSet};

use super::relay::Taken;
use super::stage::Kind;

/// A lane's fence: epoch, batch, how far, on which timeline, and what it took since a position was written.
#[derive(Clone)]
pub struct Fence {
    pub epoch: i64,
    pub batch: i64,
    pub upto: usize,
    pub timeline: u32,
    pub rows: Vec<Taken>,
}

/// The sink, and all that arrived there: ids, and by which transaction their contents are.
pub struct Sink {
    pub kind: Kind,
    pub places: BTreeMap<String, Vec<(String, u64)>>,
    known: HashSet<String>,
    pub fences: BTreeMap<u32, Fence>,
}

impl Sink {
    pub fn new(kind: Kind) -> Self {
        Self { kind, places: BTreeMap::new(), known: HashSet::new(), fences: BTreeMap::new() }
    }

    /// Takes messages of one replica: a letter for each.
    pub fn take(&mut self, replica: &str, messages: &[Taken]) -> String {
        let place = if self.kind == Kind::Files { replica } else { "sink" };
        let place = self.places.entry(place.to_owned()).or_default();
        let mut letters = String::new();
        for Taken { id, content, .. } in messages {
            let known = !self.known.insert(id.clone());
            if known && self.kind == Kind::Inbox {
                letters.push('r');
            } else {
                place.push((id.clone(), *content));
                letters.push('d');
            }
        }
        letters
    }
}
