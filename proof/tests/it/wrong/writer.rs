//! Messages that are written one transaction at a time, in an order that the test decides.

use std::collections::{BTreeMap, HashMap, HashSet};

use checker::history::{Deed, Event, Message};
use proof::fixture::connect;
use proof::torture::book;
use tokio_postgres::Client;
use uuid::Uuid;

use super::Scene;

/// Which transactions have committed, by the database itself: it goes with their messages.
const LEDGER: &str = "create schema shop; create table shop.ledger (transaction bigint primary key)";

/// What was written.
#[derive(Default)]
pub struct Written {
    transactions: u64,
    /// The number of each key's last message.
    keys: BTreeMap<u32, u64>,
    /// Messages of each transaction that was committed.
    committed: HashMap<u64, Vec<String>>,
}

/// A transaction that is open, and has its id.
pub struct Open {
    client: Client,
    transaction: u64,
    messages: Vec<String>,
}

/// The numbers of transactions that this server knows to be committed.
pub async fn ledger(admin: &Client) -> Vec<u64> {
    let rows = admin.query("select transaction from shop.ledger", &[]).await.unwrap();
    rows.iter().map(|row| u64::try_from(row.get::<_, i64>(0)).unwrap()).collect()
}

pub async fn prepare(admin: &Client) {
    admin.batch_execute(LEDGER).await.unwrap();
}

/// The name of a key.
pub fn name(key: u32) -> String {
    format!("key {key}")
}

impl Written {
    /// Messages that were committed, but for those that a fail-over has lost.
    pub fn expected(&self, ledger: &[u64]) -> HashSet<String> {
        ledger.iter().filter_map(|transaction| self.committed.get(transaction)).flatten().cloned().collect()
    }
}

impl Scene {
    /// Begins a transaction that has its id before any message.
    pub async fn open(&mut self) -> Open {
        self.written.transactions += 1;
        let transaction = self.written.transactions;
        let client = connect(&self.dsn).await.unwrap();
        client.batch_execute(&format!("begin; insert into shop.ledger values ({transaction})")).await.unwrap();
        Open { client, transaction, messages: Vec::new() }
    }

    /// Inserts a message of this key, which nobody else may write before the transaction has ended.
    pub async fn send(&mut self, open: &mut Open, key: u32) {
        self.send_into(open, key, None).await;
    }

    /// The same, into a segment that is not the one in use.
    pub async fn send_into(&mut self, open: &mut Open, key: u32, segment: Option<i16>) {
        let n = self.written.keys.entry(key).or_default();
        *n += 1;
        let id = if self.adopted {
            let sql = "insert into shop.outbox (topic, customer) values ('orders', $1) returning id";
            format!("orders:{}", open.client.query_one(sql, &[&name(key)]).await.unwrap().get::<_, i64>(0))
        } else {
            let id = Uuid::new_v4();
            let sql = "insert into pgbaton.outbox (topic, key, message_id, segment) values ('orders', $1, $2,
                       coalesce($3::smallint, pgbaton.segment_at(now())))";
            open.client.execute(sql, &[&name(key), &id, &segment]).await.unwrap();
            id.to_string()
        };
        let message = Message { id, key: Some(key), n: *n };
        open.messages.push(message.id.clone());
        self.book.tell(Event::Wrote { transaction: open.transaction, messages: vec![message] });
    }

    /// Gives the ids of its messages.
    pub async fn commit(&mut self, open: Open) -> Vec<String> {
        let sent = book::now();
        open.client.batch_execute("commit").await.unwrap();
        self.book.tell(Event::Committed { transaction: open.transaction, sent });
        self.written.committed.insert(open.transaction, open.messages.clone());
        open.messages
    }

    /// The owner of the adopted table sets these back, which were marked.
    pub async fn set_back(&mut self, ids: &[String]) {
        let open = self.open().await;
        let numbers: Vec<i64> = ids.iter().map(|id| id.trim_start_matches("orders:").parse().unwrap()).collect();
        let sql = "update shop.outbox set published_at = null where id = any($1) and published_at is not null";
        assert_eq!(open.client.execute(sql, &[&numbers]).await.unwrap(), numbers.len() as u64);
        self.book.tell(Event::Meddled { transaction: open.transaction, deed: Deed::SetBack, ids: ids.to_vec() });
        self.commit(open).await;
    }

    /// One transaction with so many messages of this key. Gives their ids.
    pub async fn write(&mut self, key: u32, messages: usize) -> Vec<String> {
        let mut open = self.open().await;
        for _ in 0..messages {
            self.send(&mut open, key).await;
        }
        self.commit(open).await
    }
}
