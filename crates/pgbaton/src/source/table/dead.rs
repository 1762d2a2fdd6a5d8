//! Dead rows of an adopted table that somebody has dealt with by hand: they are forgotten, and their keys go on.

use std::collections::HashSet;

use tokio_postgres::types::Type;

use super::TableSource;
use super::taken::RowId;
use crate::connection::{Access, Connection, Parameter};
use crate::error::Error;
use crate::source::stand_still;
use crate::sql;

/// Rows that are looked at in one go.
const MOST: i64 = 500;

impl TableSource {
    /// Looks at some of them, and at the next ones the next time.
    pub(super) async fn forget_dead(&self, connection: &Connection) -> Result<(), Error> {
        let above = self.state(|state| state.dead);
        let relay = self.relay.as_str();
        let parameters: [Parameter<'_>; 3] = [(&relay, Type::TEXT), (&above, Type::INT8), (&MOST, Type::INT8)];
        let [rows] = connection.pipeline(Access::Look, [(sql::DEAD_ROWS, &parameters)]).await?;
        let dead = rows.iter().map(|row| {
            let (number, id, row): (i64, String, Vec<String>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            Ok((number, id, RowId::from(row)))
        });
        let dead = dead.collect::<Result<Vec<_>, Error>>()?;
        // From the beginning again, once all were looked at.
        let full = i64::try_from(dead.len()) == Ok(MOST);
        self.state(|state| state.dead = dead.last().filter(|_| full).map_or(0, |(number, ..)| *number));
        if dead.is_empty() {
            return Ok(());
        }
        let ids: Vec<RowId> = dead.iter().map(|(_, _, row)| row.clone()).collect();
        connection.open(Access::ReadTheirs).await?;
        let pending: HashSet<RowId> = self.pending_of(connection, &ids).await?.into_iter().collect();
        connection.commit(sql::INCARNATION, &[]).await?;
        let gone: Vec<&str> =
            dead.iter().filter(|(_, _, row)| !pending.contains(row)).map(|(_, id, _)| id.as_str()).collect();
        if gone.is_empty() {
            return Ok(());
        }
        // As a command does it: no acknowledgement is under way meanwhile.
        stand_still(connection, relay).await?;
        let rows = connection.then(sql::DEAD_GONE, &[(&relay, Type::TEXT), (&gone, Type::TEXT_ARRAY)]).await?;
        let hashes = rows.iter().map(|row| Ok(row.try_get(0)?)).collect::<Result<Vec<i64>, Error>>()?;
        connection.then(sql::PARKED_NEXT, &[(&relay, Type::TEXT), (&hashes, Type::INT8_ARRAY)]).await?;
        connection.commit(sql::INCARNATION, &[]).await?;
        tracing::info!(relay = %self.relay, rows = hashes.len(), "dead rows are no longer pending: they are forgotten, and their keys go on");
        Ok(())
    }
}
