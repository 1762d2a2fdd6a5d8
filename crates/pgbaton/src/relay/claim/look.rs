//! The statements of `claim`: each one verb, each one short transaction.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::{RelaySpec, ReplicaSpec};
use crate::clock;
use crate::connection::{Access, Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::lane::{Epoch, Grant, Holdings, Lane, LaneFact, RelayName, ReplicaFact, ReplicaId};
use crate::lease::{Beat, Lease};
use crate::position::Incarnation;
use crate::relay::Start;
use crate::relay::pauses::Pause;
use crate::source::SourceSpec;
use crate::sql;

/// What one look at the database told.
pub(super) struct Seen {
    pub(super) here: Incarnation,
    /// The newest timeline that somebody has lived with for a whole ttl.
    pub(super) settled: i32,
    /// The longest ttl of any replica: while it is being changed they differ.
    pub(super) ttl: Duration,
    pub(super) beats: Vec<(ReplicaId, Beat)>,
    pub(super) holdings: Holdings,
    pub(super) pauses: Vec<Pause>,
    /// Of each relay: how often commands have changed what is set aside.
    pub(super) changes: BTreeMap<RelayName, i64>,
}

/// Registers a relay unless it is. What it has by then counts: the configuration only says what it gets at first.
pub(super) async fn register(connection: &Connection, relay: &RelaySpec) -> Result<(), Error> {
    let name = relay.name.as_str();
    let (table, definition) = match &relay.source {
        SourceSpec::Native => (None, None),
        SourceSpec::Table(table) => (Some(table.table.to_string()), Some(table.definition())),
    };
    let text = definition.as_ref().map(ToString::to_string);
    let parameters: [Parameter<'_>; 5] = [
        (&name, Type::TEXT),
        (&relay.lanes, Type::INT4),
        (&(relay.start == Start::Latest), Type::BOOL),
        (&table, Type::TEXT),
        (&text, Type::TEXT),
    ];
    let mut registered = write_down(connection, &parameters).await;
    // By another relay; or just now by another replica of this one, which is then found.
    if registered.as_ref().is_err_and(is_taken) {
        registered = write_down(connection, &parameters).await;
    }
    let registered = registered.map_err(|error| adopted_already(error, relay))?;
    if !registered.is_empty() {
        tracing::info!(relay = name, lanes = relay.lanes, start = ?relay.start, "registered");
    }
    let [rows] = connection.pipeline(Access::Look, [(sql::LANES_OF, &[(&name, Type::TEXT)])]).await?;
    // Dropped again in this moment: it is registered when that is noticed.
    let Some(row) = rows.first() else { return Ok(()) };
    same_source(row.try_get("definition")?, definition.as_ref(), name)?;
    let lanes: i32 = row.try_get("lanes")?;
    if lanes != relay.lanes {
        tracing::warn!(
            relay = name,
            lanes,
            configured = relay.lanes,
            "the relay has another number of lanes by the table, which counts"
        );
    }
    Ok(())
}

async fn write_down(connection: &Connection, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
    connection.lock(sql::REGISTER_LOCK, &[]).await?;
    connection.commit(sql::REGISTER, parameters).await
}

/// A name that is taken makes no error: it is the table.
fn is_taken(error: &Error) -> bool {
    error.sql_state() == Some("23505")
}

/// Two relays on one table could not tell whose mark a row bears.
fn adopted_already(error: Error, relay: &RelaySpec) -> Error {
    if !is_taken(&error) {
        return error;
    }
    Error::refused(
        format!("relay {}: its table is adopted by another relay", relay.name),
        "One relay reads a table, since one mark cannot tell two of them apart: `pgbaton relays list` shows which. Drop it, or \
         have it deliver to both places",
    )
}

/// Replicas that disagree about which rows there are, or whose lane they are in, would deliver one row twice.
fn same_source(known: Option<&str>, ours: Option<&serde_json::Value>, relay: &str) -> Result<(), Error> {
    let known: Option<serde_json::Value> = known
        .map(serde_json::from_str)
        .transpose()
        .map_err(|error| Error::new(Kind::Internal, "a relay's definition cannot be read").because(error))?;
    if known.as_ref() == ours {
        return Ok(());
    }
    let shown = |source: Option<&serde_json::Value>| source.map_or("the outbox".to_owned(), ToString::to_string);
    Err(Error::refused(
        format!(
            "relay {relay} was registered for another source: {} there, {} in the configuration",
            shown(known.as_ref()),
            shown(ours)
        ),
        "Replicas with both would deliver a row twice. Stop those that run it, drop the relay (`pgbaton relays drop`), and start \
         them with the new configuration: of a table, what is pending stands in the table itself",
    ))
}

/// Makes this replica known. Its lease begins at the moment this was sent.
pub(super) async fn join(
    connection: &Connection,
    id: ReplicaId,
    spec: &ReplicaSpec,
) -> Result<(Incarnation, Lease), Error> {
    let relays: Vec<&str> = spec.relays.iter().map(|relay| relay.name.as_str()).collect();
    let sent = clock::now();
    let ttl = i64::try_from(spec.ttl.as_millis()).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 5] = [
        (&id.0, Type::UUID),
        (&spec.name, Type::TEXT),
        (&env!("CARGO_PKG_VERSION"), Type::TEXT),
        (&relays, Type::TEXT_ARRAY),
        (&ttl, Type::INT8),
    ];
    let [rows] = connection.pipeline(Access::Write, [(sql::JOIN, &parameters)]).await?;
    Ok((incarnation(&rows)?, Lease::begin(spec.ttl, sent)))
}

/// Renews the lease of all lanes. No beat: the database does not know this replica any more.
pub(super) async fn renew(connection: &Connection, id: ReplicaId) -> Result<(Incarnation, Option<Beat>), Error> {
    let [rows] = connection.pipeline(Access::Write, [(sql::RENEW, &[(&id.0, Type::UUID)])]).await?;
    let beat: Option<i64> = rows.first().map(|row| row.try_get("beat")).transpose()?.flatten();
    Ok((incarnation(&rows)?, beat.map(Beat)))
}

pub(super) async fn watch(connection: &Connection) -> Result<Seen, Error> {
    let [rows] = connection.pipeline(Access::Look, [(sql::WATCH, &[])]).await?;
    let settled = rows.first().map(|row| row.try_get("settled")).transpose()?;
    let settled = settled.ok_or_else(|| Error::new(Kind::Schema, "pgbaton.home is empty"))?;
    let mut seen = Seen {
        here: incarnation(&rows)?,
        settled,
        ttl: Duration::ZERO,
        beats: Vec::new(),
        holdings: Holdings::default(),
        pauses: Vec::new(),
        changes: BTreeMap::new(),
    };
    for row in &rows {
        match row.try_get::<_, &str>("kind")? {
            "r" => {
                let replica = replica(row)?;
                let ttl = u64::try_from(row.try_get::<_, i64>("ttl_ms")?).unwrap_or_default();
                seen.ttl = seen.ttl.max(Duration::from_millis(ttl));
                seen.beats.push((replica.id, Beat(row.try_get("beat")?)));
                seen.holdings.replicas.push(replica);
            }
            "l" => {
                let fact = lane(row)?;
                seen.changes.insert(fact.grant.lane.relay.clone(), row.try_get("changes")?);
                seen.holdings.lanes.push(fact);
            }
            _ => {
                let paused: Option<&str> = row.try_get("pauses")?;
                seen.pauses = paused.map(Pause::read).transpose()?.unwrap_or_default();
            }
        }
    }
    Ok(seen)
}

fn replica(row: &Row) -> Result<ReplicaFact, Error> {
    let relays: Vec<&str> = row.try_get("relays")?;
    Ok(ReplicaFact {
        id: ReplicaId(row.try_get("replica")?),
        relays: relays.into_iter().filter_map(RelayName::new).collect(),
    })
}

fn lane(row: &Row) -> Result<LaneFact, Error> {
    let owner: Option<Uuid> = row.try_get("replica")?;
    Ok(LaneFact { grant: grant(row)?, owner: owner.map(ReplicaId), wanted: row.try_get("wanted")? })
}

fn grant(row: &Row) -> Result<Grant, Error> {
    let relay: &str = row.try_get("relay")?;
    let relay = RelayName::new(relay)
        .ok_or_else(|| Error::new(Kind::Internal, format!("the table names a relay {relay:?}")))?;
    let lane = Lane { relay, number: row.try_get("lane")?, of: row.try_get("lanes")? };
    Ok(Grant { lane, epoch: Epoch(row.try_get("epoch")?) })
}

/// Removes a replica whose beat is still that one, and gives its name. `None` if it is not, or somebody holds its row.
pub(super) async fn expire(connection: &Connection, id: ReplicaId, beat: Beat) -> Result<Option<String>, Error> {
    let parameters: [Parameter<'_>; 2] = [(&id.0, Type::UUID), (&beat.0, Type::INT8)];
    let [rows] = connection.pipeline(Access::Write, [(sql::EXPIRE, &parameters)]).await?;
    Ok(rows.first().map(|row| row.try_get("name")).transpose()?)
}

pub(super) async fn settle_timeline(connection: &Connection, timeline: i32) -> Result<(), Error> {
    connection.pipeline(Access::Write, [(sql::SETTLE_TIMELINE, &[(&timeline, Type::INT4)])]).await.map(drop)
}

/// Takes those of these free lanes that can be had. Each with how many of its owners have died in a row.
pub(super) async fn claim(
    connection: &Connection,
    id: ReplicaId,
    here: &Incarnation,
    free: &[Grant],
) -> Result<Vec<(Grant, u32)>, Error> {
    let relays: Vec<&str> = free.iter().map(|grant| grant.lane.relay.as_str()).collect();
    let lanes: Vec<i32> = free.iter().map(|grant| grant.lane.number).collect();
    let locked = connection.lock(sql::CLAIM_LOCK, &[(&relays, Type::TEXT_ARRAY), (&lanes, Type::INT4_ARRAY)]).await?;
    let (mut relays, mut lanes, mut epochs) = (Vec::new(), Vec::new(), Vec::new());
    for row in &locked {
        let (relay, lane): (&str, i32) = (row.try_get("relay")?, row.try_get("lane")?);
        let seen = free.iter().find(|grant| grant.lane.relay.as_str() == relay && grant.lane.number == lane);
        if let Some(grant) = seen {
            relays.push(relay);
            lanes.push(lane);
            epochs.push(grant.epoch.0);
        }
    }
    let rows = connection
        .commit(
            sql::CLAIM,
            &[
                (&id.0, Type::UUID),
                (&here.to_string(), Type::TEXT),
                (&relays, Type::TEXT_ARRAY),
                (&lanes, Type::INT4_ARRAY),
                (&epochs, Type::INT8_ARRAY),
            ],
        )
        .await?;
    let claimed = |row| Ok((grant(row)?, u32::try_from(row.try_get::<_, i32>("deaths")?).unwrap_or_default()));
    rows.iter().map(claimed).collect()
}

/// These lanes are held for long: what the owners before died of is not in them.
pub(super) async fn survived(connection: &Connection, id: ReplicaId, grants: &[Grant]) -> Result<(), Error> {
    on_grants(connection, id, grants, sql::SURVIVED).await
}

/// Lifts a lane's epoch above the one its sink holds. `None` if its lock cannot be had now, or it is no longer ours.
pub(super) async fn raise(
    connection: &Connection,
    id: ReplicaId,
    here: &Incarnation,
    grant: &Grant,
    by: Epoch,
) -> Result<Option<Epoch>, Error> {
    let (relay, lane) = (grant.lane.relay.as_str(), grant.lane.number);
    let locked =
        connection.lock(sql::CLAIM_LOCK, &[(&vec![relay], Type::TEXT_ARRAY), (&vec![lane], Type::INT4_ARRAY)]).await?;
    let rows = connection
        .commit(
            sql::RAISE,
            &[
                (&id.0, Type::UUID),
                (&here.to_string(), Type::TEXT),
                // Without the lock, no lane.
                (&(!locked.is_empty()).then_some(relay), Type::TEXT),
                (&lane, Type::INT4),
                (&grant.epoch.0, Type::INT8),
                (&by.0, Type::INT8),
            ],
        )
        .await?;
    Ok(rows.first().map(|row| row.try_get("epoch")).transpose()?.map(Epoch))
}

/// Splits a lane that is drained. None if somebody holds its lock, or it is no longer ours: then nothing has changed.
pub(super) async fn split(
    connection: &Connection,
    id: ReplicaId,
    here: &Incarnation,
    grant: &Grant,
) -> Result<Vec<Grant>, Error> {
    let (relay, lane) = (grant.lane.relay.as_str(), grant.lane.number);
    connection.lock(sql::REGISTER_LOCK, &[]).await?;
    let locked =
        connection.then(sql::CLAIM_LOCK, &[(&vec![relay], Type::TEXT_ARRAY), (&vec![lane], Type::INT4_ARRAY)]).await?;
    let parameters: [Parameter<'_>; 5] = [
        (&id.0, Type::UUID),
        (&here.to_string(), Type::TEXT),
        // Without the lock, no lane.
        (&(!locked.is_empty()).then_some(relay), Type::TEXT),
        (&lane, Type::INT4),
        (&grant.epoch.0, Type::INT8),
    ];
    connection.commit(sql::SPLIT, &parameters).await?.iter().map(self::grant).collect()
}

/// Gives lanes back, as far as they are still ours.
pub(super) async fn release(connection: &Connection, id: ReplicaId, grants: &[Grant]) -> Result<(), Error> {
    on_grants(connection, id, grants, sql::RELEASE).await
}

/// Runs a statement about lanes that are ours.
async fn on_grants(
    connection: &Connection,
    id: ReplicaId,
    grants: &[Grant],
    verb: sql::Verb<'static>,
) -> Result<(), Error> {
    let relays: Vec<&str> = grants.iter().map(|grant| grant.lane.relay.as_str()).collect();
    let lanes: Vec<i32> = grants.iter().map(|grant| grant.lane.number).collect();
    let epochs: Vec<i64> = grants.iter().map(|grant| grant.epoch.0).collect();
    let parameters: [Parameter<'_>; 4] =
        [(&id.0, Type::UUID), (&relays, Type::TEXT_ARRAY), (&lanes, Type::INT4_ARRAY), (&epochs, Type::INT8_ARRAY)];
    connection.pipeline(Access::Write, [(verb, &parameters)]).await.map(drop)
}

pub(super) async fn leave(connection: &Connection, id: ReplicaId) -> Result<(), Error> {
    connection.pipeline(Access::Write, [(sql::LEAVE, &[(&id.0, Type::UUID)])]).await.map(drop)
}

pub(super) async fn quit(connection: &Connection, id: ReplicaId) -> Result<(), Error> {
    connection.pipeline(Access::Write, [(sql::QUIT, &[(&id.0, Type::UUID)])]).await.map(drop)
}
