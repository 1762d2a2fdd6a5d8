//! Keeps what pgbaton stores small, and looks whether the outbox still is as the reading relies on.
//!
//! Every replica does all of it; whoever comes first does the work. `housekeeping/positions.rs` prunes positions,
//! `housekeeping/segments.rs` empties segments of the outbox.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::types::Type;

use crate::connection::{Access, Database, Parameter, Slot};
use crate::error::Error;
use crate::lane::ReplicaId;
use crate::metrics::{self, AllMetrics};
use crate::relay::Relay;
use crate::source::Behind;
use crate::sql;

mod positions;
pub(crate) mod segments;

use segments::{Segment, Segments};

/// How often this replica looks.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// So many looks lie between two checks of the outbox's shape.
const LOOKS_A_CHECK: u32 = 12;

/// Looks until dropped.
///
/// # Errors
/// The outbox was altered against the rules: nobody may go on reading it.
pub(crate) async fn run(
    database: Database,
    replica: ReplicaId,
    relays: Vec<Arc<Relay>>,
    metrics: Arc<AllMetrics>,
) -> Result<(), Error> {
    let mut slot = Slot::new(database);
    let mut segments = Segments::of(replica);
    let mut failures = [const { Failures(0) }; 5];
    for look in 1_u32.. {
        tokio::time::sleep(LOOK_EVERY).await;
        // One that fails does not keep the others from their work.
        let [measuring, counting, emptying, pruning, deleting] = &mut failures;
        measuring.told(measure(&relays).await, "measuring how far behind relays are");
        counting.told(count_parked(&mut slot, &relays).await, "counting messages that are set aside");
        emptying.told(empty_segments(&mut slot, &mut segments, &metrics).await, "emptying segments");
        pruning.told(prune_positions(&mut slot).await, "pruning positions");
        deleting.told(delete_old_dead(&mut slot, &relays).await, "deleting messages that have been dead for long");
        let all = look.is_multiple_of(LOOKS_A_CHECK);
        // A person may have mended what is refused just now.
        check(relays.iter().filter(|relay| all || relay.is_unreadable())).await?;
    }
    Ok(())
}

async fn prune_positions(slot: &mut Slot) -> Result<(), Error> {
    let connection = slot.take().await?;
    positions::prune(&connection, positions::TURN_AT_BYTES).await?;
    slot.put(connection);
    Ok(())
}

async fn empty_segments(slot: &mut Slot, segments: &mut Segments, metrics: &AllMetrics) -> Result<(), Error> {
    let connection = slot.take().await?;
    metrics.outbox.segments(counted(&segments.look_after(&connection).await?));
    slot.put(connection);
    Ok(())
}

/// How far behind each relay is, whoever owns its lanes. One that does not tell keeps none of the others from it.
async fn measure(relays: &[Arc<Relay>]) -> Result<(), Error> {
    let mut failed = Ok(());
    for relay in relays {
        match relay.source.behind().await {
            Ok(Behind { messages, oldest }) => relay.metrics.behind(messages, oldest),
            Err(error) => failed = failed.and(Err(error.doing(relay.spec.name.as_str()))),
        }
    }
    failed
}

/// How many messages of each relay are set aside, whoever owns its lanes.
async fn count_parked(slot: &mut Slot, relays: &[Arc<Relay>]) -> Result<(), Error> {
    let connection = slot.take().await?;
    let names: Vec<&str> = relays.iter().map(|relay| relay.spec.name.as_str()).collect();
    let [rows] = connection.pipeline(Access::Look, [(sql::PARKED_COUNTS, &[(&names, Type::TEXT_ARRAY)])]).await?;
    slot.put(connection);
    for row in &rows {
        let name: &str = row.try_get("relay")?;
        if let Some(relay) = relays.iter().find(|relay| relay.spec.name.as_str() == name) {
            relay.metrics.parked(row.try_get("parked")?, row.try_get("dead")?);
        }
    }
    Ok(())
}

/// So many at a time.
const OLD_DEAD: i64 = 1_000;

/// Deletes what has been dead for as long as its relay is configured to keep it.
async fn delete_old_dead(slot: &mut Slot, relays: &[Arc<Relay>]) -> Result<(), Error> {
    for relay in relays {
        let Some(keep) = relay.spec.policy.dead_keep else { continue };
        let connection = slot.take().await?;
        let (name, seconds) = (relay.spec.name.as_str(), keep.as_secs_f64());
        let parameters: [Parameter<'_>; 3] = [(&name, Type::TEXT), (&seconds, Type::FLOAT8), (&OLD_DEAD, Type::INT8)];
        let [deleted] = connection.pipeline(Access::Write, [(sql::DEAD_OLD, &parameters)]).await?;
        slot.put(connection);
        if !deleted.is_empty() {
            tracing::info!(
                relay = name,
                messages = deleted.len(),
                ?keep,
                "messages that have been dead for long are deleted"
            );
        }
    }
    Ok(())
}

/// Failures of one kind of work in a row. One by itself means nothing: another replica holds a lock, or the database is away.
struct Failures(u32);

impl Failures {
    fn told(&mut self, result: Result<(), Error>, what: &str) {
        let Err(error) = result else {
            self.0 = 0;
            return;
        };
        self.0 = self.0.saturating_add(1);
        if self.0.is_multiple_of(LOOKS_A_CHECK) {
            tracing::warn!(%error, what, in_a_row = self.0, "housekeeping fails again and again; delivering goes on");
        } else {
            tracing::debug!(%error, what, "housekeeping failed this time");
        }
    }
}

fn counted(segments: &[Segment]) -> metrics::Segments {
    let count = |which: &dyn Fn(&Segment) -> bool| {
        u64::try_from(segments.iter().filter(|segment| which(segment)).count()).unwrap_or_default()
    };
    metrics::Segments {
        in_use: count(&|segment| segment.in_use),
        kept: count(&|segment| segment.filled && !segment.in_use),
        empty: count(&|segment| !segment.filled && segment.in_ring && !segment.in_use),
        bytes: u64::try_from(segments.iter().map(|segment| segment.bytes).sum::<i64>()).unwrap_or_default(),
    }
}

async fn check(relays: impl Iterator<Item = &Arc<Relay>>) -> Result<(), Error> {
    for relay in relays {
        match relay.source.check().await {
            Err(error) if !error.is_transient() => return Err(error),
            // Looked at again later.
            _ => {}
        }
    }
    Ok(())
}

/// Prunes positions once: what every replica does now and then, for operators and tests. The leaves take turns if the one
/// that is written to has this size in bytes.
///
/// # Errors
/// Nothing has been changed then; the next time does it.
pub async fn prune(database: &Database, turn_at: i64) -> Result<(), Error> {
    positions::prune(&database.connect().await?, turn_at).await
}

/// Empties segments once: what every replica does now and then, for operators and tests. Gives the number of those that
/// still hold something.
///
/// # Errors
/// What was emptied before the error stays empty; the next time does the rest.
pub async fn empty(database: &Database) -> Result<usize, Error> {
    let segments = Segments::default().look_after(&database.connect().await?).await?;
    Ok(segments.iter().filter(|segment| segment.filled).count())
}
