//! The verdict on a run: what was counted, what was violated, and the shortest history that shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::found::Check;
use crate::history::Deed;

/// The verdict on a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What all random choices of the run came from; `None` if the history does not tell.
    pub seed: Option<u64>,
    /// The sink's type.
    pub sink: Option<String>,
    /// Whether the sink was to refuse old epochs and drop repeats.
    pub exactly_once: Option<bool>,
    /// Whether nothing was violated.
    pub passed: bool,
    /// What was counted.
    pub counts: Counts,
    /// How many violations of each check there are; a check without one is not named.
    pub violated: BTreeMap<Check, u64>,
    /// The first ones of each check.
    pub violations: Vec<Violation>,
}

/// One violation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// Which check.
    pub check: Check,
    /// One sentence.
    pub text: String,
    /// The shortest history that shows it, in the order of time.
    pub history: Vec<Shown>,
}

/// A record that shows a violation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shown {
    /// The file's name.
    pub file: String,
    /// The line, counted from 1.
    pub line: u32,
    /// The record, its long lists cut to what the violation is about; a text where the line is no record.
    pub record: serde_json::Value,
}

/// What was counted over the whole run. Durations are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// From the first record to the last.
    pub lasted_ms: u64,
    /// Committed transactions.
    pub transactions: u64,
    /// Messages of committed transactions.
    pub messages: u64,
    /// Of these, the ones that never arrived.
    pub lost: u64,
    /// Messages that arrived and were never committed.
    pub phantom: u64,
    /// Messages that arrived after a later one of their key.
    pub out_of_order: u64,
    /// Arrivals of a message beyond its first.
    pub repeated: u64,
    /// Messages that were published again though they may have been delivered, and why that is allowed.
    pub repeats: Repeats,
    /// Messages that the sink dropped as repeats.
    pub dropped_by_sink: u64,
    /// Messages that are not in the database after a fail-over, and were delivered before: it lost them, or they were never
    /// committed.
    pub fail_over_lost_delivered: u64,
    /// Messages that a fail-over lost before they were delivered.
    pub fail_over_lost_undelivered: u64,
    /// Rows of an adopted table that its owner meddled with, by what it did, as far as that is committed.
    pub meddled: BTreeMap<Deed, u64>,
    /// Of the settings back, those after which the row had to be sent again, and was.
    pub sent_again: u64,
    /// Settings back that nothing follows from: the row was deleted later, or its key had been changed before.
    pub set_back_in_vain: u64,
    /// Messages of which the last content that their row had never arrived: it was sent as it had been read.
    pub former_contents: u64,
    /// Rows that were told to have been changed between being read and being marked.
    pub changes_told: u64,
    /// Messages whose rows were deleted, and that never arrived.
    pub deleted_undelivered: u64,
    /// Calls of the sink.
    pub batches: u64,
    /// Messages in them.
    pub published: u64,
    /// Positions that were confirmed.
    pub positions: u64,
    /// Grants that were taken.
    pub claims: u64,
    /// Identities of replicas.
    pub replicas: u64,
    /// Lanes that were made by splitting.
    pub split_lanes: u64,
    /// Segments that were emptied.
    pub emptied: u64,
    /// The most messages of one lane that were in flight.
    pub most_in_flight: u64,
    /// Fail-overs of the database.
    pub fail_overs: u64,
    /// Faults that were begun, by their kinds; some of them found nothing to do.
    pub faults_begun: BTreeMap<String, u64>,
    /// The longest that a lane was without an owner, from the end of one to the next claim.
    pub longest_unowned_ms: u64,
    /// The longest take-over, from the end of one owner to the first publish of the next. A lane for which nothing was to
    /// be published counts as well.
    pub longest_take_over_ms: u64,
    /// From calm until it was seen that all is delivered.
    pub drained_ms: Option<u64>,
    /// Calls that ended after their lease because their process was stopped by a signal.
    pub late_while_stopped: u64,
    /// Processes with too few samples to judge leaks by.
    pub unjudged_processes: u64,
    /// Processes whose samples were judged.
    pub judged_processes: u64,
    /// Last lines that were torn by a kill.
    pub torn_lines: u64,
}

/// Messages that were published again, by what came between.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    /// The database was failed over.
    pub fail_over: u64,
    /// Their publisher was killed.
    pub kill: u64,
    /// Their publisher lost the lane, or its lease.
    pub lost_lease: u64,
    /// The sink's answer was lost, or did not say what it took.
    pub ambiguous: u64,
    /// The lane was given back with a batch of which the sink had taken a part, or without having been drained.
    pub handed_over: u64,
    /// The lane was read anew by its owner, who did not know what the sink had.
    pub reopened: u64,
    /// The owner of an adopted table had set the row back.
    pub set_back: u64,
    /// The owner of an adopted table had changed the row's key: it was in two lanes.
    pub rekeyed: u64,
}

impl Repeats {
    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self { fail_over, kill, lost_lease, ambiguous, handed_over, reopened, set_back, rekeyed } = self;
        fail_over + kill + lost_lease + ambiguous + handed_over + reopened + set_back + rekeyed
    }
}
