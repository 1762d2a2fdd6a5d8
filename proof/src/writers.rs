//! Concurrent writers whose commits have a known order for each key, so that lost, repeated and reordered messages
//! can be counted afterwards.
//!
//! An order of a customer takes the customer's row with `update … returning` before it inserts its message, and keeps
//! that lock to its commit: what the design's third guarantee asks of an application. The row counts the customer's
//! orders, so the payload `{"key":…,"n":…}` of the n-th committed message of a key says n; a rollback takes the count
//! back as well.
//!
//! ```no_run
//! # async fn example(fixture: &proof::fixture::Fixture) -> Result<(), proof::Error> {
//! use proof::writers::{self, Outbox, Plan, Writers};
//!
//! writers::prepare(&fixture.admin().await?, proof::fixture::PRODUCER, 100).await?;
//! let plan = Plan { messages: 10_000, keys: 100, rate: Some(2_000), ..Plan::default() };
//! let writers = Writers::start(fixture.producer_dsn(), plan).await?;
//! let written = writers.finish().await?; // or kill something meanwhile; see `Writers::progress`
//! assert_eq!(written.sent.len(), 10_000);
//! # Ok(())
//! # }
//! ```

mod transaction;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};

use crate::Error;
use transaction::{Desk, End, Order, Work};
pub use verdict::{Arrival, Verdict};

/// Where the messages of a transaction go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outbox {
    /// `pgbaton.outbox`.
    Native,
    /// The table of the [`classic`](crate::classic) relay.
    Classic,
}

/// How likely a transaction is to be of a kind. Kinds combine.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Two to five messages of as many keys, rather than one.
    pub several: f64,
    /// Rolled back after its inserts.
    pub rolled_back: f64,
    /// Kept open with all its locks for [`Mix::long_for`] before its end.
    pub long: f64,
    /// How long that is.
    pub long_for: Duration,
    /// A message without a key; for each message.
    pub null_key: f64,
    /// The last message is written under a savepoint, which every other time is rolled back to.
    pub savepoint: f64,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            several: 0.2,
            rolled_back: 0.05,
            long: 0.0005,
            long_for: Duration::from_secs(1),
            null_key: 0.02,
            savepoint: 0.05,
        }
    }
}

/// What is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How many messages are to be committed, exactly.
    pub messages: u64,
    /// How many keys there are; [`prepare`] has made at least as many.
    pub keys: u32,
    /// How many connections write at the same time.
    pub tasks: u64,
    /// Two runs with one seed try the same transactions; which of them waits for which differs.
    pub seed: u64,
    /// Messages a second, rolled back ones included. Open loop: a transaction starts when it is due, however long the
    /// ones before took, as far as there is a free task. `None`: as fast as possible.
    pub rate: Option<u32>,
    /// What kinds of transactions there are.
    pub mix: Mix,
    /// Where the messages go.
    pub outbox: Outbox,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            messages: 10_000,
            keys: 100,
            tasks: 16,
            seed: 1,
            rate: None,
            mix: Mix::default(),
            outbox: Outbox::Native,
        }
    }
}

/// One message that was committed.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Its number in the outbox.
    pub id: i64,
    /// What receivers know it by.
    pub message_id: String,
    /// The number of its key, see [`key_name`]; `None` if it has none.
    pub key: Option<u32>,
    /// Which of its key's messages it is, from 1 on, in the order of their commits. Without a key: 0.
    pub n: i64,
    /// When its commit was sent, by this machine's clock.
    pub committed_at: SystemTime,
}

impl Sent {
    /// The payload, byte for byte.
    pub fn payload(&self) -> String {
        transaction::payload(self.key, self.n)
    }
}

/// Everything that was committed, in no particular order.
#[derive(Debug, Default)]
pub struct Written {
    /// One entry for each message.
    pub sent: Vec<Sent>,
}

impl Written {
    /// How many messages of each key were committed, by the key's number.
    pub fn per_key(&self, keys: u32) -> Vec<i64> {
        let mut counts = vec![0; usize::try_from(keys).unwrap_or_default()];
        for sent in &self.sent {
            if let Some(count) = sent.key.and_then(|key| counts.get_mut(usize::try_from(key).ok()?)) {
                *count = sent.n.max(*count);
            }
        }
        counts
    }
}

/// How far the writers are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Messages that were committed.
    pub committed: u64,
    /// Messages that were inserted and rolled back.
    pub rolled_back: u64,
    /// Transactions that were kept open for long.
    pub long: u64,
    /// Whether all tasks have ended.
    pub finished: bool,
}

/// Writers at work. Dropping this stops them; what they have open is rolled back.
#[derive(Debug)]
pub struct Writers {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<Vec<Sent>, Error>>,
}

#[derive(Debug)]
struct Shared {
    plan: Plan,
    started: Instant,
    /// Messages that no task has taken on yet.
    left: AtomicU64,
    /// Messages taken on so far, rolled back ones included: what the rate counts by.
    taken: AtomicU64,
    committed: AtomicU64,
    rolled_back: AtomicU64,
    long: AtomicU64,
    running: AtomicU64,
    stop: AtomicBool,
}

/// Makes the table of the keys, `shop.customer`, and lets `role` use it. Needs the rights to do so.
pub async fn prepare(admin: &Client, role: &str, keys: u32) -> Result<(), Error> {
    // Room on each page, so that an update stays there and touches no index.
    let sql = format!(
        "create schema shop;
         create table shop.customer (id text primary key, orders bigint not null default 0) with (fillfactor = 50);
         insert into shop.customer select 'customer-' || lpad(n::text, 4, '0') from generate_series(0, {keys} - 1) n;
         grant usage on schema shop to \"{role}\";
         grant select, update on shop.customer to \"{role}\";"
    );
    admin.batch_execute(&sql).await.map_err(|cause| Error::because("making the customers", &cause))
}

/// The key of this number.
pub fn key_name(number: u32) -> String {
    format!("customer-{number:04}")
}

impl Writers {
    /// Connects all tasks and lets them start.
    pub async fn start(dsn: &str, plan: Plan) -> Result<Writers, Error> {
        let mut desks = Vec::new();
        for _ in 0..plan.tasks {
            desks.push(Desk::open(connect(dsn).await?, plan.outbox).await?);
        }
        let shared = Arc::new(Shared {
            plan,
            started: Instant::now(),
            left: AtomicU64::new(plan.messages),
            taken: AtomicU64::new(0),
            committed: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
            long: AtomicU64::new(0),
            running: AtomicU64::new(plan.tasks),
            stop: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        for (number, desk) in (0u64..).zip(desks) {
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                let written = write(&shared, &desk, StdRng::seed_from_u64(plan.seed ^ (number << 32))).await;
                shared.running.fetch_sub(1, Ordering::Relaxed);
                written
            });
        }
        Ok(Writers { shared, tasks })
    }

    /// How far they are.
    pub fn progress(&self) -> Progress {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Progress {
            committed: read(&self.shared.committed),
            rolled_back: read(&self.shared.rolled_back),
            long: read(&self.shared.long),
            finished: read(&self.shared.running) == 0,
        }
    }

    /// Lets each task end with the transaction it is in, although messages are left.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for all tasks. If one failed, its error; the others are stopped then.
    pub async fn finish(mut self) -> Result<Written, Error> {
        let mut written = Written::default();
        while let Some(ended) = self.tasks.join_next().await {
            written.sent.extend(ended.map_err(|cause| Error::because("a writer", &cause))??);
        }
        Ok(written)
    }
}

/// One task: transaction after transaction until no message is left.
async fn write(shared: &Shared, desk: &Desk, mut random: StdRng) -> Result<Vec<Sent>, Error> {
    let mut sent = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let wish = if random.random_bool(shared.plan.mix.several) { random.random_range(2..=5) } else { 1 };
        let Some(size) = shared.take(wish) else { break };
        shared.until_due(size).await;
        let work = draw(&shared.plan, size, &mut random);
        let inserted = work.orders.iter().filter(|order| !order.undone).count();
        let done = desk.carry_out(&work).await?;
        if work.long.is_some() {
            shared.long.fetch_add(1, Ordering::Relaxed);
        }
        let kept = u64::try_from(done.len()).unwrap_or_default();
        let undone = size - kept;
        debug_assert!(done.is_empty() || done.len() == inserted);
        shared.committed.fetch_add(kept, Ordering::Relaxed);
        shared.rolled_back.fetch_add(undone, Ordering::Relaxed);
        // Whoever rolls back goes on, so what it gives back will be written even if all others have ended.
        shared.left.fetch_add(undone, Ordering::Relaxed);
        sent.extend(done);
    }
    Ok(sent)
}

impl Shared {
    /// Takes on up to `wish` messages; `None` when none are left.
    fn take(&self, wish: u64) -> Option<u64> {
        let less = |left: u64| (left > 0).then(|| left - wish.min(left));
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok().map(|left| wish.min(left))
    }

    async fn until_due(&self, size: u64) {
        let before = self.taken.fetch_add(size, Ordering::Relaxed);
        let Some(rate) = self.plan.rate else { return };
        let micros = before.saturating_mul(1_000_000) / u64::from(rate.max(1));
        tokio::time::sleep_until(self.started + Duration::from_micros(micros)).await;
    }
}

/// Decides what a transaction of so many messages is like.
fn draw(plan: &Plan, size: u64, random: &mut StdRng) -> Work {
    let mix = &plan.mix;
    let mut orders: Vec<Order> = (0..size)
        .map(|_| {
            let key = (!random.random_bool(mix.null_key)).then(|| random.random_range(0..plan.keys));
            Order { key, savepoint: false, undone: false }
        })
        .collect();
    // In one order of keys, or transactions would wait for each other in a circle.
    orders.sort_by_key(|order| order.key);
    if random.random_bool(mix.savepoint)
        && let Some(last) = orders.last_mut()
    {
        *last = Order { savepoint: true, undone: random.random_bool(0.5), ..*last };
    }
    let end = if random.random_bool(mix.rolled_back) { End::Rollback } else { End::Commit };
    Work { orders, long: random.random_bool(mix.long).then_some(mix.long_for), end }
}

/// A connection that does not show its DSN, which may hold a password, when it fails.
pub(crate) async fn connect(dsn: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls)
        .await
        .map_err(|cause| Error::because("connecting to the server", &cause))?;
    // How a connection ended shows in the client's next call, too.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_lock_keys_in_one_order_and_depend_on_the_seed_alone() {
        let plan = Plan { mix: Mix { savepoint: 0.5, ..Mix::default() }, ..Plan::default() };
        let draws = |seed| {
            let mut random = StdRng::seed_from_u64(seed);
            (0..1_000).map(|_| draw(&plan, 5, &mut random)).collect::<Vec<Work>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        for work in draws(7) {
            assert!(work.orders.is_sorted_by_key(|order| order.key));
            assert!(work.orders.iter().rev().skip(1).all(|order| !order.savepoint));
        }
    }
}
