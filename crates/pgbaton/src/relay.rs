//! One relay of one replica: the tasks that carry messages from its source to its sink, and what they share.
//!
//! ```text
//!            rooms                 batches              parts              dealt
//!  read ───────────► source ──────────────► publish ───────────► sink ──┐
//!   ▲   one thread a relay      one queue a lane   one task a lane      │
//!   └──────────────────── room ◄──────────── acknowledge ◄──────────────┘
//!                                     one task a relay
//! ```
//!
//! `claim` stands beside them: it decides which lanes run here, and starts and stops their tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OnceCell, Semaphore, mpsc, watch};

use crate::clock;
use crate::error::{Error, Kind};
use crate::lane::{Grant, RelayName, ReplicaId};
use crate::lease::BootInstant;
use crate::metrics::Metrics;
use crate::observe::Observe;
use crate::retry::Policy;
use crate::sink::{Capabilities, ProbeError, Sink};
use crate::source::{Batch, Memory, Room, Source, SourceSpec, Stint};

mod acknowledge;
pub(crate) mod claim;
mod hand_over;
mod held;
mod outage;
mod pauses;
mod publish;
mod read;
mod suspects;
mod wake;

pub(crate) use outage::Outage;
use pauses::Pauses;

/// Batches a lane is read ahead by. Those without messages weigh nothing else, and a lane that is held takes none.
const BATCHES_QUEUED: usize = 64;

/// Lanes that are opened at the sink at once: a replica that takes over many, or a sink that comes back, must not be met by
/// all of them together.
pub(crate) const OPENINGS: usize = 8;

/// How a relay is set up.
#[derive(Clone)]
pub struct RelaySpec {
    /// Its name: the same on all replicas.
    pub name: RelayName,
    /// Where its messages come from.
    pub source: SourceSpec,
    /// How many lanes it gets when it is registered: a power of two. From then on the table counts.
    pub lanes: i32,
    /// Where it starts when it is registered.
    pub start: Start,
    /// Which topics it delivers: patterns in which `*` stands for any text; none means all.
    pub topics: Vec<String>,
    /// Where its messages go.
    pub sink: Arc<dyn Sink>,
    /// How much it holds.
    pub limits: Limits,
    /// How often it does what.
    pub pace: Pace,
    /// How often a message is tried that the sink does not take.
    pub policy: Policy,
    /// Whether to listen for `pgbaton wake`'s notifications besides polling.
    pub wake: bool,
    /// Whether to send again what a sink has lost; if not, the lane stops until an operator decides.
    pub resend_lost: bool,
}

/// Lanes of a relay that does not say how many it is to have.
pub(crate) const LANES: i32 = 16;

/// Lanes a relay has at most: a lane costs a row, a position and, at some sinks, a connection.
pub(crate) const MOST_LANES: i32 = 4_096;

impl RelaySpec {
    /// A relay with the defaults of the configuration file; its fields may be changed.
    ///
    /// # Errors
    /// A name that is not 1 to 63 of `a-z`, `0-9`, `_` and `-`.
    pub fn new(name: &str, sink: impl Sink + 'static) -> Result<Self, Error> {
        let refused = || {
            Error::new(Kind::Config, format!("{name:?} names no relay"))
                .hint("A relay is named by 1 to 63 of a-z, 0-9, _ and -")
        };
        Ok(Self {
            name: RelayName::new(name).ok_or_else(refused)?,
            source: SourceSpec::default(),
            lanes: LANES,
            start: Start::default(),
            topics: Vec::new(),
            sink: Arc::new(sink),
            limits: Limits::default(),
            pace: Pace::default(),
            policy: Policy::default(),
            wake: false,
            resend_lost: false,
        })
    }

    /// What cannot work, where a program rather than a configuration file says it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |problem: &str| Err(Error::new(Kind::Config, format!("relay {}: {problem}", self.name)));
        if self.lanes.count_ones() != 1 || !(1..=MOST_LANES).contains(&self.lanes) {
            return refused("`lanes` is not a power of two from 1 to 4096");
        }
        if self.topics.iter().any(String::is_empty) {
            return refused("`topics` holds an empty text; no topic is empty");
        }
        if let (SourceSpec::Table(_), Some(of_the_outbox)) = (&self.source, self.of_the_outbox()) {
            return refused(&format!("`{of_the_outbox}` is for the outbox, and this relay reads an adopted table"));
        }
        let Limits { in_flight, batch_messages, batch_bytes, memory } = self.limits;
        if [in_flight, batch_messages, batch_bytes, memory].contains(&0) {
            return refused("a limit of 0 lets nothing through");
        }
        Ok(())
    }
}

impl RelaySpec {
    /// A setting that has no meaning for an adopted table: its rows say themselves what is pending.
    pub(crate) fn of_the_outbox(&self) -> Option<&'static str> {
        let set = [
            ("topics", !self.topics.is_empty()),
            ("start", self.start == Start::Latest),
            ("wake", self.wake),
            ("on_sink_loss", self.resend_lost),
        ];
        set.into_iter().find(|(_, set)| *set).map(|(name, _)| name)
    }
}

/// Where a relay starts when it is registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Start {
    /// With every message that the outbox still holds.
    #[default]
    Earliest,
    /// With what commits from now on.
    Latest,
}

/// How much a relay holds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Messages of one lane that were handed to the sink and are not yet covered by a written position: what may repeat
    /// after a crash, where the sink does not drop repeats.
    pub in_flight: usize,
    /// Messages handed to the sink in one call.
    pub batch_messages: usize,
    /// Bytes handed to the sink in one call; a larger message goes alone.
    pub batch_bytes: usize,
    /// Bytes of messages in memory, over all lanes; one message more than fits is let in. When lanes that are held fill it,
    /// the others get up to as much again.
    pub memory: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { in_flight: 5_000, batch_messages: 1_000, batch_bytes: 1 << 20, memory: 8 << 20 }
    }
}

/// How often a relay does what.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// From the beginning of one look at the outbox to the next while messages come in.
    pub busy: Duration,
    /// Between looks at the outbox when nothing has come in for a while.
    pub idle: Duration,
    /// The longest a delivered message waits for its position to be written.
    pub acknowledge: Duration,
    /// The same for a lane that got on without a message.
    pub acknowledge_idle: Duration,
    /// The longest pause between attempts at a failing sink or message.
    pub retry_cap: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            busy: Duration::from_millis(2),
            idle: Duration::from_millis(100),
            acknowledge: Duration::from_millis(100),
            acknowledge_idle: Duration::from_secs(10),
            retry_cap: Duration::from_secs(30),
        }
    }
}

/// What the tasks of one relay share.
pub(crate) struct Relay {
    pub(crate) spec: RelaySpec,
    /// Whose it is.
    pub(crate) replica: ReplicaId,
    /// Known once the sink has answered. Nothing is read before: lanes are opened at the sink first.
    pub(crate) capabilities: OnceCell<Capabilities>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) flows: Flows,
    pub(crate) dealt: mpsc::UnboundedSender<acknowledge::Note>,
    pub(crate) outage: Outage,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) observer: Option<Arc<dyn Observe>>,
    /// Told when an answer came from another incarnation, or a lane turned out to be lost.
    pub(crate) look_again: Arc<Notify>,
    /// Lanes that a person has to look at.
    refused: Mutex<BTreeSet<i32>>,
    /// A person has to look at what is read.
    unreadable: AtomicBool,
    /// What operators have paused of it, as it was last seen.
    pauses: watch::Sender<Pauses>,
    /// How often commands have changed what is set aside, as it was last seen.
    changes: AtomicI64,
    /// One turn at trying a suspect, for all relays of the process.
    suspects: Arc<Semaphore>,
    /// Turns at opening a lane at the sink.
    openings: Semaphore,
}

impl Relay {
    /// So often have commands changed what is set aside.
    fn changed(&self, times: i64) {
        if self.changes.swap(times, Ordering::Relaxed) != times {
            self.source.look_again();
            self.flows.wake.notify_one();
        }
    }

    /// This is what is paused by now.
    fn pause(&self, pauses: Pauses) {
        self.pauses.send_if_modified(|known| {
            let changed = *known != pauses;
            if changed {
                tracing::info!(relay = %self.spec.name, %pauses, "what is paused has changed");
                *known = pauses;
            }
            changed
        });
    }

    /// Asks the sink what it can do, unless that is known.
    async fn probe(&self) -> Result<(), ProbeError> {
        self.capabilities.get_or_try_init(|| probe(&self.spec, &self.metrics)).await.map(drop)
    }

    /// Whether a person has to look at this lane.
    fn refuse(&self, lane: i32, refused: bool) {
        let mut lanes = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if if refused { lanes.insert(lane) } else { lanes.remove(&lane) } {
            self.metrics.refused(lanes.len());
        }
    }

    /// Tells of it if that is due.
    fn reading_failed(&self, error: &Error, tell: bool) {
        if !error.is_transient() {
            self.reading_refused(true);
        }
        match (tell, error.is_transient()) {
            (true, true) => self.report("reading failed; nothing is lost", error),
            (true, false) => self.report("reading is refused: nothing is delivered until a person has decided", error),
            (false, _) => self.consider(error),
        }
    }

    /// Whether a person has to look at all lanes that are read.
    fn reading_refused(&self, refused: bool) {
        self.unreadable.store(refused, Ordering::Relaxed);
        self.flows
            .with(|lanes| lanes.keys().copied().collect::<Vec<_>>())
            .into_iter()
            .for_each(|lane| self.refuse(lane, refused));
    }

    /// Whether reading is refused, so that nothing is delivered.
    pub(crate) fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// These are the lanes that this replica holds.
    fn owns(&self, held: &BTreeSet<i32>) {
        let mut lanes = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.retain(|lane| held.contains(lane));
        self.metrics.refused(lanes.len());
        self.metrics.lanes(held.len());
    }

    /// An error that a task saw while it worked for a lane or the whole relay. Those that only another look at the
    /// database can settle wake the task that looks.
    pub(crate) fn report(&self, what: &str, error: &Error) {
        if error.is_transient() {
            tracing::warn!(relay = %self.spec.name, %error, "{what}");
        } else {
            tracing::error!(relay = %self.spec.name, %error, "{what}");
        }
        self.consider(error);
    }

    /// What an error says of the database rather than of what failed.
    fn consider(&self, error: &Error) {
        if matches!(error.kind(), Kind::OtherIncarnation(_)) {
            self.look_again.notify_one();
        }
    }
}

/// Asks a relay's sink what it can do.
pub(crate) async fn probe(spec: &RelaySpec, metrics: &Metrics) -> Result<Capabilities, ProbeError> {
    let found = spec.sink.probe().await?;
    tracing::info!(relay = %spec.name, tier = %found.tier, "the sink can be used");
    metrics.tier(found.tier);
    Ok(found)
}

/// The lanes that run here, as the reader fills them.
pub(crate) struct Flows {
    lanes: Mutex<BTreeMap<i32, Arc<Flow>>>,
    /// Messages in memory.
    pub(crate) memory: Arc<Memory>,
    /// Wakes the reader: another lane, or news from the database.
    pub(crate) wake: Notify,
    /// Tells the reader that a lane may have room.
    pub(crate) room: Notify,
    /// Has the reader give up what it is reading.
    pub(crate) abandon: Notify,
}

impl Flows {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        Self { lanes: Mutex::default(), memory, wake: Notify::new(), room: Notify::new(), abandon: Notify::new() }
    }

    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<i32, Arc<Flow>>) -> T) -> T {
        f(&mut self.lanes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn add(&self, flow: Arc<Flow>) {
        self.with(|lanes| lanes.insert(flow.grant.lane.number, flow));
        self.wake.notify_one();
    }

    /// From now on nothing is read for it.
    pub(crate) fn remove(&self, grant: &Grant) {
        self.with(|lanes| {
            if lanes.get(&grant.lane.number).is_some_and(|flow| flow.grant == *grant) {
                lanes.remove(&grant.lane.number);
            }
        });
    }

    /// Gives a batch to its lane, unless that has ended or begun anew since the batch was read.
    pub(crate) fn enqueue(&self, batch: Batch) {
        let flow =
            self.with(|lanes| lanes.get(&batch.grant.lane.number).filter(|flow| flow.stint == batch.stint).cloned());
        if let Some(flow) = flow {
            flow.enqueue(batch);
        }
    }

    /// The lane's flow, unless it has ended or begun anew since.
    pub(crate) fn get(&self, grant: &Grant, stint: Stint) -> Option<Arc<Flow>> {
        let same = |flow: &&Arc<Flow>| flow.grant == *grant && flow.stint == stint;
        self.with(|lanes| lanes.get(&grant.lane.number).filter(same).cloned())
    }

    pub(crate) fn rooms(&self, limits: &Limits) -> Vec<Room> {
        let memory = self.memory.held() < limits.memory;
        self.with(|lanes| lanes.values().map(|flow| flow.room(limits, memory)).collect())
    }

    /// Bytes that the next read may bring, and whether one message more than fits may come. Held lanes may fill the memory:
    /// then there is still a share of it, once more, for lanes that hold nothing, and a larger message has to wait. So all
    /// lanes together hold at most twice the limit and one message.
    pub(crate) fn bytes_to_read(&self, limits: &Limits) -> (usize, bool) {
        let share = limits.memory / self.with(|lanes| lanes.len()).max(1);
        let free = limits.memory.saturating_sub(self.memory.held());
        if free > 0 { (free, true) } else { (share.max(1), false) }
    }
}

/// One lane's messages between being read and being acknowledged.
pub(crate) struct Flow {
    pub(crate) grant: Grant,
    pub(crate) stint: Stint,
    queue: mpsc::UnboundedSender<Batch>,
    /// Batches in the queue, also those without messages.
    queued: AtomicUsize,
    /// Bytes of messages that it holds.
    bytes: AtomicUsize,
    /// Messages read and not yet acknowledged.
    outstanding: AtomicUsize,
    /// Messages handed to the sink and not yet acknowledged.
    in_flight: AtomicUsize,
    /// Since when it has had nothing to publish, in nanoseconds since boot; 0 while it has.
    idle_since: AtomicI64,
    /// From when on it takes a batch of messages that were set aside, in nanoseconds since boot: never while it has one.
    retries_from: AtomicI64,
    /// What was dealt with and is written, in batches.
    written: AtomicU64,
    /// Told when a position was written.
    pub(crate) acknowledged: Notify,
    /// What was handed to the sink cannot be acknowledged until a person has decided.
    held: AtomicBool,
}

impl Flow {
    pub(crate) fn new(grant: Grant, stint: Stint) -> (Arc<Self>, mpsc::UnboundedReceiver<Batch>) {
        let (queue, batches) = mpsc::unbounded_channel();
        let flow = Self {
            grant,
            stint,
            queue,
            queued: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            outstanding: AtomicUsize::new(0),
            in_flight: AtomicUsize::new(0),
            idle_since: AtomicI64::new(nanos(clock::now())),
            retries_from: AtomicI64::new(0),
            written: AtomicU64::new(0),
            acknowledged: Notify::new(),
            held: AtomicBool::new(false),
        };
        (Arc::new(flow), batches)
    }

    /// Takes a batch from the reader. The reader stops at the limits, so the queue is bounded by one read beyond them.
    fn enqueue(&self, batch: Batch) {
        self.queued.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(batch.messages.bytes(), Ordering::Relaxed);
        self.outstanding.fetch_add(batch.messages.len(), Ordering::Relaxed);
        if !batch.messages.is_empty() {
            self.idle_since.store(0, Ordering::Relaxed);
        }
        if batch.is_retry() {
            self.retries_from.store(i64::MAX, Ordering::Relaxed);
        }
        // A lane that has just ended takes no more; what it was given is read again by its next owner.
        let _ = self.queue.send(batch);
    }

    pub(crate) fn dequeued(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// A batch of so many bytes has been dealt with.
    pub(crate) fn let_go(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A batch of messages that had been set aside is not dealt with: they still are. The next one comes no sooner than that.
    pub(crate) fn dropped(&self, retry: &Batch, next: BootInstant) {
        self.outstanding.fetch_sub(retry.messages.len(), Ordering::Relaxed);
        self.let_go(retry.messages.bytes());
        self.retries_from(next);
    }

    /// Messages that were read and not handed to the sink.
    pub(crate) fn waiting(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed).saturating_sub(self.in_flight())
    }

    pub(crate) fn idle(&self) {
        self.idle_since.store(nanos(clock::now()), Ordering::Relaxed);
    }

    pub(crate) fn handed(&self, messages: usize) {
        self.in_flight.fetch_add(messages, Ordering::Relaxed);
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Nothing more is handed to the sink before what was is acknowledged, which takes a person.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    /// From this moment on it takes another batch of messages that were set aside.
    pub(crate) fn retries_from(&self, at: BootInstant) {
        self.retries_from.store(nanos(at), Ordering::Relaxed);
    }

    /// So many batches are dealt with and written.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// A written position covers these messages, and so many batches.
    pub(crate) fn covered(&self, messages: usize, batches: u64) {
        self.written.fetch_add(batches, Ordering::Relaxed);
        self.in_flight.fetch_sub(messages, Ordering::Relaxed);
        self.outstanding.fetch_sub(messages, Ordering::Relaxed);
        self.held.store(false, Ordering::Relaxed);
        self.acknowledged.notify_one();
    }

    fn room(&self, limits: &Limits, memory: bool) -> Room {
        // As much again as may be in flight is read ahead, so that the sink never waits for a read.
        let room = (memory || self.bytes.load(Ordering::Relaxed) == 0)
            && self.outstanding.load(Ordering::Relaxed) < 2 * limits.in_flight
            && self.queued.load(Ordering::Relaxed) < BATCHES_QUEUED;
        let idle_since = match self.idle_since.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(BootInstant::from_boot(Duration::from_nanos(u64::try_from(nanos).unwrap_or_default()))),
        };
        let retries = nanos(clock::now()) >= self.retries_from.load(Ordering::Relaxed);
        Room { grant: self.grant.clone(), room, idle_since, retries }
    }
}

fn nanos(at: BootInstant) -> i64 {
    i64::try_from(at.since_boot().as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Epoch, Lane};

    fn batch(memory: &Arc<Memory>, grant: &Grant, stint: Stint) -> Batch {
        Batch::empty(grant.clone(), stint, memory)
    }

    /// The reader may be held up between reading and handing over, and meanwhile the lane is opened again under the same
    /// grant: what it has read is behind what the lane reads now, or ahead of it.
    #[test]
    fn what_was_read_for_an_earlier_stint_reaches_no_later_one() {
        let memory = Arc::default();
        let flows = Flows::new(Arc::clone(&memory));
        let relay = RelayName::new("orders").unwrap();
        let grant = Grant { lane: Lane { relay, number: 3, of: 16 }, epoch: Epoch(7) };
        let (flow, mut batches) = Flow::new(grant.clone(), Stint(2));
        flows.add(flow);
        flows.enqueue(batch(&memory, &grant, Stint(1)));
        assert!(batches.try_recv().is_err());
        flows.enqueue(batch(&memory, &grant, Stint(2)));
        assert!(batches.try_recv().is_ok());
        flows.remove(&grant);
        flows.enqueue(batch(&memory, &grant, Stint(2)));
        assert!(batches.try_recv().is_err());
    }
}
