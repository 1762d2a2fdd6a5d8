//! Carrying out what the planner decides: aiming, and reading stragglers and windows.
//!
//! Every read is one short transaction in one round trip, with one snapshot that is younger than the target, closed
//! before anything is published.

use std::collections::BTreeMap;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::rows::{Examined, Found, FoundPart, INLINE_BYTES, with_message};
use super::{Leaves, NativeSource, bookmark, number, snapshot};
use crate::clock;
use crate::connection::{Access, Connection, Parameter, incarnation};
use crate::error::{Error, Kind};
use crate::message::Messages;
use crate::plan::{self, LaneView, ReadStep};
use crate::position::{Incarnation, Phase, Position, Target};
use crate::source::{Batch, Budget, Held, Next, Read, Room};
use crate::sql::{self, Verb};

/// Of each straggling transaction at least so many rows are examined in one step, however many there are.
const STRAGGLERS_EACH: i64 = 64;
/// Writers' commits bring the log to disk all the time; a commit of our own is for when nobody else is writing.
const FLUSH_LOOKS: usize = 8;

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

    fn follow(&mut self, messages: usize, bytes: usize, budget: usize) {
        let fitting = bytes.checked_div(messages).map_or(Self::MOST, |each| budget / each.max(1));
        self.0 = (self.0 * 2).min(fitting).clamp(Self::LEAST, Self::MOST);
    }
}

/// What all statements of one step have in common.
struct Step<'a> {
    lanes: &'a [i32],
    /// Where the lanes stood when the step was decided, and in which opening each did.
    place: Position,
    openings: BTreeMap<i32, u64>,
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
        let mut batches = Vec::new();
        let mut got_on = false;
        loop {
            let step = self.log(|log| {
                let mut places: Vec<&mut Position> = log.places.values_mut().map(|place| &mut place.read_to).collect();
                plan::level(&mut places, &log.floors);
                plan::next_step(&views(log, rooms), clock::now())
            });
            let Some((step, reason)) = step else {
                return Ok(Read { batches, next: self.end_pass(got_on) });
            };
            tracing::trace!(relay = %self.relay, ?step, reason, "reading");
            got_on |= self.take(&step, budget, &mut batches).await?;
            if batches.iter().any(|batch| !batch.messages.is_empty()) {
                return Ok(Read { batches, next: Next::Now });
            }
        }
    }

    /// The next pass serves everybody again.
    fn end_pass(&self, got_on: bool) -> Next {
        self.log(|log| {
            let reading = log.places.values().any(|place| place.read_to.phase() != Phase::AtRest);
            // Served in an earlier call of this pass counts as getting on: it has not had its next turn.
            let served = log.places.values().any(|place| place.served);
            log.places.values_mut().for_each(|place| place.served = false);
            match (reading, got_on || served) {
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
                let leaves = self.sight(lanes).await?;
                self.served(lanes);
                let Some((here, leaves)) = leaves else { return Ok(false) };
                self.take_target(&here, lanes, leaves);
                Ok(true)
            }
            ReadStep::Stragglers { lanes, xids, after, upto } => {
                let xids: Vec<String> = xids.iter().map(|xid| xid.0.to_string()).collect();
                let Some(step) = self.step(lanes, *after, *upto, budget) else { return Ok(false) };
                self.stragglers(&step, &xids, batches).await?;
                Ok(true)
            }
            ReadStep::Window { lanes, after, upto } => {
                let Some(step) = self.step(lanes, *after, *upto, budget) else { return Ok(false) };
                self.window(&step, batches).await?;
                Ok(true)
            }
        }
    }

    /// What the statements of a step need; `None` if its lanes were closed meanwhile.
    fn step<'a>(&self, lanes: &'a [i32], after: i64, upto: i64, budget: &'a Budget) -> Option<Step<'a>> {
        self.log(|log| {
            let place = lanes.iter().find_map(|lane| log.places.get(lane))?;
            let limit = i64::try_from(log.window.0).unwrap_or(i64::MAX);
            let openings = lanes.iter().filter_map(|lane| Some((*lane, log.places.get(lane)?.opening))).collect();
            Some(Step {
                lanes,
                place: place.read_to.clone(),
                openings,
                here: log.incarnation.clone()?,
                of: place.grant.lane.of,
                limit,
                after,
                upto,
                budget,
            })
        })
    }

    /// Looks for a new target for lanes at rest. `None` if nothing has happened since the last one.
    async fn sight(&self, lanes: &[i32]) -> Result<Option<(Incarnation, Leaves)>, Error> {
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?;
        let sighted = self.sight_on(&connection, lanes).await?;
        slot.put(connection);
        Ok(sighted)
    }

    async fn sight_on(&self, connection: &Connection, lanes: &[i32]) -> Result<Option<(Incarnation, Leaves)>, Error> {
        let floors = |log: &super::Log| -> Vec<i64> {
            lanes.iter().filter_map(|lane| log.places.get(lane)).map(|place| place.read_to.floor()).collect()
        };
        let (floors, known, news) = self.log(|log| (floors(log), log.last_number, log.news));
        let above = floors.iter().min().copied().unwrap_or_default();
        let written: [Parameter<'_>; 1] = [(&above, Type::INT8)];
        // While messages come in, all is asked for at once: one statement after the other, in one round trip.
        let (target, beside) = if news {
            let statements = [(sql::TARGET, &[][..]), (sql::CEILING, &[]), (sql::WRITTEN, &written)];
            let [target, ceiling, written] = connection.pipeline(Access::Look, statements).await?;
            (target, Some([ceiling, written]))
        } else {
            let [target] = connection.pipeline(Access::Look, [(sql::TARGET, &[])]).await?;
            (target, None)
        };
        let here = incarnation(&target)?;
        self.same_incarnation(&here)?;
        let row = target.first().ok_or_else(|| Error::new(Kind::Internal, "no snapshot"))?;
        if !row.try_get::<_, bool>("alone")? {
            return Err(Error::new(Kind::Internal, "a target was taken in a transaction that has an id"));
        }
        let seen = snapshot(row.try_get("snapshot")?)?;
        let news = self.log(|log| {
            let mut places = lanes.iter().filter_map(|lane| log.places.get(lane)).map(|place| &place.read_to);
            log.news = places.any(|place| seen.newer_than(place.consumed()));
            log.news
        });
        if !news {
            return Ok(None);
        }
        // Statements after the one that took T: what T sees has no id above this.
        let [ceiling, written] = match beside {
            Some(beside) => beside,
            None => connection.pipeline(Access::Look, [(sql::CEILING, &[]), (sql::WRITTEN, &written)]).await?,
        };
        self.still(&here, &ceiling)?;
        let ceiling = number(&ceiling)?;
        self.await_flush(connection, &here, &written).await?;
        let before = floors.into_iter().chain(known).max().unwrap_or_default();
        if ceiling < before {
            return Err(Error::refused(
                format!("relay {}: the outbox's last number is {ceiling} and was {before} before", self.relay),
                super::REBASE,
            ));
        }
        let row = written_row(&written)?;
        let target = Target { snapshot: seen, ceiling };
        Ok(Some((here, Leaves { target, above, segments: row.try_get("leaves")? })))
    }

    /// What belongs together comes from one incarnation, whatever the log in memory has become meanwhile.
    fn still(&self, here: &Incarnation, rows: &[Row]) -> Result<(), Error> {
        let found = incarnation(rows)?;
        if found == *here { Ok(()) } else { Err(self.other_incarnation(here, &found)) }
    }

    /// Visible is not yet durable: a commit that did not wait for the disk, and the sequence's last number, are given
    /// out again after a crash. A target is used only once the log is on disk beyond both.
    async fn await_flush(&self, connection: &Connection, here: &Incarnation, written: &[Row]) -> Result<(), Error> {
        let row = written_row(written)?;
        if row.try_get("flushed")? {
            return Ok(());
        }
        let written: &str = row.try_get("written")?;
        loop {
            for _ in 0..FLUSH_LOOKS {
                let [rows] = connection.pipeline(Access::Look, [(sql::FLUSHED, &[(&written, Type::TEXT)])]).await?;
                self.still(here, &rows)?;
                if rows.first().map(|row| row.try_get("flushed")).transpose()? == Some(true) {
                    return Ok(());
                }
            }
            connection.pipeline(Access::Write, [(sql::FLUSH, &[])]).await?;
        }
    }

    /// Has lanes take up a target, unless everything in memory belongs to another incarnation by now.
    fn take_target(&self, here: &Incarnation, lanes: &[i32], leaves: Leaves) {
        self.log(|log| {
            if log.incarnation.as_ref() == Some(here) {
                log.last_number = log.last_number.max(Some(leaves.target.ceiling));
                log.aim_at(lanes, &leaves.target);
                log.leaves = Some(leaves);
            }
        });
    }

    async fn window(&self, step: &Step<'_>, batches: &mut Vec<Batch>) -> Result<(), Error> {
        let wanted = wanted(step.lanes, step.of);
        let consumed = step.place.consumed().to_string();
        let target = step.place.target().map(|target| target.snapshot.to_string());
        let leaves = self.log(|log| {
            let known = log.leaves.as_ref().filter(|known| Some(&known.target) == step.place.target());
            known.filter(|known| step.after >= known.above).map(|known| known.segments.clone())
        });
        let rows: [Parameter<'_>; 9] = [
            (&step.after, Type::INT8),
            (&step.upto, Type::INT8),
            (&step.limit, Type::INT8),
            (&consumed, Type::TEXT),
            (&target, Type::TEXT),
            (&step.of, Type::INT4),
            (&wanted, Type::INT4_ARRAY),
            (&INLINE_BYTES, Type::INT4),
            (&leaves, Type::INT2_ARRAY),
        ];
        let ending: [Parameter<'_>; 4] = [
            (&step.after, Type::INT8),
            (&step.upto, Type::INT8),
            (&step.limit, Type::INT8),
            (&leaves, Type::INT2_ARRAY),
        ];
        // Ids are unique, so a short range is examined whole.
        let end = (step.upto - step.after > step.limit).then_some((sql::WINDOW_END, &ending[..]));
        self.read_step(step, end, (sql::WINDOW, &rows), batches).await
    }

    async fn stragglers(&self, step: &Step<'_>, xids: &[String], batches: &mut Vec<Batch>) -> Result<(), Error> {
        let wanted = wanted(step.lanes, step.of);
        // So many rows of each transaction are examined, and as many of all together are taken: the first ones by id.
        let limit = (step.limit / i64::try_from(xids.len()).unwrap_or(i64::MAX).max(1)).max(STRAGGLERS_EACH);
        let rows: [Parameter<'_>; 7] = [
            (&step.after, Type::INT8),
            (&step.upto, Type::INT8),
            (&limit, Type::INT8),
            (&xids, Type::TEXT_ARRAY),
            (&step.of, Type::INT4),
            (&wanted, Type::INT4_ARRAY),
            (&INLINE_BYTES, Type::INT4),
        ];
        let end = Some((sql::STRAGGLERS_END, &rows[..4]));
        self.read_step(step, end, (sql::STRAGGLERS, &rows), batches).await
    }

    async fn read_step(
        &self,
        step: &Step<'_>,
        end: Option<(Verb<'_>, &[Parameter<'_>])>,
        rows: (Verb<'_>, &[Parameter<'_>]),
        batches: &mut Vec<Batch>,
    ) -> Result<(), Error> {
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?;
        let mut examined = self.examine(&connection, step, None, rows).await?;
        if end.is_some() && examined.newest.is_none() {
            // Perhaps there is more behind what was examined, and no row tells where that ended.
            examined = self.examine(&connection, step, end, rows).await?;
        }
        let Examined { found, rows, bytes, newest, end: ends_at } = examined;
        // Without an `end` all rows up to the upper bound were examined; else those up to the last one that came.
        let end = ends_at.or(end.and(newest)).unwrap_or(step.upto);
        // Everything is fetched before any lane moves: what fails now moves none.
        let mut left = step.budget.bytes.saturating_sub(bytes);
        let mut fetched = Vec::new();
        for (lane, found) in found {
            let nothing_yet = rows == 0 && fetched.iter().all(Fetched::is_empty);
            let fetch = self.fetch_large(&connection, step, found, &mut left, nothing_yet).await?;
            fetched.push(Fetched { lane, ..fetch });
        }
        slot.put(connection);
        self.log(|log| log.window.follow(rows, bytes, step.budget.bytes));
        for fetched in fetched {
            batches.extend(self.emit(step, fetched, end)?);
        }
        self.served(step.lanes);
        Ok(())
    }

    /// One transaction: the rows that these lanes want of those that are examined, and, if asked, where these end.
    async fn examine(
        &self,
        connection: &Connection,
        step: &Step<'_>,
        end: Option<(Verb<'_>, &[Parameter<'_>])>,
        rows: (Verb<'_>, &[Parameter<'_>]),
    ) -> Result<Examined, Error> {
        let mut examined = Examined::new(step.lanes);
        let (small, end) = connection
            .stream((sql::INCARNATION, &[]), end, rows, |row| examined.take(row, step.budget, &self.memory))
            .await?;
        self.still(&step.here, &small)?;
        examined.end = end.and_then(|rows| rows.first().map(|row| row.try_get(0))).transpose()?;
        Ok(examined)
    }

    /// Turns what was found for a lane into batches, and moves the lane on to where it stands now. A lane that was closed
    /// meanwhile, and perhaps opened again, gets nothing and stays where it is.
    fn emit(&self, step: &Step<'_>, fetched: Fetched, end: i64) -> Result<Vec<Batch>, Error> {
        let stood = &step.place;
        let Some((grant, to)) = self.log(|log| {
            let opening = step.openings.get(&fetched.lane);
            let same = |place: &&mut super::Place| Some(&place.opening) == opening && place.read_to == *stood;
            let place = log.places.get_mut(&fetched.lane).filter(same)?;
            place.read_to = match fetched.cut {
                // All before the message that did not fit has been read.
                Some(id) => stood.clone().advance(id - 1),
                None => stood.clone().advance(end).finish(&log.floors),
            };
            Some((place.grant.clone(), place.read_to.clone()))
        }) else {
            return Ok(Vec::new());
        };
        let batch = |messages: Messages, place: &Position| {
            let messages = Held::new(&self.memory, messages);
            Ok(Batch { grant: grant.clone(), messages, next: bookmark(&step.here, place)? })
        };
        let count = fetched.parts.len();
        if count == 0 && *stood != to {
            return Ok(vec![batch(Messages::default(), &to)?]);
        }
        let last = (1..=count).map(|nth| nth == count);
        fetched
            .parts
            .into_iter()
            .zip(last)
            .map(
                |((messages, id), is_last)| {
                    if is_last { batch(messages, &to) } else { batch(messages, &stood.clone().advance(id)) }
                },
            )
            .collect()
    }

    /// Fetches the large messages of a lane one by one, as far as they fit. One that fits into nothing goes alone.
    async fn fetch_large(
        &self,
        connection: &Connection,
        step: &Step<'_>,
        found: Found,
        left: &mut usize,
        nothing_yet: bool,
    ) -> Result<Fetched, Error> {
        let mut fetched = Fetched::default();
        for part in found.0 {
            match part {
                FoundPart::Batch { messages, last } => fetched.parts.push((messages, last)),
                FoundPart::Large { id, bytes } => {
                    if *left == 0 && !(nothing_yet && fetched.is_empty()) {
                        fetched.cut = Some(id);
                        break;
                    }
                    *left = left.saturating_sub(bytes);
                    fetched.parts.push((self.fetch_one(connection, step, id).await?, id));
                }
            }
        }
        Ok(fetched)
    }

    async fn fetch_one(&self, connection: &Connection, step: &Step<'_>, id: i64) -> Result<Messages, Error> {
        let mut messages = Messages::default();
        let parameters: [Parameter<'_>; 2] = [(&id, Type::INT8), (&step.of, Type::INT4)];
        let (small, _) = connection
            .stream((sql::INCARNATION, &[]), None, (sql::MESSAGE, &parameters), |row| {
                with_message(row, |message| messages.push(message))
            })
            .await?;
        self.still(&step.here, &small)?;
        if messages.is_empty() {
            return Err(Error::refused(
                format!("message {id} of the outbox vanished before it was delivered"),
                "Somebody deleted or truncated it by hand. `pgbaton rebase` goes on without it",
            ));
        }
        Ok(messages)
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

/// What a step brought for one lane, with the large messages in it.
#[derive(Default)]
struct Fetched {
    lane: i32,
    /// Batches in order, each with the id of its last message.
    parts: Vec<(Messages, i64)>,
    /// The first message that did not fit into memory yet.
    cut: Option<i64>,
}

impl Fetched {
    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}

fn written_row(rows: &[Row]) -> Result<&Row, Error> {
    rows.first().ok_or_else(|| Error::new(Kind::Internal, "no log position"))
}

impl super::Log {
    fn aim_at(&mut self, lanes: &[i32], target: &Target) {
        for lane in lanes {
            if let Some(place) = self.places.get_mut(lane) {
                place.read_to = place.read_to.clone().aim(target);
            }
        }
    }
}

fn views(log: &super::Log, rooms: &[Room]) -> Vec<LaneView> {
    log.places
        .iter()
        .map(|(lane, place)| {
            let room = rooms.iter().find(|room| room.grant == place.grant);
            LaneView {
                lane: *lane,
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
        let mut window = WindowSize::default();
        for _ in 0..20 {
            window.follow(1_000, 200_000, 8 << 20);
        }
        assert_eq!(window.0, WindowSize::MOST);
        window.follow(1_000, 16_000_000, 8 << 20);
        assert_eq!(window.0, 524);
        window.follow(0, 0, 8 << 20);
        assert_eq!(window.0, 1_048);
        window.follow(10, 100_000_000, 8 << 20);
        assert_eq!(window.0, WindowSize::LEAST);
    }
}
