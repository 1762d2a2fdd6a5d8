//! Positions and the read planner against a log in memory, with random writers, readers and hand-overs.
//!
//! Shown: whatever the order of xids, ids and commits, carrying out the planner's steps delivers each committed message
//! to its lane exactly once, in commit order per key, through hand-overs that resume from an acknowledged position; and
//! lanes that lag come to stand where the others do. Each rule that this rests on is also broken once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pgbaton::lease::BootInstant;
use pgbaton::plan::{LaneView, PATIENCE, ReadStep, level, next_step};
use pgbaton::position::{Floors, Phase, Position, Snapshot, Target, Xid};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

const LANES: i32 = 4;
const KEYS: i64 = 8;
const WRITERS: usize = 5;
const OWNERS: usize = 2;
/// A pass serves each lane once, and a lane adopts one target; with room to spare.
const STEPS_PER_PASS: usize = 64;

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The l of each acknowledgement goes with the x of the one before.
    FloorOneAcknowledgementTooNew,
    /// A lane at rest takes up another's target, newer than its own S or not.
    OlderTargetFromALeader,
    /// Stragglers are read from the beginning each time.
    StragglersWithoutLast,
    /// The ceiling is read before T is taken, not after.
    CeilingBeforeTarget,
}

/// What a writer does.
#[derive(Debug, Clone)]
enum Write {
    /// Opens a transaction, which may take its xid long before its first insert.
    Begin {
        early: bool,
    },
    /// Locks the key, then inserts. Does nothing while another transaction holds the key.
    Insert {
        key: i64,
    },
    Commit,
    Abort,
}

/// What a replica does.
#[derive(Debug, Clone)]
enum Step {
    Write {
        writer: usize,
        write: Write,
    },
    /// One pass of reads.
    Pass {
        owner: usize,
        /// Which lanes can take messages, and which of those have had nothing to do for long: a bit each.
        room: u8,
        starving: u8,
        /// Which lanes take one message of a step and no more.
        cut: u8,
        limit: usize,
        /// What happens between the two reads that make a target.
        meanwhile: Vec<(usize, Write)>,
    },
    /// Writes the positions of these lanes: a bit each.
    Acknowledge {
        owner: usize,
        lanes: u8,
    },
    /// Gives a lane to the other owner, which resumes from what was acknowledged. All that was delivered after that
    /// never happened: the sink kept the position.
    HandOver {
        lane: i32,
        settled: bool,
    },
}

/// A row of the outbox.
#[derive(Debug, Clone)]
struct Row {
    id: i64,
    xid: u64,
    key: i64,
}

#[derive(Debug, Clone, Default)]
struct Transaction {
    xid: Option<u64>,
    keys: BTreeSet<i64>,
}

/// The outbox, with the parts of a server that decide what is visible.
#[derive(Debug, Clone, Default)]
struct Log {
    rows: Vec<Row>,
    writers: [Option<Transaction>; WRITERS],
    last_xid: u64,
    /// The greatest xid of a transaction that ended: a snapshot's xmax is one above it, not above the last given out.
    last_ended: u64,
    running: BTreeSet<u64>,
    committed: BTreeSet<u64>,
}

impl Log {
    fn take_xid(&mut self) -> u64 {
        self.last_xid += 1;
        self.running.insert(self.last_xid);
        self.last_xid
    }

    fn end(&mut self, xid: u64, commits: bool) {
        self.running.remove(&xid);
        self.last_ended = self.last_ended.max(xid);
        if commits {
            self.committed.insert(xid);
        }
    }

    fn last_id(&self) -> i64 {
        self.rows.last().map_or(0, |row| row.id)
    }

    fn snapshot(&self) -> Snapshot {
        let xmax = self.last_ended + 1;
        let xip: Vec<u64> = self.running.range(..xmax).copied().collect();
        let xmin = xip.first().copied().unwrap_or(xmax);
        let xip: Vec<String> = xip.iter().map(u64::to_string).collect();
        format!("{xmin}:{xmax}:{}", xip.join(",")).parse().unwrap()
    }

    fn write(&mut self, writer: usize, write: &Write) {
        let Some(mut transaction) = self.writers[writer].take() else {
            if let Write::Begin { early } = write {
                let xid = early.then(|| self.take_xid());
                self.writers[writer] = Some(Transaction { xid, keys: BTreeSet::new() });
            }
            return;
        };
        match write {
            Write::Insert { key } if !self.writers.iter().flatten().any(|other| other.keys.contains(key)) => {
                transaction.keys.insert(*key);
                let xid = transaction.xid.unwrap_or_else(|| self.take_xid());
                transaction.xid = Some(xid);
                self.rows.push(Row { id: self.last_id() + 1, xid, key: *key });
            }
            Write::Commit | Write::Abort => {
                if let Some(xid) = transaction.xid {
                    self.end(xid, matches!(write, Write::Commit));
                }
                return;
            }
            _ => {}
        }
        self.writers[writer] = Some(transaction);
    }

    /// Rows that a statement sees that starts now.
    fn visible(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| self.committed.contains(&row.xid))
    }
}

/// A lane, with what reached the sink for it, in order.
#[derive(Debug, Clone)]
struct Lane {
    owner: usize,
    place: Position,
    delivered: Vec<Row>,
    /// What was acknowledged: the position, how many messages were delivered by then, and the pair.
    acknowledged: (Position, usize, Option<(i64, Xid)>),
}

#[derive(Debug, Clone, Default)]
struct Owner {
    floors: Floors,
    last_l: Option<i64>,
    previous_x: Option<Xid>,
}

/// Log, lanes and their owners.
struct World {
    broken: Broken,
    log: Log,
    lanes: Vec<Lane>,
    owners: [Owner; OWNERS],
    /// A pass took more steps than there can be groups of lanes.
    endless: bool,
}

fn has(bits: u8, lane: i32) -> bool {
    bits >> lane & 1 == 1
}

/// Each key stands for its hash.
fn lane_of(key: i64) -> i32 {
    i32::try_from(key).unwrap() % LANES
}

impl World {
    fn new(broken: Broken) -> Self {
        let earliest = Position::new(Snapshot::nothing(), 0, None, 0);
        let acknowledged = (earliest.clone(), 0, None);
        let lane = Lane { owner: 0, place: earliest, delivered: Vec::new(), acknowledged };
        Self { broken, log: Log::default(), lanes: vec![lane; 4], owners: Default::default(), endless: false }
    }

    fn lane(&mut self, number: i32) -> &mut Lane {
        &mut self.lanes[usize::try_from(number).unwrap()]
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Write { writer, write } => self.log.write(*writer, write),
            Step::Pass { owner, room, starving, cut, limit, meanwhile } => {
                let pass = Pass { room: *room, starving: *starving, cut: *cut, limit: *limit, meanwhile };
                self.pass(*owner, &pass);
            }
            Step::Acknowledge { owner, lanes } => self.acknowledge(*owner, *lanes),
            Step::HandOver { lane, settled } => {
                let from = self.lane(*lane).owner;
                if *settled {
                    self.acknowledge(from, 1 << lane);
                }
                let lane = self.lane(*lane);
                let (position, delivered, pair) = lane.acknowledged.clone();
                lane.place = position;
                lane.delivered.truncate(delivered);
                lane.owner = (from + 1) % OWNERS;
                let heir = lane.owner;
                if let Some((l, x)) = pair {
                    self.owners[heir].floors.add(l, x);
                }
            }
        }
    }

    /// The transaction takes its xid after l was read, and stores both.
    fn acknowledge(&mut self, number: usize, lanes: u8) {
        let xid = self.log.take_xid();
        self.log.end(xid, true);
        let owner = &mut self.owners[number];
        let x = match self.broken {
            Broken::FloorOneAcknowledgementTooNew => owner.previous_x.replace(Xid(xid)),
            _ => Some(Xid(xid)),
        };
        let pair = owner.last_l.zip(x);
        if let Some((l, x)) = pair {
            owner.floors.add(l, x);
        }
        for (lane, _) in (0..LANES).zip(0..).filter(|(lane, _)| has(lanes, *lane)) {
            let lane = self.lane(lane);
            if lane.owner == number {
                lane.acknowledged = (lane.place.clone(), lane.delivered.len(), pair);
            }
        }
    }
}

/// The circumstances of one pass.
struct Pass<'a> {
    room: u8,
    starving: u8,
    cut: u8,
    limit: usize,
    meanwhile: &'a [(usize, Write)],
}

/// What the relay's shell does with the planner's decisions.
impl World {
    fn pass(&mut self, owner: usize, pass: &Pass<'_>) {
        let now = BootInstant::from_boot(Duration::from_secs(60));
        let mut served = BTreeSet::new();
        for _ in 0..STEPS_PER_PASS {
            let floors = self.owners[owner].floors.clone();
            let mut places: Vec<_> =
                self.lanes.iter_mut().filter(|lane| lane.owner == owner).map(|lane| &mut lane.place).collect();
            level(&mut places, &floors);
            if self.broken == Broken::OlderTargetFromALeader {
                self.take_any_target(owner);
            }
            let owned = (0..LANES).zip(&self.lanes).filter(|(_, lane)| lane.owner == owner);
            let since = BootInstant::from_boot(Duration::from_secs(60) - PATIENCE);
            let views: Vec<LaneView> = owned
                .map(|(number, lane)| LaneView {
                    of: LANES,
                    lane: number,
                    place: lane.place.clone(),
                    room: has(pass.room, number),
                    idle_since: has(pass.starving, number).then_some(since),
                    served: served.contains(&number),
                })
                .collect();
            let Some((step, _)) = next_step(&views, now) else { return };
            served.extend(self.carry_out(owner, &step, pass));
        }
        self.endless = true;
    }

    /// Says which lanes have been read for.
    fn carry_out(&mut self, owner: usize, step: &ReadStep, pass: &Pass<'_>) -> Vec<i32> {
        match step {
            ReadStep::Aim { lanes } => {
                let target = self.take_target(owner, pass.meanwhile);
                for lane in lanes {
                    self.change(*lane, |place| place.aim(&target));
                }
                lanes.clone()
            }
            ReadStep::Adopt { lane, target } => {
                self.change(*lane, |place| place.aim(target));
                Vec::new()
            }
            ReadStep::Stragglers { lanes, xids, after, upto } => {
                let target = self.lane(lanes[0]).place.target().unwrap().snapshot.clone();
                let after = if self.broken == Broken::StragglersWithoutLast { 0 } else { *after };
                let among = |row: &&Row| xids.contains(&Xid(row.xid)) && target.sees(Xid(row.xid));
                let read: Vec<Row> =
                    self.log.visible().filter(among).filter(|row| row.id > after && row.id <= *upto).cloned().collect();
                self.deliver(lanes, &read, *upto, pass);
                lanes.clone()
            }
            ReadStep::Window { lanes, after, upto } => {
                let read: Vec<Row> =
                    self.log.visible().filter(|row| row.id > *after && row.id <= *upto).cloned().collect();
                self.deliver(lanes, &read, *upto, pass);
                lanes.clone()
            }
        }
    }

    /// T, then its ceiling, while the writers go on.
    fn take_target(&mut self, owner: usize, meanwhile: &[(usize, Write)]) -> Target {
        let early = (self.log.snapshot(), self.log.last_id());
        for (writer, write) in meanwhile {
            self.log.write(*writer, write);
        }
        let late = (self.log.snapshot(), self.log.last_id());
        let (snapshot, ceiling) = match self.broken {
            Broken::CeilingBeforeTarget => (late.0, early.1),
            _ => (early.0, late.1),
        };
        self.owners[owner].last_l = Some(ceiling);
        Target { snapshot, ceiling }
    }

    /// Examines the first so many of these rows, and moves each lane on: to the last row examined if there were as many,
    /// else to the end of the step; less far where a lane could not take all that was its own.
    fn deliver(&mut self, lanes: &[i32], read: &[Row], upto: i64, pass: &Pass<'_>) {
        let examined = &read[..read.len().min(pass.limit)];
        let reached = if examined.len() == pass.limit { examined.last().map_or(upto, |row| row.id) } else { upto };
        for number in lanes {
            let lane = self.lane(*number);
            let target = lane.place.target().unwrap().snapshot.clone();
            let consumed = lane.place.consumed().clone();
            let new = |row: &&Row| target.sees(Xid(row.xid)) && !consumed.sees(Xid(row.xid));
            let mut own = examined.iter().filter(|row| lane_of(row.key) == *number).filter(new);
            let mut reached = reached;
            if has(pass.cut, *number) {
                lane.delivered.extend(own.next().cloned());
                reached = own.next().map_or(reached, |row| row.id - 1);
            } else {
                lane.delivered.extend(own.cloned());
            }
            self.change(*number, |place| place.advance(reached));
        }
    }

    fn change(&mut self, lane: i32, change: impl FnOnce(Position) -> Position) {
        let place = &mut self.lane(lane).place;
        *place = change(place.clone());
    }

    /// What [`Position::aim`] refuses.
    fn take_any_target(&mut self, owner: usize) {
        let targets: Vec<Target> = self.lanes.iter().filter_map(|lane| lane.place.target().cloned()).collect();
        for lane in self.lanes.iter_mut().filter(|lane| lane.owner == owner && lane.place.phase() == Phase::AtRest) {
            if let Some(target) = targets.iter().find(|target| target.snapshot != *lane.place.consumed()) {
                let (consumed, floor) = (lane.place.consumed().clone(), lane.place.floor());
                lane.place = Position::new(consumed, floor, Some(target.clone()), lane.place.last());
            }
        }
    }
}

/// What is promised, in the end.
impl World {
    /// Ends all transactions, and reads until the lanes of each owner stand together at rest and stay there.
    fn come_to_rest(&mut self) -> Result<(), String> {
        (0..WRITERS).for_each(|writer| self.log.write(writer, &Write::Commit));
        let all = Pass { room: u8::MAX, starving: 0, cut: 0, limit: 100, meanwhile: &[] };
        let mut at_rest = 0;
        for _ in 0..40 {
            for owner in 0..OWNERS {
                self.pass(owner, &all);
                self.acknowledge(owner, u8::MAX);
            }
            at_rest = if self.stands_together() { at_rest + 1 } else { 0 };
            if at_rest == 3 {
                return Ok(());
            }
        }
        Err("lanes do not come to stand together".to_owned())
    }

    fn stands_together(&self) -> bool {
        let places = |owner| self.lanes.iter().filter(move |lane| lane.owner == owner).map(|lane| &lane.place);
        (0..OWNERS).all(|owner| {
            let first = places(owner).next();
            places(owner).all(|place| Some(place) == first && place.phase() == Phase::AtRest)
        })
    }

    fn check(&self) -> Result<(), String> {
        if self.endless {
            return Err("a pass does not end".to_owned());
        }
        for (number, lane) in (0..LANES).zip(&self.lanes) {
            let wanted: BTreeSet<i64> =
                self.log.visible().filter(|row| lane_of(row.key) == number).map(|row| row.id).collect();
            let mut had = BTreeSet::new();
            let mut last_of_key = BTreeMap::new();
            for row in &lane.delivered {
                if !wanted.contains(&row.id) {
                    return Err(format!("lane {number}: {row:?} was never committed, or belongs elsewhere"));
                }
                if !had.insert(row.id) {
                    return Err(format!("lane {number}: {row:?} was repeated"));
                }
                if last_of_key.insert(row.key, row.id).is_some_and(|before| before > row.id) {
                    return Err(format!("lane {number}: {row:?} is out of order"));
                }
            }
            if let Some(id) = wanted.difference(&had).next() {
                return Err(format!("lane {number}: id {id} was lost"));
            }
        }
        Ok(())
    }
}

fn run(steps: &[Step], broken: Broken) -> Result<(), TestCaseError> {
    let mut world = World::new(broken);
    for step in steps {
        world.step(step);
    }
    let rests = world.come_to_rest();
    world.check().and(rests).map_err(TestCaseError::fail)
}

fn writes() -> impl Strategy<Value = (usize, Write)> {
    let write = prop_oneof![
        3 => any::<bool>().prop_map(|early| Write::Begin { early }),
        6 => (0..KEYS).prop_map(|key| Write::Insert { key }),
        3 => Just(Write::Commit),
        1 => Just(Write::Abort),
    ];
    // The last writer is seldom heard of: a bulk load, or a prepared transaction.
    (prop_oneof![20 => 0..WRITERS - 1, 1 => Just(WRITERS - 1)], write)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let lanes = || prop_oneof![Just(u8::MAX), any::<u8>()];
    let meanwhile = proptest::collection::vec(writes(), 0..6);
    let pass = (0..OWNERS, lanes(), any::<u8>(), any::<u8>(), 1..6_usize, meanwhile).prop_map(
        |(owner, room, starving, cut, limit, meanwhile)| Step::Pass { owner, room, starving, cut, limit, meanwhile },
    );
    let step = prop_oneof![
        14 => writes().prop_map(|(writer, write)| Step::Write { writer, write }),
        5 => pass,
        2 => (0..OWNERS, lanes()).prop_map(|(owner, lanes)| Step::Acknowledge { owner, lanes }),
        1 => (0..LANES, any::<bool>()).prop_map(|(lane, settled)| Step::HandOver { lane, settled }),
    ];
    proptest::collection::vec(step, 0..250)
}

/// The same cases each time, so that a failure is the same failure for everybody.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

#[test]
fn every_committed_message_is_delivered_once_and_in_order() {
    runner(1_000).run(&steps(), |steps| run(&steps, Broken::Nothing)).unwrap();
}

#[test]
#[ignore = "minutes: run it with --release -- --ignored"]
fn every_committed_message_is_delivered_once_and_in_order_in_many_more_cases() {
    runner(200_000).run(&steps(), |steps| run(&steps, Broken::Nothing)).unwrap();
}

/// Looks for a case that comes to this harm, and prints the smallest it finds.
fn is_caught(broken: Broken, harm: &str) {
    let comes_to_harm = |steps: Vec<Step>| match run(&steps, broken) {
        Err(TestCaseError::Fail(reason)) if reason.message().contains(harm) => Err(TestCaseError::Fail(reason)),
        _ => Ok(()),
    };
    match runner(3_000).run(&steps(), comes_to_harm) {
        Err(TestError::Fail(reason, steps)) => println!("{broken:?}: {reason}, by {steps:?}"),
        other => panic!("with {broken:?}, nothing \"{harm}\": {other:?}"),
    }
}

#[test]
fn a_floor_that_is_too_new_loses_messages() {
    is_caught(Broken::FloorOneAcknowledgementTooNew, "was lost");
}

#[test]
fn an_older_target_loses_messages() {
    is_caught(Broken::OlderTargetFromALeader, "was lost");
}

#[test]
fn stragglers_from_the_beginning_are_repeated() {
    is_caught(Broken::StragglersWithoutLast, "was repeated");
}

#[test]
fn a_ceiling_from_before_the_target_loses_messages() {
    is_caught(Broken::CeilingBeforeTarget, "was lost");
}
