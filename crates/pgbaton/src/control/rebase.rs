//! Making positions right again: after a restore, and after `pg_upgrade`.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;

use super::{audit, replicas};
use crate::connection::{Access, Database, Parameter};
use crate::error::{Error, Kind};
use crate::migrate;
use crate::sql;

/// What re-basing found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rebased {
    /// Messages in the outbox.
    pub messages: i64,
    /// Those that are delivered from now on, some of them again.
    pub due: i64,
}

/// Takes all positions back to what is certain in this database. Nothing is lost: a message that every relay had dealt
/// with stays so, and all others are delivered, again perhaps.
///
/// With `forsake` sinks may have been written from timelines of this server up to this one, which were given up for it.
///
/// # Errors
/// A replica that runs: it is watched for a whole ttl. A role that does not own the schema.
pub async fn rebase(database: &Database, forsake: i32) -> Result<Rebased, Error> {
    let connection = database.connect().await?;
    migrate::check(&connection).await?;
    if let Some(id) = replicas::running(&connection).await? {
        return Err(Error::refused(
            format!("replica {id} runs: what it publishes meanwhile would be counted wrong"),
            "Stop all replicas that use this database, then run it again",
        ));
    }
    /// For transactions that use the outbox all the time.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Every message is written anew in one statement.
    const ANSWER: Duration = Duration::from_secs(24 * 3_600);
    let parameters: [Parameter<'_>; 1] = [(&forsake, Type::INT4)];
    let details = serde_json::json!({ "forsake_timeline": forsake });
    let statement = (sql::REBASE, &parameters[..]);
    let rows = super::with_the_outbox_locked(database, PATIENCE, ANSWER, statement, ("rebase", &details)).await?;
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "pgbaton.rebase() gave no row"))?;
    Ok(Rebased { messages: row.try_get("messages")?, due: row.try_get("due")? })
}

/// Confirms that this server came from `pg_upgrade`: its new identifier is taken down, and sinks' positions that name the
/// old one still count.
///
/// # Errors
/// What does not look like `pg_upgrade`, with what it is instead. A role that does not own the schema.
pub async fn confirm(database: &Database) -> Result<(), Error> {
    let connection = database.connect().await?;
    migrate::check(&connection).await?;
    connection.open(Access::Write).await?;
    let rows = connection.then(sql::CONFIRM, &[]).await?;
    if let Some(why) = rows.first().map(|row| row.try_get::<_, Option<String>>("why")).transpose()?.flatten() {
        return Err(Error::refused(why, "Nothing was changed"));
    }
    audit::write(&connection, ("confirm", None), &serde_json::json!({}), None).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(())
}
