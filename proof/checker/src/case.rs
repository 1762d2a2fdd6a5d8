//! A history with what follows from it, as the checks look at it; and which lines tell of a message.

use crate::arrivals::{Arrivals, told};
use crate::covered::Coverage;
use crate::facts::{Facts, GrantNo, Line, MessageNo, Publish, PublishNo, at};
use crate::fates::Fates;
use crate::found::About;
use crate::history::Nanos;
use crate::lanes::{Ownership, ownerships};
use crate::meddled::Meddling;

/// Records of one kind that are shown of a message.
const SHOWN: usize = 6;

/// A history with what follows from it.
#[derive(Debug)]
pub struct Case {
    /// What was told.
    pub facts: Facts,
    /// What became of the messages.
    pub fates: Fates,
    /// What arrived.
    pub arrivals: Arrivals,
    /// Which position covers which publish.
    pub coverage: Coverage,
    /// Who had which lane.
    pub ownerships: Vec<Ownership>,
    /// What the owner of an adopted table did to its rows.
    pub meddled: Meddling,
}

impl Case {
    /// Works out what follows.
    #[must_use]
    pub fn new(facts: Facts) -> Self {
        let (fates, ownerships) = (Fates::new(&facts), ownerships(&facts));
        Self {
            meddled: Meddling::new(&facts, &fates, &ownerships),
            fates,
            arrivals: Arrivals::new(&facts),
            coverage: Coverage::new(&facts),
            ownerships,
            facts,
        }
    }

    /// A message's id.
    #[must_use]
    pub fn id(&self, message: MessageNo) -> String {
        self.facts.ids.text(message).to_owned()
    }

    /// What a violation about these messages is about.
    #[must_use]
    pub fn about(&self, messages: &[MessageNo]) -> About {
        let writes = messages.iter().filter_map(|message| at(&self.facts.writes, self.fates.decisive(*message)?));
        let transactions = writes.filter_map(|write| at(&self.facts.transactions, write.transaction));
        About {
            ids: messages.iter().map(|message| self.id(*message)).collect(),
            transactions: transactions.map(|transaction| transaction.number).collect(),
            lane: None,
        }
    }

    /// A lane's name, and what a violation of it is about.
    #[must_use]
    pub fn lane(&self, grant: GrantNo) -> (String, About) {
        let grant = at(&self.facts.grants, grant);
        (grant.map_or_else(String::new, crate::table::lane), About { lane: grant.cloned(), ..About::default() })
    }

    /// The publishes that contain a message, in order of time. Looks through all of them: only for what is shown.
    #[must_use]
    pub fn publishes_of(&self, message: MessageNo) -> Vec<(PublishNo, &Publish)> {
        let all = (0..).zip(&self.facts.publishes);
        let mut found: Vec<_> = all.filter(|(_, publish)| self.facts.ids_of(publish).contains(&message)).collect();
        found.sort_by_key(|(_, publish)| (publish.t, publish.line));
        found
    }

    /// Where a message's write is told, and what became of it.
    #[must_use]
    pub fn lines_of_write(&self, message: MessageNo) -> Vec<Line> {
        let facts = &self.facts;
        let Some(write) = self.fates.decisive(message).and_then(|write| at(&facts.writes, write)) else {
            return Vec::new();
        };
        let mut lines = vec![write.line];
        if let Some(transaction) = at(&facts.transactions, write.transaction) {
            lines.extend(transaction.committed.map(|(_, line)| line));
            lines.extend(transaction.ledger);
        }
        let taken_back = facts.took_back.iter().filter(|back| back.message == message);
        lines.extend(taken_back.map(|back| back.line).take(SHOWN));
        lines
    }

    /// Where it is told what was done to a message's row, and what became of that.
    #[must_use]
    pub fn lines_of_deeds(&self, message: MessageNo) -> Vec<Line> {
        let deeds = self.meddled.of(message).map_or(&[][..], |row| &row.deeds);
        let end = |transaction| at(&self.facts.transactions, transaction)?.committed.map(|(_, line)| line);
        deeds.iter().take(SHOWN).flat_map(|done| std::iter::once(done.line).chain(end(done.transaction))).collect()
    }

    /// Where a message's arrivals are told.
    #[must_use]
    pub fn lines_of_arrivals(&self, message: MessageNo) -> Vec<Line> {
        self.arrivals.of(message).iter().take(SHOWN).filter_map(|arrived| told(&self.facts, *arrived)).collect()
    }

    /// Where a message's publishes are told, their answers, and the positions that cover them.
    #[must_use]
    pub fn lines_of_publishes(&self, message: MessageNo) -> Vec<Line> {
        let publishes = self.publishes_of(message);
        let lines = publishes.iter().take(SHOWN).flat_map(|(number, publish)| {
            let cover = self.coverage.of(*number).map(|cover| cover.line);
            lines_of_call(publish).into_iter().chain(cover)
        });
        lines.collect()
    }

    /// Where the last fail-over before this moment and the next ones are told.
    #[must_use]
    pub fn lines_of_fail_overs(&self, around: Nanos) -> Vec<Line> {
        let mut all = self.facts.fail_overs.clone();
        all.sort_by_key(|fail_over| fail_over.to);
        let before = all.partition_point(|fail_over| fail_over.to < around).saturating_sub(1);
        all.iter().skip(before).map(|fail_over| fail_over.line).take(SHOWN / 2).collect()
    }
}

/// Where a call of the sink and its answer are told.
#[must_use]
pub fn lines_of_call(publish: &Publish) -> Vec<Line> {
    std::iter::once(publish.line).chain(publish.answered.map(|(_, line)| line)).collect()
}
