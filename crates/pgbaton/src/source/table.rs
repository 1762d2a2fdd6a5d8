//! An adopted table: the rows of an outbox that others made, delivered and then marked, without a change to it.
//!
//! A *look* finds the ids of pending rows, from the front and in order; `table/fetch.rs` fetches them as messages;
//! `table/mark.rs` marks what was delivered, under the lanes' epochs. What is known of rows in between is in `table/taken.rs`,
//! in memory alone: whoever opens a lane begins with a look.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use async_trait::async_trait;
use tokio_postgres::types::Type;

use crate::connection::{Access, Database, Parameter, Slot, incarnation};
use crate::error::{Error, Kind};
use crate::lane::{Grant, RelayName, ReplicaId};
use crate::metrics::Metrics;
use crate::position::Incarnation;
use crate::reminder::Reminder;
use crate::source::flush;
use crate::source::parked::Parked;
use crate::source::patience::Patience;
use crate::source::settle::{Ours, Registration};
use crate::source::trouble::in_plain_words;
use crate::source::{Acknowledged, Batch, Behind, Budget, Dealt, Memory, Opaque, Opened, Read, Room, Source, Stint};
use crate::sql;

pub(crate) mod catalogue;
mod check;
mod dead;
mod definition;
mod fetch;
mod look;
mod mark;
mod pending;
mod place;
mod retry;
mod row;
mod statements;
pub(crate) mod survey;
mod taken;
pub(crate) mod whereabouts;

pub use definition::{Mark, NO_AGE, TableName, TableSpec, Value};
use look::Pace;
use pending::Counted;
pub(in crate::source) use place::TableRows;
use statements::Statements;
pub(in crate::source) use taken::TakenRow;
use taken::{RowId, Taken};

/// What one relay of one replica reads of an adopted table.
pub struct TableSource {
    relay: RelayName,
    replica: ReplicaId,
    spec: TableSpec,
    memory: Arc<Memory>,
    metrics: Arc<Metrics>,
    reader: tokio::sync::Mutex<Slot>,
    /// For looks and fetches, which hold no lock that others need.
    patience: Patience,
    writer: tokio::sync::Mutex<Slot>,
    /// For marks, which may change many rows.
    marking: Patience,
    parked: Parked,
    /// Made when the table was last checked and found as it has to be.
    statements: RwLock<Option<Arc<Statements>>>,
    /// Why a later check refused it: nothing is read until one finds it good again.
    refusal: RwLock<Option<Error>>,
    pending: Mutex<Counted>,
    /// Counts acknowledgements, so that of two under one epoch the later one has the greater number.
    seq: AtomicI64,
    stints: AtomicU64,
    /// That an index is missing was told.
    told: AtomicBool,
    /// A mark has succeeded in this process: until then lanes hand over one batch at a time.
    proven: AtomicBool,
    state: Mutex<State>,
}

/// What is known, all of it within one incarnation.
#[derive(Default)]
struct State {
    incarnation: Option<Incarnation>,
    /// The table that the relay was registered for.
    table: Option<u32>,
    taken: Taken,
    pace: Pace,
    /// How many rows the next fetch asks for: follows their size.
    rows: fetch::Rows,
    /// The number of lanes that the last fetch was of.
    served: i32,
    /// Rows were changed after they had been read.
    changed: Reminder,
    /// Rows were no longer pending when they were to be marked.
    gone: Reminder,
    /// Dead rows up to this number were looked at.
    dead: i64,
    /// Why the last look failed.
    failed: Option<Error>,
}

impl TableSource {
    /// The table in this database. Bytes of batches count on `memory` for as long as they live. Nothing can be read before
    /// [`Source::check`] has found the table as it has to be.
    #[must_use]
    pub fn new(
        relay: RelayName,
        replica: ReplicaId,
        spec: TableSpec,
        database: &Database,
        memory: Arc<Memory>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let parked = Parked::new(relay.clone(), replica, database);
        Self {
            relay,
            replica,
            spec,
            memory,
            metrics,
            reader: tokio::sync::Mutex::new(Slot::new(database.clone())),
            patience: Patience::new(database.patience()),
            writer: tokio::sync::Mutex::new(Slot::new(database.clone())),
            marking: Patience::new(database.patience()),
            parked,
            statements: RwLock::new(None),
            refusal: RwLock::new(None),
            pending: Mutex::default(),
            seq: AtomicI64::new(0),
            stints: AtomicU64::new(0),
            told: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            state: Mutex::new(State::default()),
        }
    }

    /// The statements by their names, once the table was checked. For the test of their plans.
    #[doc(hidden)]
    #[must_use]
    pub fn statements_by_name(&self) -> Vec<(&'static str, String)> {
        let Ok(statements) = self.statements() else { return Vec::new() };
        let Statements { look, fetch, mark, mark_changed, still, behind, rehearse: _, partitioned: _ } = &*statements;
        let all = [("look", look), ("fetch", fetch), ("mark", mark), ("mark_changed", mark_changed)];
        let all = all.into_iter().chain([("still", still), ("behind", behind)]);
        all.map(|(name, sql)| (name, sql.clone())).collect()
    }

    fn state<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn statements(&self) -> Result<Arc<Statements>, Error> {
        let statements = self.statements.read().unwrap_or_else(PoisonError::into_inner).clone();
        statements.ok_or_else(|| Error::new(Kind::Internal, "an adopted table is used before it was checked"))
    }

    /// Whether the last check that came to an end found the table as it has to be.
    fn not_refused(&self) -> Result<(), Error> {
        let refusal = self.refusal.read().unwrap_or_else(PoisonError::into_inner);
        refusal.as_ref().map_or(Ok(()), |error| Err(error.again()))
    }

    /// The incarnation that an open lane belongs to.
    fn here(&self, grant: &Grant) -> Result<Incarnation, Error> {
        let here = self.state(|state| state.incarnation.clone());
        here.ok_or_else(|| Error::new(Kind::Database, format!("{grant}: it was closed meanwhile")))
    }

    /// Compares an answer's incarnation with the one that something belongs to.
    fn still(&self, here: &Incarnation, found: &Incarnation) -> Result<(), Error> {
        flush::same(here, found, &self.relay)
    }

    /// A table that was made anew has other rows, by ids that were given out before: receivers would take them for the old ones.
    fn same_table(&self, found: u32) -> Result<(), Error> {
        if self.state(|state| state.table).is_none_or(|table| table == found) {
            return Ok(());
        }
        let (relay, table) = (&self.relay, &self.spec.table);
        Err(Error::refused(
            format!("relay {relay}: {table} is another table than the one it was registered for, by the same name"),
            "It was made anew. Stop the relay's replicas, drop it (`pgbaton relays drop`) and start them again: what is pending \
             is in the table itself",
        ))
    }

    /// What the database knows of a lane, in the incarnation it was granted in.
    async fn newest(&self, grant: &Grant, here: &Incarnation) -> Result<Newest, Error> {
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let relay = grant.lane.relay.as_str();
        let lock: [Parameter<'_>; 2] = [(&vec![relay], Type::TEXT_ARRAY), (&vec![grant.lane.number], Type::INT4_ARRAY)];
        let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&grant.lane.number, Type::INT4)];
        let statements = [(sql::CLAIM_LOCK, &lock[..]), (sql::INCARNATION, &[]), (sql::NEWEST_BATCH, &parameters)];
        let [locked, found, rows] = connection.pipeline(Access::Look, statements).await?;
        slot.put(connection);
        self.still(here, &incarnation(&found)?)?;
        // A mark of ours whose answer was lost may still wait for its commit: what it marked is pending until then.
        if locked.is_empty() {
            return Err(Error::new(Kind::Database, format!("{grant}: a mark of this lane is still under way")));
        }
        let Some(row) = rows.first() else {
            return Err(Error::refused(
                format!("lane {} has no position", grant.lane),
                "It was deleted by hand. `pgbaton rebase` registers the relay's lanes again",
            ));
        };
        let former: Vec<&str> = row.try_get("former")?;
        Ok(Newest {
            batch: row.try_get("batch")?,
            table: row.try_get("table")?,
            registration: Registration(row.try_get("registration")?),
            former: former.into_iter().filter_map(|former| former.parse().ok()).collect(),
            forsaken: row.try_get("forsaken")?,
        })
    }
}

/// What the database knows of a lane.
struct Newest {
    batch: i64,
    table: Option<u32>,
    registration: Registration,
    former: Vec<Incarnation>,
    forsaken: i32,
}

#[async_trait]
impl Source for TableSource {
    /// The first check refuses. A later refusal is this relay's alone, and others of the process go on: it is what
    /// [`read`](Source::read) answers from then on.
    async fn check(&self) -> Result<(), Error> {
        let first = self.statements().is_err();
        let refusal = match self.check_table(first).await {
            Ok(()) => None,
            Err(error) if first || error.is_transient() => return Err(error),
            Err(error) => Some(error),
        };
        *self.refusal.write().unwrap_or_else(PoisonError::into_inner) = refusal;
        Ok(())
    }

    async fn open(
        &self,
        grant: &Grant,
        here: &Incarnation,
        sink_holds: Option<&Opaque>,
    ) -> Result<(Stint, Opened), Error> {
        let newest = self.newest(grant, here).await?;
        // Before anything is marked.
        self.state(|state| state.table = newest.table);
        let Newest { batch, table: _, registration, former, forsaken } = &newest;
        let ours = Ours { grant, here, batch: *batch, registration, former, forsaken: *forsaken };
        let (opened, theirs) = ours.settle(sink_holds, false)?;
        if let (Opened::Settled { batch }, Some(theirs)) = (&opened, theirs) {
            self.mark_settled(grant, *batch, &theirs, here).await?;
        }
        let stint = Stint(self.stints.fetch_add(1, Ordering::Relaxed));
        self.state(|state| {
            if state.incarnation.as_ref().is_some_and(|known| known != here) {
                return Err(Error::new(
                    Kind::Database,
                    format!("{grant} was opened while others were in another incarnation"),
                ));
            }
            state.incarnation = Some(here.clone());
            state.taken.open(grant.clone(), stint, newest.registration);
            self.parked.opened(grant.lane.number);
            Ok((stint, opened))
        })
    }

    async fn read(&self, lanes: &[Room], budget: &Budget) -> Result<Read, Error> {
        self.not_refused()?;
        let read = self.read_rows(lanes, budget).await;
        read.map_err(|error| in_plain_words(error, &self.relay, &self.spec.table))
    }

    async fn held(&self, batch: &Batch) -> Result<Vec<usize>, Error> {
        self.parked.waiting(&self.here(&batch.grant)?, batch).await
    }

    async fn trying(&self, suspect: &Batch, begins: bool) -> Result<Option<u32>, Error> {
        self.parked.trying(&self.here(&suspect.grant)?, suspect, begins).await
    }

    async fn acknowledge(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        self.mark_delivered(done).await
    }

    fn covers_earlier(&self) -> bool {
        false
    }

    fn one_batch_at_a_time(&self, sink_keeps_position: bool) -> bool {
        sink_keeps_position || !self.proven.load(Ordering::Relaxed)
    }

    fn look_again(&self) {
        self.parked.forget();
    }

    async fn behind(&self) -> Result<Behind, Error> {
        self.count_pending().await.map_err(|error| in_plain_words(error, &self.relay, &self.spec.table))
    }

    fn close(&self, grant: &Grant) {
        self.state(|state| {
            state.taken.close(grant);
            if !state.taken.has(grant.lane.number) {
                self.parked.closed(grant.lane.number);
            }
            if state.taken.is_empty() {
                // Nothing in memory outlives the lanes: the next one may be opened in another incarnation.
                let (changed, gone) = (std::mem::take(&mut state.changed), std::mem::take(&mut state.gone));
                let (rows, table) = (std::mem::take(&mut state.rows), state.table);
                *state = State { rows, table, changed, gone, ..State::default() };
            }
        });
    }
}

/// The ids of rows, one array for each column.
fn columns_of(rows: &[RowId], columns: usize) -> Vec<Vec<&str>> {
    let column = |n: usize| rows.iter().map(|row| row.0.get(n).map_or("", String::as_str)).collect();
    (0..columns).map(column).collect()
}
