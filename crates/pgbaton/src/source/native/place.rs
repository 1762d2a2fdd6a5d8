//! How far a lane is in the log, as a bookmark says it, and which rows of the log a batch has.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::position::{Incarnation, Position};
use crate::source::Bookmark;
use crate::source::batch::leave_out;
use crate::source::settle::Registration;

/// What a bookmark holds: a position and whose it is.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    registration: Registration,
    #[serde(flatten)]
    pub(super) position: Position,
}

pub(super) fn bookmark(
    here: &Incarnation,
    registration: &Registration,
    position: &Position,
) -> Result<Bookmark, Error> {
    let stored = Stored { registration: registration.clone(), position: position.clone() };
    let place = serde_json::value::to_raw_value(&stored)
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
    pub(super) numbers: Vec<i64>,
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
    pub(in crate::source) fn bookmark(&self) -> Result<Bookmark, Error> {
        let StepPlace { here, registration, position } = &*self.step;
        match &self.end {
            End::At(number) => bookmark(here, registration, &position.clone().advance(*number)),
            End::Position(position) => bookmark(here, registration, position),
        }
    }

    pub(in crate::source) fn split_off(&mut self, at: usize) -> Self {
        let numbers = self.numbers.split_off(at);
        let end = match self.numbers.last() {
            Some(number) => std::mem::replace(&mut self.end, End::At(*number)),
            // Nothing is before what is given away.
            None => std::mem::replace(&mut self.end, End::Position(self.step.position.clone())),
        };
        Self { step: Arc::clone(&self.step), numbers, end }
    }

    pub(in crate::source) fn leave_out(&mut self, places: &[usize]) {
        leave_out(&mut self.numbers, places);
    }
}
