//! Wakes the reader when the database tells of new messages: only with `wake = true`.
//!
//! Polling alone suffices; this only shortens the wait after a quiet time. It needs a direct connection, since LISTEN
//! does not survive a transaction pooler, and a trigger that notifies (`pgbaton wake on`), which makes all transactions
//! that insert messages commit one after the other. Whether words arrive at all is tried out once it listens.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Relay;
use crate::connection::Database;
use crate::error::Error;
use crate::retry::Backoff;

/// What `pgbaton wake on` has the database call.
const CHANNEL: &str = "pgbaton";

/// A word takes a moment; this long only where it never arrives.
const HEARD_WITHIN: Duration = Duration::from_secs(5);

/// Listens until dropped. One for each relay that asks for it.
pub(crate) async fn run(relay: Arc<Relay>, database: Database) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let told = AtomicBool::new(false);
    loop {
        let (listens, word) = (Notify::new(), Notify::new());
        let heard = || {
            word.notify_one();
            relay.flows.wake.notify_one();
        };
        let listening = || {
            backoff.reset();
            listens.notify_one();
        };
        // Returns only with an error. What was sent while nobody listened is found by the next poll.
        let error = tokio::select! {
            Err(error) = database.listen(CHANNEL, heard, listening) => error,
            never = try_out(&relay, &database, &listens, &word, &told) => match never {},
        };
        tracing::debug!(relay = %relay.spec.name, %error, "not listening; polling goes on");
        relay.flows.wake.notify_one();
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}

/// Says a word by another connection, and tells once if it does not arrive.
async fn try_out(relay: &Relay, database: &Database, listens: &Notify, word: &Notify, told: &AtomicBool) -> Infallible {
    listens.notified().await;
    match say(database).await {
        // Then the connection that listens has the same trouble, or the next one is tried out.
        Err(error) => tracing::debug!(relay = %relay.spec.name, %error, "wake could not be tried out"),
        Ok(()) => match tokio::time::timeout(HEARD_WITHIN, word.notified()).await {
            Ok(()) => tracing::debug!(relay = %relay.spec.name, "listening: notifications arrive"),
            Err(_) if told.swap(true, Ordering::Relaxed) => {}
            Err(_) => tracing::warn!(
                relay = %relay.spec.name,
                "wake has no effect: notifications do not arrive, as behind a transaction pooler; polling goes on"
            ),
        },
    }
    std::future::pending().await
}

async fn say(database: &Database) -> Result<(), Error> {
    database.connect().await?.script(&format!("notify {CHANNEL}")).await
}
