//! One transaction of an application: take each customer's row, count the order, insert its message, end.

use std::time::{Duration, SystemTime};

use tokio_postgres::{Client, Statement};

use super::{Outbox, Sent, key_name};
use crate::Error;

/// The lock that keeps a key's messages in commit order: taken before the insert, kept to the commit.
const LOCK: &str = "update shop.customer set orders = orders + 1 where id = $1 returning orders";

const INSERT_NATIVE: &str = "insert into pgbaton.outbox (topic, key, payload_json) \
                             values ('orders', $1, ($2::text)::json) returning id, message_id::text";

const INSERT_CLASSIC: &str = "insert into classic_outbox (topic, key, payload) \
                              values ('orders', $1, ($2::text)::json) returning id, id::text";

/// What a transaction does.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Work {
    pub(super) orders: Vec<Order>,
    /// How long it stays open before its end.
    pub(super) long: Option<Duration>,
    pub(super) end: End,
}

/// One message of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Order {
    pub(super) key: Option<u32>,
    /// Written under a savepoint …
    pub(super) savepoint: bool,
    /// … which is rolled back to.
    pub(super) undone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum End {
    Commit,
    Rollback,
}

/// A connection of a writer with its statements.
pub(super) struct Desk {
    client: Client,
    lock: Statement,
    insert: Statement,
}

impl Desk {
    pub(super) async fn open(client: Client, outbox: Outbox) -> Result<Desk, Error> {
        let insert = match outbox {
            Outbox::Native => INSERT_NATIVE,
            Outbox::Classic => INSERT_CLASSIC,
        };
        let failed = |cause| Error::because("preparing a writer", &cause);
        let lock = client.prepare(LOCK).await.map_err(failed)?;
        let insert = client.prepare(insert).await.map_err(failed)?;
        Ok(Desk { client, lock, insert })
    }

    /// Runs it. What it returns is committed: nothing, if it was to be rolled back.
    pub(super) async fn carry_out(&self, work: &Work) -> Result<Vec<Sent>, Error> {
        let failed = |cause| Error::because("a writer's transaction", &cause);
        let mut sent = Vec::with_capacity(work.orders.len());
        let mut begin = Some(self.client.batch_execute("begin isolation level read committed"));
        for order in &work.orders {
            let written = match begin.take() {
                // In one round trip: what is polled first is sent first.
                Some(begin) => tokio::try_join!(biased; begin, self.place(*order)).map(|(_, written)| written),
                None => self.place(*order).await,
            };
            let written = written.map_err(failed)?;
            if !order.undone {
                sent.push(written);
            }
        }
        if let Some(long) = work.long {
            tokio::time::sleep(long).await;
        }
        let committed_at = SystemTime::now();
        match work.end {
            End::Commit => self.client.batch_execute("commit").await.map_err(failed)?,
            End::Rollback => {
                self.client.batch_execute("rollback").await.map_err(failed)?;
                sent.clear();
            }
        }
        for written in &mut sent {
            written.committed_at = committed_at;
        }
        Ok(sent)
    }

    async fn place(&self, order: Order) -> Result<Sent, tokio_postgres::Error> {
        if order.savepoint {
            self.client.batch_execute("savepoint last_order").await?;
        }
        let name = order.key.map(key_name);
        let n = match &name {
            Some(name) => self.client.query_one(&self.lock, &[name]).await?.try_get(0)?,
            None => 0,
        };
        let row = self.client.query_one(&self.insert, &[&name, &payload(order.key, n)]).await?;
        if order.savepoint {
            let end = if order.undone { "rollback to savepoint last_order" } else { "release savepoint last_order" };
            self.client.batch_execute(end).await?;
        }
        let (id, message_id) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Sent { id, message_id, key: order.key, n, committed_at: SystemTime::UNIX_EPOCH })
    }
}

pub(super) fn payload(key: Option<u32>, n: i64) -> String {
    match key {
        Some(key) => format!(r#"{{"key":"{}","n":{n}}}"#, key_name(key)),
        None => r#"{"key":null}"#.to_owned(),
    }
}
