//! A row of an adopted table: whether it is there, whether it is to be delivered, and who has its lane.

use std::time::Duration;

use super::relay::{self, Registered};
use super::{Question, Read, Reads, RelayTrace, RowFacts, State, Trace, beats, words};
use crate::connection::{Access, Connection};
use crate::control::parked::{self, ParkedMessage};
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::source::table::TableSpec;
use crate::source::table::whereabouts::{self, Looked, Whereabouts};
use crate::sql;

/// What is known of the relay's configuration, in words, where that is not all.
pub(super) enum Configured {
    Yes,
    /// None is at hand that has the relay.
    No,
    /// The one at hand reads something else than the relay was registered for.
    Otherwise,
    /// It could not be used, and why.
    Failed(String),
}

/// What was found of the row.
pub(super) struct Found {
    pub(super) configured: Configured,
    /// Why the table said nothing.
    pub(super) not_known: Option<String>,
}

pub(super) async fn trace(
    connection: &Connection,
    question: &Question,
    registered: &[Registered],
    name: &str,
    reads: &Reads,
) -> Result<Trace, Error> {
    let vanished = || Error::new(Kind::Internal, "a relay is gone that was there");
    let registered = registered.iter().find(|of| of.name == name).ok_or_else(vanished)?;
    let adopted = registered.table.as_ref().ok_or_else(vanished)?;
    let relay =
        RelayName::new(name).ok_or_else(|| Error::new(Kind::Internal, "pgbaton.relay has a name that is none"))?;
    // The row's id alone names it, too.
    let prefixed = question.id.strip_prefix(name).is_some_and(|rest| rest.starts_with(':'));
    let id = if prefixed { question.id.clone() } else { format!("{name}:{}", question.id) };
    let spec = configured(&relay, &adopted.spec, reads);
    let mut aside = set_aside(connection, name, &id).await?;
    let row = aside.as_ref().and_then(|aside| aside.row_id.clone());
    let table = (&adopted.spec, adopted.oid);
    let Looked { row, but } =
        whereabouts::look(connection, &relay, table, spec.as_ref().ok().copied(), (&id, row)).await?;
    // A row that failed or was delivered in between: what is set aside is asked for once more, by the id that the row says it has.
    let canonical = if let Whereabouts::There(row) = &row { &row.message_id } else { &id };
    aside = set_aside(connection, name, canonical).await?;
    let configured = match (spec, but) {
        (_, Some(why)) => Configured::Failed(why),
        (Ok(_), None) => Configured::Yes,
        (Err(why), None) => why,
    };
    let (state, not_known) = state_of(aside.as_ref(), &row);
    let row = if let Whereabouts::There(row) = row { Some(row) } else { None };
    let found = Found { configured, not_known };
    let mut of_relay = RelayTrace {
        relay: name.to_owned(),
        table: Some(adopted.spec.table.to_string()),
        state,
        words: Vec::new(),
        takes_topic: None,
        lane: lane_of(connection, name, row.as_ref(), aside.as_ref()).await?,
        standing: None,
        ahead: None,
        parked: aside,
        row,
    };
    let watched = beats::watch(connection, std::slice::from_mut(&mut of_relay)).await?;
    let words = words::of_row(&id, &of_relay);
    of_relay.words = words::in_table(&of_relay, &found, watched);
    let is_there = of_relay.row.is_some() || of_relay.parked.is_some();
    Ok(Trace {
        id: question.id.clone(),
        found: is_there,
        words,
        message: None,
        writers: Vec::new(),
        cut_off: false,
        relays: vec![of_relay],
    })
}

/// What a configuration says of the relay's table, if it is the table that the relay was registered for.
fn configured<'a>(relay: &RelayName, registered: &TableSpec, reads: &'a Reads) -> Result<&'a TableSpec, Configured> {
    match reads.0.get(relay) {
        None => Err(Configured::No),
        Some(Read::Table(spec)) if spec.definition() == registered.definition() => Ok(spec),
        Some(_) => Err(Configured::Otherwise),
    }
}

async fn set_aside(connection: &Connection, relay: &str, id: &str) -> Result<Option<ParkedMessage>, Error> {
    connection.open(Access::Look).await?;
    let aside = parked::of_id(connection, relay, id).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(aside)
}

async fn lane_of(
    connection: &Connection,
    relay: &str,
    row: Option<&RowFacts>,
    aside: Option<&ParkedMessage>,
) -> Result<Option<super::LaneTrace>, Error> {
    // It was set aside under the key it had then.
    let Some(hash) = aside.map(|aside| aside.hash).or_else(|| row.map(|row| row.hash)) else { return Ok(None) };
    connection.open(Access::Look).await?;
    let facts = relay::facts(connection, Some(relay), hash).await?;
    connection.commit(sql::INCARNATION, &[]).await?;
    Ok(facts.into_iter().next().and_then(|facts| facts.lane))
}

fn state_of(aside: Option<&ParkedMessage>, row: &Whereabouts) -> (State, Option<String>) {
    let (state, not_known) = match row {
        Whereabouts::NotKnown(why) => (State::NotKnown, Some(why.clone())),
        Whereabouts::Gone => (State::Gone, None),
        Whereabouts::There(row) => match row.pending {
            Some(true) => (State::Waits, None),
            Some(false) => (State::NotPending, None),
            None => (State::NotKnown, None),
        },
    };
    (aside.map_or(state, words::state_of), not_known)
}

/// For as long as it was watched, in whole and tenths of seconds.
pub(super) fn seconds(watched: Duration) -> String {
    format!("{:.1} s", watched.as_secs_f64())
}
