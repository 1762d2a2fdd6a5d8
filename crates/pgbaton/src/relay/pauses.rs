//! What operators have paused. Pure.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use serde::Deserialize;

use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::source::native::is_like;

/// One pause, as the database has it: all of a relay, or one lane of it, or a key, or topics.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Pause {
    relay: String,
    lane: Option<i32>,
    key: Option<String>,
    topic: Option<String>,
}

impl Pause {
    /// Reads the array that the database gave.
    pub(crate) fn read(json: &str) -> Result<Vec<Self>, Error> {
        serde_json::from_str(json)
            .map_err(|error| Error::new(Kind::Internal, "what is paused cannot be read").because(error))
    }
}

/// What is paused of one relay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pauses {
    all: bool,
    lanes: BTreeSet<i32>,
    keys: HashSet<String>,
    /// `*` stands for any text.
    topics: BTreeSet<String>,
}

/// Keys may say more of an application than a log should.
impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { all, lanes, keys, topics } = self;
        let all = if *all { "everything, " } else { "" };
        write!(f, "{all}{} lanes, {} keys, {} topics", lanes.len(), keys.len(), topics.len())
    }
}

impl Pauses {
    /// Those of them that are of this relay.
    pub(crate) fn of(relay: &RelayName, pauses: &[Pause]) -> Self {
        let mut of = Self::default();
        for Pause { lane, key, topic, .. } in pauses.iter().filter(|pause| pause.relay == relay.as_str()) {
            match (lane, key, topic) {
                (Some(lane), _, _) => of.lanes.extend([*lane]),
                (None, Some(key), _) => of.keys.extend([key.clone()]),
                (None, None, Some(topic)) => of.topics.extend([topic.clone()]),
                (None, None, None) => of.all = true,
            }
        }
        of
    }

    /// Whether nothing is handed over of this lane.
    pub(crate) fn stop(&self, lane: i32) -> bool {
        self.all || self.lanes.contains(&lane)
    }

    /// Whether single messages are set aside.
    pub(crate) fn are_of_messages(&self) -> bool {
        !self.keys.is_empty() || !self.topics.is_empty()
    }

    /// Whether this message is set aside.
    pub(crate) fn hold(&self, key: Option<&str>, topic: &str) -> bool {
        key.is_some_and(|key| self.keys.contains(key)) || self.topics.iter().any(|pattern| is_like(topic, pattern))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pause_is_of_one_relay() {
        let json = r#"[{"relay":"orders","lane":3,"key":null,"topic":null},{"relay":"orders","lane":null,"key":"k","topic":null},
                       {"relay":"other","lane":null,"key":null,"topic":null},{"relay":"orders","lane":null,"key":null,"topic":"t.*"}]"#;
        let all = Pause::read(json).unwrap();
        let orders = Pauses::of(&RelayName::new("orders").unwrap(), &all);
        assert!(orders.stop(3) && !orders.stop(4) && orders.are_of_messages());
        assert!(
            orders.hold(Some("k"), "x")
                && orders.hold(None, "t.1")
                && !orders.hold(Some("l"), "x")
                && !orders.hold(None, "k")
        );
        let other = Pauses::of(&RelayName::new("other").unwrap(), &all);
        assert!(other.stop(3) && !other.are_of_messages());
        assert_eq!(Pauses::of(&RelayName::new("third").unwrap(), &all), Pauses::default());
    }
}
