//! Reads for the lanes that have room, and hands each what it is due.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Relay;
use crate::retry::Backoff;
use crate::source::{Budget, Next, Read};

/// Reads until dropped. One for each relay.
pub(crate) async fn run(relay: Arc<Relay>) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    let mut pause = relay.spec.pace.busy;
    loop {
        let rooms = relay.flows.rooms(&relay.spec.limits);
        if !rooms.iter().any(|room| room.room) {
            // Whoever makes room says so; the pause is for a word that came too early.
            wait(&relay, relay.spec.pace.idle).await;
            continue;
        }
        match relay.source.read(&rooms, &budget(&relay)).await {
            Ok(Read { batches, next }) => {
                backoff.reset();
                let any = batches.iter().any(|batch| !batch.messages.is_empty());
                for batch in batches {
                    if let Some(flow) = relay.flows.get(&batch.grant) {
                        flow.enqueue(batch);
                    }
                }
                pause = if any { relay.spec.pace.busy } else { pause };
                match next {
                    // Lets the lanes take what they were given.
                    Next::Now => tokio::task::yield_now().await,
                    Next::WithRoom => wait(&relay, relay.spec.pace.busy).await,
                    Next::Later => {
                        wait(&relay, pause).await;
                        pause = (pause * 2).min(relay.spec.pace.idle).max(relay.spec.pace.busy);
                    }
                }
            }
            Err(error) => {
                relay.report("reading failed; nothing is lost", &error);
                wait(&relay, backoff.next(rand::random())).await;
            }
        }
    }
}

fn budget(relay: &Relay) -> Budget {
    let limits = &relay.spec.limits;
    let held = relay.flows.held.load(Ordering::Relaxed);
    let capabilities = &relay.capabilities;
    Budget {
        bytes: limits.memory.saturating_sub(held).max(1),
        batch_messages: limits.batch_messages.min(capabilities.max_batch_messages.unwrap_or(usize::MAX)),
        batch_bytes: limits.batch_bytes.min(capabilities.max_batch_bytes.unwrap_or(usize::MAX)),
    }
}

async fn wait(relay: &Relay, pause: Duration) {
    tokio::select! {
        () = relay.flows.wake.notified() => {}
        () = tokio::time::sleep(pause) => {}
    }
}
