//! Renewing the lease: its own task and its own connection, so that no work can starve it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::look;
use crate::clock::{self, SharedLease};
use crate::connection::{Database, Slot};
use crate::lane::ReplicaId;
use crate::lease::LeaseStep;
use crate::position::Incarnation;

/// A renewal that failed is tried again after this.
const RENEW_AGAIN: Duration = Duration::from_millis(100);

/// Renews the lease until it is over.
pub(super) async fn run(
    database: Database,
    id: ReplicaId,
    lease: SharedLease,
    here: watch::Receiver<Incarnation>,
    look_again: Arc<Notify>,
) {
    let mut slot = Slot::new(database);
    loop {
        match lease.get().next(clock::now()) {
            LeaseStep::Over => return,
            LeaseStep::Wait(until) => tokio::time::sleep(until.since(clock::now())).await,
            LeaseStep::Renew => {
                let sent = clock::now();
                let result = match slot.get().await {
                    Ok(connection) => look::renew(connection, id).await,
                    Err(error) => Err(error),
                };
                match slot.settle(result) {
                    // In another incarnation it counts from when everything was read again.
                    Ok((found, Some(_))) if found == *here.borrow() => lease.renewed(sent),
                    Ok((_, Some(_))) => {
                        look_again.notify_one();
                        tokio::time::sleep(RENEW_AGAIN).await;
                    }
                    Ok((_, None)) => {
                        lease.end();
                        return;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the lease could not be renewed; trying again");
                        tokio::time::sleep(RENEW_AGAIN).await;
                    }
                }
            }
        }
        if lease.check().is_err() {
            return;
        }
    }
}
