//! The stage of a simulated run: writers, the database with its standby, faults, and the clock.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use checker::history::{Event, Message, Nanos, Phase, Record, Run};

use super::Histories;
use super::relay::{Replica, Row, Wrong};
use super::sink::Sink;

pub const MS: Nanos = 1_000_000;
pub const LEASE: Nanos = 4_500 * MS;
pub const KEYS: u32 = 12;
pub const IN_FLIGHT: usize = 12;

/// The sink's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Fences and drops repeats.
    Inbox,
    /// One place, at least once.
    Endpoint,
    /// A file for each replica.
    Files,
}

/// A committed message.
#[derive(Clone)]
pub struct Committed {
    pub id: String,
    pub key: u32,
    /// The transaction that changed it; 0 if none did.
    pub content: u64,
    /// It was deleted, or stands elsewhere by now.
    pub gone: bool,
    /// It was marked for a lane that it is no longer of.
    pub marked: bool,
    pub set_back: bool,
    pub rekeyed: bool,
}

/// What the database holds; the standby has one, too.
#[derive(Clone, Default)]
pub struct Database {
    pub log: Vec<Committed>,
    pub rows: Vec<Row>,
    pub ledger: Vec<u64>,
    numbers: Vec<u64>,
}

pub struct Stage {
    pub rng: StdRng,
    pub t: Nanos,
    pub database: Database,
    standby: Database,
    /// Since when there may be something that the standby lacks.
    safe: Nanos,
    pub timeline: u32,
    pub claims_from: Nanos,
    pub sink: Sink,
    pub wrong: Wrong,
    /// Whether the table is its owner's, who meddles with its rows.
    pub meddles: bool,
    pub replicas: Vec<Replica>,
    /// A message that was rolled back.
    pub undone: Option<String>,
    pub histories: Histories,
    /// Of each file.
    lines: BTreeMap<String, u64>,
    seed: u64,
    transactions: u64,
    ids: u64,
    faults: u32,
    lives: u32,
}

impl Stage {
    pub fn new(seed: u64, kind: Kind, wrong: Wrong) -> Self {
        let row = |lane| Row { lane, of: 4, epoch: 0, owner: None, batch: 0, upto: 0 };
        let database =
            Database { rows: (0..4).map(row).collect(), numbers: vec![0; KEYS as usize], ..Database::default() };
        Self {
            rng: StdRng::seed_from_u64(seed),
            t: 1_000 * MS,
            standby: database.clone(),
            safe: 0,
            database,
            timeline: 1,
            claims_from: 0,
            sink: Sink::new(kind),
            wrong,
            meddles: false,
            replicas: Vec::new(),
            undone: None,
            histories: Histories::new(),
            lines: BTreeMap::new(),
            seed,
            transactions: 0,
            ids: 0,
            faults: 0,
            lives: 0,
        }
    }

    pub fn tell(&mut self, file: &str, event: Event) {
        self.t += 1;
        let lines = self.lines.entry(file.to_owned()).or_default();
        *lines += 1;
        if self.wrong != Wrong::LosesALine || file != "writer" || *lines != 20 {
            self.histories.entry(file.to_owned()).or_default().push(Record { t: self.t, event });
        }
    }

    pub fn chance(&mut self, percent: f64) -> bool {
        self.rng.random_bool(percent / 100.0)
    }

    pub fn run(mut self, steps: u32) -> Histories {
        let kind = self.sink.kind;
        let run = Run {
            seed: self.seed,
            sink: format!("{kind:?}"),
            exactly_once: kind == Kind::Inbox,
            in_flight: IN_FLIGHT as u64,
            batch_messages: 4,
            ttl_ms: 5_000,
            drain_within_ms: 60_000,
            drain_ms: 5_000,
        };
        self.tell("stage", Event::Run(run));
        for _ in 0..steps {
            self.step();
        }
        self.tell("stage", Event::Calm);
        while !self.all_passed() {
            self.relay_step();
        }
        self.tell("stage", Event::Drained);
        for (place, ids) in self.sink.places.clone() {
            for arrived in ids.chunks(50) {
                let (ids, contents): (Vec<String>, Vec<u64>) = arrived.iter().cloned().unzip();
                let contents = (0..).zip(contents).filter(|(_, content)| *content > 0).collect();
                self.tell("stage", Event::Arrived { place: place.clone(), ids, contents });
            }
        }
        let transactions = self.database.ledger.clone();
        self.tell("stage", Event::Ledger { transactions });
        let told = |name: &str, more| (name.to_owned(), self.lines.get(name).copied().unwrap_or_default() + more);
        let lines = BTreeMap::from([told("stage", 1), told("writer", 0)]);
        self.tell("stage", Event::End { lines });
        self.histories
    }

    /// Whether every position has passed all that there is.
    fn all_passed(&self) -> bool {
        self.database.rows.iter().all(|row| row.next(&self.database.log, row.upto).is_none())
    }

    fn step(&mut self) {
        if self.chance(60.0) {
            self.write();
        }
        if self.meddles && self.chance(60.0) {
            super::meddler::meddle(self);
        }
        if self.chance(30.0) {
            (self.standby, self.safe) = (self.database.clone(), self.t + 1);
        }
        if self.chance(1.5) {
            self.hurt("kill");
        }
        // Who does wrong only when it wakes up has to be stopped within a call.
        let stops = matches!(self.wrong, Wrong::IgnoresItsLease | Wrong::WritesLateAndIsCut);
        if self.chance(if stops { 4.0 } else { 1.0 }) {
            self.hurt("stop");
        }
        if self.chance(0.7) {
            self.fail_over();
        }
        self.relay_step();
    }

    /// Starts replicas until there are three, and has each do something.
    fn relay_step(&mut self) {
        self.t += self.rng.random_range(1..150) * MS;
        while self.replicas.iter().filter(|replica| replica.runs()).count() < 3 {
            self.lives += 1;
            let replica = Replica::new(self.lives, self.t + LEASE);
            let joined = replica.joined();
            let name = replica.name.clone();
            self.replicas.push(replica);
            self.tell(&name, joined);
        }
        super::relay::step(self);
    }

    /// The number of the next transaction.
    pub fn begin(&mut self) -> u64 {
        self.transactions += 1;
        self.transactions
    }

    fn write(&mut self) {
        let transaction = self.begin();
        let mut numbers = self.database.numbers.clone();
        let mut messages = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            self.ids += 1;
            let key = self.rng.random_range(0..KEYS);
            numbers[key as usize] += 1;
            messages.push(Message { id: format!("m{}", self.ids), key: Some(key), n: numbers[key as usize] });
        }
        self.tell("writer", Event::Wrote { transaction, messages: messages.clone() });
        if self.chance(10.0) {
            self.undone = messages.pop().map(|message| message.id);
            return self.tell("writer", Event::RolledBack { transaction });
        }
        if self.chance(10.0) {
            let message = messages.pop().unwrap();
            numbers[message.key.unwrap() as usize] -= 1;
            self.tell("writer", Event::TookBack { transaction, ids: vec![message.id] });
        }
        let sent = self.t;
        if !self.chance(5.0) {
            self.tell("writer", Event::Committed { transaction, sent });
        }
        self.database.numbers = numbers;
        self.database.ledger.push(transaction);
        let committed = messages.into_iter();
        self.database.log.extend(committed.map(|Message { id, key, .. }| Committed {
            id,
            key: key.unwrap(),
            content: 0,
            gone: false,
            marked: false,
            set_back: false,
            rekeyed: false,
        }));
    }

    /// Kills or stops a replica.
    fn hurt(&mut self, kind: &str) {
        let t = self.t;
        let Some(index) = self.replicas.iter().position(Replica::runs) else { return };
        let frozen = kind == "stop";
        if frozen {
            super::relay::freezes(self, index);
        }
        self.faults += 1;
        let replica = &mut self.replicas[index];
        let (number, target, pid) = (self.faults, replica.name.clone(), Some(replica.pid));
        let wakes = t + 8_000 * MS;
        replica.state = if frozen { super::relay::State::Frozen { wakes } } else { super::relay::State::Dead };
        self.tell("stage", Event::Fault { number, kind: kind.into(), target, pid, phase: Phase::Begin });
        if !frozen {
            let target = self.replicas[index].name.clone();
            self.tell("stage", Event::Fault { number, kind: kind.into(), target, pid, phase: Phase::End });
        }
    }

    fn fail_over(&mut self) {
        let synchronous = self.chance(50.0);
        if synchronous {
            self.standby = self.database.clone();
        } else if self.wrong == Wrong::ForgetsPositionsAtAFailOver {
            self.standby.rows.iter_mut().for_each(|row| (row.batch, row.upto) = (row.batch / 2, row.upto / 2));
        }
        let from = self.t;
        self.t += 500 * MS;
        self.database = self.standby.clone();
        self.timeline += 1;
        self.claims_from = self.t + 5_000 * MS;
        let (timeline, to, safe) = (self.timeline, self.t, (!synchronous).then_some(self.safe));
        self.tell("stage", Event::FailedOver { from, to, timeline, safe });
        super::relay::meets(self);
    }
}
