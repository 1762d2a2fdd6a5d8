//! Segments that everybody has passed are emptied.
//!
//! What may be emptied is decided in the database (`pgbaton.needs`), with the lock held. Here it is decided when to try: not
//! while somebody holds the segment for long, since inserts and reads would queue behind whoever waits for the lock.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::clock;
use crate::connection::{Access, Connection};
use crate::error::Error;
use crate::history;
use crate::lane::ReplicaId;
use crate::lease::BootInstant;
use crate::sql::{self, Verb};

/// Whoever holds a segment in two looks so far apart is no short transaction.
const SHORT: Duration = Duration::from_millis(100);

/// That nothing can be emptied any more is said again after this.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// One segment, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) number: i16,
    pub(crate) bytes: i64,
    /// It holds rows, whether anybody needs them or not.
    pub(crate) filled: bool,
    /// It takes its turn: an earlier, larger ring may have had more.
    pub(crate) in_ring: bool,
    /// New messages go to it.
    pub(crate) in_use: bool,
}

/// Looks after the segments.
#[derive(Default)]
pub(super) struct Segments {
    /// Who looks; an operator, if none.
    replica: Option<ReplicaId>,
    said: Option<BootInstant>,
}

impl Segments {
    /// Looked after by this replica.
    pub(super) fn of(replica: ReplicaId) -> Self {
        Self { replica: Some(replica), said: None }
    }

    /// Empties what can be emptied, and gives what is there afterwards.
    pub(super) async fn look_after(&mut self, connection: &Connection) -> Result<Vec<Segment>, Error> {
        let mut segments = list(connection).await?;
        let mut kept_by = None;
        for segment in segments.iter_mut().filter(|segment| segment.filled && !segment.in_use) {
            let began = clock::now();
            match empty(connection, segment.number).await? {
                None => {
                    history::emptied(self.replica, segment.number);
                    let took = clock::now().since(began);
                    tracing::info!(segment = segment.number, bytes = segment.bytes, ?took, "segment emptied");
                    (segment.filled, segment.bytes) = (false, 0);
                }
                Some(why) => {
                    tracing::debug!(segment = segment.number, why, "segment kept");
                    kept_by = Some(why);
                }
            }
        }
        let whole_ring = segments.iter().filter(|segment| segment.in_ring).all(|segment| segment.filled);
        if let Some(why) = kept_by.filter(|_| whole_ring) {
            self.say(&why);
        }
        Ok(segments)
    }

    /// Messages are taken all the same: segments are appended to again.
    fn say(&mut self, why: &str) {
        let now = clock::now();
        if self.said.is_none_or(|said| now.since(said) >= SAY_AGAIN) {
            self.said = Some(now);
            tracing::warn!(kept_by = why, "no segment of the outbox can be emptied: it grows until that is over");
        }
    }
}

/// Every segment there is. Touches no message.
pub(crate) async fn list(connection: &Connection) -> Result<Vec<Segment>, Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::SEGMENTS, &[])]).await?;
    rows.iter()
        .map(|row| {
            Ok(Segment {
                number: row.try_get("segment")?,
                bytes: row.try_get("bytes")?,
                filled: row.try_get("filled")?,
                in_ring: row.try_get("in_ring")?,
                in_use: row.try_get("in_use")?,
            })
        })
        .collect()
}

/// Empties a segment if nobody needs it. If it was not emptied, why.
async fn empty(connection: &Connection, segment: i16) -> Result<Option<String>, Error> {
    if let Some(why) = needs(connection, segment).await? {
        return Ok(Some(why));
    }
    let before = holders(connection, segment).await?;
    if !before.is_empty() {
        tokio::time::sleep(SHORT).await;
        if !before.is_disjoint(&holders(connection, segment).await?) {
            return Ok(Some("a transaction that has been using it for long".into()));
        }
    }
    why(connection, Access::Write, sql::EMPTY_SEGMENT, segment).await
}

/// Who still needs a segment, or why it is kept.
pub(crate) async fn needs(connection: &Connection, segment: i16) -> Result<Option<String>, Error> {
    why(connection, Access::Look, sql::NEEDS, segment).await
}

async fn why(connection: &Connection, access: Access, verb: Verb<'_>, segment: i16) -> Result<Option<String>, Error> {
    let [rows] = connection.pipeline(access, [(verb, &[(&segment, Type::INT2)])]).await?;
    Ok(rows.first().map(|row| row.try_get("why")).transpose()?.flatten())
}

/// Transactions that hold a lock on a segment.
async fn holders(connection: &Connection, segment: i16) -> Result<HashSet<String>, Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::HOLDERS, &[(&segment, Type::INT2)])]).await?;
    let holder = |row: &Row| Ok(row.try_get::<_, Option<String>>("holder")?.unwrap_or_default());
    rows.iter().map(holder).collect()
}
