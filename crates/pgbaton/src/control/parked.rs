//! Messages that were set aside: finding them, trying them again, giving them up.
//!
//! Whatever changes them takes the locks that an acknowledgement takes, exclusively: none is under way meanwhile, so of each key
//! there is one message that is tried, and it is the first.

use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{audit, checked};
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::{Error, Kind};
use crate::source::native::like;
use crate::source::stand_still;
use crate::sql;

/// Which messages: those of which all holds that is given.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Selection {
    /// Of this relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// In this lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lane: Option<i32>,
    /// Of this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whose topic is like this: `*` stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// With one of these message ids; none: with any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Whose last fault has this code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Inserted so long ago, at least.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older: Option<Duration>,
    /// Dead ones, or those that are still to be delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<bool>,
}

impl Selection {
    /// Whether it takes all of a relay.
    #[must_use]
    pub fn is_all(&self) -> bool {
        let Self { relay: _, lane, key, topic, ids, code, older, dead: _ } = self;
        lane.is_none() && key.is_none() && topic.is_none() && ids.is_empty() && code.is_none() && older.is_none()
    }
}

/// A message that was set aside.
#[derive(Debug, Serialize)]
pub struct ParkedMessage {
    /// Its relay.
    pub relay: String,
    /// Its message id.
    pub id: String,
    /// Its place among all that were set aside.
    pub number: i64,
    /// Its lane.
    pub lane: Option<i32>,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// Bytes of it.
    pub bytes: i32,
    /// How often its sink has refused it.
    pub attempts: i32,
    /// The code of the last fault.
    pub code: Option<String>,
    /// Whether later messages of its key wait behind it.
    pub holds: bool,
    /// Whether it was discarded, and is here only to be left out: a row of an adopted table.
    pub given_up: bool,
    /// How many replicas have died while they tried it alone.
    pub deaths: i32,
    /// Whether its key or its topic is paused, so that it is not tried.
    pub paused: bool,
    /// It is not delivered before this time, in UTC.
    pub deliver_at: Option<String>,
    /// The id of the message that it waits behind.
    pub behind: Option<String>,
    /// Its id in the outbox.
    pub log_id: Option<i64>,
    /// The id's columns of its row in an adopted table.
    pub row_id: Option<Vec<String>>,
    /// When it was inserted, set aside, first and last tried, when it is tried next, and when it was found to be dead: in UTC.
    pub created_at: String,
    /// See `created_at`.
    pub parked_at: String,
    /// See `created_at`.
    pub first_at: Option<String>,
    /// See `created_at`.
    pub last_at: Option<String>,
    /// See `created_at`.
    pub next_at: Option<String>,
    /// See `created_at`.
    pub dead_at: Option<String>,
    /// Its last ten faults: when, code, text, replica.
    pub faults: Box<RawValue>,
    #[serde(skip)]
    pub(crate) hash: i64,
}

impl ParkedMessage {
    /// What becomes of it, in words.
    #[must_use]
    pub fn fate(&self) -> String {
        match (&self.dead_at, &self.behind, &self.next_at) {
            (Some(_), _, _) if self.given_up => "given up; its row is left out".to_owned(),
            (Some(at), _, _) if self.holds => format!("dead since {at}; its key waits for it"),
            (Some(at), _, _) => format!("dead since {at}; its key goes on"),
            (None, Some(behind), _) => format!("waits behind {behind}"),
            (None, None, _) if self.paused => "is paused".to_owned(),
            (None, None, Some(at)) if self.attempts == 0 && self.deliver_at.is_some() => {
                format!("is delivered at {at}")
            }
            (None, None, Some(at)) => format!("is tried at {at}"),
            (None, None, None) => "is tried next".to_owned(),
        }
    }
}

/// What it holds. None of it for a row of an adopted table.
#[derive(Debug, Serialize)]
pub struct Content {
    /// One JSON object.
    pub headers: Option<Box<RawValue>>,
    /// If it is JSON.
    pub payload_json: Option<Box<RawValue>>,
    /// If it is bytes.
    pub payload: Option<Vec<u8>>,
}

/// Lists messages in the order in which they were set aside: so many of them, those above this number.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn list(database: &Database, which: &Selection, above: i64, most: i64) -> Result<Vec<ParkedMessage>, Error> {
    chosen(&checked(database).await?, which, above, most).await
}

/// What a message holds; `None` if it is not set aside.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn content(database: &Database, relay: &str, id: &str) -> Result<Option<Content>, Error> {
    let connection = checked(database).await?;
    let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&id, Type::TEXT)];
    let [rows] = connection.pipeline(Access::Look, [(sql::PARKED_CONTENT, &parameters)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (headers, payload_json): (Option<String>, Option<String>) =
        (row.try_get("headers")?, row.try_get("payload_json")?);
    Ok(Some(Content {
        headers: headers.map(json).transpose()?,
        payload_json: payload_json.map(json).transpose()?,
        payload: row.try_get("payload")?,
    }))
}

fn json(text: String) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(text)
        .map_err(|_| Error::new(Kind::Internal, "pgbaton.parked holds something that is no JSON"))
}

/// What is done to messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    /// Those that wait for their next attempt are tried now.
    TryNow,
    /// Dead ones are tried again, as if they never had been. Each has its old place in its key: what its key has gone past it is
    /// delivered before it nonetheless.
    Retry,
    /// Dead ones are given up, and their keys go on. The row of an adopted table stays pending, and this relay leaves it out.
    Discard,
}

impl Deed {
    /// As the audit has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TryNow => "messages retry",
            Self::Retry => "dead retry",
            Self::Discard => "dead discard",
        }
    }

    /// Whether it is about dead messages.
    #[must_use]
    pub fn of_dead(self) -> bool {
        self != Self::TryNow
    }
}

/// Messages that are changed in one transaction: none holds the lanes' locks for long.
pub(super) const CHUNK: i64 = 1_000;

/// Does this to all messages of the selection, which names a relay: some at a time, each time with a line in the audit. Gives how many there
/// were.
///
/// # Errors
/// A selection without a relay, and a database that cannot be reached: some may have been dealt with by then.
pub async fn act(database: &Database, which: &Selection, deed: Deed) -> Result<i64, Error> {
    let Some(relay) = which.relay.as_deref() else {
        return Err(Error::refused("no relay is named", "Name the relay whose messages are meant"));
    };
    let connection = checked(database).await?;
    let which = Selection { dead: Some(deed.of_dead()), ..which.clone() };
    let (mut above, mut done) = (0, 0);
    loop {
        let chosen = chosen(&connection, &which, above, CHUNK).await?;
        let Some(last) = chosen.last() else { return Ok(done) };
        above = last.number;
        let ids: Vec<&str> = chosen.iter().map(|message| message.id.as_str()).collect();
        done += act_on(&connection, (relay, &ids), deed, &which).await?;
    }
}

/// How many messages that would be.
///
/// # Errors
/// See [`list`].
pub async fn count(database: &Database, which: &Selection, deed: Deed) -> Result<i64, Error> {
    let connection = checked(database).await?;
    let which = Selection { dead: Some(deed.of_dead()), ..which.clone() };
    let (mut above, mut count) = (0, 0);
    loop {
        let chosen = chosen(&connection, &which, above, 10 * CHUNK).await?;
        let Some(last) = chosen.last() else { return Ok(count) };
        above = last.number;
        let is_meant = |message: &&ParkedMessage| deed.of_dead() || message.next_at.is_some();
        count += i64::try_from(chosen.iter().filter(is_meant).count()).unwrap_or(i64::MAX);
    }
}

async fn act_on(
    connection: &Connection,
    (relay, ids): (&str, &[&str]),
    deed: Deed,
    which: &Selection,
) -> Result<i64, Error> {
    stand_still(connection, relay).await?;
    let verb = match deed {
        Deed::TryNow => sql::PARKED_HURRY,
        Deed::Retry => sql::DEAD_RETRY,
        Deed::Discard => sql::DEAD_DISCARD,
    };
    let rows = connection.then(verb, &[(&relay, Type::TEXT), (&ids, Type::TEXT_ARRAY)]).await?;
    let hashes = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<Vec<i64>, Error>>()?;
    let keys: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&hashes, Type::INT8_ARRAY)];
    connection.then(sql::PARKED_DEMOTE, &keys).await?;
    connection.then(sql::PARKED_NEXT, &keys).await?;
    let count = i64::try_from(hashes.len()).unwrap_or(i64::MAX);
    audit::write(connection, (deed.name(), Some(relay)), which, Some(count)).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(count)
}

async fn chosen(
    connection: &Connection,
    which: &Selection,
    above: i64,
    most: i64,
) -> Result<Vec<ParkedMessage>, Error> {
    let Selection { relay, lane, key, topic, ids, code, older, dead } = which;
    let topic = topic.as_deref().map(like);
    let older = older.unwrap_or_default().as_secs_f64();
    let parameters: [Parameter<'_>; 10] = [
        (relay, Type::TEXT),
        (lane, Type::INT4),
        (key, Type::TEXT),
        (&topic, Type::TEXT),
        (ids, Type::TEXT_ARRAY),
        (code, Type::TEXT),
        (&older, Type::FLOAT8),
        (dead, Type::BOOL),
        (&above, Type::INT8),
        (&most, Type::INT8),
    ];
    let [rows] = connection.pipeline(Access::Look, [(sql::PARKED_LIST, &parameters)]).await?;
    rows.iter().map(message).collect()
}

/// The one of this id, in a transaction that is open.
pub(super) async fn of_id(connection: &Connection, relay: &str, id: &str) -> Result<Option<ParkedMessage>, Error> {
    let (none, any, ids) = (None::<&str>, None::<bool>, vec![id]);
    let parameters: [Parameter<'_>; 10] = [
        (&relay, Type::TEXT),
        (&None::<i32>, Type::INT4),
        (&none, Type::TEXT),
        (&none, Type::TEXT),
        (&ids, Type::TEXT_ARRAY),
        (&none, Type::TEXT),
        (&0_f64, Type::FLOAT8),
        (&any, Type::BOOL),
        (&0_i64, Type::INT8),
        (&1_i64, Type::INT8),
    ];
    let rows = connection.then(sql::PARKED_LIST, &parameters).await?;
    rows.first().map(message).transpose()
}

fn message(row: &Row) -> Result<ParkedMessage, Error> {
    Ok(ParkedMessage {
        relay: row.try_get("relay")?,
        id: row.try_get("id")?,
        number: row.try_get("number")?,
        lane: row.try_get("lane")?,
        topic: row.try_get("topic")?,
        key: row.try_get("key")?,
        bytes: row.try_get("size")?,
        attempts: row.try_get("attempts")?,
        code: row.try_get("code")?,
        holds: row.try_get("holds")?,
        given_up: row.try_get("given_up")?,
        deaths: row.try_get("deaths")?,
        paused: row.try_get("paused")?,
        deliver_at: row.try_get("deliver_at")?,
        behind: row.try_get("behind")?,
        log_id: row.try_get("log_id")?,
        row_id: row.try_get("row_id")?,
        created_at: row.try_get("created_at")?,
        parked_at: row.try_get("parked_at")?,
        first_at: row.try_get("first_at")?,
        last_at: row.try_get("last_at")?,
        next_at: row.try_get("next_at")?,
        dead_at: row.try_get("dead_at")?,
        faults: json(row.try_get("faults")?)?,
        hash: row.try_get("hash")?,
    })
}
