//! How far a lane is in the log, as a bookmark says it, and which rows of the log a batch has.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::position::{Incarnation, Position};
use crate::source::batch::{Aside, AsideRow, leave_out};
use crate::source::parked::{Failed, TriedAgain};
use crate::source::settle::Registration;
use crate::source::{Bookmark, Parking};

/// What a bookmark holds: a position and whose it is.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    registration: Registration,
    #[serde(flatten)]
    pub(super) position: Position,
    /// Messages that are set aside with it, by their numbers, ids and hashes. Whoever finds this at a sink sets them aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) aside: Vec<(i64, String, i64, Option<Failed>)>,
    /// Messages that had been set aside and were delivered with it, by their ids and hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) carried: Vec<(String, i64)>,
}

impl Stored {
    /// What is to be written of those.
    pub(super) fn parking(&self) -> Parking {
        let aside = self.aside.iter().map(|(number, id, hash, failed)| {
            let row = AsideRow::Log(*number, id.clone());
            Aside { hash: *hash, row, failed: failed.clone(), suspect: false, place: 0 }
        });
        let (gone, hashes) = self.carried.iter().cloned().unzip();
        Parking { aside: aside.collect(), tried: TriedAgain { gone, failed: Vec::new(), hashes }, later: None }
    }
}

pub(super) fn bookmark(
    here: &Incarnation,
    registration: &Registration,
    position: &Position,
) -> Result<Bookmark, Error> {
    let (registration, position) = (registration.clone(), position.clone());
    write_down(here, &Stored { registration, position, aside: Vec::new(), carried: Vec::new() })
}

fn write_down(here: &Incarnation, stored: &Stored) -> Result<Bookmark, Error> {
    let place = serde_json::value::to_raw_value(stored)
        .map_err(|error| Error::new(Kind::Internal, "a position cannot be written down").because(error))?;
    Ok(Bookmark { incarnation: here.clone(), place })
}

pub(super) fn stored(bookmark: &Bookmark) -> Result<Stored, Error> {
    serde_json::from_str(bookmark.place.get())
        .map_err(|error| Error::new(Kind::Internal, "a position cannot be read").because(error))
}

/// The rows of one batch.
#[derive(Debug)]
pub(in crate::source) struct LogRows {
    /// Where they were read, of which life of the database.
    pub(super) step: Arc<StepPlace>,
    /// Of the messages, ascending.
    pub(in crate::source) numbers: Vec<i64>,
    pub(super) end: End,
}

/// What the batches of one lane have in common that one step brought.
#[derive(Debug)]
pub(super) struct StepPlace {
    pub(super) here: Incarnation,
    pub(super) registration: Registration,
    /// Where the lane stood.
    pub(super) position: Position,
}

/// How far the lane is after a batch.
#[derive(Debug)]
pub(super) enum End {
    /// Up to this number of what the step is about.
    At(i64),
    /// At the end of the step.
    Position(Position),
}

impl LogRows {
    /// With what is set aside, and what had been and is delivered.
    pub(in crate::source) fn bookmark(&self, aside: &[Aside], carried: &[(String, i64)]) -> Result<Bookmark, Error> {
        let StepPlace { here, registration, position } = &*self.step;
        let position = match &self.end {
            End::At(number) => position.clone().advance(*number),
            End::Position(position) => position.clone(),
        };
        let aside = aside.iter().filter_map(|Aside { hash, row, failed, .. }| match row {
            AsideRow::Log(number, id) => Some((*number, id.clone(), *hash, failed.clone())),
            AsideRow::Table(_) => None,
        });
        let (registration, aside, carried) = (registration.clone(), aside.collect(), carried.to_vec());
        write_down(here, &Stored { registration, position, aside, carried })
    }

    pub(in crate::source) fn split_off(&mut self, at: usize) -> Self {
        // Of messages that had been set aside the log has no place: each part ends where the lane stands.
        let numbers = self.numbers.split_off(at.min(self.numbers.len()));
        let end = match self.numbers.last() {
            Some(number) => std::mem::replace(&mut self.end, End::At(*number)),
            // Nothing is before what is given away.
            None => std::mem::replace(&mut self.end, End::Position(self.step.position.clone())),
        };
        Self { step: Arc::clone(&self.step), numbers, end }
    }

    pub(in crate::source) fn extend(&mut self, next: Self) {
        self.numbers.extend(next.numbers);
        (self.step, self.end) = (next.step, next.end);
    }

    pub(in crate::source) fn leave_out(&mut self, places: &[usize]) {
        leave_out(&mut self.numbers, places);
    }
}
