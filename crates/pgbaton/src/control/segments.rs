//! Segments of the outbox: what they hold, who keeps them, and how the ring is set.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;

use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::{Error, Kind};
use crate::housekeeping::segments;
use crate::migrate;
use crate::sql;

/// One segment.
#[derive(Debug, Serialize)]
pub struct SegmentStatus {
    /// Its number: that of its partition, too.
    pub segment: i16,
    /// Bytes on disk, with indexes.
    pub bytes: i64,
    /// It holds messages, whether anybody needs them or not.
    pub filled: bool,
    /// New messages go to it.
    pub in_use: bool,
    /// Who still needs it, or why it is kept.
    pub kept_by: Option<String>,
}

/// How the ring is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Ring {
    /// How many segments take turns: 3 to 64.
    pub segments: i32,
    /// How long each is written to, in seconds.
    pub seconds: i32,
    /// How long messages are kept once they have been dealt with, in seconds.
    pub retention_seconds: i64,
}

/// The ring and its segments.
#[derive(Debug, Serialize)]
pub struct Segments {
    /// How it is set.
    pub ring: Ring,
    /// Those there are: also those of an earlier, larger ring.
    pub segments: Vec<SegmentStatus>,
}

/// Looks at all segments: at one or two rows of each.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn list(database: &Database) -> Result<Segments, Error> {
    let connection = database.connect().await?;
    migrate::check(&connection).await?;
    let mut found = Vec::new();
    for segment in segments::list(&connection).await? {
        let kept_by = if segment.filled { segments::needs(&connection, segment.number).await? } else { None };
        let segments::Segment { number, bytes, filled, in_use, .. } = segment;
        found.push(SegmentStatus { segment: number, bytes, filled, in_use, kept_by });
    }
    Ok(Segments { ring: ring(&connection).await?, segments: found })
}

async fn ring(connection: &Connection) -> Result<Ring, Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::RING, &[])]).await?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::Schema, "pgbaton.ring is empty"))?;
    Ok(Ring {
        segments: row.try_get::<_, i16>("segments")?.into(),
        seconds: row.try_get("seconds")?,
        retention_seconds: row.try_get("retention_seconds")?,
    })
}

/// A segment that is written to again before its messages are old enough never gets empty.
fn comes_round_late_enough(ring: Ring) -> Result<(), Error> {
    let Ring { segments, seconds, retention_seconds } = ring;
    if retention_seconds <= i64::from(segments - 2) * i64::from(seconds) {
        return Ok(());
    }
    Err(Error::refused(
        format!(
            "{segments} segments of {seconds} s each come round before messages are {retention_seconds} s old: none would \
             ever be emptied"
        ),
        "Give it more or longer segments, so that all but two of them cover the retention",
    ))
}

/// Sets the ring; what is `None` stays as it is. Takes the outbox's exclusive lock for some milliseconds: waits for it a
/// tenth of a second at most, so that no producer waits longer, and tries again for `patience`.
///
/// # Errors
/// Values out of range, a ring that is too short for the retention, a role that does not own the schema, or transactions that
/// have used the outbox all the time.
pub async fn set(
    database: &Database,
    segments: Option<i32>,
    length: Option<Duration>,
    retention: Option<Duration>,
    patience: Duration,
) -> Result<Ring, Error> {
    let connection = database.connect().await?;
    migrate::check(&connection).await?;
    let before = ring(&connection).await?;
    let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    let ring = Ring {
        segments: segments.unwrap_or(before.segments),
        seconds: length.map_or(before.seconds, |length| i32::try_from(length.as_secs()).unwrap_or(i32::MAX)),
        retention_seconds: retention.map_or(before.retention_seconds, seconds),
    };
    let parameters: [Parameter<'_>; 3] =
        [(&ring.segments, Type::INT4), (&ring.seconds, Type::INT4), (&ring.retention_seconds, Type::INT8)];
    comes_round_late_enough(ring)?;
    let statement = (sql::SET_RING, &parameters[..]);
    super::with_the_outbox_locked(database, patience, database.patience(), statement, ("segments set", &ring)).await?;
    Ok(ring)
}
