//! What operators do: commands are thin over this.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::Row;

use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::Error;
use crate::migrate;
use crate::send::{NewMessage, Sent};
use crate::source::native;
use crate::sql;

pub mod audit;
pub mod doctor;
pub mod parked;
pub mod pauses;
pub mod rebase;
pub mod relays;
pub mod replay;
mod replicas;
pub mod segments;
pub mod trace;

/// A connection to a database whose schema is of this version.
async fn checked(database: &Database) -> Result<Connection, Error> {
    let connection = database.connect().await?;
    migrate::check(&connection).await?;
    Ok(connection)
}

/// Inserts one message and commits. An application sends within its own transaction instead: [`crate::send`].
///
/// # Errors
/// What the outbox refuses, in the server's words, which do not quote the payload.
pub async fn send(database: &Database, message: &NewMessage) -> Result<Sent, Error> {
    let connection = database.connect().await?;
    let [rows] =
        connection.pipeline(Access::Write, [(sql::SEND, &message.parameters(&message.delay_seconds()))]).await?;
    Sent::of(&rows)
}

/// One lane, as the database knows it.
#[derive(Debug, Serialize)]
pub struct LaneStatus {
    /// Its relay.
    pub relay: String,
    /// Its number.
    pub lane: i32,
    /// How many the relay has.
    pub lanes: i32,
    /// Its epoch.
    pub epoch: i64,
    /// The replica that holds it.
    pub replica: Option<String>,
    /// That replica's name.
    pub replica_name: Option<String>,
    /// The number of its last batch that was handed to the sink.
    pub batch: Option<i64>,
    /// Every message up to this id has been dealt with, but for those of transactions that were still open by then.
    /// `None` for a lane of an adopted table.
    pub passed: Option<i64>,
    /// Seconds since its position was written.
    pub position_age_seconds: Option<f64>,
}

/// One replica, as the database knows it.
#[derive(Debug, Serialize)]
pub struct ReplicaStatus {
    /// Its identity.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version of pgbaton.
    pub version: String,
    /// The relays it takes lanes for; none once it is leaving.
    pub relays: Vec<String>,
    /// Its renewals so far.
    pub beat: i64,
    /// How long its lanes stay with it when it no longer renews, in milliseconds.
    pub ttl_ms: i64,
    /// Seconds since it started.
    pub age_seconds: f64,
}

/// What the database knows of everything.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The outbox's last number.
    pub last_number: i64,
    /// All replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// All lanes.
    pub lanes: Vec<LaneStatus>,
}

/// Reads replicas, lanes and positions. Touches no message.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn status(database: &Database) -> Result<Status, Error> {
    let connection = checked(database).await?;
    let statements = [(sql::REPLICAS, &[][..]), (sql::STATUS, &[]), (sql::CEILING, &[])];
    let [replicas, lanes, ceiling] = connection.pipeline(Access::Look, statements).await?;
    let mut status = Status { last_number: native::number(&ceiling)?, replicas: Vec::new(), lanes: Vec::new() };
    for row in &replicas {
        status.replicas.push(ReplicaStatus {
            id: row.try_get("id")?,
            name: row.try_get("name")?,
            version: row.try_get("version")?,
            relays: row.try_get("relays")?,
            beat: row.try_get("beat")?,
            ttl_ms: row.try_get("ttl_ms")?,
            age_seconds: row.try_get("age")?,
        });
    }
    for row in &lanes {
        status.lanes.push(LaneStatus {
            relay: row.try_get("relay")?,
            lane: row.try_get("lane")?,
            lanes: row.try_get("lanes")?,
            epoch: row.try_get("epoch")?,
            replica: row.try_get("replica")?,
            replica_name: row.try_get("replica_name")?,
            batch: row.try_get("batch")?,
            passed: row.try_get("passed")?,
            position_age_seconds: row.try_get("age")?,
        });
    }
    Ok(status)
}

/// Runs a statement that locks the outbox, in a transaction of its own, with a line in the audit. It waits for the lock a tenth of a second at most, so
/// that no producer waits behind it for longer, and is tried again for `patience`; the answer may take `answer`.
async fn with_the_outbox_locked(
    database: &Database,
    patience: Duration,
    answer: Duration,
    (verb, parameters): (sql::Verb<'_>, &[Parameter<'_>]),
    (what, details): (&str, &impl Serialize),
) -> Result<Vec<Row>, Error> {
    const AGAIN_AFTER: Duration = Duration::from_millis(500);
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let connection = database.connect().await?.waiting(answer);
        connection.open(Access::Write).await?;
        connection.script("set local lock_timeout = '100ms'").await?;
        let done = async {
            let rows = connection.then(verb, parameters).await?;
            audit::write(&connection, (what, None), details, None).await?;
            connection.commit(sql::INCARNATION, &[]).await?;
            Ok(rows)
        };
        match done.await {
            Err(error) if Error::is_transient(&error) && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            result => return result,
        }
    }
}
