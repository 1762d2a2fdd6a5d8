//! What the log says of several lanes at once: one line for a person, one for each lane at `debug`.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::lane::{Grant, RelayName};

pub(super) fn claimed(grants: &[Grant]) {
    for grant in grants {
        tracing::debug!(%grant, "claimed");
    }
    for (relay, lanes) in by_relay(grants) {
        tracing::info!(%relay, lanes = lanes.len(), numbers = numbers(&lanes), "lanes taken over");
    }
}

pub(super) fn released(grants: &[Grant]) {
    for grant in grants {
        tracing::debug!(%grant, "released");
    }
    for (relay, lanes) in by_relay(grants) {
        tracing::info!(%relay, lanes = lanes.len(), numbers = numbers(&lanes), "lanes given back");
    }
}

fn by_relay(grants: &[Grant]) -> BTreeMap<&RelayName, Vec<i32>> {
    let mut relays: BTreeMap<&RelayName, Vec<i32>> = BTreeMap::new();
    for grant in grants {
        relays.entry(&grant.lane.relay).or_default().push(grant.lane.number);
    }
    relays.values_mut().for_each(|lanes| lanes.sort_unstable());
    relays
}

/// Ascending numbers, what follows each other as a range.
fn numbers(ascending: &[i32]) -> String {
    let mut text = String::new();
    for range in ascending.chunk_by(|a, b| a + 1 == *b) {
        let (Some(first), Some(last)) = (range.first(), range.last()) else { continue };
        let comma = if text.is_empty() { "" } else { "," };
        // A text takes whatever is written to it.
        let _ = if first == last { write!(text, "{comma}{first}") } else { write!(text, "{comma}{first}-{last}") };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_a_range() {
        assert_eq!(numbers(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(numbers(&[]), "");
    }
}
