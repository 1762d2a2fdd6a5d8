//! What the checks found, before it is written down: counts, and violations with the lines that show them.

use std::collections::BTreeMap;

use crate::facts::{Facts, Line};
use crate::history::Grant;
use crate::verdict::Counts;

/// So many violations of each check are listed; all are counted.
pub const LISTED: usize = 20;

/// The checks, by the names that the verdict uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// A committed message did not arrive.
    Lost,
    /// What arrived was never committed.
    Phantom,
    /// The database itself, or the run, did what it must not.
    Database,
    /// A key's messages arrived out of order.
    Order,
    /// A message came again that must not.
    Repeats,
    /// What the owner of an adopted table did to a row had not the effect that is promised.
    Meddled,
    /// More was in flight than is allowed.
    InFlight,
    /// Two owners of one lane, or work for a lane that is not owned.
    Exclusive,
    /// Work beyond the lease.
    Lease,
    /// A position fell.
    Positions,
    /// What was written was not delivered in time, or the history is cut short.
    Drained,
    /// Files, connections or memory kept growing.
    Leaks,
    /// The history itself cannot be trusted.
    Told,
}

impl Check {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::Lost,
        Self::Phantom,
        Self::Database,
        Self::Order,
        Self::Repeats,
        Self::Meddled,
        Self::InFlight,
        Self::Exclusive,
        Self::Lease,
        Self::Positions,
        Self::Drained,
        Self::Leaks,
        Self::Told,
    ];

    /// Its name, as in the verdict's JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Phantom => "phantom",
            Self::Database => "database",
            Self::Order => "order",
            Self::Repeats => "repeats",
            Self::Meddled => "meddled",
            Self::InFlight => "in_flight",
            Self::Exclusive => "exclusive",
            Self::Lease => "lease",
            Self::Positions => "positions",
            Self::Drained => "drained",
            Self::Leaks => "leaks",
            Self::Told => "told",
        }
    }
}

/// What a violation is about: long lists in its records are cut to this.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct About {
    /// Messages.
    pub ids: Vec<String>,
    /// Transactions.
    pub transactions: Vec<u64>,
    /// A lane; relatives of it count as well.
    pub lane: Option<Grant>,
}

/// One violation, with the lines that show it.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Which check.
    pub check: Check,
    /// One sentence.
    pub text: String,
    /// In the order of time, each once.
    pub lines: Vec<Line>,
    /// What it is about.
    pub about: About,
}

/// Gathers what the checks find.
#[derive(Debug, Default)]
pub struct Found {
    /// Of the whole run.
    pub counts: Counts,
    /// How many violations of each check there are.
    pub violations: BTreeMap<Check, u64>,
    /// The first ones of each.
    pub listed: Vec<Finding>,
}

impl Found {
    /// Counts a violation. What there is to say of it is only asked for if it is listed.
    pub fn violation(&mut self, facts: &Facts, check: Check, tell: impl FnOnce() -> (String, Vec<Line>, About)) {
        let count = self.violations.entry(check).or_default();
        *count += 1;
        if *count <= LISTED as u64 {
            let (text, mut lines, about) = tell();
            lines.sort_by_key(|line| (facts.time(*line), *line));
            lines.dedup();
            self.listed.push(Finding { check, text, lines, about });
        }
    }

    /// How many violations of a check there are.
    #[cfg(test)]
    pub fn of(&self, check: Check) -> u64 {
        self.violations.get(&check).copied().unwrap_or_default()
    }
}
