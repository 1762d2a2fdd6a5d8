//! The suite that every sink passes, for the authors of sinks: one check for each promise of the contract.
//!
//! A sink's test makes a [`Subject`] and calls [`run`]. A check that the sink does not pass is an error. A promise that
//! it does not make is in the report, with the reason: nothing is left out in silence, and a test compares the report
//! with what the sink's documentation says.

use std::fmt;

use async_trait::async_trait;

use super::{Capabilities, OpenError, OpenLane, Opening, Part, Sink};
use crate::clock::Deadline;
use crate::lane::{Epoch, Grant, Lane, RelayName};
use crate::message::{Message, Messages, Payload, Timestamp};
use crate::outcome::{AppendError, Outcome};
use crate::source::Opaque;

mod checks;

/// A sink under test and its destination.
#[async_trait]
pub trait Subject: Send + Sync {
    /// The sink. Its destination is empty at first.
    fn sink(&self) -> &dyn Sink;

    /// What the sink's documentation says that it does.
    fn declared(&self) -> Declared;

    /// Everything that is at the destination, in the order in which it arrived.
    async fn arrived(&self) -> Vec<Letter>;

    /// A message that the destination can never take, if there is such a thing.
    fn unacceptable(&self) -> Option<Letter>;

    /// The same kind of sink for a destination that cannot be reached, if there is such a thing.
    fn unreachable(&self) -> Option<Box<dyn Sink>>;
}

/// What a sink's documentation says that it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// It refuses an older epoch.
    pub fences: bool,
    /// It keeps a position beside the messages, written in one step with them.
    pub keeps_position: bool,
    /// It drops a repeat by its message id.
    pub drops_repeats: bool,
    /// What arrived can be read back.
    pub can_be_read: bool,
}

/// A message that owns what it says, for comparing what was sent with what arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Its message id.
    pub id: String,
    /// Its topic.
    pub topic: String,
    /// Its key.
    pub key: Option<String>,
    /// Its headers.
    pub headers: Option<String>,
    /// Its payload.
    pub content: Content,
    /// When it was inserted.
    pub created_at: Timestamp,
}

/// A payload that owns its bytes.
#[derive(Clone, PartialEq, Eq)]
pub enum Content {
    /// There is none.
    None,
    /// Any bytes.
    Bytes(Vec<u8>),
    /// JSON, byte for byte.
    Json(String),
}

/// Of a large payload only the size: a failure is to be read.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bytes(bytes) if bytes.len() > 100 => write!(f, "Bytes({} bytes)", bytes.len()),
            Self::Json(json) if json.len() > 100 => write!(f, "Json({} bytes)", json.len()),
            Self::Bytes(bytes) => write!(f, "Bytes({bytes:?})"),
            Self::Json(json) => write!(f, "Json({json:?})"),
        }
    }
}

impl Letter {
    /// A small message of this key.
    #[must_use]
    pub fn new(id: &str, key: &str) -> Self {
        Self {
            id: id.to_owned(),
            topic: "conformance".to_owned(),
            key: Some(key.to_owned()),
            headers: None,
            content: Content::Json(format!("{{\"id\":\"{id}\"}}")),
            created_at: Timestamp(1_700_000_000_000_000),
        }
    }

    fn message(&self) -> Message<'_> {
        Message {
            id: &self.id,
            topic: &self.topic,
            key: self.key.as_deref(),
            headers: self.headers.as_deref(),
            payload: match &self.content {
                Content::None => Payload::None,
                Content::Bytes(bytes) => Payload::Bytes(bytes),
                Content::Json(json) => Payload::Json(json),
            },
            created_at: self.created_at,
        }
    }
}

/// What a check found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// The sink does what is asked.
    Held,
    /// It does not promise this, and was seen to be honest about it.
    NotPromised(&'static str),
}

/// What all checks found out, in the order in which they ran.
#[derive(Debug)]
pub struct Report {
    /// Each check with its finding.
    pub findings: Vec<(&'static str, Finding)>,
}

impl Report {
    /// The checks of promises that the sink does not make.
    #[must_use]
    pub fn not_promised(&self) -> Vec<&'static str> {
        let weaker = self.findings.iter().filter(|(_, finding)| *finding != Finding::Held);
        weaker.map(|(check, _)| *check).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (check, finding) in &self.findings {
            match finding {
                Finding::Held => writeln!(f, "held          {check}")?,
                Finding::NotPromised(why) => writeln!(f, "not promised  {check}: {why}")?,
            }
        }
        Ok(())
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {what}")]
pub struct Failure {
    /// Which check.
    pub check: &'static str,
    /// What was seen instead.
    pub what: String,
}

/// Runs all checks against one sink.
///
/// # Errors
/// The first promise that was broken.
pub async fn run(subject: &dyn Subject) -> Result<Report, Failure> {
    let mut findings = Vec::new();
    for (number, (name, check)) in (0_i32..).zip(checks::ALL) {
        let lab = Lab { subject, declared: subject.declared(), name, first_lane: number * LANES_EACH };
        let finding = check(&lab).await.map_err(|what| Failure { check: name, what })?;
        findings.push((*name, finding));
    }
    Ok(Report { findings })
}

/// Every check has lanes of its own.
const LANES_EACH: i32 = 16;
/// A power of two above all of them.
const LANES: i32 = 1_024;
/// Long enough for any append of the suite.
const LEASE: std::time::Duration = std::time::Duration::from_secs(60);

/// What a check saw that it should not have.
type Seen = String;

/// One check's view of the subject.
struct Lab<'a> {
    subject: &'a dyn Subject,
    declared: Declared,
    name: &'static str,
    first_lane: i32,
}

impl Lab<'_> {
    fn grant(&self, lane: i32, epoch: i64) -> Result<Grant, Seen> {
        let relay = RelayName::new("conformance").ok_or("a relay's name is refused")?;
        Ok(Grant { lane: Lane { relay, number: self.first_lane + lane, of: LANES }, epoch: Epoch(epoch) })
    }

    async fn open(&self, lane: i32, epoch: i64, opening: Opening) -> Result<Box<dyn OpenLane>, Seen> {
        let opened = self.try_open(lane, epoch, opening).await?;
        opened.map_err(|error| format!("lane {lane} could not be opened under epoch {epoch}: {error}"))
    }

    async fn try_open(
        &self,
        lane: i32,
        epoch: i64,
        opening: Opening,
    ) -> Result<Result<Box<dyn OpenLane>, OpenError>, Seen> {
        Ok(self.subject.sink().open(&self.grant(lane, epoch)?, opening).await)
    }

    async fn capabilities(&self) -> Result<Capabilities, Seen> {
        self.subject.sink().probe().await.map_err(|error| format!("the sink cannot be used: {error}"))
    }

    /// Small messages of one key.
    fn letters(&self, from: usize, to: usize) -> Vec<Letter> {
        (from..to).map(|n| Letter::new(&format!("{}-{n}", self.name), self.name)).collect()
    }

    /// What arrived of this check's messages.
    async fn arrived(&self) -> Vec<Letter> {
        let prefix = format!("{}-", self.name);
        self.subject.arrived().await.into_iter().filter(|letter| letter.id.starts_with(&prefix)).collect()
    }

    /// That exactly these messages of this check arrived, in this order.
    async fn expect(&self, wanted: &[Letter]) -> Result<(), Seen> {
        if !self.declared.can_be_read {
            return Ok(());
        }
        let arrived = self.arrived().await;
        let differs = arrived.iter().zip(wanted).find(|(arrived, wanted)| arrived != wanted);
        if let Some((arrived, wanted)) = differs {
            return Err(format!("{wanted:?} was sent and {arrived:?} arrived"));
        }
        ensure(arrived.len() == wanted.len(), || format!("{} sent, {} arrived", wanted.len(), arrived.len()))
    }

    /// That a promise is kept where it is made; where it is not, why that is so.
    fn unless(&self, declared: bool, why: &'static str) -> Finding {
        if declared { Finding::Held } else { Finding::NotPromised(why) }
    }
}

/// What an append is told beside the messages. `0` means no position.
#[derive(Clone, Copy)]
struct Moves(i64, i64);

fn position(number: i64) -> Option<Opaque> {
    (number > 0).then(|| Opaque::from_bytes(format!("position {number}").into_bytes()))
}

async fn append(
    lane: &mut Box<dyn OpenLane>,
    letters: &[Letter],
    moves: Moves,
    deadline: &Deadline,
) -> Result<Vec<Outcome>, AppendError> {
    let mut messages = Messages::default();
    letters.iter().for_each(|letter| messages.push(letter.message()));
    let (prev, next) = (position(moves.0), position(moves.1));
    // No check moves to 0.
    let next = next.unwrap_or_else(|| Opaque::from_bytes(Vec::new()));
    lane.append(&Part::whole(&messages, prev.as_ref(), &next), deadline).await
}

/// Appends, and wants each message to be at the sink now for the first time.
async fn deliver(lane: &mut Box<dyn OpenLane>, letters: &[Letter], moves: Moves) -> Result<(), Seen> {
    let outcomes = append(lane, letters, moves, &Deadline::after(LEASE)).await;
    let delivered = outcomes.as_ref().is_ok_and(|outcomes| {
        outcomes.len() == letters.len() && outcomes.iter().all(|outcome| *outcome == Outcome::Delivered)
    });
    ensure(delivered, || format!("{} messages were not all delivered: {outcomes:?}", letters.len()))
}

fn ensure(holds: bool, seen: impl FnOnce() -> Seen) -> Result<(), Seen> {
    if holds { Ok(()) } else { Err(seen()) }
}
