//! Handing one batch to the sink, until each message of it is there or set aside.
//!
//! A message that the sink does not take is set aside, with those of its key that follow it, once it is clear that it is not the sink
//! (`retry.rs`). Until then it stays here, and holds its lane.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, SystemTime};

use super::held::Refusal;
use super::outage::{Outage, during};
use super::publish::{LaneEnd, LaneTask, More, open_sink};
use crate::clock;
use crate::faults;
use crate::history;
use crate::lease::BootInstant;
use crate::observe::Answered;
use crate::outcome::{AppendError, Fault, Meaning, Outcome};
use crate::retry::{Backoff, Judgement, Refused, WhenDead};
use crate::sink::{Opening, Part};
use crate::source::{Batch, Failed, Opaque};

/// How long it is waited for a sign that the sink takes others, before a message that had been set aside is set aside again.
const LOOKING_AROUND: Duration = Duration::from_millis(500);

/// How handing over a batch ended.
pub(super) enum Handed {
    /// All that is left in it is at the sink.
    Done,
    /// Nothing of it is. The sink takes all of a batch or nothing, and one of several messages is in the way: each half is handed
    /// over by itself.
    Divide,
}

/// A batch in the lane's hands.
struct Hand {
    /// Places of messages that are not at the sink yet.
    left: Vec<usize>,
    /// As many of them go into the next call: fewer where the sink has said no to several together.
    most: usize,
    /// Some are.
    delivered: bool,
    /// The last call has delivered something.
    took: bool,
    /// The sink has stopped in the middle of the last call.
    stopped: bool,
    /// By their places.
    refused: BTreeMap<usize, RefusedBefore>,
    /// Nothing more could be taken into the batch to be tried.
    alone: bool,
    /// As much is in flight as may be, so that nothing else can be tried, and all but what is left of it went through.
    full: bool,
    backoff: Backoff,
    /// Calls in a row of which it is not known whether they have written something, although the sink could be opened again.
    unsure: u32,
}

/// How a message has fared in its lane's hands.
struct RefusedBefore {
    /// The end of the first call in which it was refused.
    first: BootInstant,
    /// Something else went through between two refusals of it: what refused it was not a sink that was down.
    proven: bool,
}

impl Hand {
    /// What the next call tries.
    fn tried(&self) -> &[usize] {
        self.left.get(..self.most).unwrap_or(&self.left)
    }

    /// All that was tried was refused with this.
    fn all(&self, fault: &Fault, meaning: Meaning) -> Vec<Refusing> {
        let refusing = |place: &usize| Refusing { place: *place, fault: fault.clone(), meaning, asked: None };
        self.tried().iter().map(refusing).collect()
    }

    /// These were refused in a call that has just ended.
    fn note(&mut self, refusing: &[Refusing], now: BootInstant, outage: &Outage) {
        for Refusing { place, .. } in refusing {
            let before = self.refused.entry(*place).or_insert(RefusedBefore { first: now, proven: false });
            before.proven |= outage.has_delivered_since(before.first);
        }
    }
}

/// Sets these aside, whose places ascend, with what is left of the keys that wait. Gives the places of all that are.
fn put_aside(
    batch: &mut Batch,
    hand: &mut Hand,
    mut aside: Vec<(usize, Option<Failed>)>,
    waits: &HashSet<i64>,
) -> Vec<usize> {
    let follows = |place: &usize| {
        let hash = batch.hashes().get(*place);
        hash.is_some_and(|hash| waits.contains(hash)) && aside.binary_search_by_key(place, |(of, _)| *of).is_err()
    };
    let followers: Vec<usize> = hand.left.iter().copied().filter(follows).collect();
    aside.extend(followers.into_iter().map(|place| (place, None)));
    aside.sort_unstable_by_key(|(place, _)| *place);
    let places: Vec<usize> = aside.iter().map(|(place, _)| *place).collect();
    batch.set_aside(aside);
    hand.left.retain(|place| places.binary_search(place).is_err());
    hand.left.iter_mut().for_each(|place| *place = moved(&places, *place));
    let before = std::mem::take(&mut hand.refused).into_iter();
    let stays = |(place, _): &(usize, _)| places.binary_search(place).is_err();
    hand.refused = before.filter(stays).map(|(place, before)| (moved(&places, place), before)).collect();
    places
}

/// Where a message stands once those at these places are gone.
fn moved(gone: &[usize], place: usize) -> usize {
    place - gone.partition_point(|gone| *gone < place)
}

/// A message that the sink has refused.
struct Refusing {
    place: usize,
    fault: Fault,
    meaning: Meaning,
    asked: Option<Duration>,
}

impl LaneTask {
    /// Hands one batch to the sink until every message of it is there or set aside.
    pub(super) async fn hand_over(&mut self, batch: &mut Batch) -> Result<Handed, LaneEnd> {
        let mut hand = Hand {
            left: (0..batch.messages.len()).collect(),
            most: usize::MAX,
            delivered: false,
            took: false,
            stopped: false,
            refused: BTreeMap::new(),
            alone: false,
            full: false,
            backoff: Backoff::new(Duration::from_millis(100), self.relay.spec.pace.retry_cap),
            unsure: 0,
        };
        while !hand.left.is_empty() {
            match self.append(batch, &mut hand).await {
                Ok(Handed::Done) => {}
                Ok(Handed::Divide) => return Ok(Handed::Divide),
                // What is given back is settled: nothing that was delivered is sent again by whoever is next.
                Err(LaneEnd::Drained) if hand.delivered => {
                    let left = std::mem::take(&mut hand.left);
                    batch.set_aside(left.into_iter().map(|place| (place, None)).collect());
                }
                Err(end) => return Err(end),
            }
        }
        if self.held.take().is_some() {
            tracing::info!(grant = %self.flow.grant, batch = self.batch, "the lane goes on");
        }
        Ok(Handed::Done)
    }

    /// One call, and what follows from its answer.
    async fn append(&mut self, batch: &mut Batch, hand: &mut Hand) -> Result<Handed, LaneEnd> {
        let relay = std::sync::Arc::clone(&self.relay);
        self.wait_while_paused().await?;
        let turn = self.wait_for(relay.outage.turn()).await?;
        (hand.took, hand.stopped) = (false, false);
        self.set_aside_what_is_paused(batch, hand);
        if hand.left.is_empty() {
            return Ok(Handed::Done);
        }
        if self.is_deadly(batch).await? {
            hand.left.clear();
            return Ok(Handed::Done);
        }
        let number = self.batch + 1;
        let next = Opaque::new(number, &batch.bookmark().map_err(LaneEnd::Refused)?);
        let part = Part::whole(&batch.messages, self.holds.as_ref(), &next);
        let tried = hand.tried();
        let part = if tried.len() < batch.messages.len() { part.rest(tried) } else { part };
        faults::point("lane.before_append");
        let Some(sink) = &mut self.sink else { return Err(LaneEnd::Reopen) };
        let (began, seen) = (clock::now(), self.relay.observer.is_some().then(SystemTime::now));
        let answer = tokio::select! {
            biased;
            () = self.deadline.over() => return Err(LaneEnd::Stopped),
            answer = during(turn, history::published(&self.told_of, number, &part, sink.append(&part, &self.deadline))) => answer,
        };
        faults::point("lane.appended");
        match answer {
            Ok(outcomes) => {
                self.show(&part, &outcomes, seen);
                hand.unsure = 0;
                let refusing = self.take_outcomes(&outcomes, hand, batch);
                if hand.took {
                    self.took(number, began, next);
                }
                self.judge(batch, hand, refusing, began).await?;
                Ok(Handed::Done)
            }
            Err(AppendError::Refused(fault)) if hand.tried().len() > 1 => {
                if self.keeps_position() {
                    return Ok(Handed::Divide);
                }
                // What was taken into the batch is in one place with it by now: it is not divided itself.
                hand.most = hand.tried().len() / 2;
                tracing::debug!(grant = %self.flow.grant, %fault, most = hand.most, "trying fewer");
                Ok(Handed::Done)
            }
            Err(AppendError::Refused(fault)) => {
                self.relay.metrics.rejected();
                let refusing = hand.all(&fault, Meaning::Reject);
                hand.most = usize::MAX;
                self.judge(batch, hand, refusing, began).await?;
                Ok(Handed::Done)
            }
            Err(error) => {
                self.has_survived(batch).await?;
                if self.recover(&error, &next, &mut hand.backoff).await? {
                    self.relay.outage.over(&self.flow.grant.lane);
                    let part = Part::whole(&batch.messages, None, &next).rest(hand.tried());
                    self.show(&part, &vec![Outcome::Delivered; part.len()], seen);
                    self.all_delivered(hand, batch);
                    self.took(number, began, next);
                    return Ok(Handed::Done);
                }
                self.unsure(&error, batch, hand, began).await
            }
        }
    }

    /// The sink has taken something of this batch.
    fn took(&mut self, number: i64, began: BootInstant, next: Opaque) {
        self.batch = number;
        self.relay.outage.delivered(began);
        self.holds = self.keeps_position().then_some(next);
    }

    /// The sink could be opened again after a call that failed as a whole, and has nothing of it. If it was the answer that was lost,
    /// and that lasts, a message may be the reason: one that is looked for where the sink takes all or nothing.
    async fn unsure(
        &mut self,
        error: &AppendError,
        batch: &mut Batch,
        hand: &mut Hand,
        began: BootInstant,
    ) -> Result<Handed, LaneEnd> {
        let AppendError::Ambiguous(fault) = error else { return Ok(Handed::Done) };
        hand.unsure += 1;
        if hand.unsure < 2 || !self.keeps_position() {
            return Ok(Handed::Done);
        }
        if hand.left.len() > 1 {
            return Ok(Handed::Divide);
        }
        // It can be reached, and did not say what became of this: the same as no answer.
        let refusing = hand.all(fault, Meaning::Silent);
        self.judge(batch, hand, refusing, began).await?;
        Ok(Handed::Done)
    }

    /// Sets aside what is to blame, and pauses if something is left of which that is not known.
    async fn judge(
        &mut self,
        batch: &mut Batch,
        hand: &mut Hand,
        mut refusing: Vec<Refusing>,
        began: BootInstant,
    ) -> Result<(), LaneEnd> {
        let failed = clock::now();
        hand.note(&refusing, failed, &self.relay.outage);
        // Some were not tried, and no message is to blame.
        let nobody = refusing.is_empty() && hand.stopped;
        self.tell_of_the_sink(hand, &refusing, began);
        if batch.is_retry() && !refusing.is_empty() {
            self.look_around(hand, failed).await?;
        }
        self.set_aside(batch, hand, &mut refusing);
        let busy = refusing.iter().filter(|refusing| refusing.meaning == Meaning::Busy);
        let asked = busy.filter_map(|refusing| refusing.asked).max();
        let pause = asked.unwrap_or_default().max(hand.backoff.next(rand::random()));
        if !refusing.is_empty() {
            self.tell_of_holding(batch, hand, &refusing, pause);
            self.pause(pause).await?;
            self.wait_for_the_sink().await?;
            // What follows is tried together with this.
            let before = batch.messages.len();
            let more = self.try_more(batch).await?;
            hand.alone = more == More::None;
            hand.full = more == More::Later && hand.delivered;
            hand.left.extend(before..batch.messages.len());
        } else if nobody {
            self.pause(pause).await?;
        }
        Ok(())
    }

    /// What had been set aside does not stay here until it is tried once more: whether the sink is to blame is seen in a moment, or
    /// it is not.
    async fn look_around(&mut self, hand: &mut Hand, failed: BootInstant) -> Result<(), LaneEnd> {
        let outage = &self.relay.outage;
        if !hand.refused.values().all(|refused| refused.proven) && !outage.has_delivered_since(failed) {
            self.pause(LOOKING_AROUND).await?;
        }
        let proven = self.relay.outage.has_delivered_since(failed);
        hand.refused.values_mut().for_each(|refused| refused.proven |= proven);
        Ok(())
    }

    /// A call that nothing was heard of is told as an outage, unless another lane's went through meanwhile.
    fn tell_of_the_sink(&self, hand: &Hand, refusing: &[Refusing], began: BootInstant) {
        let (lane, outage) = (&self.flow.grant.lane, &self.relay.outage);
        let silent = |refusing: &Refusing| refusing.meaning == Meaning::Silent;
        match refusing.first() {
            Some(first) if !hand.took && refusing.iter().all(silent) && !outage.has_delivered_since(began) => {
                outage.failed(lane, &first.fault);
            }
            _ => outage.over(lane),
        }
    }

    async fn wait_for_the_sink(&mut self) -> Result<(), LaneEnd> {
        let relay = std::sync::Arc::clone(&self.relay);
        self.wait_for(relay.outage.wait()).await
    }

    /// Sets aside those that are to blame, each with what of its key follows. The others stay.
    fn set_aside(&mut self, batch: &mut Batch, hand: &mut Hand, refusing: &mut Vec<Refusing>) {
        let policy = &self.relay.spec.policy;
        let alone = self.is_alone(batch, hand, refusing);
        let mut aside: Vec<(usize, Option<Failed>)> = Vec::new();
        let mut waits: HashSet<i64> = HashSet::new();
        refusing.retain(|refusing| {
            let (attempts, since) = batch.attempts(refusing.place);
            let proven = hand.full || hand.refused.get(&refusing.place).is_some_and(|before| before.proven);
            let refused = Refused {
                meaning: refusing.meaning,
                asked: refusing.asked,
                attempts,
                since,
                was_aside: batch.is_retry(),
                proven,
                alone,
            };
            let Judgement::Aside { counts, after } = policy.judge(&refused, rand::random()) else { return true };
            let holds = policy.when_dead == WhenDead::Hold;
            let (code, text) = (refusing.fault.code().name.to_owned(), refusing.fault.text().to_owned());
            if after.is_some() || holds {
                waits.extend(batch.hashes().get(refusing.place));
            }
            aside.push((refusing.place, Some(Failed { code, text, counts, after, holds, suspect: false })));
            false
        });
        if aside.is_empty() {
            return;
        }
        self.tell_of_aside(batch, &aside);
        let places = put_aside(batch, hand, aside, &waits);
        refusing.iter_mut().for_each(|refusing| refusing.place = moved(&places, refusing.place));
    }

    /// What an operator has paused by now is set aside, if it is not already, with what follows it.
    fn set_aside_what_is_paused(&self, batch: &mut Batch, hand: &mut Hand) {
        let pauses = self.relay.pauses.borrow();
        if !pauses.are_of_messages() {
            return;
        }
        let is_paused =
            |place: &usize| batch.messages.get(*place).is_some_and(|message| pauses.hold(message.key, message.topic));
        let paused = hand.left.iter().copied().filter(is_paused).collect();
        drop(pauses);
        let mut aside = batch.with_what_follows(paused);
        aside.retain(|place| hand.left.binary_search(place).is_ok());
        if !aside.is_empty() {
            let aside = aside.into_iter().map(|place| (place, None)).collect();
            put_aside(batch, hand, aside, &HashSet::new());
        }
    }

    /// Whether nothing else could be tried: what is left is refused or waits behind what is, and nothing else was read, though it
    /// was waited for: but where others went through in the same call, or where it stays nowhere to be tried once more.
    fn is_alone(&self, batch: &Batch, hand: &Hand, refusing: &[Refusing]) -> bool {
        let hash = |place: usize| batch.hashes().get(place);
        let refused: HashSet<i64> = refusing.iter().filter_map(|refusing| hash(refusing.place)).copied().collect();
        (hand.alone || ((hand.took || batch.is_retry()) && self.flow.waiting() == 0))
            && hand.left.iter().all(|place| hash(*place).is_some_and(|hash| refused.contains(hash)))
    }

    /// These are dead, for another reason than an answer of the sink.
    pub(super) fn give_up(&mut self, batch: &mut Batch, dead: Vec<(usize, Option<Failed>)>) {
        self.tell_of_aside(batch, &dead);
        batch.set_aside(dead);
    }

    fn tell_of_aside(&mut self, batch: &Batch, aside: &[(usize, Option<Failed>)]) {
        let metrics = &self.relay.metrics;
        for (place, failed) in aside {
            let (Some(message), Some(failed)) = (batch.messages.get(*place), failed) else { continue };
            let (grant, message_id, topic) = (&self.flow.grant, message.id, message.topic);
            let Failed { code, text, counts, after, .. } = failed;
            let attempts = batch.attempts(*place).0 + u32::from(*counts);
            match after {
                Some(after) => {
                    metrics.set_aside();
                    if self.told.is_due(code, clock::now()) {
                        tracing::warn!(
                            %grant, code, fault = text, message_id, topic, attempts, ?after,
                            "the sink does not take a message: it is set aside and tried again, and others of its key wait behind it"
                        );
                    }
                }
                None => {
                    metrics.dead();
                    tracing::error!(
                        %grant, code, fault = text, message_id, topic, attempts,
                        "a message is dead: it is kept, and not tried again"
                    );
                }
            }
        }
    }

    fn tell_of_holding(&mut self, batch: &Batch, hand: &Hand, refusing: &[Refusing], pause: Duration) {
        let Some(first) = refusing.first() else { return };
        let Some(message) = batch.messages.get(first.place) else { return };
        let held = self.held.get_or_insert_with(|| super::held::Held::new(&self.relay.metrics));
        let refusal = Refusal { fault: &first.fault, message: message.id, topic: message.topic, left: hand.left.len() };
        held.tell(&self.flow.grant, self.batch + 1, &refusal, pause);
    }

    /// Shows an answer to whoever watches.
    fn show(&self, part: &Part<'_>, outcomes: &[Outcome], began: Option<SystemTime>) {
        if let (Some(observer), Some(began)) = (&self.relay.observer, began) {
            observer.answered(&Answered { grant: &self.flow.grant, part, outcomes, began });
        }
    }

    /// The sink turned out to have all that was left.
    fn all_delivered(&self, hand: &mut Hand, batch: &Batch) {
        let metrics = &self.relay.metrics;
        let mut tally = metrics.tally();
        metrics.delivered(u64::try_from(hand.left.len()).unwrap_or_default());
        hand.left.drain(..).filter_map(|message| batch.messages.created_at(message)).for_each(|at| tally.count(at));
        hand.delivered = true;
        metrics.took(&tally);
    }

    /// Counts outcomes of what was tried, and keeps in `left` what is not at the sink yet. Gives what the sink refused.
    fn take_outcomes(&self, outcomes: &[Outcome], hand: &mut Hand, batch: &Batch) -> Vec<Refusing> {
        let metrics = &self.relay.metrics;
        let mut tally = metrics.tally();
        let (mut delivered, mut repeated, mut refusing) = (0, 0, Vec::new());
        let mut tried = std::mem::take(&mut hand.left);
        let not_tried = tried.split_off(hand.most.min(tried.len()));
        for (index, place) in tried.into_iter().enumerate() {
            // A sink that answers for fewer messages than it was given has not answered for this one.
            match outcomes.get(index).unwrap_or(&Outcome::NotTried) {
                Outcome::Delivered => {
                    delivered += 1;
                    batch.messages.created_at(place).into_iter().for_each(|at| tally.count(at));
                    continue;
                }
                Outcome::Repeated => {
                    repeated += 1;
                    continue;
                }
                Outcome::Retry { after, fault } => {
                    metrics.retried();
                    let meaning = fault.code().meaning;
                    refusing.push(Refusing { place, fault: fault.clone(), meaning, asked: *after });
                }
                Outcome::Rejected(fault) => {
                    metrics.rejected();
                    let (fault, meaning) = (fault.clone(), Meaning::Reject);
                    refusing.push(Refusing { place, fault, meaning, asked: None });
                }
                Outcome::NotTried => hand.stopped = true,
            }
            hand.left.push(place);
        }
        hand.left.extend(not_tried);
        hand.most = usize::MAX;
        hand.took = delivered + repeated > 0;
        hand.delivered |= hand.took;
        metrics.delivered(delivered);
        metrics.repeated(repeated);
        metrics.took(&tally);
        refusing
    }

    /// The call failed as a whole. True if it turns out that the sink has the batch.
    async fn recover(&mut self, error: &AppendError, next: &Opaque, backoff: &mut Backoff) -> Result<bool, LaneEnd> {
        match error {
            AppendError::LeaseOver => return Err(LaneEnd::Stopped),
            AppendError::Fenced { epoch } => return Err(LaneEnd::Fenced(*epoch)),
            AppendError::Moved => return Err(LaneEnd::Reopen),
            AppendError::SinkDown(fault) | AppendError::Refused(fault) => {
                self.relay.outage.failed(&self.flow.grant.lane, fault);
            }
            AppendError::Ambiguous(fault) => {
                tracing::warn!(grant = %self.flow.grant, %fault, batch = self.batch + 1, "it is not known whether the sink has this batch");
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
            let (relay, grant) = (std::sync::Arc::clone(&self.relay), self.flow.grant.clone());
            let opened = self.wait_for(open_sink(&relay, &grant, Opening::Again)).await??;
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
