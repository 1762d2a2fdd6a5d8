//! What `pgbaton adopt` looks at beyond the catalogue: how many rows are pending, whether an index serves a look, and whether
//! rows can become messages. Reads only, with the statements that a relay would use.

use tokio_postgres::Row;

use super::TableSource;
use super::catalogue::Shape;
use super::check::{is_indexed, look_of_all};
use super::definition::TableSpec;
use super::pending::pending as read_pending;
use super::row::{content, message_id, without_payload};
use super::statements::Statements;
use super::taken::RowId;
use crate::connection::{Access, Connection, incarnation};
use crate::error::{Error, Kind};
use crate::source::Behind;
use crate::source::brought::INLINE_BYTES;
use crate::source::trouble::of_a_value;
use crate::sql::{self, Verb};

/// Counts what is pending.
pub(crate) async fn pending(connection: &Connection, spec: &TableSpec, shape: &Shape) -> Result<Behind, Error> {
    let statements = Statements::new(spec, shape)?;
    let verb = Verb { name: "behind", sql: &statements.behind };
    let [rows] = connection.pipeline(Access::ReadTheirs, [(verb, &[])]).await?;
    read_pending(rows.first(), spec)
}

/// Whether there is an index that a look walks.
pub(crate) async fn indexed(connection: &Connection, spec: &TableSpec, shape: &Shape) -> Result<bool, Error> {
    is_indexed(connection, &Statements::new(spec, shape)?).await
}

/// Some of the pending rows, the first ones by the order.
pub(crate) struct Sample {
    /// How many were looked at.
    pub(crate) rows: usize,
    /// Those that cannot become messages: their message ids, and why.
    pub(crate) bad: Vec<(String, String)>,
    /// Those without a payload.
    pub(crate) empty: usize,
}

impl TableSource {
    /// Fetches the first pending rows as a relay would, and looks whether each can become a message. After
    /// [`check`](crate::source::Source::check).
    pub(crate) async fn sample(&self, most: i64) -> Result<Sample, Error> {
        let statements = self.statements()?;
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?;
        let look = Verb { name: "look", sql: &statements.look };
        let [found, rows] =
            connection.pipeline(Access::ReadTheirs, [(sql::INCARNATION, &[]), (look, &look_of_all(&most))]).await?;
        let here = incarnation(&found)?;
        let columns = self.spec.id.len();
        let ids = rows.iter().map(|row| RowId::read(row, 0, columns)).collect::<Result<Vec<_>, _>>()?;
        let (mut bad, mut empty) = (Vec::new(), 0);
        let mut alone: Vec<&RowId> = Vec::new();
        let looked = self.rows_of(&connection, (&ids, INLINE_BYTES), &here, |row| {
            let number: i64 = row.try_get(0)?;
            let id = usize::try_from(number).ok().and_then(|number| ids.get(number.checked_sub(1)?));
            let id = id.ok_or_else(|| Error::new(Kind::Internal, "the server gave a row that was not asked for"))?;
            match row.try_get::<_, i32>(2)? {
                size if size > INLINE_BYTES => alone.push(id),
                _ => {
                    bad.extend(self.wrong_with(id, row));
                    empty += usize::from(without_payload(row));
                }
            }
            Ok(())
        });
        match looked.await {
            Ok(()) => {}
            // One of them cannot be read, so that none was: each by itself.
            Err(error) if of_a_value(&error) => {
                (bad, empty) = (Vec::new(), 0);
                alone = ids.iter().collect();
            }
            Err(error) => return Err(error),
        }
        for id in alone {
            let looked = self.rows_of(&connection, (std::slice::from_ref(id), i32::MAX), &here, |row| {
                bad.extend(self.wrong_with(id, row));
                empty += usize::from(without_payload(row));
                Ok(())
            });
            match looked.await {
                Err(error) if of_a_value(&error) => bad.push((self.name(id), self.unreadable(&error))),
                looked => looked?,
            }
        }
        slot.put(connection);
        Ok(Sample { rows: ids.len(), bad, empty })
    }

    fn wrong_with(&self, id: &RowId, row: &Row) -> Option<(String, String)> {
        Some((self.name(id), content(row, self.spec.payload_is_json).err()?.to_owned()))
    }

    /// The index that a look would walk, if it is missing. After [`check`](crate::source::Source::check).
    pub(crate) async fn missing_index(&self) -> Result<Option<String>, Error> {
        let statements = self.statements()?;
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?;
        let indexed = is_indexed(&connection, &statements).await?;
        slot.put(connection);
        Ok((!indexed).then(|| self.spec.index(statements.partitioned)))
    }

    fn name(&self, row: &RowId) -> String {
        message_id(&self.relay, row)
    }
}
