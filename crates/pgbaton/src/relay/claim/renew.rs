//! Renewing the lease: its own task and its own connection, so that no work can starve it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::look;
use crate::clock::{self, SharedLease};
use crate::connection::{Database, Slot};
use crate::error::Error;
use crate::lane::ReplicaId;
use crate::lease::{Beat, LeaseStep};
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
                match renew_once(&mut slot, id).await {
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

async fn renew_once(slot: &mut Slot, id: ReplicaId) -> Result<(Incarnation, Option<Beat>), Error> {
    let connection = slot.take().await?;
    let answer = look::renew(&connection, id).await?;
    slot.put(connection);
    Ok(answer)
}
