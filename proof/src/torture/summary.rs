//! What a run ends with: a table for people, and a file for machines.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use checker::history::Deed;
use serde::Serialize;

use super::faults;
use super::log::Count;
use super::outbox::SourceKind;
use super::plan::SinkKind;
use super::stage::Stage;
use super::writers::Written;

/// All figures.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) seed: u64,
    /// The command line that tries the same again.
    pub(super) command: String,
    pub(super) source: SourceKind,
    pub(super) sink: SinkKind,
    pub(super) replicas: u32,
    /// Of writing and hurting, without the end.
    pub(super) seconds: f64,
    pub(super) written: Written,
    /// Transactions that the ledger holds.
    pub(super) ledger: usize,
    /// Messages that arrived, repeats included.
    pub(super) arrived: u64,
    /// Whether everything was delivered in time once it was calm.
    pub(super) drained: bool,
    /// From calm to the last delivery.
    pub(super) drain_seconds: f64,
    pub(super) faults_done: usize,
    pub(super) faults: BTreeMap<&'static str, Count>,
    /// How often a process stopped or killed itself at each fail point.
    pub(super) at_points: BTreeMap<String, u32>,
    /// Kinds that could not be done on this machine, or with this sink, and why.
    pub(super) not_done: BTreeMap<&'static str, String>,
    /// What some faults brought about that others of their kind did not.
    pub(super) effects: BTreeMap<&'static str, u32>,
    /// Why faults failed that were begun: the last reason of each kind.
    pub(super) failures: BTreeMap<&'static str, String>,
    /// What must not be and does not show in the history.
    pub(super) findings: Vec<String>,
    /// What the checker says.
    pub(super) verdict: Option<checker::Verdict>,
    /// Whether all is as promised.
    pub(super) flawless: bool,
}

/// Kinds that were to be drawn and cannot be done.
pub(super) fn not_done(stage: &Stage) -> BTreeMap<&'static str, String> {
    let kinds = stage.plan.kinds.iter();
    kinds.filter_map(|kind| Some((kind.name, faults::impossible(kind, stage)?))).collect()
}

/// A run whose faults fail shows little, however short it is.
pub(super) fn find_faults_that_fail(stage: &Stage) {
    too_many_fail(&stage.log.counts()).into_iter().for_each(|finding| stage.log.find(finding));
}

fn too_many_fail(counts: &BTreeMap<&'static str, Count>) -> Vec<String> {
    /// So often a kind may fail that has not taken place yet.
    const CHANCE: u32 = 2;
    let sum = |of: fn(&Count) -> u32| counts.values().map(of).sum::<u32>();
    let (done, failed) = (sum(|count| count.done), sum(|count| count.failed));
    let mut found = Vec::new();
    if done == 0 {
        found.push("no fault took place".to_owned());
    }
    if failed > done {
        found.push(format!("{failed} faults failed, and {done} took place"));
    }
    let always = counts.iter().filter(|(_, count)| count.done == 0 && count.failed > CHANCE);
    found.extend(always.map(|(name, count)| format!("{name} failed {} times, and never took place", count.failed)));
    found
}

/// A kind that always fails, or always has something in its way, shows nothing.
pub(super) fn find_kinds_that_never_came(stage: &Stage) {
    let counts = stage.log.counts();
    let possible = stage.plan.kinds.iter().filter(|unit| faults::impossible(unit, stage).is_none());
    for unit in possible.filter(|unit| counts.get(unit.name).is_none_or(|count| count.done == 0)) {
        stage.log.find(format!("{} never took place", unit.name));
    }
}

/// An owner of the table who leaves it alone shows nothing, either. A minute is enough for each deed.
pub(super) fn find_deeds_that_never_came(stage: &Stage, written: Written) {
    const ENOUGH: Duration = Duration::from_secs(60);
    let deeds = stage.plan.source.deeds().iter().filter(|_| stage.plan.length >= ENOUGH);
    for deed in deeds.filter(|deed| written.meddled.of(**deed) == 0) {
        stage.log.find(format!("no row was ever {deed:?} by the table's owner"));
    }
}

impl Summary {
    /// What a long run has to have seen besides all faults.
    pub(super) fn find_what_never_happened(&mut self) {
        if self.written.bulk_loads == 0 {
            self.findings.push("no bulk load was committed".to_owned());
        }
        let emptied = self.verdict.as_ref().is_none_or(|verdict| verdict.counts.emptied > 0);
        if !emptied && !self.source.is_adopted() {
            self.findings.push("no segment was emptied".to_owned());
        }
    }

    /// With the word on the whole.
    pub(super) fn concluded(mut self) -> Summary {
        let passed = self.verdict.as_ref().is_some_and(|verdict| verdict.passed);
        self.flawless = passed && self.drained && self.findings.is_empty();
        self
    }

    /// For people.
    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "\n  torture: source {}, sink {}, {} replicas, {:.0} s, seed {}\n\n",
            self.source.name(),
            self.sink.name(),
            self.replicas,
            self.seconds,
            self.seed
        );
        let written = &self.written;
        for (name, number) in [
            ("messages committed", written.messages),
            ("transactions committed", written.committed),
            ("  rolled back", written.rolled_back),
            ("  failed or unsure", written.unsure),
            ("  bulk loads", written.bulk_loads),
            ("transactions in the ledger", self.ledger as u64),
            ("messages arrived", self.arrived),
        ] {
            let _ = writeln!(text, "  {name:<28} {number:>12}");
        }
        for deed in self.source.deeds() {
            let name = match deed {
                Deed::Locked => "rows locked by their owner",
                Deed::Changed => "  changed",
                Deed::Rekeyed => "  of another key",
                Deed::SetBack => "  set back",
                Deed::Deleted => "  deleted",
            };
            let _ = writeln!(text, "  {name:<28} {:>12}", written.meddled.of(*deed));
        }
        let _ = writeln!(text, "  {:<28} {:>12}", "faults", self.faults_done);
        for (kind, Count { done, not_then, failed, longest_ms }) in &self.faults {
            let _ = write!(
                text,
                "    {kind:<26} {done:>12}   at most {:.1} s",
                Duration::from_millis(*longest_ms).as_secs_f64()
            );
            for (times, what) in [(not_then, "times it could not be done then"), (failed, "failed")] {
                let _ = if *times > 0 { write!(text, ", {times} {what}") } else { Ok(()) };
            }
            text.push('\n');
        }
        for (point, done) in &self.at_points {
            let _ = writeln!(text, "    {point:<36} {done:>2}");
        }
        for (what, count) in &self.effects {
            let _ = writeln!(text, "  {what}: {count} times");
        }
        for (kind, why) in &self.not_done {
            let _ = writeln!(text, "  not done here: {kind}: {why}");
        }
        for (kind, why) in &self.failures {
            let _ = writeln!(text, "  failed: {kind}: {why}");
        }
        let _ = writeln!(text, "  the same again: {}", self.command);
        let drained = if self.drained { "all delivered" } else { "NOT ALL DELIVERED" };
        let _ = writeln!(text, "  {drained} {:.1} s after calm", self.drain_seconds);
        for finding in &self.findings {
            let _ = writeln!(text, "  found: {finding}");
        }
        if let Some(verdict) = &self.verdict {
            text.push('\n');
            text.push_str(&checker::table(verdict));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_that_fail_are_found_and_those_that_do_once_are_not() {
        let found = |counts: &[(&'static str, u32, u32)]| {
            let count = |(name, done, failed): &(&'static str, u32, u32)| {
                (*name, Count { done: *done, failed: *failed, ..Count::default() })
            };
            too_many_fail(&counts.iter().map(count).collect())
        };
        assert_eq!(found(&[]), ["no fault took place"]);
        assert_eq!(found(&[("kill", 3, 0), ("cut", 0, 2), ("cancel", 1, 2)]), Vec::<String>::new());
        assert_eq!(found(&[("kill", 3, 0), ("cut", 0, 3)]), ["cut failed 3 times, and never took place"]);
        assert_eq!(found(&[("kill", 1, 0), ("cut", 0, 2)]), ["2 faults failed, and 1 took place"]);
    }
}
