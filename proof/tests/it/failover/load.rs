//! A steady load of writers that follow the primary, and the books they keep beside the outbox: what the books of the new
//! primary hold was committed, and nothing else.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use proof::fixture::{Fixture, connect};
use proof::servers::Cluster;
use proof::writers::{Arrival, Sent, Written};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::hand::SOON;

pub const KEYS: u32 = 24;
const TASKS: u32 = 4;
/// Of each task, between two messages.
const PAUSE: Duration = Duration::from_millis(10);
/// A statement that takes longer meets a server that stands still.
const PATIENCE: Duration = Duration::from_secs(5);

/// Each message takes its customer's row first, and goes into the books by the same transaction.
const BOOKS: &str = r#"
    create schema load;
    create table load.customer (id text primary key, orders bigint not null default 0);
    create table load.ledger (message_id text, key integer, n bigint, id bigint, xid xid8);
    create function load.place(number integer) returns void language plpgsql as $$
    declare
      name text := 'customer-' || lpad(number::text, 4, '0');
      serial bigint;
      message record;
    begin
      update load.customer set orders = orders + 1 where id = name returning orders into serial;
      insert into pgbaton.outbox (topic, key, payload_json)
        values ('orders', name, format('{"key":"%s","n":%s}', name, serial)::json)
        returning id, xid, message_id into message;
      insert into load.ledger values (message.message_id, number, serial, message.id, message.xid);
    end $$;"#;

/// Writers at work until they are stopped. Trouble with the server makes them connect again.
pub struct Load {
    stop: Arc<AtomicBool>,
    committed: Arc<AtomicU64>,
    /// What a writer last met.
    trouble: Arc<Mutex<String>>,
    tasks: JoinSet<()>,
}

/// Makes the books.
pub async fn prepare(admin: &Client) {
    let customers = format!(
        "{BOOKS} insert into load.customer select 'customer-' || lpad(n::text, 4, '0') from generate_series(0, {KEYS} - 1) n"
    );
    admin.batch_execute(&customers).await.unwrap();
}

impl Load {
    /// Each task has keys of its own, in turns.
    pub fn start(dsn: &str) -> Load {
        let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let trouble: Arc<Mutex<String>> = Arc::default();
        let mut tasks = JoinSet::new();
        for first in 0..TASKS {
            let dsn = dsn.to_owned();
            let (stop, committed, trouble) = (Arc::clone(&stop), Arc::clone(&committed), Arc::clone(&trouble));
            tasks.spawn(async move {
                let mut keys = (first..KEYS).step_by(TASKS as usize).cycle();
                while !stop.load(Ordering::Relaxed) {
                    if let Err(met) = write(&dsn, &mut keys, &stop, &committed).await {
                        *trouble.lock().unwrap() = met;
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            });
        }
        Load { stop, committed, trouble, tasks }
    }

    /// How many commits were confirmed.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Waits for so many confirmed commits more.
    pub async fn goes_on(&self, by: u64) {
        let before = self.committed();
        let deadline = tokio::time::Instant::now() + SOON;
        while self.committed() < before + by {
            assert!(tokio::time::Instant::now() < deadline, "writers do not commit: {}", self.trouble.lock().unwrap());
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// Until it is to stop, or meets trouble: nobody answers, or only a standby does.
async fn write(
    dsn: &str,
    keys: &mut impl Iterator<Item = u32>,
    stop: &AtomicBool,
    committed: &AtomicU64,
) -> Result<(), String> {
    let late = |_| "no answer".to_owned();
    let client = timeout(PATIENCE, connect(dsn)).await.map_err(late)?.map_err(|error| error.to_string())?;
    while !stop.load(Ordering::Relaxed) {
        let place = format!("select load.place({})", keys.next().unwrap());
        let placed = timeout(PATIENCE, client.simple_query(&place)).await.map_err(late)?;
        placed.map_err(|error| format!("{error:?}"))?;
        committed.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// What this server's books hold.
pub async fn books(server: &Cluster, database: &str) -> Written {
    let admin = server.admin(database).await.unwrap();
    let rows = admin.query("select id, message_id, key, n from load.ledger", &[]).await.unwrap();
    let sent = |row: &tokio_postgres::Row| Sent {
        id: row.get(0),
        message_id: row.get(1),
        key: Some(u32::try_from(row.get::<_, i32>(2)).unwrap()),
        n: row.get(3),
        committed_at: SystemTime::UNIX_EPOCH,
    };
    Written { sent: rows.iter().map(sent).collect() }
}

/// What the inbox holds, in the order of arrival.
pub async fn inbox(destination: &Fixture) -> Vec<Arrival> {
    let admin = destination.admin().await.unwrap();
    let rows = admin.query("select message_id, payload_json::text from app.inbox order by seq", &[]).await.unwrap();
    rows.iter().map(|row| Arrival { message_id: row.get(0), payload: row.get(1) }).collect()
}

/// How long after this moment messages of every key arrived that were inserted after it: then all is as before.
pub async fn time_to_normal(destination: &Fixture, since: SystemTime) -> Duration {
    let admin = destination.admin().await.unwrap();
    let sql = "select count(*), extract(epoch from max(first))::float8 from
               (select min(received_at) as first from app.inbox where created_at > $1 group by key) f";
    let row = admin.query_one(sql, &[&since]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), i64::from(KEYS), "not every key is delivered again");
    let normal = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(row.get(1));
    normal.duration_since(since).unwrap()
}
