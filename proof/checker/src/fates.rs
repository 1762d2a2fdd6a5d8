//! What became of transactions and their messages, by the database's own word: the ledger that is dumped at the end.
//!
//! ```text
//!                         in the ledger    not in the ledger
//! commit confirmed        committed        lost by an asynchronous fail-over, if it was sent before that was over and
//!                                          confirmed since the standby was cut off; else the database lost a commit
//! rolled back             committed        undone
//! nothing confirmed       committed        undone; or, where a fail-over came after it had written, nobody knows:
//!                                          what it wrote may have been delivered before
//! ```
//!
//! Nobody knows only of a fail-over that may have lost it: what was over long before the standby was cut off reached it, if it
//! was committed at all. So what a crash of the server undid before it was on disk is undone, whatever follows.

use std::collections::HashMap;

use crate::facts::{Facts, FailOver, Line, MessageNo, Transaction, at};
use crate::history::Nanos;

/// A commit that nobody waits for reaches the standby within this.
const REACHES_THE_STANDBY_WITHIN: Nanos = 10_000_000_000;

/// What became of a message, or a transaction. A message that was written several times has the greatest of its fates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// No writer told of it.
    Unknown,
    /// It was rolled back, or taken back by a savepoint.
    Undone,
    /// Its writer got no answer, and then the database was failed over: it may have been committed for a while.
    Unanswered,
    /// It was committed, and an asynchronous fail-over may lose such.
    FailOverLost,
    /// It was committed, and no fail-over explains that it is gone.
    Vanished,
    /// It is committed.
    Committed,
}

/// The fates of all messages.
#[derive(Debug)]
pub struct Fates {
    transactions: Vec<Fate>,
    messages: Vec<Fate>,
    /// The write that a message has its fate from; `None` for one that nobody wrote.
    decisive: Vec<Option<u32>>,
    /// Messages that several committed transactions wrote.
    twice: Vec<MessageNo>,
}

impl Fates {
    /// Works them out.
    #[must_use]
    pub fn new(facts: &Facts) -> Self {
        let transactions: Vec<Fate> = facts.transactions.iter().map(|transaction| fate(facts, transaction)).collect();
        let mut fates = Self {
            transactions,
            messages: vec![Fate::Unknown; facts.ids.count()],
            decisive: vec![None; facts.ids.count()],
            twice: Vec::new(),
        };
        let mut taken_back: HashMap<(u32, u32), Line> = HashMap::new();
        for back in &facts.took_back {
            let line = taken_back.entry((back.transaction, back.message)).or_default();
            *line = (*line).max(back.line);
        }
        for (number, write) in (0..).zip(&facts.writes) {
            // What is written again after it was taken back stays.
            let taken_back = taken_back.get(&(write.transaction, write.message)).is_some_and(|line| *line > write.line);
            let fate = if taken_back { Fate::Undone } else { fates.of_transaction(write.transaction) };
            fates.found(write.message, number, fate);
        }
        fates
    }

    fn found(&mut self, message: MessageNo, write: u32, fate: Fate) {
        let index = message as usize;
        let (Some(known), Some(decisive)) = (self.messages.get_mut(index), self.decisive.get_mut(index)) else {
            return;
        };
        if *known == Fate::Committed && fate == Fate::Committed {
            self.twice.push(message);
        }
        if decisive.is_none() || fate > *known {
            (*known, *decisive) = (fate, Some(write));
        }
    }

    /// What became of a message.
    #[must_use]
    pub fn of(&self, message: MessageNo) -> Fate {
        at(&self.messages, message).copied().unwrap_or(Fate::Unknown)
    }

    /// What became of a transaction.
    #[must_use]
    pub fn of_transaction(&self, transaction: u32) -> Fate {
        at(&self.transactions, transaction).copied().unwrap_or(Fate::Unknown)
    }

    /// The write that a message has its fate from.
    #[must_use]
    pub fn decisive(&self, message: MessageNo) -> Option<u32> {
        at(&self.decisive, message).copied().flatten()
    }

    /// Messages that several committed transactions wrote: a mistake of the run.
    #[must_use]
    pub fn committed_twice(&self) -> &[MessageNo] {
        &self.twice
    }
}

fn fate(facts: &Facts, transaction: &Transaction) -> Fate {
    if transaction.ledger.is_some() {
        return Fate::Committed;
    }
    if let Some((sent, line)) = transaction.committed {
        let lost = |f: &FailOver| sent <= f.to && f.safe.is_some_and(|safe| facts.time(line) >= safe);
        return if facts.fail_overs.iter().any(lost) { Fate::FailOverLost } else { Fate::Vanished };
    }
    if transaction.rolled_back.is_some() {
        return Fate::Undone;
    }
    let Some(wrote) = transaction.wrote else { return Fate::Undone };
    // Also a synchronous one: a commit that nobody was told of may be visible, though the standby does not have it.
    let may_lose = |f: &FailOver| {
        let missing_from = f.safe.unwrap_or(f.from).saturating_sub(REACHES_THE_STANDBY_WITHIN);
        wrote <= f.to && transaction.over.is_none_or(|over| over >= missing_from)
    };
    if facts.fail_overs.iter().any(may_lose) { Fate::Unanswered } else { Fate::Undone }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{SECOND, Story};

    fn fate_of(facts: &Facts, message: &str) -> Fate {
        let fates = Fates::new(facts);
        let number = (0..).find(|number| facts.ids.text(*number) == message).unwrap();
        fates.of(number)
    }

    #[test]
    fn the_ledger_has_the_last_word() {
        let facts = Story::default()
            .wrote(10, 1, &["a"])
            .committed(11, 1)
            .wrote(12, 2, &["b"])
            .wrote(13, 3, &["c"])
            .wrote(14, 4, &["d"])
            .committed(15, 4)
            .ledger(99, &[1, 3])
            .facts();
        assert_eq!(fate_of(&facts, "a"), Fate::Committed);
        assert_eq!(fate_of(&facts, "b"), Fate::Undone);
        assert_eq!(fate_of(&facts, "c"), Fate::Committed);
        assert_eq!(fate_of(&facts, "d"), Fate::Vanished);
    }

    #[test]
    fn only_an_asynchronous_fail_over_loses_what_was_confirmed_before() {
        for (synchronous, committed, expected) in
            [(false, 20, Fate::FailOverLost), (true, 20, Fate::Vanished), (false, 60, Fate::Vanished)]
        {
            let facts = Story::default()
                .wrote(10, 1, &["a"])
                .committed(committed, 1)
                .failed_over(40, 50, 2, synchronous)
                .ledger(99, &[])
                .facts();
            assert_eq!(fate_of(&facts, "a"), expected);
        }
    }

    #[test]
    fn what_was_confirmed_before_the_standby_was_cut_off_is_not_lost() {
        for (safe, expected) in [(20, Fate::FailOverLost), (21, Fate::Vanished)] {
            let story = Story::default().wrote(10, 1, &["a"]).committed(20, 1);
            let facts = story.failed_over_from(40, 50, 2, Some(safe)).ledger(99, &[]).facts();
            assert_eq!(fate_of(&facts, "a"), expected);
        }
    }

    #[test]
    fn what_was_rolled_back_is_undone_whatever_follows() {
        let story = Story::default().wrote(10, 1, &["a"]).rolled_back(20, 1).failed_over(40, 50, 2, true);
        assert_eq!(fate_of(&story.ledger(99, &[]).facts(), "a"), Fate::Undone);
    }

    #[test]
    fn without_an_answer_before_a_fail_over_nobody_knows() {
        let facts = Story::default()
            .wrote(10, 1, &["a"])
            .failed_over(40, 50, 2, true)
            .wrote(60, 2, &["b"])
            .ledger(99, &[])
            .facts();
        assert_eq!(fate_of(&facts, "a"), Fate::Unanswered);
        assert_eq!(fate_of(&facts, "b"), Fate::Undone);
    }

    /// It was committed without waiting for the disk, delivered, and undone by a crash long before.
    #[test]
    fn a_later_fail_over_does_not_explain_what_was_over_before_it() {
        for (safe, over, expected) in [
            (Some(50), 39, Fate::Undone),
            (Some(50), 40, Fate::Unanswered),
            (None, 49, Fate::Undone),
            (None, 50, Fate::Unanswered),
        ] {
            let story = Story::default().wrote(30 * SECOND, 1, &["a"]).over(over * SECOND, 1);
            let safe = safe.map(|safe| safe * SECOND);
            let facts = story.failed_over_from(60 * SECOND, 70 * SECOND, 2, safe).ledger(99 * SECOND, &[]).facts();
            assert_eq!(fate_of(&facts, "a"), expected, "{safe:?} {over}");
        }
        let before = Story::default().failed_over(1, 2, 2, false).wrote(3, 1, &["a"]).over(4, 1).ledger(9, &[]);
        assert_eq!(fate_of(&before.facts(), "a"), Fate::Undone);
    }

    #[test]
    fn a_savepoint_takes_back_what_was_written_before_it() {
        let facts = Story::default()
            .wrote(10, 1, &["a", "b"])
            .took_back(11, 1, &["a"])
            .committed(12, 1)
            .ledger(99, &[1])
            .facts();
        assert_eq!(fate_of(&facts, "a"), Fate::Undone);
        assert_eq!(fate_of(&facts, "b"), Fate::Committed);
    }

    #[test]
    fn an_id_that_was_rolled_back_may_be_written_again() {
        let facts =
            Story::default().wrote(10, 1, &["a"]).wrote(20, 2, &["a"]).committed(21, 2).ledger(99, &[2]).facts();
        assert_eq!(fate_of(&facts, "a"), Fate::Committed);
        assert!(Fates::new(&facts).committed_twice().is_empty());
    }
}
