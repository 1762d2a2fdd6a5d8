//! What a process counts and measures. Names of metrics live here and nowhere else, each with what it means.
//!
//! Everything is an atomic, so that the path of a message pays next to nothing. `docs/metrics.md` says what to do when one
//! of them moves; a test compares the two.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock;
use crate::lane::RelayName;
use crate::lease::BootInstant;
use crate::message::Timestamp;
use crate::outcome::Fault;
use crate::sink::Tier;

mod histogram;
pub mod names;

pub use histogram::{BUCKETS, Histogram, Tally};

/// All that one process counts. It outlives the replicas that run in it one after the other, so no counter goes back.
#[derive(Debug, Default)]
pub struct AllMetrics {
    relays: Mutex<BTreeMap<RelayName, Arc<Metrics>>>,
    /// What is measured of the outbox as a whole.
    pub outbox: Outbox,
}

impl AllMetrics {
    /// One relay's, made if it is new.
    #[must_use]
    pub fn relay(&self, name: &RelayName) -> Arc<Metrics> {
        let mut relays = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(relays.entry(name.clone()).or_default())
    }
}

/// What is measured of the outbox as a whole.
#[derive(Debug, Default)]
pub struct Outbox(Mutex<OutboxReading>);

/// A reading of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OutboxReading {
    /// Its segments; `None` until they were looked at.
    pub segments: Option<Segments>,
    /// Registered relays that no replica runs: their messages stay until somebody does.
    pub unattended: Vec<RelayName>,
}

/// The outbox's segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segments {
    /// Those that producers write to.
    pub in_use: u64,
    /// Those that hold messages which some lane has not passed, or that retention keeps.
    pub kept: u64,
    /// Those that hold nothing.
    pub empty: u64,
    /// Bytes of all of them, with indexes.
    pub bytes: u64,
}

impl Outbox {
    /// The segments were looked at.
    pub fn segments(&self, segments: Segments) {
        self.with(|reading| reading.segments = Some(segments));
    }

    /// These registered relays have no replica.
    pub fn unattended(&self, relays: Vec<RelayName>) {
        self.with(|reading| reading.unattended = relays);
    }

    /// What was last measured.
    #[must_use]
    pub fn read(&self) -> OutboxReading {
        self.with(|reading| reading.clone())
    }

    fn with<T>(&self, f: impl FnOnce(&mut OutboxReading) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One relay's counters since its process started, and how it is now.
#[derive(Debug)]
pub struct Metrics {
    delivered: AtomicU64,
    repeated: AtomicU64,
    retried: AtomicU64,
    rejected: AtomicU64,
    set_aside: AtomicU64,
    dead: AtomicU64,
    sink_failures: AtomicU64,
    acknowledgements: AtomicU64,
    changed: AtomicU64,
    gone: AtomicU64,
    lanes: AtomicU64,
    held: AtomicU64,
    refused: AtomicU64,
    /// 0: not known yet.
    tier: AtomicU8,
    /// Less than 0: not measured yet.
    behind: AtomicI64,
    oldest_micros: AtomicI64,
    /// Less than 0: not counted yet.
    parked: AtomicI64,
    dead_now: AtomicI64,
    /// When that was measured, in nanoseconds since boot.
    measured_at: AtomicU64,
    /// What to add to this machine's wall clock to get the database server's, in microseconds.
    server_clock: AtomicI64,
    commit_to_delivery: Histogram,
    sink_down: Mutex<Option<SinkDown>>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            delivered: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            retried: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            set_aside: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            sink_failures: AtomicU64::new(0),
            acknowledgements: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            gone: AtomicU64::new(0),
            lanes: AtomicU64::new(0),
            held: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            tier: AtomicU8::new(0),
            behind: AtomicI64::new(-1),
            oldest_micros: AtomicI64::new(-1),
            parked: AtomicI64::new(-1),
            dead_now: AtomicI64::new(-1),
            measured_at: AtomicU64::new(0),
            server_clock: AtomicI64::new(0),
            commit_to_delivery: Histogram::default(),
            sink_down: Mutex::new(None),
        }
    }
}

/// A sink that is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkDown {
    /// When a call first failed, on this machine's boot-time clock.
    pub since: BootInstant,
    /// The stable code of the last fault.
    pub fault: &'static str,
}

/// A reading of one relay's counters and of how it is now. [`names`] says what each is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// [`names::DELIVERED`]
    pub delivered: u64,
    /// [`names::REPEATED`]
    pub repeated: u64,
    /// [`names::RETRIED`]
    pub retried: u64,
    /// [`names::REJECTED`]
    pub rejected: u64,
    /// Messages that were set aside, to be tried again, each time that they were.
    pub set_aside: u64,
    /// Messages that were given up.
    pub dead: u64,
    /// [`names::SINK_FAILURES`]
    pub sink_failures: u64,
    /// [`names::ACKNOWLEDGEMENTS`]
    pub acknowledgements: u64,
    /// [`names::CHANGED`]
    pub changed: u64,
    /// [`names::GONE`]
    pub gone: u64,
    /// [`names::LANES_OWNED`]
    pub lanes: u64,
    /// [`names::LANES_HELD`]
    pub held: u64,
    /// [`names::LANES_REFUSED`]
    pub refused: u64,
    /// [`names::SINK_TIER`]; `None` until the sink was asked.
    pub tier: Option<Tier>,
    /// [`names::IDS_BEHIND`]; `None` until it was measured.
    pub behind: Option<u64>,
    /// Messages that are set aside and dead ones, up to 10,000 each; `None` until they were counted.
    pub parked: Option<(u64, u64)>,
    /// [`names::OLDEST`]; `None` until it was measured.
    pub oldest: Option<Duration>,
    /// [`names::SINK_DOWN`]; `None` if it is not.
    pub sink_down: Option<SinkDown>,
}

impl Metrics {
    pub(crate) fn delivered(&self, count: u64) {
        self.delivered.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn repeated(&self, count: u64) {
        self.repeated.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn retried(&self) {
        self.retried.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn set_aside(&self) {
        self.set_aside.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn dead(&self) {
        self.dead.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn rejected(&self) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn sink_failed(&self) {
        self.sink_failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn acknowledged(&self) {
        self.acknowledgements.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn gone(&self, rows: u64) {
        self.gone.fetch_add(rows, Ordering::Relaxed);
    }

    pub(crate) fn changed(&self, rows: u64) {
        self.changed.fetch_add(rows, Ordering::Relaxed);
    }

    pub(crate) fn lanes(&self, lanes: usize) {
        self.lanes.store(u64::try_from(lanes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Lanes that a person has to look at.
    pub(crate) fn refused(&self, lanes: usize) {
        self.refused.store(u64::try_from(lanes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// One lane more is held by a message, for as long as the guard lives.
    pub(crate) fn hold(self: &Arc<Self>) -> Holding {
        self.held.fetch_add(1, Ordering::Relaxed);
        Holding(Arc::clone(self))
    }

    pub(crate) fn tier(&self, tier: Tier) {
        self.tier.store(tier.number(), Ordering::Relaxed);
    }

    pub(crate) fn sink_is_down(&self, fault: &Fault) {
        let mut down = self.sink_down.lock().unwrap_or_else(PoisonError::into_inner);
        let since = down.map_or_else(clock::now, |down| down.since);
        *down = Some(SinkDown { since, fault: fault.code().name });
    }

    pub(crate) fn sink_is_up(&self) {
        *self.sink_down.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// How many messages are set aside, and how many are dead.
    pub(crate) fn parked(&self, parked: i64, dead: i64) {
        self.parked.store(parked, Ordering::Relaxed);
        self.dead_now.store(dead, Ordering::Relaxed);
    }

    /// How many ids of the outbox have not been passed by all lanes, and how old the oldest message is that was not
    /// delivered: zero if there is none, `None` if that is not known.
    pub fn behind(&self, ids: u64, oldest: Option<Duration>) {
        self.behind.store(i64::try_from(ids).unwrap_or(i64::MAX), Ordering::Relaxed);
        let micros = oldest.map_or(-1, |oldest| i64::try_from(oldest.as_micros()).unwrap_or(i64::MAX));
        self.oldest_micros.store(micros, Ordering::Relaxed);
        self.measured_at.store(nanos_since_boot(), Ordering::Relaxed);
    }

    /// A message that waits grows older, although the database may not answer: until it is measured anew.
    fn oldest(&self) -> Option<Duration> {
        let micros = u64::try_from(self.oldest_micros.load(Ordering::Relaxed)).ok()?;
        let since = nanos_since_boot().saturating_sub(self.measured_at.load(Ordering::Relaxed));
        let grown = if micros == 0 { Duration::ZERO } else { Duration::from_nanos(since) };
        Some(Duration::from_micros(micros).saturating_add(grown))
    }

    /// What to add to this machine's wall clock to get the database server's, by which messages are dated. Until it was
    /// measured the two are taken to agree.
    pub fn server_clock(&self, offset_micros: i64) {
        self.server_clock.store(offset_micros, Ordering::Relaxed);
    }

    /// The database server's clock said this a moment ago.
    pub(crate) fn server_clock_says(&self, time: Timestamp) {
        self.server_clock(time.0.saturating_sub(wall_clock()));
    }

    /// Begins to count how long messages took that the sink has just answered for: reads the clocks once for all of them.
    pub(crate) fn tally(&self) -> Tally {
        Tally::new(Timestamp(wall_clock().saturating_add(self.server_clock.load(Ordering::Relaxed))))
    }

    pub(crate) fn took(&self, tally: &Tally) {
        self.commit_to_delivery.add(tally);
    }

    /// [`names::COMMIT_TO_DELIVERY`]
    #[must_use]
    pub fn commit_to_delivery(&self) -> &Histogram {
        &self.commit_to_delivery
    }

    /// A replica has ended: it owns no lanes. What was counted stays.
    pub(crate) fn at_rest(&self) {
        self.owns_nothing();
        self.sink_is_up();
    }

    /// A lease is over.
    pub(crate) fn owns_nothing(&self) {
        self.lanes(0);
        self.refused(0);
    }

    /// Reads everything but the histogram.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let known = |value: &AtomicI64| u64::try_from(value.load(Ordering::Relaxed)).ok();
        Counts {
            delivered: read(&self.delivered),
            repeated: read(&self.repeated),
            retried: read(&self.retried),
            rejected: read(&self.rejected),
            set_aside: read(&self.set_aside),
            dead: read(&self.dead),
            sink_failures: read(&self.sink_failures),
            acknowledgements: read(&self.acknowledgements),
            changed: read(&self.changed),
            gone: read(&self.gone),
            lanes: read(&self.lanes),
            held: read(&self.held),
            refused: read(&self.refused),
            tier: Tier::of_number(self.tier.load(Ordering::Relaxed)),
            behind: known(&self.behind),
            parked: known(&self.parked).zip(known(&self.dead_now)),
            oldest: self.oldest(),
            sink_down: *self.sink_down.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// A lane that a message holds.
#[derive(Debug)]
pub(crate) struct Holding(Arc<Metrics>);

impl Drop for Holding {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

fn nanos_since_boot() -> u64 {
    u64::try_from(clock::now().since_boot().as_nanos()).unwrap_or(u64::MAX)
}

/// This machine's wall clock, in microseconds since 1970.
fn wall_clock() -> i64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(wall.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::codes;

    #[test]
    fn what_was_not_measured_is_not_told() {
        let metrics = Metrics::default();
        assert_eq!((metrics.counts().behind, metrics.counts().oldest), (None, None));
        metrics.behind(0, Some(Duration::ZERO));
        assert_eq!((metrics.counts().behind, metrics.counts().oldest), (Some(0), Some(Duration::ZERO)));
        // What waits grows older until the next look.
        metrics.behind(1, Some(Duration::from_secs(9)));
        assert!(metrics.counts().oldest > Some(Duration::from_secs(9)));
        metrics.behind(1, None);
        assert_eq!((metrics.counts().behind, metrics.counts().oldest), (Some(1), None));
    }

    #[test]
    fn an_outage_counts_from_its_first_fault() {
        let metrics = Metrics::default();
        metrics.sink_is_down(&Fault::new(&codes::file::FAILED, "x"));
        let first = metrics.counts().sink_down.unwrap();
        metrics.sink_is_down(&Fault::new(&codes::sink::SILENT, "x"));
        assert_eq!(metrics.counts().sink_down, Some(SinkDown { since: first.since, fault: "sink.silent" }));
        metrics.sink_is_up();
        assert_eq!(metrics.counts().sink_down, None);
    }

    #[test]
    fn a_held_lane_counts_as_long_as_it_is_held() {
        let metrics = Arc::new(Metrics::default());
        let holding = metrics.hold();
        assert_eq!(metrics.counts().held, 1);
        drop(holding);
        assert_eq!(metrics.counts().held, 0);
    }

    #[test]
    fn delivery_is_timed_by_the_servers_clock() {
        let metrics = Metrics::default();
        metrics.server_clock(3_600_000_000);
        let mut tally = metrics.tally();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        // By this machine's clock it is still to come.
        let created = i64::try_from(now.as_micros()).unwrap() + 3_600_000_000 - 2_000_000;
        tally.count(Timestamp(created));
        metrics.took(&tally);
        let sum = metrics.commit_to_delivery().read().0;
        assert!((Duration::from_secs(1)..Duration::from_secs(60)).contains(&sum), "{sum:?}");
    }
}
