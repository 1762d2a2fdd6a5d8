//! Fetching rows that a look has found, as messages.
//!
//! A row that is no longer pending by now, or whose key has changed so that it is another lane's, is left out. Large ones come
//! one at a time. What was fetched is used only once the log is on disk beyond it: a number that a crash takes back is given to
//! another row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::look::REST;
use super::row::{check, content, lend, message_id, version};
use super::taken::{Asked, RowId, TakenRow};
use super::{TableRows, TableSource, columns_of};
use crate::clock;
use crate::connection::{Access, Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::lane::{self, Grant};
use crate::position::Incarnation;
use crate::source::batch::{Order, Rows as BatchRows};
use crate::source::brought::{Brought, FoundBatch, FoundPart, INLINE_BYTES};
use crate::source::flush;
use crate::source::trouble::of_a_value;
use crate::source::{Batch, Budget, HeldMessages, Next, Parking, Read};
use crate::sql::{self, Verb};

/// How many rows the next fetch asks for. Doubles while they are small, and shrinks with their size: the server reads all of a
/// row to tell its size.
pub(super) struct Rows {
    most: usize,
    /// Of one lane.
    each: usize,
}

impl Default for Rows {
    fn default() -> Self {
        Self { most: Self::FIRST, each: usize::MAX }
    }
}

impl Rows {
    const FIRST: usize = 256;
    const MOST: usize = 8_192;

    /// So many came, of so many bytes together, whether with their content or without.
    fn follow(&mut self, rows: usize, bytes: usize, budget: usize) {
        let fitting = bytes.checked_div(rows).map_or(Self::MOST, |each| budget / each.max(1));
        self.most = (self.most * 2).min(fitting).clamp(1, Self::MOST);
        self.each = self.each.saturating_mul(2);
    }

    /// They did not come in time.
    fn too_many(&mut self) {
        self.most = (self.most / 2).max(1);
    }

    /// The size up to which a row comes with the others: few large ones may as well, as long as they fit together.
    fn inline(&self, budget: usize) -> i32 {
        i32::try_from(2 * budget / self.most).unwrap_or(i32::MAX).max(INLINE_BYTES)
    }

    /// One of them cannot be read, so that none came. Those before it come a few at a time, and again more where they do.
    fn failed(&mut self) {
        self.each = 1;
    }
}

/// A row that blocks its lane is fetched so often at most, and a large one less often.
const TRY_EVERY: Duration = Duration::from_secs(1);

/// What was asked for, lane after lane; rows come back by their numbers in it, from 1.
#[derive(Clone)]
pub(super) struct Chunk {
    pub(super) rows: Vec<(Asked, RowId)>,
    pub(super) of: i32,
    /// Larger ones come without their content.
    pub(super) inline: i32,
}

impl Chunk {
    fn get(&self, number: i64) -> Option<&(Asked, RowId)> {
        self.rows.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// The first row of each lane.
    fn firsts(&self) -> Self {
        let mut rows = self.rows.clone();
        rows.dedup_by_key(|(asked, _)| *asked);
        Self { rows, ..*self }
    }

    /// A chunk for each of its rows.
    fn one_by_one(&self) -> impl Iterator<Item = Self> {
        self.rows.iter().map(|row| Self { rows: vec![row.clone()], ..*self })
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
    /// Rows that came, with their content or without, and their bytes.
    rows: usize,
    bytes: usize,
    /// Numbers of rows that are messages of their lane now, each with its version.
    there: BTreeMap<i64, i64>,
    /// The first row of a lane that cannot be a message, and why.
    bad: BTreeMap<i32, (i64, Error)>,
}

impl Fetched {
    /// Nothing so far.
    fn of(chunk: &Chunk) -> Self {
        let lanes: Vec<i32> = chunk.lanes().iter().map(|asked| asked.lane).collect();
        let brought = Brought::new(&lanes, chunk.of, chunk.inline);
        Self { brought, rows: 0, bytes: 0, there: BTreeMap::new(), bad: BTreeMap::new() }
    }
}

/// What became of one lane's part of the chunk.
struct LaneRows {
    asked: Asked,
    /// Batches in order.
    batches: Vec<FoundBatch>,
    /// All rows up to this number are in these, or gone.
    upto: i64,
    /// Why the next one is not.
    refused: Option<Error>,
}

impl TableSource {
    /// The next rows of these lanes, as far as they were found and fit.
    pub(super) async fn fetch(&self, asked: &[Asked], here: &Incarnation, budget: &Budget) -> Result<Read, Error> {
        let mut refused = self.try_blocked(asked, here).await?;
        let Some(chunk) = self.chunk(asked, budget) else { return Ok(Read { refused, ..self.nothing_read() }) };
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?.waiting(self.patience.now());
        let began = clock::now();
        let brought = self.bring_all(&connection, chunk, here, budget).await;
        self.patience.follow(clock::now().since(began), brought.is_ok());
        if brought.is_err() {
            self.state(|state| state.rows.too_many());
        }
        let mut parts = brought?;
        let sum = |of: fn(&Fetched) -> usize| parts.iter().map(|(_, fetched)| of(fetched)).sum::<usize>();
        let (rows, bytes) = (sum(|fetched| fetched.rows), sum(|fetched| fetched.bytes));
        let mut left = budget.bytes.saturating_sub(sum(|fetched| fetched.brought.bytes));
        // One that is fetched alone may be as large as a message can be.
        let connection = connection.waiting(self.patience.most());
        let mut lanes = Vec::new();
        for (part, (chunk, fetched)) in parts.iter_mut().enumerate() {
            for lane in chunk.lanes() {
                let rows = self.complete(&connection, chunk, lane, here, fetched, (&mut left, budget)).await?;
                lanes.push((part, rows));
            }
        }
        self.metrics.server_clock_says(flush::wait(&connection, here, &self.relay).await?);
        slot.put(connection);
        self.state(|state| state.rows.follow(rows, bytes, budget.bytes));
        // From here on nothing waits: what is taken is handed out.
        let mut batches = Vec::new();
        for (part, rows) in lanes {
            let Some((chunk, fetched)) = parts.get(part) else { continue };
            refused.extend(self.emit(chunk, rows, here, &fetched.there, &mut batches)?);
        }
        let next = if left > 0 || budget.one_more { Next::Now } else { Next::WithRoom };
        Ok(Read { batches, refused, next, ..self.nothing_read() })
    }

    /// Fetches rows that block their lanes once more. One that could be a message by now, is gone, or belongs to another lane,
    /// lets its lane go on, with what the next look finds. Gives the others.
    async fn try_blocked(&self, asked: &[Asked], here: &Incarnation) -> Result<Vec<(Grant, Error)>, Error> {
        let rows = self.state(|state| state.taken.to_try(asked, clock::now()));
        let mut refused = Vec::new();
        for (asked, row) in rows {
            let chunk = Chunk { rows: vec![(asked, row)], of: asked.of, inline: INLINE_BYTES };
            let mut slot = self.reader.lock().await;
            let connection = slot.take().await?.waiting(self.patience.most());
            let began = clock::now();
            let tried = self.alone(&connection, &chunk, 1, here).await;
            let (now, ended) = (clock::now(), !matches!(tried, Err(Alone::Failed(_))));
            self.patience.follow(now.since(began), ended);
            let again = now.after(TRY_EVERY.max(now.since(began) * REST));
            match tried {
                Ok(_) => self.state(|state| state.taken.unblock(asked)),
                Err(Alone::NoMessage(why)) => {
                    self.state(|state| state.taken.block(asked, again));
                    let grant = self.state(|state| state.taken.registration(asked));
                    refused.extend(grant.map(|(grant, _)| (grant, why)));
                }
                Err(Alone::Failed(error)) => {
                    self.state(|state| state.taken.block(asked, again));
                    return Err(error);
                }
            }
            slot.put(connection);
        }
        Ok(refused)
    }

    /// The rows to ask for: of lanes of one number of lanes. Where there are several, while lanes are being split, they take
    /// turns.
    fn chunk(&self, asked: &[Asked], budget: &Budget) -> Option<Chunk> {
        let of: BTreeSet<i32> = asked.iter().map(|asked| asked.of).collect();
        self.state(|state| {
            in_turn(&of, state.served).find_map(|of| {
                let asked: Vec<Asked> = asked.iter().filter(|asked| asked.of == of).copied().collect();
                let next = state.taken.next(&asked, budget.batch_messages.min(state.rows.each), state.rows.most);
                let rows: Vec<_> =
                    next.into_iter().flat_map(|(asked, rows)| rows.into_iter().map(move |row| (asked, row))).collect();
                (!rows.is_empty()).then(|| {
                    state.served = of;
                    Chunk { rows, of, inline: state.rows.inline(budget.bytes) }
                })
            })
        })
    }

    /// Brings a chunk. If a row of it cannot be read, so that none comes, the first row of each lane, and if that is among them,
    /// lane by lane: so what was asked for is told with what came of it.
    async fn bring_all(
        &self,
        connection: &Connection,
        chunk: Chunk,
        here: &Incarnation,
        budget: &Budget,
    ) -> Result<Vec<(Chunk, Fetched)>, Error> {
        let firsts = chunk.firsts();
        let several = chunk.rows.len() > firsts.rows.len();
        for chunk in [Some(chunk), several.then(|| firsts.clone())].into_iter().flatten() {
            match self.bring(connection, &chunk, here, budget).await {
                Ok(fetched) => return Ok(vec![(chunk, fetched)]),
                Err(error) if of_a_value(&error) => self.state(|state| state.rows.failed()),
                Err(error) => return Err(error),
            }
        }
        let mut parts = Vec::new();
        for chunk in firsts.one_by_one() {
            let fetched = match self.bring(connection, &chunk, here, budget).await {
                Err(error) if of_a_value(&error) => {
                    let mut fetched = Fetched::of(&chunk);
                    for (asked, row) in &chunk.rows {
                        let why = self.no_message(&message_id(&self.relay, row), &self.unreadable(&error));
                        fetched.bad.insert(asked.lane, (1, why));
                    }
                    fetched
                }
                brought => brought?,
            };
            parts.push((chunk, fetched));
        }
        Ok(parts)
    }

    async fn bring(
        &self,
        connection: &Connection,
        chunk: &Chunk,
        here: &Incarnation,
        budget: &Budget,
    ) -> Result<Fetched, Error> {
        let mut fetched = Fetched::of(chunk);
        let ids: Vec<RowId> = chunk.rows.iter().map(|(_, row)| row.clone()).collect();
        self.rows_of(connection, (&ids, chunk.inline), here, |row| self.put(row, chunk, budget, &mut fetched)).await?;
        Ok(fetched)
    }

    /// Asks for rows by their ids, and hands over those that are still pending.
    pub(super) async fn rows_of(
        &self,
        connection: &Connection,
        (ids, inline): (&[RowId], i32),
        here: &Incarnation,
        mut take: impl FnMut(&Row) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let statements = self.statements()?;
        let columns = columns_of(ids, self.spec.id.len());
        let mut parameters: Vec<Parameter<'_>> = vec![(&inline, Type::INT4)];
        parameters.extend(columns.iter().map(|column| -> Parameter<'_> { (column, Type::TEXT_ARRAY) }));
        let verb = Verb { name: "fetch", sql: &statements.fetch };
        let mut seen = None;
        let take = |row: &Row| {
            let table = row.try_get(10)?;
            if seen.replace(table) != Some(table) {
                self.same_table(table)?;
            }
            take(row)
        };
        let (found, _) =
            connection.stream(Access::ReadTheirs, (sql::INCARNATION, &[]), None, (verb, &parameters), take).await?;
        self.still(here, &incarnation(&found)?)
    }

    /// One row of a fetch: into its lane's batch, unless it belongs to another one by now.
    fn put(&self, row: &Row, chunk: &Chunk, budget: &Budget, fetched: &mut Fetched) -> Result<(), Error> {
        let (number, hash): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let lane = lane::of_hash(hash, chunk.of);
        let (asked, id) = chunk.get(number).ok_or_else(unasked)?;
        if lane != asked.lane || fetched.bad.contains_key(&lane) {
            return Ok(());
        }
        let id = message_id(&self.relay, id);
        fetched.rows += 1;
        fetched.bytes += usize::try_from(row.try_get::<_, i32>(2)?).unwrap_or_default();
        if let Err(why) = check(row, chunk.inline, self.spec.payload_is_json) {
            fetched.bad.insert(lane, (number, self.no_message(&id, why)));
            return Ok(());
        }
        fetched.there.insert(number, version(row)?);
        fetched.brought.take(row, (budget, &self.memory), None, |row, take| lend(row, &id, take))
    }

    /// What to say of a row that the server cannot read as it is told to. The server's own words would quote the row.
    pub(super) fn unreadable(&self, error: &Error) -> String {
        let columns: Vec<String> = self.spec.converted().iter().map(|column| format!("{column:?}")).collect();
        let what = match columns.as_slice() {
            [] => "a value that `pending` or the id is made of".to_owned(),
            [one] => format!("its {one}"),
            several => format!("one of its {}", several.join(", ")),
        };
        format!("{what} cannot be read as it is configured to be ({})", error.sql_state().unwrap_or_default())
    }

    pub(super) fn no_message(&self, id: &str, why: &str) -> Error {
        Error::refused(
            format!("row {id} of {} cannot be delivered: {why}", self.spec.table),
            "Change the row, or have `pending` leave it out. Until then it holds its lane",
        )
    }

    /// Fetches a row by itself, whatever its size: its message and its version; none if it is no longer pending, or of another
    /// lane by now.
    pub(super) async fn alone(
        &self,
        connection: &Connection,
        chunk: &Chunk,
        number: i64,
        here: &Incarnation,
    ) -> Result<Option<(FoundBatch, i64)>, Alone> {
        let (asked, id) = chunk.get(number).ok_or_else(unasked)?;
        let name = message_id(&self.relay, id);
        let (mut found, mut wrong) = (None, None);
        let fetched = self.rows_of(connection, (std::slice::from_ref(id), i32::MAX), here, |row| {
            let hash = row.try_get(1)?;
            if lane::of_hash(hash, asked.of) != asked.lane {
                return Ok(());
            }
            if let Err(why) = content(row, self.spec.payload_is_json) {
                wrong = Some(self.no_message(&name, why));
                return Ok(());
            }
            let mut alone = FoundBatch::default();
            lend(row, &name, &mut |message| alone.push((number, hash), message))?;
            found = Some((alone, version(row)?));
            Ok(())
        });
        match fetched.await {
            Err(error) if of_a_value(&error) => wrong = Some(self.no_message(&name, &self.unreadable(&error))),
            fetched => fetched?,
        }
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
                FoundPart::Batch(batch) => rows.batches.push(batch),
                FoundPart::ToFetch { id, bytes } if *left == 0 || (bytes > *left && !budget.one_more) => {
                    (rows.upto, rows.refused) = (id - 1, None);
                    break;
                }
                FoundPart::ToFetch { id: number, bytes } => {
                    *left = left.saturating_sub(bytes);
                    match self.alone(connection, chunk, number, here).await {
                        Ok(Some((alone, version))) => {
                            // What is sent is this version, whatever came with the others.
                            fetched.there.insert(number, version);
                            rows.batches.push(alone);
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
    /// nothing. Gives the lane with the reason, if its next row blocks it.
    fn emit(
        &self,
        chunk: &Chunk,
        rows: LaneRows,
        here: &Incarnation,
        there: &BTreeMap<i64, i64>,
        batches: &mut Vec<Batch>,
    ) -> Result<Option<(Grant, Error)>, Error> {
        let numbers = chunk.of_lane(rows.asked).take_while(|number| *number <= rows.upto).count();
        let row = |number: &i64| {
            let (_, id) = chunk.get(*number).ok_or_else(unasked)?;
            Ok(TakenRow { id: id.clone(), version: there.get(number).copied() })
        };
        let of_batch = |batch: &FoundBatch| batch.numbers.iter().map(row).collect::<Result<Vec<_>, Error>>();
        let taken_rows = rows.batches.iter().map(of_batch).collect::<Result<Vec<_>, Error>>()?;
        let taken = self.state(|state| {
            let (grant, registration) = state.taken.registration(rows.asked)?;
            if !state.taken.take(rows.asked, numbers, taken_rows.iter().flatten()) {
                return None;
            }
            if rows.refused.is_some() {
                state.taken.block(rows.asked, clock::now().after(TRY_EVERY));
            }
            Some((grant, registration))
        });
        let Some((grant, registration)) = taken else { return Ok(None) };
        let here = Arc::new(here.clone());
        for (found, rows_of_it) in rows.batches.into_iter().zip(taken_rows) {
            let FoundBatch { messages, hashes, .. } = found;
            let messages = HeldMessages::new(&self.memory, messages);
            let (here, registration) = (Arc::clone(&here), registration.clone());
            let of_it = BatchRows::Table(TableRows { here, registration, rows: rows_of_it });
            let (grant, stint, parked) = (grant.clone(), rows.asked.stint, Parking::default());
            batches.push(Batch {
                grant,
                stint,
                messages,
                hashes,
                rows: of_it,
                seen: None,
                parked,
                holding: Vec::new(),
                later: Vec::new(),
                order: Order::default(),
            });
        }
        Ok(rows.refused.map(|why| (grant, why)))
    }
}

/// Numbers of lanes, beginning with the one after that which was served last.
fn in_turn(of: &BTreeSet<i32>, served: i32) -> impl Iterator<Item = i32> {
    let (before, after): (Vec<i32>, Vec<i32>) = of.iter().copied().partition(|of| *of <= served);
    after.into_iter().chain(before)
}

/// Why there is no message of a row that was fetched by itself.
pub(super) enum Alone {
    /// The row cannot be one.
    NoMessage(Error),
    Failed(Error),
}

impl From<Error> for Alone {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

fn unasked() -> Error {
    Error::new(Kind::Internal, "the server gave a row that was not asked for")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_are_split_and_those_that_are_not_take_turns() {
        let of = BTreeSet::from([4, 8, 16]);
        let order = |served| in_turn(&of, served).collect::<Vec<_>>();
        assert_eq!([order(0), order(4), order(8), order(16)], [[4, 8, 16], [8, 16, 4], [16, 4, 8], [4, 8, 16]]);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_approached_by_small_steps() {
        let mut rows = Rows::default();
        assert_eq!(rows.each, usize::MAX);
        rows.failed();
        let mut each = Vec::new();
        for _ in 0..4 {
            each.push(rows.each);
            rows.follow(1, 100, 1 << 20);
        }
        assert_eq!(each, [1, 2, 4, 8]);
        for _ in 0..64 {
            rows.follow(1, 100, 1 << 20);
        }
        assert_eq!((rows.most, rows.each), (Rows::MOST, usize::MAX));
    }

    /// Also where none of them came with its content.
    #[test]
    fn as_many_rows_are_asked_for_as_fit() {
        let mut rows = Rows::default();
        for (bytes, most, inline) in
            [(100, 512, 1 << 15), (1 << 15, 256, 1 << 16), (1 << 20, 8, 1 << 21), (1 << 27, 1, 1 << 24)]
        {
            rows.follow(10, 10 * bytes, 8 << 20);
            assert_eq!((rows.most, rows.inline(8 << 20)), (most, inline), "of {bytes} bytes each");
        }
        rows.most = 8;
        rows.too_many();
        assert_eq!(rows.most, 4);
    }
}
