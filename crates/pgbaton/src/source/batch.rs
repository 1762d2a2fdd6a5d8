//! Messages of one lane that reach the sink in one go: which rows of the outbox they are, and how many bytes they hold.
//!
//! A batch can be divided, and messages can be left out of it: what it says of how far its lane is stays true.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::native::LogRows;
use super::table::TableRows;
use super::{Bookmark, Stint};
use crate::error::Error;
use crate::lane::Grant;
use crate::message::Messages;

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
}

/// Rows of an outbox, in the order of their messages.
#[derive(Debug)]
pub(super) enum Rows {
    Log(LogRows),
    Table(TableRows),
}

impl Batch {
    /// How far the lane is once these have been dealt with.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn bookmark(&self) -> Result<Bookmark, Error> {
        match &self.rows {
            Rows::Log(rows) => rows.bookmark(),
            Rows::Table(rows) => rows.bookmark(),
        }
    }

    /// Keeps the first so many messages, and gives the others. Each part has a bookmark of its own.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let rows = match &mut self.rows {
            Rows::Log(rows) => Rows::Log(rows.split_off(at)),
            Rows::Table(rows) => Rows::Table(rows.split_off(at)),
        };
        let (messages, hashes) = (self.messages.split_off(at), self.hashes.split_off(at));
        Self { grant: self.grant.clone(), stint: self.stint, messages, hashes, rows }
    }

    /// Leaves out the messages at these places, which ascend: they are dealt with in another way. What remains says as before how
    /// far the lane is.
    pub fn leave_out(&mut self, places: &[usize]) {
        self.messages.leave_out(places);
        leave_out(&mut self.hashes, places);
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
        Self { grant, stint, messages, hashes: Vec::new(), rows: Rows::Table(TableRows::none()) }
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
