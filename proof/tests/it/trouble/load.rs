//! Writers that go on over any trouble, and a ledger beside the outbox: written in the same transaction, it says what was
//! committed, also where nobody can know whether a commit whose answer was lost took place, or segments were emptied.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proof::fixture::connect;
use tokio::task::JoinSet;
use tokio_postgres::Client;

/// Customers of one writer. None waits for another's row.
const CUSTOMERS: u64 = 25;

/// Makes `shop.order(customer)`: it takes the customer's row, counts the order, sends its message and notes it down.
pub async fn prepare(admin: &Client, producer: &str) {
    let sql = format!(
        "create schema shop;
         create table shop.customer (id integer primary key, orders bigint not null) with (fillfactor = 50);
         create table shop.ledger (message_id uuid not null, customer integer not null, n bigint not null);
         create function shop.order(customer integer, size integer default 0) returns void language plpgsql as $$
         declare
           taken bigint;
           sent uuid;
         begin
           insert into shop.customer as c values (customer, 1)
             on conflict (id) do update set orders = c.orders + 1 returning c.orders into taken;
           insert into pgbaton.outbox (topic, key, payload, headers)
             values ('order', customer::text, convert_to(taken::text, 'UTF8'),
                     case when size > 0 then json_build_object('x', repeat('x', size)) end)
             returning message_id into sent;
           insert into shop.ledger values (sent, customer, taken);
         end $$;
         grant usage on schema shop to {producer};
         grant select, insert, update on shop.customer, shop.ledger to {producer};"
    );
    admin.batch_execute(&sql).await.unwrap();
}

/// Writers at work. Dropping this stops them.
pub struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    tasks: JoinSet<Duration>,
}

impl Load {
    /// So many connections, each with a pause between its orders.
    pub fn start(dsn: &str, writers: u64, pause: Duration) -> Load {
        Load::sized(dsn, writers, pause, 0)
    }

    /// The same with messages of about this many bytes.
    pub fn sized(dsn: &str, writers: u64, pause: Duration, size: i32) -> Load {
        let (stop, committed, failed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::default());
        let mut tasks = JoinSet::new();
        for number in 0..writers {
            let writer = Writer {
                dsn: dsn.to_owned(),
                number,
                pause,
                size,
                stop: Arc::clone(&stop),
                committed: Arc::clone(&committed),
                failed: Arc::clone(&failed),
            };
            tasks.spawn(writer.run());
        }
        Load { stop, committed, failed, tasks }
    }

    /// Orders that were committed, as far as the writers know.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Orders that failed, as far as the writers know.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Lets them end, and gives the longest that an order took.
    pub async fn end(mut self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        while let Some(writer) = self.tasks.join_next().await {
            longest = longest.max(writer.unwrap());
        }
        longest
    }
}

struct Writer {
    dsn: String,
    number: u64,
    pause: Duration,
    size: i32,
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Writer {
    async fn run(self) -> Duration {
        let (mut longest, mut count) = (Duration::ZERO, 0);
        while !self.stop.load(Ordering::Relaxed) {
            let Ok(client) = connect(&self.dsn).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            while !self.stop.load(Ordering::Relaxed) {
                let customer = i32::try_from(self.number * CUSTOMERS + count % CUSTOMERS).unwrap();
                count += 1;
                let began = Instant::now();
                match client.execute("select shop.order($1, $2)", &[&customer, &self.size]).await {
                    Ok(_) => self.committed.fetch_add(1, Ordering::Relaxed),
                    Err(_) => self.failed.fetch_add(1, Ordering::Relaxed),
                };
                longest = longest.max(began.elapsed());
                if client.is_closed() {
                    break;
                }
                tokio::time::sleep(self.pause).await;
            }
        }
        longest
    }
}
