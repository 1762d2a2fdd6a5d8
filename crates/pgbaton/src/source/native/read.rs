//! Carrying out what the planner decides: aiming, and reading stragglers and windows.
//!
//! Every read is one short transaction in one round trip, with one snapshot that is younger than the target, closed
//! before anything is published. Where a window brought no row, a second one tells where it ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio_postgres::types::Type;

use super::NativeSource;
use super::place::{End, LogRows, StepPlace};
use super::rows::{later, with_message};
use crate::clock;
use crate::connection::{Access, Connection, Parameter};
use crate::error::Error;
use crate::plan::{self, LaneView, ReadStep};
use crate::position::{Incarnation, Phase, Position};
use crate::source::batch::{Order, Rows};
use crate::source::brought::{Brought, Found, FoundBatch, FoundPart, INLINE_BYTES};
use crate::source::{Batch, Budget, HeldMessages, Next, Parking, Read, Room, Stint};
use crate::sql::{self, Verb};

/// Of each straggling transaction at least so many rows are examined in one step, however many there are.
const STRAGGLERS_EACH: i64 = 64;

/// How many rows the next step examines. Doubles while they are small, and shrinks with their size.
pub(super) struct WindowSize(usize);

impl Default for WindowSize {
    fn default() -> Self {
        Self(Self::LEAST)
    }
}

impl WindowSize {
    const LEAST: usize = 256;
    /// Planning a window costs as much as reading a thousand rows.
    const MOST: usize = 16_384;

    /// So many messages with so many bytes were taken in, of a budget. Rows that came and did not fit do not count.
    fn follow(&mut self, taken: usize, bytes: usize, budget: usize) {
        let fitting = bytes.checked_div(taken).map_or(Self::MOST, |each| budget / each.max(1));
        self.0 = (self.0 * 2).min(fitting).clamp(Self::LEAST, Self::MOST);
    }
}

/// What all statements of one step have in common.
struct Step<'a> {
    lanes: &'a [i32],
    /// Where the lanes stood when the step was decided, and in which stint each did. What is to be read may be less than
    /// what is due from there: up to where the next lanes stand.
    place: Position,
    stints: BTreeMap<i32, Stint>,
    /// The incarnation that the place belongs to.
    here: Incarnation,
    /// How many lanes the relay has.
    of: i32,
    /// How many rows are examined.
    limit: i64,
    after: i64,
    upto: i64,
    budget: &'a Budget,
}

impl NativeSource {
    /// Takes steps until one brings messages or the pass is over.
    pub(super) async fn read_pass(&self, rooms: &[Room], budget: &Budget) -> Result<Read, Error> {
        let mut batches = self.due(rooms, budget).await?;
        if !batches.is_empty() {
            return Ok(Read { batches, refused: Vec::new(), blocked: BTreeSet::new(), next: Next::Now });
        }
        loop {
            let step = self.log(|log| {
                let mut places: Vec<&mut Position> = log.places.values_mut().map(|place| &mut place.read_to).collect();
                plan::level(&mut places, &log.floors);
                plan::next_step(&views(log, rooms), clock::now())
            });
            let Some((step, reason)) = step else {
                return Ok(Read { batches, refused: Vec::new(), blocked: BTreeSet::new(), next: self.end_pass() });
            };
            tracing::trace!(relay = %self.spec.relay, ?step, reason, "reading");
            let got_on = self.take(&step, budget, &mut batches).await?;
            self.log(|log| log.got_on |= got_on);
            if batches.iter().any(|batch| !batch.messages.is_empty()) {
                return Ok(Read { batches, refused: Vec::new(), blocked: BTreeSet::new(), next: Next::Now });
            }
        }
    }

    /// The next pass serves everybody again.
    fn end_pass(&self) -> Next {
        self.log(|log| {
            let reading = log.places.values().any(|place| place.read_to.phase() != Phase::AtRest);
            log.places.values_mut().for_each(|place| place.served = false);
            match (reading, std::mem::take(&mut log.got_on)) {
                (true, true) => Next::Now,
                (true, false) => Next::WithRoom,
                (false, _) => Next::Later,
            }
        })
    }

    async fn take(&self, step: &ReadStep, budget: &Budget, batches: &mut Vec<Batch>) -> Result<bool, Error> {
        match step {
            ReadStep::Adopt { lane, target } => {
                self.log(|log| log.aim_at(&[*lane], target));
                Ok(true)
            }
            ReadStep::Aim { lanes } => {
                let sighted = self.sight(lanes).await?;
                self.served(lanes);
                let Some(sighted) = sighted else { return Ok(false) };
                self.take_target(lanes, sighted);
                Ok(true)
            }
            ReadStep::Stragglers { lanes, xids, after, upto } => {
                let xids: Vec<String> = xids.iter().map(|xid| xid.0.to_string()).collect();
                let Some(step) = self.step(lanes, *after, *upto, budget) else { return Ok(false) };
                self.stragglers(&step, &xids, batches).await
            }
            ReadStep::Window { lanes, after, upto } => {
                let Some(step) = self.step(lanes, *after, *upto, budget) else { return Ok(false) };
                self.window(&step, batches).await
            }
        }
    }

    /// What the statements of a step need; `None` if its lanes were closed meanwhile.
    fn step<'a>(&self, lanes: &'a [i32], after: i64, upto: i64, budget: &'a Budget) -> Option<Step<'a>> {
        self.log(|log| {
            let place = lanes.iter().find_map(|lane| log.places.get(lane))?;
            let limit = i64::try_from(log.window.0).unwrap_or(i64::MAX);
            let stints = lanes.iter().filter_map(|lane| Some((*lane, log.places.get(lane)?.stint))).collect();
            Some(Step {
                lanes,
                place: place.read_to.clone(),
                stints,
                here: log.incarnation.clone()?,
                of: place.grant.lane.of,
                limit,
                after,
                upto,
                budget,
            })
        })
    }

    async fn window(&self, step: &Step<'_>, batches: &mut Vec<Batch>) -> Result<bool, Error> {
        let wanted = wanted(step.lanes, step.of);
        let consumed = step.place.consumed().to_string();
        let target = step.place.target().map(|target| target.snapshot.to_string());
        let segments = self.segments(step.place.target(), step.after);
        let rows: [Parameter<'_>; 10] = [
            (&step.after, Type::INT8),
            (&step.upto, Type::INT8),
            (&step.limit, Type::INT8),
            (&segments, Type::INT2_ARRAY),
            (&consumed, Type::TEXT),
            (&target, Type::TEXT),
            (&step.of, Type::INT4),
            (&wanted, Type::INT4_ARRAY),
            (&INLINE_BYTES, Type::INT4),
            (&self.topics, Type::TEXT_ARRAY),
        ];
        // Ids are unique.
        let whole = step.upto - step.after <= step.limit;
        let ends = if whole { Ends::AtUpper } else { Ends::LastRow((sql::WINDOW_END, &rows[..4])) };
        self.read_step(step, ends, (sql::WINDOW, &rows), batches).await
    }

    async fn stragglers(&self, step: &Step<'_>, xids: &[String], batches: &mut Vec<Batch>) -> Result<bool, Error> {
        let wanted = wanted(step.lanes, step.of);
        // So many rows of each transaction are examined, and as many of all together are taken: the first ones by id.
        let limit = (step.limit / i64::try_from(xids.len()).unwrap_or(i64::MAX).max(1)).max(STRAGGLERS_EACH);
        let rows: [Parameter<'_>; 8] = [
            (&step.after, Type::INT8),
            (&step.upto, Type::INT8),
            (&limit, Type::INT8),
            (&xids, Type::TEXT_ARRAY),
            (&step.of, Type::INT4),
            (&wanted, Type::INT4_ARRAY),
            (&INLINE_BYTES, Type::INT4),
            (&self.topics, Type::TEXT_ARRAY),
        ];
        // Mostly none comes: stragglers tend to lie above the floor.
        let ends = Ends::Told((sql::STRAGGLERS_END, &rows[..4]));
        self.read_step(step, ends, (sql::STRAGGLERS, &rows), batches).await
    }

    /// True if a lane got on.
    async fn read_step(
        &self,
        step: &Step<'_>,
        ends: Ends<'_>,
        rows: Statement<'_>,
        batches: &mut Vec<Batch>,
    ) -> Result<bool, Error> {
        let mut slot = self.reader.lock().await;
        let (connection, began) = (slot.take().await?.waiting(self.patience.now()), clock::now());
        let examined = self.examine(&connection, step, ends, rows).await;
        self.patience.follow(clock::now().since(began), examined.is_ok());
        let (brought, end) = examined?;
        // Large ones, one at a time.
        let connection = connection.waiting(self.patience.most());
        // Everything is fetched before any lane moves: what fails now moves none.
        let Brought { found, taken, bytes, .. } = brought;
        let mut left = step.budget.bytes.saturating_sub(bytes);
        let mut fetched = Vec::new();
        for (lane, found) in found {
            fetched.push(Fetched { lane, ..self.fetch(&connection, step, found, &mut left).await? });
        }
        slot.put(connection);
        self.log(|log| log.window.follow(taken, bytes, step.budget.bytes));
        let before = batches.len();
        for fetched in fetched {
            batches.extend(self.emit(step, fetched, end));
        }
        self.served(step.lanes);
        Ok(batches.len() > before)
    }

    /// What a step brings, and up to where it has examined rows.
    async fn examine(
        &self,
        connection: &Connection,
        step: &Step<'_>,
        ends: Ends<'_>,
        rows: Statement<'_>,
    ) -> Result<(Brought, i64), Error> {
        let told = if let Ends::Told(told) = ends { Some(told) } else { None };
        let mut brought = self.bring(connection, step, told, rows).await?;
        let end = match (ends, brought.last) {
            (Ends::AtUpper, _) => step.upto,
            (Ends::LastRow(_), Some(last)) => last,
            (Ends::LastRow(told), None) => {
                // There may be more behind what was examined.
                brought = self.bring(connection, step, Some(told), rows).await?;
                brought.end.unwrap_or(step.upto)
            }
            (Ends::Told(_), _) => brought.end.unwrap_or(step.upto),
        };
        Ok((brought, end))
    }

    /// One transaction: the rows that these lanes want of those that are examined, and, if asked, where these end.
    async fn bring(
        &self,
        connection: &Connection,
        step: &Step<'_>,
        end: Option<Statement<'_>>,
        rows: Statement<'_>,
    ) -> Result<Brought, Error> {
        let mut brought = Brought::new(step.lanes, step.of, INLINE_BYTES);
        let (small, end) = connection
            .stream(Access::Read, (sql::INCARNATION, &[]), end, rows, |row| {
                brought.take(row, (step.budget, &self.memory), later(row)?, with_message)
            })
            .await?;
        self.still(&step.here, &small)?;
        brought.end = end.and_then(|rows| rows.first().map(|row| row.try_get(0))).transpose()?;
        Ok(brought)
    }

    /// Turns what was found for a lane into batches, and moves the lane on to where it stands now. A lane that was closed
    /// meanwhile, and perhaps opened again, gets nothing and stays where it is.
    fn emit(&self, step: &Step<'_>, fetched: Fetched, end: i64) -> Vec<Batch> {
        let stood = &step.place;
        let Some(stint) = step.stints.get(&fetched.lane).copied() else { return Vec::new() };
        let Some((grant, registration, to)) = self.log(|log| {
            // With another number of lanes it would be owed other rows than those that were asked for.
            let same = |place: &&mut super::Place| {
                place.stint == stint && place.grant.lane.of == step.of && place.read_to == *stood
            };
            let place = log.places.get_mut(&fetched.lane).filter(same)?;
            place.read_to = match fetched.cut {
                // All before the message that did not fit has been read.
                Some(id) => stood.clone().advance(id - 1),
                None => stood.clone().advance(end).finish(&log.floors),
            };
            Some((place.grant.clone(), place.registration.clone(), place.read_to.clone()))
        }) else {
            return Vec::new();
        };
        let mut parts = fetched.parts;
        if parts.is_empty() && *stood != to {
            parts.push(FoundBatch::default());
        }
        let place = Arc::new(StepPlace { here: step.here.clone(), registration, position: stood.clone() });
        let last = parts.pop();
        let earlier = parts.into_iter().map(|found| {
            let last = found.numbers.last().copied().unwrap_or_default();
            (found, End::At(last))
        });
        let all = earlier.chain(last.map(|last| (last, End::Position(to))));
        let batch = |(found, end)| {
            let FoundBatch { messages, numbers, hashes, later } = found;
            let messages = HeldMessages::new(&self.memory, messages);
            let rows = Rows::Log(LogRows { step: Arc::clone(&place), numbers, end });
            let parked = Parking::default();
            Batch {
                grant: grant.clone(),
                stint,
                messages,
                hashes,
                rows,
                seen: None,
                parked,
                holding: Vec::new(),
                later,
                order: Order::default(),
            }
        };
        all.map(batch).collect()
    }

    /// Fetches what did not come with the rows, one by one, as far as it fits, and perhaps one more.
    async fn fetch(
        &self,
        connection: &Connection,
        step: &Step<'_>,
        found: Found,
        left: &mut usize,
    ) -> Result<Fetched, Error> {
        let mut fetched = Fetched::default();
        for part in found.0 {
            match part {
                FoundPart::Batch(batch) => fetched.parts.push(batch),
                FoundPart::ToFetch { id, bytes } if *left == 0 || (bytes > *left && !step.budget.one_more) => {
                    fetched.cut = Some(id);
                    break;
                }
                FoundPart::ToFetch { id, bytes } => {
                    *left = left.saturating_sub(bytes);
                    fetched.parts.push(self.fetch_one(connection, step, id).await?);
                }
            }
        }
        Ok(fetched)
    }

    async fn fetch_one(&self, connection: &Connection, step: &Step<'_>, id: i64) -> Result<FoundBatch, Error> {
        let mut found = FoundBatch::default();
        let parameters: [Parameter<'_>; 1] = [(&id, Type::INT8)];
        let (small, _) = connection
            .stream(Access::Read, (sql::INCARNATION, &[]), None, (sql::MESSAGE, &parameters), |row| {
                let number = (row.try_get(0)?, row.try_get(1)?);
                with_message(row, &mut |message| found.push(number, message))?;
                found.last_is_later(later(row)?);
                Ok(())
            })
            .await?;
        self.still(&step.here, &small)?;
        if found.numbers.is_empty() {
            return Err(Error::refused(
                format!("message {id} of the outbox vanished before it was delivered"),
                "Somebody deleted or truncated it by hand. `pgbaton rebase` goes on without it",
            ));
        }
        Ok(found)
    }

    fn served(&self, lanes: &[i32]) {
        self.log(|log| {
            for lane in lanes {
                if let Some(place) = log.places.get_mut(lane) {
                    place.served = true;
                }
            }
        });
    }
}

/// How a step finds out up to where it has examined rows.
#[derive(Clone, Copy)]
enum Ends<'a> {
    /// There are no more ids than it examines: up to its upper bound.
    AtUpper,
    /// Up to the last row that came. If none came, this statement tells.
    LastRow(Statement<'a>),
    /// This statement tells.
    Told(Statement<'a>),
}

type Statement<'a> = (Verb<'a>, &'a [Parameter<'a>]);

/// What a step brought for one lane, with what was fetched afterwards.
#[derive(Default)]
struct Fetched {
    lane: i32,
    /// Batches in order.
    parts: Vec<FoundBatch>,
    /// The first message that did not fit into memory yet.
    cut: Option<i64>,
}

fn views(log: &super::Log, rooms: &[Room]) -> Vec<LaneView> {
    log.places
        .iter()
        .map(|(lane, place)| {
            let room = rooms.iter().find(|room| room.grant == place.grant);
            LaneView {
                lane: *lane,
                of: place.grant.lane.of,
                place: place.read_to.clone(),
                room: room.is_some_and(|room| room.room),
                idle_since: room.and_then(|room| room.idle_since),
                served: place.served,
            }
        })
        .collect()
}

/// The lanes to ask for; none means all of them, which spares the comparison of every row.
fn wanted(lanes: &[i32], of: i32) -> Vec<i32> {
    if usize::try_from(of) == Ok(lanes.len()) { Vec::new() } else { lanes.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_while_messages_are_small_and_shrink_with_their_size() {
        const BUDGET: usize = 8 << 20;
        let mut window = WindowSize::default();
        for _ in 0..20 {
            window.follow(1_000, 200_000, BUDGET);
        }
        assert_eq!(window.0, WindowSize::MOST);
        // As many as fitted, each of 16 kB, although many more rows came.
        window.follow(524, 524 * 16_000, BUDGET);
        assert_eq!(window.0, 524);
        window.follow(0, 0, BUDGET);
        assert_eq!(window.0, 1_048);
        window.follow(10, 100_000_000, BUDGET);
        assert_eq!(window.0, WindowSize::LEAST);
    }
}
