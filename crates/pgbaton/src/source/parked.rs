//! Messages that were set aside: what is told of them, what of them is due, and how they are written.
//!
//! They are written in the transaction that writes the position which passes them, so that a crash finds a message in one of the
//! two places: not passed, or set aside. The same for both sources; only how one is put there differs.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_postgres::types::Type;

use super::batch::{Batch, Parking};
use super::patience::Patience;
use super::{Budget, Room, flush};
use crate::clock;
use crate::connection::{Access, Connection, Database, Parameter, Slot, incarnation};
use crate::error::Error;
use crate::lane::{self, RelayName, ReplicaId};
use crate::outcome::codes;
use crate::position::Incarnation;
use crate::sql;

mod filter;
mod known;

use filter::Filter;
use known::{Answer, Known};

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
    /// Whether it may have killed its lane's owners, and is to be tried alone.
    #[serde(default)]
    pub suspect: bool,
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
        Self { code, text, counts: false, after: Some(UNFIT_AGAIN), holds: true, suspect: false }
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
    /// It may have killed its lane's owners: it is tried alone.
    pub suspect: bool,
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

/// What is due in some lanes, and the connection that goes on reading it.
pub(super) struct DueNow<'a> {
    slot: tokio::sync::MutexGuard<'a, Slot>,
    pub(super) connection: Connection,
    /// In order for each lane.
    pub(super) lanes: BTreeMap<i32, Vec<Due>>,
}

impl DueNow<'_> {
    /// All of it was read.
    pub(super) fn done(mut self) {
        self.slot.put(self.connection);
    }
}

/// Attempts as columns of a statement.
#[derive(Default)]
pub(super) struct Attempts<'a> {
    codes: Vec<Option<&'a str>>,
    texts: Vec<&'a str>,
    counts: Vec<bool>,
    after: Vec<Option<i64>>,
    holds: Vec<bool>,
    suspects: Vec<bool>,
}

impl<'a> Attempts<'a> {
    /// Each with whether the message may have killed its lane's owners.
    pub(super) fn of(all: impl IntoIterator<Item = (Option<&'a Failed>, bool)>) -> Self {
        let mut columns = Self::default();
        for (failed, suspect) in all {
            columns.codes.push(failed.map(|failed| failed.code.as_str()));
            columns.texts.push(failed.map_or("", |failed| failed.text.as_str()));
            columns.counts.push(failed.is_some_and(|failed| failed.counts));
            columns.after.push(failed.and_then(|failed| failed.after).map(millis));
            columns.holds.push(failed.is_none_or(|failed| failed.holds));
            columns.suspects.push(suspect);
        }
        columns
    }

    pub(super) fn parameters(&self) -> [Parameter<'_>; 6] {
        [
            (&self.codes, Type::TEXT_ARRAY),
            (&self.texts, Type::TEXT_ARRAY),
            (&self.counts, Type::BOOL_ARRAY),
            (&self.after, Type::INT8_ARRAY),
            (&self.holds, Type::BOOL_ARRAY),
            (&self.suspects, Type::BOOL_ARRAY),
        ]
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Keys that are read at once, and messages of each.
const KEYS: usize = 2_000;
const EACH: i64 = 200;
/// Messages that are read at once, of all lanes together.
const MOST: usize = 20_000;

/// What one relay of one replica knows of its messages that were set aside.
pub(super) struct Parked {
    relay: RelayName,
    replica: ReplicaId,
    /// For questions.
    asker: tokio::sync::Mutex<Slot>,
    known: Mutex<Known>,
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

    /// Somebody has changed what is set aside: nothing that is known of it counts.
    pub(super) fn forget(&self) {
        self.known(Known::forget);
    }

    pub(super) fn closed(&self, lane: i32) {
        self.known(|known| known.closed(lane));
    }

    /// Some of these keys were set aside, or brought forward, and the first of them is due after so long.
    pub(super) fn changed(&self, lane: i32, parking: &Parking) {
        let due = parking.due().map(|due| clock::now().after(due)).into_iter().chain(parking.later).min();
        self.known(|known| known.changed(lane, parking.hashes(), due));
    }

    /// How many rows of an adopted table are set aside, as far as is known; `None` if none of these lanes is for sure.
    pub(super) fn rows(&self) -> Option<i64> {
        self.known(|known| known.rows())
    }

    /// Messages of these lanes, of so many, that are due: of each lane as many as go into one batch, where it is ready to take one. `left`
    /// is how many bytes all of them may have.
    pub(super) async fn due<'a>(
        &self,
        (reader, patience): (&'a tokio::sync::Mutex<Slot>, &Patience),
        here: &Incarnation,
        (of, lanes): (i32, &[i32]),
        (rooms, budget, left): (&[Room], &Budget, &mut usize),
    ) -> Result<Option<DueNow<'a>>, Error> {
        self.look(here, of, lanes).await?;
        let takes =
            |lane: &&i32| rooms.iter().any(|room| room.grant.lane.number == **lane && room.room && room.retries);
        let takers: Vec<i32> = lanes.iter().filter(takes).copied().collect();
        let ready = self.known(|known| known.due(&takers, clock::now()));
        if ready.is_empty() {
            return Ok(None);
        }
        let mut slot = reader.lock().await;
        let connection = slot.take().await?.waiting(patience.most());
        let mut lanes: BTreeMap<i32, Vec<Due>> = BTreeMap::new();
        for due in self.read(&connection, here, (of, &ready), budget).await? {
            lanes.entry(lane::of_hash(due.hash, of)).or_default().push(due);
        }
        lanes.values_mut().for_each(|due| fitting(due, left, budget));
        lanes.retain(|_, due| !due.is_empty());
        Ok(Some(DueNow { slot, connection, lanes }))
    }

    /// Whether [`Parked::due`] would ask anything.
    pub(super) fn is_due(&self) -> bool {
        self.known(|known| known.is_due(clock::now()))
    }

    /// Asks what is there of these lanes, if it is time.
    async fn look(&self, here: &Incarnation, of: i32, lanes: &[i32]) -> Result<(), Error> {
        if !self.known(|known| known.is_to_be_asked(clock::now())) {
            return Ok(());
        }
        let mut slot = self.asker.lock().await;
        let connection = slot.take().await?;
        self.ask(&connection, here, of, lanes).await?;
        if self.known(|known| known.filter_begins(clock::now()))
            && let Err(error) = self.filter(&connection, here).await
        {
            // Without one all keys are asked for.
            tracing::debug!(relay = %self.relay, %error, "the keys of what is set aside could not be read");
            self.known(Known::filter_failed);
            return Ok(());
        }
        slot.put(connection);
        Ok(())
    }

    /// Puts all keys into a new filter.
    async fn filter(&self, connection: &Connection, here: &Incarnation) -> Result<(), Error> {
        let (mut filter, mut last) = (Filter::new(), None);
        let relay = self.relay.as_str();
        let parameters: [Parameter<'_>; 1] = [(&relay, Type::TEXT)];
        let (found, _) = connection
            .stream(Access::Look, (sql::INCARNATION, &[]), None, (sql::PARKED_KEYS, &parameters), |row| {
                // In order: those of one key follow each other.
                let hash = row.try_get(0)?;
                if last.replace(hash) != Some(hash) {
                    filter.put(hash);
                }
                Ok(())
            })
            .await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        self.known(|known| known.filtered(filter));
        Ok(())
    }

    /// Asks which of these lanes, of so many, have some.
    async fn ask(&self, connection: &Connection, here: &Incarnation, of: i32, lanes: &[i32]) -> Result<(), Error> {
        let parameters: [Parameter<'_>; 3] =
            [(&self.relay.as_str(), Type::TEXT), (&of, Type::INT4), (&lanes, Type::INT4_ARRAY)];
        let changes = self.known(|known| known.changes());
        let statements = [(sql::INCARNATION, &[][..]), (sql::PARKED_LANES, &parameters)];
        let [found, rows] = connection.pipeline(Access::Look, statements).await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        let Some(row) = rows.first() else { return Ok(()) };
        let due: Option<f64> = row.try_get("due")?;
        let now = clock::now();
        let due = due.map(|due| now.after(Duration::try_from_secs_f64(due / 1_000.0).unwrap_or_default()));
        let answer = Answer { some: row.try_get("lanes")?, due, rows: row.try_get("count")? };
        let stepped: bool = row.try_get("stepped")?;
        self.known(|known| known.answered((changes, lanes), &answer, now));
        if stepped {
            let [rows] = connection
                .pipeline(Access::Write, [(sql::PARKED_STEPPED, &[(&self.relay.as_str(), Type::TEXT)])])
                .await?;
            tracing::info!(relay = %self.relay, messages = rows.len(), "the server's clock was set back: what waits for its next attempt is due");
        }
        Ok(())
    }

    /// The places of those messages of a batch that wait behind one of their key.
    pub(super) async fn waiting(&self, here: &Incarnation, batch: &Batch) -> Result<Vec<usize>, Error> {
        let may_have = |known: &mut Known| known.may_have(batch.grant.lane.number, &batch.hashes);
        if self.known(may_have).is_empty() {
            return Ok(Vec::new());
        }
        let mut slot = self.asker.lock().await;
        // Once more: whoever had it may have made the filter.
        let hashes = self.known(may_have);
        if hashes.is_empty() {
            return Ok(Vec::new());
        }
        let connection = slot.take().await?;
        let held = self.held(&connection, here, &hashes).await?;
        slot.put(connection);
        self.known(|known| known.asked_in_vain(hashes.len() - held.len()));
        let waits = |(_, hash): &(usize, &i64)| held.contains(*hash);
        Ok(batch.hashes.iter().enumerate().filter(waits).map(|(place, _)| place).collect())
    }

    /// Which of these keys later messages wait behind.
    async fn held(&self, connection: &Connection, here: &Incarnation, hashes: &[i64]) -> Result<HashSet<i64>, Error> {
        let parameters: [Parameter<'_>; 2] = [(&self.relay.as_str(), Type::TEXT), (&hashes, Type::INT8_ARRAY)];
        let statements = [(sql::INCARNATION, &[][..]), (sql::PARKED_HELD, &parameters)];
        let [found, rows] = connection.pipeline(Access::Look, statements).await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Writes down that this suspect is about to be tried, or was. Gives how many owners have died trying it; `None` if the lane is no
    /// longer ours, or it is no longer set aside.
    pub(super) async fn trying(&self, here: &Incarnation, suspect: &Batch, begins: bool) -> Result<Option<u32>, Error> {
        let Some(message) = suspect.messages.get(0) else { return Ok(None) };
        let (relay, grant) = (self.relay.as_str(), &suspect.grant);
        let locks: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&vec![grant.lane.number], Type::INT4_ARRAY)];
        let parameters: [Parameter<'_>; 7] = [
            (&relay, Type::TEXT),
            (&self.replica.0, Type::UUID),
            (&here.to_string(), Type::TEXT),
            (&grant.lane.number, Type::INT4),
            (&grant.epoch.0, Type::INT8),
            (&message.id, Type::TEXT),
            (&begins, Type::BOOL),
        ];
        let mut slot = self.asker.lock().await;
        let connection = slot.take().await?;
        connection.lock(sql::ACKNOWLEDGE_LOCK, &locks).await?;
        let rows = connection.commit(sql::PARKED_TRYING, &parameters).await?;
        slot.put(connection);
        let deaths: Option<i32> = rows.first().map(|row| row.try_get(0)).transpose()?;
        Ok(deaths.map(|deaths| u32::try_from(deaths).unwrap_or_default()))
    }

    /// Those of these lanes, of so many, that are due, a few of each key: in order.
    async fn read(
        &self,
        connection: &Connection,
        here: &Incarnation,
        (of, lanes): (i32, &[i32]),
        budget: &Budget,
    ) -> Result<Vec<Due>, Error> {
        let most = budget.batch_messages.saturating_mul(lanes.len()).min(MOST);
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let (keys, most) = (number(most.min(KEYS)), number(most));
        let parameters: [Parameter<'_>; 6] = [
            (&self.relay.as_str(), Type::TEXT),
            (&of, Type::INT4),
            (&lanes, Type::INT4_ARRAY),
            (&keys, Type::INT8),
            (&EACH, Type::INT8),
            (&most, Type::INT8),
        ];
        let statements = [(sql::INCARNATION, &[][..]), (sql::PARKED_DUE, &parameters)];
        let [found, rows] = connection.pipeline(Access::Look, statements).await?;
        flush::same(here, &incarnation(&found)?, &self.relay)?;
        let due = rows.iter().map(|row| {
            Ok(Due {
                id: row.try_get(0)?,
                hash: row.try_get(1)?,
                bytes: usize::try_from(row.try_get::<_, i32>(2)?).unwrap_or_default(),
                seen: Seen {
                    attempts: u32::try_from(row.try_get::<_, i32>(3)?).unwrap_or_default(),
                    due: row.try_get(4)?,
                    since: Duration::try_from_secs_f64(row.try_get(5)?).unwrap_or_default(),
                    suspect: row.try_get(7)?,
                },
                row: row.try_get(6)?,
            })
        });
        let due = due.collect::<Result<Vec<Due>, Error>>()?;
        self.known(|known| {
            // An operator may have brought back one that its key went past.
            known.have(due.iter().map(|due| due.hash));
            known.due_was_read(!due.is_empty(), clock::now());
        });
        Ok(due)
    }

    /// What became of those that were tried again. Statements of an open transaction in which the lane was found to be ours.
    pub(super) async fn write(&self, connection: &Connection, tried: &TriedAgain) -> Result<(), Error> {
        if tried.is_empty() {
            return Ok(());
        }
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
        let faults = Attempts::of(all.iter().map(|(_, _, failed)| (Some(failed), failed.suspect)));
        let mut failed: Vec<Parameter<'_>> = vec![
            (&relay, Type::TEXT),
            (&replica, Type::UUID),
            (&ids, Type::TEXT_ARRAY),
            (&attempts, Type::INT4_ARRAY),
            (&due, Type::TIMESTAMPTZ_ARRAY),
        ];
        failed.extend(faults.parameters());
        connection.then(sql::PARKED_FAILED, &failed).await?;
        if seen().any(|seen| seen.suspect) {
            let tried: [Parameter<'_>; 3] = [(&relay, Type::TEXT), (&replica, Type::UUID), (&ids, Type::TEXT_ARRAY)];
            connection.then(sql::PARKED_SURVIVED, &tried).await?;
        }
        Ok(())
    }
}

/// Opens a transaction in which no acknowledgement of this relay is under way: what is set aside stands still. It waits for the lock
/// of a lane only for a moment, and lets go of all others then: their acknowledgements wait behind it.
///
/// # Errors
/// A relay that is not registered, or locks that could not be had.
pub(crate) async fn stand_still(connection: &Connection, relay: &str) -> Result<(), Error> {
    const TIMES: usize = 40;
    const AGAIN_AFTER: Duration = Duration::from_millis(250);
    let mut times = 0;
    loop {
        connection.lock(sql::COMMAND_LOCK, &[]).await?;
        connection
            .script("set local lock_timeout = '250ms'; set local idle_in_transaction_session_timeout = '2s'")
            .await?;
        match connection.then(sql::LANES_LOCK, &[(&relay, Type::TEXT)]).await {
            Ok(lanes) if lanes.is_empty() => {
                connection.roll_back().await?;
                return Err(Error::refused(
                    format!("there is no relay {relay}"),
                    "`pgbaton relays list` shows those there are",
                ));
            }
            Ok(_) => {
                connection.then(sql::RELAY_CHANGED, &[(&relay, Type::TEXT)]).await?;
                return Ok(());
            }
            Err(error) if error.is_transient() && times < TIMES => {
                connection.roll_back().await?;
                times += 1;
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// As many of the first as go into one batch.
fn fitting(due: &mut Vec<Due>, left: &mut usize, budget: &Budget) {
    let after_suspect = due.first().is_some_and(|first| first.seen.suspect);
    let (mut bytes, mut count) = (0, 0);
    for due in due.iter() {
        let fits = bytes + due.bytes <= budget.batch_bytes.min(*left);
        let alone = count == 0 && (due.bytes <= *left || (*left > 0 && budget.one_more));
        // A suspect is tried alone.
        if count == budget.batch_messages || (count > 0 && (due.seen.suspect || after_suspect)) || !(fits || alone) {
            break;
        }
        bytes += due.bytes;
        count += 1;
    }
    *left = left.saturating_sub(bytes);
    due.truncate(count);
}
