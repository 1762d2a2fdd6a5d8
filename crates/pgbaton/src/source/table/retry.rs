//! Rows of an adopted table that were set aside and are due, as batches.
//!
//! They are fetched by their ids like all others. One that is no longer pending, or that has another key by now, is let go: it is
//! not set aside any more, and a look finds it if it is to be delivered.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::TableSource;
use super::fetch::{Alone, Chunk};
use super::place::TableRows;
use super::row::{content, lend, message_id, version};
use super::taken::{Asked, RowId, TakenRow};
use crate::connection::Connection;
use crate::error::Error;
use crate::position::Incarnation;
use crate::source::batch::{Order, Rows};
use crate::source::brought::FoundBatch;
use crate::source::parked::{Due, Failed, Seen};
use crate::source::trouble::of_a_value;
use crate::source::{Batch, Budget, HeldMessages, Parking, Room, flush};

/// A row that is due, and what is there of it.
enum There {
    Message {
        found: FoundBatch,
        version: i64,
    },
    /// It is no longer pending, or it is another key's.
    Gone,
    /// It cannot be a message.
    Unfit(Error),
}

impl TableSource {
    /// Batches of rows that are due, one of a lane at most.
    pub(super) async fn due(&self, rooms: &[Room], here: &Incarnation, budget: &Budget) -> Result<Vec<Batch>, Error> {
        if !self.parked.is_due() {
            return Ok(Vec::new());
        }
        let open = self.state(|state| state.taken.asked(rooms.iter().map(|room| &room.grant)));
        let mut lanes: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for Asked { lane, of, .. } in &open {
            lanes.entry(*of).or_default().push(*lane);
        }
        let (mut fetched, mut left) = (Vec::new(), budget.bytes);
        for (of, lanes) in lanes {
            let asked = (rooms, budget, &mut left);
            let reader = (&self.reader, &self.patience);
            let Some(mut due) = self.parked.due(reader, here, (of, &lanes), asked).await? else { continue };
            for (lane, some) in std::mem::take(&mut due.lanes) {
                let Some(asked) = open.iter().find(|asked| asked.lane == lane && asked.of == of) else { continue };
                let there = self.what_is_there(&due.connection, *asked, &some, here).await?;
                fetched.push((*asked, some, there));
            }
            self.metrics.server_clock_says(flush::wait(&due.connection, here, &self.relay).await?);
            due.done();
        }
        // From here on nothing waits: what is given is under way in its lane.
        Ok(fetched.into_iter().filter_map(|(asked, due, there)| self.retry(asked, due, there, here)).collect())
    }

    /// What is there of these rows, each with its version: all together, or each by itself where one of them cannot be read.
    async fn what_is_there(
        &self,
        connection: &Connection,
        asked: Asked,
        due: &[Due],
        here: &Incarnation,
    ) -> Result<Vec<There>, Error> {
        let ids: Vec<RowId> = due.iter().map(|due| RowId::from(due.row.clone().unwrap_or_default())).collect();
        let mut there: Vec<There> = due.iter().map(|_| There::Gone).collect();
        let fetched = self.rows_of(connection, (&ids, i32::MAX), here, |row| {
            let (number, hash): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            let place = usize::try_from(number - 1).unwrap_or(usize::MAX);
            let (Some(due), Some(id), Some(slot)) = (due.get(place), ids.get(place), there.get_mut(place)) else {
                return Ok(());
            };
            if hash != due.hash {
                return Ok(());
            }
            let name = message_id(&self.relay, id);
            *slot = match content(row, self.spec.payload_is_json) {
                Err(why) => There::Unfit(self.no_message(&name, why)),
                Ok(()) => {
                    let mut found = FoundBatch::default();
                    lend(row, &name, &mut |message| found.push((number, hash), message))?;
                    There::Message { found, version: version(row)? }
                }
            };
            Ok(())
        });
        match fetched.await {
            Ok(()) => return Ok(there),
            Err(error) if of_a_value(&error) => {}
            Err(error) => return Err(error),
        }
        let mut there = Vec::new();
        for (due, id) in due.iter().zip(ids) {
            let chunk = Chunk { rows: vec![(asked, id)], of: asked.of, inline: i32::MAX };
            there.push(match self.alone(connection, &chunk, 1, here).await {
                Ok(Some((found, version))) if found.hashes.first() == Some(&due.hash) => {
                    There::Message { found, version }
                }
                Ok(_) => There::Gone,
                Err(Alone::NoMessage(why)) => There::Unfit(why),
                Err(Alone::Failed(error)) => return Err(error),
            });
        }
        Ok(there)
    }

    /// The lane's batch. None if it was closed meanwhile.
    fn retry(&self, asked: Asked, due: Vec<Due>, there: Vec<There>, here: &Incarnation) -> Option<Batch> {
        let (grant, registration) = self.state(|state| state.taken.registration(asked))?;
        let (mut all, mut rows, mut seen) = (FoundBatch::default(), Vec::new(), Vec::<Seen>::new());
        let (mut parked, mut unfit) = (Parking::default(), HashSet::new());
        for (due, there) in due.into_iter().zip(there) {
            let hash = due.hash;
            if unfit.contains(&hash) {
                continue;
            }
            match there {
                There::Message { found, version } => {
                    let id = RowId::from(due.row.unwrap_or_default());
                    for message in found.messages.iter() {
                        all.push((0, hash), message);
                        rows.push(TakenRow { id: id.clone(), version: Some(version) });
                        seen.push(due.seen.clone());
                    }
                }
                There::Gone => {
                    parked.tried.gone.push(due.id);
                    parked.tried.hashes.push(hash);
                }
                There::Unfit(why) => {
                    let failed = Failed::unfit(&why);
                    parked.tried.failed.push((due.id, due.seen, failed));
                    parked.tried.hashes.push(hash);
                    // What follows it in its key waits.
                    unfit.insert(hash);
                }
            }
        }
        let FoundBatch { messages, hashes, .. } = all;
        let messages = HeldMessages::new(&self.memory, messages);
        let rows = Rows::Table(TableRows { here: Arc::new(here.clone()), registration, rows });
        let (seen, holding, later, order) = (Some(seen), Vec::new(), Vec::new(), Order::default());
        Some(Batch { grant, stint: asked.stint, messages, hashes, rows, seen, parked, holding, later, order })
    }
}
