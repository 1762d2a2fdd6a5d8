//! Gathers what the lanes have dealt with, and has the source write it: many lanes and many batches in one transaction.
//!
//! A lane that cannot be written waits by itself and keeps no other one waiting: for a moment where somebody holds a lock on one
//! of its rows, and for a person where the database refuses it. Nothing more is handed to that lane's sink then, and what was
//! delivered is kept, so that it need not be sent again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Relay;
use crate::clock;
use crate::error::Error;
use crate::lane::{Grant, Lane};
use crate::position::Incarnation;
use crate::reminder::Reminder;
use crate::retry::Backoff;
use crate::source::{Acknowledged, Dealt, Stint};

/// After a refusal it is tried again so much later: a person may have mended it.
const REFUSED_AGAIN: Duration = Duration::from_secs(10);

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
    /// It is about to be given back: write what there is of it, and say when it is written. Nothing is said if it is lost.
    Flush(Grant, oneshot::Sender<()>),
    /// It is over here. What was not written is not written any more.
    Forget(Grant),
}

/// What waits to be written for one lane.
struct Pending {
    /// In order. Only the newest, where it covers those before it.
    dealt: VecDeque<Dealt>,
    stint: Stint,
    messages: usize,
    /// How many batches that is.
    batches: u64,
    /// Told when it is written.
    flushed: Vec<oneshot::Sender<()>>,
    /// When it could not be written, though others could.
    again: Option<Again>,
}

/// Another attempt at one lane.
struct Again {
    at: Instant,
    backoff: Backoff,
    /// A person has to decide.
    refused: Reminder,
}

/// Writes until dropped. One for each relay.
pub(crate) async fn run(relay: Arc<Relay>, mut notes: mpsc::UnboundedReceiver<Note>) {
    let mut writer = Writer { relay, pending: BTreeMap::new(), due: None };
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
                writer.due = writer.next_attempt();
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
    /// When something is to be written next.
    due: Option<Instant>,
}

impl Writer {
    fn take(&mut self, note: Note) {
        let due = match note {
            Note::Dealt { dealt, messages, awaited } => self.dealt(dealt, messages, awaited),
            Note::Flush(grant, done) => match self.pending.get_mut(&grant) {
                Some(pending) => {
                    pending.flushed.push(done);
                    let now = Instant::now();
                    if let Some(again) = &mut pending.again {
                        again.at = now;
                    }
                    now
                }
                None => {
                    // A lane that no longer waits has ended meanwhile.
                    let _ = done.send(());
                    return;
                }
            },
            Note::Forget(grant) => {
                self.pending.remove(&grant);
                return;
            }
        };
        self.due = Some(self.due.map_or(due, |known| known.min(due)));
    }

    /// When it has to be written.
    fn dealt(&mut self, dealt: Dealt, messages: usize, awaited: bool) -> Instant {
        let pace = &self.relay.spec.pace;
        let now = Instant::now();
        let none = || Pending {
            dealt: VecDeque::new(),
            stint: dealt.stint,
            messages: 0,
            batches: 0,
            flushed: Vec::new(),
            again: None,
        };
        let pending = self.pending.entry(dealt.grant.clone()).or_insert_with(none);
        let mut dealt = dealt;
        if self.relay.source.covers_earlier()
            && let Some(earlier) = pending.dealt.pop_back()
        {
            dealt.parked.follow(earlier.parked);
        }
        pending.dealt.push_back(dealt);
        pending.messages += messages;
        pending.batches += 1;
        match &pending.again {
            Some(again) => again.at,
            // Before the lane has to wait for it.
            None if awaited || pending.messages >= (self.relay.spec.limits.in_flight / 2).max(1) => now,
            None if pending.messages > 0 => now + pace.acknowledge,
            None => now + pace.acknowledge_idle,
        }
    }

    /// When one of those that could not be written is tried again.
    fn next_attempt(&self) -> Option<Instant> {
        self.pending.values().filter_map(|pending| pending.again.as_ref()).map(|again| again.at).min()
    }

    /// Writes all that is pending, and tries once more a lane that could not be written before, by itself: each may wait for a
    /// lock, so that the others have their turn between them. False if nothing can be written now.
    async fn write(&mut self) -> bool {
        // Lanes of an incarnation that has just ended may still be among the others.
        let mut by_incarnation: Vec<(Incarnation, Vec<Dealt>)> = Vec::new();
        let (mut alone, now): (Option<(Instant, Vec<Dealt>)>, _) = (None, Instant::now());
        for Pending { dealt, again, .. } in self.pending.values() {
            let Some(here) = dealt.back().map(|dealt| &dealt.next.incarnation) else { continue };
            match (again, by_incarnation.iter_mut().find(|(known, _)| known == here)) {
                (Some(again), _) if again.at <= now && alone.as_ref().is_none_or(|(at, _)| again.at < *at) => {
                    alone = Some((again.at, dealt.iter().cloned().collect()));
                }
                (Some(_), _) => {}
                (None, Some((_, done))) => done.extend(dealt.iter().cloned()),
                (None, None) => by_incarnation.push((here.clone(), dealt.iter().cloned().collect())),
            }
        }
        let mut written = true;
        for done in by_incarnation.into_iter().map(|(_, done)| done).chain(alone.map(|(_, done)| done)) {
            written &= self.write_one(&done).await;
        }
        written
    }

    async fn write_one(&mut self, done: &[Dealt]) -> bool {
        match self.relay.source.acknowledge(done).await {
            Ok(written) => {
                self.relay.metrics.acknowledged();
                written.into_iter().for_each(|lane| self.settle(lane));
                true
            }
            Err(error) => {
                // Of an incarnation that is gone, they are forgotten together with their lanes.
                self.relay.report("positions could not be written; trying again", &error);
                false
            }
        }
    }

    fn settle(&mut self, acknowledged: Acknowledged) {
        match acknowledged {
            Acknowledged::Written(lane) => {
                self.take_out(&lane).for_each(|(grant, pending)| self.written(&grant, pending));
            }
            Acknowledged::LaneLost(lane, _) => {
                for (grant, _) in self.take_out(&lane) {
                    tracing::warn!(%grant, "a position was not written: the lane has another owner or epoch");
                    self.relay.look_again.notify_one();
                }
            }
            Acknowledged::Waits(lane) => self.put_off(&lane, |again, now| {
                again.at = now + again.backoff.next(rand::random());
            }),
            Acknowledged::Refused(lane, error) => self.refused(&lane, &error),
        }
    }

    fn take_out(&mut self, lane: &Lane) -> impl Iterator<Item = (Grant, Pending)> + use<> {
        let grants: Vec<Grant> = self.pending.keys().filter(|grant| grant.lane == *lane).cloned().collect();
        let taken: Vec<_> = grants.iter().filter_map(|grant| self.pending.remove_entry(grant)).collect();
        taken.into_iter()
    }

    fn put_off(&mut self, lane: &Lane, how: impl Fn(&mut Again, Instant)) {
        let now = Instant::now();
        for pending in self.pending.iter_mut().filter(|(grant, _)| grant.lane == *lane).map(|(_, pending)| pending) {
            let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
            how(pending.again.get_or_insert(Again { at: now, backoff, refused: Reminder::default() }), now);
        }
    }

    fn refused(&mut self, lane: &Lane, error: &Error) {
        let relay = Arc::clone(&self.relay);
        relay.refuse(lane.number, true);
        let of_it = self.pending.iter().filter(|(grant, _)| grant.lane == *lane);
        of_it.filter_map(|(grant, pending)| relay.flows.get(grant, pending.stint)).for_each(|flow| flow.hold());
        self.put_off(lane, |again, now| {
            again.at = now + REFUSED_AGAIN;
            if again.refused.is_due("", clock::now()) {
                tracing::error!(%error, "the lane is held: what it delivered cannot be acknowledged");
            }
        });
    }

    fn written(&self, grant: &Grant, pending: Pending) {
        if pending.again.is_some_and(|mut again| again.refused.end()) {
            self.relay.refuse(grant.lane.number, false);
            tracing::info!(%grant, "what was delivered is acknowledged; the lane goes on");
        }
        if let Some(flow) = self.relay.flows.get(grant, pending.stint) {
            flow.covered(pending.messages, pending.batches);
            self.relay.flows.room.notify_one();
        }
        for done in pending.flushed {
            // A lane that no longer waits has ended meanwhile.
            let _ = done.send(());
        }
    }
}
