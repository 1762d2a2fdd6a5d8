//! An inbox table in any PostgreSQL database: exactly once (T1).
//!
//! One statement a batch: it compares and moves the lane's fence row (epoch and position), and inserts the messages only
//! if that succeeded. So a replica that lost its lane writes nothing, and what was written and what the sink says it
//! holds are always the same. Messages are unique by relay and message id besides, for repeats after a fail-over.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use crate::clock::Deadline;
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::{Error, Kind};
use crate::faults;
use crate::lane::{Epoch, Grant};
use crate::message::Payload;
use crate::outcome::{AppendError, Fault, Outcome};
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
            let fault = down(&error);
            if error.is_transient() { ProbeError::SinkDown(fault) } else { ProbeError::Unusable(fault) }
        };
        let connection = self.database.connect().await.map_err(failed)?;
        let probe = Verb { name: "probe (`pgbaton inbox` prints the tables)", sql: &self.statements.probe };
        let [rows] = connection.pipeline(Access::Look, [(probe, &[])]).await.map_err(failed)?;
        let missing =
            rows.first().map(|row| row.try_get("missing")).transpose().map_err(|error| failed(error.into()))?;
        if let Some(missing) = missing.filter(|missing: &&str| !missing.is_empty()) {
            let text = format!("this role lacks {missing}; `pgbaton inbox` ends with the grants");
            return Err(ProbeError::Unusable(Fault::new("postgres.rights", &text)));
        }
        Ok(Capabilities {
            fences: true,
            keeps_position: true,
            max_batch_bytes: Some(MAX_BATCH_BYTES),
            ..Capabilities::plain(Tier::T1)
        })
    }

    async fn open(&self, grant: &Grant, opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        let failed = |error: Error| OpenError::SinkDown(down(&error));
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
        let held = held.first().ok_or_else(|| OpenError::SinkDown(Fault::new("postgres.failed", "no fence row")))?;
        if taken.is_empty() {
            let epoch = held.try_get("epoch").map_err(|error| failed(error.into()))?;
            return Err(OpenError::Fenced { epoch: Epoch(epoch) });
        }
        let position: Option<Vec<u8>> = held.try_get("position").map_err(|error| failed(error.into()))?;
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
            Err(error) => messages_at_fault(&error, part.len()).ok_or_else(|| refused(&error)),
        }
    }
}

impl OpenInbox {
    /// The first row tells how the fence stood; the others name the messages that are new.
    fn outcomes(&self, rows: &[tokio_postgres::Row], part: &Part<'_>) -> Result<Vec<Outcome>, AppendError> {
        let broken =
            |error: tokio_postgres::Error| AppendError::Ambiguous(Fault::new("postgres.failed", &error.to_string()));
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

/// The answer where the table does not take what a message says: all or nothing was written, so nothing. Which message
/// of several it was, the server does not tell.
fn messages_at_fault(error: &Error, messages: usize) -> Option<Vec<Outcome>> {
    // Data, integrity constraints, limits of a row or an index, and what a trigger raises.
    error.sql_state().filter(|state| ["22", "23", "54", "P0"].iter().any(|class| state.starts_with(class)))?;
    let refused = error.in_words();
    Some(if messages == 1 {
        vec![Outcome::Rejected(Fault::new("postgres.refused", &refused))]
    } else {
        let text = format!("{refused}. It is one of {messages} messages: the log of the sink's server names the row");
        vec![Outcome::Retry { after: None, fault: Fault::new("postgres.refused", &text) }; messages]
    })
}

/// What a failed call means for the batch.
fn refused(error: &Error) -> AppendError {
    let fault = down(error);
    match error.sql_state() {
        // The transaction was rolled back, and another try may succeed.
        Some(state) if state == SqlState::T_R_SERIALIZATION_FAILURE.code() => AppendError::SinkDown(fault),
        // A statement that failed has written nothing.
        Some(state) if !state.starts_with("08") && !state.starts_with("57") => AppendError::SinkDown(fault),
        _ => AppendError::Ambiguous(fault),
    }
}

fn down(error: &Error) -> Fault {
    let text = match error.kind() {
        // Its hint is for the database with the outbox.
        Kind::Schema => format!("{}; `pgbaton inbox` prints the tables that a sink needs", error.in_words()),
        _ => error.to_string(),
    };
    Fault::new("postgres.failed", &text)
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
}
