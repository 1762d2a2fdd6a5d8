//! What the demo ends with: a table for people, or one JSON object.

use std::fmt::Write;

use serde::Serialize;

use super::screen::grouped;
use crate::writers::Verdict;

/// Which relay ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Contestant {
    Pgbaton,
    Classic,
}

/// Where it delivered to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SinkKind {
    /// An inbox table: exactly once.
    Postgres,
    /// JSON lines in a file: at least once.
    File,
}

/// All figures.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) relay: Contestant,
    pub(super) sink: SinkKind,
    #[serde(flatten)]
    pub(super) verdict: Verdict,
    /// Milliseconds from SIGKILL to the first publish of its last lane by a new owner.
    pub(super) takeover_ms: Option<u128>,
    /// Repeats that reached the sink and were dropped there, as the replicas that were not killed count them.
    pub(super) dropped_by_sink: u64,
    /// At most so many repeats were dropped there in all: numbers the inbox gave to rows that it did not keep.
    pub(super) inbox_numbers_unused: u64,
    /// Messages that were written and rolled back: nobody may ever see them.
    pub(super) rolled_back: u64,
    /// Transactions that stayed open for a second.
    pub(super) long_transactions: u64,
    /// The whole demo.
    pub(super) seconds: f64,
}

impl Report {
    /// What the exit code says: the classic relay is run to be caught.
    pub(super) fn is_as_promised(&self) -> bool {
        match self.relay {
            Contestant::Pgbaton => self.verdict.is_flawless(),
            Contestant::Classic => self.verdict.duplicates > 0,
        }
    }

    /// Whether something happened that no sink excuses.
    pub(super) fn is_alarming(&self) -> bool {
        let repeats_excused = self.sink == SinkKind::File;
        let verdict = &self.verdict;
        self.relay == Contestant::Pgbaton
            && (verdict.lost + verdict.out_of_order + verdict.unexpected > 0
                || (verdict.duplicates > 0 && !repeats_excused))
    }

    /// The table and what it means.
    pub(super) fn table(&self) -> String {
        let verdict = &self.verdict;
        let mut text = format!("\n  {}\n\n", self.title());
        let mut row = |name: &str, value: String, meaning: &str| {
            let _ = writeln!(text, "  {name:<14} {value:>9}   {meaning}");
        };
        let rolled_back = format!("orders committed; {} more were rolled back", grouped(self.rolled_back));
        row("sent", grouped(verdict.sent as u64), &rolled_back);
        row("delivered", grouped(verdict.delivered as u64), "of these, the ones that arrived");
        row("lost", grouped(verdict.lost as u64), "never arrived");
        row("duplicates", grouped(verdict.duplicates as u64), self.about_duplicates());
        row("out of order", grouped(verdict.out_of_order as u64), "arrived after a later order of the same customer");
        if verdict.unexpected > 0 {
            row("unexpected", grouped(verdict.unexpected as u64), "arrived, but nobody committed them like that");
        }
        row("take-over", self.takeover(), self.about_takeover());
        let _ = write!(text, "\n{}\n  The whole demo took {:.0} s.\n", self.conclusion(), self.seconds);
        text
    }

    fn title(&self) -> &'static str {
        match (self.relay, self.sink) {
            (Contestant::Classic, _) => "THE CLASSIC RELAY: three replicas, one killed, one frozen",
            (_, SinkKind::Postgres) => "PGBATON: three replicas, one killed, one frozen; sink: a PostgreSQL table",
            (_, SinkKind::File) => "PGBATON: three replicas, one killed, one frozen; sink: a file",
        }
    }

    fn takeover(&self) -> String {
        self.takeover_ms.map_or_else(|| "-".to_owned(), |ms| format!("{}.{} s", ms / 1_000, ms % 1_000 / 100))
    }

    fn about_takeover(&self) -> &'static str {
        match self.relay {
            Contestant::Pgbaton => "until others had published from each of its lanes",
            Contestant::Classic => "nobody owns anything here",
        }
    }

    fn about_duplicates(&self) -> &'static str {
        match (self.relay, self.sink) {
            (Contestant::Pgbaton, SinkKind::Postgres) if self.inbox_numbers_unused == 0 => {
                "published more than once; the inbox dropped none"
            }
            _ => "published more than once",
        }
    }

    fn conclusion(&self) -> String {
        let verdict = &self.verdict;
        match (self.relay, self.sink) {
            (Contestant::Classic, _) if verdict.duplicates > 0 => "  \
                Its row locks end at the commit, before it publishes; meanwhile the others\n  \
                take the same rows. The same load with pgbaton: ./dev demo"
                .to_owned(),
            (Contestant::Classic, _) => "  It showed no duplicate this time. Try again with more messages.".to_owned(),
            _ if verdict.is_flawless() && self.dropped() == 0 => {
                "  Nothing lost, nothing twice, every customer's orders in order.".to_owned()
            }
            _ if verdict.is_flawless() => format!(
                "  Nothing lost, nothing twice, every customer's orders in order.\n  \
                 The inbox was given up to {} repeats, and dropped them.",
                grouped(self.dropped())
            ),
            (_, SinkKind::File) if !self.is_alarming() => "  \
                A file cannot refuse a replica that has lost its lanes, nor drop a repeat:\n  \
                what was in flight at the kill and the freeze is written twice, under the\n  \
                same id. That counts as a failure here. The same load with\n  \
                `--sink postgres` is delivered exactly once."
                .to_owned(),
            _ => "  THIS MUST NEVER HAPPEN. Please report it, with the logs.".to_owned(),
        }
    }

    /// At most so many repeats reached the sink and were dropped there.
    fn dropped(&self) -> u64 {
        self.dropped_by_sink.max(self.inbox_numbers_unused)
    }
}
