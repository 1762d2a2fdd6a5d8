//! The verdict as text: a table of what was counted, one of the checks, and each violation with its history.

use std::fmt::Write;

use crate::found::Check;
use crate::history::{Deed, Grant, Nanos};
use crate::verdict::{Counts, Verdict};

/// A lane, as texts name it.
#[must_use]
pub fn lane(grant: &Grant) -> String {
    format!("{}/{} of {}", grant.relay, grant.lane, grant.of)
}

/// A duration, as texts name it.
#[must_use]
pub fn duration(nanos: Nanos) -> String {
    match nanos {
        0..1_000_000 => format!("{} µs", nanos / 1_000),
        1_000_000..10_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

/// The whole verdict.
#[must_use]
pub fn table(verdict: &Verdict) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: &str| {
        // Writing to a text does not fail.
        let _ = writeln!(text, "{name:<60} {value}");
    };
    let unknown = || "not told".to_owned();
    row("seed", &verdict.seed.map_or_else(unknown, |seed| seed.to_string()));
    let promise = verdict.exactly_once.map_or("", |exactly| if exactly { ", exactly once" } else { ", at least once" });
    row("sink", &format!("{}{promise}", verdict.sink.clone().unwrap_or_else(unknown)));
    for (name, value) in counted(&verdict.counts) {
        row(&name, &value);
    }
    let _ = writeln!(text);
    for check in Check::ALL {
        let violations = verdict.violated.get(&check).copied().unwrap_or_default();
        let outcome = if violations == 0 { "ok".to_owned() } else { format!("VIOLATED {violations} times") };
        let _ = writeln!(text, "{:<60} {outcome}", format!("check {}", check.name()));
    }
    for violation in &verdict.violations {
        let _ = writeln!(text, "\n{}: {}", violation.check.name(), violation.text);
        for shown in &violation.history {
            let _ = writeln!(text, "  {}:{} {}", shown.file, shown.line, shown.record);
        }
    }
    let outcome = if verdict.passed { "PASSED" } else { "FAILED" };
    let _ = writeln!(text, "\n{outcome}, seed {}", verdict.seed.map_or_else(unknown, |seed| seed.to_string()));
    text
}

fn counted(counts: &Counts) -> Vec<(String, String)> {
    let ms = |ms: u64| duration(ms.saturating_mul(1_000_000));
    let repeats = &counts.repeats;
    let mut rows = vec![
        ("lasted", ms(counts.lasted_ms)),
        ("transactions committed", counts.transactions.to_string()),
        ("messages committed", counts.messages.to_string()),
        ("  lost", counts.lost.to_string()),
        ("  out of order", counts.out_of_order.to_string()),
        ("messages arrived that were never committed", counts.phantom.to_string()),
        ("arrivals beyond a message's first", counts.repeated.to_string()),
        ("messages published again", repeats.sum().to_string()),
        ("  after a fail-over", repeats.fail_over.to_string()),
        ("  after a kill", repeats.kill.to_string()),
        ("  after a lost lane or lease", repeats.lost_lease.to_string()),
        ("  after an answer that was lost or unsure", repeats.ambiguous.to_string()),
        ("  after a hand-over within a batch", repeats.handed_over.to_string()),
        ("  after the lane was opened again", repeats.reopened.to_string()),
        ("  after their rows were set back", repeats.set_back.to_string()),
        ("  after their rows' keys were changed", repeats.rekeyed.to_string()),
        ("  dropped by the sink", counts.dropped_by_sink.to_string()),
        ("not in the database after a fail-over, delivered before", counts.fail_over_lost_delivered.to_string()),
        ("lost by a fail-over, not delivered", counts.fail_over_lost_undelivered.to_string()),
        ("calls of the sink", counts.batches.to_string()),
        ("messages in them", counts.published.to_string()),
        ("most messages of a lane in flight", counts.most_in_flight.to_string()),
        ("positions confirmed", counts.positions.to_string()),
        ("replicas joined", counts.replicas.to_string()),
        ("lanes claimed", counts.claims.to_string()),
        ("lanes made by splitting", counts.split_lanes.to_string()),
        ("segments emptied", counts.emptied.to_string()),
        ("longest without an owner", ms(counts.longest_unowned_ms)),
        ("longest take-over, to the next publish", ms(counts.longest_take_over_ms)),
        ("calls late while their process was stopped", counts.late_while_stopped.to_string()),
        ("drained after calm", counts.drained_ms.map_or_else(|| "never".to_owned(), ms)),
        ("processes judged for leaks", counts.judged_processes.to_string()),
        ("processes too short-lived for that", counts.unjudged_processes.to_string()),
        ("lines torn by a kill", counts.torn_lines.to_string()),
        ("fail-overs", counts.fail_overs.to_string()),
        ("faults begun", counts.faults_begun.values().sum::<u64>().to_string()),
    ];
    let named: Vec<String> = counts.faults_begun.keys().map(|kind| format!("  {kind}")).collect();
    let mut all: Vec<_> = rows.drain(..).map(|(name, value)| (name.to_owned(), value)).collect();
    all.extend(named.into_iter().zip(counts.faults_begun.values().map(u64::to_string)));
    if !counts.meddled.is_empty() {
        all.extend(meddled(counts).map(|(name, value)| (name.to_owned(), value)));
    }
    all
}

/// What the owner of an adopted table did, and what came of it.
fn meddled(counts: &Counts) -> [(&'static str, String); 11] {
    let of = |deed| counts.meddled.get(&deed).copied().unwrap_or_default().to_string();
    [
        ("rows that their owner meddled with", counts.meddled.values().sum::<u64>().to_string()),
        ("  changed", of(Deed::Changed)),
        ("    told to be, since they were read", counts.changes_told.to_string()),
        ("    their last content never arrived", counts.former_contents.to_string()),
        ("  of another key from then on", of(Deed::Rekeyed)),
        ("  set back", of(Deed::SetBack)),
        ("    sent again", counts.sent_again.to_string()),
        ("    deleted later, or of another key before", counts.set_back_in_vain.to_string()),
        ("  deleted", of(Deed::Deleted)),
        ("    never arrived", counts.deleted_undelivered.to_string()),
        ("  locked", of(Deed::Locked)),
    ]
}
