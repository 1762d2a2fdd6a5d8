//! Pausing: what is not delivered until it is resumed.

use serde::Serialize;
use tokio_postgres::types::Type;

use super::parked::CHUNK;
use super::{audit, checked};
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::Error;
use crate::source::native::like;
use crate::source::stand_still;
use crate::sql;

/// What is paused: of a relay all, or one of its lanes, or a key, or topics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// All of it.
    All,
    /// A lane: nothing of it is handed to the sink.
    Lane(i32),
    /// A key: its messages are set aside.
    Key(String),
    /// Topics like this, `*` stands for any text: their messages are set aside, and what follows them in their keys waits.
    Topic(String),
}

impl What {
    fn parameters(&self) -> (Option<i32>, Option<&str>, Option<&str>) {
        match self {
            Self::All => (None, None, None),
            Self::Lane(lane) => (Some(*lane), None, None),
            Self::Key(key) => (None, Some(key), None),
            Self::Topic(topic) => (None, None, Some(topic)),
        }
    }
}

/// Something that is paused.
#[derive(Debug, Serialize)]
pub struct PauseStatus {
    /// Of this relay.
    pub relay: String,
    /// What of it.
    pub what: What,
    /// Since when, in UTC.
    pub since: String,
    /// The login role that paused it.
    pub who: String,
    /// How many messages are set aside because of it, up to 10,000; `None` if it sets none aside.
    pub parked: Option<i64>,
}

/// Lists all pauses.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn list(database: &Database) -> Result<Vec<PauseStatus>, Error> {
    let [rows] = checked(database).await?.pipeline(Access::Look, [(sql::PAUSES, &[])]).await?;
    let pause = |row: &tokio_postgres::Row| {
        let what = match (row.try_get("lane")?, row.try_get("key")?, row.try_get("topic")?) {
            (Some(lane), _, _) => What::Lane(lane),
            (None, Some(key), _) => What::Key(key),
            (None, None, Some(topic)) => What::Topic(topic),
            (None, None, None) => What::All,
        };
        Ok(PauseStatus {
            relay: row.try_get("relay")?,
            what,
            since: row.try_get("paused_at")?,
            who: row.try_get("who")?,
            parked: row.try_get("parked")?,
        })
    };
    rows.iter().map(pause).collect()
}

/// Pauses it, with a line in the audit. Replicas see that within half a second; what is under way by then is delivered. False if it
/// was paused already.
///
/// Positions stand still where a relay or a lane is paused, and the outbox keeps what they have not passed.
///
/// # Errors
/// A relay that is not registered, or a database that cannot be reached: nothing has changed then.
pub async fn pause(database: &Database, relay: &str, what: &What) -> Result<bool, Error> {
    let connection = checked(database).await?;
    stand_still(&connection, relay).await?;
    let (lane, key, topic) = what.parameters();
    let parameters: [Parameter<'_>; 4] =
        [(&relay, Type::TEXT), (&lane, Type::INT4), (&key, Type::TEXT), (&topic, Type::TEXT)];
    let paused = connection.then(sql::PAUSE, &parameters).await?.len();
    let changed = written_down(&connection, ("pause", relay), what, paused).await?;
    let like = topic.map(like);
    let some: [Parameter<'_>; 4] =
        [(&relay, Type::TEXT), (&key, Type::TEXT), (&like, Type::TEXT), (&CHUNK, Type::INT8)];
    while key.is_some() || topic.is_some() {
        if follow(&connection, relay, (sql::PARKED_PAUSE, &some)).await? == 0 {
            break;
        }
    }
    Ok(changed)
}

/// Ends one pause of a relay, or all of them (`None`), with a line in the audit: what was set aside is tried at once. False if there
/// was none.
///
/// # Errors
/// See [`pause`].
pub async fn resume(database: &Database, relay: &str, what: Option<&What>) -> Result<bool, Error> {
    let connection = checked(database).await?;
    stand_still(&connection, relay).await?;
    let (lane, key, topic) = what.unwrap_or(&What::All).parameters();
    let every = what.is_none();
    let parameters: [Parameter<'_>; 5] =
        [(&relay, Type::TEXT), (&lane, Type::INT4), (&key, Type::TEXT), (&topic, Type::TEXT), (&every, Type::BOOL)];
    let resumed = connection.then(sql::RESUME, &parameters).await?.len();
    let changed = written_down(&connection, ("resume", relay), &what, resumed).await?;
    // Also what an earlier one has left, that came to no end.
    while follow(&connection, relay, (sql::PARKED_RESUME, &[(&relay, Type::TEXT), (&CHUNK, Type::INT8)])).await? > 0 {}
    Ok(changed)
}

/// Some of what is set aside follows. Gives how many messages.
async fn follow(
    connection: &Connection,
    relay: &str,
    (verb, parameters): (sql::Verb<'static>, &[Parameter<'_>]),
) -> Result<usize, Error> {
    stand_still(connection, relay).await?;
    let changed = connection.then(verb, parameters).await?.len();
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(changed)
}

/// The end of the transaction in which so many pauses have begun or ended.
async fn written_down(
    connection: &Connection,
    (deed, relay): (&str, &str),
    what: &impl Serialize,
    pauses: usize,
) -> Result<bool, Error> {
    if pauses == 0 {
        connection.roll_back().await?;
        return Ok(false);
    }
    audit::write(connection, (deed, Some(relay)), &serde_json::json!({ "what": what }), None).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(true)
}
