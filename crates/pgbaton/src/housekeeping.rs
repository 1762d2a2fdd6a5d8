//! Keeps pgbaton's own tables small: positions are pruned without a dead row.
//!
//! Two leaves take turns. The one that is no longer written to is locked, its newest row of each lane is copied to the
//! other one, and it is truncated. A lane's newest position is looked for in both, so nothing depends on when.

use std::time::Duration;

use crate::connection::{Access, Connection, Database, Slot};
use crate::error::Error;
use crate::sql;

/// How often the sizes are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// A leaf of this size takes its turn: some 30,000 positions.
pub const TURN_AT_BYTES: i64 = 8 << 20;

/// Prunes until dropped. Every replica runs it; whoever comes first does the work.
pub(crate) async fn run(database: Database) {
    let mut slot = Slot::new(database);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Err(error) = prune_once(&mut slot).await {
            // Another replica holds the lock, or an acknowledgement took too long: the next turn does it.
            tracing::debug!(%error, "positions were not pruned this time");
        }
    }
}

async fn prune_once(slot: &mut Slot) -> Result<(), Error> {
    let connection = slot.take().await?;
    prune_positions(&connection, TURN_AT_BYTES).await?;
    slot.put(connection);
    Ok(())
}

/// Prunes once: what every replica does now and then, for operators and tests.
///
/// # Errors
/// Nothing has been changed then; the next time does it.
pub async fn prune(database: &Database, turn_at: i64) -> Result<(), Error> {
    prune_positions(&database.connect().await?, turn_at).await
}

/// Has the leaves take turns if the one that is written to has reached this size, and empties the other one.
pub(crate) async fn prune_positions(connection: &Connection, turn_at: i64) -> Result<(), Error> {
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
    let [turned] = connection
        .pipeline(Access::Write, [(sql::POSITION_TURN, &[(&leaf, tokio_postgres::types::Type::INT2)])])
        .await?;
    if turned.is_empty() { Ok(()) } else { empty(connection, leaf).await }
}

/// Empties a leaf, its newest rows copied. Acknowledgements wait for the lock, so it is not waited for long.
async fn empty(connection: &Connection, leaf: i16) -> Result<(), Error> {
    connection.open(Access::Write).await?;
    connection
        .script(&format!(
            "set local lock_timeout = '50ms'; lock table pgbaton.position_{leaf} in access exclusive mode"
        ))
        .await?;
    let other = 1 - leaf;
    connection
        .then(
            sql::POSITION_COPY,
            &[(&leaf, tokio_postgres::types::Type::INT2), (&other, tokio_postgres::types::Type::INT2)],
        )
        .await?;
    connection.script(&format!("truncate pgbaton.position_{leaf}; commit")).await
}
