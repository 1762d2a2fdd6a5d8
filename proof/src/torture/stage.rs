//! All that a run consists of, and its end: calm, all delivered, all told.

use std::sync::Arc;
use std::time::Duration;

use checker::history::{Event, Run};
use pgbaton::control::parked::{self, Selection};
use pgbaton::control::pauses;
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout, timeout_at};

use super::book::Book;
use super::destination::Destination;
use super::fleet::{Common, Fleet};
use super::log::Log;
use super::outbox::NAME;
use super::pace;
use super::pair::{Cannot, Pair};
use super::plan::{BATCH_MESSAGES, DRAIN_MS, IN_FLIGHT, Plan, SinkKind, TTL, TTL_MS};
use super::primary::{Primary, UNDO_WITHIN, again, within};
use crate::Error;

const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How many segments there are.
const SEGMENTS: i32 = 8;
/// Numbers that one line of the history names.
const TOLD_AT_ONCE: usize = 10_000;

/// Everything.
pub(super) struct Stage {
    pub(super) plan: Plan,
    // The replicas go first, then what they talk to.
    pub(super) fleet: Fleet,
    pub(super) destination: Arc<Destination>,
    pub(super) primary: Primary,
    pub(super) pair: Mutex<Pair>,
    pub(super) cannot: Arc<Cannot>,
    pub(super) log: Arc<Log>,
    calm: watch::Sender<bool>,
}

impl Stage {
    /// Starts servers and replicas.
    pub(super) async fn set(plan: Plan) -> Result<Stage, Error> {
        let book = Arc::new(Book::open(&plan.folder, "stage")?);
        let log = Arc::new(Log::new(book));
        log.book.tell(Event::Run(Run {
            seed: plan.seed,
            sink: plan.sink.name().to_owned(),
            exactly_once: plan.sink == SinkKind::Postgres,
            in_flight: IN_FLIGHT,
            batch_messages: BATCH_MESSAGES,
            ttl_ms: TTL_MS,
            drain_within_ms: u64::try_from(plan.drain_within.as_millis()).unwrap_or(u64::MAX),
            drain_ms: DRAIN_MS,
        }));
        let pair = Pair::start(&plan).await?;
        let primary = pair.followed();
        if !plan.source.is_adopted() {
            let database = primary.operator(Duration::from_secs(30))?;
            let retention = Some(Duration::ZERO);
            pgbaton::control::segments::set(&database, Some(SEGMENTS), Some(plan.segment), retention, TTL * 10)
                .await
                .map_err(|cause| Error::because("setting the ring of segments", &cause))?;
        }
        let destination = Arc::new(Destination::start(&plan).await?);
        let (common, log_) = (Arc::clone(&destination), Arc::clone(&log));
        let common = Common { database: primary.database.clone(), destination: common, log: log_ };
        let fleet = Fleet::start(&plan, common, &pair.ports).await?;
        fleet.tells(&plan.folder).await?;
        let (cannot, calm) = (Arc::clone(&pair.cannot), watch::Sender::new(false));
        Ok(Stage { plan, fleet, destination, primary, pair: Mutex::new(pair), cannot, log, calm })
    }

    /// For whoever is to stop when calm begins.
    pub(super) fn told_of_calm(&self) -> watch::Receiver<bool> {
        self.calm.subscribe()
    }

    pub(super) fn is_calm(&self) -> bool {
        *self.calm.borrow()
    }

    /// No fault begins any more, and those that last are ended.
    pub(super) fn calm_down(&self) {
        self.calm.send_replace(true);
    }

    /// Bytes that histories and the inbox can still take.
    pub(super) fn free(&self) -> Result<u64, Error> {
        let found = rustix::fs::statvfs(&self.plan.folder);
        let found = found.map_err(|cause| Error::because("looking at the disk", &cause))?;
        Ok(found.f_bavail * found.f_frsize)
    }

    /// Lets a fault last, until calm begins.
    pub(super) async fn hold(&self, length: Duration) {
        let mut calm = self.calm.subscribe();
        let _ = timeout(length, calm.wait_for(|calm| *calm)).await;
    }

    /// Nothing of any fault stays in force, whatever became of its own end. What does is found.
    pub(super) async fn heal(&self) {
        let servers = async { self.pair.lock().await.heal().await };
        self.log.find_failure("healing the servers", servers.await);
        self.log.find_failure("healing the sink", self.destination.heal().await);
        self.log.find_failure("resuming", again(UNDO_WITHIN, || self.resume()).await);
        for post in &self.fleet.posts {
            self.log.find_failure("healing a replica", post.heal().await);
        }
    }

    /// Dead messages are tried again, as if they never had been. Gives how many.
    pub(super) async fn revive(&self) -> Result<i64, Error> {
        let database = self.primary.operator(Duration::from_secs(5))?;
        let which = Selection { relay: Some(NAME.to_owned()), ..Selection::default() };
        parked::act(&database, &which, parked::Deed::Retry).await.map_err(|error| Error::because("redriving", &error))
    }

    /// Nothing is paused from now on.
    pub(super) async fn resume(&self) -> Result<(), Error> {
        let database = self.primary.operator(Duration::from_secs(5))?;
        let resumed = pauses::resume(&database, NAME, None).await;
        resumed.map(drop).map_err(|error| Error::because("resuming", &error))
    }

    /// Waits until every lane has dealt with everything, for as long after calm as what the outbox holds by then may take. False
    /// if that was not enough. A server that does not answer is one that has not delivered yet.
    pub(super) async fn drained(&self, calm: Instant) -> bool {
        let mut patience = self.plan.drain_within;
        // The history says so in time, too.
        let end_of = |patience: Duration| calm + patience.saturating_sub(Duration::from_secs(1));
        let asked = timeout_at(end_of(patience), async {
            let (last, held) = loop {
                if let Ok(found) = self.what_is_held().await {
                    break found;
                }
                tokio::time::sleep(LOOK_EVERY).await;
            };
            patience = self.plan.drains(held);
            let passed = async {
                while !self.has_passed(&last).await.unwrap_or_default() {
                    // One may be dead, and its key waits.
                    let _ = self.revive().await;
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            };
            timeout_at(end_of(patience), passed).await
        });
        let drained = matches!(asked.await, Ok(Ok(())));
        if !drained {
            let progress = pace::look(&self.primary, self.plan.source).await;
            self.log.find(format!("not all was delivered {patience:?} after calm: {progress:?}"));
        }
        drained
    }

    /// The last transaction id, and how many messages the outbox holds: what is delivered is among them until its segment is
    /// emptied.
    async fn what_is_held(&self) -> Result<(String, u64), Error> {
        let failed = |cause| Error::because("reading what the outbox holds", &cause);
        let admin = self.primary.admin().await?;
        let sql = format!("select pg_current_xact_id()::text, (select count(*) from {})", self.plan.source.table());
        let row = within(admin.query_one(&sql, &[])).await?;
        let held: i64 = row.try_get(1).map_err(failed)?;
        Ok((row.try_get(0).map_err(failed)?, held.unsigned_abs()))
    }

    /// Whether every lane has dealt with all that was committed when this transaction id was given out.
    async fn has_passed(&self, last: &str) -> Result<bool, Error> {
        let admin = self.primary.admin().await?;
        let row = within(admin.query_one(&self.plan.source.has_passed(last), &[])).await?;
        row.try_get(0).map_err(|cause| Error::because("asking whether all is delivered", &cause))
    }

    /// Tells what the database itself knows to be committed.
    pub(super) async fn tell_ledger(&self) -> Result<usize, Error> {
        let transactions = again(UNDO_WITHIN, || self.ledger()).await?;
        for transactions in transactions.chunks(TOLD_AT_ONCE) {
            self.log.book.tell(Event::Ledger { transactions: transactions.to_vec() });
        }
        Ok(transactions.len())
    }

    async fn ledger(&self) -> Result<Vec<u64>, Error> {
        let admin = self.primary.admin().await?;
        let rows = within(admin.query("select transaction from shop.ledger order by 1", &[])).await?;
        let numbers = rows.iter().map(|row| row.try_get::<_, i64>(0).map(i64::unsigned_abs));
        numbers.collect::<Result<Vec<u64>, _>>().map_err(|cause| Error::because("reading the ledger", &cause))
    }

    /// Copies the servers' logs into the run's folder. Those of old primaries are there.
    pub(super) async fn keep_logs(&self) {
        let mut logs = self.pair.lock().await.logs();
        if let Destination::Inbox { cluster, .. } = self.destination.as_ref() {
            logs.push(("inbox", cluster.lock().await.log()));
        }
        for (name, log) in logs {
            let copied = std::fs::copy(&log, self.plan.folder.join(format!("{name}.log")));
            let copied = copied.map_err(|cause| Error::because(format!("keeping {}", log.display()), &cause));
            self.log.find_failure("keeping logs", copied.map(drop));
        }
    }
}
