//! A sink that is down, and what says that it is not.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::nanos;
use crate::clock;
use crate::lane::Lane;
use crate::lease::BootInstant;
use crate::metrics::Metrics;
use crate::outcome::Fault;
use crate::retry::Backoff;

/// A call keeps its turn for no longer: one that is not answered is no reason to keep all others waiting.
const TURN_AT_MOST: Duration = Duration::from_secs(1);

/// With so many turns at once there is no need for turns.
const ALL: usize = 64;

/// A sink that is down: all lanes of the relay back off together, and no message is blamed. One of them at a time calls it, and twice
/// as many each time that so many were answered: one that has just come back is not flooded.
pub(crate) struct Outage {
    state: Mutex<OutageState>,
    metrics: Arc<Metrics>,
    /// When the newest call began that delivered something, of any lane, in nanoseconds since boot.
    delivered: AtomicI64,
}

struct OutageState {
    backoff: Backoff,
    until: Option<BootInstant>,
    /// Lanes whose last call failed. The sink is down as long as there are any: one that is let in says nothing of the others.
    failing: BTreeSet<i32>,
    /// It may have been down before: nobody has asked yet.
    unknown: bool,
    /// Since it was down, until it has answered often enough.
    turns: Option<Turns>,
}

struct Turns {
    /// How many calls may be under way at once.
    most: usize,
    /// How many were answered since it was so many.
    answered: usize,
    free: Arc<Semaphore>,
}

impl Turns {
    fn first() -> Self {
        Self { most: 1, answered: 0, free: Arc::new(Semaphore::new(1)) }
    }

    /// One was answered: twice as many, once all of them were. `None` once that is enough.
    fn more(self) -> Option<Self> {
        let Self { most, answered, free } = self;
        if answered + 1 < most {
            return Some(Self { most, answered: answered + 1, free });
        }
        let more = if most < ALL { most } else { Semaphore::MAX_PERMITS / 2 };
        free.add_permits(more);
        (most < ALL).then_some(Self { most: 2 * most, answered: 0, free })
    }
}

impl Outage {
    pub(crate) fn new(cap: Duration, metrics: Arc<Metrics>) -> Self {
        let backoff = Backoff::new(Duration::from_millis(50), cap);
        let state = OutageState { backoff, until: None, failing: BTreeSet::new(), unknown: true, turns: None };
        Self { state: Mutex::new(state), metrics, delivered: AtomicI64::new(0) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut OutageState) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A call of this lane failed. Lanes that fail during one pause do not make it longer.
    pub(crate) fn failed(&self, lane: &Lane, fault: &Fault) {
        self.metrics.sink_is_down(fault);
        let relay = &lane.relay;
        let pause = self.with(|state| {
            state.failing.insert(lane.number);
            if state.turns.as_ref().is_none_or(|turns| turns.most > 1) {
                state.turns = Some(Turns::first());
            }
            let now = clock::now();
            if state.until.is_some_and(|until| now < until) {
                return None;
            }
            let pause = state.backoff.next(rand::random());
            state.until = Some(now.after(pause));
            Some(pause)
        });
        if let Some(pause) = pause {
            tracing::warn!(%relay, %fault, ?pause, "the sink is down; nothing is lost, trying again after the pause");
        }
    }

    /// A call that began then has delivered something.
    pub(crate) fn delivered(&self, began: BootInstant) {
        self.delivered.fetch_max(nanos(began), Ordering::Relaxed);
    }

    /// Whether a call that began after this moment has delivered something: what failed by then did not fail because the sink was
    /// down.
    pub(crate) fn has_delivered_since(&self, moment: BootInstant) -> bool {
        self.delivered.load(Ordering::Relaxed) > nanos(moment)
    }

    /// The sink has answered for messages of this lane.
    pub(crate) fn over(&self, lane: &Lane) {
        self.with(|state| {
            state.backoff.reset();
            state.until = None;
            state.turns = state.turns.take().and_then(Turns::more);
        });
        self.answered(lane);
    }

    /// The sink has opened this lane. Whether it takes messages shows only when it is given some.
    pub(crate) fn answered(&self, lane: &Lane) {
        self.no_longer_failing(lane, true);
    }

    /// This lane calls no more.
    pub(crate) fn gone(&self, lane: &Lane) {
        self.no_longer_failing(lane, false);
    }

    fn no_longer_failing(&self, lane: &Lane, answered: bool) {
        let is_up = self.with(|state| {
            let failed = state.failing.remove(&lane.number);
            let unknown = answered && std::mem::take(&mut state.unknown);
            (failed || unknown) && state.failing.is_empty()
        });
        if is_up {
            self.metrics.sink_is_up();
        }
    }

    /// A turn at calling the sink, until it is dropped: none is needed unless it was down. Lanes have theirs in the order in which
    /// they ask. Cancel-safe.
    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let free = self.with(|state| state.turns.as_ref().map(|turns| Arc::clone(&turns.free)));
        let turn = match free {
            // It is never closed.
            Some(free) => free.acquire_owned().await.ok(),
            None => None,
        };
        self.wait().await;
        turn
    }

    /// Returns at the end of the pause, if there is one. Cancel-safe.
    pub(crate) async fn wait(&self) {
        while let Some(until) = self.with(|state| state.until) {
            let now = clock::now();
            if now >= until {
                return;
            }
            tokio::time::sleep(until.since(now)).await;
        }
    }
}

/// Has the turn for as long as this takes, or for a moment.
pub(super) async fn during<T>(turn: Option<OwnedSemaphorePermit>, call: impl Future<Output = T>) -> T {
    let mut call = std::pin::pin!(call);
    let first = tokio::time::timeout(TURN_AT_MOST, &mut call).await;
    drop(turn);
    match first {
        Ok(done) => done,
        Err(_) => call.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::RelayName;
    use crate::outcome::codes;

    #[test]
    fn a_sink_is_down_until_no_lane_fails() {
        let metrics = Arc::new(Metrics::default());
        let outage = Outage::new(Duration::from_secs(1), Arc::clone(&metrics));
        let lane = |number| Lane { relay: RelayName::new("orders").unwrap(), number, of: 16 };
        let fault = Fault::new(&codes::sink::SILENT, "x");
        outage.failed(&lane(1), &fault);
        let since = metrics.counts().sink_down;
        outage.failed(&lane(2), &fault);
        outage.answered(&lane(3));
        outage.answered(&lane(1));
        assert_eq!(metrics.counts().sink_down, since);
        outage.gone(&lane(2));
        assert_eq!(metrics.counts().sink_down, None);
    }

    #[tokio::test]
    async fn a_sink_that_comes_back_is_called_by_one_and_then_by_more() {
        let outage = Outage::new(Duration::from_millis(1), Arc::new(Metrics::default()));
        let lane = Lane { relay: RelayName::new("orders").unwrap(), number: 1, of: 16 };
        let soon = Duration::from_millis(50);
        assert!(outage.turn().await.is_none(), "it was not down");
        outage.failed(&lane, &Fault::new(&codes::sink::SILENT, "x"));
        for most in [1, 2, 4, 8, 16, 32, 64] {
            let mut turns = Vec::new();
            while let Ok(turn) = tokio::time::timeout(soon, outage.turn()).await {
                turns.push(turn);
            }
            assert_eq!(turns.len(), most);
            (0..most).for_each(|_| outage.over(&lane));
        }
        assert!(outage.turn().await.is_none());
    }

    #[tokio::test]
    async fn a_call_that_is_not_answered_does_not_keep_the_turn() {
        let outage = Outage::new(Duration::from_millis(1), Arc::new(Metrics::default()));
        let lane = Lane { relay: RelayName::new("orders").unwrap(), number: 1, of: 16 };
        outage.failed(&lane, &Fault::new(&codes::sink::SILENT, "x"));
        let silent = during(outage.turn().await, std::future::pending::<()>());
        tokio::select! {
            () = silent => {}
            turn = outage.turn() => assert!(turn.is_some()),
            () = tokio::time::sleep(3 * TURN_AT_MOST) => panic!("nobody else has a turn"),
        }
    }
}
