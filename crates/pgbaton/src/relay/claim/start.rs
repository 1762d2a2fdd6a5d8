//! What an identity starts for each of its relays.

use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OnceCell, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::super::{Flows, OPENINGS, Outage, Relay, RelaySpec, acknowledge, read, wake};
use crate::error::Error;
use crate::lane::ReplicaId;
use crate::replica::Replica;
use crate::sink::Capabilities;
use crate::source::native::{NativeSource, NativeSpec};
use crate::source::table::{TableSource, TableSpec};
use crate::source::{Source, SourceSpec};

/// Starts the tasks of one relay, for as long as this identity lives.
pub(super) fn relay(
    spec: &RelaySpec,
    id: ReplicaId,
    replica: &Replica,
    capabilities: Option<Capabilities>,
    (look_again, suspects): (&Arc<Notify>, &Arc<Semaphore>),
    tasks: &mut JoinSet<Result<(), Error>>,
) -> Arc<Relay> {
    let memory = Arc::default();
    let (database, metrics) = (&replica.spec.database, replica.metrics.relay(&spec.name));
    let source: Arc<dyn Source> = match &spec.source {
        SourceSpec::Native => {
            let (relay, topics, resend) = (spec.name.clone(), spec.topics.clone(), spec.resend_lost);
            let dead_topic = spec.policy.dead_topic.clone();
            let reads = NativeSpec { relay, replica: id, topics, resend, dead_topic };
            Arc::new(NativeSource::new(reads, database, Arc::clone(&memory), Arc::clone(&metrics)))
        }
        SourceSpec::Table(table) => {
            let (relay, table) = (spec.name.clone(), TableSpec::clone(table));
            Arc::new(TableSource::new(relay, id, table, database, Arc::clone(&memory), Arc::clone(&metrics)))
        }
    };
    let (dealt, notes) = mpsc::unbounded_channel();
    let relay = Arc::new(Relay {
        spec: spec.clone(),
        replica: id,
        capabilities: OnceCell::new_with(capabilities),
        source,
        flows: Flows::new(memory),
        dealt,
        outage: Outage::new(spec.pace.retry_cap, Arc::clone(&metrics)),
        metrics,
        observer: replica.observer.clone(),
        look_again: Arc::clone(look_again),
        unreadable: AtomicBool::new(false),
        refused: Mutex::default(),
        pauses: watch::Sender::default(),
        changes: AtomicI64::new(0),
        suspects: Arc::clone(suspects),
        openings: Semaphore::new(OPENINGS),
    });
    tasks.spawn(read::run(Arc::clone(&relay)));
    if spec.wake {
        tasks.spawn(always(wake::run(Arc::clone(&relay), database.clone())));
    }
    tasks.spawn(always(acknowledge::run(Arc::clone(&relay), notes)));
    relay
}

/// A task that has no reason to end.
async fn always(task: impl Future<Output = ()>) -> Result<(), Error> {
    task.await;
    Ok(())
}
