//! What this process does, told as it happens: one party of the history that a torture run is judged by. Only with the
//! feature `faults`; in a shipped build nothing of it is left.
//!
//! `PGBATON_HISTORY` names a file; each event is one line of JSON, appended by one write, so that a process that is killed
//! has told all it did, but for half a line at most. If a write fails the process aborts. What the lines say is agreed upon in
//! `proof/checker/src/history.rs`.

use std::time::Duration;

use serde_json::{Value, json};

use crate::clock::SharedLease;
use crate::lane::{Epoch, Grant, ReplicaId};
use crate::lease::BootInstant;
use crate::outcome::{AppendError, Outcome};
use crate::position::{Incarnation, Xid};
use crate::sink::Part;

/// The time, for those events that tell when something began. Not looked at in a shipped build.
#[inline]
pub(crate) fn now() -> BootInstant {
    if cfg!(feature = "faults") { crate::clock::now() } else { BootInstant::from_boot(Duration::ZERO) }
}

/// A replica has made itself known.
pub(crate) fn joined(replica: ReplicaId, name: &str, ttl: Duration, lease: &SharedLease) {
    tell("joined", || {
        let (pid, until) = (std::process::id(), nanos(lease.get().deadline()));
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        json!({ "replica": id(replica), "name": name, "pid": pid, "ttl_ms": ttl_ms, "until": until })
    });
}

/// A renewal was confirmed, at `confirmed` or a moment later. A late one may not have moved the end of the lease.
pub(crate) fn renewed(replica: ReplicaId, confirmed: BootInstant, lease: &SharedLease) {
    tell("renewed", || {
        let until = nanos(lease.get().deadline());
        json!({ "replica": id(replica), "confirmed": nanos(confirmed), "until": until })
    });
}

/// All tasks of this identity have ended.
pub(crate) fn left(replica: ReplicaId) {
    tell("left", || json!({ "replica": id(replica) }));
}

/// Lanes were claimed by a statement sent at `sent`.
pub(crate) fn claimed(replica: ReplicaId, sent: BootInstant, here: &Incarnation, lanes: &[Grant]) {
    if !lanes.is_empty() {
        tell(
            "claimed",
            || json!({ "replica": id(replica), "sent": nanos(sent), "timeline": here.timeline, "grants": grants(lanes) }),
        );
    }
}

/// A lane's epoch was raised to this one.
pub(crate) fn raised(replica: ReplicaId, sent: BootInstant, here: &Incarnation, from: &Grant, to: Epoch) {
    tell("raised", || {
        let to = Grant { lane: from.lane.clone(), epoch: to };
        let (sent, timeline) = (nanos(sent), here.timeline);
        json!({ "replica": id(replica), "sent": sent, "timeline": timeline, "from": grant(from), "to": grant(&to) })
    });
}

/// These are about to be given back or split. Told before that is sent. `settled`: they were drained, so that a position covers
/// all that the sink has, but for the batch that was interrupted.
pub(crate) fn released(replica: ReplicaId, lanes: &[Grant], settled: bool) {
    if !lanes.is_empty() {
        tell("released", || json!({ "replica": id(replica), "grants": grants(lanes), "settled": settled }));
    }
}

/// This lane's task has ended; it is to be opened again under the same grant, from its written position.
pub(crate) fn reopened(replica: ReplicaId, lane: &Grant, why: &str) {
    tell("reopened", || json!({ "replica": id(replica), "grant": grant(lane), "why": why }));
}

/// This lane's task has ended, and the lane was not given back.
pub(crate) fn dropped(replica: ReplicaId, lane: &Grant, why: &str) {
    tell("dropped", || json!({ "replica": id(replica), "grants": [grant(lane)], "why": why }));
}

/// A lane as a replica has it, on one timeline of the database.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "faults"), allow(dead_code, reason = "only the history reads it"))]
pub(crate) struct Held {
    pub(crate) replica: ReplicaId,
    pub(crate) grant: Grant,
    pub(crate) timeline: i32,
}

/// The clock was looked at, and something may be written to the sink next: at `looked`, or later.
pub(crate) fn writing(held: &Held, looked: BootInstant) {
    tell("writing", || json!({ "replica": id(held.replica), "grant": grant(&held.grant), "looked": nanos(looked) }));
}

/// A call to a sink, told when it begins, which is when this is first polled, and when it is answered.
pub(crate) async fn published(held: &Held, batch: i64, part: &Part<'_>, call: impl Future<Output = Answer>) -> Answer {
    tell("publish", || {
        let ids: Vec<&str> = part.messages().map(|message| message.id).collect();
        let (replica, grant) = (id(held.replica), grant(&held.grant));
        json!({ "replica": replica, "grant": grant, "timeline": held.timeline, "batch": batch, "ids": ids })
    });
    let under_way = UnderWay { held, batch, messages: part.len(), answered: false };
    let answer = call.await;
    under_way.answered(&answer);
    answer
}

type Answer = Result<Vec<Outcome>, AppendError>;

/// Dropped without an answer, the call was cut off.
struct UnderWay<'a> {
    held: &'a Held,
    batch: i64,
    messages: usize,
    answered: bool,
}

impl UnderWay<'_> {
    fn answered(mut self, answer: &Answer) {
        self.answered = true;
        self.tell(|| match answer {
            Ok(outcomes) => (0..self.messages).map(|message| outcomes.get(message).map_or('-', letter)).collect(),
            Err(error) => failure(error).to_owned(),
        });
    }

    fn tell(&self, answer: impl FnOnce() -> String) {
        tell("answered", || {
            let (replica, grant) = (id(self.held.replica), grant(&self.held.grant));
            json!({ "replica": replica, "grant": grant, "batch": self.batch, "answer": answer() })
        });
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.tell(|| "cut".to_owned());
        }
    }
}

fn letter(outcome: &Outcome) -> char {
    match outcome {
        Outcome::Delivered => 'd',
        Outcome::Repeated => 'r',
        Outcome::Retry { .. } => 't',
        Outcome::Rejected(_) => 'x',
        Outcome::NotTried => '-',
    }
}

fn failure(error: &AppendError) -> &'static str {
    match error {
        AppendError::SinkDown(_) => "down",
        AppendError::Refused(_) => "refused",
        AppendError::Fenced { .. } => "fenced",
        AppendError::Ambiguous(_) => "ambiguous",
        AppendError::Moved => "moved",
        AppendError::LeaseOver => "lease_over",
    }
}

/// How far a lane is.
pub(crate) struct Position<'a> {
    pub(crate) grant: &'a Grant,
    pub(crate) batch: i64,
    /// xmax of S. None of an adopted table, whose own rows say what was dealt with.
    pub(crate) consumed: Option<Xid>,
    /// It was written before, by an attempt whose answer was lost.
    pub(crate) again: bool,
}

/// What a transaction has written.
pub(crate) struct Acknowledged<'a> {
    pub(crate) positions: Vec<Position<'a>>,
    /// Messages of an adopted table whose rows had been changed since they were read, and were marked with the others.
    pub(crate) changed: Vec<String>,
    /// Messages that are set aside with them.
    pub(crate) aside: Vec<String>,
}

/// This was written by a transaction whose first statement was sent at `sent`.
pub(crate) fn acknowledged<'a>(
    replica: ReplicaId,
    sent: BootInstant,
    here: &Incarnation,
    written: impl FnOnce() -> Acknowledged<'a>,
) {
    tell("acknowledged", || {
        let Acknowledged { positions, changed, aside } = written();
        let positions: Vec<Value> = positions.iter().map(position).collect();
        let (replica, sent) = (id(replica), nanos(sent));
        let timeline = here.timeline;
        json!({ "replica": replica, "sent": sent, "timeline": timeline, "positions": positions, "changed": changed, "aside": aside })
    });
}

/// A segment was emptied. Without a replica it was an operator.
pub(crate) fn emptied(replica: Option<ReplicaId>, segment: i16) {
    tell("emptied", || {
        let replica = replica.map_or_else(|| "operator".to_owned(), id);
        json!({ "replica": replica, "segment": segment })
    });
}

fn id(replica: ReplicaId) -> String {
    replica.to_string()
}

fn nanos(at: BootInstant) -> u64 {
    u64::try_from(at.since_boot().as_nanos()).unwrap_or(u64::MAX)
}

fn grant(Grant { lane, epoch }: &Grant) -> Value {
    json!({ "relay": lane.relay.as_str(), "lane": lane.number, "of": lane.of, "epoch": epoch.0 })
}

fn grants(lanes: &[Grant]) -> Vec<Value> {
    lanes.iter().map(grant).collect()
}

fn position(position: &Position<'_>) -> Value {
    let Position { grant: of, batch, consumed, again } = position;
    json!({ "grant": grant(of), "batch": batch, "consumed": consumed.map(|xid| xid.0), "again": again })
}

#[cfg(not(feature = "faults"))]
#[inline]
fn tell(_event: &'static str, _what: impl FnOnce() -> Value) {}

#[cfg(feature = "faults")]
use enabled::tell;

#[cfg(feature = "faults")]
mod enabled {
    use std::fs::{File, OpenOptions};
    use std::io::Write;
    use std::sync::LazyLock;

    use serde_json::Value;

    /// Opened once: whoever starts the process anew gives it another file.
    static FILE: LazyLock<Option<File>> = LazyLock::new(|| {
        let path = std::env::var_os("PGBATON_HISTORY").filter(|path| !path.is_empty())?;
        let opened = OpenOptions::new().create(true).append(true).open(path);
        let opened = opened.inspect_err(|error| eprintln!("PGBATON_HISTORY cannot be written: {error}"));
        Some(opened.unwrap_or_else(|_| std::process::abort()))
    });

    pub(super) fn tell(event: &'static str, what: impl FnOnce() -> Value) {
        let Some(mut file) = FILE.as_ref() else { return };
        let mut line = what();
        if let Some(fields) = line.as_object_mut() {
            fields.insert("event".to_owned(), event.into());
            fields.insert("t".to_owned(), super::nanos(crate::clock::now()).into());
        }
        // All at once: a line may be torn by a kill, but not mixed with another one.
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            // With a hole in it, a history proves nothing: whoever runs this has to see that.
            eprintln!("PGBATON_HISTORY lacks an event, {event}: {error}");
            std::process::abort();
        }
    }
}
