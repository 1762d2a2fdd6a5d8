//! Reads for the lanes that have room, and hands each what it is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Relay;
use crate::clock;
use crate::error::Error;
use crate::lane::Grant;
use crate::lease::BootInstant;
use crate::plan;
use crate::reminder::Reminder;
use crate::retry::Backoff;
use crate::source::{Budget, Next, Read};
use crate::thread;

/// Reads until dropped. One for each relay, on a thread of its own: each chunk from the socket wakes whoever waits for it,
/// and where that crosses threads it costs more than taking the rows in. So reading delays no publishing, either.
pub(crate) async fn run(relay: Arc<Relay>) -> Result<(), Error> {
    thread::on_its_own("read", move || until_dropped(relay)).await
}

async fn until_dropped(relay: Arc<Relay>) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let mut pause = relay.spec.pace.busy;
    // Of the present pass, which may take several calls.
    let mut began = clock::now();
    let mut failing = Reminder::default();
    let mut refusals = Refusals::default();
    loop {
        let rooms = relay.flows.rooms(&relay.spec.limits);
        if !rooms.iter().any(|room| room.room) {
            wait_for_room(&relay, plan::PATIENCE).await;
            continue;
        }
        let budget = budget(&relay);
        let read = tokio::select! {
            biased;
            () = relay.flows.abandon.notified() => continue,
            read = relay.source.read(&rooms, &budget) => read,
        };
        match read {
            Ok(Read { batches, refused, blocked, next }) => {
                backoff.reset();
                if failing.end() {
                    relay.reading_refused(false);
                    tracing::info!(relay = %relay.spec.name, "reading goes on");
                }
                refusals.are(&relay, refused, &blocked);
                let any = batches.iter().any(|batch| !batch.messages.is_empty());
                for batch in batches {
                    relay.flows.enqueue(batch);
                }
                pause = if any { relay.spec.pace.busy } else { pause };
                match next {
                    Next::Now => continue,
                    Next::WithRoom => wait_for_room(&relay, left(pause.min(plan::PATIENCE), began)).await,
                    Next::Later => wait(&relay, left(pause, began)).await,
                }
                began = clock::now();
                pause = (pause * 2).min(relay.spec.pace.idle).max(relay.spec.pace.busy);
            }
            Err(error) => {
                let told = failing.is_due(&error.to_string(), clock::now());
                relay.reading_failed(&error, told);
                wait(&relay, backoff.next(rand::random())).await;
            }
        }
    }
}

/// Lanes whose next message cannot be read.
#[derive(Default)]
struct Refusals(BTreeMap<i32, Reminder>);

impl Refusals {
    /// A lane that is blocked no more is so whether or not there is anything to read of it now.
    fn are(&mut self, relay: &Relay, refused: Vec<(Grant, Error)>, blocked: &BTreeSet<i32>) {
        for (lane, _) in self.0.extract_if(.., |lane, _| !blocked.contains(lane)) {
            // One that has ended says itself how it is, and so does one whose acknowledgement is refused.
            if relay.flows.with(|lanes| lanes.get(&lane).is_some_and(|flow| !flow.is_held())) {
                relay.refuse(lane, false);
                tracing::info!(relay = %relay.spec.name, lane, "the lane's next message can be read, or is no longer there");
            }
        }
        let now = clock::now();
        for (grant, why) in refused {
            if self.0.entry(grant.lane.number).or_default().is_due("", now) {
                tracing::error!(%grant, error = %why, "the lane is held: its next message cannot be read");
            }
            relay.refuse(grant.lane.number, true);
        }
    }
}

fn budget(relay: &Relay) -> Budget {
    let limits = &relay.spec.limits;
    let capabilities = relay.capabilities.get();
    let (bytes, one_more) = relay.flows.bytes_to_read(limits);
    Budget {
        bytes,
        one_more,
        // More than may be in flight would never be let through.
        batch_messages: limits
            .batch_messages
            .min(limits.in_flight)
            .min(capabilities.and_then(|sink| sink.max_batch_messages).unwrap_or(usize::MAX)),
        batch_bytes: limits.batch_bytes.min(capabilities.and_then(|sink| sink.max_batch_bytes).unwrap_or(usize::MAX)),
    }
}

/// Until there is news: another lane, or a word from the database.
async fn wait(relay: &Relay, pause: Duration) {
    tokio::select! {
        () = relay.flows.wake.notified() => {}
        () = tokio::time::sleep(pause) => {}
    }
}

/// What is left of a pause that counts from the beginning of a pass: reading itself takes some of it.
fn left(pause: Duration, began: BootInstant) -> Duration {
    pause.saturating_sub(clock::now().since(began))
}

/// Until a lane may have room. Whoever makes some says so; the pause is for lanes that wait for their neighbours, and for
/// news for the others.
async fn wait_for_room(relay: &Relay, pause: Duration) {
    tokio::select! {
        () = relay.flows.room.notified() => {}
        () = relay.flows.memory.freed.notified() => {}
        () = wait(relay, pause) => {}
    }
}
