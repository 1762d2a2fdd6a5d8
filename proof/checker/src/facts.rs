//! A whole history in memory, in compact tables: ten million messages and what became of them.
//!
//! Nothing is judged here. Messages, transactions, replicas, grants and places are numbers, which are indexes of the tables;
//! a [`Line`] is the number of a line over all files, by which a record can be shown again.

use std::collections::{BTreeMap, HashMap};

use crate::history::{Deed, Grant, Nanos, Phase, Run};
use crate::ids::Ids;

/// A line, counted over all files.
pub type Line = u32;
/// An index of [`Facts::ids`].
pub type MessageNo = u32;
/// An index of [`Facts::transactions`].
pub type TransactionNo = u32;
/// An index of [`Facts::replicas`].
pub type ReplicaNo = u32;
/// An index of [`Facts::grants`].
pub type GrantNo = u32;
/// An index of [`Facts::publishes`].
pub type PublishNo = u32;

/// All that was told.
#[derive(Debug, Default)]
pub struct Facts {
    /// How the run was set up; more than one is a mistake.
    pub runs: Vec<(Line, Run)>,
    /// Messages.
    pub ids: Ids,
    /// Inserts of messages, in the order of lines.
    pub writes: Vec<Write>,
    /// What savepoints took back.
    pub took_back: Vec<TookBack>,
    /// What the owner of an adopted table did to its rows, a row each, in the order of lines.
    pub meddled: Vec<Meddled>,
    /// Transactions of the writers.
    pub transactions: Vec<Transaction>,
    pub(crate) transaction_numbers: HashMap<u64, TransactionNo>,
    /// Replicas, by their identities.
    pub replicas: Vec<Replica>,
    pub(crate) replica_numbers: HashMap<String, ReplicaNo>,
    /// Grants.
    pub grants: Vec<Grant>,
    pub(crate) grant_numbers: HashMap<Grant, GrantNo>,
    /// Lanes taken, and epochs raised.
    pub claims: Vec<Claim>,
    /// Lanes given back or stopped.
    pub endings: Vec<Ending>,
    /// Lanes that their owner read anew.
    pub reopenings: Vec<Reopening>,
    /// Batches handed to the sink.
    pub publishes: Vec<Publish>,
    /// The ids of all publishes, one after the other.
    pub published: Vec<MessageNo>,
    /// The letter of each of them; 0 where there is none.
    pub letters: Vec<u8>,
    pub(crate) under_way: HashMap<(ReplicaNo, GrantNo), PublishNo>,
    pub(crate) last_publish: HashMap<(ReplicaNo, GrantNo), PublishNo>,
    /// Looks at the clock before something was written.
    pub looks: Vec<Look>,
    /// Positions that were confirmed.
    pub acks: Vec<Ack>,
    /// Messages whose rows were told to have been changed since they were read, and where that is told.
    pub changed: Vec<(MessageNo, Line)>,
    /// Messages that were told to be set aside, and when.
    pub aside: Vec<(MessageNo, Nanos)>,
    /// Segments that were emptied.
    pub emptied: Vec<Emptied>,
    /// Faults, by their numbers.
    pub faults: Vec<Fault>,
    /// Fail-overs of the database.
    pub fail_overs: Vec<FailOver>,
    /// What arrived.
    pub arrivals: Vec<Arrival>,
    /// The ids of all arrivals, one after the other.
    pub arrived: Vec<MessageNo>,
    /// Of those that did not arrive as they were written, by their index in `arrived`: which transaction's content they had.
    pub contents: HashMap<u32, u64>,
    /// Files or tables of the sink.
    pub places: Vec<String>,
    /// What processes hold.
    pub samples: Vec<Sample>,
    /// The last fault is over.
    pub calm: Option<(Nanos, Line)>,
    /// Nothing is left.
    pub drained: Option<(Nanos, Line)>,
    /// All is told.
    pub end: Option<(Nanos, Line)>,
    /// How many lines each file is to have that is not a replica's.
    pub counted: BTreeMap<String, u64>,
    /// The files, in the order of their lines.
    pub files: Vec<HistoryFile>,
    /// Where the ledger is told.
    pub ledger_lines: u64,
    /// Publishes that began before the last one of the same grant was answered.
    pub overlapping: Vec<(PublishNo, PublishNo)>,
    /// Answers to no publish, and writes for none.
    pub stray: Vec<Line>,
    /// When each line was written.
    pub times: Vec<Nanos>,
    /// Last lines of their files that are not whole.
    pub torn: Vec<Line>,
    /// Lines that cannot be read, and why.
    pub unreadable: Vec<(Line, String)>,
}

/// A file of the history.
#[derive(Debug, Clone)]
pub struct HistoryFile {
    /// Its name, without `.history`.
    pub name: String,
    /// Its first line.
    pub first: Line,
}

/// One insert of a message.
#[derive(Debug, Clone, Copy)]
pub struct Write {
    /// The message.
    pub message: MessageNo,
    /// Its transaction.
    pub transaction: TransactionNo,
    /// Its key.
    pub key: Option<u32>,
    /// Which of its key's messages it is.
    pub n: u64,
    /// Where this is told.
    pub line: Line,
}

/// A savepoint took a message back.
#[derive(Debug, Clone, Copy)]
pub struct TookBack {
    /// The transaction.
    pub transaction: TransactionNo,
    /// The message.
    pub message: MessageNo,
    /// Where this is told.
    pub line: Line,
}

/// What was done to one row of an adopted table.
#[derive(Debug, Clone, Copy)]
pub struct Meddled {
    /// What.
    pub deed: Deed,
    /// The row's message.
    pub message: MessageNo,
    /// The transaction.
    pub transaction: TransactionNo,
    /// Before its commit was sent: nobody sees it earlier.
    pub t: Nanos,
    /// Where this is told.
    pub line: Line,
}

/// A transaction.
#[derive(Debug, Clone, Copy)]
pub struct Transaction {
    /// Its number in the history.
    pub number: u64,
    /// When it first wrote.
    pub wrote: Option<Nanos>,
    /// The server confirmed its commit: sent at, told where.
    pub committed: Option<(Nanos, Line)>,
    /// The server confirmed that nothing of it is left: told where.
    pub rolled_back: Option<Line>,
    /// Since when it is certain that it is not committed any more, if it was not before.
    pub over: Option<Nanos>,
    /// The database knows it at the end: told where.
    pub ledger: Option<Line>,
}

/// One identity of a replica.
#[derive(Debug, Default)]
pub struct Replica {
    /// The name of its process.
    pub name: String,
    /// The process.
    pub pid: Option<u32>,
    /// How its lease was prolonged, in the order of lines.
    pub leases: Vec<Lease>,
    /// It left.
    pub left: Option<(Nanos, Line)>,
}

/// A lease was told to run until some moment.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// Told when.
    pub t: Nanos,
    /// When the answer to its renewal was there, if that is told: it counts from then on.
    pub confirmed: Option<Nanos>,
    /// Until when.
    pub until: Nanos,
    /// Where this is told.
    pub line: Line,
}

/// The clock was looked at right before a write.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Of which call.
    pub publish: PublishNo,
    /// When.
    pub looked: Nanos,
    /// Where this is told.
    pub line: Line,
}

/// A lane taken, or its epoch raised.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// By whom.
    pub replica: ReplicaNo,
    /// What.
    pub grant: GrantNo,
    /// When the statement was sent.
    pub sent: Nanos,
    /// On which timeline.
    pub timeline: u32,
    /// Where this is told.
    pub line: Line,
}

/// A lane given back or stopped.
#[derive(Debug, Clone, Copy)]
pub struct Ending {
    /// By whom.
    pub replica: ReplicaNo,
    /// What.
    pub grant: GrantNo,
    /// When.
    pub t: Nanos,
    /// How.
    pub how: Ended,
    /// Where this is told.
    pub line: Line,
}

/// How a replica's work for a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ended {
    /// It was drained, and then given back or split.
    Settled,
    /// It was given back as it was.
    Unsettled,
    /// It was stopped, and not given back.
    Dropped,
    /// Its epoch was raised.
    Raised,
    /// The replica left.
    Left,
}

/// A lane that its owner read anew from the written position.
#[derive(Debug, Clone, Copy)]
pub struct Reopening {
    /// By whom.
    pub replica: ReplicaNo,
    /// What.
    pub grant: GrantNo,
    /// When.
    pub t: Nanos,
}

/// How a call of the sink ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nobody told.
    None,
    /// A letter for each message.
    Letters,
    /// The sink was down.
    Down,
    /// It was refused.
    Refused(Refusal),
    /// It is not known what was taken.
    Ambiguous,
    /// Dropped with the lease, or with the lane.
    Cut,
}

/// Why it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The sink knows a higher epoch.
    Fenced,
    /// The sink holds another position than was thought.
    Moved,
    /// The sink takes all of a batch or nothing, and does not take one of these messages.
    OneOfThem,
    /// The clock was compared with the lease, and it was over: at once, or after something had been sent that the sink did not
    /// confirm.
    LeaseOver,
}

/// A batch handed to the sink.
#[derive(Debug, Clone, Copy)]
pub struct Publish {
    /// By whom.
    pub replica: ReplicaNo,
    /// Under which grant.
    pub grant: GrantNo,
    /// On which timeline it was read.
    pub timeline: u32,
    /// The lane's batch.
    pub batch: i64,
    /// When it began.
    pub t: Nanos,
    /// Where this is told.
    pub line: Line,
    /// Where its ids begin in [`Facts::published`].
    pub start: usize,
    /// How many there are.
    pub len: u32,
    /// How it ended.
    pub answer: Answer,
    /// When it ended, and where that is told.
    pub answered: Option<(Nanos, Line)>,
    /// When the clock was last looked at before a write, and where that is told.
    pub writing: Option<(Nanos, Line)>,
}

impl Publish {
    /// When its last write was begun, as far as that is told.
    #[must_use]
    pub fn wrote(&self) -> Nanos {
        self.writing.map_or(self.t, |(looked, _)| looked.max(self.t))
    }
}

/// Whether a letter says that the sink has the message.
#[must_use]
pub fn taken(letter: u8) -> bool {
    matches!(letter, b'd' | b'r')
}

/// A position of a lane that was confirmed.
#[derive(Debug, Clone, Copy)]
pub struct Ack {
    /// Under which grant.
    pub grant: GrantNo,
    /// When it was sent.
    pub sent: Nanos,
    /// When it was known to be confirmed.
    pub t: Nanos,
    /// On which timeline.
    pub timeline: u32,
    /// The lane's last batch that is covered.
    pub batch: i64,
    /// The greatest transaction id that its snapshot knows of.
    pub consumed: Option<u64>,
    /// An earlier attempt had written it.
    pub again: bool,
    /// Where this is told.
    pub line: Line,
}

/// A segment was emptied.
#[derive(Debug, Clone, Copy)]
pub struct Emptied {
    /// Which.
    pub segment: u32,
    /// When.
    pub t: Nanos,
    /// Where this is told.
    pub line: Line,
}

/// A fault from its beginning to its end.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Its number.
    pub number: u32,
    /// What was done.
    pub kind: String,
    /// To whom.
    pub target: String,
    /// To which process.
    pub pid: Option<u32>,
    /// When it began; of one whose beginning is not told, when it ended.
    pub from: Nanos,
    /// When it ended, if it did.
    pub to: Option<Nanos>,
    /// Where its beginning is told.
    pub line: Line,
}

impl Fault {
    /// Whether it was done to the process of this replica. Numbers of processes are used again: the name has to be the same, and
    /// a fault that was over before the replica joined was another process's.
    pub(crate) fn hits(&self, replica: &Replica) -> bool {
        let joined = replica.leases.first().map_or(0, |lease| lease.t);
        self.target.split(' ').next() == Some(&replica.name)
            && self.pid.zip(replica.pid).is_none_or(|(hit, pid)| hit == pid)
            && self.to.is_none_or(|to| to >= joined)
    }

    pub(crate) fn phase(&mut self, phase: Phase, t: Nanos, pid: Option<u32>) {
        self.pid = self.pid.or(pid);
        match phase {
            Phase::Begin => self.from = t,
            Phase::End => self.to = Some(t),
        }
    }
}

/// A fail-over of the database.
#[derive(Debug, Clone, Copy)]
pub struct FailOver {
    /// When it was stopped.
    pub from: Nanos,
    /// When it took writes again.
    pub to: Nanos,
    /// As what.
    pub timeline: u32,
    /// What was confirmed before this is not lost; `None` where nothing is that was confirmed.
    pub safe: Option<Nanos>,
    /// Where this is told.
    pub line: Line,
}

impl FailOver {
    /// Whether it may have lost what was known at this moment to be confirmed on this timeline.
    #[must_use]
    pub fn may_lose(&self, timeline: u32, confirmed: Nanos) -> bool {
        self.timeline > timeline && self.safe.is_some_and(|safe| confirmed >= safe)
    }
}

/// What arrived at one place.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// An index of [`Facts::places`].
    pub place: u16,
    /// Where its ids begin in [`Facts::arrived`].
    pub start: usize,
    /// How many there are.
    pub len: u32,
    /// Where this is told.
    pub line: Line,
}

/// What a process or the server holds.
#[derive(Debug, Clone)]
pub struct Sample {
    /// Whose.
    pub name: String,
    /// The process.
    pub pid: Option<u32>,
    /// When.
    pub t: Nanos,
    /// Memory.
    pub resident_kib: Option<u64>,
    /// Open files.
    pub files: Option<u64>,
    /// Connections.
    pub connections: Option<u64>,
    /// Where this is told.
    pub line: Line,
}

/// The entry of a table; a number that was never given out is a mistake of this crate, and has none.
pub fn at<T>(table: &[T], number: u32) -> Option<&T> {
    table.get(number as usize)
}

/// A count as a number. The reader stops before there are as many as cannot be numbered.
pub(crate) fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The number of a table's next entry.
pub(crate) fn next<T>(table: &[T]) -> u32 {
    number(table.len())
}

impl Facts {
    /// The ids of a publish.
    #[must_use]
    pub fn ids_of(&self, publish: &Publish) -> &[MessageNo] {
        self.published.get(publish.start..publish.start + publish.len as usize).unwrap_or_default()
    }

    /// The letters of a publish; 0 where there is none.
    #[must_use]
    pub fn letters_of(&self, publish: &Publish) -> &[u8] {
        self.letters.get(publish.start..publish.start + publish.len as usize).unwrap_or_default()
    }

    /// The ids of an arrival.
    #[must_use]
    pub fn ids_in(&self, arrival: &Arrival) -> &[MessageNo] {
        self.arrived.get(arrival.start..arrival.start + arrival.len as usize).unwrap_or_default()
    }

    /// When a line was written.
    #[must_use]
    pub fn time(&self, line: Line) -> Nanos {
        at(&self.times, line).copied().unwrap_or_default()
    }

    /// How the run was set up.
    #[must_use]
    pub fn run(&self) -> Option<&Run> {
        self.runs.first().map(|(_, run)| run)
    }

    /// Whether the process of this replica stood still all the while from one moment to another, by a signal; what it does within
    /// `slack` before and between stops does not count, nor within `awake` after the last one.
    #[must_use]
    pub fn stopped_through(&self, replica: ReplicaNo, (from, to): (Nanos, Nanos), slack: Nanos, awake: Nanos) -> bool {
        let mut stops: Vec<(Nanos, Nanos)> =
            self.faults_of(replica, "stop").map(|fault| (fault.from, fault.to.unwrap_or(Nanos::MAX))).collect();
        stops.sort_unstable();
        let mut reached = from;
        for (begin, end) in stops {
            if begin <= reached.saturating_add(slack) {
                reached = reached.max(end);
            }
        }
        reached > from && to <= reached.saturating_add(awake)
    }

    /// When the process of this replica was killed, if it was.
    #[must_use]
    pub fn killed(&self, replica: ReplicaNo) -> Option<Nanos> {
        self.faults_of(replica, "kill").map(|fault| fault.from).min()
    }

    fn faults_of<'a>(&'a self, replica: ReplicaNo, kind: &'a str) -> impl Iterator<Item = &'a Fault> {
        let replica = at(&self.replicas, replica);
        let hits = move |fault: &&Fault| replica.is_some_and(|replica| fault.hits(replica));
        self.faults.iter().filter(move |fault| fault.kind.starts_with(kind)).filter(hits)
    }

    /// The last timeline up to this one that an asynchronous fail-over began: since then nothing that was confirmed is lost.
    #[must_use]
    pub fn unbroken_since(&self, timeline: u32) -> u32 {
        let began = self.fail_overs.iter().filter(|fail_over| fail_over.safe.is_some());
        began.map(|fail_over| fail_over.timeline).filter(|began| *began <= timeline).max().unwrap_or(0)
    }

    /// The file that a line stands in.
    #[must_use]
    pub fn file_of(&self, line: Line) -> Option<usize> {
        self.files.partition_point(|file| file.first <= line).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;
    use crate::story::Story;

    /// Numbers of processes are used again.
    #[test]
    fn a_process_is_killed_by_its_name_after_it_joined() {
        let killed = |from, to, target: &str, pid| {
            let fault = |phase| Event::Fault { number: 1, kind: "kill".into(), target: target.into(), pid, phase };
            let story = Story::default().at(from, fault(Phase::Begin)).at(to, fault(Phase::End)).joined(50, "r", 99);
            story.facts().killed(0)
        };
        let r = Some(u32::from(b'r'));
        assert_eq!(killed(60, 70, "name-r", r), Some(60));
        assert_eq!(killed(60, 70, "name-r at lane.delivered", r), Some(60));
        assert_eq!(killed(60, 70, "name-q", r), None);
        assert_eq!(killed(60, 70, "name-r", Some(7)), None);
        assert_eq!(killed(20, 49, "name-r", r), None, "another process, whose number it has now");
        assert_eq!(killed(49, 60, "name-r", r), Some(49), "it joined while it was being killed");
    }
}
