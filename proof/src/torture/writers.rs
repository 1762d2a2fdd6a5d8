//! Writers that serialise on keys, with every kind of transaction, and that survive every fault by connecting again to
//! whichever server is the primary.
//!
//! A key is a row of `shop.key` with a count. Whoever writes a message of it takes the row first and keeps it to the commit:
//! what the third guarantee asks of an application. So `n`, which the history tells, is the key's commit order. Each transaction
//! also inserts its number into `shop.ledger`: the database's own word of what is committed, whatever became of the answers.

mod desk;
mod kind;
mod meddler;
mod phases;
mod work;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use checker::history::Event;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;

use super::book::Book;
use super::log::lock;
use super::outbox::SourceKind;
use super::pace::Pace;
use super::plan::{KEYS, Plan};
use super::primary::{Primary, again, within};
use crate::Error;
use crate::fixture::PRODUCER;
use desk::Desk;
use kind::Kind;
pub(super) use meddler::Meddled;
use work::{End, Work};

/// Tasks of each kind.
const TASKS: [(Kind, u64); 4] = [(Kind::Small, 8), (Kind::Rows, 2), (Kind::Bulk, 1), (Kind::Patient, 4)];
/// A transaction that takes longer than it stays open, and this, meets a server that stands still.
const PATIENCE: Duration = Duration::from_secs(90);
const SWEEP_EVERY: Duration = Duration::from_secs(3);

/// What is left of writers.
const LEFT: &str = "
    select (select count(*) from pg_prepared_xacts where database = current_database())
         + (select count(*) from pg_stat_activity where datname = current_database() and usename = $1)";

/// How a transaction ended, as far as its writer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// With so many messages.
    Committed(u64),
    /// With so many messages, unless a crash undoes it: only the ledger knows.
    CommittedLazily(u64),
    RolledBack,
    /// Only the ledger knows.
    Unsure,
    /// The first of two phases is over.
    Prepared {
        commit: bool,
        written: u64,
    },
}

/// What was written so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Written {
    /// Messages whose commit was confirmed.
    pub(super) messages: u64,
    /// Transactions whose commit was confirmed.
    pub(super) committed: u64,
    pub(super) rolled_back: u64,
    /// Transactions that failed, or whose commit was not confirmed: some of them took place all the same.
    pub(super) unsure: u64,
    pub(super) bulk_loads: u64,
    /// What the owner of an adopted table did to its rows.
    pub(super) meddled: Meddled,
}

struct Shared {
    source: SourceKind,
    book: Book,
    primary: Primary,
    pace: Pace,
    stop: watch::Receiver<bool>,
    next: AtomicU64,
    /// Prepared transactions that somebody stays with.
    living: Mutex<HashSet<u64>>,
    written: Mutex<Written>,
    /// Messages, for the pace: those of lazy commits count, too.
    committed: Arc<AtomicU64>,
    /// What a writer last met.
    trouble: Mutex<String>,
}

/// Writers at work.
pub(super) struct Writers {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// Makes the keys, the ledger, and the outbox if it is not pgbaton's own.
pub(super) async fn prepare(admin: &Client, source: SourceKind) -> Result<(), Error> {
    let sql = format!(
        "{}
         insert into shop.key select n from generate_series(0, {KEYS} - 1) n;
         grant usage on schema shop to {PRODUCER};
         grant select, update on shop.key to {PRODUCER};
         grant select, insert on shop.ledger to {PRODUCER};
         {}",
        desk::SCHEMA,
        source.ddl()
    );
    admin.batch_execute(&sql).await.map_err(|cause| Error::because("making the keys", &cause))
}

impl Writers {
    pub(super) fn start(plan: &Plan, book: Book, primary: Primary, pace: Pace, committed: Arc<AtomicU64>) -> Writers {
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            source: plan.source,
            book,
            primary,
            pace,
            stop: stopped,
            next: AtomicU64::new(1),
            living: Mutex::default(),
            written: Mutex::default(),
            committed,
            trouble: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for (kind, count) in TASKS {
            for number in 0..count {
                let task = Task { kind, number, plan: plan.clone() };
                tasks.spawn(task.write(Arc::clone(&shared)));
            }
        }
        for deed in plan.source.deeds() {
            tasks.spawn(meddler::meddle(*deed, plan.clone(), Arc::clone(&shared)));
        }
        tasks.spawn(sweep(Arc::clone(&shared)));
        Writers { shared, stop, tasks }
    }

    pub(super) fn written(&self) -> Written {
        *lock(&self.shared.written)
    }

    /// What a writer last met.
    pub(super) fn trouble(&self) -> String {
        lock(&self.shared.trouble).clone()
    }

    /// Ends them: what is open is ended soon, and what is prepared is ended for good. What they have written is given in any
    /// case, and with it what went wrong.
    pub(super) async fn stop(mut self) -> (Written, Result<(), Error>) {
        self.stop.send_replace(true);
        let mut ended = Ok(());
        while let Some(task) = self.tasks.join_next().await {
            ended = ended.and(task.map_err(|cause| Error::because("a writer", &cause)));
        }
        let rest = self.at_rest().await;
        (self.written(), ended.and(self.shared.book.whole()).and(rest))
    }

    /// Returns once no backend of a writer is left, and nothing is prepared.
    async fn at_rest(&self) -> Result<(), Error> {
        again(PATIENCE, || async {
            phases::sweep(&self.shared.primary, &HashSet::new()).await?;
            let admin = self.shared.primary.admin().await?;
            match within(admin.query_one(LEFT, &[&PRODUCER])).await?.try_get::<_, i64>(0) {
                Ok(0) => Ok(()),
                _ => Err(Error::new("writers have ended, and their transactions have not")),
            }
        })
        .await
    }
}

impl Shared {
    /// Waits, but not once writers are to end.
    async fn rest(&self, length: Duration) {
        if !length.is_zero() {
            let mut stop = self.stop.clone();
            let _ = timeout(length, stop.wait_for(|stop| *stop)).await;
        }
    }

    fn stopped(&self) -> bool {
        *self.stop.borrow()
    }
}

/// One of the writers of a kind.
struct Task {
    kind: Kind,
    number: u64,
    plan: Plan,
}

impl Task {
    /// Transaction after transaction, over as many connections as it takes. What they are follows from the seed alone: how
    /// often it has to wait for leave, or for a server, changes nothing but the pauses.
    async fn write(self, shared: Arc<Shared>) {
        let kind = self.kind;
        let (mut draws, mut pauses) = (self.random("work"), self.random("pauses"));
        let lock_timeout = if kind == Kind::Small { Duration::from_millis(500) } else { Duration::from_secs(10) };
        let mut desk = None;
        while !shared.stopped() {
            let work = kind.draw(&self.plan, &mut draws);
            let Some(open) = self.desk(desk, lock_timeout, &shared, &mut pauses).await else { return };
            desk = attempt(&shared, open, kind, &work).await;
        }
    }

    fn random(&self, purpose: &str) -> StdRng {
        self.plan.random(&format!("{:?} {purpose}", self.kind), self.number)
    }

    /// Pauses, waits for leave, and gives a connection that works, this one if it does. None once writers are to end.
    async fn desk(
        &self,
        mut desk: Option<Desk>,
        lock_timeout: Duration,
        shared: &Shared,
        pauses: &mut StdRng,
    ) -> Option<Desk> {
        while !shared.stopped() {
            shared.rest(self.kind.pause(&self.plan, &shared.pace, pauses)).await;
            if !shared.pace.allows(self.kind.pressure(), &shared.stop).await {
                continue;
            }
            if let Some(open) = desk.take_if(|desk| !desk.client.is_closed()) {
                return Some(open);
            }
            let opened = async { Desk::open(shared.primary.producer().await?, shared.source, lock_timeout).await };
            match opened.await {
                Ok(opened) => return Some(opened),
                Err(error) => {
                    shared.met(&error.to_string());
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
        None
    }
}

/// Gives the connection back if it can be used again.
async fn attempt(shared: &Shared, desk: Desk, kind: Kind, work: &Work) -> Option<Desk> {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let prepares = match work {
        Work::Whole(whole) => match whole.end {
            End::Prepare { commit, .. } => Some(commit),
            _ => None,
        },
        Work::Bare(_) => None,
    };
    if prepares.is_some() {
        lock(&shared.living).insert(number);
    }
    let within = PATIENCE + work.open();
    let (ended, desk) = match timeout(within, desk.carry_out(number, work, shared)).await {
        Ok(Ok(ended)) => (ended, Some(desk)),
        Ok(Err(error)) => {
            shared.met(&error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string));
            let usable = !desk.client.is_closed()
                && timeout(PATIENCE, desk.client.batch_execute("rollback")).await.is_ok_and(|done| done.is_ok());
            // Of one that may have been prepared, its second phase says so.
            if prepares.is_none() && (usable || desk.client.is_closed()) {
                shared.book.tell(Event::Over { transaction: number });
            }
            (Ended::Unsure, usable.then_some(desk))
        }
        Err(_) => {
            shared.met("no answer");
            (Ended::Unsure, None)
        }
    };
    let ended = match (ended, prepares) {
        (Ended::Prepared { commit, written }, _) => phases::end(number, commit, written, shared).await,
        // Whether it was prepared nobody knows: its end says so.
        (Ended::Unsure, Some(commit)) => phases::end(number, commit, 0, shared).await,
        (ended, _) => ended,
    };
    lock(&shared.living).remove(&number);
    if let Ended::Committed(messages) | Ended::CommittedLazily(messages) = ended {
        shared.committed.fetch_add(messages, Ordering::Relaxed);
    }
    lock(&shared.written).count(ended, kind);
    desk
}

impl Written {
    fn count(&mut self, ended: Ended, kind: Kind) {
        match ended {
            Ended::Committed(messages) => {
                self.messages += messages;
                self.committed += 1;
                self.bulk_loads += u64::from(kind == Kind::Bulk);
            }
            Ended::RolledBack => self.rolled_back += 1,
            Ended::CommittedLazily(_) | Ended::Unsure | Ended::Prepared { .. } => self.unsure += 1,
        }
    }
}

impl Shared {
    fn met(&self, trouble: &str) {
        // Hints and details follow on lines of their own.
        trouble.lines().next().unwrap_or_default().clone_into(&mut lock(&self.trouble));
    }
}

impl Work {
    /// How long it rests in all.
    fn open(&self) -> Duration {
        match self {
            Work::Bare(_) => Duration::ZERO,
            Work::Whole(whole) => {
                let wait = if let End::Prepare { wait, .. } = whole.end { wait } else { Duration::ZERO };
                // A bulk load takes a minute for some hundred thousand rows on a slow machine.
                let rows = u32::try_from(whole.pieces.len()).unwrap_or(u32::MAX);
                whole.early.unwrap_or_default() + whole.open + wait + Duration::from_secs(2) * rows
            }
        }
    }
}

async fn sweep(shared: Arc<Shared>) {
    while !shared.stopped() {
        shared.rest(SWEEP_EVERY).await;
        let living = lock(&shared.living).clone();
        if let Err(error) = phases::sweep(&shared.primary, &living).await.and(prune(&shared).await) {
            shared.met(&error.to_string());
        }
    }
}

async fn prune(shared: &Shared) -> Result<(), Error> {
    let Some(sql) = shared.source.prune() else { return Ok(()) };
    let admin = shared.primary.admin().await?;
    within(admin.batch_execute(sql)).await
}
