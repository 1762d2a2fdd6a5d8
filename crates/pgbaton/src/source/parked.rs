//! Messages that were set aside: what is told of them, what of them is due, and how they are written.
//!
//! They are written in the transaction that writes the position which passes them, so that a crash finds a message in one of the
//! two places: not passed, or set aside. The same for both sources; only how one is put there differs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;

use super::batch::Batch;
use super::{Budget, flush};
use crate::clock;
use crate::connection::{Access, Connection, Database, Parameter, Slot, incarnation};
use crate::error::Error;
use crate::lane::{RelayName, ReplicaId};
use crate::lease::BootInstant;
use crate::outcome::codes;
use crate::position::Incarnation;
use crate::sql;

/// What came of an attempt at a message, and what comes next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The fault's code.
    pub code: String,
    /// Its text.
    #[serde(skip)]
    pub text: String,
    /// Whether it counts as an attempt.
    pub counts: bool,
    /// When it is tried next; `None`: never, it is dead.
    pub after: Option<Duration>,
    /// Whether later messages of its key wait behind it once it is dead.
    pub holds: bool,
}

/// A row that cannot be a message is looked at again so much later: somebody may change it.
const UNFIT_AGAIN: Duration = Duration::from_secs(10);

impl Failed {
    /// Whether later messages of its key wait for it.
    pub(super) fn holds_its_key(&self) -> bool {
        self.after.is_some() || self.holds
    }

    /// Of a row that cannot be a message for this reason.
    pub(super) fn unfit(why: &Error) -> Self {
        let (code, text) = (codes::source::UNFIT.name.to_owned(), why.in_words());
        Self { code, text, counts: false, after: Some(UNFIT_AGAIN), holds: true }
    }
}

/// How a message that was set aside stood when it was read to be tried again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// How many attempts had counted.
    pub attempts: u32,
    /// Since the first of these.
    pub since: Duration,
    /// When it was due; `None`: it waits behind another one.
    due: Option<SystemTime>,
}

/// What became of messages that had been set aside, by message id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TriedAgain {
    /// Delivered, or no longer there.
    pub(super) gone: Vec<String>,
    pub(super) failed: Vec<(String, Seen, Failed)>,
    /// The hashes of all of them.
    pub(super) hashes: Vec<i64>,
}

impl TriedAgain {
    pub(super) fn is_empty(&self) -> bool {
        self.gone.is_empty() && self.failed.is_empty()
    }
}

/// A message that is due, or waits behind one that is.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) id: String,
    pub(super) hash: i64,
    pub(super) bytes: usize,
    pub(super) seen: Seen,
    /// Of an adopted table.
    pub(super) row: Option<Vec<String>>,
}

/// As many of the first as go into one batch.
pub(super) fn fitting(mut due: Vec<Due>, left: &mut usize, budget: &Budget) -> Vec<Due> {
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

/// Attempts as columns of a statement.
#[derive(Default)]
pub(super) struct Attempts<'a> {
    codes: Vec<Option<&'a str>>,
    texts: Vec<&'a str>,
    counts: Vec<bool>,
    after: Vec<Option<i64>>,
    holds: Vec<bool>,
}

impl<'a> Attempts<'a> {
    pub(super) fn of(all: impl IntoIterator<Item = Option<&'a Failed>>) -> Self {
        let mut columns = Self::default();
        for failed in all {
            columns.codes.push(failed.map(|failed| failed.code.as_str()));
            columns.texts.push(failed.map_or("", |failed| failed.text.as_str()));
            columns.counts.push(failed.is_some_and(|failed| failed.counts));
            columns.after.push(failed.and_then(|failed| failed.after).map(millis));
            columns.holds.push(failed.is_none_or(|failed| failed.holds));
        }
        columns
    }

    pub(super) fn parameters(&self) -> [Parameter<'_>; 5] {
        [
            (&self.codes, Type::TEXT_ARRAY),
            (&self.texts, Type::TEXT_ARRAY),
            (&self.counts, Type::BOOL_ARRAY),
            (&self.after, Type::INT8_ARRAY),
            (&self.holds, Type::BOOL_ARRAY),
        ]
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// How often it is asked which lanes have messages that were set aside: an operator may have brought some back.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// Keys that are asked for at once, and messages of each.
const KEYS: i64 = 2_000;
const EACH: i64 = 200;
/// What is due and was not taken is asked for again no sooner.
const AGAIN: Duration = Duration::from_millis(100);

/// What one relay of one replica knows of its messages that were set aside.
pub(super) struct Parked {
    relay: RelayName,
    replica: ReplicaId,
    /// For questions.
    asker: tokio::sync::Mutex<Slot>,
    known: Mutex<Known>,
}

/// What is known in memory. Pure.
#[derive(Default)]
struct Known {
    /// Of each lane that is open.
    lanes: BTreeMap<i32, KnownLane>,
    /// Grows with whatever an answer that is under way may not have seen.
    changes: u64,
    /// When the next one is due; `None`: not before it is asked again.
    due: Option<BootInstant>,
    /// How many rows of an adopted table are, of the whole relay, up to a number.
    rows: i64,
}

struct KnownLane {
    /// It may have some. Of the others nothing is asked.
    some: bool,
    /// When it is asked again; `None`: it was not asked yet.
    again: Option<BootInstant>,
}

/// What the database answered.
struct Answer {
    /// Lanes that have some.
    some: Vec<i32>,
    due: Option<BootInstant>,
    rows: i64,
}

impl Known {
    fn opened(&mut self, lane: i32) {
        self.changes += 1;
        self.lanes.insert(lane, KnownLane { some: true, again: None });
    }

    fn closed(&mut self, lane: i32) {
        self.lanes.remove(&lane);
    }

    fn changed(&mut self, lane: i32, due: Option<BootInstant>) {
        self.changes += 1;
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.some = true;
        }
        self.due = self.due.into_iter().chain(due).min();
    }

    fn is_to_be_asked(&self, lanes: &[i32], now: BootInstant) -> bool {
        let due = |lane: &KnownLane| lane.again.is_none_or(|again| now >= again);
        lanes.iter().filter_map(|lane| self.lanes.get(lane)).any(due)
    }

    /// An answer for these lanes, which was asked for when so many changes were known. If there were more since, it says of no lane
    /// that it has none.
    fn answered(&mut self, (changes, lanes): (u64, &[i32]), answer: &Answer, now: BootInstant) {
        let sure = changes == self.changes;
        for number in lanes {
            if let Some(lane) = self.lanes.get_mut(number) {
                let some = answer.some.contains(number);
                lane.some = some || (lane.some && !sure);
                lane.again = Some(now.after(ASKED_EVERY));
            }
        }
        self.rows = answer.rows;
        self.due = self.due.into_iter().chain(answer.due).min();
    }

    fn may_be_in(&self, lane: i32) -> bool {
        self.lanes.get(&lane).is_none_or(|lane| lane.some)
    }

    /// Nothing is due now: when the next one is, is to be asked.
    fn none_is_due(&mut self) {
        self.due = None;
        self.lanes.values_mut().for_each(|lane| lane.again = None);
    }
}

impl Parked {
    pub(super) fn new(relay: RelayName, replica: ReplicaId, database: &Database) -> Self {
        let asker = tokio::sync::Mutex::new(Slot::new(database.clone()));
        Self { relay, replica, asker, known: Mutex::default() }
    }

    fn known<T>(&self, f: impl FnOnce(&mut Known) -> T) -> T {
        f(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A lane was opened: until it is asked, it may have some.
    pub(super) fn opened(&self, lane: i32) {
        self.known(|known| known.opened(lane));
    }

    pub(super) fn closed(&self, lane: i32) {
        self.known(|known| known.closed(lane));
    }

    /// Some were set aside, or brought forward, and the first of them is due after so long.
    pub(super) fn changed(&self, lane: i32, due: Option<Duration>) {
        let due = due.map(|due| clock::now().after(due));
        self.known(|known| known.changed(lane, due));
    }

    /// How many rows of an adopted table are set aside, as far as is known; `None` if none of these lanes is for sure.
    pub(super) fn rows(&self) -> Option<i64> {
        // Dead ones that their keys go past hold nobody, and are pending all the same.
        self.known(|known| (known.rows > 0 || known.lanes.values().any(|lane| lane.some)).then_some(known.rows))
    }

    /// Those of these lanes that may have some that are due.
    fn to_ask(&self, lanes: &[i32], now: BootInstant) -> Vec<i32> {
        self.known(|known| match known.due {
            Some(due) if now >= due => lanes.iter().copied().filter(|lane| known.may_be_in(*lane)).collect(),
            _ => Vec::new(),
        })
    }

    /// Of these lanes, of so many, those that have some that are due now, of those that are ready to take them.
    pub(super) async fn ready(
        &self,
        here: &Incarnation,
        of: i32,
        lanes: &[i32],
        takes: impl Fn(&i32) -> bool,
    ) -> Result<Vec<i32>, Error> {
        if self.known(|known| known.is_to_be_asked(lanes, clock::now())) {
            let mut slot = self.asker.lock().await;
            let connection = slot.take().await?;
            self.ask(&connection, here, of, lanes).await?;
            slot.put(connection);
        }
        let ready: Vec<i32> = lanes.iter().copied().filter(takes).collect();
        Ok(self.to_ask(&ready, clock::now()))
    }

    /// Asks which of these lanes, of so many, have some.
    async fn ask(&self, connection: &Connection, here: &Incarnation, of: i32, lanes: &[i32]) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&self.relay.as_str(), Type::TEXT), (&of, Type::INT4), (&lanes, Type::INT4_ARRAY)];
        let changes = self.known(|known| known.changes);
        let statements = [(sql::INCARNATION, &[][..]), (sql::PARKED_LANES, &parameters)];
        let [found, rows] = connection.pipeline(Access::Look, statements).await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        let Some(row) = rows.first() else { return Ok(()) };
        let due: Option<f64> = row.try_get("due")?;
        let now = clock::now();
        let due = due.map(|due| now.after(Duration::try_from_secs_f64(due / 1_000.0).unwrap_or_default()));
        let answer = Answer { some: row.try_get("lanes")?, due, rows: row.try_get("count")? };
        self.known(|known| known.answered((changes, lanes), &answer, now));
        Ok(())
    }

    /// The places of those messages of a batch that wait behind one of their key.
    pub(super) async fn waiting(&self, here: &Incarnation, batch: &Batch) -> Result<Vec<usize>, Error> {
        if batch.hashes.is_empty() || !self.known(|known| known.may_be_in(batch.grant.lane.number)) {
            return Ok(Vec::new());
        }
        let mut hashes = batch.hashes.clone();
        hashes.sort_unstable();
        hashes.dedup();
        let mut slot = self.asker.lock().await;
        let connection = slot.take().await?;
        let held = self.held(&connection, here, &hashes).await?;
        slot.put(connection);
        let waits = |(_, hash): &(usize, &i64)| held.contains(*hash);
        Ok(batch.hashes.iter().enumerate().filter(waits).map(|(place, _)| place).collect())
    }

    /// Which of these keys later messages wait behind.
    async fn held(&self, connection: &Connection, here: &Incarnation, hashes: &[i64]) -> Result<BTreeSet<i64>, Error> {
        let parameters: [Parameter<'_>; 2] = [(&self.relay.as_str(), Type::TEXT), (&hashes, Type::INT8_ARRAY)];
        let statements = [(sql::INCARNATION, &[][..]), (sql::PARKED_HELD, &parameters)];
        let [found, rows] = connection.pipeline(Access::Look, statements).await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Those of these lanes that are due, a few of each key: in order.
    pub(super) async fn due(
        &self,
        connection: &Connection,
        here: &Incarnation,
        of: i32,
        lanes: &[i32],
    ) -> Result<Vec<Due>, Error> {
        let parameters: [Parameter<'_>; 5] = [
            (&self.relay.as_str(), Type::TEXT),
            (&of, Type::INT4),
            (&lanes, Type::INT4_ARRAY),
            (&KEYS, Type::INT8),
            (&EACH, Type::INT8),
        ];
        let statements = [(sql::INCARNATION, &[][..]), (sql::PARKED_DUE, &parameters)];
        let [found, rows] = connection.pipeline(Access::Look, statements).await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        let now = clock::now();
        // What is due and is not taken now, soon.
        self.known(|known| if rows.is_empty() { known.none_is_due() } else { known.due = Some(now.after(AGAIN)) });
        let due = rows.iter().map(|row| {
            Ok(Due {
                id: row.try_get(0)?,
                hash: row.try_get(1)?,
                bytes: usize::try_from(row.try_get::<_, i32>(2)?).unwrap_or_default(),
                seen: Seen {
                    attempts: u32::try_from(row.try_get::<_, i32>(3)?).unwrap_or_default(),
                    due: row.try_get(4)?,
                    since: Duration::try_from_secs_f64(row.try_get(5)?).unwrap_or_default(),
                },
                row: row.try_get(6)?,
            })
        });
        due.collect()
    }

    /// What became of those that were tried again. Statements of an open transaction in which the lane was found to be ours.
    pub(super) async fn write(&self, connection: &Connection, tried: &TriedAgain) -> Result<(), Error> {
        let relay = self.relay.as_str();
        let gone: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&tried.gone, Type::TEXT_ARRAY)];
        connection.then(sql::PARKED_DELIVERED, &gone).await?;
        // Those that are dead first: of a key that goes past one, the next one may have failed, too, and there is one head.
        let (dead, again): (Vec<_>, Vec<_>) = tried.failed.iter().partition(|(_, _, failed)| failed.after.is_none());
        self.write_failed(connection, &dead).await?;
        self.write_failed(connection, &again).await?;
        let next: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&tried.hashes, Type::INT8_ARRAY)];
        connection.then(sql::PARKED_NEXT, &next).await?;
        Ok(())
    }

    async fn write_failed(&self, connection: &Connection, all: &[&(String, Seen, Failed)]) -> Result<(), Error> {
        if all.is_empty() {
            return Ok(());
        }
        let (relay, replica) = (self.relay.as_str(), self.replica.0);
        let ids: Vec<&str> = all.iter().map(|(id, _, _)| id.as_str()).collect();
        let seen = || all.iter().map(|(_, seen, _)| seen);
        let attempts: Vec<i32> = seen().map(|seen| i32::try_from(seen.attempts).unwrap_or(i32::MAX)).collect();
        let due: Vec<Option<SystemTime>> = seen().map(|seen| seen.due).collect();
        let faults = Attempts::of(all.iter().map(|(_, _, failed)| Some(failed)));
        let mut failed: Vec<Parameter<'_>> = vec![
            (&relay, Type::TEXT),
            (&replica, Type::UUID),
            (&ids, Type::TEXT_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&due, Type::TIMESTAMPTZ_ARRAY),
        ];
        failed.extend(faults.parameters());
        connection.then(sql::PARKED_FAILED, &failed).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    fn none() -> Answer {
        Answer { some: Vec::new(), due: None, rows: 0 }
    }

    #[test]
    fn a_lane_is_asked_nothing_once_it_is_known_to_have_none() {
        let mut known = Known::default();
        known.opened(1);
        assert!(known.may_be_in(1) && known.is_to_be_asked(&[1], at(0)));
        let changes = known.changes;
        known.answered((changes, &[1]), &none(), at(0));
        assert!(!known.may_be_in(1) && !known.is_to_be_asked(&[1], at(4)) && known.is_to_be_asked(&[1], at(5)));
        known.changed(1, Some(at(9)));
        assert!(known.may_be_in(1));
        assert_eq!(known.due, Some(at(9)));
    }

    /// The answer is of before: it knows nothing of a lane that was opened, or of a message that was set aside, while it was under way.
    #[test]
    fn an_answer_that_comes_late_says_of_no_lane_that_it_has_none() {
        let mut known = Known::default();
        known.opened(1);
        let changes = known.changes;
        known.opened(2);
        known.answered((changes, &[1, 2]), &none(), at(0));
        assert!(known.may_be_in(1) && known.may_be_in(2));
        let changes = known.changes;
        known.answered((changes, &[1, 2]), &none(), at(0));
        assert!(!known.may_be_in(1) && !known.may_be_in(2));
        let changes = known.changes;
        known.changed(1, None);
        known.answered((changes, &[1, 2]), &none(), at(0));
        assert!(known.may_be_in(1));
        // One that was not asked for is unknown.
        assert!(known.may_be_in(3));
    }
}
