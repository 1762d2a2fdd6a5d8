//! What `pgbaton adopt` looks at beyond the catalogue: how many rows are pending, whether an index serves a look, and whether
//! rows can become messages. Reads only, with the statements that a relay would use.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::TableSource;
use super::catalogue::Shape;
use super::check::is_indexed;
use super::definition::TableSpec;
use super::fetch::{content, message_id};
use super::statements::Statements;
use super::taken::RowId;
use crate::connection::{Access, Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::source::brought::INLINE_BYTES;
use crate::sql::{self, Verb};

/// What is pending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Rows, up to 10,000.
    pub(crate) rows: u64,
    /// The age of the oldest one, where a column says so.
    pub(crate) oldest: Option<Duration>,
}

/// Counts what is pending.
pub(crate) async fn pending(connection: &Connection, spec: &TableSpec, shape: &Shape) -> Result<Pending, Error> {
    let statements = Statements::new(spec, shape)?;
    let verb = Verb { name: "behind", sql: &statements.behind };
    let [rows] = connection.pipeline(Access::Read, [(verb, &[])]).await?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "the server did not say what is pending"))?;
    let oldest: Option<f64> = row.try_get("oldest")?;
    let rows: i64 = row.try_get("rows")?;
    Ok(Pending {
        rows: u64::try_from(rows).unwrap_or_default(),
        oldest: oldest.map(|oldest| Duration::try_from_secs_f64(oldest).unwrap_or_default()),
    })
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
    pub(crate) bad: Vec<(String, &'static str)>,
}

impl TableSource {
    /// Fetches the first pending rows as a relay would, and looks whether each can become a message. After
    /// [`check`](crate::source::Source::check).
    pub(crate) async fn sample(&self, most: i64) -> Result<Sample, Error> {
        let statements = self.statements()?;
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?;
        let (of, lanes) = (1_i32, Vec::<i32>::new());
        let parameters: [Parameter<'_>; 3] = [(&of, Type::INT4), (&lanes, Type::INT4_ARRAY), (&most, Type::INT8)];
        let look = Verb { name: "look", sql: &statements.look };
        let [found, rows] = connection.pipeline(Access::Read, [(sql::INCARNATION, &[]), (look, &parameters)]).await?;
        let here = incarnation(&found)?;
        let columns = self.spec.id.len();
        let mut ids = Vec::with_capacity(rows.len());
        for row in &rows {
            let id = (0..columns).map(|n| row.try_get(n)).collect::<Result<Vec<String>, _>>()?;
            ids.push(RowId(id.into()));
        }
        let mut sample = Sample { rows: ids.len(), bad: Vec::new() };
        let mut large = Vec::new();
        self.rows_of(&connection, (&ids, of, INLINE_BYTES), &here, |row| {
            let number: i64 = row.try_get(0)?;
            let id = usize::try_from(number).ok().and_then(|number| ids.get(number.checked_sub(1)?));
            let id = id.ok_or_else(|| Error::new(Kind::Internal, "the server gave a row that was not asked for"))?;
            match row.try_get::<_, i32>(2)? {
                size if size > INLINE_BYTES => large.push(id),
                _ => sample.bad.extend(content(row, self.spec.payload_is_json).err().map(|why| (self.name(id), why))),
            }
            Ok(())
        })
        .await?;
        for id in large {
            let ids = std::slice::from_ref(id);
            self.rows_of(&connection, (ids, of, i32::MAX), &here, |row| {
                sample.bad.extend(content(row, self.spec.payload_is_json).err().map(|why| (self.name(id), why)));
                Ok(())
            })
            .await?;
        }
        slot.put(connection);
        Ok(sample)
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
