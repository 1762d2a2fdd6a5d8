//! Both ends of each relay: its source, by the check that a replica makes when it starts, and its sink, by its probe.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use uuid::Uuid;

use super::{Finding, Level};
use crate::adopt::{self, Configured, Unusable, Verdict, ask};
use crate::config::{Destination, Examined, ExaminedRelay};
use crate::connection::Database;
use crate::error::Error;
use crate::lane::{RelayName, ReplicaId};
use crate::source::table::{TableSource, TableSpec};
use crate::source::{Behind, Source, SourceSpec};

/// Asks each sink, all at once.
pub(super) async fn sinks(relays: &[ExaminedRelay]) -> Vec<Finding> {
    const CHECK: &str = "sink";
    let asked = relays.iter().map(|ExaminedRelay { spec, goes_to }| async move {
        let relay = &spec.name;
        let file: Option<&Path> = match goes_to {
            Destination::Stdout => {
                return Finding::ok(
                    CHECK,
                    format!("relay {relay}: the replica's own standard output: T5 (at least once)"),
                );
            }
            Destination::File(path) => Some(path),
            Destination::Asked => None,
        };
        match ask(&*spec.sink, file).await {
            Ok(what) => Finding::ok(CHECK, format!("relay {relay}: {what}")),
            Err(Unusable { what, todo }) => {
                let elsewhere = if file.is_some() {
                    "Look at the path and its rights"
                } else {
                    "Look whether it is reached from this machine"
                };
                let remedy = Some(todo.unwrap_or(elsewhere).to_owned());
                Finding { check: CHECK, level: Level::Problem, what: format!("relay {relay}: {what}"), remedy }
            }
        }
    });
    join_all(asked).await
}

/// Tries each source without writing.
pub(super) async fn sources(examined: &Examined) -> Vec<Finding> {
    const CHECK: &str = "source";
    let mut found = Vec::new();
    for ExaminedRelay { spec, .. } in &examined.relays {
        let name = spec.name.clone();
        match &spec.source {
            SourceSpec::Native => {
                found.push(Finding::ok(CHECK, format!("relay {name} reads the outbox: see `outbox`")));
            }
            SourceSpec::Table(table) => {
                // Its sink is asked beside it.
                let configured = Configured { name: name.clone(), spec: Arc::clone(table), sink: None, file: None };
                match adopt::check(&examined.database, &configured).await {
                    Ok(report) => found.extend(of_report(report)),
                    Err(error) => found.push(Finding::unknown(
                        CHECK,
                        &format!("whether relay {name} can read {}", table.table),
                        &error,
                    )),
                }
            }
        }
    }
    found
}

/// What `adopt --check` says, but of the sink.
fn of_report(adopt::Report { relay, table, findings }: adopt::Report) -> Vec<Finding> {
    const CHECK: &str = "source";
    let of = |finding: adopt::Finding| {
        let level = match (finding.verdict, finding.about) {
            (Verdict::Good, _) => Level::Ok,
            // What costs more with each row, and what lets others in.
            (Verdict::Advice, "index" | "role") => Level::Warning,
            (Verdict::Advice, _) => Level::Note,
            (Verdict::Wrong, _) => Level::Problem,
        };
        let what = format!("relay {relay}, {} of {table}: {}", finding.about, finding.text);
        let remedy = (level > Level::Ok)
            .then(|| "As it says; `pgbaton adopt` proposes a relay for the table as it is now".to_owned());
        Finding { check: CHECK, level, what, remedy }
    };
    findings.into_iter().filter(|finding| finding.about != "sink").map(of).collect()
}

/// What is pending of an adopted table.
pub(super) async fn pending(database: &Database, relay: &RelayName, table: &Arc<TableSpec>) -> Result<Behind, Error> {
    // Nobody's: nothing is claimed.
    let replica = ReplicaId(Uuid::nil());
    let source = TableSource::new(relay.clone(), replica, (**table).clone(), database, Arc::default(), Arc::default());
    source.check().await?;
    source.behind().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_check_of_a_table_says_is_told_as_one_of_ours() {
        let finding = |verdict, about| adopt::Finding { verdict, about, text: "x".into() };
        let findings = vec![
            finding(Verdict::Good, "table"),
            finding(Verdict::Advice, "index"),
            finding(Verdict::Advice, "rows"),
            finding(Verdict::Wrong, "rows"),
            finding(Verdict::Advice, "sink"),
        ];
        let found = of_report(adopt::Report { relay: "orders".into(), table: "app.t".into(), findings });
        let levels: Vec<Level> = found.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warning, Level::Note, Level::Problem]);
        assert_eq!(found[1].what, "relay orders, index of app.t: x");
    }
}
