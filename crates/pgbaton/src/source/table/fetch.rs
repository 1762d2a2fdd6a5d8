//! Fetching rows that a look has found, as messages.
//!
//! A row that is no longer pending by now, or whose key has changed so that it is another lane's, is left out. Large ones come
//! one at a time. What was fetched is used only once the log is on disk beyond it: a number that a crash takes back is given to
//! another row.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::taken::{Asked, RowId, TakenRow};
use super::{Place, TableSource, columns_of};
use crate::clock;
use crate::connection::{Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::message::{Message, Messages, Payload};
use crate::position::Incarnation;
use crate::source::brought::{Brought, FoundPart, INLINE_BYTES, Raw, timestamp};
use crate::source::flush;
use crate::source::{Batch, Bookmark, Budget, HeldMessages, Next, Read};
use crate::sql::{self, Verb};

/// How many rows the next fetch asks for. Doubles while they are small, and shrinks with their size.
pub(super) struct Rows(usize);

impl Default for Rows {
    fn default() -> Self {
        Self(Self::LEAST)
    }
}

impl Rows {
    const LEAST: usize = 256;
    const MOST: usize = 8_192;

    fn follow(&mut self, taken: usize, bytes: usize, budget: usize) {
        let fitting = bytes.checked_div(taken).map_or(Self::MOST, |each| budget / each.max(1));
        self.0 = (self.0 * 2).min(fitting).clamp(Self::LEAST, Self::MOST);
    }
}

/// Longer message ids are not allowed.
const LONGEST_ID: usize = 200;

/// What the receiver drops repeats by: the relay and the row's id, or a digest of that where it is long.
pub(super) fn message_id(relay: &RelayName, row: &RowId) -> String {
    let id = match &*row.0 {
        [one] => one.clone(),
        several => serde_json::json!(several).to_string(),
    };
    let relay = relay.as_str();
    if relay.len() + 1 + id.len() <= LONGEST_ID {
        return format!("{relay}:{id}");
    }
    let digest: String = Sha256::digest(id.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{relay}:sha256:{digest}")
}

/// What was asked for, lane after lane; rows come back by their numbers in it, from 1.
struct Chunk {
    rows: Vec<(Asked, RowId)>,
    of: i32,
}

impl Chunk {
    fn get(&self, number: i64) -> Option<&(Asked, RowId)> {
        self.rows.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    fn lanes(&self) -> Vec<Asked> {
        let mut lanes: Vec<Asked> = self.rows.iter().map(|(asked, _)| *asked).collect();
        lanes.dedup();
        lanes
    }

    /// The numbers of a lane's rows.
    fn of_lane(&self, lane: Asked) -> impl Iterator<Item = i64> {
        (1_i64..).zip(&self.rows).filter(move |(_, (asked, _))| *asked == lane).map(|(number, _)| number)
    }
}

/// What a fetch brought.
struct Fetched {
    brought: Brought,
    /// Numbers of rows that are messages of their lane now, each with its version.
    there: BTreeMap<i64, i64>,
    /// The first row of a lane that cannot be a message, and why.
    bad: BTreeMap<i32, (i64, Error)>,
}

/// What became of one lane's part of the chunk.
struct LaneRows {
    asked: Asked,
    /// Batches in order, each with the number of its last row.
    batches: Vec<(Messages, i64)>,
    /// All rows up to this number are in these, or gone.
    upto: i64,
    /// Why the next one is not.
    refused: Option<Error>,
}

impl TableSource {
    /// The next rows of these lanes, as far as they were found and fit.
    pub(super) async fn fetch(&self, asked: &[Asked], here: &Incarnation, budget: &Budget) -> Result<Read, Error> {
        let mut read = Read { batches: Vec::new(), refused: Vec::new(), next: Next::Later };
        let Some(chunk) = self.chunk(asked, budget) else { return Ok(read) };
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?.waiting(self.patience.now());
        let began = clock::now();
        let brought = self.bring(&connection, &chunk, here, budget).await;
        self.patience.follow(clock::now().since(began), brought.is_ok());
        let mut fetched = brought?;
        let (taken, bytes) = (fetched.brought.taken, fetched.brought.bytes);
        let mut left = budget.bytes.saturating_sub(bytes);
        let mut lanes = Vec::new();
        for lane in chunk.lanes() {
            lanes.push(self.complete(&connection, &chunk, lane, here, &mut fetched, (&mut left, budget)).await?);
        }
        self.metrics.server_clock_says(flush::wait(&connection, here, &self.relay).await?);
        slot.put(connection);
        self.state(|state| state.rows.follow(taken, bytes, budget.bytes));
        // From here on nothing waits: what is taken is handed out.
        for lane in lanes {
            self.emit(&chunk, lane, here, &fetched.there, &mut read)?;
        }
        read.next = if left > 0 || budget.one_more { Next::Now } else { Next::WithRoom };
        Ok(read)
    }

    /// The rows to ask for: of lanes of one number of lanes.
    fn chunk(&self, asked: &[Asked], budget: &Budget) -> Option<Chunk> {
        let of: BTreeSet<i32> = asked.iter().map(|asked| asked.of).collect();
        of.into_iter().find_map(|of| {
            let asked: Vec<Asked> = asked.iter().filter(|asked| asked.of == of).copied().collect();
            let next = self.state(|state| state.taken.next(&asked, budget.batch_messages, state.rows.0));
            let rows: Vec<_> =
                next.into_iter().flat_map(|(asked, rows)| rows.into_iter().map(move |row| (asked, row))).collect();
            (!rows.is_empty()).then_some(Chunk { rows, of })
        })
    }

    async fn bring(
        &self,
        connection: &Connection,
        chunk: &Chunk,
        here: &Incarnation,
        budget: &Budget,
    ) -> Result<Fetched, Error> {
        let lanes: Vec<i32> = chunk.lanes().iter().map(|asked| asked.lane).collect();
        let mut fetched = Fetched { brought: Brought::new(&lanes), there: BTreeMap::new(), bad: BTreeMap::new() };
        let ids: Vec<RowId> = chunk.rows.iter().map(|(_, row)| row.clone()).collect();
        self.rows_of(connection, (&ids, chunk.of, INLINE_BYTES), here, |row| {
            self.put(row, chunk, budget, &mut fetched)
        })
        .await?;
        Ok(fetched)
    }

    /// Asks for rows by their ids, and hands over those that are still pending.
    pub(super) async fn rows_of(
        &self,
        connection: &Connection,
        (ids, of, inline): (&[RowId], i32, i32),
        here: &Incarnation,
        take: impl FnMut(&Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let statements = self.statements()?;
        let columns = columns_of(ids, self.spec.id.len());
        let mut parameters: Vec<Parameter<'_>> = vec![(&of, Type::INT4), (&inline, Type::INT4)];
        parameters.extend(columns.iter().map(|column| -> Parameter<'_> { (column, Type::TEXT_ARRAY) }));
        let verb = Verb { name: "fetch", sql: &statements.fetch };
        let (found, _) = connection.stream((sql::INCARNATION, &[]), None, (verb, &parameters), take).await?;
        self.still(here, &incarnation(&found)?)
    }

    /// One row of a fetch: into its lane's batch, unless it belongs to another one by now.
    fn put(&self, row: &Row, chunk: &Chunk, budget: &Budget, fetched: &mut Fetched) -> Result<(), Error> {
        let (number, lane): (i64, i32) = (row.try_get(0)?, row.try_get(1)?);
        let (asked, id) = chunk.get(number).ok_or_else(unasked)?;
        if lane != asked.lane || fetched.bad.contains_key(&lane) {
            return Ok(());
        }
        let id = message_id(&self.relay, id);
        if let Err(why) = check(row, self.spec.payload_is_json) {
            fetched.bad.insert(lane, (number, self.no_message(&id, why)));
            return Ok(());
        }
        fetched.there.insert(number, version(row)?);
        fetched.brought.take(row, budget, &self.memory, |row, take| lend(row, &id, take))
    }

    fn no_message(&self, id: &str, why: &str) -> Error {
        Error::refused(
            format!("row {id} of {} cannot be delivered: {why}", self.spec.table),
            "Change the row, or have `pending` leave it out. Until then it holds its lane",
        )
    }

    /// Fetches a row by itself, whatever its size: its message and its version; none if it is no longer pending, or of another
    /// lane by now.
    async fn alone(
        &self,
        connection: &Connection,
        chunk: &Chunk,
        number: i64,
        here: &Incarnation,
    ) -> Result<Option<(Messages, i64)>, Alone> {
        let (asked, id) = chunk.get(number).ok_or_else(unasked)?;
        let name = message_id(&self.relay, id);
        let (mut found, mut wrong) = (None, None);
        self.rows_of(connection, (std::slice::from_ref(id), chunk.of, i32::MAX), here, |row| {
            if row.try_get::<_, i32>(1)? != asked.lane {
                return Ok(());
            }
            if let Err(why) = content(row, self.spec.payload_is_json) {
                wrong = Some(self.no_message(&name, why));
                return Ok(());
            }
            let mut messages = Messages::default();
            lend(row, &name, &mut |message| messages.push(message))?;
            found = Some((messages, version(row)?));
            Ok(())
        })
        .await?;
        wrong.map_or(Ok(found), |wrong| Err(Alone::NoMessage(wrong)))
    }

    /// Fetches what did not come with the rows, one by one, as far as it fits, and perhaps one more.
    async fn complete(
        &self,
        connection: &Connection,
        chunk: &Chunk,
        asked: Asked,
        here: &Incarnation,
        fetched: &mut Fetched,
        (left, budget): (&mut usize, &Budget),
    ) -> Result<LaneRows, Error> {
        let found = fetched.brought.found.remove(&asked.lane).unwrap_or_default();
        let all = chunk.of_lane(asked).last().unwrap_or_default();
        let mut rows = LaneRows { asked, batches: Vec::new(), upto: all, refused: None };
        if let Some((number, why)) = fetched.bad.remove(&asked.lane) {
            (rows.upto, rows.refused) = (number - 1, Some(why));
        }
        for part in found.0 {
            match part {
                FoundPart::Batch { messages, last } => rows.batches.push((messages, last)),
                FoundPart::ToFetch { id, bytes } if *left == 0 || (bytes > *left && !budget.one_more) => {
                    (rows.upto, rows.refused) = (id - 1, None);
                    break;
                }
                FoundPart::ToFetch { id: number, bytes } => {
                    *left = left.saturating_sub(bytes);
                    match self.alone(connection, chunk, number, here).await {
                        Ok(Some((messages, version))) => {
                            // What is sent is this version, whatever came with the others.
                            fetched.there.insert(number, version);
                            rows.batches.push((messages, number));
                        }
                        // Gone since the others were fetched.
                        Ok(None) => drop(fetched.there.remove(&number)),
                        Err(Alone::NoMessage(why)) => {
                            (rows.upto, rows.refused) = (number - 1, Some(why));
                            break;
                        }
                        Err(Alone::Failed(error)) => return Err(error),
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Takes what was fetched for a lane, and hands it out. A lane that was closed meanwhile, and perhaps opened again, gets
    /// nothing.
    fn emit(
        &self,
        chunk: &Chunk,
        rows: LaneRows,
        here: &Incarnation,
        there: &BTreeMap<i64, i64>,
        read: &mut Read,
    ) -> Result<(), Error> {
        let numbers: Vec<i64> = chunk.of_lane(rows.asked).take_while(|number| *number <= rows.upto).collect();
        let mut after = 0;
        let ids: Vec<Vec<TakenRow>> = rows
            .batches
            .iter()
            .map(|(_, last)| {
                let of_batch = numbers.iter().filter(|number| **number > after && **number <= *last);
                let row = |number: &i64| {
                    let version = Some(*there.get(number)?);
                    Some(TakenRow { id: chunk.get(*number)?.1.clone(), version })
                };
                let ids = of_batch.filter_map(row).collect();
                after = *last;
                ids
            })
            .collect();
        let taken = self.state(|state| {
            let (grant, registration) = state.taken.registration(rows.asked)?;
            let handed = state.taken.take(rows.asked, numbers.len(), &ids)?;
            if rows.refused.is_some() {
                state.taken.block(rows.asked);
            }
            Some((grant, registration, handed))
        });
        let Some((grant, registration, handed)) = taken else { return Ok(()) };
        for (((messages, _), through), ids) in rows.batches.into_iter().zip(handed).zip(ids) {
            let columns = ids.iter().flat_map(|row| row.id.0.iter().cloned()).collect();
            let versions = ids.iter().map(|row| row.version).collect();
            let (registration, stint) = (registration.clone(), rows.asked.stint.0);
            let place = Place { registration, stint, through, rows: columns, versions };
            let place: Box<RawValue> = serde_json::value::to_raw_value(&place)
                .map_err(|error| Error::new(Kind::Internal, "a position cannot be written down").because(error))?;
            let next = Bookmark { incarnation: here.clone(), place };
            let messages = HeldMessages::new(&self.memory, messages);
            read.batches.push(Batch { grant: grant.clone(), stint: rows.asked.stint, messages, next });
        }
        read.refused.extend(rows.refused.map(|why| (grant, why)));
        Ok(())
    }
}

/// Why there is no message of a row that was fetched by itself.
enum Alone {
    /// The row cannot be one.
    NoMessage(Error),
    Failed(Error),
}

impl From<Error> for Alone {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn version(row: &Row) -> Result<i64, Error> {
    Ok(row.try_get(9)?)
}

fn unasked() -> Error {
    Error::new(Kind::Internal, "the server gave a row that was not asked for")
}

/// Whether a row can be a message. Constraints see to that in the outbox; here any row may be there. One that is too large to
/// come with the others is looked at for what it says by itself when it comes.
fn check(row: &Row, payload_is_json: bool) -> Result<(), &'static str> {
    let size: i32 = row.try_get(2).map_err(|_| "its size cannot be read")?;
    if size > INLINE_BYTES {
        return Ok(());
    }
    content(row, payload_is_json)
}

pub(super) fn content(row: &Row, payload_is_json: bool) -> Result<(), &'static str> {
    match row.try_get::<_, Option<&str>>(4) {
        Ok(Some("")) => return Err("its topic is empty"),
        Ok(None) => return Err("its topic is null"),
        Ok(Some(_)) => {}
        Err(_) => return Err("its topic cannot be read"),
    }
    let headers = row.try_get::<_, Option<&str>>(6).map_err(|_| "its headers cannot be read")?;
    if headers.is_some_and(|headers| !headers.trim_start().starts_with('{')) {
        return Err("its headers are no JSON object");
    }
    let json = row.try_get::<_, Option<&str>>(8).map_err(|_| "its payload cannot be read")?;
    if payload_is_json && json.is_some_and(|json| serde_json::from_str::<&RawValue>(json).is_err()) {
        return Err("its payload is no JSON");
    }
    Ok(())
}

/// Lends out a row as a message, without copying it.
fn lend(row: &Row, id: &str, take: &mut dyn FnMut(Message<'_>)) -> Result<(), Error> {
    let payload = match (row.try_get::<_, Option<Raw<'_>>>(7)?, row.try_get::<_, Option<&str>>(8)?) {
        (Some(Raw(bytes)), _) => Payload::Bytes(bytes),
        (None, Some(json)) => Payload::Json(json),
        (None, None) => Payload::None,
    };
    take(Message {
        id,
        topic: row.try_get(4)?,
        key: row.try_get(5)?,
        headers: row.try_get(6)?,
        payload,
        created_at: timestamp(row.try_get(3)?)?,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_are_never_longer_than_allowed() {
        let relay = RelayName::new("orders").unwrap();
        let id = |columns: &[&str]| message_id(&relay, &RowId(columns.iter().map(|id| (*id).to_owned()).collect()));
        assert_eq!(id(&["7"]), "orders:7");
        assert_eq!(id(&["a", "b,c"]), r#"orders:["a","b,c"]"#);
        assert_ne!(id(&["a,b", "c"]), id(&["a", "b,c"]));
        let long = "x".repeat(250);
        assert!(id(&[&long]).starts_with("orders:sha256:") && id(&[&long]).len() <= LONGEST_ID);
    }
}
