//! Messages that may have killed the owners of their lane.
//!
//! Whoever expires a replica counts a death for each of its lanes; an owner that lives for a minute ends the count. After one death
//! the next owner hands over one batch at a time, until what may have been in flight is behind it: if it dies as well, what it died
//! of is at the front. After three, as many messages as one batch has are set aside as *suspects*, and each of these is tried alone,
//! one of the process at a time, after it was written down who tries it. Who dies doing that names the message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::Limits;
use super::publish::{LaneEnd, LaneTask};
use crate::clock;
use crate::outcome::codes;
use crate::retry::WhenDead;
use crate::source::{Batch, Failed};

/// After so many deaths what comes first is under suspicion.
const SUSPICIOUS: u32 = 3;
/// A message is dead with which so many owners have died, while they tried nothing but it alone.
const DEADLY: u32 = 2;
/// While another lane of the process tries a suspect, this one goes on with other messages for so long.
const ANOTHER_TURN: Duration = Duration::from_millis(100);

/// What a lane's owner knows of the deaths of those before it.
pub(super) struct Suspicion {
    /// How many there were; none any more once those that are suspected are set aside. It outlives the lane's task.
    deaths: Arc<AtomicU32>,
    /// Messages that are still to be suspected.
    suspected: usize,
    /// Messages of which one batch is handed over at a time.
    careful: usize,
    /// While it tries a suspect: no other lane of the process does.
    turn: Option<OwnedSemaphorePermit>,
}

impl Suspicion {
    /// So many messages may have been in flight.
    pub(super) fn new(deaths: Arc<AtomicU32>, limits: &Limits) -> Self {
        let careful = if deaths.load(Ordering::Relaxed) > 0 { limits.in_flight } else { 0 };
        Self { deaths, suspected: limits.batch_messages, careful, turn: None }
    }

    fn is_suspicious(&self) -> bool {
        self.deaths.load(Ordering::Relaxed) >= SUSPICIOUS
    }

    /// So many messages more are suspected, or wait for such: batches are cut otherwise than by the owner that died. Gives after how
    /// many deaths.
    fn suspects(&mut self, messages: usize) -> u32 {
        self.suspected = self.suspected.saturating_sub(messages);
        if self.suspected > 0 {
            return self.deaths.load(Ordering::Relaxed);
        }
        self.deaths.swap(0, Ordering::Relaxed)
    }

    /// Whether the next batch waits until this one is written.
    pub(super) fn is_careful(&self) -> bool {
        self.careful > 0
    }

    /// So many messages are dealt with.
    pub(super) fn dealt(&mut self, messages: usize) {
        self.careful = self.careful.saturating_sub(messages);
    }

    pub(super) fn ends_turn(&mut self) {
        self.turn = None;
    }
}

impl LaneTask {
    /// Whether this batch can be dealt with now. A suspect waits for its turn without its lane: it stays set aside, and is due again
    /// in a moment.
    pub(super) fn has_its_turn(&mut self, batch: &Batch) -> bool {
        if !batch.is_suspect() {
            return true;
        }
        let free = self.relay.suspects.available_permits() > 0;
        if !free {
            self.flow.dropped(batch, clock::now().after(ANOTHER_TURN));
        }
        free
    }

    /// Sets aside what may have killed the owners before: the first messages from the log, as many as one batch has, and what had
    /// been set aside before and would be tried together. `read`: how many messages it had before what waits was left out. True if it
    /// did: nothing of it is tried now.
    pub(super) fn suspect(&mut self, part: &mut Batch, read: usize) -> bool {
        if part.is_suspect() || !self.suspicion.is_suspicious() {
            return false;
        }
        let deaths = self.suspicion.suspects(read);
        if part.messages.is_empty() {
            return false;
        }
        let (grant, messages) = (&self.flow.grant, part.messages.len());
        tracing::warn!(
            %grant, deaths, messages,
            "owners of this lane have died one after the other: the messages that are next are set aside, and each is tried alone"
        );
        let text = format!("{deaths} owners of its lane have died one after the other: it is tried alone");
        let why = of_death(text);
        part.suspect(&why);
        true
    }

    /// A suspect is about to be handed to the sink, which is written down first. True if it is dead instead: it has killed often
    /// enough.
    pub(super) async fn is_deadly(&mut self, batch: &mut Batch) -> Result<bool, LaneEnd> {
        if !batch.is_suspect() {
            return Ok(false);
        }
        if self.suspicion.turn.is_none() {
            // Whoever has it calls the sink, or writes what came of that. It is never closed.
            let turn = Arc::clone(&self.relay.suspects).acquire_owned();
            self.suspicion.turn = self.wait_for(turn).await?.ok();
        }
        let deaths = self.trying(batch, true).await?;
        if deaths < DEADLY {
            return Ok(false);
        }
        let text = format!("{deaths} replicas have died, each while it tried this message alone");
        let holds = self.relay.spec.policy.when_dead == WhenDead::Hold;
        let dead = Failed { counts: true, after: None, holds, ..of_death(text) };
        self.give_up(batch, vec![(0, Some(dead))]);
        Ok(true)
    }

    /// Whoever dies before it was written down would die of something unknown.
    async fn trying(&mut self, suspect: &Batch, begins: bool) -> Result<u32, LaneEnd> {
        let relay = Arc::clone(&self.relay);
        let trying = || relay.source.trying(suspect, begins);
        let deaths =
            self.until_told("it could not be written down which message is tried alone; trying again", trying).await?;
        // None: it is lost, or an operator was faster. What there is is read again.
        deaths.ok_or(LaneEnd::Reopen)
    }

    /// The sink has not answered, and this replica lives: if it dies later, it is not of this attempt.
    pub(super) async fn has_survived(&mut self, batch: &Batch) -> Result<(), LaneEnd> {
        if batch.is_suspect() && !batch.messages.is_empty() {
            self.trying(batch, false).await?;
        }
        // The sink may be away for long.
        self.suspicion.ends_turn();
        Ok(())
    }
}

fn of_death(text: String) -> Failed {
    let code = codes::relay::DIED.name.to_owned();
    Failed { code, text, counts: false, after: Some(Duration::ZERO), holds: true, suspect: true }
}
