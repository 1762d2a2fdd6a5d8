//! Positions are pruned without a dead row.
//!
//! Two leaves take turns. The one that is no longer written to is locked, its newest row of each lane is copied to the
//! other one, and it is truncated. A lane's newest position is looked for in both, so nothing depends on when.

use tokio_postgres::types::Type;

use crate::connection::{Access, Connection};
use crate::error::Error;
use crate::sql;

/// A leaf of this size takes its turn: some 30,000 positions.
pub(super) const TURN_AT_BYTES: i64 = 8 << 20;

/// Has the leaves take turns if the one that is written to has reached this size, and empties the other one.
pub(super) async fn prune(connection: &Connection, turn_at: i64) -> Result<(), Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::POSITION_SIZES, &[])]).await?;
    let Some(row) = rows.first() else { return Ok(()) };
    let (leaf, written, other): (i16, i64, i64) =
        (row.try_get("leaf")?, row.try_get("written")?, row.try_get("other")?);
    if other > 0 {
        return empty(connection, 1 - leaf).await;
    }
    if written < turn_at {
        return Ok(());
    }
    let [turned] = connection.pipeline(Access::Write, [(sql::POSITION_TURN, &[(&leaf, Type::INT2)])]).await?;
    if turned.is_empty() { Ok(()) } else { empty(connection, leaf).await }
}

/// Empties a leaf, its newest rows copied. Acknowledgements wait for the lock, so it is not waited for long.
async fn empty(connection: &Connection, leaf: i16) -> Result<(), Error> {
    connection.open(Access::Write).await?;
    connection
        .script(&format!(
            "set local lock_timeout = '50ms'; set local synchronous_commit = local; lock table pgbaton.position_{leaf} in access exclusive mode"
        ))
        .await?;
    let other = 1 - leaf;
    connection.then(sql::POSITION_COPY, &[(&leaf, Type::INT2), (&other, Type::INT2)]).await?;
    connection.script(&format!("truncate pgbaton.position_{leaf}; commit")).await
}
