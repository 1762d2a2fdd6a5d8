//! Messages of one lane that reach the sink in one go: which rows of the outbox they are, and how many bytes they hold.
//!
//! A batch can be divided, and messages can be set aside from it: what it says of how far its lane is stays true.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::native::LogRows;
use super::parked::{Failed, Seen, TriedAgain};
use super::table::{TableRows, TakenRow};
use super::{Bookmark, Dealt, Stint};
use crate::error::Error;
use crate::lane::Grant;
use crate::lease::BootInstant;
use crate::message::{Message, Messages};

/// Messages of one lane that reach the sink in one go.
#[derive(Debug)]
pub struct Batch {
    /// The lane and the epoch it was read under.
    pub grant: Grant,
    /// The stint it was read for: it belongs into no other.
    pub stint: Stint,
    /// In order. None, if the lane got on without a message.
    pub messages: HeldMessages,
    /// Of each message: what its key, or the message itself where it has none, is known by.
    pub(super) hashes: Vec<i64>,
    /// The same messages as rows.
    pub(super) rows: Rows,
    /// Of messages that had been set aside, and are tried again: how each stood.
    pub(super) seen: Option<Vec<Seen>>,
    /// What becomes of messages that are set aside, once this is dealt with.
    pub(super) parked: Parking,
    /// What of those is known by that later messages of their keys wait for.
    pub(super) holding: Vec<i64>,
    /// Places of messages that are to be delivered at a later time, and when, until those are set aside.
    pub(super) later: Vec<(usize, BootInstant)>,
    pub(super) order: Order,
}

/// Where each message of a batch stood among all that were ever in it: what is set aside stands in that order, whenever it is.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Of those that are left.
    places: Vec<usize>,
    /// How many there were.
    all: usize,
}

impl Order {
    /// Of a batch with so many messages. It is made when it is first asked for.
    fn of(&mut self, messages: usize) -> &mut Vec<usize> {
        if self.all == 0 {
            *self = Self { places: (0..messages).collect(), all: messages };
        }
        &mut self.places
    }
}

/// What becomes of messages that are set aside, in the transaction that writes a lane's position.
#[derive(Debug, Clone, Default)]
pub struct Parking {
    /// Set aside now, in their order.
    pub(super) aside: Vec<Aside>,
    /// Tried again.
    pub(super) tried: TriedAgain,
    /// When the first of those that are to be delivered later is due.
    pub(super) later: Option<BootInstant>,
}

impl Parking {
    pub(super) fn is_empty(&self) -> bool {
        self.aside.is_empty() && self.tried.is_empty()
    }

    /// Of an earlier batch of the lane, whose position is not written by itself.
    pub(crate) fn follow(&mut self, earlier: Self) {
        let later = std::mem::replace(self, earlier);
        self.aside.extend(later.aside);
        self.tried.gone.extend(later.tried.gone);
        self.tried.failed.extend(later.tried.failed);
        self.tried.hashes.extend(later.tried.hashes);
        self.later = self.later.into_iter().chain(later.later).min();
    }

    /// What the keys of all of them are known by.
    pub(super) fn hashes(&self) -> impl Iterator<Item = i64> {
        self.aside.iter().map(|aside| aside.hash).chain(self.tried.hashes.iter().copied())
    }

    /// Those that are dead with it, by their message ids.
    pub(super) fn dead(&self) -> impl Iterator<Item = &str> {
        let is_dead = |failed: &Failed| failed.after.is_none();
        let aside = self.aside.iter().filter(move |aside| aside.failed.as_ref().is_some_and(is_dead)).map(Aside::id);
        let tried = self.tried.failed.iter().filter(move |(_, _, failed)| is_dead(failed));
        aside.chain(tried.map(|(id, _, _)| id.as_str()))
    }

    /// When the first of them is due, as far as is known here.
    pub(super) fn due(&self) -> Option<Duration> {
        let aside = self.aside.iter().filter_map(|aside| aside.failed.as_ref()?.after);
        let again = self.tried.failed.iter().filter_map(|(_, _, failed)| failed.after);
        // Whoever waited behind what was delivered is due now.
        let next = (!self.tried.gone.is_empty()).then_some(Duration::ZERO);
        aside.chain(again).chain(next).min()
    }
}

/// A message that is set aside.
#[derive(Debug, Clone)]
pub(super) struct Aside {
    /// What its key is known by.
    pub(super) hash: i64,
    pub(super) row: AsideRow,
    /// What came of trying it; `None`: it waits behind another one of its key.
    pub(super) failed: Option<Failed>,
    /// It may have killed its lane's owners.
    pub(super) suspect: bool,
    /// Where it stood in its batch.
    pub(super) place: usize,
}

impl Aside {
    /// Its message id.
    pub(super) fn id(&self) -> &str {
        match &self.row {
            AsideRow::Log(_, id) => id,
            AsideRow::Table(row) => &row.id,
        }
    }
}

/// Where its content is.
#[derive(Debug, Clone)]
pub(super) enum AsideRow {
    /// Its number in the outbox, and its message id.
    Log(i64, String),
    /// Its row in an adopted table.
    Table(AsideOfTable),
}

/// A row of an adopted table, with what is told of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct AsideOfTable {
    pub(super) id: String,
    pub(super) row: TakenRow,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) bytes: usize,
    /// In microseconds since 1970.
    pub(super) created_at: i64,
}

/// Rows of an outbox, in the order of their messages.
#[derive(Debug)]
pub(super) enum Rows {
    Log(LogRows),
    Table(TableRows),
}

impl Batch {
    /// How far the lane is once these have been dealt with, and what becomes of messages that are set aside.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn bookmark(&self) -> Result<Bookmark, Error> {
        match &self.rows {
            Rows::Log(rows) => rows.bookmark(&self.parked.aside, &self.carried()),
            Rows::Table(rows) => rows.bookmark(&self.parked.aside, &self.carried()),
        }
    }

    /// Messages that had been set aside, and are in it, by their ids and hashes.
    fn carried(&self) -> Vec<(String, i64)> {
        let tried = self.seen.iter().flat_map(|_| self.messages.iter().map(|message| message.id.to_owned()));
        tried.zip(self.hashes.iter().copied()).collect()
    }

    /// All that is left in it has been delivered: what is to be written of it, under the number of the last batch that the sink was
    /// given.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn into_dealt(mut self, batch: i64) -> Result<Dealt, Error> {
        let next = self.bookmark()?;
        for (id, hash) in self.carried() {
            self.parked.tried.gone.push(id);
            self.parked.tried.hashes.push(hash);
        }
        Ok(Dealt { grant: self.grant, stint: self.stint, batch, next, parked: self.parked })
    }

    /// What the messages are known by that had been set aside and have failed again.
    pub fn failed_again(&self) -> impl Iterator<Item = i64> {
        self.parked.tried.hashes.iter().copied()
    }

    /// Whether its messages had been set aside and are tried again.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.seen.is_some()
    }

    /// How many attempts at this message had counted before, and since when they were made.
    #[must_use]
    pub fn attempts(&self, place: usize) -> (u32, Duration) {
        let seen = self.seen.as_ref().and_then(|seen| seen.get(place));
        seen.map_or((0, Duration::ZERO), |seen| (seen.attempts, seen.since))
    }

    /// What the keys of its messages, or the messages themselves where they have none, are known by.
    #[must_use]
    pub fn hashes(&self) -> &[i64] {
        &self.hashes
    }

    /// Which of its messages wait for what was set aside from another one, that is not written yet, by their places.
    #[must_use]
    pub fn waiting_for(&self, before: &Self) -> Vec<usize> {
        let waits = |(_, hash): &(usize, &i64)| before.holding.contains(hash);
        self.hashes.iter().enumerate().filter(waits).map(|(place, _)| place).collect()
    }

    /// Which of its messages are to be delivered at a later time, or follow one of their key that is. Asked once, and before anything of
    /// it is set aside.
    pub fn take_later(&mut self) -> Vec<usize> {
        let later = std::mem::take(&mut self.later);
        let first = later.iter().map(|(_, at)| *at);
        self.parked.later = self.parked.later.into_iter().chain(first).min();
        self.with_what_follows(later.into_iter().map(|(place, _)| place).collect())
    }

    /// These places, which ascend, and those of later messages of their keys.
    #[must_use]
    pub fn with_what_follows(&self, places: Vec<usize>) -> Vec<usize> {
        let Some(first) = places.first() else { return places };
        let mut waits = HashSet::new();
        let follows = |(place, hash): (usize, &i64)| {
            if places.binary_search(&place).is_ok() {
                waits.insert(*hash);
            }
            waits.contains(hash).then_some(place)
        };
        self.hashes.iter().enumerate().skip(*first).filter_map(follows).collect()
    }

    /// Whether something is set aside with it, or was tried again: its lane waits until that is written.
    #[must_use]
    pub fn changes_parked(&self) -> bool {
        self.is_retry() || !self.parked.is_empty()
    }

    /// Keeps the first so many messages, and gives the others. Each part has a bookmark of its own.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let rows = match &mut self.rows {
            Rows::Log(rows) => Rows::Log(rows.split_off(at)),
            Rows::Table(rows) => Rows::Table(rows.split_off(at)),
        };
        let (messages, hashes) = (self.messages.split_off(at), self.hashes.split_off(at));
        let order = &mut self.order;
        let seen = self.seen.as_mut().map(|seen| seen.split_off(at));
        // What stands behind this part is not passed by it.
        let places = order.of(self.hashes.len() + hashes.len()).split_off(at);
        let last = order.places.last().copied();
        let behind = |aside: &mut Aside| last.is_some_and(|last| aside.place > last);
        let parked = Parking { aside: self.parked.aside.extract_if(.., behind).collect(), ..Parking::default() };
        let (holding, later, order) = (Vec::new(), Vec::new(), Order { places, all: order.all });
        Self {
            grant: self.grant.clone(),
            stint: self.stint,
            messages,
            hashes,
            rows,
            seen,
            parked,
            holding,
            later,
            order,
        }
    }

    /// Takes the lane's next batch in: from then on both are one. Not where each has to have a bookmark of its own, so not after this
    /// can it be divided.
    pub fn extend(&mut self, next: Self) {
        let Self { messages, hashes, rows, parked, holding, mut order, .. } = next;
        self.order.of(self.hashes.len());
        order.of(hashes.len());
        let before = self.order.all;
        self.order.places.extend(order.places.into_iter().map(|place| place + before));
        self.order.all += order.all;
        self.messages.extend(&messages);
        self.hashes.extend(hashes);
        self.parked.aside.extend(parked.aside.into_iter().map(|aside| Aside { place: aside.place + before, ..aside }));
        self.parked.later = self.parked.later.into_iter().chain(parked.later).min();
        self.holding.extend(holding);
        match (&mut self.rows, rows) {
            (Rows::Log(ours), Rows::Log(next)) => ours.extend(next),
            (Rows::Table(ours), Rows::Table(next)) => ours.rows.extend(next.rows),
            // One lane has one source.
            (Rows::Log(_), Rows::Table(_)) | (Rows::Table(_), Rows::Log(_)) => {}
        }
    }

    /// Sets messages aside, by their places, which ascend: with what came of trying them, or because they wait behind another one
    /// of their key. What remains says as before how far the lane is. Those that had been set aside before stay so.
    pub fn set_aside(&mut self, which: Vec<(usize, Option<Failed>)>) {
        self.put_aside(which, false);
    }

    fn put_aside(&mut self, which: Vec<(usize, Option<Failed>)>, suspect: bool) {
        let places: Vec<usize> = which.iter().map(|(place, _)| *place).collect();
        if places.is_empty() {
            return;
        }
        match &self.seen {
            None => {
                let holds = |failed: &Option<Failed>| failed.as_ref().is_none_or(Failed::holds_its_key);
                let holding = which.iter().filter(|(_, failed)| holds(failed));
                self.holding.extend(holding.filter_map(|(place, _)| self.hashes.get(*place)));
                let messages: Vec<Message<'_>> = self.messages.iter().collect();
                let order = self.order.of(self.hashes.len());
                let aside = which.into_iter().filter_map(|(place, failed)| {
                    let hash = *self.hashes.get(place)?;
                    let row = match &self.rows {
                        Rows::Log(rows) => AsideRow::Log(*rows.numbers.get(place)?, messages.get(place)?.id.to_owned()),
                        Rows::Table(rows) => {
                            let (row, message) = (rows.rows.get(place)?.clone(), messages.get(place)?);
                            AsideRow::Table(AsideOfTable {
                                id: message.id.to_owned(),
                                row,
                                topic: message.topic.to_owned(),
                                key: message.key.map(str::to_owned),
                                bytes: message.bytes(),
                                created_at: message.created_at.0,
                            })
                        }
                    };
                    Some(Aside { hash, row, failed, suspect, place: *order.get(place)? })
                });
                self.parked.aside.extend(aside);
                // One that comes before another of its key may be set aside after it.
                self.parked.aside.sort_by_key(|aside| aside.place);
            }
            Some(seen) => {
                let ids: Vec<&str> = self.messages.iter().map(|message| message.id).collect();
                for (place, failed) in which {
                    if let (Some(failed), Some(id), Some(seen)) = (failed, ids.get(place), seen.get(place)) {
                        self.parked.tried.failed.push(((*id).to_owned(), seen.clone(), failed));
                        self.parked.tried.hashes.extend(self.hashes.get(place));
                    }
                }
            }
        }
        self.leave_out(&places);
    }

    /// Whether it is one message that may have killed its lane's owners, and is tried alone.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.iter().any(|seen| seen.suspect))
    }

    /// Sets all of it aside, for each to be tried alone, in order for each key: one of them may have killed the lane's owners.
    pub fn suspect(&mut self, why: &Failed) {
        let mut keys = HashSet::new();
        let first = |(place, hash): (usize, &i64)| (place, keys.insert(*hash).then(|| why.clone()));
        let which = self.hashes.iter().enumerate().map(first).collect();
        self.put_aside(which, true);
    }

    fn leave_out(&mut self, places: &[usize]) {
        leave_out(self.order.of(self.hashes.len()), places);
        self.messages.leave_out(places);
        leave_out(&mut self.hashes, places);
        if let Some(seen) = &mut self.seen {
            leave_out(seen, places);
        }
        match &mut self.rows {
            Rows::Log(rows) => rows.leave_out(places),
            Rows::Table(rows) => rows.leave_out(places),
        }
    }
}

#[cfg(test)]
impl Batch {
    /// Without a message.
    pub(crate) fn empty(grant: Grant, stint: Stint, memory: &Arc<Memory>) -> Self {
        let messages = HeldMessages::new(memory, Messages::default());
        let (rows, parked) = (Rows::Table(TableRows::none()), Parking::default());
        Self {
            grant,
            stint,
            messages,
            hashes: Vec::new(),
            rows,
            seen: None,
            parked,
            holding: Vec::new(),
            later: Vec::new(),
            order: Order::default(),
        }
    }
}

/// Leaves out what stands at these places, which ascend.
pub(super) fn leave_out<T>(all: &mut Vec<T>, places: &[usize]) {
    let mut place = 0;
    all.retain(|_| {
        place += 1;
        places.binary_search(&(place - 1)).is_err()
    });
}

/// How many bytes of messages a relay holds in memory, and buffers that are used again: allocating them anew for each
/// batch costs more than filling them.
#[derive(Debug, Default)]
pub struct Memory {
    held: AtomicUsize,
    spare: Mutex<Vec<Messages>>,
    /// Told when some are given back.
    pub freed: Notify,
}

impl Memory {
    /// Buffers kept for later are no more than this together, however large a batch was.
    const SPARE_BYTES: usize = 2 << 20;

    /// Bytes of messages held now. Their buffers may be larger.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// An empty buffer for messages.
    #[must_use]
    pub fn buffer(&self) -> Messages {
        self.spare().pop().unwrap_or_default()
    }

    fn give_back(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
        if bytes > 0 {
            self.freed.notify_one();
        }
    }

    fn keep(&self, mut buffer: Messages) {
        let mut spare = self.spare();
        if buffer.capacity() > 0
            && spare.iter().map(Messages::capacity).sum::<usize>() + buffer.capacity() <= Self::SPARE_BYTES
        {
            buffer.clear();
            spare.push(buffer);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Messages>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Messages whose bytes count as held until this is dropped.
#[derive(Debug)]
pub struct HeldMessages {
    memory: Arc<Memory>,
    messages: Messages,
}

impl HeldMessages {
    /// Counts these messages' bytes until dropped.
    #[must_use]
    pub fn new(memory: &Arc<Memory>, messages: Messages) -> Self {
        memory.held.fetch_add(messages.bytes(), Ordering::Relaxed);
        Self { memory: Arc::clone(memory), messages }
    }

    fn split_off(&mut self, at: usize) -> Self {
        let rest = self.change(|messages| messages.split_off(at));
        Self::new(&self.memory, rest)
    }

    fn extend(&mut self, more: &Messages) {
        more.iter().for_each(|message| self.messages.push(message));
        self.memory.held.fetch_add(more.bytes(), Ordering::Relaxed);
    }

    fn leave_out(&mut self, places: &[usize]) {
        self.change(|messages| messages.leave_out(places));
    }

    fn change<T>(&mut self, how: impl FnOnce(&mut Messages) -> T) -> T {
        let before = self.messages.bytes();
        let done = how(&mut self.messages);
        self.memory.give_back(before - self.messages.bytes());
        done
    }
}

impl Deref for HeldMessages {
    type Target = Messages;

    fn deref(&self) -> &Messages {
        &self.messages
    }
}

impl Drop for HeldMessages {
    fn drop(&mut self) {
        let bytes = self.messages.bytes();
        self.memory.keep(std::mem::take(&mut self.messages));
        self.memory.give_back(bytes);
    }
}
