//! The seam towards the outbox: where messages come from, and where it is written down how far each lane is.
//!
//! Claims, leases and lanes are not a source's business: they always live in pgbaton's own tables.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::Error;
use crate::lane::{Epoch, Grant, Lane};
use crate::lease::BootInstant;
use crate::position::Incarnation;

mod batch;
mod brought;
mod flush;
pub mod native;
mod parked;
mod patience;
mod settle;
pub mod table;
mod trouble;

pub use batch::{Batch, HeldMessages, Memory, Parking};
pub use parked::Failed;
pub(crate) use parked::stand_still;
use table::TableSpec;

/// Where messages come from.
///
/// # Who calls what
/// One task calls [`read`](Self::read) and one calls [`acknowledge`](Self::acknowledge), at the same time; [`open`](Self::open)
/// and [`close`](Self::close) come from any number of tasks, in pairs: a grant may be opened again after it was closed. A
/// lane is read only between the two.
///
/// # Order and repeats
/// The batches of a lane come in the order in which they must reach the sink, whether they come from one call or from
/// several. Within one stint no message comes twice, but for a row of an adopted table that its user has set back to pending
/// after it was acknowledged: that one is a message again, under the same id. The next stint goes on from what was
/// acknowledged, or from what the sink was found to hold; a batch of an earlier one must not reach the sink any more.
///
/// # Cancellation
/// A dropped call loses no message: what it had not returned is read again. A dropped acknowledgement may or may not have
/// been written.
#[async_trait]
pub trait Source: Send + Sync {
    /// Looks whether the outbox is as the reading relies on. Refuses rather than guesses.
    ///
    /// # Errors
    /// Says what is wrong and what to do about it.
    async fn check(&self) -> Result<(), Error>;

    /// Takes up a lane: settles what the sink already has, then stands where the lane was dealt with.
    ///
    /// The grant is from the incarnation `here`; another one is not opened. `sink_holds` is what the sink answered when it
    /// was asked after its fence was taken, if it keeps positions. The stint is in every batch that is read for the lane
    /// until it is closed.
    ///
    /// # Errors
    /// A position that this database cannot have written is refused.
    async fn open(
        &self,
        grant: &Grant,
        here: &Incarnation,
        sink_holds: Option<&Opaque>,
    ) -> Result<(Stint, Opened), Error>;

    /// Reads the next messages for lanes that have room. Empty batches tell that a lane got on without a message.
    ///
    /// # Errors
    /// After an error, or when the call was dropped, it may be repeated: no lane has moved past a message that was not
    /// returned.
    async fn read(&self, lanes: &[Room], budget: &Budget) -> Result<Read, Error>;

    /// Which messages of a batch wait behind one of their key that is set aside, by their places: one look-up at most, and none at
    /// all where nothing of the lane is. Only those count that are written: a batch with which something is set aside is awaited.
    ///
    /// # Errors
    /// Nothing is known then; it may be asked again.
    async fn held(&self, batch: &Batch) -> Result<Vec<usize>, Error>;

    /// Writes down, durably and only if the lane is still held under the batch's epoch, that a suspect is about to be tried, or that
    /// it was and its owner lives. Gives how many owners have died trying it before; `None` if the lane was lost, or the message is
    /// no longer set aside.
    ///
    /// # Errors
    /// Whether it was written is then unknown; it may be repeated.
    async fn trying(&self, suspect: &Batch, begins: bool) -> Result<Option<u32>, Error>;

    /// Writes how far lanes have been dealt with, each only if it is still held under the given epoch, in the
    /// incarnation its bookmark names. Where a bookmark does not cover those before it, several of one lane come in order, and
    /// stand or fall together. Answers once for each lane.
    ///
    /// # Errors
    /// Whether it was written is then unknown; it may be repeated, also with later bookmarks.
    async fn acknowledge(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error>;

    /// Whether a bookmark covers all before it, so that the lane's newest one is enough to write. One of an adopted table names its
    /// own rows.
    fn covers_earlier(&self) -> bool;

    /// Whether the next batch of a lane waits until the one before is acknowledged: where a bookmark does not cover those before
    /// it, and the sink keeps the last one alone; and until one mark has succeeded, since none may be relied upon.
    fn one_batch_at_a_time(&self, sink_keeps_position: bool) -> bool;

    /// An operator has changed what is set aside: what is known of it counts no more.
    fn look_again(&self);

    /// How far behind the relay is, whoever owns its lanes.
    ///
    /// # Errors
    /// Nothing is known then; it may be asked again.
    async fn behind(&self) -> Result<Behind, Error>;

    /// Forgets a lane. What was read and not acknowledged will be read again by whoever opens it next.
    fn close(&self, grant: &Grant);
}

/// Which source a relay reads.
#[derive(Debug, Clone, Default)]
pub enum SourceSpec {
    /// pgbaton's own outbox.
    #[default]
    Native,
    /// An outbox table that others made.
    Table(Arc<TableSpec>),
}

/// How far a lane is after a batch: in the source's own words, and in which incarnation that means anything.
#[derive(Debug, Clone)]
pub struct Bookmark {
    /// The life of the database that the place belongs to.
    pub incarnation: Incarnation,
    /// Only the source reads it.
    pub place: Box<RawValue>,
}

/// What a sink that keeps positions stores for a lane, beside the messages. Opaque to it: compared for equality only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opaque(Vec<u8>);

impl Opaque {
    /// After the lane's batch of this number, which ends at this bookmark.
    #[must_use]
    pub fn new(batch: i64, bookmark: &Bookmark) -> Self {
        let place = bookmark.place.get();
        Self(
            format!(r#"{{"v":1,"batch":{batch},"incarnation":"{}","place":{place}}}"#, bookmark.incarnation)
                .into_bytes(),
        )
    }

    /// What a sink gave back.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// What a sink stores.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The batch number and the bookmark; `None` if a newer version of pgbaton wrote it.
    #[must_use]
    pub fn read(&self) -> Option<(i64, Bookmark)> {
        #[derive(Deserialize)]
        struct V1 {
            v: u8,
            batch: i64,
            incarnation: Incarnation,
            place: Box<RawValue>,
        }
        let V1 { v, batch, incarnation, place } = serde_json::from_slice(&self.0).ok()?;
        (v == 1).then_some((batch, Bookmark { incarnation, place }))
    }
}

/// How a lane was taken up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// The database's position stands.
    Ours {
        /// The number of the lane's last batch that was handed to the sink.
        batch: i64,
    },
    /// The sink holds one batch more than the database knew of: it was recorded as delivered.
    Settled {
        /// The number of that batch.
        batch: i64,
    },
    /// The sink holds a position of another incarnation. The database's counts; what the sink had beyond it repeats.
    Announced {
        /// The number of the lane's last batch by the database.
        batch: i64,
    },
    /// The sink has lost batches that were delivered. As configured, the lane goes back to what the sink holds, or does
    /// not go on at all.
    SinkLost {
        /// They are sent again.
        resend: bool,
        /// The number of the lane's last batch by the database.
        batch: i64,
        /// The number of the last one that the sink still holds.
        holds: i64,
    },
}

/// One opening of a lane at its source, until it is closed. Numbers grow and are not used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stint(pub u64);

/// A lane that may be read for.
#[derive(Debug, Clone)]
pub struct Room {
    /// Which, and under which epoch.
    pub grant: Grant,
    /// Whether it can take more.
    pub room: bool,
    /// Since when it has had nothing to publish; `None` while it has.
    pub idle_since: Option<BootInstant>,
    /// Whether it takes messages that were set aside and are due: one batch of them at a time.
    pub retries: bool,
}

/// How much one read may bring.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    /// Bytes in all.
    pub bytes: usize,
    /// One message more than fits is allowed, so that one of any size gets through.
    pub one_more: bool,
    /// Messages in one batch.
    pub batch_messages: usize,
    /// Bytes in one batch; one message may be larger and then is alone.
    pub batch_bytes: usize,
}

/// How far behind a relay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// Messages, at most: numbers of the log that not every lane has passed; of an adopted table pending rows, up to 10,000.
    pub messages: u64,
    /// The age of the oldest of them, by the server's clock; zero if there are none. `None` if it is not known: an adopted table
    /// may have no column that tells.
    pub oldest: Option<Duration>,
}

/// What a read brought.
#[derive(Debug)]
pub struct Read {
    /// In order for each lane.
    pub batches: Vec<Batch>,
    /// Lanes whose next message was found now not to be readable until a person has changed it, each with the reason.
    pub refused: Vec<(Grant, Error)>,
    /// The numbers of all lanes that wait for that, also since earlier reads.
    pub blocked: BTreeSet<i32>,
    /// When to read again.
    pub next: Next,
}

/// When to read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// There is more.
    Now,
    /// There is more, for lanes that have no room or wait for their neighbours.
    WithRoom,
    /// All that is committed has been read.
    Later,
}

/// How far one lane has been dealt with.
#[derive(Debug, Clone)]
pub struct Dealt {
    /// The lane, and the epoch it was delivered under.
    pub grant: Grant,
    /// The stint it was read in.
    pub stint: Stint,
    /// The number of its last batch that was handed to the sink.
    pub batch: i64,
    /// How far it is.
    pub next: Bookmark,
    /// What becomes of messages that are set aside, in the same transaction.
    pub parked: Parking,
}

/// What became of one lane's acknowledgement.
#[derive(Debug)]
pub enum Acknowledged {
    /// It is on disk.
    Written(Lane),
    /// The lane has another owner or epoch: nothing was written, stop it.
    LaneLost(Lane, Epoch),
    /// Not written, or not all of it, and to be tried again: somebody holds a lock on one of its rows. Or its stint is over, and
    /// by the next attempt it is forgotten.
    Waits(Lane),
    /// Not written, or not all of it, until a person has mended what is in the way. The lane is held.
    Refused(Lane, Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_sink_keeps_can_be_read_back() {
        let bookmark = Bookmark {
            incarnation: "1/2/3".parse().unwrap(),
            place: RawValue::from_string(r#"{"a": [1,2]}"#.into()).unwrap(),
        };
        let opaque = Opaque::new(7, &bookmark);
        let (batch, read) = Opaque::from_bytes(opaque.as_bytes().to_vec()).read().unwrap();
        assert_eq!((batch, read.incarnation, read.place.get()), (7, bookmark.incarnation, r#"{"a": [1,2]}"#));
    }

    #[test]
    fn what_a_newer_version_wrote_is_not_guessed_at() {
        assert!(Opaque::from_bytes(br#"{"v":2,"batch":1,"incarnation":"1/2/3","place":{}}"#.to_vec()).read().is_none());
        assert!(Opaque::from_bytes(b"\xff".to_vec()).read().is_none());
    }
}
