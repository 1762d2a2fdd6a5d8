//! Relays over time: what is registered, dropping, and doubling the lanes.

use std::time::Duration;

use serde::Serialize;
use tokio_postgres::types::Type;

use super::{audit, checked, replicas};
use crate::connection::{Access, Connection, Database, Parameter};
use crate::error::Error;
use crate::sql;

/// A registered relay, as the database knows it.
#[derive(Debug, Serialize)]
pub struct RelayStatus {
    /// Its name.
    pub name: String,
    /// The adopted table that it reads, quoted as in SQL; `None`: the outbox.
    pub table: Option<String>,
    /// How many lanes it is to have.
    pub lanes: i32,
    /// How many it has: fewer while they are being split.
    pub lanes_now: i64,
    /// How many of them have an owner.
    pub owned: i64,
    /// Replicas that run it. None: its messages wait until somebody does, or it is dropped.
    pub replicas: i64,
    /// Every lane has dealt with every message up to this id, but for those of transactions that were still open by then.
    /// `None` if it reads an adopted table.
    pub passed: Option<i64>,
    /// Messages of it that are set aside, up to 10,000, dead or not.
    pub parked: i64,
    /// Seconds since it was registered.
    pub age_seconds: f64,
}

/// Lists all relays. Touches no message.
///
/// # Errors
/// A database that cannot be reached, or a schema of another version.
pub async fn list(database: &Database) -> Result<Vec<RelayStatus>, Error> {
    list_on(&checked(database).await?).await
}

async fn list_on(connection: &Connection) -> Result<Vec<RelayStatus>, Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::RELAYS, &[])]).await?;
    rows.iter()
        .map(|row| {
            Ok(RelayStatus {
                name: row.try_get("name")?,
                table: row.try_get("reads")?,
                lanes: row.try_get("lanes")?,
                lanes_now: row.try_get("has_lanes")?,
                owned: row.try_get("owned")?,
                replicas: row.try_get("replicas")?,
                passed: row.try_get("passed")?,
                parked: row.try_get("parked")?,
                age_seconds: row.try_get("age")?,
            })
        })
        .collect()
}

pub(super) async fn find(connection: &Connection, name: &str) -> Result<RelayStatus, Error> {
    list_on(connection).await?.into_iter().find(|relay| relay.name == name).ok_or_else(|| {
        Error::refused(format!("there is no relay {name}"), "`pgbaton relays list` shows those there are")
    })
}

/// Drops a relay with its lanes and positions: what only it kept in the outbox is emptied by and by, and a replica that
/// still has it in its configuration registers it anew at its next start.
///
/// # Errors
/// A relay that is not registered or that a replica runs, and a role that does not own the schema.
pub async fn drop(database: &Database, name: &str) -> Result<(), Error> {
    let connection = checked(database).await?;
    let relay = find(&connection, name).await?;
    if relay.replicas > 0 || relay.owned > 0 {
        replicas::expire_dead(&connection).await?;
    }
    connection.lock(sql::REGISTER_LOCK, &[]).await?;
    let numbers = connection.then(sql::LANE_NUMBERS, &[(&name, Type::TEXT)]).await?;
    let numbers = numbers.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i32>, _>>()?;
    let names = vec![name; numbers.len()];
    let locked = connection.then(sql::CLAIM_LOCK, &[(&names, Type::TEXT_ARRAY), (&numbers, Type::INT4_ARRAY)]).await?;
    // Without all locks, no relay.
    let name_if_locked = (locked.len() == numbers.len()).then_some(name);
    if connection.then(sql::DROP_RELAY, &[(&name_if_locked, Type::TEXT)]).await?.is_empty() {
        return Err(Error::refused(
            format!("relay {name} is run by a replica, or one of its positions is just being written"),
            "Take it out of the configuration of all replicas first, and wait until they have given back its lanes",
        ));
    }
    audit::write(&connection, ("relays drop", Some(name)), &relay, Some(relay.parked)).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(())
}

/// Has a relay's lanes doubled. Their owners split them, one after the other, while messages go on.
///
/// # Errors
/// A relay that is not registered, has 4096 lanes, or is being split already.
pub async fn split(database: &Database, name: &str) -> Result<i32, Error> {
    let connection = checked(database).await?;
    let relay = find(&connection, name).await?;
    let parameters: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&relay.lanes, Type::INT4)];
    connection.open(Access::Write).await?;
    match connection.then(sql::WANT_LANES, &parameters).await?.first() {
        Some(row) => {
            let lanes = row.try_get("lanes")?;
            audit::write(&connection, ("lanes split", Some(name)), &serde_json::json!({ "lanes": lanes }), None)
                .await?;
            connection.commit(sql::INCARNATION, &[]).await?;
            Ok(lanes)
        }
        None => Err(Error::refused(
            format!("relay {name} has {} of {} lanes, and is not split further now", relay.lanes_now, relay.lanes),
            "A relay has 4096 lanes at most, and one split has to be over before the next",
        )),
    }
}

/// Waits until a relay has as many lanes as it is to have. False if that took longer than `patience`: it goes on all the
/// same, as soon as replicas run that can open all lanes.
///
/// # Errors
/// A database that cannot be reached, or a relay that is no longer there.
pub async fn wait_for_split(database: &Database, name: &str, patience: Duration) -> Result<bool, Error> {
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    let connection = checked(database).await?;
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        let relay = find(&connection, name).await?;
        if relay.lanes_now == i64::from(relay.lanes) {
            return Ok(true);
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(false);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
