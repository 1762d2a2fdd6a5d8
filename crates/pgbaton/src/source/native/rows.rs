//! Rows of the outbox as messages.

use std::time::Duration;

use tokio_postgres::Row;
use uuid::Uuid;

use crate::error::Error;
use crate::message::{Message, Payload};
use crate::source::brought::{Raw, fixed, timestamp};

// Columns are read by their number: those of `window.sql`, `stragglers.sql` and `message.sql`, which are the same.

/// How much later it is to be delivered.
pub(super) fn later(row: &Row) -> Result<Option<Duration>, Error> {
    let seconds: Option<f64> = row.try_get(10)?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// Lends out a row as a message, without copying it.
pub(super) fn with_message(row: &Row, take: &mut dyn FnMut(Message<'_>)) -> Result<(), Error> {
    let id = Uuid::from_bytes(fixed(row.try_get(3)?)?);
    let mut text = Uuid::encode_buffer();
    let payload = match (row.try_get::<_, Option<Raw<'_>>>(8)?, row.try_get::<_, Option<Raw<'_>>>(9)?) {
        (Some(Raw(bytes)), _) => Payload::Bytes(bytes),
        (None, Some(json)) => Payload::Json(json.text()?),
        (None, None) => Payload::None,
    };
    take(Message {
        id: id.hyphenated().encode_lower(&mut text),
        topic: row.try_get(5)?,
        key: row.try_get(6)?,
        headers: row.try_get::<_, Option<Raw<'_>>>(7)?.map(Raw::text).transpose()?,
        payload,
        created_at: timestamp(row.try_get(4)?)?,
    });
    Ok(())
}
