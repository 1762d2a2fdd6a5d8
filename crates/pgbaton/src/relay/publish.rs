//! One lane from being opened to being given back: settles what the sink has, then hands it batch after batch.
//!
//! One batch at a time. Every wait ends when the lease does; every write is preceded by a look at the clock, in the sink
//! itself. Nothing is skipped: a message that the sink does not take holds its lane.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};

use super::acknowledge::Note;
use super::held::{Held, Refusal};
use super::{Flow, Relay};
use crate::clock::{Deadline, SharedLease};
use crate::error::{Error, Kind};
use crate::faults;
use crate::history;
use crate::lane::{Epoch, Grant};
use crate::observe::Answered;
use crate::outcome::{AppendError, Outcome};
use crate::position::Incarnation;
use crate::retry::Backoff;
use crate::sink::{OpenError, OpenLane, Opening, Part, ProbeError};
use crate::source::{Batch, Bookmark, Dealt, Opaque, Opened, SourceSpec};

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
        held: None,
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
async fn open_sink(
    relay: &Relay,
    grant: &Grant,
    opening: Opening,
) -> Result<Option<(Box<dyn OpenLane>, Option<Opaque>)>, LaneEnd> {
    // A closed semaphore would let all through.
    let _turn = relay.openings.acquire().await;
    relay.outage.wait().await;
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

/// How far the lane is after this batch.
fn bookmark(batch: &Batch) -> Result<Bookmark, LaneEnd> {
    batch.bookmark().map_err(LaneEnd::Refused)
}

/// A refusal that names no message, as one outcome of each: of several, those without fault may be taken later.
fn of_each(answer: Result<Vec<Outcome>, AppendError>, messages: usize) -> Result<Vec<Outcome>, AppendError> {
    match answer {
        Err(AppendError::Refused(fault)) if messages == 1 => Ok(vec![Outcome::Rejected(fault)]),
        Err(AppendError::Refused(fault)) => Ok(vec![Outcome::Retry { after: None, fault }; messages]),
        answer => answer,
    }
}

/// Returns when the lane is to be drained, or nobody is left to say so. Cancel-safe.
async fn drained(orders: &mut watch::Receiver<Order>) {
    // An error means that the sender is gone: the same as an order to end.
    let _ = orders.wait_for(|order| *order != Order::Run).await;
}

/// The same for a lane that is not settled: it is not open yet, or it is not known what its sink has.
async fn given_up(orders: &mut watch::Receiver<Order>) {
    let _ = orders.wait_for(|order| *order == Order::Drain).await;
}

struct LaneTask {
    relay: Arc<Relay>,
    flow: Arc<Flow>,
    batches: mpsc::UnboundedReceiver<Batch>,
    /// None while it is opened again: there are never two open lanes for one grant.
    sink: Option<Box<dyn OpenLane>>,
    /// What the sink was last known to hold.
    holds: Option<Opaque>,
    /// The number of the last batch that was handed to it.
    batch: i64,
    deadline: Deadline,
    /// For the history.
    told_of: Arc<history::Held>,
    orders: watch::Receiver<Order>,
    /// While a message holds the lane.
    held: Option<Held>,
}

impl LaneTask {
    async fn publish(mut self) -> LaneEnd {
        loop {
            let batch = tokio::select! {
                biased;
                () = self.deadline.over() => return LaneEnd::Stopped,
                () = drained(&mut self.orders) => return self.drain().await,
                batch = self.batches.recv() => batch,
            };
            // The reader's end is held by this task's own flow.
            let Some(batch) = batch else { return LaneEnd::Reopen };
            self.flow.dequeued();
            self.relay.flows.room.notify_one();
            let bytes = batch.messages.bytes();
            if let Err(end) = self.deal_with(batch).await {
                // A lane ordered to drain in the middle of a batch gives back what it has finished.
                return if matches!(end, LaneEnd::Drained) { self.drain().await } else { end };
            }
            self.flow.let_go(bytes);
            if self.batches.is_empty() {
                self.flow.idle();
            }
        }
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

    async fn deal_with(&mut self, batch: Batch) -> Result<(), LaneEnd> {
        let messages = batch.messages.len();
        if messages > 0 {
            self.wait_for_acknowledgements(messages).await?;
            self.batch += 1;
            self.hand_over(&batch).await?;
        }
        let (grant, stint, next) = (self.flow.grant.clone(), batch.stint, bookmark(&batch)?);
        let dealt = Dealt { grant, stint, batch: self.batch, next };
        faults::point("lane.delivered");
        let awaited = messages > 0 && self.one_batch_at_a_time();
        self.relay.dealt.send(Note::Dealt { dealt, messages, awaited }).map_err(|_| LaneEnd::Stopped)
    }

    /// What may repeat after a crash is bounded: handed over, and not yet covered by a written position.
    async fn wait_for_acknowledgements(&mut self, messages: usize) -> Result<(), LaneEnd> {
        let limit = self.relay.spec.limits.in_flight;
        let is_full = |lane: &Self| lane.flow.in_flight() + messages > limit || lane.one_batch_at_a_time();
        while self.flow.in_flight() > 0 && (self.flow.is_held() || is_full(self)) {
            tokio::select! {
                biased;
                () = self.deadline.over() => return Err(LaneEnd::Stopped),
                () = drained(&mut self.orders) => return Err(LaneEnd::Drained),
                () = self.flow.acknowledged.notified() => {}
            }
        }
        Ok(())
    }

    fn one_batch_at_a_time(&self) -> bool {
        let keeps = self.relay.capabilities.get().is_some_and(|sink| sink.keeps_position);
        self.relay.source.one_batch_at_a_time(keeps)
    }

    /// Hands one batch to the sink until every message of it is there.
    async fn hand_over(&mut self, batch: &Batch) -> Result<(), LaneEnd> {
        let mut backoff = Backoff::new(Duration::from_millis(100), self.relay.spec.pace.retry_cap);
        let next = Opaque::new(self.batch, &bookmark(batch)?);
        let mut left: Vec<usize> = (0..batch.messages.len()).collect();
        self.flow.handed(batch.messages.len());
        while !left.is_empty() {
            let part = Part::whole(&batch.messages, self.holds.as_ref(), &next);
            let part = if left.len() < batch.messages.len() { part.rest(&left) } else { part };
            faults::point("lane.before_append");
            let Some(sink) = &mut self.sink else { return Err(LaneEnd::Reopen) };
            let began = self.relay.observer.is_some().then(SystemTime::now);
            let call = async { of_each(sink.append(&part, &self.deadline).await, part.len()) };
            let answer = tokio::select! {
                biased;
                () = self.deadline.over() => return Err(LaneEnd::Stopped),
                answer = history::published(&self.told_of, self.batch, &part, call) => answer,
            };
            faults::point("lane.appended");
            match answer {
                Ok(outcomes) => {
                    self.relay.outage.over(&self.flow.grant.lane);
                    self.show(&part, &outcomes, began);
                    let (refused, asked) = self.take_outcomes(&outcomes, &mut left, batch);
                    if !left.is_empty() {
                        let pause = asked.unwrap_or_default().max(backoff.next(rand::random()));
                        if let Some(refusal) = refused {
                            let held = self.held.get_or_insert_with(|| Held::new(&self.relay.metrics));
                            held.tell(&self.flow.grant, self.batch, &refusal, pause);
                        }
                        self.pause(pause).await?;
                    }
                }
                Err(error) => {
                    if self.recover(&error, &next, &mut backoff).await? {
                        self.relay.outage.over(&self.flow.grant.lane);
                        let part = Part::whole(&batch.messages, None, &next).rest(&left);
                        self.show(&part, &vec![Outcome::Delivered; part.len()], began);
                        self.all_delivered(&mut left, batch);
                    }
                }
            }
        }
        let keeps = self.relay.capabilities.get().is_some_and(|sink| sink.keeps_position);
        self.holds = keeps.then_some(next);
        if self.held.take().is_some() {
            tracing::info!(grant = %self.flow.grant, batch = self.batch, "the sink took it; the lane goes on");
        }
        Ok(())
    }

    /// Shows an answer to whoever watches.
    fn show(&self, part: &Part<'_>, outcomes: &[Outcome], began: Option<SystemTime>) {
        if let (Some(observer), Some(began)) = (&self.relay.observer, began) {
            observer.answered(&Answered { grant: &self.flow.grant, part, outcomes, began });
        }
    }

    /// The sink turned out to have all that was left.
    fn all_delivered(&self, left: &mut Vec<usize>, batch: &Batch) {
        let metrics = &self.relay.metrics;
        let mut tally = metrics.tally();
        metrics.delivered(u64::try_from(left.len()).unwrap_or_default());
        left.drain(..).filter_map(|message| batch.messages.created_at(message)).for_each(|at| tally.count(at));
        metrics.took(&tally);
    }

    /// Counts outcomes and keeps in `left` what is not at the sink yet. Gives the first message that the sink refused, and the
    /// longest pause that it asked for.
    fn take_outcomes<'a>(
        &self,
        outcomes: &'a [Outcome],
        left: &mut Vec<usize>,
        batch: &'a Batch,
    ) -> (Option<Refusal<'a>>, Option<Duration>) {
        let metrics = &self.relay.metrics;
        let mut tally = metrics.tally();
        let (mut delivered, mut repeated, mut longest, mut refused) = (0, 0, None, None);
        let tried = std::mem::take(left);
        for (index, message) in tried.iter().enumerate() {
            // A sink that answers for fewer messages than it was given has not answered for this one.
            match outcomes.get(index).unwrap_or(&Outcome::NotTried) {
                Outcome::Delivered => {
                    delivered += 1;
                    batch.messages.created_at(*message).into_iter().for_each(|at| tally.count(at));
                    continue;
                }
                Outcome::Repeated => {
                    repeated += 1;
                    continue;
                }
                Outcome::Retry { after, fault } => {
                    metrics.retried();
                    longest = longest.max(*after);
                    refused = refused.or(Some((*message, fault, false)));
                }
                Outcome::Rejected(fault) => {
                    metrics.rejected();
                    refused = refused.or(Some((*message, fault, true)));
                }
                Outcome::NotTried => {}
            }
            left.push(*message);
        }
        metrics.delivered(delivered);
        metrics.repeated(repeated);
        metrics.took(&tally);
        let refusal = refused.and_then(|(message, fault, rejected)| {
            let message = batch.messages.iter().nth(message)?;
            Some(Refusal { fault, rejected, message: message.id, topic: message.topic, left: left.len() })
        });
        (refusal, longest)
    }

    /// Between attempts, and while it is not known what the sink has: a lane is not split then.
    async fn pause(&mut self, pause: Duration) -> Result<(), LaneEnd> {
        tokio::select! {
            biased;
            () = self.deadline.over() => Err(LaneEnd::Stopped),
            () = given_up(&mut self.orders) => Err(LaneEnd::Drained),
            () = tokio::time::sleep(pause) => Ok(()),
        }
    }

    /// The call failed as a whole. True if it turns out that the sink has the batch.
    async fn recover(&mut self, error: &AppendError, next: &Opaque, backoff: &mut Backoff) -> Result<bool, LaneEnd> {
        match error {
            AppendError::LeaseOver => return Err(LaneEnd::Stopped),
            AppendError::Fenced { epoch } => return Err(LaneEnd::Fenced(*epoch)),
            AppendError::Moved => return Err(LaneEnd::Reopen),
            // A refusal is an answer of each message by now.
            AppendError::SinkDown(fault) | AppendError::Refused(fault) => {
                self.relay.outage.failed(&self.flow.grant.lane, fault);
            }
            AppendError::Ambiguous(fault) => {
                tracing::warn!(grant = %self.flow.grant, %fault, batch = self.batch, "it is not known whether the sink has this batch");
                // Of the lane's own: the sink may answer all others.
                self.pause(backoff.next(rand::random())).await?;
            }
        }
        self.relay.metrics.sink_failed();
        self.reopen(next).await
    }

    /// Opens the lane at the sink again. True if the sink holds this batch.
    async fn reopen(&mut self, next: &Opaque) -> Result<bool, LaneEnd> {
        self.sink = None;
        loop {
            let (relay, grant) = (Arc::clone(&self.relay), self.flow.grant.clone());
            let opened = tokio::select! {
                biased;
                () = self.deadline.over() => return Err(LaneEnd::Stopped),
                () = given_up(&mut self.orders) => return Err(LaneEnd::Drained),
                opened = open_sink(&relay, &grant, Opening::Again) => opened?,
            };
            let Some((sink, holds)) = opened else { continue };
            self.sink = Some(sink);
            if holds.as_ref() == Some(next) {
                return Ok(true);
            }
            // It holds neither this batch nor the one before: what it holds has to be settled.
            return if holds == self.holds { Ok(false) } else { Err(LaneEnd::Reopen) };
        }
    }
}
