//! Which rows of an adopted table a batch has, and the bookmark that names them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::taken::{RowId, TakenRow};
use crate::error::{Error, Kind};
use crate::position::Incarnation;
use crate::source::batch::{Aside, AsideOfTable, AsideRow, leave_out};
use crate::source::parked::{Failed, TriedAgain};
use crate::source::settle::Registration;
use crate::source::{Bookmark, Parking};

/// What a bookmark holds: the rows of its batch, for their mark, and for a sink that keeps positions.
#[derive(Serialize, Deserialize)]
struct Place {
    registration: Registration,
    /// The ids' columns, row after row.
    rows: Vec<String>,
    /// Which version of each row was read.
    versions: Vec<Option<i64>>,
    /// Rows that are set aside with it, with the hashes of their keys. Whoever finds this at a sink sets them aside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    aside: Vec<(AsideOfTable, i64, Option<Failed>)>,
    /// Messages that had been set aside and were delivered with it, by their ids and hashes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    carried: Vec<(String, i64)>,
}

/// The rows that a bookmark names, by ids of so many columns, and what is to be written of those that are set aside.
pub(super) fn rows_of(bookmark: &Bookmark, columns: usize) -> Result<(Vec<TakenRow>, Parking), Error> {
    let Place { rows, versions, aside, carried, .. } = serde_json::from_str(bookmark.place.get())
        .map_err(|error| Error::new(Kind::Internal, "a position cannot be read").because(error))?;
    let versions = versions.into_iter().chain(std::iter::repeat(None));
    let row = |(id, version): (&[String], _)| TakenRow { id: RowId(id.to_vec().into()), version };
    let aside = aside.into_iter().map(|(row, hash, failed)| Aside {
        hash,
        row: AsideRow::Table(row),
        failed,
        suspect: false,
        place: 0,
    });
    let (gone, hashes) = carried.into_iter().unzip();
    let parked =
        Parking { aside: aside.collect(), tried: TriedAgain { gone, failed: Vec::new(), hashes }, later: None };
    Ok((rows.chunks(columns).zip(versions).map(row).collect(), parked))
}

/// The rows of one batch.
#[derive(Debug)]
pub(in crate::source) struct TableRows {
    /// Of which life of the database.
    pub(super) here: Arc<Incarnation>,
    pub(super) registration: Registration,
    pub(in crate::source) rows: Vec<TakenRow>,
}

#[cfg(test)]
impl TableRows {
    pub(in crate::source) fn none() -> Self {
        let here = Arc::new(Incarnation { system: 1, database: 2, timeline: 3 });
        Self { here, registration: Registration(String::new()), rows: Vec::new() }
    }
}

impl TableRows {
    /// With what is set aside, and what had been and is delivered.
    pub(in crate::source) fn bookmark(&self, aside: &[Aside], carried: &[(String, i64)]) -> Result<Bookmark, Error> {
        let aside = aside.iter().filter_map(|Aside { hash, row, failed, .. }| match row {
            AsideRow::Table(row) => Some((row.clone(), *hash, failed.clone())),
            AsideRow::Log(..) => None,
        });
        let place = Place {
            registration: self.registration.clone(),
            rows: self.rows.iter().flat_map(|row| row.id.0.iter().cloned()).collect(),
            versions: self.rows.iter().map(|row| row.version).collect(),
            aside: aside.collect(),
            carried: carried.to_vec(),
        };
        let place: Box<RawValue> = serde_json::value::to_raw_value(&place)
            .map_err(|error| Error::new(Kind::Internal, "a position cannot be written down").because(error))?;
        Ok(Bookmark { incarnation: Incarnation::clone(&self.here), place })
    }

    pub(in crate::source) fn split_off(&mut self, at: usize) -> Self {
        Self { here: Arc::clone(&self.here), registration: self.registration.clone(), rows: self.rows.split_off(at) }
    }

    pub(in crate::source) fn leave_out(&mut self, places: &[usize]) {
        leave_out(&mut self.rows, places);
    }
}
