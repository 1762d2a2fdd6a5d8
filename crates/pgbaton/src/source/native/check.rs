//! Refuse rather than guess: whether the outbox is as the reading relies on.

use tokio_postgres::Row;

use super::{CONFIRM, NativeSource, REBASE};
use crate::connection::Access;
use crate::error::{Error, Kind};
use crate::sql;

/// Facts that must hold, each with what is wrong if it does not.
const FACTS: [(&str, &str); 6] = [
    (
        "always_generated",
        "its id is not `generated always as identity`, so a producer could choose one that was passed already",
    ),
    ("xid_first", "its id stands before its xid, so an id could be taken before the transaction had its own"),
    ("xid_default", "its xid does not default to pg_current_xact_id()"),
    ("own_segments", "its partitions are not those of pgbaton.segment, so some messages would not be looked for"),
    ("indexes", "its indexes outbox_id and outbox_xid_id are not both there and valid"),
    ("plain_sequence", "the sequence of its ids has a cache, another step than one, or a cycle"),
];

impl NativeSource {
    pub(super) async fn check_outbox(&self) -> Result<(), Error> {
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let [rows] = connection.pipeline(Access::Look, [(sql::OUTBOX_FACTS, &[])]).await?;
        slot.put(connection);
        check_shape(check_server(rows.first())?)
    }
}

/// Whether the outbox is as the reading relies on: by the answer of `outbox_facts.sql`.
pub(crate) fn check_shape(row: &Row) -> Result<(), Error> {
    for (fact, wrong) in FACTS {
        if row.try_get::<_, Option<bool>>(fact)? != Some(true) {
            return Err(Error::refused(
                format!("pgbaton.outbox was altered: {wrong}"),
                "Messages could be skipped. Take the change back: `pgbaton migrate --print` shows how it has to be. Do not \
                 drop the table: messages that are not delivered yet would be gone",
            ));
        }
    }
    if row.try_get::<_, bool>("row_security")? {
        return Err(Error::refused(
            "pgbaton.outbox has row-level security, which could hide messages from the relay",
            "Disable it on the table and its segments: grants decide who may insert",
        ));
    }
    Ok(())
}

/// Whether this is the server, and the database, that positions were written on: by the answer of `outbox_facts.sql`.
pub(crate) fn check_server(row: Option<&Row>) -> Result<&Row, Error> {
    let row = row.ok_or_else(|| Error::new(Kind::Schema, "pgbaton.home is empty"))?;
    let version: i32 = row.try_get("version")?;
    if version < 150_000 {
        return Err(Error::refused(
            format!("the server has version {version}"),
            "pgbaton needs PostgreSQL 15 or newer",
        ));
    }
    if row.try_get::<_, &str>("encoding")? == "SQL_ASCII" {
        return Err(Error::refused(
            "the database has the encoding SQL_ASCII, which does not say what its texts mean",
            "Use a database with the encoding UTF8",
        ));
    }
    if !row.try_get::<_, bool>("same_table")? {
        return Err(Error::refused("this database is not the one that the positions were written in", REBASE));
    }
    if !row.try_get::<_, bool>("same_system")? {
        return Err(Error::refused("this server is not the one that the positions were written on", CONFIRM));
    }
    Ok(row)
}
