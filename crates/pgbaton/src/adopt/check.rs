//! Trying a relay on a live table without writing: its source's own check, some pending rows, and its sink.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::Configured;
use crate::connection::{Access, Database, Parameter};
use crate::error::Error;
use crate::lane::ReplicaId;
use crate::sink::{ProbeError, Sink};
use crate::source::Source;
use crate::source::table::{NO_AGE, TableSource};
use crate::sql;

/// Pending rows that are looked at.
const ROWS: i64 = 200;
/// Of those that cannot be delivered, so many are named.
const NAMED: usize = 10;
/// How long a sink may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a check found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The relay.
    pub relay: String,
    /// Its table, quoted.
    pub table: String,
    /// In the order in which they were looked for.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// How it is.
    pub verdict: Verdict,
    /// What: `table`, `role`, `relay`, `index`, `rows` or `sink`.
    pub about: &'static str,
    /// In words.
    pub text: String,
}

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it has to be.
    Good,
    /// It works, and could be better, or was not looked at.
    Advice,
    /// The relay would not start, or would hold a lane.
    Wrong,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict != Verdict::Wrong)
    }

    fn add(&mut self, verdict: Verdict, about: &'static str, text: impl Into<String>) {
        self.findings.push(Finding { verdict, about, text: text.into() });
    }
}

/// Looks whether this relay would run on its table and its sink. Nothing is written, in the database or at the sink.
///
/// # Errors
/// The database cannot be reached, so that nothing is known.
pub async fn check(database: &Database, relay: &Configured) -> Result<Report, Error> {
    let (name, spec) = (relay.name.clone(), (*relay.spec).clone());
    let mut report = Report { relay: name.to_string(), table: spec.table.to_string(), findings: Vec::new() };
    // Nobody's: nothing is claimed.
    let replica = ReplicaId(Uuid::nil());
    let source = TableSource::new(name, replica, spec, database, Arc::default(), Arc::default());
    match source.check().await {
        Ok(()) => {
            report.add(Verdict::Good, "table", "it can be adopted like that, and its statements are accepted");
            role(database, &mut report).await?;
            registered(database, relay, &mut report).await?;
            index(&source, relay, &mut report).await?;
            rows(&source, relay, &mut report).await?;
        }
        Err(error) if error.is_transient() => return Err(error),
        Err(error) => report.add(Verdict::Wrong, "table", error.to_string()),
    }
    sink(relay, &mut report).await;
    Ok(report)
}

/// Names in `pending`, in `mark` and in the table's triggers are looked up as the role has it.
async fn role(database: &Database, report: &mut Report) -> Result<(), Error> {
    let connection = database.connect().await?;
    let [rows] = connection.pipeline(Access::ReadTheirs, [(sql::OPEN_PATH, &[])]).await?;
    let schemas = rows.iter().map(|row| row.try_get("schema")).collect::<Result<Vec<&str>, _>>()?;
    if !schemas.is_empty() {
        let text = format!(
            "others may make functions and operators in {}, where this role looks for the names in `pending`, `mark` and triggers: \
             revoke that, or set the role's search_path",
            schemas.join(", ")
        );
        report.add(Verdict::Advice, "role", text);
    }
    Ok(())
}

/// Another relay may have the table, or this one may have been registered for something else.
async fn registered(database: &Database, relay: &Configured, report: &mut Report) -> Result<(), Error> {
    let (name, table) = (relay.name.as_str(), relay.spec.table.to_string());
    let parameters: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&table, Type::TEXT)];
    let connection = database.connect().await?;
    let [rows] = connection.pipeline(Access::Look, [(sql::ADOPTERS, &parameters)]).await?;
    let before = report.findings.len();
    for row in &rows {
        let other: &str = row.try_get("name")?;
        let definition: Option<&str> = row.try_get("definition")?;
        let same = definition.and_then(|known| serde_json::from_str::<serde_json::Value>(known).ok())
            == Some(relay.spec.definition());
        let text = if other != name {
            format!("its table is adopted by relay {other}: only one relay can mark rows of a table")
        } else if !same {
            "it was registered for another source: drop it (`pgbaton relays drop`) if this one is meant".to_owned()
        } else if !row.try_get::<_, bool>("same_table")? {
            "it was registered for another table of this name: stop its replicas and drop it (`pgbaton relays drop`)"
                .to_owned()
        } else {
            continue;
        };
        report.add(Verdict::Wrong, "relay", text);
    }
    if report.findings.len() == before {
        let text = if rows.is_empty() {
            "not registered yet: its first replica does that"
        } else {
            "registered for this source"
        };
        report.add(Verdict::Good, "relay", text);
    }
    Ok(())
}

async fn index(source: &TableSource, relay: &Configured, report: &mut Report) -> Result<(), Error> {
    match source.missing_index().await? {
        None => report.add(Verdict::Good, "index", "an index gives just the pending rows, in order"),
        Some(index) => {
            let but = relay.spec.index_but();
            let text = format!(
                "no index gives just the pending rows in order, so that a look may read all of the table; make one{but}: {index}"
            );
            report.add(Verdict::Advice, "index", text);
        }
    }
    Ok(())
}

async fn rows(source: &TableSource, relay: &Configured, report: &mut Report) -> Result<(), Error> {
    let sample = source.sample(ROWS).await?;
    let (rows, bad) = (sample.rows, sample.bad.len());
    for (id, why) in sample.bad.iter().take(NAMED) {
        report.add(Verdict::Wrong, "rows", format!("row {id} cannot be delivered, and would hold its lane: {why}"));
    }
    if bad > NAMED {
        report.add(
            Verdict::Wrong,
            "rows",
            format!("{} more of the first {rows} pending rows cannot be delivered", bad - NAMED),
        );
    } else if rows == 0 {
        report.add(Verdict::Advice, "rows", "none is pending: the mark was not tried on one");
    } else if bad == 0 {
        report.add(Verdict::Good, "rows", format!("each of the first {rows} pending rows can become a message"));
    }
    if relay.spec.payload.is_some() && sample.empty > 0 {
        let text =
            format!("{} of the first {rows} pending rows have no payload: is its column or path right?", sample.empty);
        report.add(Verdict::Advice, "rows", text);
    }
    if relay.spec.created_at.is_none() {
        report.add(Verdict::Advice, "rows", NO_AGE);
    }
    Ok(())
}

async fn sink(relay: &Configured, report: &mut Report) {
    let (verdict, text) = match &relay.sink {
        None => (
            Verdict::Advice,
            "not looked at: give one with --sink, or a configuration that has the relay with --config".to_owned(),
        ),
        Some(sink) => match ask(&**sink, relay.file.as_deref()).await {
            Ok(text) => (Verdict::Good, text),
            Err(Unusable { what, .. }) => (Verdict::Wrong, what),
        },
    };
    report.add(verdict, "sink", text);
}

/// Why a sink cannot be used now, and what to do.
pub(crate) struct Unusable {
    pub(crate) what: String,
    pub(crate) todo: Option<&'static str>,
}

/// What a sink says that it can do. A file is not opened as the sink opens it.
pub(crate) async fn ask(sink: &dyn Sink, file: Option<&Path>) -> Result<String, Unusable> {
    let unusable = |what, todo| Err(Unusable { what, todo });
    if let Some(file) = file {
        return match writable(file) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => unusable(format!("the file cannot be written: {error}"), None),
        };
    }
    match tokio::time::timeout(PATIENCE, sink.probe()).await {
        Ok(Ok(can)) => Ok(format!("it answers: {}", can.tier)),
        Ok(Err(error)) => {
            let (ProbeError::SinkDown(fault) | ProbeError::Unusable(fault)) = &error;
            unusable(error.to_string(), Some(fault.code().todo))
        }
        Err(_) => unusable(format!("no answer within {PATIENCE:?}"), None),
    }
}

/// A file is not opened as the sink opens it: that would make it, and cut a line that a running replica is just writing.
fn writable(file: &Path) -> std::io::Result<&'static str> {
    if std::fs::metadata(file).is_ok_and(|there| !there.is_file()) {
        return Ok("it is there, and no regular file, so that it was not opened: T5 (at least once)");
    }
    match std::fs::OpenOptions::new().append(true).open(file) {
        Ok(_) => Ok("the file is there and may be written: T5 (at least once)"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !std::fs::metadata(folder)?.is_dir() {
                return Err(ErrorKind::NotADirectory.into());
            }
            Ok("the file is not there yet, and its folder is: T5 (at least once)")
        }
        Err(error) => Err(error),
    }
}
