//! What operators have done with commands: who, when, what and to how many messages. Written in the transaction that does it.

use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::types::Type;

use super::checked;
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::{Error, Kind};
use crate::sql;

/// One thing that was done.
#[derive(Debug, Serialize)]
pub struct Line {
    /// When, in UTC.
    pub at: String,
    /// The login role.
    pub who: String,
    /// Where from; `None`: over a local socket.
    pub address: Option<String>,
    /// The command.
    pub what: String,
    /// The relay it was about.
    pub relay: Option<String>,
    /// How it was asked for.
    pub details: Box<RawValue>,
    /// How many messages it was about, where that is known.
    pub messages: Option<i64>,
}

/// Lists what was done, of one relay or of all, the newest first.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn list(database: &Database, relay: Option<&str>, most: i64) -> Result<Vec<Line>, Error> {
    let connection = checked(database).await?;
    let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&most, Type::INT8)];
    let [rows] = connection.pipeline(Access::Look, [(sql::AUDIT, &parameters)]).await?;
    let line = |row: &tokio_postgres::Row| {
        Ok(Line {
            at: row.try_get("at")?,
            who: row.try_get("who")?,
            address: row.try_get("address")?,
            what: row.try_get("what")?,
            relay: row.try_get("relay")?,
            details: RawValue::from_string(row.try_get("details")?).map_err(|error| unreadable(&error))?,
            messages: row.try_get("messages")?,
        })
    };
    rows.iter().map(line).collect()
}

fn unreadable(error: &serde_json::Error) -> Error {
    Error::new(Kind::Internal, format!("pgbaton.audit holds something that is no JSON: {error}"))
}

/// Writes down what is done in this open transaction. Gives the line's number.
pub(super) async fn write(
    connection: &Connection,
    (what, relay): (&str, Option<&str>),
    details: &impl Serialize,
    messages: Option<i64>,
) -> Result<i64, Error> {
    let details = serde_json::to_string(details)
        .map_err(|error| Error::new(Kind::Internal, "what is done cannot be written down").because(error))?;
    let parameters: [Parameter<'_>; 4] =
        [(&what, Type::TEXT), (&relay, Type::TEXT), (&details, Type::TEXT), (&messages, Type::INT8)];
    let rows = connection.then(sql::AUDIT_WRITE, &parameters).await?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "nothing was written into pgbaton.audit"))?;
    Ok(row.try_get(0)?)
}
