//! Looking for pending rows, and when.
//!
//! A look walks the pending rows from the front, in one snapshot: so what commits late is found, and of what is committed no
//! row of a key overtakes another. What a look costs decides how soon the next one comes: where a million rows that were
//! marked lie in front and an old snapshot keeps them there, it is latency that grows, not the load.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::statements::MOST_ASIDE;
use super::taken::{Asked, Lacks, RowId};
use super::{State, TableSource};
use crate::clock;
use crate::connection::{Access, Parameter, incarnation};
use crate::error::Error;
use crate::lease::BootInstant;
use crate::position::Incarnation;
use crate::source::{Budget, Next, Read, Room};
use crate::sql::{self, Verb};

/// Rows that a look finds at most, besides those that are known: ids are small.
const MOST: i64 = 20_000;
/// And at most, however many are set aside.
const MOST_WITH_ASIDE: i64 = 200_000;
/// A look takes at most a quarter of the time.
pub(super) const REST: u32 = 3;
/// And at most a sixteenth while other lanes have something left of the last one, which it would find once more.
const REST_FOR_SOME: u32 = 15;

/// When the next look may come.
#[derive(Default)]
pub(super) struct Pace {
    /// For lanes of which none has anything left, and for some among others.
    due: Option<(BootInstant, BootInstant)>,
}

impl Pace {
    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        self.due.is_none_or(|(all, _)| now >= all)
    }

    fn is_due_for(&self, lacks: Lacks, now: BootInstant) -> bool {
        match lacks {
            Lacks::None => false,
            Lacks::Some => self.due.is_none_or(|(_, some)| now >= some),
            Lacks::All => self.is_due(now),
        }
    }

    pub(super) fn took(&mut self, took: Duration, now: BootInstant) {
        self.due = Some((now.after(took * REST), now.after(took * REST_FOR_SOME)));
    }
}

impl TableSource {
    /// Looks if a lane with room has nothing left of the last look, and fetches what was found.
    pub(super) async fn read_rows(&self, lanes: &[Room], budget: &Budget) -> Result<Read, Error> {
        let grants = lanes.iter().filter(|lane| lane.room).map(|lane| &lane.grant);
        let (asked, here, look, failed) = self.state(|state| {
            let asked = state.taken.asked(grants);
            let look = state.pace.is_due_for(state.taken.lacks(&asked), clock::now());
            (asked, state.incarnation.clone(), look, state.failed.as_ref().map(Error::again))
        });
        let (Some(here), false) = (here, asked.is_empty()) else {
            return Ok(self.nothing_read());
        };
        let due = self.due(lanes, &here, budget).await?;
        if !due.is_empty() {
            return Ok(Read { batches: due, next: Next::Now, ..self.nothing_read() });
        }
        if look {
            let began = clock::now();
            let looked = self.look(&self.state(|state| state.taken.moving(&asked)), &here).await;
            let now = clock::now();
            self.patience.follow(now.since(began), looked.is_ok());
            self.state(|state| {
                state.pace.took(now.since(began), now);
                state.failed = looked.as_ref().err().map(Error::again);
            });
            looked?;
        } else if let Some(failed) = failed {
            // Until one succeeds.
            return Err(failed);
        }
        self.fetch(&asked, &here, budget).await
    }

    pub(super) fn nothing_read(&self) -> Read {
        let blocked = self.state(|state| state.taken.blocked());
        Read { batches: Vec::new(), refused: Vec::new(), blocked, next: Next::Later }
    }

    /// One look for each number of lanes there is: more than one only while lanes are being split.
    async fn look(&self, asked: &[Asked], here: &Incarnation) -> Result<(), Error> {
        let statements = self.statements()?;
        let asked = self.state(|state| state.taken.to_look_for(asked));
        let mut of: Vec<i32> = asked.iter().map(|asked| asked.of).collect();
        of.sort_unstable();
        of.dedup();
        for of in of {
            let asked: Vec<Asked> = asked.iter().filter(|asked| asked.of == of).copied().collect();
            let known = self.state(|state: &mut State| {
                state.taken.look_begins();
                state.taken.known()
            });
            let mut lanes: Vec<i32> = asked.iter().map(|asked| asked.lane).collect();
            if usize::try_from(of) == Ok(lanes.len()) {
                // All of them, which spares the comparison of every row.
                lanes.clear();
            }
            // What is set aside is walked over: the more of it, the more is found in one walk.
            let aside = self.parked.rows();
            let relay = aside.map(|_| self.relay.as_str());
            let most = MOST
                .max(aside.unwrap_or_default().min(MOST_WITH_ASIDE))
                .saturating_add(i64::try_from(known).unwrap_or(i64::MAX));
            // More may have been set aside since they were counted.
            let few = aside.unwrap_or_default() < MOST_ASIDE / 2;
            let parameters: [Parameter<'_>; 5] = [
                (&of, Type::INT4),
                (&lanes, Type::INT4_ARRAY),
                (&most, Type::INT8),
                (&relay, Type::TEXT),
                (&few, Type::BOOL),
            ];
            let mut slot = self.reader.lock().await;
            let connection = slot.take().await?.waiting(self.patience.now());
            let verb = Verb { name: "look", sql: &statements.look };
            let statements = [(sql::INCARNATION, &[][..]), (sql::LOOK_SETTINGS, &[]), (verb, &parameters)];
            let [found, _, rows] = connection.pipeline(Access::ReadTheirs, statements).await?;
            slot.put(connection);
            drop(slot);
            self.still(here, &incarnation(&found)?)?;
            let columns = self.spec.id.len();
            let found = rows.iter().map(|row| Ok((row.try_get(columns)?, RowId::read(row, 0, columns)?)));
            let ids = found.collect::<Result<Vec<(i32, RowId)>, Error>>()?;
            self.state(|state| state.taken.found(&asked, ids));
        }
        Ok(())
    }
}
