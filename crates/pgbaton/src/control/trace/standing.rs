//! Where a message stands to the position of its lane. Pure.
//!
//! The rules are those of a position (`position.rs`): what S sees has been dealt with; of what T sees and S does not, everything up
//! to `last`. Nothing else tells: a number below `last` may be of a transaction that T does not see.

use serde::Serialize;

use crate::position::{Position, Xid};

/// What became of the transaction that wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It is committed: others see the message.
    Committed,
    /// It is still open, or prepared.
    NotYet,
    /// It was rolled back: there never was a message.
    RolledBack,
}

/// Where a message stands to a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum Standing {
    /// S sees it: dealt with.
    Consumed,
    /// T sees it, and its number is not above `last`: dealt with.
    ReadInTarget,
    /// T sees it, and its number is above `last`: it is among what is read next.
    Next {
        /// Its transaction ran when S was taken, so that others with greater numbers may have gone past it.
        late: bool,
        /// It is late and not above the floor: it is read by its transaction, before the window.
        straggler: bool,
        /// What is dealt with before it has numbers above this one.
        after: i64,
    },
    /// Neither sees it: it is of the next target, or a later one.
    NotSighted {
        /// Its transaction ran when S was taken, so that others with greater numbers may have gone past it.
        late: bool,
        /// It is late and not above the floor: it is read by its transaction, before the window.
        straggler: bool,
        /// What is dealt with before it has numbers above this one.
        after: i64,
    },
    /// Its transaction has not ended: nobody but itself sees it.
    NotCommitted,
    /// Its transaction was rolled back.
    NeverWas,
}

impl Standing {
    /// Whether the position has passed it.
    #[must_use]
    pub fn is_passed(self) -> bool {
        matches!(self, Self::Consumed | Self::ReadInTarget)
    }

    /// Of what stands before it: numbers above this one.
    #[must_use]
    pub fn after(self) -> Option<i64> {
        match self {
            Self::Next { after, .. } | Self::NotSighted { after, .. } => Some(after),
            Self::Consumed | Self::ReadInTarget | Self::NotCommitted | Self::NeverWas => None,
        }
    }
}

/// Where the message with this number stands, of a transaction that has ended like that.
#[must_use]
pub fn standing(position: &Position, xid: Xid, id: i64, ended: Ended) -> Standing {
    match ended {
        Ended::Committed => {}
        Ended::NotYet => return Standing::NotCommitted,
        Ended::RolledBack => return Standing::NeverWas,
    }
    if position.consumed().sees(xid) {
        return Standing::Consumed;
    }
    // Not visible in S although it began before: S saw it running.
    let late = xid < position.consumed().xmax();
    // Below the floor stand only such ones, and they are read from the diff's beginning on.
    let straggler = id <= position.floor();
    let from = |last: i64| if straggler { last } else { last.max(position.floor()) };
    match position.target() {
        // At rest `last` is the ceiling of a diff that is over: the next one begins anew.
        None => Standing::NotSighted { late, straggler, after: from(0) },
        Some(target) if !target.snapshot.sees(xid) => {
            Standing::NotSighted { late, straggler, after: from(position.last()) }
        }
        Some(_) if id <= position.last() => Standing::ReadInTarget,
        Some(_) => Standing::Next { late, straggler, after: from(position.last()) },
    }
}

#[cfg(test)]
mod tests {
    use crate::position::Target;

    use super::*;

    /// S sees all below 20 but 10 and 14; T all below 30 but 14 and 25.
    fn position(last: i64) -> Position {
        let target = Target { snapshot: "14:30:14,25".parse().unwrap(), ceiling: 80 };
        Position::new("10:20:10,14".parse().unwrap(), 50, Some(target), last)
    }

    fn at_rest() -> Position {
        Position::new("10:20:10,14".parse().unwrap(), 50, None, 60)
    }

    fn of(position: &Position, xid: u64, id: i64) -> Standing {
        standing(position, Xid(xid), id, Ended::Committed)
    }

    #[test]
    fn what_s_sees_is_passed_whatever_its_number() {
        for (xid, id) in [(9, 1), (12, 45), (19, 79), (19, 1_000)] {
            assert_eq!(of(&position(0), xid, id), Standing::Consumed, "{xid} {id}");
            assert_eq!(of(&at_rest(), xid, id), Standing::Consumed, "{xid} {id}");
        }
    }

    #[test]
    fn what_t_sees_is_passed_up_to_last() {
        assert_eq!(of(&position(60), 21, 60), Standing::ReadInTarget);
        assert_eq!(of(&position(60), 29, 55), Standing::ReadInTarget);
        assert_eq!(of(&position(60), 21, 61), Standing::Next { late: false, straggler: false, after: 60 });
        // The window begins at the floor.
        assert_eq!(of(&position(0), 21, 61), Standing::Next { late: false, straggler: false, after: 50 });
    }

    #[test]
    fn a_straggler_is_passed_with_its_number_too() {
        assert_eq!(of(&position(0), 10, 30), Standing::Next { late: true, straggler: true, after: 0 });
        assert_eq!(of(&position(29), 10, 30), Standing::Next { late: true, straggler: true, after: 29 });
        assert_eq!(of(&position(30), 10, 30), Standing::ReadInTarget);
        // Of its transaction what lies above the floor is read in the window.
        assert_eq!(of(&position(30), 10, 55), Standing::Next { late: true, straggler: false, after: 50 });
    }

    /// Its number says nothing: `last` is far above it.
    #[test]
    fn what_neither_sees_is_not_passed_whatever_its_number() {
        // Ran when S was taken, and when T was.
        assert_eq!(of(&position(60), 14, 30), Standing::NotSighted { late: true, straggler: true, after: 60 });
        // Took its number when T was taken, and ended later.
        assert_eq!(of(&position(60), 25, 55), Standing::NotSighted { late: false, straggler: false, after: 60 });
        // Began after T.
        assert_eq!(of(&position(60), 30, 81), Standing::NotSighted { late: false, straggler: false, after: 60 });
    }

    #[test]
    fn at_rest_last_says_nothing() {
        assert_eq!(of(&at_rest(), 10, 30), Standing::NotSighted { late: true, straggler: true, after: 0 });
        assert_eq!(of(&at_rest(), 20, 55), Standing::NotSighted { late: false, straggler: false, after: 50 });
        assert_eq!(of(&at_rest(), 20, 61), Standing::NotSighted { late: false, straggler: false, after: 50 });
    }

    #[test]
    fn what_is_not_committed_is_passed_by_nothing() {
        for xid in [9, 10, 21, 30] {
            assert_eq!(standing(&position(60), Xid(xid), 30, Ended::NotYet), Standing::NotCommitted, "{xid}");
            assert_eq!(standing(&position(60), Xid(xid), 30, Ended::RolledBack), Standing::NeverWas, "{xid}");
        }
    }

    /// As a position goes on, a message that it has passed stays passed, and none is passed before it is read.
    #[test]
    fn it_agrees_with_what_is_read() {
        use crate::position::{Floors, Phase};
        let mut position = position(0);
        // Two of 10 below the floor, one above it; one in the window.
        let messages = [(10, 20), (10, 40), (10, 55), (22, 70)];
        let mut read = Vec::new();
        loop {
            let unread =
                |message: &&(u64, i64)| of(&position, message.0, message.1).is_passed() == read.contains(*message);
            assert!(messages.iter().all(|message| unread(&message)), "{position:?}");
            let next = match position.phase() {
                Phase::Stragglers { xids, after, upto } => messages
                    .iter()
                    .find(|(xid, id)| xids.contains(&Xid(*xid)) && *id > after && *id <= upto)
                    .ok_or(upto),
                Phase::Window { after, upto } => messages.iter().find(|(_, id)| *id > after && *id <= upto).ok_or(upto),
                Phase::Exhausted | Phase::AtRest => break,
            };
            if let Ok(message) = next {
                read.push(*message);
            }
            position = position.advance(next.map_or_else(|upto| upto, |(_, id)| *id));
        }
        let position = position.finish(&Floors::default());
        assert!(messages.iter().all(|(xid, id)| of(&position, *xid, *id).is_passed()));
        assert!(!of(&position, 14, 30).is_passed() && !of(&position, 25, 30).is_passed());
    }
}
