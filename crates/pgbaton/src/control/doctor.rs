//! What is wrong with a deployment, or may soon be: `pgbaton doctor`.
//!
//! Facts are fetched in transactions that can write nothing, and judged by pure functions in the files below `doctor/`. What cannot be
//! looked at is a finding by itself, and all else is looked at all the same.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::config::{Config, Examined};
use crate::error::Error;

mod aside;
mod ends;
mod holders;
mod replicas;
mod role;
mod schema;
mod server;
mod storage;

/// How long each look at the database may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it has to be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// Messages are delivered, and something costs more than it has to, or may stop that soon. Also what could not be looked at.
    Warning,
    /// Messages are not delivered, or may be lost.
    Problem,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at. Stable over releases.
    pub check: &'static str,
    /// How bad it is.
    pub level: Level,
    /// What was found, and where. Never a payload or a secret.
    pub what: String,
    /// What to do about it.
    #[serde(rename = "do")]
    pub remedy: Option<String>,
}

impl Finding {
    pub(crate) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, what: what.into(), remedy: None }
    }

    pub(crate) fn new(check: &'static str, level: Level, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level, what: what.into(), remedy: Some(remedy.into()) }
    }

    pub(crate) fn note(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Level::Note, what, remedy)
    }

    pub(crate) fn warning(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Level::Warning, what, remedy)
    }

    pub(crate) fn problem(check: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Level::Problem, what, remedy)
    }

    /// What an error says, and what it says to do.
    fn of(check: &'static str, level: Level, error: &Error) -> Self {
        let what = format!("{} [{}]", error.in_words(), error.code());
        Self::new(check, level, what, advice(error))
    }

    /// What could not be looked at.
    fn unknown(check: &'static str, thing: &str, error: &Error) -> Self {
        let what = format!("not known: {thing}, because {} [{}]", error.in_words(), error.code());
        Self::new(check, Level::Warning, what, advice(error))
    }
}

/// What an error says to do, or what there is to look at.
fn advice(error: &Error) -> &'static str {
    const LOOK: &str = "Look at the server and the way to it: the host and the port of the DSN, pg_hba.conf, max_connections, the server's log";
    error.advice().unwrap_or(LOOK)
}

/// All that was found, in the order in which it was looked at. Each check is there, whatever it found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// See [`Report`].
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether there is nothing worse than a note.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.level <= Level::Note)
    }

    /// The checks in order, each with its worst level.
    #[must_use]
    pub fn checks(&self) -> Vec<(&'static str, Level)> {
        let mut checks: Vec<(&'static str, Level)> = Vec::new();
        for Finding { check, level, .. } in &self.findings {
            match checks.iter_mut().find(|(known, _)| known == check) {
                Some((_, worst)) => *worst = (*worst).max(*level),
                None => checks.push((check, *level)),
            }
        }
        checks
    }
}

/// Looks at everything that this configuration names: the database and all its hosts, what pgbaton has there, the replicas that run, and
/// the sinks. Nothing is changed. `path` is the file that the configuration was read from, `long` for how long a transaction may be open
/// before it is told of. Takes as long as the slowest look, and up to a ttl (30 s at most) where something does not move.
///
/// # Errors
/// None once validated; the types do not know that.
pub async fn examine(config: Config, path: &Path, long: Duration) -> Result<Report, Error> {
    let mut findings = config.smells(path);
    let mut examined = config.examined()?;
    examined.database = examined.database.with_patience(PATIENCE);
    let (of_database, of_sinks) = tokio::join!(Box::pin(database(&examined, long)), ends::sinks(&examined.relays));
    findings.extend(of_database);
    findings.extend(of_sinks);
    Ok(Report { findings })
}

/// What is looked at in a database, in this order, each with what is not known where that fails.
const IN_DATABASE: [(&str, &str); 8] = [
    ("server", "its version and how it is reached"),
    ("clock", "how far the server's clock is from this machine's"),
    ("settings", "how the server, the database and the roles are set"),
    ("role", "what this role may do"),
    ("row_security", "whether rows are hidden from this role"),
    ("transactions", "what has been open for long"),
    ("slots", "what replication holds back"),
    ("schema", "its version"),
];

/// The same, where the schema is this version's.
const IN_SCHEMA: [(&str, &str); 8] = [
    ("home", "whether positions belong to this database"),
    ("outbox", "whether it is as reading relies on"),
    ("segments", "what the outbox holds, and who keeps it"),
    ("replicas", "which replicas run"),
    ("relays", "which relays are registered, and who runs them"),
    ("lanes", "whether each lane has an owner and moves"),
    ("set_aside", "which messages were set aside"),
    ("source", "whether relays can read what they are to read"),
];

/// What a look found, or that it failed.
async fn part(check: &'static str, look: impl Future<Output = Result<Vec<Finding>, Error>>) -> Vec<Finding> {
    look.await.unwrap_or_else(|error| vec![unknown(check, &error)])
}

fn unknown(check: &'static str, error: &Error) -> Finding {
    let thing =
        IN_DATABASE.iter().chain(&IN_SCHEMA).find(|(known, _)| *known == check).map_or(check, |(_, thing)| thing);
    Finding::unknown(check, thing, error)
}

async fn database(examined: &Examined, long: Duration) -> Vec<Finding> {
    let database = &examined.database;
    let mut findings = server::hosts(database).await;
    if let Err(error) = database.connect().await {
        findings.push(Finding::of("database", Level::Problem, &error));
        let rest = IN_DATABASE.iter().chain(&IN_SCHEMA);
        // The reason stands above.
        let why = Error::new(error.kind().clone(), "the database cannot be used").hint("See `hosts` and `database`");
        findings.extend(rest.map(|(check, thing)| Finding::unknown(check, thing, &why)));
        return findings;
    }
    findings.push(Finding::ok("database", "a server that suits answers"));
    findings.extend(server::itself(examined).await);
    findings.extend(part("role", role::look(database, examined.relays.len())).await);
    findings.extend(part("row_security", role::row_security(database)).await);
    findings.extend(part("transactions", holders::transactions(database, long)).await);
    findings.extend(part("slots", holders::replication(database)).await);
    match schema::version(database).await {
        Ok(found) => {
            findings.push(found);
            findings.extend(Box::pin(in_schema(examined)).await);
        }
        Err(error) => {
            findings.push(Finding::of("schema", Level::Problem, &error));
            let why = Error::new(
                error.kind().clone(),
                "the schema is not there as this version needs it, or may not be read",
            )
            .hint("See `schema` and `role`");
            findings.extend(IN_SCHEMA.iter().map(|(check, thing)| Finding::unknown(check, thing, &why)));
        }
    }
    findings
}

async fn in_schema(examined: &Examined) -> Vec<Finding> {
    let database = &examined.database;
    let mut findings = schema::outbox(examined).await;
    findings.extend(part("segments", storage::look(database)).await);
    findings.extend(replicas::look(examined).await);
    findings.extend(part("set_aside", aside::look(database)).await);
    findings.extend(ends::sources(examined).await);
    findings
}

/// A duration for people.
fn span(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 120.0 => format!("{:.0} s", seconds.max(0.0)),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds if seconds < 172_800.0 => format!("{:.0} h", seconds / 3_600.0),
        seconds => format!("{:.0} days", seconds / 86_400.0),
    }
}

/// A size for people.
fn size(bytes: i64) -> String {
    match bytes {
        bytes if bytes < 1 << 20 => format!("{} KiB", bytes >> 10),
        bytes if bytes < 1 << 34 => format!("{} MiB", bytes >> 20),
        bytes => format!("{} GiB", bytes >> 30),
    }
}

/// The first ones of a list, and how many more there are.
fn some(all: &[String]) -> String {
    const NAMED: usize = 8;
    let first = all.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    if all.len() > NAMED { format!("{first} and {} more", all.len() - NAMED) } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_as_bad_as_its_worst_finding() {
        let findings = vec![
            Finding::note("a", "x", "y"),
            Finding::ok("b", "x"),
            Finding::warning("a", "x", "y"),
            Finding::ok("a", "x"),
        ];
        let report = Report { findings };
        assert_eq!(report.checks(), [("a", Level::Warning), ("b", Level::Ok)]);
        assert!(!report.is_good());
        assert!(Report { findings: vec![Finding::note("a", "x", "y")] }.is_good());
    }

    #[test]
    fn people_read_durations_and_sizes() {
        assert_eq!([0.4, 119.0, 600.0, 7_300.0, 900_000.0].map(span), ["0 s", "119 s", "10 min", "2 h", "10 days"]);
        assert_eq!([0, 3 << 20, 20 << 30].map(size), ["0 KiB", "3 MiB", "20 GiB"]);
    }

    #[test]
    fn json_says_do() {
        let json = serde_json::to_value(Finding::warning("a", "x", "y")).unwrap();
        assert_eq!(json, serde_json::json!({ "check": "a", "level": "warning", "what": "x", "do": "y" }));
    }
}
