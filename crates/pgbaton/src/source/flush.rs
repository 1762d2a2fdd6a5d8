//! Visible is not yet durable: a commit that did not wait for the disk is seen by others, and so is a sequence's last number;
//! after a crash both are gone and given out again. What was seen is used only once the log is on disk beyond it.

use tokio_postgres::types::Type;

use crate::connection::{Access, Connection, incarnation};
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::message::Timestamp;
use crate::position::Incarnation;
use crate::sql;

/// Writers' commits bring the log to disk all the time; a commit of our own is for when nobody else is writing.
const LOOKS: usize = 8;

/// Waits until everything that was visible before this call is on disk. Gives the server's time.
///
/// # Errors
/// Of another incarnation too: nothing that was seen may be used then.
pub(super) async fn wait(connection: &Connection, here: &Incarnation, relay: &RelayName) -> Result<Timestamp, Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::INSERTED, &[])]).await?;
    same(here, &incarnation(&rows)?, relay)?;
    let row = rows
        .first()
        .ok_or_else(|| Error::new(Kind::Internal, "the server did not say how far it has written its log"))?;
    if !row.try_get::<_, bool>("flushed")? {
        until(connection, here, relay, row.try_get("written")?).await?;
    }
    Ok(Timestamp(row.try_get("clock")?))
}

/// Waits until the log is on disk up to there.
///
/// # Errors
/// As [`wait`].
pub(super) async fn until(
    connection: &Connection,
    here: &Incarnation,
    relay: &RelayName,
    written: &str,
) -> Result<(), Error> {
    loop {
        for _ in 0..LOOKS {
            let [rows] = connection.pipeline(Access::Look, [(sql::FLUSHED, &[(&written, Type::TEXT)])]).await?;
            same(here, &incarnation(&rows)?, relay)?;
            if rows.first().map(|row| row.try_get("flushed")).transpose()? == Some(true) {
                return Ok(());
            }
        }
        connection.pipeline(Access::Write, [(sql::FLUSH, &[])]).await?;
    }
}

/// Refuses what comes from another incarnation than the one that something belongs to.
pub(super) fn same(here: &Incarnation, found: &Incarnation, relay: &RelayName) -> Result<(), Error> {
    if found == here {
        return Ok(());
    }
    Err(Error::new(
        Kind::OtherIncarnation(found.clone()),
        format!("relay {relay}: the database was {here} and is {found} now"),
    ))
}
