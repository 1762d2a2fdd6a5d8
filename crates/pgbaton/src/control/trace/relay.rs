//! What the database knows of relays and of the lane that a message falls into.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::LaneTrace;
use crate::connection::{Access, Connection, Parameter};
use crate::error::{Error, Kind};
use crate::position::Xid;
use crate::source::native;
use crate::source::table::TableSpec;
use crate::sql;

/// A registered relay.
pub(super) struct Registered {
    pub(super) name: String,
    /// What it adopts, if anything.
    pub(super) table: Option<Adopted>,
}

/// A table that a relay adopts, as its registration tells.
pub(super) struct Adopted {
    pub(super) oid: u32,
    pub(super) spec: TableSpec,
}

/// A relay with the lane of a message.
pub(super) struct Facts {
    pub(super) relay: String,
    pub(super) adopts: bool,
    /// The transaction that registered it, and when.
    pub(super) registered: (Xid, String),
    pub(super) lane: Option<LaneTrace>,
}

/// All relays, or the one of this name.
pub(super) async fn registered(connection: &Connection, relay: Option<&str>) -> Result<Vec<Registered>, Error> {
    let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&None::<i64>, Type::INT8)];
    let [rows] = connection.pipeline(Access::Look, [(sql::TRACE_RELAYS, &parameters)]).await?;
    if let (Some(relay), true) = (relay, rows.is_empty()) {
        let hint = "`pgbaton relays list` shows those there are";
        return Err(Error::refused(format!("there is no relay {relay}"), hint));
    }
    rows.iter().map(|row| Ok(Registered { name: row.try_get("name")?, table: adopted(row)? })).collect()
}

fn adopted(row: &Row) -> Result<Option<Adopted>, Error> {
    let (Some(oid), Some(definition)) = (row.try_get("adopted")?, row.try_get::<_, Option<&str>>("definition")?) else {
        return Ok(None);
    };
    let spec = serde_json::from_str(definition).ok().as_ref().and_then(TableSpec::registered);
    let spec =
        spec.ok_or_else(|| Error::new(Kind::Internal, "a relay's definition in pgbaton.relay cannot be read"))?;
    Ok(Some(Adopted { oid, spec }))
}

/// The same with the lane of this hash, in a transaction that is open.
pub(super) async fn facts(connection: &Connection, relay: Option<&str>, hash: i64) -> Result<Vec<Facts>, Error> {
    let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&hash, Type::INT8)];
    let rows = connection.then(sql::TRACE_RELAYS, &parameters).await?;
    rows.iter().map(facts_of).collect()
}

fn facts_of(row: &Row) -> Result<Facts, Error> {
    Ok(Facts {
        relay: row.try_get("name")?,
        adopts: row.try_get::<_, Option<u32>>("adopted")?.is_some(),
        registered: (native::xid(row.try_get("registered_by")?)?, row.try_get("registered_at")?),
        lane: lane(row)?,
    })
}

fn lane(row: &Row) -> Result<Option<LaneTrace>, Error> {
    let Some(lane) = row.try_get("lane")? else { return Ok(None) };
    let has_position = row.try_get::<_, Option<&str>>("consumed")?.is_some();
    let ttl: Option<i64> = row.try_get("ttl_ms")?;
    Ok(Some(LaneTrace {
        lane,
        lanes: row.try_get("lanes")?,
        epoch: row.try_get("epoch")?,
        replica: row.try_get("replica")?,
        replica_name: row.try_get("replica_name")?,
        beat: row.try_get("beat")?,
        beat_moved: None,
        leaving: row.try_get::<_, Option<bool>>("stays")? == Some(false),
        replicas: row.try_get("replicas")?,
        batch: row.try_get("batch")?,
        position: has_position.then(|| native::position(row)).transpose()?,
        position_age_seconds: row.try_get("age")?,
        ttl: Duration::from_millis(ttl.and_then(|ttl| u64::try_from(ttl).ok()).unwrap_or_default()),
    }))
}
