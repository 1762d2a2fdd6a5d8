//! What happened in a run: files of JSON lines, each appended with one write as it happens, so that a process that is
//! killed has told all it did.
//!
//! Every process has a file of its own in the run's folder, `NAME.history`; a line is one [`Record`]. Times are nanoseconds
//! of the machine's boot-time clock ([`Record::t`] is when the line was written), and all processes run on one machine, so
//! times of different files can be compared.
//!
//! Three parties write. The *replicas* (the relay built with its fault points) tell what they do and until when they believe
//! they may. The *writers* tell what they committed, and what they did to rows of an adopted table, which is theirs. The *stage*,
//! which starts and hurts the others, tells what it did,
//! what arrived at the sink, and in the end what the database itself knows to be committed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Nanoseconds of the boot-time clock.
pub type Nanos = u64;

/// One line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When it was written.
    pub t: Nanos,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// A lane as one owner has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Grant {
    /// The relay's name.
    pub relay: String,
    /// The lane's number.
    pub lane: u32,
    /// How many lanes the relay had by then: `lane` is the low bits of the hash.
    pub of: u32,
    /// The fencing number.
    pub epoch: i64,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the text of a variant explains its fields")]
pub enum Event {
    // --- replicas ---
    /// A replica has made itself known under a new identity; the lease it has by that ends at `until`.
    Joined { replica: String, name: String, pid: u32, ttl_ms: u64, until: Nanos },
    /// Its lease has been renewed: the answer was there at `confirmed`, which has to be before the lease's end. Older histories
    /// do not tell that moment.
    Renewed {
        replica: String,
        until: Nanos,
        #[serde(default)]
        confirmed: Option<Nanos>,
    },
    /// It does nothing under this identity any more.
    Left { replica: String },
    /// It took lanes with a statement sent at `sent`, on this timeline of the database.
    Claimed { replica: String, sent: Nanos, timeline: u32, grants: Vec<Grant> },
    /// It lifted a lane's epoch above its sink's: the same lane, from now on under `to`.
    Raised { replica: String, sent: Nanos, timeline: u32, from: Grant, to: Grant },
    /// It is about to give these back, or to split them: nothing is done for them any more. That may be a grant it never told of:
    /// the answer to its claim was lost. `settled`: they were drained, so that a position covers all that the sink has of them,
    /// but for a batch that was interrupted. Otherwise the next owner may repeat what is not covered, if it was not known what
    /// the sink has, or draining took longer than [`Run::drain_ms`].
    Released { replica: String, grants: Vec<Grant>, settled: bool },
    /// It goes on under this grant, but from the written position: all in memory was dropped. `why` is `unsettled` (it is not
    /// known what the sink has), `refused` (a person has to look at it), or `failed_over`.
    Reopened { replica: String, grant: Grant, why: String },
    /// It stopped these without giving them back: its lease has ended, or they were taken away. `why` is for people.
    Dropped { replica: String, grants: Vec<Grant>, why: String },
    /// A batch, or what is left of it, is about to be handed to the sink. `batch` counts the lane's batches over all owners; it
    /// was read on this timeline.
    Publish { replica: String, grant: Grant, timeline: u32, batch: i64, ids: Vec<String> },
    /// The clock was looked at, at `looked`, and the lease was not over: what the call has for the sink is written next. Each
    /// write of a call has one. The write itself may come late, if the process is stopped in between, and also after the call
    /// was cut off.
    Writing { replica: String, grant: Grant, looked: Nanos },
    /// The call that the last [`Event::Publish`] of the same grant began is over: a letter for each message (`d` delivered,
    /// `r` repeated, dropped by the sink; `t` to be tried again; `x` rejected; `-` not tried), or an error: `down`, `fenced`,
    /// `ambiguous`, `moved`, `refused` (one of several, and not said which), `lease_over`, `cut` (dropped at the end of the lease, or with the lane).
    Answered { replica: String, grant: Grant, batch: i64, answer: String },
    /// The database has confirmed positions that were sent at `sent`, on this timeline. `changed`: messages of an adopted table
    /// whose rows had been changed since they were read, and were marked all the same. `aside`: messages that are set aside with
    /// them: not taken, and to be published again.
    Acknowledged {
        replica: String,
        sent: Nanos,
        timeline: u32,
        positions: Vec<Position>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        changed: Vec<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        aside: Vec<String>,
    },
    /// A segment was emptied; the replica is `operator` where a command did it.
    Emptied { replica: String, segment: u32 },

    // --- writers ---
    /// A transaction has inserted messages; it may yet be rolled back. Several lines may name one transaction.
    Wrote { transaction: u64, messages: Vec<Message> },
    /// Messages of this transaction were taken back by a savepoint.
    TookBack { transaction: u64, ids: Vec<String> },
    /// The server confirmed the commit, which was sent at `sent`.
    Committed { transaction: u64, sent: Nanos },
    /// The server confirmed that it was rolled back, or that it wrote nothing: nobody ever sees a message of it.
    RolledBack { transaction: u64 },
    /// It is not committed any more from here on: either it was before, or it never is, and its writer knows nothing for sure. It
    /// got no answer, and its connection is gone; or the answer is worth nothing before the next flush of the log, which a crash
    /// may prevent (`synchronous_commit = off`).
    Over { transaction: u64 },

    /// The owner of an adopted table has done this to just these rows of it, in this transaction: told after the statement and
    /// before the commit, so that nobody sees it earlier. It may yet be rolled back; what became of it is told as of any
    /// transaction.
    Meddled { transaction: u64, deed: Deed, ids: Vec<String> },

    // --- the stage ---
    /// The beginning of a run.
    Run(Run),
    /// A fault, or its end. While a kind that begins with `stop` lasts, process `pid` stands still and may be late; from the
    /// beginning of a kind that begins with `kill` on, it may owe answers and half a line. All others are only counted. `target`
    /// is the process's name, or begins with it and a blank.
    Fault { number: u32, kind: String, target: String, pid: Option<u32>, phase: Phase },
    /// The database was failed over: it was stopped at `from`, and took writes on a new timeline at `to`, before anybody but
    /// the relay could reach it. What was confirmed before `safe` is not lost; without it, which is a synchronous fail-over,
    /// nothing is that was confirmed. What nobody waited for reaches the standby within ten seconds, before `safe` or `from`.
    FailedOver { from: Nanos, to: Nanos, timeline: u32, safe: Option<Nanos> },
    /// What arrived at the sink, in its own order: each file or table is one `place`, and their orders do not compare. A
    /// replica's file is named after it: what stands before the first dot (`order` goes by that). `contents`: of those that did
    /// not arrive as they were written, which one of `ids` that is, counted from 0, and the transaction that had changed it.
    Arrived {
        place: String,
        ids: Vec<String>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        contents: Vec<(u32, u64)>,
    },
    /// Transactions that the database itself knows to be committed, at the end.
    Ledger { transactions: Vec<u64> },
    /// What a process or the server holds.
    Sample { name: String, pid: Option<u32>, resident_kib: Option<u64>, files: Option<u64>, connections: Option<u64> },
    /// The last fault is over, and nothing more is written.
    Calm,
    /// Nothing is left to be delivered.
    Drained,
    /// The end: all that there is to be told has been told. A history without it was cut short. So many lines does each file
    /// have then that is not a replica's, by its name without `.history`, this line included.
    End { lines: BTreeMap<String, u64> },
}

/// How a run was set up: what the checker may expect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What all random choices come from.
    pub seed: u64,
    /// `postgres`, `http` or `file`.
    pub sink: String,
    /// Whether the sink refuses old epochs and drops repeats: then nothing arrives twice, ever.
    pub exactly_once: bool,
    /// Messages of one lane that may be handed over and not yet covered by a written position, besides one batch.
    pub in_flight: u64,
    /// Messages of one batch.
    pub batch_messages: u64,
    /// How long lanes stay with a replica that no longer renews, in milliseconds.
    pub ttl_ms: u64,
    /// How long it may take from [`Event::Calm`] to [`Event::Drained`], in milliseconds.
    pub drain_within_ms: u64,
    /// How long a replica that is to stop drains its lanes at most before it gives them back as they are, in milliseconds.
    #[serde(default = "drain_ms")]
    pub drain_ms: u64,
}

/// What histories had that do not tell it.
fn drain_ms() -> u64 {
    5_000
}

/// One message as its writer knows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// The message id, as the sink knows it.
    pub id: String,
    /// The number of its key; `None` without one.
    pub key: Option<u32>,
    /// Which of its key's messages it is, in commit order. Taken under the key's lock, so it is given out again only if the
    /// transaction is rolled back, or lost in a fail-over.
    pub n: u64,
}

/// What the owner of an adopted table does to rows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// They are pending, and locked until the transaction's end.
    Locked,
    /// They are pending, and say something else from then on: the number of the transaction.
    Changed,
    /// They are pending, and of another key from then on, so perhaps of another lane.
    Rekeyed,
    /// They were marked, and are pending again.
    SetBack,
    /// They were pending, and are gone.
    Deleted,
}

/// How far a lane is, by the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Whose.
    pub grant: Grant,
    /// The lane's last batch that is covered.
    pub batch: i64,
    /// The greatest transaction id that its consumed snapshot knows of: never less than before. None of an adopted table, whose
    /// own rows say what was dealt with.
    #[serde(default)]
    pub consumed: Option<u64>,
    /// An earlier attempt, whose answer was lost, had written it already: it says nothing of when that was.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
}

/// Begin or end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It begins.
    Begin,
    /// It is over.
    End,
}
