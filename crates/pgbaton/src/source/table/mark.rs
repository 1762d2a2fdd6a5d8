//! Marking what was delivered, and writing the numbers of the batches: one transaction for some batches of several lanes.
//!
//! The locks of the lanes come first, as for every acknowledgement. Then, in one round trip: the mark, under the lanes' epochs,
//! and what its user has deferred until the commit. Rows that the mark has met say themselves whether they are pending even so.
//! Where a trigger may have changed that, and of rows that the mark did not meet, a statement of its own tells: so a mark that a
//! trigger swallows or takes back is found before it is committed.
//!
//! The mark meets rows that are as they were read. Those that are not are met by a second one, only where there are any, in the
//! same transaction: so they are counted, also if they change while the mark waits for their lock, and nothing is looked up
//! twice for the others.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::place::rows_of;
use super::row::message_id;
use super::taken::{RowId, TakenRow};
use super::{TableSource, columns_of};
use crate::clock;
use crate::connection::{Access, Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::history;
use crate::lane::Grant;
use crate::position::Incarnation;
use crate::source::batch::{Aside, AsideOfTable, AsideRow};
use crate::source::parked::Attempts;
use crate::source::trouble::{of_a_row, waits};
use crate::source::{Acknowledged, Bookmark, Dealt, Parking, Stint};
use crate::sql::{self, Verb};

/// Rows that are marked in one transaction, unless one batch alone has more: others wait for their locks.
const ROWS: usize = 1_000;
/// How often a row may be found pending although its mark did not meet it: its user may have set it back in that moment.
const TRIES: usize = 3;
/// A lane is opened again, with a new fence at its sink, if its last batch cannot be marked within these tries.
const SETTLING_TRIES: usize = 10;
const SETTLING_PAUSE: Duration = Duration::from_millis(500);

/// One batch of a lane that is to be marked.
struct Piece {
    grant: Grant,
    /// The stint it was handed out in; `None` if it was found at the sink.
    stint: Option<Stint>,
    batch: i64,
    rows: Vec<TakenRow>,
    /// What becomes of rows that are set aside.
    parked: Parking,
}

/// How marking one transaction's batches ended.
enum Marked {
    /// All of them, but for some.
    But(Besides),
    /// Nothing: these rows are pending, although no mark met them.
    Swallowed(Vec<RowId>),
}

/// A mark that failed.
struct Failed {
    error: Error,
    /// The server has taken it back, and goes on.
    goes_on: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, goes_on: false }
    }
}

/// What a mark left aside, and what it found.
#[derive(Default)]
struct Besides {
    /// Lanes that were lost, by their numbers.
    lost: Vec<i32>,
    /// Lanes whose stint is over: whoever opens such a lane reads what was marked by then, and nothing may be marked behind its
    /// back.
    over: Vec<i32>,
    /// Rows that had been changed since they were read.
    changed: Vec<RowId>,
    /// Rows that were no longer pending.
    gone: Vec<RowId>,
    /// Rows were met that are no longer pending now: the mark does what it has to.
    met: bool,
}

impl TableSource {
    pub(super) async fn mark_delivered(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        let Some(first) = done.first() else { return Ok(Vec::new()) };
        let here = first.next.incarnation.clone();
        let mut queues: BTreeMap<i32, VecDeque<Piece>> = BTreeMap::new();
        // Until something else is known of them.
        let mut ended: BTreeMap<i32, Acknowledged> = BTreeMap::new();
        for dealt in done {
            if dealt.next.incarnation != here {
                return Err(Error::new(Kind::Internal, "positions of several incarnations in one acknowledgement"));
            }
            let lane = &dealt.grant.lane;
            ended.insert(lane.number, Acknowledged::Written(lane.clone()));
            queues.entry(lane.number).or_default().extend(self.piece(dealt)?);
        }
        while let Some(round) = next_round(&mut queues) {
            let outcome = self.mark_round(&round, &here).await?;
            for (lane, acknowledged) in outcome {
                queues.remove(&lane);
                ended.insert(lane, acknowledged);
            }
        }
        Ok(ended.into_values().collect())
    }

    /// A batch that the sink was found to hold, and the database did not know of.
    pub(super) async fn mark_settled(
        &self,
        grant: &Grant,
        batch: i64,
        next: &Bookmark,
        here: &Incarnation,
    ) -> Result<(), Error> {
        let (rows, parked) = rows_of(next, self.spec.id.len())?;
        let piece = Piece { grant: grant.clone(), stint: None, batch, rows, parked };
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

    /// The rows of one batch, if they are not marked yet.
    fn piece(&self, dealt: &Dealt) -> Result<Option<Piece>, Error> {
        let Dealt { grant, stint, batch, next, parked } = dealt;
        let due = self.state(|state| state.taken.is_due(grant, *stint, *batch));
        if !due && parked.is_empty() {
            return Ok(None);
        }
        // Of a batch of which all was set aside, none.
        let (rows, _) = rows_of(next, self.spec.id.len())?;
        let parked = parked.clone();
        Ok(Some(Piece { grant: grant.clone(), stint: Some(*stint), batch: *batch, rows, parked }))
    }

    /// Marks these together, and, if that fails for a reason that may lie in one row, lane by lane. Gives the lanes for which
    /// nothing more can be done now.
    async fn mark_round(&self, round: &[Piece], here: &Incarnation) -> Result<Vec<(i32, Acknowledged)>, Error> {
        match self.mark(round, here).await {
            Ok(lost) => return Ok(lost),
            Err(Failed { error, goes_on }) if !of_a_row(&error, goes_on) => return Err(error),
            Err(Failed { error, .. }) if round.len() > 1 => {
                tracing::debug!(relay = %self.relay, %error, "marking lane by lane");
            }
            Err(Failed { error, .. }) => return Ok(round.iter().map(|piece| self.failed(piece, &error)).collect()),
        }
        let mut ended = Vec::new();
        for piece in round {
            match self.mark(std::slice::from_ref(piece), here).await {
                Ok(lost) => ended.extend(lost),
                Err(Failed { error, goes_on }) if of_a_row(&error, goes_on) => ended.push(self.failed(piece, &error)),
                Err(Failed { error, .. }) => return Err(error),
            }
        }
        Ok(ended)
    }

    /// Whether to try again, or to hold the lane.
    fn failed(&self, piece: &Piece, error: &Error) -> (i32, Acknowledged) {
        let lane = piece.grant.lane.clone();
        let number = lane.number;
        if waits(error) {
            let (rows, row) = (piece.rows.len(), piece.rows.first().map(|row| row.id.0.join(", ")).unwrap_or_default());
            tracing::warn!(
                grant = %piece.grant, error = error.in_words(), rows, first = row,
                "rows of {} that were delivered cannot be marked yet, and are tried again: somebody may hold a lock on one of them",
                self.spec.table
            );
            return (number, Acknowledged::Waits(lane));
        }
        let refused = Error::refused(
            format!(
                "{}: rows of {} that were delivered cannot be marked: {}",
                piece.grant,
                self.spec.table,
                error.in_words()
            ),
            "Correct `mark`, the table's triggers and constraints, or the role's grants: it is tried again every 10 s, and nothing \
             is sent meanwhile. Do not stop the replica before: whoever has the lane next delivers these rows once more, unless the \
             sink keeps positions",
        );
        (number, Acknowledged::Refused(lane, refused))
    }

    /// One transaction. Gives the lanes that were lost.
    async fn mark(&self, pieces: &[Piece], here: &Incarnation) -> Result<Vec<(i32, Acknowledged)>, Failed> {
        let mut swallowed = Vec::new();
        for _ in 0..TRIES {
            match self.mark_once(pieces, here).await? {
                Marked::But(besides) => {
                    self.proven.fetch_or(besides.met, Ordering::Relaxed);
                    return Ok(self.marked(pieces, &besides));
                }
                Marked::Swallowed(rows) => swallowed = rows,
            }
        }
        let row = swallowed.first().map(|row| row.0.join(", ")).unwrap_or_default();
        Err(Error::refused(
            format!("the mark has no effect on {} row(s), such as {row}", swallowed.len()),
            "A trigger that fires before it returns null, or row-level security hides the row from the mark",
        )
        .into())
    }

    fn marked(&self, pieces: &[Piece], besides: &Besides) -> Vec<(i32, Acknowledged)> {
        self.tell_of_changed(&besides.changed);
        self.tell_of_gone(&besides.gone);
        let mut ended = Vec::new();
        for Piece { grant, stint, batch, rows, parked } in pieces {
            let number = grant.lane.number;
            if besides.over.contains(&number) {
                // By the next attempt it is forgotten.
                ended.push((number, Acknowledged::Waits(grant.lane.clone())));
            } else if besides.lost.contains(&number) {
                ended.push((number, Acknowledged::LaneLost(grant.lane.clone(), grant.epoch)));
            } else {
                if !parked.is_empty() {
                    // Before a look may take them for rows that nobody knows.
                    self.parked.changed(number, parked);
                }
                if let Some(stint) = stint {
                    let aside = parked.aside.iter().filter_map(|aside| match &aside.row {
                        AsideRow::Table(row) => Some(&row.row.id),
                        AsideRow::Log(..) => None,
                    });
                    self.state(|state| {
                        state.taken.marked(grant, *stint, *batch, rows);
                        state.taken.set_aside(grant, *stint, aside);
                    });
                }
            }
        }
        ended
    }

    /// Their former content was delivered.
    fn tell_of_changed(&self, rows: &[RowId]) {
        let Some(first) = rows.first() else { return };
        self.metrics.changed(u64::try_from(rows.len()).unwrap_or(u64::MAX));
        if self.state(|state| state.changed.is_due("", clock::now())) {
            tracing::warn!(
                relay = %self.relay, row = first.0.join(", "), rows = rows.len(),
                "rows of {} were changed after they had been read to be delivered: what was delivered is their former content; insert \
                 another row instead of changing one that is pending",
                self.spec.table
            );
        }
    }

    /// Somebody else dealt with them meanwhile.
    fn tell_of_gone(&self, rows: &[RowId]) {
        let Some(first) = rows.first() else { return };
        self.metrics.gone(u64::try_from(rows.len()).unwrap_or(u64::MAX));
        if self.state(|state| state.gone.is_due("", clock::now())) {
            tracing::warn!(
                relay = %self.relay, row = first.0.join(", "), rows = rows.len(),
                "rows that were delivered were no longer pending in {} when they were to be marked: another relay delivers and marks \
                 them, too, or an application marks or deletes them",
                self.spec.table
            );
        }
    }

    async fn mark_once(&self, pieces: &[Piece], here: &Incarnation) -> Result<Marked, Failed> {
        let mut slot = self.writer.lock().await;
        // Opening a lane takes this slot, too: so it sees all marks of the stint before, or they are not made.
        let (pieces, over): (Vec<&Piece>, Vec<&Piece>) = pieces.iter().partition(|piece| self.goes_on(piece));
        let over = over.iter().map(|piece| piece.grant.lane.number).collect();
        if pieces.is_empty() {
            return Ok(Marked::But(Besides { over, ..Besides::default() }));
        }
        let connection = slot.take().await?.waiting(self.marking.now());
        let began = clock::now();
        let marked = self.mark_on(&connection, &pieces, here).await;
        self.marking.follow(clock::now().since(began), marked.is_ok());
        // What was not answered, or is to be taken back, goes with its connection.
        let marked = match marked {
            Err(error) if error.sql_state().is_some() && connection.roll_back().await.is_ok() => {
                slot.put(connection);
                return Err(Failed { error, goes_on: true });
            }
            marked => marked?,
        };
        Ok(match marked {
            Marked::But(besides) => {
                slot.put(connection);
                Marked::But(Besides { over, ..besides })
            }
            swallowed => swallowed,
        })
    }

    fn goes_on(&self, piece: &Piece) -> bool {
        piece.stint.is_none_or(|stint| self.state(|state| state.taken.is_open(&piece.grant, stint)))
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
        parameters.extend(texts(&columns));
        let locks: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&lanes, Type::INT4_ARRAY)];
        let sent = history::now();
        connection.lock_for(Access::WriteTheirs, sql::ACKNOWLEDGE_LOCK, &locks).await?;
        crate::faults::point("acknowledge.locked");
        let [_, marked, _] = connection
            .then_all([
                (sql::MARK_SETTINGS, &[]),
                (Verb { name: "mark", sql: &statements.mark }, &parameters),
                (Verb { name: "set_constraints", sql: "set constraints all immediate" }, &[]),
            ])
            .await?;
        self.still(here, &incarnation(&marked)?)?;
        let met = Met::read(&marked, self.spec.id.len())?;
        met.table.map_or(Ok(()), |found| self.same_table(found))?;
        if met.hidden {
            return Err(Error::refused(
                format!(
                    "row-level security of {} holds for this role, and could hide rows from the mark",
                    self.spec.table
                ),
                "Let the role bypass it, or disable it",
            ));
        }
        let unsure = met.unsure(pieces);
        let left = self.pending_of(connection, &unsure).await?;
        not_taken_back(&met.marked, &left)?;
        let any = !met.marked.is_empty();
        let pending: HashSet<&RowId> = left.iter().collect();
        let gone = unsure.into_iter().filter(|id| !met.marked.contains(id) && !pending.contains(id)).collect();
        let (changed, swallowed) = self.mark_changed(connection, met.marked, left).await?;
        if !swallowed.is_empty() {
            return Ok(Marked::Swallowed(swallowed));
        }
        self.park(connection, pieces, &met.ours).await?;
        connection.commit(sql::INCARNATION, &[]).await?;
        history::acknowledged(self.replica, sent, here, || {
            let ours = pieces.iter().filter(|piece| met.ours.contains(&piece.grant.lane.number));
            history::Acknowledged {
                positions: written(pieces, (&met.ours, &met.repeated)),
                changed: changed.iter().map(|row| message_id(&self.relay, row)).collect(),
                aside: ours.flat_map(|piece| &piece.parked.aside).map(|aside| aside.id().to_owned()).collect(),
            }
        });
        let lost = lanes.into_iter().filter(|lane| !met.ours.contains(lane)).collect();
        let met = any || !changed.is_empty();
        Ok(Marked::But(Besides { lost, over: Vec::new(), changed, gone, met }))
    }

    /// What becomes of rows that are set aside, of lanes that are ours.
    async fn park(&self, connection: &Connection, pieces: &[&Piece], ours: &HashSet<i32>) -> Result<(), Error> {
        let ours = |piece: &&&Piece| ours.contains(&piece.grant.lane.number) && !piece.parked.is_empty();
        let pieces: Vec<&&Piece> = pieces.iter().filter(ours).collect();
        if pieces.is_empty() {
            return Ok(());
        }
        // The user's triggers are through.
        connection.then(sql::OWN_PATH, &[]).await?;
        for piece in pieces {
            let parked = async {
                self.park_rows(connection, &piece.parked.aside).await?;
                self.parked.write(connection, &piece.parked.tried).await
            };
            parked.await.map_err(|error| error.doing("rows that failed are to be set aside"))?;
        }
        Ok(())
    }

    async fn park_rows(&self, connection: &Connection, aside: &[Aside]) -> Result<(), Error> {
        let attempts = Attempts::of(aside.iter().map(|aside| (aside.failed.as_ref(), aside.suspect)));
        let rows: Vec<&AsideOfTable> = aside
            .iter()
            .filter_map(|aside| match &aside.row {
                AsideRow::Table(row) => Some(row),
                AsideRow::Log(..) => None,
            })
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        let hashes: Vec<i64> = aside.iter().map(|aside| aside.hash).collect();
        let row_ids: Vec<String> = rows.iter().map(|row| row.row.id.as_array()).collect();
        let topics: Vec<&str> = rows.iter().map(|row| row.topic.as_str()).collect();
        let keys: Vec<Option<&str>> = rows.iter().map(|row| row.key.as_deref()).collect();
        let sizes: Vec<i32> = rows.iter().map(|row| i32::try_from(row.bytes).unwrap_or(i32::MAX)).collect();
        let created: Vec<i64> = rows.iter().map(|row| row.created_at).collect();
        let relay = self.relay.as_str();
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&relay, Type::TEXT),
            (&self.replica.0, Type::UUID),
            (&ids, Type::TEXT_ARRAY),
            (&hashes, Type::INT8_ARRAY),
            (&row_ids, Type::TEXT_ARRAY),
            (&topics, Type::TEXT_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&sizes, Type::INT4_ARRAY),
            (&created, Type::INT8_ARRAY),
        ];
        parameters.extend(attempts.parameters());
        connection.then(sql::PARK_ROWS, &parameters).await?;
        Ok(())
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
        let left = columns_of(&left, columns);
        let verb = Verb { name: "mark_changed", sql: &statements.mark_changed };
        let met = connection.then(verb, &texts(&left)).await?;
        let changed = met.iter().map(|row| RowId::read(row, 0, columns)).collect::<Result<Vec<_>, _>>()?;
        marked.extend(changed.iter().cloned());
        let swallowed = self.pending_of(connection, &all).await?;
        not_taken_back(&marked, &swallowed)?;
        Ok((changed, swallowed))
    }

    /// Those of these rows that are pending.
    pub(super) async fn pending_of(&self, connection: &Connection, rows: &[RowId]) -> Result<Vec<RowId>, Error> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let (statements, columns) = (self.statements()?, self.spec.id.len());
        let ids = columns_of(rows, columns);
        let verb = Verb { name: "still", sql: &statements.still };
        let pending = connection.then(verb, &texts(&ids)).await?;
        pending.iter().map(|row| RowId::read(row, 0, columns)).collect()
    }
}

/// What a mark has done.
#[derive(Default)]
struct Met {
    /// Rows it has met.
    marked: HashSet<RowId>,
    /// Those of them that are pending even so, by what they are themselves.
    ineffective: HashSet<RowId>,
    /// Lanes that are ours.
    ours: HashSet<i32>,
    /// Those of them whose batch was marked before.
    repeated: HashSet<i32>,
    /// What a mark leaves is for triggers to say as well. The table is locked by now against new ones.
    triggers: bool,
    /// The table that was marked.
    table: Option<u32>,
    /// Policies may have kept rows from it.
    hidden: bool,
}

impl Met {
    fn read(rows: &[Row], columns: usize) -> Result<Self, Error> {
        let mut met = Self::default();
        for row in rows {
            match (row.try_get::<_, Option<&str>>(0)?, row.try_get::<_, Option<i32>>(1)?) {
                (Some(_), Some(lane)) => {
                    met.ours.insert(lane);
                    met.triggers |= row.try_get::<_, Option<bool>>(3)?.unwrap_or(true);
                    met.table = row.try_get(4)?;
                    met.hidden |= row.try_get::<_, Option<bool>>(5)?.unwrap_or_default();
                    if row.try_get(2)? {
                        met.repeated.insert(lane);
                    }
                }
                (Some(_), None) => {}
                (None, _) => {
                    let id = RowId::read(row, 6, columns)?;
                    if row.try_get(3)? {
                        met.ineffective.insert(id.clone());
                    }
                    met.marked.insert(id);
                }
            }
        }
        Ok(met)
    }

    /// Rows that should be marked by now, and may be pending: the mark did not meet them, or not to an end, or a trigger may
    /// have taken it back. What was marked before is left out: its user may have set it back since, as is their right.
    fn unsure(&self, pieces: &[&Piece]) -> Vec<RowId> {
        let due = |lane| self.ours.contains(lane) && !self.repeated.contains(lane);
        let due = pieces.iter().filter(|piece| due(&piece.grant.lane.number));
        let ids = due.flat_map(|piece| &piece.rows).map(|row| &row.id);
        let unsure = |id: &&RowId| self.triggers || !self.marked.contains(*id) || self.ineffective.contains(*id);
        ids.filter(unsure).cloned().collect()
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
fn next_round(queues: &mut BTreeMap<i32, VecDeque<Piece>>) -> Option<Vec<Piece>> {
    let (mut round, mut rows) = (Vec::new(), 0);
    for queue in queues.values_mut() {
        let Some(first) = queue.front().map(|piece| piece.rows.len()) else { continue };
        if !round.is_empty() && rows + first > ROWS {
            continue;
        }
        rows += first;
        round.extend(queue.pop_front());
    }
    (!round.is_empty()).then_some(round)
}
