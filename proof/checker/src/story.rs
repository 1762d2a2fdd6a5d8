//! Hand-made histories for the tests, one call a record. Times are in their own unit: what counts is their order.

use crate::case::Case;
use crate::facts::Facts;
use crate::found::{Check, Found};
use crate::history::{Deed, Event, Grant, Message, Nanos, Phase, Position, Record, Run};
use crate::read::take_line;

/// A lane of the relay `orders`.
pub fn grant(lane: u32, of: u32, epoch: i64) -> Grant {
    Grant { relay: "orders".into(), lane, of, epoch }
}

/// One second.
pub const SECOND: Nanos = 1_000_000_000;

/// A history in the making.
#[derive(Clone)]
pub struct Story {
    records: Vec<Record>,
    timeline: u32,
}

impl Default for Story {
    fn default() -> Self {
        Self { records: Vec::new(), timeline: 1 }
    }
}

fn owned(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

impl Story {
    /// A run at the beginning: 8 messages in flight, 4 in a batch, a ttl of 5 s, 10 s until all is delivered, 5 s to
    /// drain a lane.
    pub fn run(exactly_once: bool) -> Self {
        let run = Run {
            seed: 7,
            sink: "file".into(),
            exactly_once,
            in_flight: 8,
            batch_messages: 4,
            ttl_ms: 5_000,
            drain_within_ms: 10_000,
            drain_ms: 5_000,
        };
        Self::default().at(0, Event::Run(run))
    }

    /// What a check finds in it.
    pub fn judged(&self, check: impl Fn(&Case, &mut Found)) -> Found {
        let mut found = Found::default();
        check(&Case::new(self.facts()), &mut found);
        found
    }

    /// How many violations of this check it finds.
    pub fn violations(&self, check: impl Fn(&Case, &mut Found), of: Check) -> u64 {
        self.judged(check).of(of)
    }

    pub fn at(mut self, t: Nanos, event: Event) -> Self {
        self.records.push(Record { t, event });
        self
    }

    /// From here on the database is on this timeline.
    pub fn on(mut self, timeline: u32) -> Self {
        self.timeline = timeline;
        self
    }

    pub fn joined(self, t: Nanos, replica: &str, until: Nanos) -> Self {
        let (name, pid) = (format!("name-{replica}"), replica.bytes().map(u32::from).sum());
        self.at(t, Event::Joined { replica: replica.into(), name, pid, ttl_ms: 5_000, until })
    }

    pub fn renewed(self, t: Nanos, replica: &str, until: Nanos) -> Self {
        self.at(t, Event::Renewed { replica: replica.into(), until, confirmed: None })
    }

    /// As newer histories tell it.
    pub fn confirmed(self, confirmed: Nanos, t: Nanos, replica: &str, until: Nanos) -> Self {
        self.at(t, Event::Renewed { replica: replica.into(), until, confirmed: Some(confirmed) })
    }

    pub fn left(self, t: Nanos, replica: &str) -> Self {
        self.at(t, Event::Left { replica: replica.into() })
    }

    /// Claimed with a statement that was sent at once.
    pub fn claimed(self, t: Nanos, replica: &str, grants: &[Grant]) -> Self {
        let timeline = self.timeline;
        self.at(t, Event::Claimed { replica: replica.into(), sent: t, timeline, grants: grants.to_vec() })
    }

    pub fn released(self, t: Nanos, replica: &str, grants: &[Grant]) -> Self {
        self.at(t, Event::Released { replica: replica.into(), grants: grants.to_vec(), settled: true })
    }

    /// Given back as they are.
    pub fn released_unsettled(self, t: Nanos, replica: &str, grants: &[Grant]) -> Self {
        self.at(t, Event::Released { replica: replica.into(), grants: grants.to_vec(), settled: false })
    }

    pub fn reopened(self, t: Nanos, replica: &str, grant: &Grant) -> Self {
        self.at(t, Event::Reopened { replica: replica.into(), grant: grant.clone(), why: "test".into() })
    }

    pub fn dropped(self, t: Nanos, replica: &str, grants: &[Grant]) -> Self {
        self.at(t, Event::Dropped { replica: replica.into(), grants: grants.to_vec(), why: "test".into() })
    }

    pub fn publish(self, t: Nanos, replica: &str, grant: &Grant, batch: i64, ids: &[&str]) -> Self {
        let (grant, timeline) = (grant.clone(), self.timeline);
        self.at(t, Event::Publish { replica: replica.into(), grant, timeline, batch, ids: owned(ids) })
    }

    /// The clock was looked at.
    pub fn writing(self, looked: Nanos, replica: &str, grant: &Grant) -> Self {
        self.at(looked + 1, Event::Writing { replica: replica.into(), grant: grant.clone(), looked })
    }

    pub fn answered(self, t: Nanos, replica: &str, grant: &Grant, batch: i64, answer: &str) -> Self {
        let answer = answer.to_owned();
        self.at(t, Event::Answered { replica: replica.into(), grant: grant.clone(), batch, answer })
    }

    /// Published and answered one unit later; an empty answer is none. Something is written at once unless the answer is an error
    /// that does without.
    pub fn published(self, t: Nanos, replica: &str, grant: &Grant, batch: i64, ids: &[&str], answer: &str) -> Self {
        let story = self.publish(t, replica, grant, batch, ids);
        // Told at the same moment: at the end of a lease it would be too late otherwise.
        let writing = Event::Writing { replica: replica.into(), grant: grant.clone(), looked: t };
        let story = if ["down", "fenced", "moved", "refused", "lease_over", "cut"].contains(&answer) {
            story
        } else {
            story.at(t, writing)
        };
        if answer.is_empty() { story } else { story.answered(t + 1, replica, grant, batch, answer) }
    }

    /// A position that was sent one unit earlier.
    pub fn acknowledged(self, t: Nanos, replica: &str, grant: &Grant, batch: i64) -> Self {
        self.position(t, replica, grant, batch, 100 + t)
    }

    pub fn position(self, t: Nanos, replica: &str, grant: &Grant, batch: i64, consumed: u64) -> Self {
        let timeline = self.timeline;
        let positions = vec![Position { grant: grant.clone(), batch, consumed: Some(consumed), again: false }];
        let (replica, changed) = (replica.into(), Vec::new());
        self.at(t, Event::Acknowledged { replica, sent: t - 1, timeline, positions, changed, aside: Vec::new() })
    }

    /// A position with which these messages are set aside.
    pub fn acknowledged_without(self, t: Nanos, grant: &Grant, batch: i64, aside: &[&str]) -> Self {
        let timeline = self.timeline;
        let positions = vec![Position { grant: grant.clone(), batch, consumed: Some(100 + t), again: false }];
        let (replica, changed, aside) = ("r1".into(), Vec::new(), owned(aside));
        self.at(t, Event::Acknowledged { replica, sent: t - 1, timeline, positions, changed, aside })
    }

    /// A mark of an adopted table that was sent one unit earlier: these rows had been changed.
    pub fn marked(self, t: Nanos, grant: &Grant, batch: i64, again: bool, changed: &[&str]) -> Self {
        let timeline = self.timeline;
        let positions = vec![Position { grant: grant.clone(), batch, consumed: None, again }];
        let (replica, changed) = ("r".into(), owned(changed));
        self.at(t, Event::Acknowledged { replica, sent: t - 1, timeline, positions, changed, aside: Vec::new() })
    }

    /// The table's owner did this to these rows, by a transaction of its own; its commit was confirmed one unit later.
    pub fn meddled(self, t: Nanos, transaction: u64, deed: Deed, ids: &[&str]) -> Self {
        self.meddles(t, transaction, deed, ids).committed(t + 1, transaction)
    }

    /// The same, but for its end.
    pub fn meddles(self, t: Nanos, transaction: u64, deed: Deed, ids: &[&str]) -> Self {
        self.at(t, Event::Meddled { transaction, deed, ids: owned(ids) })
    }

    /// Messages of one key, numbered by what stands behind the `#`; of none where nothing does.
    pub fn wrote(self, t: Nanos, transaction: u64, ids: &[&str]) -> Self {
        let message = |id: &&str| {
            let number = id.split_once('#').map(|(key, n)| (key.bytes().map(u32::from).sum(), n.parse().unwrap()));
            Message { id: (*id).to_owned(), key: number.map(|(key, _)| key), n: number.map_or(0, |(_, n)| n) }
        };
        self.at(t, Event::Wrote { transaction, messages: ids.iter().map(message).collect() })
    }

    pub fn took_back(self, t: Nanos, transaction: u64, ids: &[&str]) -> Self {
        self.at(t, Event::TookBack { transaction, ids: owned(ids) })
    }

    /// Confirmed at once.
    pub fn committed(self, t: Nanos, transaction: u64) -> Self {
        self.at(t, Event::Committed { transaction, sent: t })
    }

    pub fn rolled_back(self, t: Nanos, transaction: u64) -> Self {
        self.at(t, Event::RolledBack { transaction })
    }

    pub fn over(self, t: Nanos, transaction: u64) -> Self {
        self.at(t, Event::Over { transaction })
    }

    pub fn ledger(self, t: Nanos, transactions: &[u64]) -> Self {
        self.at(t, Event::Ledger { transactions: transactions.to_vec() })
    }

    pub fn arrived(self, t: Nanos, place: &str, ids: &[&str]) -> Self {
        self.arrived_as(t, place, ids, &[])
    }

    /// Some with another content than they were written with.
    pub fn arrived_as(self, t: Nanos, place: &str, ids: &[&str], contents: &[(u32, u64)]) -> Self {
        self.at(t, Event::Arrived { place: place.into(), ids: owned(ids), contents: contents.to_vec() })
    }

    /// An asynchronous one of a standby that had nothing.
    pub fn failed_over(self, from: Nanos, to: Nanos, timeline: u32, synchronous: bool) -> Self {
        self.failed_over_from(from, to, timeline, (!synchronous).then_some(0))
    }

    pub fn failed_over_from(self, from: Nanos, to: Nanos, timeline: u32, safe: Option<Nanos>) -> Self {
        self.at(to, Event::FailedOver { from, to, timeline, safe })
    }

    /// A fault of the process of this replica.
    pub fn fault(self, kind: &str, replica: &str, from: Nanos, to: Nanos) -> Self {
        let number = u32::try_from(self.records.len()).unwrap();
        let pid = Some(replica.bytes().map(u32::from).sum());
        let target = format!("name-{replica}");
        let fault = |phase| Event::Fault { number, kind: kind.into(), target: target.clone(), pid, phase };
        self.at(from, fault(Phase::Begin)).at(to, fault(Phase::End))
    }

    /// The tables, by way of the lines.
    pub fn facts(&self) -> Facts {
        let mut facts = Facts::default();
        for (number, line) in (0..).zip(self.lines()) {
            take_line(&mut facts, number, line.as_bytes());
        }
        assert!(facts.unreadable.is_empty());
        facts
    }

    /// The lines, with their line breaks.
    pub fn lines(&self) -> Vec<String> {
        self.records.iter().map(|record| serde_json::to_string(record).unwrap() + "\n").collect()
    }
}
