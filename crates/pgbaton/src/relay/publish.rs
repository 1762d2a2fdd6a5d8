//! One lane from being opened to being given back: settles what the sink has, then hands it batch after batch.
//!
//! One batch at a time. Every wait ends when the lease does; every write is preceded by a look at the clock, in the sink
//! itself. What becomes of a message that the sink does not take: `hand_over`.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::acknowledge::Note;
use super::hand_over::Handed;
use super::held::Held;
use super::suspects::Suspicion;
use super::{Flow, Relay};
use crate::clock::{self, Deadline, SharedLease};
use crate::error::{Error, Kind};
use crate::faults;
use crate::history;
use crate::lane::{Epoch, Grant};
use crate::position::Incarnation;
use crate::reminder::Reminder;
use crate::retry::Backoff;
use crate::sink::{OpenError, OpenLane, Opening, ProbeError};
use crate::source::{Batch, Opaque, Opened, SourceSpec};

/// After a batch of messages that had been set aside of which none was delivered, the lane has none for so many times as long as it
/// took.
const FAILING_REST: u32 = 19;
/// But no longer: it may be the sink that was down for long.
const LONGEST_REST: Duration = Duration::from_secs(60);
/// A batch of messages that had been set aside was dropped, so that what was read behind it could be tried: none for so long.
const DROPPED_REST: Duration = Duration::from_secs(1);

/// What a lane is started with.
pub(crate) struct LaneStart {
    pub(crate) relay: Arc<Relay>,
    pub(crate) grant: Grant,
    pub(crate) opening: Opening,
    /// The incarnation it was granted in.
    pub(crate) here: Incarnation,
    pub(crate) lease: SharedLease,
    pub(crate) orders: watch::Receiver<Order>,
    pub(crate) stop: watch::Receiver<bool>,
    /// Owners of the lane that died one after the other before this one.
    pub(crate) deaths: Arc<AtomicU32>,
}

/// What the owner of the lane's task wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Go on.
    Run,
    /// Finish what is in flight, write the position, end.
    Drain,
    /// The same, but not before it was opened: only a lane that is settled can be split.
    Split,
}

/// How a lane's task ended.
#[derive(Debug)]
pub(crate) enum LaneEnd {
    /// Its position is written: it may be given back.
    Drained,
    /// The lease ended, or the lane was taken away. Nothing may be done for it any more.
    Stopped,
    /// The sink knows an epoch as high as ours, or higher.
    Fenced(Epoch),
    /// It has to be opened again under the same grant.
    Reopen,
    /// A person has to decide; the lane is held and not published.
    Refused(Error),
}

/// A lane's task that has ended.
pub(crate) struct LaneEnded {
    pub(crate) grant: Grant,
    pub(crate) end: LaneEnd,
    /// How the grant's lane is opened next: for the first time, as long as the sink has not opened it.
    pub(crate) opening: Opening,
}

/// Runs one lane to its end.
pub(crate) async fn run(mut start: LaneStart) -> LaneEnded {
    let (replica, grant, timeline) = (start.relay.replica, start.grant.clone(), start.here.timeline);
    let told_of = Arc::new(history::Held { replica, grant, timeline });
    let deadline = Deadline::new(start.lease.clone(), start.stop.clone()).told_of(Arc::clone(&told_of));
    let end = match take_up(&mut start, deadline, told_of).await {
        Ok(lane) => lane.publish().await,
        Err(end) => end,
    };
    let LaneStart { relay, grant, opening, .. } = start;
    relay.flows.remove(&grant);
    relay.source.close(&grant);
    relay.outage.gone(&grant.lane);
    relay.refuse(grant.lane.number, matches!(end, LaneEnd::Refused(_)));
    if !matches!(end, LaneEnd::Drained) {
        let _ = relay.dealt.send(Note::Forget(grant.clone()));
    }
    LaneEnded { grant, end, opening }
}

/// Opens the sink, settles, and gets the lane into the reader's hands.
async fn take_up(start: &mut LaneStart, deadline: Deadline, told_of: Arc<history::Held>) -> Result<LaneTask, LaneEnd> {
    let (sink, holds) = loop {
        let opened = tokio::select! {
            biased;
            () = deadline.over() => return Err(LaneEnd::Stopped),
            () = given_up(&mut start.orders) => return Err(LaneEnd::Drained),
            opened = open_sink(&start.relay, &start.grant, start.opening) => opened?,
        };
        if let Some(opened) = opened {
            break opened;
        }
    };
    start.relay.outage.answered(&start.grant.lane);
    start.opening = Opening::Again;
    faults::point("lane.fenced");
    let (relay, grant) = (&start.relay, &start.grant);
    let source = tokio::select! {
        biased;
        () = deadline.over() => return Err(LaneEnd::Stopped),
        opened = relay.source.open(grant, &start.here, holds.as_ref()) => opened,
    };
    let (stint, batch) = match source {
        Ok((stint, opened)) => (stint, settled(relay, grant, &opened)?),
        Err(error) if error.is_transient() => {
            relay.report("a lane could not be opened; trying again", &error);
            return Err(LaneEnd::Reopen);
        }
        Err(error) => return Err(LaneEnd::Refused(error)),
    };
    let keeps = relay.capabilities.get().is_some_and(|sink| sink.keeps_position);
    if keeps && holds.is_none() && batch > 0 {
        tracing::warn!(%grant, batch, "the sink holds no position for this lane, though it was sent batches");
    }
    let (flow, batches) = Flow::new(grant.clone(), stint);
    relay.flows.add(Arc::clone(&flow));
    relay.refuse(grant.lane.number, false);
    tracing::debug!(%grant, batch, "lane opened");
    Ok(LaneTask {
        relay: Arc::clone(relay),
        flow,
        batches,
        sink: Some(sink),
        holds,
        batch,
        deadline,
        told_of,
        orders: start.orders.clone(),
        ahead: None,
        messages: 0,
        bytes: 0,
        dealt: 0,
        awaits: false,
        held: None,
        told: Reminder::default(),
        suspicion: Suspicion::new(Arc::clone(&start.deaths), &relay.spec.limits),
    })
}

/// What became of settling, for the log; gives the number of the lane's last batch.
fn settled(relay: &Relay, grant: &Grant, opened: &Opened) -> Result<i64, LaneEnd> {
    match *opened {
        Opened::Ours { batch } => Ok(batch),
        Opened::Settled { batch } => {
            tracing::info!(%grant, batch, "the sink already had the last batch: recorded as delivered");
            Ok(batch)
        }
        Opened::Announced { batch } => {
            tracing::warn!(
                %grant,
                "the sink's position is of another life of the database: messages it had beyond ours repeat, and it \
                 drops them by message id if it can"
            );
            Ok(batch)
        }
        Opened::SinkLost { resend: true, batch, holds } => {
            tracing::warn!(%grant, batch, holds, "the sink has lost delivered batches: sending them again, as configured");
            Ok(batch)
        }
        Opened::SinkLost { resend: false, batch, holds } => Err(LaneEnd::Refused(Error::refused(
            format!("{grant}: the sink holds batch {holds}, and batch {batch} was delivered: it has lost its tail"),
            match relay.spec.source {
                SourceSpec::Native => {
                    "Restore the sink. Or set `on_sink_loss = \"resend\"` for this relay to send the lost messages again; after a \
                     fail-over, which makes the sink's own position worthless, drop the relay and register it again"
                }
                SourceSpec::Table(_) => {
                    "Restore the sink. Or drop the relay (`pgbaton relays drop`), set the rows that the sink has lost back to \
                     pending, and start it again"
                }
            },
        ))),
    }
}

/// One try at opening the sink. `None`: it is down, and the relay has paused.
pub(super) async fn open_sink(
    relay: &Relay,
    grant: &Grant,
    opening: Opening,
) -> Result<Option<(Box<dyn OpenLane>, Option<Opaque>)>, LaneEnd> {
    // A closed semaphore would let all through.
    let _opening = relay.openings.acquire().await;
    let _turn = relay.outage.turn().await;
    let fault = match relay.probe().await {
        Ok(()) => match relay.spec.sink.open(grant, opening).await {
            Ok(mut lane) => match lane.position().await {
                Ok(holds) => return Ok(Some((lane, holds))),
                Err(fault) => fault,
            },
            Err(OpenError::Fenced { epoch }) => return Err(LaneEnd::Fenced(epoch)),
            Err(OpenError::SinkDown(fault)) => fault,
        },
        Err(error @ ProbeError::Unusable(_)) => {
            let error = Error::new(Kind::Sink, format!("{grant}: {error}"));
            return Err(LaneEnd::Refused(error.hint("Check the relay's `sink` section")));
        }
        Err(ProbeError::SinkDown(fault)) => fault,
    };
    relay.metrics.sink_failed();
    relay.outage.failed(&grant.lane, &fault);
    Ok(None)
}

/// Returns when the lane is to be drained, or nobody is left to say so. Cancel-safe.
async fn drained(orders: &mut watch::Receiver<Order>) {
    // An error means that the sender is gone: the same as an order to end.
    let _ = orders.wait_for(|order| *order != Order::Run).await;
}

/// The same for a lane that is not settled: it is not open yet, or it is not known what its sink has.
pub(super) async fn given_up(orders: &mut watch::Receiver<Order>) {
    let _ = orders.wait_for(|order| *order == Order::Drain).await;
}

/// What was taken out of the queue already, or the next one in it. Cancel-safe.
async fn next_batch(
    ahead: &mut Option<Batch>,
    batches: &mut mpsc::UnboundedReceiver<Batch>,
    flow: &Flow,
) -> Option<Batch> {
    match ahead.take() {
        Some(batch) => Some(batch),
        None => batches.recv().await.inspect(|_| flow.dequeued()),
    }
}

/// What else a lane has to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    /// It was taken into the batch in hand.
    Taken,
    /// There is nothing, or nothing that could be tried before the batch in hand is dealt with.
    None,
    /// There is something, but as much is in flight as may be.
    Later,
}

pub(super) struct LaneTask {
    pub(super) relay: Arc<Relay>,
    pub(super) flow: Arc<Flow>,
    pub(super) batches: mpsc::UnboundedReceiver<Batch>,
    /// None while it is opened again: there are never two open lanes for one grant.
    pub(super) sink: Option<Box<dyn OpenLane>>,
    /// What the sink was last known to hold.
    pub(super) holds: Option<Opaque>,
    /// The number of the last batch that it has taken.
    pub(super) batch: i64,
    pub(super) deadline: Deadline,
    /// For the history.
    pub(super) told_of: Arc<history::Held>,
    pub(super) orders: watch::Receiver<Order>,
    /// Taken out of the queue, and still to be dealt with.
    ahead: Option<Batch>,
    /// Of the batch in hand, and of those that were taken into it: messages of its present part, and bytes.
    messages: usize,
    bytes: usize,
    /// How many batches were dealt with in this stint.
    dealt: u64,
    /// Nothing is handed over before the last of these is written.
    awaits: bool,
    /// While a message holds the lane.
    pub(super) held: Option<Held>,
    /// What was told of messages that are set aside.
    pub(super) told: Reminder,
    pub(super) suspicion: Suspicion,
}

impl LaneTask {
    async fn publish(mut self) -> LaneEnd {
        loop {
            let batch = tokio::select! {
                biased;
                () = self.deadline.over() => return LaneEnd::Stopped,
                () = drained(&mut self.orders) => return self.drain().await,
                batch = next_batch(&mut self.ahead, &mut self.batches, &self.flow) => batch,
            };
            // The reader's end is held by this task's own flow.
            let Some(batch) = batch else { return LaneEnd::Reopen };
            self.relay.flows.room.notify_one();
            if !self.has_its_turn(&batch) {
                continue;
            }
            self.bytes = batch.messages.bytes();
            if let Err(end) = self.deal_with(batch).await {
                // A lane ordered to drain in the middle of a batch gives back what it has finished.
                return if matches!(end, LaneEnd::Drained) { self.drain().await } else { end };
            }
            self.flow.let_go(self.bytes);
            if self.ahead.is_none() && self.batches.is_empty() {
                self.flow.idle();
            }
        }
    }

    /// Takes the lane's next batch into this one, to see whether the sink takes that.
    pub(super) async fn try_more(&mut self, batch: &mut Batch) -> Result<More, LaneEnd> {
        if batch.is_retry() || self.one_batch_at_a_time() || self.keeps_position() {
            return Ok(More::None);
        }
        let mut next = loop {
            let next = self.ahead.take().or_else(|| self.batches.try_recv().ok().inspect(|_| self.flow.dequeued()));
            match next {
                None => return Ok(More::None),
                // It stays set aside, and is due again in a moment.
                Some(retry) if retry.is_retry() => self.flow.dropped(&retry, clock::now().after(DROPPED_REST)),
                Some(next) => break next,
            }
        };
        let messages = next.messages.len();
        if messages > 0 && self.flow.in_flight() + messages > self.relay.spec.limits.in_flight {
            self.ahead = Some(next);
            return Ok(More::Later);
        }
        self.bytes += next.messages.bytes();
        self.leave_out_what_waits(&mut next, &HashSet::new()).await?;
        // What is set aside with the batch in hand is not written yet.
        let waits = next.waiting_for(batch);
        next.set_aside(waits.into_iter().map(|place| (place, None)).collect());
        self.flow.handed(messages);
        self.messages += messages;
        batch.extend(next);
        Ok(More::Taken)
    }

    /// Nothing more is read for the lane, what was read and not handed out is dropped, and the position is written. As long as
    /// that is refused the lane is not given back: whoever had it next would send again what was delivered.
    async fn drain(&mut self) -> LaneEnd {
        self.relay.flows.remove(&self.flow.grant);
        let (done, written) = oneshot::channel();
        if self.relay.dealt.send(Note::Flush(self.flow.grant.clone(), done)).is_err() {
            return LaneEnd::Stopped;
        }
        tokio::select! {
            biased;
            () = self.deadline.over() => LaneEnd::Stopped,
            written = written => if written.is_ok() { LaneEnd::Drained } else { LaneEnd::Stopped },
        }
    }

    /// Hands over a batch, perhaps in parts, and tells what became of it.
    async fn deal_with(&mut self, batch: Batch) -> Result<(), LaneEnd> {
        let (messages, retry, began) = (batch.messages.len(), batch.is_retry(), clock::now());
        if messages > 0 || self.awaits {
            self.wait_for_acknowledgements(messages).await?;
        }
        self.flow.handed(messages);
        let mut delivered = false;
        // Of messages that had been set aside those of a key that fails wait behind it as before.
        let mut failed = HashSet::new();
        let mut parts = vec![(batch, messages)];
        while let Some((mut part, messages)) = parts.pop() {
            // More of them if further batches are taken into it: such a one is not divided.
            self.messages = messages;
            let read = part.messages.len();
            self.leave_out_what_waits(&mut part, &failed).await?;
            // That is no failure.
            delivered |= self.suspect(&mut part, read);
            if let Handed::Divide = self.hand_over(&mut part).await? {
                let rest = part.split_off(part.messages.len() / 2);
                let of_rest = rest.messages.len();
                parts.extend([(rest, of_rest), (part, self.messages - of_rest)]);
                continue;
            }
            delivered |= !part.messages.is_empty();
            failed.extend(part.failed_again());
            self.deal(part, self.messages)?;
            if !parts.is_empty() {
                self.wait_for_acknowledgements(0).await?;
            }
        }
        if retry {
            self.wait_for_acknowledgements(0).await?;
            self.suspicion.ends_turn();
            let now = clock::now();
            // What only fails takes no more than a twentieth of the lane's time.
            self.flow.retries_from(if delivered {
                now
            } else {
                now.after((now.since(began) * FAILING_REST).min(LONGEST_REST))
            });
            // More of them may be due, and nothing else be there to read.
            self.relay.flows.wake.notify_one();
            self.relay.flows.room.notify_one();
        }
        Ok(())
    }

    /// All of it is delivered or set aside.
    fn deal(&mut self, part: Batch, messages: usize) -> Result<(), LaneEnd> {
        let changes_parked = part.changes_parked();
        let dealt = part.into_dealt(self.batch).map_err(LaneEnd::Refused)?;
        faults::point("lane.delivered");
        let awaited = changes_parked || (messages > 0 && self.one_batch_at_a_time());
        self.awaits |= changes_parked;
        self.dealt += 1;
        self.suspicion.dealt(messages);
        self.relay.dealt.send(Note::Dealt { dealt, messages, awaited }).map_err(|_| LaneEnd::Stopped)
    }

    /// What waits behind a message that is set aside is set aside with it.
    async fn leave_out_what_waits(&mut self, part: &mut Batch, failed: &HashSet<i64>) -> Result<(), LaneEnd> {
        let waits: Vec<usize> = if part.is_retry() {
            let of_failed = |(_, hash): &(usize, &i64)| failed.contains(hash);
            part.hashes().iter().enumerate().filter(of_failed).map(|(place, _)| place).collect()
        } else {
            let (held, later) = (self.held(part).await?, part.take_later());
            if later.is_empty() {
                held
            } else {
                BTreeSet::from_iter(held.into_iter().chain(later)).into_iter().collect()
            }
        };
        if !waits.is_empty() {
            part.set_aside(waits.into_iter().map(|place| (place, None)).collect());
        }
        Ok(())
    }

    /// Nothing is handed over while an operator has paused the lane.
    pub(super) async fn wait_while_paused(&mut self) -> Result<(), LaneEnd> {
        let (mut pauses, lane) = (self.relay.pauses.subscribe(), self.flow.grant.lane.number);
        // It cannot be gone while its relay is there.
        self.wait_for(async move { pauses.wait_for(|pauses| !pauses.stop(lane)).await.map(drop) }).await.map(drop)
    }

    /// Without an answer nothing can be handed over in order.
    async fn held(&mut self, part: &Batch) -> Result<Vec<usize>, LaneEnd> {
        let relay = Arc::clone(&self.relay);
        self.until_told("it could not be asked what is set aside; trying again", || relay.source.held(part)).await
    }

    /// Asks the source until there is an answer, for as long as the lane goes on; `trouble` is told while there is none.
    pub(super) async fn until_told<T, F: Future<Output = Result<T, Error>>>(
        &mut self,
        trouble: &str,
        ask: impl Fn() -> F,
    ) -> Result<T, LaneEnd> {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        loop {
            match self.wait_for(ask()).await? {
                Ok(told) => return Ok(told),
                Err(error) if error.is_transient() => {
                    self.relay.report(trouble, &error);
                    self.pause(backoff.next(rand::random())).await?;
                }
                Err(error) => return Err(LaneEnd::Refused(error)),
            }
        }
    }

    /// What may repeat after a crash is bounded: handed over, and not yet covered by a written position. And what was set aside, or
    /// tried again, is written before anything else is handed over.
    async fn wait_for_acknowledgements(&mut self, messages: usize) -> Result<(), LaneEnd> {
        let limit = self.relay.spec.limits.in_flight;
        let is_full = |lane: &Self| lane.flow.in_flight() > 0 && lane.flow.in_flight() + messages > limit;
        while self.flow.written() < self.dealt
            && (self.awaits || self.flow.is_held() || self.one_batch_at_a_time() || (messages > 0 && is_full(self)))
        {
            tokio::select! {
                biased;
                () = self.deadline.over() => return Err(LaneEnd::Stopped),
                () = drained(&mut self.orders) => return Err(LaneEnd::Drained),
                () = self.flow.acknowledged.notified() => {}
            }
        }
        self.awaits &= self.flow.written() < self.dealt;
        Ok(())
    }

    fn one_batch_at_a_time(&self) -> bool {
        self.suspicion.is_careful() || self.relay.source.one_batch_at_a_time(self.keeps_position())
    }

    pub(super) fn keeps_position(&self) -> bool {
        self.relay.capabilities.get().is_some_and(|sink| sink.keeps_position)
    }

    /// Between attempts.
    pub(super) async fn pause(&mut self, pause: Duration) -> Result<(), LaneEnd> {
        self.wait_for(tokio::time::sleep(pause)).await
    }

    /// For as long as the lane goes on. It is not split meanwhile: it may not be known what the sink has.
    pub(super) async fn wait_for<T>(&mut self, what: impl Future<Output = T>) -> Result<T, LaneEnd> {
        tokio::select! {
            biased;
            () = self.deadline.over() => Err(LaneEnd::Stopped),
            () = given_up(&mut self.orders) => Err(LaneEnd::Drained),
            done = what => Ok(done),
        }
    }
}
