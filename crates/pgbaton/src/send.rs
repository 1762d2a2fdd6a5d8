//! Sending: one message, inside the transaction of the change that it tells of.
//!
//! An application in another language inserts into `pgbaton.outbox`, or calls the function `pgbaton.send`, which also takes
//! a message id of the application's own.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;
use tokio_postgres::{Row, Transaction};

use crate::connection::Parameter;
use crate::error::{Error, Kind};
use crate::sql;

/// A message to be inserted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NewMessage {
    /// Where it goes.
    pub topic: String,
    /// What it is ordered by; `None` means that no order is asked for.
    pub key: Option<String>,
    /// One JSON object.
    pub headers: Option<String>,
    /// The payload as JSON; at most one of the two.
    pub json: Option<String>,
    /// The payload as bytes.
    pub bytes: Option<Vec<u8>>,
    /// It is delivered no sooner than so long after it was inserted, by the server's clock.
    pub delay: Option<Duration>,
}

impl NewMessage {
    /// A message without key, headers and payload.
    #[must_use]
    pub fn new(topic: impl Into<String>) -> Self {
        Self { topic: topic.into(), ..Self::default() }
    }

    /// What it is ordered by. Lock what the key stands for before the message is sent: messages of a key arrive in the
    /// order of commit only then.
    #[must_use]
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Headers: the text of one JSON object.
    #[must_use]
    pub fn headers(self, headers: impl Into<String>) -> Self {
        Self { headers: Some(headers.into()), ..self }
    }

    /// The payload: a JSON text, kept byte for byte.
    #[must_use]
    pub fn json(self, json: impl Into<String>) -> Self {
        Self { json: Some(json.into()), bytes: None, ..self }
    }

    /// The payload: bytes of any kind.
    #[must_use]
    pub fn bytes(self, bytes: impl Into<Vec<u8>>) -> Self {
        Self { bytes: Some(bytes.into()), json: None, ..self }
    }

    /// It is delivered no sooner than so long after it was inserted, by the server's clock. Later messages of its key wait for it:
    /// one that others shall not wait for has a key of its own, or none.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay: Some(delay), ..self }
    }

    /// In seconds.
    pub(crate) fn delay_seconds(&self) -> Option<f64> {
        self.delay.map(|delay| delay.as_secs_f64())
    }

    pub(crate) fn parameters<'a>(&'a self, delay: &'a Option<f64>) -> [Parameter<'a>; 6] {
        [
            (&self.topic, Type::TEXT),
            (&self.key, Type::TEXT),
            (&self.headers, Type::TEXT),
            (&self.json, Type::TEXT),
            (&self.bytes, Type::BYTEA),
            (delay, Type::FLOAT8),
        ]
    }
}

/// Payloads never reach logs: only the topic and the sizes are shown.
impl fmt::Debug for NewMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("topic", &self.topic)
            .field("json_bytes", &self.json.as_ref().map(String::len))
            .field("bytes", &self.bytes.as_ref().map(Vec::len))
            .finish_non_exhaustive()
    }
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Sent {
    /// Its number in the log.
    pub id: i64,
    /// What receivers drop repeats by.
    pub message_id: String,
}

impl Sent {
    pub(crate) fn of(rows: &[Row]) -> Result<Self, Error> {
        let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "nothing was inserted"))?;
        Ok(Self { id: row.try_get("id")?, message_id: row.try_get("message_id")? })
    }
}

/// Inserts one message in the caller's transaction: it is delivered if that commits, and never was if it does not.
///
/// One round trip and no prepared statement, so a transaction pooler may stand in between. Nothing of the transaction is
/// changed: isolation level, time-outs and `synchronous_commit` are the caller's. Messages of a key arrive in the order of
/// commit if the transaction locks what the key stands for *before* this call.
///
/// # Errors
/// What the outbox refuses, in the server's words, which do not quote the payload. As after any error of the server the
/// transaction can only be rolled back then. [`Error::is_transient`] says whether trying the whole transaction again may
/// help.
///
/// # Cancellation
/// A dropped call may have inserted the message: roll the transaction back.
pub async fn send(transaction: &Transaction<'_>, message: &NewMessage) -> Result<Sent, Error> {
    let failed = |error: tokio_postgres::Error| Error::from(error).doing(sql::SEND.name);
    let rows =
        transaction.query_typed(sql::SEND.sql, &message.parameters(&message.delay_seconds())).await.map_err(failed)?;
    Sent::of(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_do_not_show() {
        for message in [NewMessage::new("t").json("\"secret\""), NewMessage::new("t").bytes("secret")] {
            let shown = format!("{message:?}");
            assert!(!shown.contains("secret") && !shown.contains("115"), "{shown}");
        }
    }

    #[test]
    fn the_last_payload_counts() {
        let message = NewMessage::new("t").json("{}").bytes([1]);
        assert_eq!((message.json, message.bytes), (None, Some(vec![1])));
    }
}
