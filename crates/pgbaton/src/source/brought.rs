//! Rows as they arrive, put into the batches of each lane.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use crate::clock;
use crate::error::{Error, Kind};
use crate::lane;
use crate::lease::BootInstant;
use crate::message::{Message, Messages, Timestamp};
use crate::source::{Budget, Memory};

// The first columns of a row are its number, its hash and its size: they are read by their number.

/// Messages up to this size come with the window, larger ones alone: a window of them would not fit into memory.
pub(super) const INLINE_BYTES: i32 = 16 * 1024;

/// What a step brought, lane by lane.
pub(super) struct Brought {
    pub(super) found: BTreeMap<i32, Found>,
    /// Messages that came with the rows, and their bytes. The others are to be fetched.
    pub(super) taken: usize,
    pub(super) bytes: usize,
    /// The id of the last row.
    pub(super) last: Option<i64>,
    /// What is larger came without its content, and is fetched alone.
    inline: i32,
    /// How many lanes the relay has.
    of: i32,
    /// The id of the last row examined, if it was asked for and so many were there.
    pub(super) end: Option<i64>,
}

impl Brought {
    /// Nothing so far, for these lanes.
    pub(super) fn new(lanes: &[i32], of: i32, inline: i32) -> Self {
        let found = lanes.iter().map(|lane| (*lane, Found::default())).collect();
        Self { found, taken: 0, bytes: 0, last: None, inline, of, end: None }
    }

    /// Puts a row where it belongs, or notes that it is to be fetched later: when it is large, or when this step has
    /// brought as much as fits. `lend` lends it out as a message, which may be one for a `later` time.
    pub(super) fn take(
        &mut self,
        row: &Row,
        (budget, memory): (&Budget, &Memory),
        later: Option<Duration>,
        lend: impl FnOnce(&Row, &mut dyn FnMut(Message<'_>)) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (id, hash, size): (i64, i64, i32) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let lane = lane::of_hash(hash, self.of);
        let bytes = usize::try_from(size).unwrap_or_default();
        let found = self.found.get_mut(&lane).ok_or_else(|| {
            Error::new(Kind::Internal, format!("message {id} is of lane {lane}, which was not asked for"))
        })?;
        self.last = Some(id);
        if size > self.inline || self.bytes > budget.bytes {
            found.0.push(FoundPart::ToFetch { id, bytes });
            return Ok(());
        }
        self.taken += 1;
        self.bytes += bytes;
        lend(row, &mut |message| found.push((id, hash), message, bytes, (budget, memory)))?;
        if let Some(FoundPart::Batch(batch)) = found.0.last_mut() {
            batch.last_is_later(later);
        }
        Ok(())
    }
}

/// What a step brought for one lane, in order.
#[derive(Default)]
pub(super) struct Found(pub(super) Vec<FoundPart>);

pub(super) enum FoundPart {
    /// Messages that go together.
    Batch(FoundBatch),
    /// A message that is still to be fetched: a large one, or one more than fits at the moment.
    ToFetch { id: i64, bytes: usize },
}

/// Messages that go together, with the number and the hash of each.
#[derive(Default)]
pub(super) struct FoundBatch {
    pub(super) messages: Messages,
    pub(super) numbers: Vec<i64>,
    pub(super) hashes: Vec<i64>,
    /// Places of those that are to be delivered at a later time, and when.
    pub(super) later: Vec<(usize, BootInstant)>,
}

impl FoundBatch {
    pub(super) fn push(&mut self, (number, hash): (i64, i64), message: Message<'_>) {
        self.messages.push(message);
        self.numbers.push(number);
        self.hashes.push(hash);
    }

    /// The last message is to be delivered so much later.
    pub(super) fn last_is_later(&mut self, later: Option<Duration>) {
        if let (Some(later), Some(place)) = (later, self.hashes.len().checked_sub(1)) {
            self.later.push((place, clock::now().after(later)));
        }
    }
}

impl Found {
    fn push(&mut self, row: (i64, i64), message: Message<'_>, bytes: usize, (budget, memory): (&Budget, &Memory)) {
        if let Some(FoundPart::Batch(batch)) = self.0.last_mut()
            && batch.messages.len() < budget.batch_messages
            && batch.messages.bytes() + bytes <= budget.batch_bytes
        {
            return batch.push(row, message);
        }
        let mut batch = FoundBatch { messages: memory.buffer(), ..FoundBatch::default() };
        batch.push(row, message);
        self.0.push(FoundPart::Batch(batch));
    }
}

/// A timestamp as the server sent it, which may be infinite.
pub(super) fn timestamp(raw: Raw<'_>) -> Result<Timestamp, Error> {
    Ok(Timestamp(i64::from_be_bytes(fixed(raw)?).saturating_add(POSTGRES_EPOCH)))
}

/// Microseconds from 1970 to 2000, where PostgreSQL counts from.
const POSTGRES_EPOCH: i64 = 946_684_800_000_000;

/// A column's bytes as the server sent them, whatever its type: JSON must not be parsed, only passed on.
#[derive(Clone, Copy)]
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> Raw<'a> {
    pub(super) fn text(self) -> Result<&'a str, Error> {
        std::str::from_utf8(self.0)
            .map_err(|error| Error::new(Kind::Internal, "the outbox gave a text that is not UTF-8").because(error))
    }
}

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

pub(super) fn fixed<const N: usize>(raw: Raw<'_>) -> Result<[u8; N], Error> {
    raw.0.try_into().map_err(|error| {
        Error::new(Kind::Internal, "the outbox gave a value of another size than its type has").because(error)
    })
}
