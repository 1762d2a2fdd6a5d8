//! What the owner of an adopted table did to its rows, by message: each deed with the moments between which it was committed,
//! and the calls that carried the message.
//!
//! A deed is told after its statement and before its commit is sent: who reads earlier does not see it. Who reads after the
//! commit was confirmed does. In between nobody knows. Deeds on one row wait for each other, so that their order is that of
//! their lines' times.

use std::collections::{BTreeMap, HashMap};

use crate::covered::may_have_arrived;
use crate::facts::{Facts, GrantNo, Line, MessageNo, Publish, PublishNo, ReplicaNo, TransactionNo, at};
use crate::fates::{Fate, Fates};
use crate::history::{Deed, Nanos};
use crate::lanes::Ownership;

/// One deed on one row.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// What.
    pub deed: Deed,
    /// The transaction, and its number in the history.
    pub transaction: TransactionNo,
    /// Its number in the history.
    pub number: u64,
    /// What became of it.
    pub fate: Fate,
    /// It was not committed before this.
    pub from: Nanos,
    /// It was committed by then, if ever: the end of time where nobody was told.
    pub to: Nanos,
    /// Where it is told.
    pub line: Line,
}

impl Done {
    /// Whether it may have been committed, be it for a while.
    #[must_use]
    pub fn may_stand(&self) -> bool {
        self.fate != Fate::Undone
    }

    /// Whether it is committed, and no fail-over has lost it.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.fate == Fate::Committed
    }
}

/// A call that carried the row's message, and of which the sink may have taken something.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Which.
    pub number: PublishNo,
    /// It began, with what had been read by then.
    pub t: Nanos,
    /// Its lane was taken: nothing was read before.
    pub read_from: Nanos,
}

/// A row that was meddled with.
#[derive(Debug, Default)]
pub struct Row {
    /// In the order of time.
    pub deeds: Vec<Done>,
    /// In the order of time.
    pub calls: Vec<Call>,
}

impl Row {
    /// Deeds of a kind that may have been committed.
    pub fn may(&self, deed: Deed) -> impl DoubleEndedIterator<Item = &Done> {
        self.deeds.iter().filter(move |done| done.deed == deed && done.may_stand())
    }

    /// Deeds of a kind that are committed.
    pub fn certain(&self, deed: Deed) -> impl DoubleEndedIterator<Item = &Done> {
        self.deeds.iter().filter(move |done| done.deed == deed && done.stands())
    }
}

/// All rows that were meddled with.
#[derive(Debug, Default)]
pub struct Meddling {
    rows: BTreeMap<MessageNo, Row>,
}

impl Meddling {
    /// Sorts them.
    #[must_use]
    pub fn new(facts: &Facts, fates: &Fates, ownerships: &[Ownership]) -> Self {
        let mut rows: BTreeMap<MessageNo, Row> = BTreeMap::new();
        for told in &facts.meddled {
            let Some(transaction) = at(&facts.transactions, told.transaction) else { continue };
            let confirmed = transaction.committed.map(|(_, line)| facts.time(line));
            let (fate, to) =
                (fates.of_transaction(told.transaction), confirmed.or(transaction.over).unwrap_or(Nanos::MAX));
            let (deed, number) = (told.deed, transaction.number);
            let done = Done { deed, transaction: told.transaction, number, fate, from: told.t, to, line: told.line };
            rows.entry(told.message).or_default().deeds.push(done);
        }
        let mut meddling = Self { rows };
        if !meddling.rows.is_empty() {
            meddling.add_calls(facts, ownerships);
        }
        meddling.rows.values_mut().for_each(|row| row.deeds.sort_by_key(|done| (done.from, done.line)));
        meddling
    }

    fn add_calls(&mut self, facts: &Facts, ownerships: &[Ownership]) {
        let mut taken: HashMap<(ReplicaNo, GrantNo), Vec<Nanos>> = HashMap::new();
        for owned in ownerships {
            taken.entry((owned.replica, owned.grant)).or_default().push(owned.from);
        }
        let read_from = |publish: &Publish| {
            let taken = taken.get(&(publish.replica, publish.grant));
            taken.and_then(|taken| taken.iter().rev().find(|from| **from <= publish.t)).copied().unwrap_or_default()
        };
        for (number, publish) in (0..).zip(&facts.publishes).filter(|(_, publish)| may_have_arrived(publish)) {
            for message in facts.ids_of(publish) {
                if let Some(row) = self.rows.get_mut(message) {
                    row.calls.push(Call { number, t: publish.t, read_from: read_from(publish) });
                }
            }
        }
        let line = |call: &Call| at(&facts.publishes, call.number).map(|publish| publish.line);
        self.rows.values_mut().for_each(|row| row.calls.sort_by_key(|call| (call.t, line(call))));
    }

    /// What was done to the row of a message; `None` if nobody told of anything.
    #[must_use]
    pub fn of(&self, message: MessageNo) -> Option<&Row> {
        self.rows.get(&message)
    }

    /// All of them, in the order of their messages.
    pub fn rows(&self) -> impl Iterator<Item = (MessageNo, &Row)> {
        self.rows.iter().map(|(message, row)| (*message, row))
    }

    /// Whether the row may have been of another key for a while.
    #[must_use]
    pub fn is_rekeyed(&self, message: MessageNo) -> bool {
        self.of(message).is_some_and(|row| row.may(Deed::Rekeyed).next().is_some())
    }

    /// Whether the row may have been of another key, or gone, for a while.
    #[must_use]
    pub fn has_no_order(&self, message: MessageNo) -> bool {
        self.is_rekeyed(message) || self.of(message).is_some_and(|row| row.may(Deed::Deleted).next().is_some())
    }

    /// Whether the row is gone, by its owner's doing.
    #[must_use]
    pub fn is_deleted(&self, message: MessageNo) -> bool {
        self.of(message).is_some_and(|row| row.certain(Deed::Deleted).next().is_some())
    }
}
