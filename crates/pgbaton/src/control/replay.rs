//! Replaying: messages that were delivered are delivered again, as far as the outbox still holds them.

use std::time::SystemTime;

use serde::{Serialize, Serializer};
use tokio_postgres::types::Type;

use super::{audit, checked, relays};
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::Error;
use crate::source::native::{like, number};
use crate::source::stand_still;
use crate::sql;

/// Which messages are replayed: those of which all holds that is given.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Replay {
    /// To the sink of this relay. Its lanes have dealt with them; what is not dealt with yet comes anyway.
    pub relay: String,
    /// With one of these message ids; none: with any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<String>,
    /// Of this key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Whose topic is like this: `*` stands for any text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Inserted at this time or later, by the server's clock.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    pub since: Option<SystemTime>,
    /// Inserted before this time.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "in_words")]
    pub until: Option<SystemTime>,
    /// They keep their message ids: a receiver that drops repeats drops them.
    pub keeps_ids: bool,
}

/// A time in UTC.
fn in_words<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    let time = time.and_then(|time| jiff::Timestamp::try_from(time).ok());
    time.map(|time| time.to_string()).serialize(serializer)
}

/// What was replayed.
#[derive(Debug, Serialize)]
pub struct Replayed {
    /// Its number, which is that of its line in the audit. The messages have it in the header `pgbaton-replay`.
    pub number: i64,
    /// How many messages.
    pub messages: i64,
}

/// Rows that are examined in one transaction: none holds the lanes' locks for long.
const CHUNK: i64 = 2_000;

/// How many messages that would be.
///
/// # Errors
/// A relay that is not registered or reads an adopted table, and a database that cannot be reached.
pub async fn count(database: &Database, replay: &Replay) -> Result<i64, Error> {
    let (connection, last) = begin(database, replay).await?;
    let (mut above, mut count) = (0, 0);
    loop {
        connection.open(Access::Write).await?;
        let chunk = chunk(&connection, replay, (above, last), None).await?;
        connection.roll_back().await?;
        let Some(Chunk { last: examined, hashes }) = chunk else { return Ok(count) };
        above = examined;
        count += i64::try_from(hashes.len()).unwrap_or(i64::MAX);
    }
}

/// Sets the messages aside to be delivered again, in order for each key: later messages of these keys wait for that. Each gets a
/// message id of its own, unless it keeps the one it has, and headers that say which replay it is of and which message it was.
///
/// # Errors
/// See [`count`]. Some may have been set aside by then: the line in the audit says with which number.
pub async fn replay(database: &Database, replay: &Replay) -> Result<Replayed, Error> {
    let (connection, last) = begin(database, replay).await?;
    stand_still(&connection, &replay.relay).await?;
    let number = audit::write(&connection, ("replay", Some(&replay.relay)), replay, None).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    let (mut above, mut messages) = (0, 0);
    loop {
        stand_still(&connection, &replay.relay).await?;
        let Some(Chunk { last: examined, hashes }) = chunk(&connection, replay, (above, last), Some(number)).await?
        else {
            let done = serde_json::json!({ "replay": number });
            audit::write(&connection, ("replay done", Some(&replay.relay)), &done, Some(messages)).await?;
            connection.commit(sql::INCARNATION, &[]).await?;
            return Ok(Replayed { number, messages });
        };
        let keys: [Parameter<'_>; 2] = [(&replay.relay, Type::TEXT), (&hashes, Type::INT8_ARRAY)];
        connection.then(sql::PARKED_NEXT, &keys).await?;
        connection.commit(sql::INCARNATION, &[]).await?;
        above = examined;
        messages += i64::try_from(hashes.len()).unwrap_or(i64::MAX);
    }
}

/// The connection, and the last number of the outbox: what is inserted from now on is not replayed.
async fn begin(database: &Database, replay: &Replay) -> Result<(Connection, i64), Error> {
    let connection = checked(database).await?;
    let relay = relays::find(&connection, &replay.relay).await?;
    if let Some(table) = relay.table {
        return Err(Error::refused(
            format!("relay {} reads {table}, which says itself what is delivered", replay.relay),
            "Set the rows back to pending: they are delivered again, under the same message ids",
        ));
    }
    let [ceiling] = connection.pipeline(Access::Look, [(sql::CEILING, &[])]).await?;
    let last = number(&ceiling)?;
    Ok((connection, last))
}

/// What was examined, and of it the keys of what was chosen.
struct Chunk {
    last: i64,
    hashes: Vec<i64>,
}

async fn chunk(
    connection: &Connection,
    replay: &Replay,
    (above, upto): (i64, i64),
    number: Option<i64>,
) -> Result<Option<Chunk>, Error> {
    let Replay { relay, ids, key, topic, since, until, keeps_ids } = replay;
    let topic = topic.as_deref().map(like);
    let (done, number) = (number.is_some(), number.unwrap_or_default());
    let parameters: [Parameter<'_>; 12] = [
        (relay, Type::TEXT),
        (&above, Type::INT8),
        (&CHUNK, Type::INT8),
        (ids, Type::TEXT_ARRAY),
        (key, Type::TEXT),
        (&topic, Type::TEXT),
        (since, Type::TIMESTAMPTZ),
        (until, Type::TIMESTAMPTZ),
        (&number, Type::INT8),
        (keeps_ids, Type::BOOL),
        (&done, Type::BOOL),
        (&upto, Type::INT8),
    ];
    let rows = connection.then(sql::REPLAY, &parameters).await?;
    let Some(first) = rows.first() else { return Ok(None) };
    let last = first.try_get(0)?;
    let hashes = rows.iter().map(|row| row.try_get(1)).collect::<Result<Vec<Option<i64>>, _>>()?;
    Ok(Some(Chunk { last, hashes: hashes.into_iter().flatten().collect() }))
}
