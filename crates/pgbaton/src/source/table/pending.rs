//! How many rows are pending, and for how long the oldest of them has been.
//!
//! Without an index this reads as much as a look, on the connection that looks have. So it keeps to the same pace: what was
//! counted last is the answer until it is due again.

use std::sync::PoisonError;
use std::time::Duration;

use tokio_postgres::Row;

use super::look::Pace;
use super::{TableSource, TableSpec};
use crate::clock;
use crate::connection::Access;
use crate::error::{Error, Kind};
use crate::lease::BootInstant;
use crate::source::Behind;
use crate::sql::Verb;

/// What was counted last.
#[derive(Default)]
pub(super) struct Counted {
    last: Option<(Behind, BootInstant)>,
    pace: Pace,
}

impl Counted {
    /// What was counted last, unless it is time to count again. What is pending has grown older since.
    fn known(&self, now: BootInstant) -> Option<Behind> {
        let (behind, at) = self.last.filter(|_| !self.pace.is_due(now))?;
        let older = |oldest: Duration| if oldest.is_zero() { oldest } else { oldest.saturating_add(now.since(at)) };
        Some(Behind { oldest: behind.oldest.map(older), ..behind })
    }
}

impl TableSource {
    pub(super) async fn count_pending(&self) -> Result<Behind, Error> {
        let now = clock::now();
        let (known, due) = self.counted(|counted| (counted.known(now), counted.pace.is_due(now)));
        if let Some(behind) = known {
            return Ok(behind);
        }
        if !due {
            return Err(Error::new(
                Kind::Database,
                "what is pending could not be counted, and is not counted again yet",
            ));
        }
        let statements = self.statements()?;
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?.waiting(self.patience.now());
        let began = clock::now();
        let verb = Verb { name: "behind", sql: &statements.behind };
        let rows = connection.pipeline(Access::ReadTheirs, [(verb, &[])]).await;
        let now = clock::now();
        self.counted(|counted| counted.pace.took(now.since(began), now));
        let [rows] = rows?;
        slot.put(connection);
        let behind = pending(rows.first(), &self.spec)?;
        self.counted(|counted| counted.last = Some((behind, now)));
        Ok(behind)
    }

    fn counted<T>(&self, f: impl FnOnce(&mut Counted) -> T) -> T {
        f(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Reads the answer of the statement `behind`.
pub(super) fn pending(row: Option<&Row>, spec: &TableSpec) -> Result<Behind, Error> {
    let row = row.ok_or_else(|| Error::new(Kind::Internal, "the server did not say what is pending"))?;
    let (rows, oldest): (i64, Option<f64>) = (row.try_get("rows")?, row.try_get("oldest")?);
    // A time that is yet to come is not old.
    let oldest = oldest.map(|oldest| Duration::try_from_secs_f64(oldest).unwrap_or_default());
    let messages = u64::try_from(rows).unwrap_or_default();
    let none = spec.created_at.is_some() && messages == 0;
    Ok(Behind { messages, oldest: if none { Some(Duration::ZERO) } else { oldest } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counting takes a quarter of the time at most, and what is not known is not made up.
    #[test]
    fn what_was_counted_is_the_answer_for_a_while() {
        let at = |millis| BootInstant::from_boot(Duration::from_millis(millis));
        let mut counted = Counted::default();
        assert_eq!(counted.known(at(0)), None);
        counted.pace.took(Duration::from_millis(1_000), at(1_000));
        assert_eq!(counted.known(at(1_500)), None);
        for (oldest, later) in [(None, None), (Some(0), Some(0)), (Some(500), Some(3_499))] {
            let behind = |oldest: Option<u64>| Behind { messages: 7, oldest: oldest.map(Duration::from_millis) };
            counted.last = Some((behind(oldest), at(1_000)));
            assert_eq!(counted.known(at(3_999)), Some(behind(later)));
            assert_eq!(counted.known(at(4_000)), None);
        }
    }
}
