//! An inbox table in any PostgreSQL database: exactly once (T1).
//!
//! One statement a batch: it compares and moves the lane's fence row (epoch and position), and inserts the messages only
//! if that succeeded. So a replica that lost its lane writes nothing, and what was written and what the sink says it
//! holds are always the same. Messages are unique by relay and message id besides, for repeats after a fail-over.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use crate::clock::Deadline;
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::{Error, Kind};
use crate::faults;
use crate::lane::{Epoch, Grant};
use crate::message::Payload;
use crate::outcome::codes::postgres as codes;
use crate::outcome::{AppendError, Code, Fault, Meaning, Outcome};
use crate::source::Opaque;
use crate::sql::{self, Verb};

/// The largest batch one statement takes well; arrays of it are built in memory on both sides.
const MAX_BATCH_BYTES: usize = 16 << 20;

/// How long a batch may take for as long as the lease is renewed: one of 256 MiB takes its time.
const APPEND_PATIENCE: Duration = Duration::from_secs(120);

/// A connection keeps the memory that its largest statement took, one in each lane. After one this large it is replaced.
const REPLACED_ABOVE_BYTES: usize = 4 << 20;

/// An inbox table and the fence table beside it.
pub struct Inbox {
    database: Database,
    statements: Arc<Statements>,
}

/// The statements with the tables' quoted names filled in.
struct Statements {
    probe: String,
    fence: String,
    held: String,
    append: String,
}

/// Why a table name cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a table is named as `schema.table`, in lower-case letters, digits and `_`")]
pub struct BadTable;

impl Inbox {
    /// The inbox `schema.table` in this database. Its fence table is `schema.table_fence`.
    ///
    /// # Errors
    /// A name of another form.
    pub fn new(database: Database, table: &str) -> Result<Self, BadTable> {
        let (schema, name) = split(table)?;
        let fill = |sql: &str| sql.replace("{schema}", schema).replace("{table}", name);
        let statements = Statements {
            probe: fill(include_str!("postgres/probe.sql")),
            fence: fill(include_str!("postgres/fence.sql")),
            held: fill(include_str!("postgres/held.sql")),
            append: fill(include_str!("postgres/append.sql")),
        };
        Ok(Self { database, statements: Arc::new(statements) })
    }

    /// What whoever wrote its DSN should know.
    pub(crate) fn warnings(&self) -> &[String] {
        self.database.warnings()
    }
}

/// The SQL that makes the inbox `schema.table` and its fence table, and the grants of the role that the sink's DSN names.
///
/// # Errors
/// A name of another form.
pub fn inbox_ddl(table: &str, role: &str) -> Result<String, BadTable> {
    let (schema, name) = split(table)?;
    let ddl = include_str!("postgres/inbox.sql").replace("{schema}", schema).replace("{table}", name);
    Ok(ddl.replace("{role}", &sql::quoted(role)))
}

fn split(table: &str) -> Result<(&str, &str), BadTable> {
    let plain = |name: &&str| {
        (1..=50).contains(&name.len())
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_'))
    };
    table.split_once('.').filter(|(schema, name)| plain(schema) && plain(name)).ok_or(BadTable)
}

#[async_trait]
impl Sink for Inbox {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        let failed = |error: Error| {
            let fault = of_no_message(&error);
            if error.is_transient() { ProbeError::SinkDown(fault) } else { ProbeError::Unusable(fault) }
        };
        let connection = self.database.connect().await.map_err(failed)?;
        let probe = Verb { name: "probe (`pgbaton inbox` prints the tables)", sql: &self.statements.probe };
        let [rows] = connection.pipeline(Access::Look, [(probe, &[])]).await.map_err(failed)?;
        let missing = rows.first().map(|row| row.try_get("missing")).transpose();
        let missing = missing.map_err(|error| ProbeError::SinkDown(unread(&error)))?;
        if let Some(missing) = missing.filter(|missing: &&str| !missing.is_empty()) {
            let text = format!("this role lacks {missing}; `pgbaton inbox` ends with the grants");
            return Err(ProbeError::Unusable(Fault::new(&codes::RIGHTS, &text)));
        }
        Ok(Capabilities {
            fences: true,
            keeps_position: true,
            max_batch_bytes: Some(MAX_BATCH_BYTES),
            ..Capabilities::plain(Tier::T1)
        })
    }

    async fn open(&self, grant: &Grant, opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        let failed = |error: Error| OpenError::SinkDown(of_no_message(&error));
        let unread = |error: tokio_postgres::Error| OpenError::SinkDown(unread(&error));
        let connection = self.database.connect().await.map_err(failed)?;
        let relay = grant.lane.relay.as_str();
        let again = opening == Opening::Again;
        let parameters: [Parameter<'_>; 4] = [
            (&relay, Type::TEXT),
            (&grant.lane.number, Type::INT4),
            (&grant.epoch.0, Type::INT8),
            (&again, Type::BOOL),
        ];
        let fence = Verb { name: "fence", sql: &self.statements.fence };
        let held = Verb { name: "held", sql: &self.statements.held };
        let [taken, held] = connection
            .pipeline(Access::Write, [(fence, &parameters), (held, &parameters[..2])])
            .await
            .map_err(failed)?;
        let held = held.first().ok_or_else(|| OpenError::SinkDown(Fault::new(&codes::FAILED, "no fence row")))?;
        if taken.is_empty() {
            let epoch = held.try_get("epoch").map_err(unread)?;
            return Err(OpenError::Fenced { epoch: Epoch(epoch) });
        }
        let position: Option<Vec<u8>> = held.try_get("position").map_err(unread)?;
        let holds = position.map(Opaque::from_bytes);
        let (database, statements) = (self.database.clone(), Arc::clone(&self.statements));
        Ok(Box::new(OpenInbox { database, connection, statements, grant: grant.clone(), holds }))
    }
}

/// One lane's hold on the inbox: a connection of its own.
struct OpenInbox {
    database: Database,
    connection: Connection,
    statements: Arc<Statements>,
    grant: Grant,
    holds: Option<Opaque>,
}

/// A batch as the columns of one statement.
#[derive(Default)]
struct Columns<'a> {
    ids: Vec<&'a str>,
    topics: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    headers: Vec<Option<&'a str>>,
    payloads: Vec<Option<&'a [u8]>>,
    json: Vec<Option<&'a str>>,
    created: Vec<i64>,
    /// Of payloads.
    bytes: usize,
}

impl<'a> Columns<'a> {
    fn of(part: &Part<'a>) -> Self {
        let mut columns = Self::default();
        for message in part.messages() {
            columns.ids.push(message.id);
            columns.topics.push(message.topic);
            columns.keys.push(message.key);
            columns.headers.push(message.headers);
            let (payload, json) = match message.payload {
                Payload::None => (None, None),
                Payload::Bytes(bytes) => (Some(bytes), None),
                Payload::Json(text) => (None, Some(text)),
            };
            columns.payloads.push(payload);
            columns.json.push(json);
            columns.created.push(message.created_at.0);
            columns.bytes += message.payload.len();
        }
        columns
    }
}

#[async_trait]
impl OpenLane for OpenInbox {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(self.holds.clone())
    }

    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        let columns = Columns::of(part);
        let relay = self.grant.lane.relay.as_str();
        let prev = part.prev.map(Opaque::as_bytes);
        let parameters: [Parameter<'_>; 12] = [
            (&relay, Type::TEXT),
            (&self.grant.lane.number, Type::INT4),
            (&self.grant.epoch.0, Type::INT8),
            (&prev, Type::BYTEA),
            (&part.next.as_bytes(), Type::BYTEA),
            (&columns.ids, Type::TEXT_ARRAY),
            (&columns.topics, Type::TEXT_ARRAY),
            (&columns.keys, Type::TEXT_ARRAY),
            (&columns.headers, Type::TEXT_ARRAY),
            (&columns.payloads, Type::BYTEA_ARRAY),
            (&columns.json, Type::TEXT_ARRAY),
            (&columns.created, Type::INT8_ARRAY),
        ];
        let append = Verb { name: "append", sql: &self.statements.append };
        deadline.check().map_err(|_| AppendError::LeaseOver)?;
        faults::point("sink.checked");
        // The deadline moves and the caller watches it. A late append does no harm: the fence is compared when it commits.
        let answer =
            self.connection.pipeline_within(APPEND_PATIENCE, Access::WriteTheirs, [(append, &parameters)]).await;
        if columns.bytes > REPLACED_ABOVE_BYTES
            && let Ok(fresh) = self.database.connect().await
        {
            self.connection = fresh;
        }
        match answer {
            Ok([rows]) => self.outcomes(&rows, part),
            Err(error) => failed(&error, part.len()),
        }
    }
}

impl OpenInbox {
    /// The first row tells how the fence stood; the others name the messages that are new.
    fn outcomes(&self, rows: &[tokio_postgres::Row], part: &Part<'_>) -> Result<Vec<Outcome>, AppendError> {
        let broken = |error: tokio_postgres::Error| AppendError::Ambiguous(unread(&error));
        let fence = rows.first().ok_or(AppendError::Moved)?;
        if !fence.try_get::<_, bool>("moved").map_err(broken)? {
            let epoch = fence.try_get::<_, Option<i64>>("epoch").map_err(broken)?.unwrap_or_default();
            return Err(if epoch == self.grant.epoch.0 {
                AppendError::Moved
            } else {
                AppendError::Fenced { epoch: Epoch(epoch) }
            });
        }
        let mut new = std::collections::HashSet::with_capacity(rows.len());
        for row in rows {
            new.extend(row.try_get::<_, Option<&str>>("message_id").map_err(broken)?);
        }
        let outcome = |id: &str| if new.remove(id) { Outcome::Delivered } else { Outcome::Repeated };
        Ok(part.messages().map(|message| message.id).map(outcome).collect())
    }
}

/// The answer to a batch whose statement failed.
fn failed(error: &Error, messages: usize) -> Result<Vec<Outcome>, AppendError> {
    let fault = fault_of(error, code_of(error), messages);
    // A statement that failed has written nothing, unless the server was lost over it.
    let is_known = error.sql_state().is_some_and(|state| !state.starts_with("08") && !state.starts_with("57"));
    if is_known { Outcome::of_all(fault, messages) } else { Err(AppendError::Ambiguous(fault)) }
}

/// A fault of a call that carries no message, so that there is none to refuse.
fn of_no_message(error: &Error) -> Fault {
    let code = code_of(error);
    fault_of(error, if code.meaning == Meaning::Reject { &codes::FAILED } else { code }, 0)
}

/// A column of an answer is of another type than `pgbaton inbox` makes it.
fn unread(error: &tokio_postgres::Error) -> Fault {
    Fault::new(&codes::FAILED, &error.to_string())
}

fn fault_of(error: &Error, code: &'static Code, messages: usize) -> Fault {
    let words = || error.in_words();
    // Hints of such errors are for the database with the outbox.
    let text = if *code == codes::MISSING {
        format!("{}; `pgbaton inbox` prints the tables that a sink needs", words())
    } else if *code == codes::RIGHTS {
        format!("{}; `pgbaton inbox` ends with the grants", words())
    } else if code.meaning != Meaning::Reject {
        error.to_string()
    } else if messages > 1 {
        format!("{}. It is one of {messages} messages: the log of the sink's server names the row", words())
    } else {
        words()
    };
    Fault::new(code, &text)
}

/// The code of what went wrong between here and the sink's server.
fn code_of(error: &Error) -> &'static Code {
    match (error.sql_state(), error.kind()) {
        (_, Kind::NotWritable) => &codes::NOT_WRITABLE,
        (Some(state), _) => code_of_state(state),
        (None, Kind::Database) => &codes::UNREACHABLE,
        // What the driver finds out while it logs in: a password that is missing, a certificate that is not trusted.
        (None, Kind::Refused) => &codes::LOGIN,
        (None, _) => &codes::FAILED,
    }
}

/// By the server's five characters, of which the first two are the class.
fn code_of_state(state: &str) -> &'static Code {
    match (state.get(..2).unwrap_or_default(), state) {
        // Data, integrity constraints, limits of a row or an index, and what a trigger raises.
        ("22" | "23" | "54" | "P0", _) => &codes::REFUSED,
        // Connections, and more of them than the server has.
        ("08", _) | (_, "53300") => &codes::UNREACHABLE,
        // Starting, stopping, an operator's or the server's end of a session.
        ("57", state) if state.starts_with("57P") => &codes::UNREACHABLE,
        (_, "25006") => &codes::NOT_WRITABLE,
        // The user, the password, the database.
        ("28" | "3D", _) => &codes::LOGIN,
        (_, "42501") => &codes::RIGHTS,
        // Schemas, and names of all kinds.
        ("3F" | "42", _) => &codes::MISSING,
        // A transaction that was rolled back for another one, and a lock that could not be had in time.
        ("40", _) | (_, "55P03") => &codes::CONFLICT,
        _ => &codes::FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_named_plainly() {
        assert_eq!(split("app.inbox_2"), Ok(("app", "inbox_2")));
        for bad in ["inbox", "App.inbox", "a.b.c", "a.\"b\"", ".b", "a.", "a.1b"] {
            assert_eq!(split(bad), Err(BadTable), "{bad}");
        }
    }

    #[test]
    fn every_sqlstate_has_its_code() {
        for (states, wanted, meaning) in [
            (&["22001", "22P05", "23502", "23505", "23514", "54000", "P0001"][..], &codes::REFUSED, Meaning::Reject),
            (&["08000", "08006", "57P01", "57P03", "57P05", "53300"], &codes::UNREACHABLE, Meaning::Down),
            (&["25006"], &codes::NOT_WRITABLE, Meaning::Down),
            (&["28000", "28P01", "3D000"], &codes::LOGIN, Meaning::Down),
            (&["42501"], &codes::RIGHTS, Meaning::Down),
            (&["3F000", "42P01", "42703", "42883", "42P10"], &codes::MISSING, Meaning::Down),
            (&["40001", "40P01", "55P03"], &codes::CONFLICT, Meaning::Down),
            (&["53100", "53200", "57014", "58030", "25P03", "XX000", "0A000", "?", ""], &codes::FAILED, Meaning::Down),
        ] {
            for state in states {
                let code = code_of_state(state);
                assert_eq!((code, code.meaning), (wanted, meaning), "{state}");
            }
        }
    }

    #[test]
    fn what_the_server_did_not_say_has_its_code() {
        for (kind, wanted) in [
            (Kind::Database, &codes::UNREACHABLE),
            (Kind::NotWritable, &codes::NOT_WRITABLE),
            (Kind::Refused, &codes::LOGIN),
            (Kind::Internal, &codes::FAILED),
        ] {
            let error = Error::new(kind, "x");
            assert_eq!(code_of(&error), wanted);
            // Without a word of the server's it may have been written.
            assert!(matches!(failed(&error, 2), Err(AppendError::Ambiguous(fault)) if fault.code() == wanted));
        }
    }
}
