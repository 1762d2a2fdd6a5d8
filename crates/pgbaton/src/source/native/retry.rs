//! Messages of the outbox that were set aside: which wait behind them, and those that are due, as batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::types::Type;

use super::NativeSource;
use super::place::{End, LogRows, StepPlace};
use super::rows::with_message;
use crate::clock;
use crate::connection::{Access, Connection, Parameter};
use crate::error::Error;
use crate::lane;
use crate::position::Incarnation;
use crate::source::batch::Rows;
use crate::source::brought::FoundBatch;
use crate::source::parked::{Due, Seen};
use crate::source::{Batch, Budget, HeldMessages, Parking, Room};
use crate::sql;

/// Keys that one look brings at most, and messages of each.
const KEYS: i64 = 2_000;
const EACH: i64 = 200;

impl NativeSource {
    /// The places of those that wait behind one of their key.
    pub(super) async fn behind_parked(&self, batch: &Batch) -> Result<Vec<usize>, Error> {
        let here = self.log(|log| log.incarnation.clone());
        let (true, Some(here)) = (self.parked.may_be_in(batch.grant.lane.number), here) else { return Ok(Vec::new()) };
        let mut hashes = batch.hashes.clone();
        hashes.sort_unstable();
        hashes.dedup();
        let mut slot = self.asker.lock().await;
        let connection = slot.take().await?;
        let held = self.parked.held(&connection, &here, &hashes).await?;
        slot.put(connection);
        let waits = |(_, hash): &(usize, &i64)| held.contains(*hash);
        Ok(batch.hashes.iter().enumerate().filter(waits).map(|(place, _)| place).collect())
    }

    /// Batches of messages that are due, one of a lane at most.
    pub(super) async fn due(&self, rooms: &[Room], budget: &Budget) -> Result<Vec<Batch>, Error> {
        let mut batches = Vec::new();
        let Some((here, by_number)) = self.log(|log| {
            let here = log.incarnation.clone()?;
            let mut lanes: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
            for (lane, place) in &log.places {
                lanes.entry(place.grant.lane.of).or_default().push(*lane);
            }
            Some((here, lanes))
        }) else {
            return Ok(batches);
        };
        let takes = |lane: &i32| rooms.iter().any(|room| room.grant.lane.number == *lane && room.room && room.retries);
        let mut left = budget.bytes;
        let unknown = self.parked.is_unknown(clock::now());
        for (of, lanes) in by_number {
            if unknown {
                let mut slot = self.asker.lock().await;
                let connection = slot.take().await?;
                self.parked.ask(&connection, &here, of, &lanes).await?;
                slot.put(connection);
            }
            let ready: Vec<i32> = lanes.into_iter().filter(takes).collect();
            let ready = self.parked.to_ask(&ready, clock::now());
            if !ready.is_empty() {
                batches.extend(self.due_of(&here, of, &ready, (&mut left, budget)).await?);
            }
        }
        Ok(batches)
    }

    async fn due_of(
        &self,
        here: &Incarnation,
        of: i32,
        lanes: &[i32],
        (left, budget): (&mut usize, &Budget),
    ) -> Result<Vec<Batch>, Error> {
        let mut slot = self.reader.lock().await;
        let connection = slot.take().await?.waiting(self.patience.most());
        let due = self.parked.due(&connection, here, (of, lanes), (KEYS, EACH)).await?;
        let mut of_lanes: BTreeMap<i32, Vec<Due>> = BTreeMap::new();
        for due in due {
            of_lanes.entry(lane::of_hash(due.hash, of)).or_default().push(due);
        }
        let mut fetched = Vec::new();
        for (lane, due) in of_lanes {
            let fitting = fitting(due, left, budget);
            if !fitting.is_empty() {
                fetched.push((lane, self.messages_of(&connection, here, &fitting).await?, fitting));
            }
        }
        slot.put(connection);
        // From here on nothing waits: what is given is under way in its lane.
        let batches = fetched.into_iter().filter_map(|(lane, found, fitting)| self.retry(here, lane, found, fitting));
        Ok(batches.collect())
    }

    async fn messages_of(&self, connection: &Connection, here: &Incarnation, due: &[Due]) -> Result<FoundBatch, Error> {
        let ids: Vec<&str> = due.iter().map(|due| due.id.as_str()).collect();
        let parameters: [Parameter<'_>; 2] = [(&self.spec.relay.as_str(), Type::TEXT), (&ids, Type::TEXT_ARRAY)];
        let mut found = FoundBatch::default();
        let (small, _) = connection
            .stream(Access::Read, (sql::INCARNATION, &[]), None, (sql::PARKED_MESSAGES, &parameters), |row| {
                let number = (row.try_get(0)?, row.try_get(1)?);
                with_message(row, &mut |message| found.push(number, message))
            })
            .await?;
        self.still(here, &small)?;
        Ok(found)
    }

    /// The lane's batch, behind all that was read for it. None if it was closed meanwhile.
    fn retry(&self, here: &Incarnation, lane: i32, found: FoundBatch, due: Vec<Due>) -> Option<Batch> {
        let (grant, stint, registration, position) = self.log(|log| {
            let place = log.places.get(&lane).filter(|_| log.incarnation.as_ref() == Some(here))?;
            Some((place.grant.clone(), place.stint, place.registration.clone(), place.read_to.clone()))
        })?;
        let FoundBatch { messages, numbers, hashes } = found;
        // One that an operator has discarded since it was found is not there.
        let of = |number: &i64| due.get(usize::try_from(*number).ok()?.checked_sub(1)?);
        let seen: Vec<Seen> = numbers.iter().filter_map(of).map(|due| due.seen.clone()).collect();
        if seen.is_empty() || seen.len() != numbers.len() {
            return None;
        }
        let end = End::Position(position.clone());
        let step = Arc::new(StepPlace { here: here.clone(), registration, position });
        let rows = Rows::Log(LogRows { step, numbers: Vec::new(), end });
        let messages = HeldMessages::new(&self.memory, messages);
        Some(Batch { grant, stint, messages, hashes, rows, seen: Some(seen), parked: Parking::default() })
    }
}

/// As many of the first as go into one batch.
fn fitting(mut due: Vec<Due>, left: &mut usize, budget: &Budget) -> Vec<Due> {
    let (mut bytes, mut count) = (0, 0);
    for due in &due {
        let fits = bytes + due.bytes <= budget.batch_bytes.min(*left);
        let alone = count == 0 && (due.bytes <= *left || (*left > 0 && budget.one_more));
        if count == budget.batch_messages || !(fits || alone) {
            break;
        }
        bytes += due.bytes;
        count += 1;
    }
    *left = left.saturating_sub(bytes);
    due.truncate(count);
    due
}
