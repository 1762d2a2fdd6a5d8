//! Wakes the reader when the database tells of new messages: only with `wake = true`.
//!
//! Polling alone suffices; this only shortens the wait after a quiet time. It needs a direct connection, since LISTEN
//! does not survive a transaction pooler, and a trigger that notifies (`pgbaton wake on`), which makes all transactions
//! that insert messages commit one after the other.

use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use crate::connection::Database;
use crate::retry::Backoff;

/// Listens until dropped. One for each relay that asks for it.
pub(crate) async fn run(relay: Arc<Relay>, database: Database) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    loop {
        let heard = || {
            relay.flows.wake.notify_one();
        };
        // Returns only with an error. What was sent while nobody listened is found by the next poll.
        let Err(error) = database.listen("pgbaton", heard, || backoff.reset()).await;
        tracing::debug!(relay = %relay.spec.name, %error, "not listening; polling goes on");
        heard();
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}
