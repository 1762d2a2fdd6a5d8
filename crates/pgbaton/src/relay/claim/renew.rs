//! Renewing the lease: on a thread and a connection of its own, so that no work can starve it, however long it computes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::look;
use crate::clock::{self, SharedLease};
use crate::connection::{Database, Slot};
use crate::error::Error;
use crate::history;
use crate::lane::ReplicaId;
use crate::lease::{Beat, LeaseStep};
use crate::position::Incarnation;
use crate::thread;
use crate::vitals::Vitals;

/// A renewal that failed is tried again after this.
const RENEW_AGAIN: Duration = Duration::from_millis(100);

/// What a renewal needs.
pub(super) struct Renewer {
    pub(super) database: Database,
    pub(super) id: ReplicaId,
    pub(super) lease: SharedLease,
    /// Renewals count only in the incarnation that everything in memory belongs to.
    pub(super) here: watch::Receiver<Incarnation>,
    pub(super) look_again: Arc<Notify>,
    pub(super) vitals: Vitals,
}

/// Renews the lease until it is over, or this is dropped.
pub(super) async fn run(renewer: Renewer) -> Result<(), Error> {
    thread::on_its_own("renew", move || until_over(renewer)).await
}

async fn until_over(Renewer { database, id, lease, here, look_again, vitals }: Renewer) {
    let mut slot = Slot::new(database);
    // Once for each trouble: renewals are tried ten times a second.
    let mut told = false;
    loop {
        match lease.get().next(clock::now()) {
            LeaseStep::Over => return,
            LeaseStep::Wait(until) => tokio::time::sleep(until.since(clock::now())).await,
            // The lanes are of use to nobody as long as whoever looks after them stands still: others shall have them.
            LeaseStep::Renew if vitals.stands_still() => tokio::time::sleep(RENEW_AGAIN).await,
            LeaseStep::Renew => {
                let sent = clock::now();
                match renew_once(&mut slot, id).await {
                    // In another incarnation it counts from when everything was read again.
                    Ok((found, Some(_))) if found == *here.borrow() => {
                        told = false;
                        let confirmed = history::now();
                        lease.renewed(sent);
                        history::renewed(id, confirmed, &lease);
                    }
                    Ok((_, Some(_))) => {
                        look_again.notify_one();
                        tokio::time::sleep(RENEW_AGAIN).await;
                    }
                    Ok((_, None)) => {
                        lease.end();
                        return;
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            tracing::warn!(%error, "the lease could not be renewed; trying again");
                        }
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
