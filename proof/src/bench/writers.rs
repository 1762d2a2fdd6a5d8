//! Writers with an open loop: messages come when they are due, whether or not the ones before them are through.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::figures::{count, rate};
use super::site::Site;
use crate::Error;

/// Messages a second.
pub(super) const RATE: u32 = 600;

/// Enough that none waits for a connection unless the disk takes 50 ms for a commit.
const CONNECTIONS: usize = 32;

const INSERT: &str = "insert into pgbaton.outbox (topic, key, payload_json) values ('orders', $1, $2::text::json)
                      returning message_id::text";

/// A message that was committed.
pub(super) struct Sent {
    pub(super) message: String,
    /// When the answer to its commit was here, in microseconds since 1970.
    pub(super) committed: f64,
}

/// The writers' connections.
pub(super) struct Writers {
    clients: Vec<Arc<Client>>,
    /// Which message is due next, and when.
    due: Arc<Mutex<Due>>,
}

struct Due {
    began: Instant,
    next: u32,
    end: Duration,
}

impl Writers {
    pub(super) async fn connect(site: &Site) -> Result<Writers, Error> {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            clients.push(Arc::new(site.fixture.producer().await?));
        }
        let due = Due { began: Instant::now(), next: 0, end: Duration::ZERO };
        Ok(Writers { clients, due: Arc::new(Mutex::new(due)) })
    }

    /// Writes for so long at [`RATE`], each message in a transaction of its own, and returns all of them.
    pub(super) async fn write(&self, for_so_long: Duration) -> Result<Vec<Sent>, Error> {
        *self.due.lock().await = Due { began: Instant::now(), next: 0, end: for_so_long };
        let mut writers = JoinSet::new();
        for client in &self.clients {
            writers.spawn(write(Arc::clone(client), Arc::clone(&self.due)));
        }
        let mut sent = Vec::new();
        while let Some(written) = writers.join_next().await {
            sent.extend(written.map_err(|cause| Error::because("a writer", &cause))??);
        }
        let reached = rate(count(sent.len()), for_so_long);
        if reached < f64::from(RATE) * 0.95 {
            return Err(Error::new(format!("this machine writes only {reached:.0} messages a second")));
        }
        Ok(sent)
    }
}

async fn write(client: Arc<Client>, due: Arc<Mutex<Due>>) -> Result<Vec<Sent>, Error> {
    let failed = |cause| Error::because("writing a message", &cause);
    let insert = client.prepare(INSERT).await.map_err(failed)?;
    let mut sent = Vec::new();
    loop {
        let number = {
            // Waiting writers queue up here: each takes the next message and waits until it is due.
            let mut due = due.lock().await;
            let at = Duration::from_secs(1) / RATE * due.next;
            if at >= due.end {
                return Ok(sent);
            }
            tokio::time::sleep_until(due.began + at).await;
            due.next += 1;
            due.next
        };
        let key = format!("customer-{}", u64::from(number) * 7_919 % 1_000);
        let payload = format!("{{\"order\": {number}, \"note\": \"{:<160}\"}}", "lorem ipsum");
        let row = client.query_one(&insert, &[&key, &payload]).await.map_err(failed)?;
        sent.push(Sent { message: row.try_get(0).map_err(failed)?, committed: now() });
    }
}

/// Microseconds since 1970, by the clock that the server uses, too.
pub(super) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e6)
}
