//! Marking what was delivered, and writing the numbers of the batches: one transaction for some batches of several lanes.
//!
//! The locks of the lanes come first, as for every acknowledgement. Then, in one round trip: the mark, under the lanes' epochs;
//! what its user has deferred until the commit; and a look, in a statement of its own, at what is still pending. So a mark that
//! a trigger swallows or takes back is found before it is committed.
//!
//! The mark meets rows that are as they were read. Those that are not are met by a second one, only where there are any, in the
//! same transaction: so they are counted, also if they change while the mark waits for their lock, and nothing is looked up
//! twice for the others.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::row::message_id;
use super::taken::{RowId, TakenRow};
use super::trouble::{of_a_row, waits};
use super::{Place, TableSource, columns_of, place};
use crate::clock;
use crate::connection::{Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::history;
use crate::lane::Grant;
use crate::position::Incarnation;
use crate::source::{Acknowledged, Bookmark, Dealt, Stint};
use crate::sql::{self, Verb};

/// Rows that are marked in one transaction, unless one batch alone has more: others wait for their locks.
const ROWS: usize = 1_000;
/// How often a row may be found pending although its mark did not meet it: its user may have set it back in that moment.
const TRIES: usize = 3;
/// A lane is opened again, with a new fence at its sink, if its last batch cannot be marked within these tries.
const SETTLING_TRIES: usize = 10;
const SETTLING_PAUSE: Duration = Duration::from_millis(500);
/// How often it is told that rows were changed, at most.
const SELDOM: Duration = Duration::from_secs(60);

/// One batch of a lane that is to be marked.
struct Piece {
    grant: Grant,
    /// The stint it was handed out in, and its number there; `None` if it was found at the sink.
    handed: Option<(Stint, u64)>,
    batch: i64,
    rows: Vec<TakenRow>,
}

/// How marking one transaction's batches ended.
enum Marked {
    /// All of them, but for lanes that were lost, by their numbers, and those whose stint is over: whoever opens such a lane
    /// reads what was marked by then, and nothing may be marked behind its back. Rows that are `changed` had been so since they
    /// were read. Whether rows were `met` that are no longer pending: the mark does what it has to.
    But { lost: Vec<i32>, over: Vec<i32>, changed: Vec<RowId>, met: bool },
    /// Nothing: these rows are pending, although no mark met them.
    Swallowed(Vec<RowId>),
}

impl TableSource {
    pub(super) async fn mark_delivered(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        let Some(first) = done.first() else { return Ok(Vec::new()) };
        let here = first.next.incarnation.clone();
        let mut queues = BTreeMap::new();
        for dealt in done {
            if dealt.next.incarnation != here {
                return Err(Error::new(Kind::Internal, "positions of several incarnations in one acknowledgement"));
            }
            queues.insert(dealt.grant.lane.number, self.pieces(dealt)?);
        }
        let mut ended: BTreeMap<i32, Acknowledged> = BTreeMap::new();
        while let Some(round) = next_round(&mut queues) {
            let outcome = self.mark_round(&round, &here).await?;
            for (lane, acknowledged) in outcome {
                queues.remove(&lane);
                ended.insert(lane, acknowledged);
            }
        }
        let written = |dealt: &Dealt| Acknowledged::Written(dealt.grant.lane.clone());
        Ok(done.iter().map(|dealt| ended.remove(&dealt.grant.lane.number).unwrap_or_else(|| written(dealt))).collect())
    }

    /// A batch that the sink was found to hold, and the database did not know of.
    pub(super) async fn mark_settled(
        &self,
        grant: &Grant,
        batch: i64,
        next: &Bookmark,
        here: &Incarnation,
    ) -> Result<(), Error> {
        let Place { rows, versions, .. } = place(next)?;
        let versions = versions.into_iter().chain(std::iter::repeat(None));
        let row = |(id, version): (&[String], _)| TakenRow { id: RowId(id.to_vec().into()), version };
        let rows = rows.chunks(self.spec.id.len()).zip(versions).map(row).collect();
        let piece = Piece { grant: grant.clone(), handed: None, batch, rows };
        for _ in 0..SETTLING_TRIES {
            match self.mark_round(std::slice::from_ref(&piece), here).await?.pop() {
                None => return Ok(()),
                Some((_, Acknowledged::Refused(_, error))) => return Err(error),
                Some((_, Acknowledged::Waits(_))) => tokio::time::sleep(SETTLING_PAUSE).await,
                Some(_) => return Err(Error::new(Kind::Database, format!("{grant} was lost while it was opened"))),
            }
        }
        Err(Error::new(Kind::Database, format!("{grant}: a row of the last batch is locked by somebody else")))
    }

    /// The lane's batches that are not marked yet, in order.
    fn pieces(&self, dealt: &Dealt) -> Result<Vec<Piece>, Error> {
        let Place { stint, through, .. } = place(&dealt.next)?;
        let stint = Stint(stint);
        let due = self.state(|state| state.taken.due(&dealt.grant, stint, through));
        let piece = |(number, rows): (u64, Vec<TakenRow>)| {
            let before = i64::try_from(through - number).unwrap_or(i64::MAX);
            Piece { grant: dealt.grant.clone(), handed: Some((stint, number)), batch: dealt.batch - before, rows }
        };
        Ok(due.into_iter().map(piece).collect())
    }

    /// Marks these together, and, if that fails for a reason that may lie in one row, lane by lane. Gives the lanes for which
    /// nothing more can be done now.
    async fn mark_round(&self, round: &[Piece], here: &Incarnation) -> Result<Vec<(i32, Acknowledged)>, Error> {
        match self.mark(round, here).await {
            Ok(lost) => return Ok(lost),
            Err(error) if !of_a_row(&error) => return Err(error),
            Err(error) if round.len() > 1 => tracing::debug!(relay = %self.relay, %error, "marking lane by lane"),
            Err(error) => return Ok(round.iter().map(|piece| self.failed(piece, &error)).collect()),
        }
        let mut ended = Vec::new();
        for piece in round {
            match self.mark(std::slice::from_ref(piece), here).await {
                Ok(lost) => ended.extend(lost),
                Err(error) if of_a_row(&error) => ended.push(self.failed(piece, &error)),
                Err(error) => return Err(error),
            }
        }
        Ok(ended)
    }

    /// Whether to try again, or to hold the lane.
    fn failed(&self, piece: &Piece, error: &Error) -> (i32, Acknowledged) {
        let lane = piece.grant.lane.clone();
        let number = lane.number;
        if waits(error) {
            tracing::warn!(grant = %piece.grant, %error, "a row that was delivered cannot be marked yet: trying again");
            return (number, Acknowledged::Waits(lane));
        }
        let refused = Error::refused(
            format!("{}: rows of {} that were delivered cannot be marked: {error}", piece.grant, self.spec.table),
            "Correct `mark`, the table's triggers and constraints, or the role's grants: it is tried again every 10 s, and nothing \
             is sent meanwhile. Do not stop the replica before: whoever has the lane next delivers these rows once more, unless the \
             sink keeps positions",
        );
        (number, Acknowledged::Refused(lane, refused))
    }

    /// One transaction. Gives the lanes that were lost.
    async fn mark(&self, pieces: &[Piece], here: &Incarnation) -> Result<Vec<(i32, Acknowledged)>, Error> {
        let mut swallowed = Vec::new();
        for _ in 0..TRIES {
            match self.mark_once(pieces, here).await? {
                Marked::But { lost, over, changed, met } => {
                    self.proven.fetch_or(met, Ordering::Relaxed);
                    return Ok(self.marked(pieces, &lost, &over, &changed));
                }
                Marked::Swallowed(rows) => swallowed = rows,
            }
        }
        let row = swallowed.first().map(|row| row.0.join(", ")).unwrap_or_default();
        Err(Error::refused(
            format!("the mark has no effect on {} row(s), such as {row}", swallowed.len()),
            "A trigger that fires before it returns null, or row-level security hides the row from the mark",
        ))
    }

    fn marked(&self, pieces: &[Piece], lost: &[i32], over: &[i32], changed: &[RowId]) -> Vec<(i32, Acknowledged)> {
        self.tell_of_changed(changed);
        let mut ended = Vec::new();
        for Piece { grant, handed, .. } in pieces {
            let number = grant.lane.number;
            if over.contains(&number) {
                // By the next attempt it is forgotten.
                ended.push((number, Acknowledged::Waits(grant.lane.clone())));
            } else if lost.contains(&number) {
                ended.push((number, Acknowledged::LaneLost(grant.lane.clone(), grant.epoch)));
            } else {
                if let Some((stint, through)) = handed {
                    self.state(|state| state.taken.marked(grant, *stint, *through));
                }
            }
        }
        ended
    }

    /// Their former content was delivered.
    fn tell_of_changed(&self, rows: &[RowId]) {
        let Some(first) = rows.first() else { return };
        self.metrics.changed(u64::try_from(rows.len()).unwrap_or(u64::MAX));
        let now = clock::now();
        let tell = self.state(|state| {
            let tell = state.told_of_changed.is_none_or(|told| now.since(told) >= SELDOM);
            if tell {
                state.told_of_changed = Some(now);
            }
            tell
        });
        if tell {
            tracing::warn!(
                relay = %self.relay, row = first.0.join(", "), rows = rows.len(),
                "rows of {} were changed after they had been read to be delivered: what was delivered is their former content; insert \
                 another row instead of changing one that is pending",
                self.spec.table
            );
        }
    }

    async fn mark_once(&self, pieces: &[Piece], here: &Incarnation) -> Result<Marked, Error> {
        let mut slot = self.writer.lock().await;
        // Opening a lane takes this slot, too: so it sees all marks of the stint before, or they are not made.
        let (pieces, over): (Vec<&Piece>, Vec<&Piece>) = pieces.iter().partition(|piece| self.goes_on(piece));
        let over = over.iter().map(|piece| piece.grant.lane.number).collect();
        if pieces.is_empty() {
            return Ok(Marked::But { lost: Vec::new(), over, changed: Vec::new(), met: false });
        }
        let connection = slot.take().await?.waiting(self.marking.now());
        let began = clock::now();
        let marked = self.mark_on(&connection, &pieces, here).await;
        self.marking.follow(clock::now().since(began), marked.is_ok());
        // What failed or is to be taken back goes with its connection.
        Ok(match marked? {
            Marked::But { lost, changed, met, .. } => {
                slot.put(connection);
                Marked::But { lost, over, changed, met }
            }
            swallowed => swallowed,
        })
    }

    fn goes_on(&self, piece: &Piece) -> bool {
        piece.handed.is_none_or(|(stint, _)| self.state(|state| state.taken.is_open(&piece.grant, stint)))
    }

    async fn mark_on(&self, connection: &Connection, pieces: &[&Piece], here: &Incarnation) -> Result<Marked, Error> {
        let statements = self.statements()?;
        let lanes: Vec<i32> = pieces.iter().map(|piece| piece.grant.lane.number).collect();
        let epochs: Vec<i64> = pieces.iter().map(|piece| piece.grant.epoch.0).collect();
        let seqs: Vec<i64> = pieces.iter().map(|_| self.seq.fetch_add(1, Ordering::Relaxed) + 1).collect();
        let batches: Vec<i64> = pieces.iter().map(|piece| piece.batch).collect();
        let rows = || pieces.iter().flat_map(|piece| &piece.rows);
        let ids: Vec<RowId> = rows().map(|row| row.id.clone()).collect();
        let versions: Vec<Option<i64>> = rows().map(|row| row.version).collect();
        let of: Vec<i32> = pieces.iter().flat_map(|piece| vec![piece.grant.lane.number; piece.rows.len()]).collect();
        let (relay, incarnation_here) = (self.relay.as_str(), here.to_string());
        let columns = columns_of(&ids, self.spec.id.len());
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&relay, Type::TEXT),
            (&self.replica.0, Type::UUID),
            (&incarnation_here, Type::TEXT),
            (&lanes, Type::INT4_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&seqs, Type::INT8_ARRAY),
            (&batches, Type::INT8_ARRAY),
            (&of, Type::INT4_ARRAY),
            (&versions, Type::INT8_ARRAY),
        ];
        let ids = texts(&columns);
        parameters.extend(ids.iter().cloned());
        let locks: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&lanes, Type::INT4_ARRAY)];
        let sent = history::now();
        connection.lock(sql::ACKNOWLEDGE_LOCK, &locks).await?;
        crate::faults::point("acknowledge.locked");
        let [_, marked, _, pending] = connection
            .then_all([
                (sql::MARK_SETTINGS, &[]),
                (Verb { name: "mark", sql: &statements.mark }, &parameters),
                (Verb { name: "set_constraints", sql: "set constraints all immediate" }, &[]),
                (Verb { name: "still", sql: &statements.still }, &ids),
            ])
            .await?;
        self.still(here, &incarnation(&marked)?)?;
        let met = Met::read(&marked, self.spec.id.len())?;
        let left = met.left(pieces, &pending)?;
        let any = !met.marked.is_empty();
        let (changed, swallowed) = self.mark_changed(connection, met.marked, left).await?;
        if !swallowed.is_empty() {
            return Ok(Marked::Swallowed(swallowed));
        }
        connection.commit(sql::INCARNATION, &[]).await?;
        history::acknowledged(self.replica, sent, here, || {
            (
                written(pieces, (&met.ours, &met.repeated)),
                changed.iter().map(|row| message_id(&self.relay, row)).collect(),
            )
        });
        let lost = lanes.into_iter().filter(|lane| !met.ours.contains(lane)).collect();
        Ok(Marked::But { lost, over: Vec::new(), met: any || !changed.is_empty(), changed })
    }

    /// Marks what is pending because it is another version than the one that was read, in the same transaction. Gives what was
    /// changed, and what is pending even so.
    async fn mark_changed(
        &self,
        connection: &Connection,
        mut marked: HashSet<RowId>,
        left: Vec<RowId>,
    ) -> Result<(Vec<RowId>, Vec<RowId>), Error> {
        if left.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let (statements, columns) = (self.statements()?, self.spec.id.len());
        // All of them once more: a trigger that fires for these may take back others.
        let all: Vec<RowId> = marked.iter().chain(&left).cloned().collect();
        let (left, all) = (columns_of(&left, columns), columns_of(&all, columns));
        let [met, pending] = connection
            .then_all([
                (Verb { name: "mark_changed", sql: &statements.mark_changed }, &texts(&left)),
                (Verb { name: "still", sql: &statements.still }, &texts(&all)),
            ])
            .await?;
        let changed = met.iter().map(|row| RowId::read(row, 0, columns)).collect::<Result<Vec<_>, _>>()?;
        marked.extend(changed.iter().cloned());
        let swallowed = pending.iter().map(|row| RowId::read(row, 0, columns)).collect::<Result<Vec<_>, _>>()?;
        not_taken_back(&marked, &swallowed)?;
        Ok((changed, swallowed))
    }
}

/// What a mark has done.
struct Met {
    /// Rows it has met.
    marked: HashSet<RowId>,
    /// Lanes that are ours.
    ours: HashSet<i32>,
    /// Those of them whose batch was marked before.
    repeated: HashSet<i32>,
}

impl Met {
    fn read(rows: &[Row], columns: usize) -> Result<Self, Error> {
        let mut met = Self { marked: HashSet::new(), ours: HashSet::new(), repeated: HashSet::new() };
        for row in rows {
            match (row.try_get::<_, Option<&str>>(0)?, row.try_get::<_, Option<i32>>(1)?) {
                (Some(_), Some(lane)) => {
                    met.ours.insert(lane);
                    if row.try_get(2)? {
                        met.repeated.insert(lane);
                    }
                }
                (Some(_), None) => {}
                (None, _) => drop(met.marked.insert(RowId::read(row, 3, columns)?)),
            }
        }
        Ok(met)
    }

    /// Rows that are pending although they should have been marked. What was marked before may have been set back since: that is
    /// its user's right.
    fn left(&self, pieces: &[&Piece], pending: &[Row]) -> Result<Vec<RowId>, Error> {
        let Some(columns) = pieces.iter().flat_map(|piece| &piece.rows).next().map(|row| row.id.0.len()) else {
            return Ok(Vec::new());
        };
        let pending = pending.iter().map(|row| RowId::read(row, 0, columns)).collect::<Result<Vec<_>, _>>()?;
        not_taken_back(&self.marked, &pending)?;
        let due = |lane| self.ours.contains(lane) && !self.repeated.contains(lane);
        let due = pieces.iter().filter(|piece| due(&piece.grant.lane.number));
        let due: HashSet<&RowId> = due.flat_map(|piece| &piece.rows).map(|row| &row.id).collect();
        Ok(pending.into_iter().filter(|row| due.contains(row)).collect())
    }
}

/// # Errors
/// A row is pending that was marked.
fn not_taken_back(marked: &HashSet<RowId>, pending: &[RowId]) -> Result<(), Error> {
    let Some(row) = pending.iter().find(|row| marked.contains(row)) else { return Ok(()) };
    Err(Error::refused(
        format!("a row is pending after it was marked, such as {}", row.0.join(", ")),
        "`mark` has to end what `pending` says; a trigger may take it back",
    ))
}

fn texts<'a>(columns: &'a [Vec<&'a str>]) -> Vec<Parameter<'a>> {
    columns.iter().map(|column| -> Parameter<'a> { (column, Type::TEXT_ARRAY) }).collect()
}

/// What was written, for the history.
fn written<'a>(pieces: &[&'a Piece], (ours, repeated): (&HashSet<i32>, &HashSet<i32>)) -> Vec<history::Position<'a>> {
    let ours = pieces.iter().copied().filter(|piece| ours.contains(&piece.grant.lane.number));
    let position = |Piece { grant, batch, .. }: &'a Piece| {
        let again = repeated.contains(&grant.lane.number);
        history::Position { grant, batch: *batch, consumed: None, again }
    };
    ours.map(position).collect()
}

/// The next batch of each lane, as many rows together as one transaction marks.
fn next_round(queues: &mut BTreeMap<i32, Vec<Piece>>) -> Option<Vec<Piece>> {
    let (mut round, mut rows) = (Vec::new(), 0);
    for queue in queues.values_mut() {
        let Some(first) = queue.first() else { continue };
        if !round.is_empty() && rows + first.rows.len() > ROWS {
            continue;
        }
        rows += first.rows.len();
        round.push(queue.remove(0));
    }
    (!round.is_empty()).then_some(round)
}
