//! What arrived, by message.

use crate::facts::{Facts, Line, MessageNo, at};

/// One arrival of a message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Arrived {
    /// An index of [`Facts::places`].
    pub place: u16,
    /// An index of [`Facts::arrived`]: the order within a place.
    pub nth: u32,
}

/// All arrivals, by message.
#[derive(Debug)]
pub struct Arrivals {
    /// Where the arrivals of each message begin in `all`; one more at the end.
    begins: Vec<u32>,
    all: Vec<Arrived>,
}

impl Arrivals {
    /// Sorts them.
    #[must_use]
    pub fn new(facts: &Facts) -> Self {
        let mut begins = vec![0_u32; facts.ids.count() + 1];
        for message in &facts.arrived {
            if let Some(count) = begins.get_mut(*message as usize) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for begin in &mut begins {
            sum += std::mem::replace(begin, sum);
        }
        let mut free = begins.clone();
        let mut all = vec![Arrived::default(); facts.arrived.len()];
        for arrival in &facts.arrivals {
            for (nth, message) in (arrival.start..).zip(facts.ids_in(arrival)) {
                let Some(next) = free.get_mut(*message as usize) else { continue };
                if let Some(slot) = all.get_mut(*next as usize) {
                    *slot = Arrived { place: arrival.place, nth: u32::try_from(nth).unwrap_or(u32::MAX) };
                }
                *next += 1;
            }
        }
        Self { begins, all }
    }

    /// The arrivals of a message, in the order of each place.
    #[must_use]
    pub fn of(&self, message: MessageNo) -> &[Arrived] {
        let begin = at(&self.begins, message).copied().unwrap_or_default();
        let end = self.begins.get(message as usize + 1).copied().unwrap_or(begin);
        self.all.get(begin as usize..end as usize).unwrap_or_default()
    }

    /// The first arrival of a message at each place where it arrived.
    pub fn firsts(&self, message: MessageNo) -> impl Iterator<Item = Arrived> + '_ {
        let all = self.of(message);
        all.iter().enumerate().filter_map(move |(index, arrived)| {
            let before = all.get(..index).unwrap_or_default();
            (!before.iter().any(|earlier| earlier.place == arrived.place)).then_some(*arrived)
        })
    }
}

/// Where an arrival is told.
#[must_use]
pub fn told(facts: &Facts, arrived: Arrived) -> Option<Line> {
    let after = facts.arrivals.partition_point(|arrival| arrival.start <= arrived.nth as usize);
    // Of several that begin there, all but the last are empty.
    after.checked_sub(1).and_then(|index| facts.arrivals.get(index)).map(|arrival| arrival.line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::Story;

    #[test]
    fn arrivals_are_found_by_message_and_place() {
        let facts = Story::default()
            .arrived(1, "x", &["a", "b"])
            .arrived(2, "y", &["b"])
            .arrived(3, "x", &[])
            .arrived(4, "x", &["b", "c"])
            .facts();
        let arrivals = Arrivals::new(&facts);
        assert_eq!(arrivals.of(0).len(), 1);
        let b: Vec<_> = arrivals.of(1).iter().map(|arrived| (arrived.place, arrived.nth)).collect();
        assert_eq!(b, [(0, 1), (1, 2), (0, 3)]);
        let firsts: Vec<_> = arrivals.firsts(1).map(|arrived| arrived.nth).collect();
        assert_eq!(firsts, [1, 2]);
        assert_eq!(arrivals.of(2).first().and_then(|arrived| told(&facts, *arrived)), Some(3));
        assert!(arrivals.of(3).is_empty());
    }
}
