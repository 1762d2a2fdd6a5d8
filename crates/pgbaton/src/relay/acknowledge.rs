//! Gathers what the lanes have dealt with, and has the source write it: many lanes and many batches in one transaction.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Relay;
use crate::lane::Grant;
use crate::position::Incarnation;
use crate::retry::Backoff;
use crate::source::{Acknowledged, Dealt};

/// What a lane tells.
pub(crate) enum Note {
    /// It has dealt with this, which covers so many messages more.
    Dealt {
        /// How far it is.
        dealt: Dealt,
        /// Messages that were handed to the sink.
        messages: usize,
        /// The lane's next batch waits for this to be written.
        awaited: bool,
    },
    /// It is about to be given back: write what there is, and say when it is written, or that it cannot be.
    Flush(oneshot::Sender<()>),
    /// It is over here. What was not written is not written any more.
    Forget(Grant),
}

/// What waits to be written for one lane: only how far it is counts.
struct Pending {
    dealt: Dealt,
    messages: usize,
}

/// Writes until dropped. One for each relay.
pub(crate) async fn run(relay: Arc<Relay>, mut notes: mpsc::UnboundedReceiver<Note>) {
    let mut writer = Writer { relay, pending: BTreeMap::new(), due: None, waiting: Vec::new() };
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
    loop {
        let due = writer.due;
        tokio::select! {
            biased;
            () = sleep_until(due) => {}
            note = notes.recv() => match note {
                Some(note) => writer.take(note),
                None => return,
            },
        }
        while let Ok(note) = notes.try_recv() {
            writer.take(note);
        }
        if writer.due.is_some_and(|due| due <= Instant::now()) {
            if writer.write().await {
                backoff.reset();
            } else {
                writer.due = Some(Instant::now() + backoff.next(rand::random()));
            }
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

struct Writer {
    relay: Arc<Relay>,
    pending: BTreeMap<Grant, Pending>,
    due: Option<Instant>,
    waiting: Vec<oneshot::Sender<()>>,
}

impl Writer {
    fn take(&mut self, note: Note) {
        let pace = &self.relay.spec.pace;
        let now = Instant::now();
        let due = match note {
            Note::Dealt { dealt, messages, awaited } => {
                let pending = self
                    .pending
                    .entry(dealt.grant.clone())
                    .and_modify(|pending| {
                        pending.dealt = dealt.clone();
                        pending.messages += messages;
                    })
                    .or_insert(Pending { dealt, messages });
                // Before the lane has to wait for it.
                if awaited || pending.messages >= (self.relay.spec.limits.in_flight / 2).max(1) {
                    now
                } else if pending.messages > 0 {
                    now + pace.acknowledge
                } else {
                    now + pace.acknowledge_idle
                }
            }
            Note::Flush(done) => {
                self.waiting.push(done);
                now
            }
            Note::Forget(grant) => {
                self.pending.remove(&grant);
                return;
            }
        };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// Writes all that is pending. False if it has to be tried again.
    async fn write(&mut self) -> bool {
        // Lanes of an incarnation that has just ended may still be among the others.
        let mut by_incarnation: Vec<(Incarnation, Vec<Dealt>)> = Vec::new();
        for pending in self.pending.values() {
            let here = &pending.dealt.next.incarnation;
            match by_incarnation.iter_mut().find(|(known, _)| known == here) {
                Some((_, done)) => done.push(pending.dealt.clone()),
                None => by_incarnation.push((here.clone(), vec![pending.dealt.clone()])),
            }
        }
        let mut written = true;
        for (_, done) in by_incarnation {
            written &= self.write_one(&done).await;
        }
        if written {
            self.due = None;
            self.waiting.drain(..).for_each(|done| {
                // A lane that no longer waits has ended meanwhile.
                let _ = done.send(());
            });
        }
        written
    }

    async fn write_one(&mut self, done: &[Dealt]) -> bool {
        match self.relay.source.acknowledge(done).await {
            Ok(written) => {
                self.relay.metrics.acknowledged();
                let all = written.iter().all(|lane| !matches!(lane, Acknowledged::Waits(_)));
                written.into_iter().for_each(|lane| self.settle(lane));
                all
            }
            Err(error) => {
                // Of an incarnation that is gone, they are forgotten together with their lanes.
                self.relay.report("positions could not be written; trying again", &error);
                false
            }
        }
    }

    fn settle(&mut self, acknowledged: Acknowledged) {
        let lane = match &acknowledged {
            Acknowledged::Waits(_) => return,
            Acknowledged::Written(lane) | Acknowledged::LaneLost(lane, _) | Acknowledged::Refused(lane, _) => lane,
        };
        let grants: Vec<Grant> = self.pending.keys().filter(|grant| grant.lane == *lane).cloned().collect();
        let mut refused = match acknowledged {
            Acknowledged::Refused(_, error) => Some(error),
            Acknowledged::LaneLost(..) => None,
            _ => return grants.into_iter().for_each(|grant| self.written(&grant)),
        };
        for grant in grants {
            self.pending.remove(&grant);
            match refused.take() {
                // Its task ends with this, and says so.
                Some(error) => {
                    if let Some(flow) = self.relay.flows.get(&grant) {
                        flow.refuse(error);
                    }
                }
                None => {
                    tracing::warn!(%grant, "a position was not written: the lane has another owner or epoch");
                    self.relay.look_again.notify_one();
                }
            }
        }
    }

    fn written(&mut self, grant: &Grant) {
        let Some(pending) = self.pending.remove(grant) else { return };
        if let Some(flow) = self.relay.flows.get(grant) {
            flow.covered(pending.messages);
            self.relay.flows.room.notify_one();
        }
    }
}
