//! Messages of the outbox that were set aside and are due, as batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio_postgres::types::Type;

use super::NativeSource;
use super::place::{End, LogRows, StepPlace};
use super::rows::with_message;
use crate::connection::{Access, Connection, Parameter};
use crate::error::Error;
use crate::position::Incarnation;
use crate::source::batch::{Order, Rows};
use crate::source::brought::FoundBatch;
use crate::source::parked::{Due, Seen};
use crate::source::{Batch, Budget, HeldMessages, Parking, Room};
use crate::sql;

impl NativeSource {
    /// Batches of messages that are due, one of a lane at most.
    pub(super) async fn due(&self, rooms: &[Room], budget: &Budget) -> Result<Vec<Batch>, Error> {
        if !self.parked.is_due() {
            return Ok(Vec::new());
        }
        let Some((here, lanes)) = self.log(|log| {
            let mut lanes: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
            for (lane, place) in &log.places {
                lanes.entry(place.grant.lane.of).or_default().push(*lane);
            }
            Some((log.incarnation.clone()?, lanes))
        }) else {
            return Ok(Vec::new());
        };
        let (mut fetched, mut left) = (Vec::new(), budget.bytes);
        for (of, lanes) in lanes {
            let asked = (rooms, budget, &mut left);
            let reader = (&self.reader, &self.patience);
            let Some(mut due) = self.parked.due(reader, &here, (of, &lanes), asked).await? else { continue };
            for (lane, some) in std::mem::take(&mut due.lanes) {
                fetched.push((lane, self.messages_of(&due.connection, &here, &some).await?, some));
            }
            due.done();
        }
        // From here on nothing waits: what is given is under way in its lane.
        Ok(fetched.into_iter().filter_map(|(lane, found, due)| self.retry(&here, lane, found, &due)).collect())
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
    fn retry(&self, here: &Incarnation, lane: i32, found: FoundBatch, due: &[Due]) -> Option<Batch> {
        let (grant, stint, registration, position) = self.log(|log| {
            let place = log.places.get(&lane).filter(|_| log.incarnation.as_ref() == Some(here))?;
            Some((place.grant.clone(), place.stint, place.registration.clone(), place.read_to.clone()))
        })?;
        let FoundBatch { messages, numbers, hashes, later: _ } = found;
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
        Some(Batch {
            grant,
            stint,
            messages,
            hashes,
            rows,
            seen: Some(seen),
            parked: Parking::default(),
            holding: Vec::new(),
            later: Vec::new(),
            order: Order::default(),
        })
    }
}
