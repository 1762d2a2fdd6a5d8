//! The seam towards a destination.
//!
//! A sink never sees SQL of the outbox, nor a position it could read: it stores messages, and, if it can, refuses an
//! older epoch and keeps an opaque position beside them.

use std::fmt;
use std::time::Duration;

/// What the two traits below are written with, for sinks of your own.
pub use async_trait::async_trait;

use crate::clock::Deadline;
use crate::lane::{Epoch, Grant};
use crate::message::{Message, Messages};
use crate::outcome::{AppendError, Fault, Outcome};
use crate::source::Opaque;

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod discard;
pub mod file;
#[cfg(feature = "http")]
pub mod http;
/// For the fuzzer only.
#[doc(hidden)]
pub mod jsonline;
#[cfg(feature = "postgres")]
pub mod postgres;

/// A destination.
///
/// A sink of your own implements this and [`OpenLane`], with [`macro@async_trait`]: `examples/embed.rs` is the least there is. Have
/// it pass `conformance`, the suite that the sinks here pass, too (feature `conformance`).
///
/// # Who calls what
/// [`open`](Self::open) may be called from several tasks at once, for different lanes. For one grant there are never two
/// open lanes.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Asks the live server what it can do. Called at start, before any lane is opened.
    ///
    /// # Errors
    /// Whether waiting may help, or a person has to change something.
    async fn probe(&self) -> Result<Capabilities, ProbeError>;

    /// Opens a lane: takes its fence, if the sink can fence. From then on an older epoch must be refused.
    ///
    /// With [`Opening::First`] the sink must not know this epoch yet, with [`Opening::Again`] it may.
    ///
    /// # Errors
    /// [`OpenError::Fenced`] if the sink knows an epoch that is higher, or as high at the first opening.
    async fn open(&self, grant: &Grant, opening: Opening) -> Result<Box<dyn OpenLane>, OpenError>;
}

/// The only way to write a lane's messages. It dies with its connection.
///
/// # Order and cancellation
/// One call at a time. A dropped call may have written all, some or nothing, like [`AppendError::Ambiguous`]; the lane is
/// then closed and opened again. Dropping an open lane closes it.
#[async_trait]
pub trait OpenLane: Send {
    /// What the sink holds for this lane, asked after the fence was taken. `None` if it keeps no positions, or none yet.
    ///
    /// # Errors
    /// The sink is down.
    async fn position(&mut self) -> Result<Option<Opaque>, Fault>;

    /// Writes messages in order and answers with one outcome for each of them, in the same order.
    ///
    /// A sink that keeps positions writes all or nothing, together with the next position, and only if it stands at
    /// `prev`. Another one may write some; after a message that was not written it writes no later message of that key.
    /// [`Deadline::check`] is called right before each write.
    ///
    /// What an error means is said by its [`Code`](crate::outcome::Code): [`Outcome::of`] makes the outcome of it, and
    /// [`Outcome::of_all`] that of a call which failed without naming a message.
    ///
    /// # Errors
    /// The call as a whole failed, and nothing is known of a single message.
    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError>;
}

/// What is handed to a sink in one call.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    messages: &'a Messages,
    /// Which of them; `None` means all.
    only: Option<&'a [usize]>,
    /// What the sink was last known to hold.
    pub prev: Option<&'a Opaque>,
    /// What it holds once this is written.
    pub next: &'a Opaque,
}

impl<'a> Part<'a> {
    /// All messages of a batch.
    #[must_use]
    pub fn whole(messages: &'a Messages, prev: Option<&'a Opaque>, next: &'a Opaque) -> Self {
        Self { messages, only: None, prev, next }
    }

    /// What is left of a batch of which a sink without positions has taken some.
    #[must_use]
    pub fn rest(self, only: &'a [usize]) -> Self {
        Self { only: Some(only), ..self }
    }

    /// Number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.only.map_or(self.messages.len(), <[usize]>::len)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The messages in order.
    pub fn messages(&self) -> impl Iterator<Item = Message<'a>> {
        let only = self.only;
        let mut wanted = only.unwrap_or_default().iter();
        let mut next = wanted.next();
        self.messages.iter().enumerate().filter_map(move |(index, message)| {
            if only.is_some() {
                if next != Some(&index) {
                    return None;
                }
                next = wanted.next();
            }
            Some(message)
        })
    }
}

/// Whether a grant's lane is opened for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The sink cannot know this epoch, unless claims were lost in a fail-over.
    First,
    /// After a lost connection or an ambiguous answer.
    Again,
}

/// Why a sink cannot be used now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// It cannot be reached: tried again until it can.
    #[error("the sink is down: {0}")]
    SinkDown(Fault),
    /// It answers, and cannot be used as configured.
    #[error("the sink cannot be used: {0}")]
    Unusable(Fault),
}

/// Why a lane could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// It cannot be reached, or refuses to work as configured.
    #[error("the sink is down: {0}")]
    SinkDown(Fault),
    /// It knows this epoch or a newer one.
    #[error("fenced: the sink knows epoch {epoch}")]
    Fenced {
        /// The epoch that the sink holds.
        epoch: Epoch,
    },
}

/// What is promised of a source and a sink together. Lower is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Exactly once: the sink refuses an older epoch and keeps the position in the same step as the messages.
    T1,
    /// Once within a window: the sink remembers message ids for a while.
    T3,
    /// At least once, and never from a replica that lost its lane.
    T4,
    /// At least once.
    T5,
}

impl Tier {
    /// As a metric: the higher, the less.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::T1 => 1,
            Self::T3 => 3,
            Self::T4 => 4,
            Self::T5 => 5,
        }
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        [Self::T1, Self::T3, Self::T4, Self::T5].into_iter().find(|tier| tier.number() == number)
    }

    /// Its short name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::T1 => "T1",
            Self::T3 => "T3",
            Self::T4 => "T4",
            Self::T5 => "T5",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::T1 => "T1 (exactly once)",
            Self::T3 => "T3 (once within a window)",
            Self::T4 => "T4 (at least once, fenced)",
            Self::T5 => "T5 (at least once)",
        })
    }
}

/// What a live sink can do.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// What can be promised with it.
    pub tier: Tier,
    /// It refuses an older epoch.
    pub fences: bool,
    /// It keeps the position beside the messages.
    pub keeps_position: bool,
    /// The largest message it takes, in bytes.
    pub max_message_bytes: Option<usize>,
    /// How many messages it takes in one call.
    pub max_batch_messages: Option<usize>,
    /// How many bytes it takes in one call.
    pub max_batch_bytes: Option<usize>,
    /// For how long it drops a repeat by its message id.
    pub dedupe_window: Option<Duration>,
}

impl Capabilities {
    /// A sink of this tier that neither fences nor keeps positions, and limits nothing.
    #[must_use]
    pub fn plain(tier: Tier) -> Self {
        Self {
            tier,
            fences: false,
            keeps_position: false,
            max_message_bytes: None,
            max_batch_messages: None,
            max_batch_bytes: None,
            dedupe_window: None,
        }
    }
}
