//! Whose turn it is: the messages of one batch, in order, one of each key at a time.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::message::Message;

/// The messages that have not been handed out, with their places in the batch.
pub(super) struct Turns<'a> {
    /// May be handed out, the earliest first.
    ready: BTreeMap<usize, Message<'a>>,
    /// For each key that was seen: what waits for an earlier message of it.
    behind: HashMap<&'a str, VecDeque<(usize, Message<'a>)>>,
}

impl<'a> Turns<'a> {
    pub(super) fn new(messages: impl Iterator<Item = Message<'a>>) -> Self {
        let mut turns = Self { ready: BTreeMap::new(), behind: HashMap::new() };
        for (place, message) in messages.enumerate() {
            match message.key.and_then(|key| turns.behind.get_mut(key)) {
                Some(behind) => behind.push_back((place, message)),
                None => {
                    turns.behind.extend(message.key.map(|key| (key, VecDeque::new())));
                    turns.ready.insert(place, message);
                }
            }
        }
        turns
    }

    /// The next message that may be under way beside all that are.
    pub(super) fn next(&mut self) -> Option<(usize, Message<'a>)> {
        self.ready.pop_first()
    }

    /// This message was delivered, so the next one of its key may go. Without this call none of them ever does.
    pub(super) fn delivered(&mut self, message: &Message<'a>) {
        let next = message.key.and_then(|key| self.behind.get_mut(key)).and_then(VecDeque::pop_front);
        self.ready.extend(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Payload, Timestamp};

    fn turns(keys: &[Option<&'static str>]) -> Turns<'static> {
        Turns::new(keys.iter().map(|key| Message {
            id: "",
            topic: "",
            key: *key,
            headers: None,
            payload: Payload::None,
            created_at: Timestamp(0),
        }))
    }

    fn all(turns: &mut Turns<'static>) -> Vec<(usize, Message<'static>)> {
        std::iter::from_fn(|| turns.next()).collect()
    }

    fn places(taken: &[(usize, Message<'static>)]) -> Vec<usize> {
        taken.iter().map(|(place, _)| *place).collect()
    }

    #[test]
    fn one_of_each_key_and_all_without_one() {
        let mut turns = turns(&[Some("a"), None, Some("a"), Some(""), None, Some("b"), Some("")]);
        let first = all(&mut turns);
        assert_eq!(places(&first), [0, 1, 3, 4, 5]);
        turns.delivered(&first[2].1);
        turns.delivered(&first[0].1);
        turns.delivered(&first[1].1);
        assert_eq!(places(&all(&mut turns)), [2, 6]);
    }

    #[test]
    fn behind_a_message_that_is_not_delivered_nothing_goes() {
        let mut turns = turns(&[Some("a"), Some("a"), Some("b"), Some("b"), Some("a")]);
        let first = all(&mut turns);
        turns.delivered(&first[1].1);
        assert_eq!(places(&all(&mut turns)), [3]);
    }
}
