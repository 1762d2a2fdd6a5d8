//! All that a run consists of, and its end: calm, all delivered, all told.

use std::sync::Arc;
use std::time::Duration;

use checker::history::{Event, Run};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::book::Book;
use super::destination::Destination;
use super::fleet::{Common, Fleet};
use super::log::Log;
use super::pace;
use super::pair::{Cannot, Pair};
use super::plan::{BATCH_MESSAGES, IN_FLIGHT, Plan, SinkKind, TTL, TTL_MS};
use super::primary::{Primary, within};
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
        }));
        let pair = Pair::start(plan.seed).await?;
        let primary = pair.followed();
        let database = primary.operator(Duration::from_secs(30))?;
        let retention = Some(Duration::ZERO);
        pgbaton::control::segments::set(&database, Some(SEGMENTS), Some(plan.segment), retention, TTL * 10)
            .await
            .map_err(|cause| Error::because("setting the ring of segments", &cause))?;
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

    /// Waits until every lane has dealt with everything. False if nothing more was dealt with for as long as all of it may take,
    /// or if that took very much longer.
    pub(super) async fn drained(&self) -> Result<bool, Error> {
        let admin = self.primary.admin().await?;
        let row = within(admin.query_one("select pg_current_xact_id()::text", &[])).await?;
        let last: String = row.try_get(0).map_err(|cause| Error::because("reading a transaction id", &cause))?;
        let sql = format!(
            "select count(*) = (select count(*) from pgbaton.lane) from pgbaton.newest n
             where pg_snapshot_xmin(n.consumed) > '{last}'::xid8"
        );
        let began = Instant::now();
        let (mut moved, mut before) = (began, (0, 0));
        loop {
            let admin = self.primary.admin().await?;
            let row = within(admin.query_one(&sql, &[])).await?;
            if row.try_get::<_, bool>(0).unwrap_or_default() {
                return Ok(true);
            }
            let now = (pace::look(&self.primary).await?.passed, self.destination.fill().await?);
            if now != before {
                (moved, before) = (Instant::now(), now);
            }
            let within = self.plan.drain_within;
            if moved.elapsed() > within || began.elapsed() > within * 4 {
                return Ok(false);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Tells what the database itself knows to be committed.
    pub(super) async fn tell_ledger(&self) -> Result<usize, Error> {
        let failed = |cause| Error::because("reading the ledger", &cause);
        let admin = self.primary.admin().await?;
        let rows = within(admin.query("select transaction from shop.ledger order by 1", &[])).await?;
        let numbers = rows.iter().map(|row| row.try_get::<_, i64>(0).map(i64::unsigned_abs));
        let transactions = numbers.collect::<Result<Vec<u64>, _>>().map_err(failed)?;
        for transactions in transactions.chunks(TOLD_AT_ONCE) {
            self.log.book.tell(Event::Ledger { transactions: transactions.to_vec() });
        }
        Ok(transactions.len())
    }

    /// Copies the servers' logs into the run's folder.
    pub(super) async fn keep_logs(&self) -> Result<(), Error> {
        let mut logs = self.pair.lock().await.logs();
        if let Destination::Inbox { cluster, .. } = self.destination.as_ref() {
            logs.push(cluster.lock().await.log());
        }
        for (name, log) in ["primary", "standby", "inbox"].iter().zip(logs) {
            let to = self.plan.folder.join(format!("{name}.log"));
            std::fs::copy(&log, &to).map_err(|cause| Error::because(format!("keeping {}", log.display()), &cause))?;
        }
        Ok(())
    }
}
