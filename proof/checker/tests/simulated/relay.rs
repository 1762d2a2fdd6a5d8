//! A relay in a few lines: what it does right is what the checker expects, what it does wrong is a [`Wrong`].

use checker::history::{Event, Grant, Nanos, Position};
use rand::RngExt;

use super::sink::Fence;
use super::stage::{Committed, IN_FLIGHT, Kind, LEASE, MS, Stage};

/// What the relay does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wrong {
    Nothing,
    ClaimsEarly,
    StartsBehindThePosition,
    SkipsAMessage,
    SwapsTwo,
    NeverWaits,
    WritesAnOldPosition,
    IgnoresItsLease,
    SendsWhatWasRolledBack,
    RepeatsWhileItHasTheLane,
    HandsOverWithoutAPosition,
    ForgetsPositionsAtAFailOver,
    WritesLateAndIsCut,
    RepeatsAcrossASplit,
    /// These do wrong to rows that their owner meddles with.
    PassesWhatWasSetBack,
    SendsTwiceWhatWasSetBack,
    LosesWhatWasChanged,
    LosesWhatWasRekeyed,
    SendsWhatWasDeleted,
    SendsFormerContents,
    SendsContentsThatWereRolledBack,
    TellsOfNoChange,
    TellsOfChangesThatAreNone,
    /// Not the relay, but who writes the history down.
    LosesALine,
}

/// A lane by the database.
#[derive(Clone)]
pub struct Row {
    pub lane: u32,
    pub of: u32,
    pub epoch: i64,
    pub owner: Option<u32>,
    pub batch: i64,
    pub upto: usize,
}

impl Row {
    /// The index of the next message of this lane.
    pub fn next(&self, log: &[Committed], from: usize) -> Option<usize> {
        let is_next = |row: &Committed| !row.gone && !row.marked && row.key % self.of == self.lane;
        (from..log.len()).find(|index| is_next(&log[*index]))
    }

    fn grant(&self) -> Grant {
        Grant { relay: "orders".into(), lane: self.lane, of: self.of, epoch: self.epoch }
    }
}

/// A message as it was read.
#[derive(Clone)]
pub struct Taken {
    pub id: String,
    /// The transaction that changed it; 0 if none did.
    pub content: u64,
    /// Where it stands in the log, if it does.
    index: Option<usize>,
}

fn ids(taken: &[Taken]) -> Vec<String> {
    taken.iter().map(|taken| taken.id.clone()).collect()
}

/// A lane as its owner has it.
struct Held {
    row: Row,
    /// How far it was read, and its last batch.
    read: usize,
    batch: i64,
    /// Messages that are in flight.
    flying: Vec<Taken>,
    /// Of the timeline.
    timeline: u32,
}

impl Held {
    fn has(&self, id: &str) -> bool {
        self.flying.iter().any(|taken| taken.id == id)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    Running,
    Frozen { wakes: Nanos },
    Dead,
}

pub struct Replica {
    pub number: u32,
    pub name: String,
    pub pid: u32,
    pub state: State,
    until: Nanos,
    lanes: Vec<Held>,
    /// A call that was under way when it was frozen: lane, batch, ids.
    calling: Option<(Grant, i64, Vec<Taken>)>,
}

impl Replica {
    pub fn new(number: u32, until: Nanos) -> Self {
        let name = format!("replica-{number}");
        Self { number, name, pid: 1_000 + number, state: State::Running, until, lanes: Vec::new(), calling: None }
    }

    pub fn joined(&self) -> Event {
        let (replica, name) = (self.id(), self.name.clone());
        Event::Joined { replica, name, pid: self.pid, ttl_ms: 5_000, until: self.until }
    }

    pub fn runs(&self) -> bool {
        self.state == State::Running
    }

    fn id(&self) -> String {
        format!("r{}", self.number)
    }
}

/// Each replica does what is due, and one thing by chance.
pub fn step(stage: &mut Stage) {
    expire(stage);
    for index in 0..stage.replicas.len() {
        match stage.replicas[index].state {
            State::Dead => {}
            State::Frozen { wakes } if stage.t >= wakes => wakes_up(stage, index),
            State::Frozen { .. } => {}
            State::Running => acts(stage, index),
        }
    }
}

/// Lanes of a replica whose lease is over are free.
fn expire(stage: &mut Stage) {
    let early = if stage.wrong == Wrong::ClaimsEarly { 3_000 * MS } else { 0 };
    for row in &mut stage.database.rows {
        let owner = stage.replicas.iter().find(|replica| Some(replica.number) == row.owner);
        if owner.is_some_and(|owner| !owner.runs() && stage.t + early > owner.until) {
            row.owner = None;
        }
    }
}

fn acts(stage: &mut Stage, index: usize) {
    let (id, name) = (stage.replicas[index].id(), stage.replicas[index].name.clone());
    stage.replicas[index].until = stage.t + LEASE;
    let until = stage.t + LEASE;
    let confirmed = Some(stage.t);
    stage.tell(&name, Event::Renewed { replica: id, until, confirmed });
    let mine = stage.replicas[index].lanes.len();
    let fair = stage.database.rows.len().div_ceil(3);
    if mine < fair && stage.t >= stage.claims_from {
        claim(stage, index);
    }
    for lane in 0..stage.replicas[index].lanes.len() {
        if stage.chance(60.0) {
            publish(stage, index, lane);
        }
    }
    if stage.chance(40.0) || stage.replicas[index].lanes.iter().any(|lane| lane.flying.len() > IN_FLIGHT / 2) {
        acknowledge(stage, index);
    }
    // A lane is mostly at rest: who gives it back in the wrong way has to do so often.
    let gives_back = matches!(stage.wrong, Wrong::HandsOverWithoutAPosition | Wrong::RepeatsAcrossASplit);
    if stage.chance(if gives_back { 10.0 } else { 2.0 }) {
        let split = stage.chance(30.0);
        release(stage, index, split);
    }
}

fn claim(stage: &mut Stage, index: usize) {
    let number = stage.replicas[index].number;
    let Some(free) = stage.database.rows.iter().position(|row| row.owner.is_none()) else { return };
    let sent = stage.t;
    let row = &mut stage.database.rows[free];
    (row.owner, row.epoch) = (Some(number), row.epoch + 1);
    let (mut row, timeline) = (row.clone(), stage.timeline);
    let (replica, name) = (stage.replicas[index].id(), stage.replicas[index].name.clone());
    stage.tell(&name, Event::Claimed { replica: replica.clone(), sent, timeline, grants: vec![row.grant()] });
    if stage.sink.kind == Kind::Inbox {
        let held = stage.sink.fences.get(&row.lane).map_or(0, |fence| fence.epoch);
        if held >= row.epoch {
            let from = row.grant();
            row.epoch = held + 1;
            stage.database.rows[free].epoch = row.epoch;
            let sent = stage.t;
            stage.tell(&name, Event::Raised { replica, sent, timeline, from, to: row.grant() });
        }
    }
    open(stage, index, row);
}

/// Takes up a lane: what the sink has is settled first.
fn open(stage: &mut Stage, index: usize, row: Row) {
    let timeline = stage.timeline;
    let mut held = Held { read: row.upto, batch: row.batch, flying: Vec::new(), timeline, row };
    if stage.wrong == Wrong::StartsBehindThePosition {
        held.read = held.read.saturating_sub(40);
    }
    if stage.sink.kind == Kind::Inbox {
        let (epoch, batch, upto) = (held.row.epoch, held.batch, held.read);
        let new = Fence { epoch, batch, upto, timeline, rows: Vec::new() };
        let fence = stage.sink.fences.entry(held.row.lane).or_insert(new);
        fence.epoch = held.row.epoch;
        if fence.timeline < timeline {
            held.batch = held.batch.max(fence.batch);
        } else if fence.batch > held.batch {
            (held.batch, held.read, held.flying) = (fence.batch, fence.upto, fence.rows.clone());
            stage.replicas[index].lanes.push(held);
            acknowledge(stage, index);
            return;
        }
    }
    stage.replicas[index].lanes.push(held);
}

/// The next messages of a lane: ids, and how far they go.
fn read(stage: &mut Stage, index: usize, lane: usize) -> (Vec<Taken>, usize) {
    let most = stage.rng.random_range(1..5);
    let held = &stage.replicas[index].lanes[lane];
    let (mut ids, mut upto) = (Vec::new(), held.read);
    while ids.len() < most
        && let Some(next) = held.row.next(&stage.database.log, upto)
    {
        let Committed { id, content, set_back, rekeyed, .. } = &stage.database.log[next];
        // It moved away and back, and is in flight: it is not read before it was marked, and then no more.
        if *rekeyed && stage.replicas[index].lanes.iter().any(|held| held.has(id)) {
            break;
        }
        upto = next + 1;
        let (content, passed) = match stage.wrong {
            Wrong::PassesWhatWasSetBack => (*content, *set_back),
            Wrong::LosesWhatWasChanged => (*content, *content > 0),
            Wrong::LosesWhatWasRekeyed => (*content, *rekeyed),
            Wrong::SendsFormerContents => (0, false),
            _ => (*content, false),
        };
        if !passed {
            ids.push(Taken { id: id.clone(), content, index: Some(next) });
        }
    }
    let now_and_then = stage.chance(6.0);
    match stage.wrong {
        Wrong::SkipsAMessage if ids.len() > 1 && now_and_then => drop(ids.pop()),
        Wrong::SwapsTwo if ids.len() > 1 => ids.reverse(),
        Wrong::SendsWhatWasRolledBack if !ids.is_empty() => {
            ids.extend(stage.undone.take().map(|id| Taken { id, content: 0, index: None }));
        }
        _ => {}
    }
    (ids, upto)
}

fn publish(stage: &mut Stage, index: usize, lane: usize) {
    let (ids, upto) = read(stage, index, lane);
    let flying = stage.replicas[index].lanes[lane].flying.len();
    if ids.is_empty() {
        stage.replicas[index].lanes[lane].read = upto;
        return;
    }
    if flying > 0 && flying + ids.len() > IN_FLIGHT && stage.wrong != Wrong::NeverWaits {
        return;
    }
    let held = &mut stage.replicas[index].lanes[lane];
    held.batch += 1;
    held.flying.extend(ids.iter().cloned());
    held.read = upto;
    let (grant, batch, timeline) = (held.row.grant(), held.batch, held.timeline);
    if stage.wrong == Wrong::RepeatsWhileItHasTheLane && stage.chance(3.0) {
        let held = &mut stage.replicas[index].lanes[lane];
        held.read = held.read.saturating_sub(20).max(held.row.upto);
    }
    let mut left = ids.clone();
    while !left.is_empty() {
        let take = if stage.sink.kind == Kind::Inbox || !stage.chance(10.0) {
            left.len()
        } else {
            stage.rng.random_range(0..left.len())
        };
        call(stage, index, (&grant, timeline), batch, (&left, take));
        left.drain(..take);
    }
    if stage.sink.kind == Kind::Inbox {
        let before = stage.sink.fences.remove(&grant.lane).filter(|fence| fence.timeline == timeline);
        let mut rows = before.map_or_else(Vec::new, |fence| fence.rows);
        rows.extend(ids);
        stage.sink.fences.insert(grant.lane, Fence { epoch: grant.epoch, batch, upto, timeline, rows });
    }
}

/// One call of the sink, which takes the first messages.
fn call(
    stage: &mut Stage,
    index: usize,
    (grant, timeline): (&Grant, u32),
    batch: i64,
    (messages, take): (&[Taken], usize),
) {
    let (replica, name) = (stage.replicas[index].id(), stage.replicas[index].name.clone());
    let publish =
        Event::Publish { replica: replica.clone(), grant: grant.clone(), timeline, batch, ids: ids(messages) };
    let looked = stage.t;
    let writing = Event::Writing { replica: replica.clone(), grant: grant.clone(), looked };
    if stage.sink.kind != Kind::Inbox && stage.chance(3.0) {
        stage.tell(&name, publish.clone());
        stage.tell(&name, writing.clone());
        stage.sink.take(&name, messages);
        let answer = "ambiguous".to_owned();
        stage.tell(&name, Event::Answered { replica: replica.clone(), grant: grant.clone(), batch, answer });
    }
    stage.tell(&name, publish);
    stage.tell(&name, writing);
    let letters = stage.sink.take(&name, &messages[..take]);
    let answer = format!("{letters}{}", "t-----".split_at(messages.len() - take).0);
    stage.tell(&name, Event::Answered { replica, grant: grant.clone(), batch, answer });
}

fn acknowledge(stage: &mut Stage, index: usize) {
    if stage.wrong == Wrong::NeverWaits && stage.chance(90.0) {
        return;
    }
    let (mut positions, mut changed, sent) = (Vec::new(), Vec::new(), stage.t);
    let old = stage.wrong == Wrong::WritesAnOldPosition && stage.chance(5.0);
    let replica = &mut stage.replicas[index];
    for held in &mut replica.lanes {
        let row = stage.database.rows.iter_mut();
        let mut row = row.filter(|row| row.grant() == held.row.grant() && row.owner == Some(replica.number));
        let Some(row) = row.next() else { continue };
        let again = row.batch == held.batch;
        (row.batch, row.upto) = (held.batch, held.read);
        stage.sink.fences.entry(row.lane).and_modify(|fence| fence.rows.clear());
        for taken in held.flying.drain(..) {
            mark_elsewhere(&mut stage.database.log, &taken);
            let stands = taken.index.and_then(|index| stage.database.log.get(index)).filter(|row| !row.gone);
            let is_changed = stands.is_some_and(|row| row.content != taken.content);
            if is_changed != (stage.wrong == Wrong::TellsOfChangesThatAreNone) {
                changed.push(taken.id);
            }
        }
        positions.push(Position { grant: row.grant(), batch: held.batch, consumed: Some(held.read as u64), again });
    }
    if old {
        positions
            .iter_mut()
            .for_each(|position| position.consumed = position.consumed.map(|consumed| consumed.saturating_sub(200)));
    }
    let (replica, name, timeline) = (replica.id(), replica.name.clone(), stage.timeline);
    if stage.wrong == Wrong::TellsOfNoChange {
        changed.clear();
    }
    // Some are written, and the answer is lost.
    if !positions.is_empty() && !stage.chance(5.0) {
        let aside = Vec::new();
        stage.tell(&name, Event::Acknowledged { replica, sent, timeline, positions, changed, aside });
    }
}

/// A row that moved to another lane meanwhile is marked there.
fn mark_elsewhere(log: &mut [Committed], taken: &Taken) {
    if taken.index.and_then(|index| log.get(index)).is_some_and(|row| row.gone) {
        log.iter_mut().filter(|row| row.id == taken.id && !row.gone).for_each(|row| row.marked = true);
    }
}

/// Gives a lane back in good order, or splits it.
fn release(stage: &mut Stage, index: usize, split: bool) {
    let hasty = stage.wrong == Wrong::HandsOverWithoutAPosition;
    if !hasty {
        acknowledge(stage, index);
    }
    let Some(held) = stage.replicas[index].lanes.pop() else { return };
    if !held.flying.is_empty() && !hasty {
        return stage.replicas[index].lanes.push(held);
    }
    let (replica, name) = (stage.replicas[index].id(), stage.replicas[index].name.clone());
    stage.tell(&name, Event::Released { replica, grants: vec![held.row.grant()], settled: true });
    let Some(at) = stage.database.rows.iter().position(|row| row.grant() == held.row.grant()) else { return };
    let row = &mut stage.database.rows[at];
    row.owner = None;
    if split && row.of < 16 {
        (row.of, row.epoch) = (row.of * 2, row.epoch + 1);
        if stage.wrong == Wrong::RepeatsAcrossASplit {
            row.upto = row.upto.saturating_sub(40);
        }
        let other = Row { lane: row.lane + row.of / 2, ..row.clone() };
        stage.database.rows.push(other);
    }
}

/// It is frozen within a call.
pub fn freezes(stage: &mut Stage, index: usize) {
    if stage.replicas[index].lanes.is_empty() {
        return;
    }
    let (taken, _) = read(stage, index, 0);
    let held = &stage.replicas[index].lanes[0];
    if taken.is_empty() || held.flying.len() + taken.len() > IN_FLIGHT {
        return;
    }
    let (grant, batch, timeline) = (held.row.grant(), held.batch + 1, held.timeline);
    let (replica, name, looked) = (stage.replicas[index].id(), stage.replicas[index].name.clone(), stage.t);
    let writing = Event::Writing { replica: replica.clone(), grant: grant.clone(), looked };
    stage.tell(&name, Event::Publish { replica, grant: grant.clone(), timeline, batch, ids: ids(&taken) });
    stage.tell(&name, writing);
    stage.replicas[index].calling = Some((grant, batch, taken));
}

/// Its lease is over: what it had checked before still goes out, where nobody refuses it.
fn wakes_up(stage: &mut Stage, index: usize) {
    let (replica, name) = (stage.replicas[index].id(), stage.replicas[index].name.clone());
    if let Some((grant, batch, ids)) = stage.replicas[index].calling.take() {
        let answer = if stage.sink.kind == Kind::Inbox {
            "fenced"
        } else {
            stage.sink.take(&name, &ids);
            "cut"
        };
        let answer = answer.to_owned();
        if stage.wrong == Wrong::WritesLateAndIsCut {
            let (replica, grant, looked) = (replica.clone(), grant.clone(), stage.t);
            stage.tell(&name, Event::Writing { replica, grant, looked });
        }
        stage.tell(&name, Event::Answered { replica: replica.clone(), grant: grant.clone(), batch, answer });
        if stage.wrong == Wrong::IgnoresItsLease {
            let timeline = stage.timeline;
            call(stage, index, (&grant, timeline), batch, (&ids, ids.len()));
        }
    }
    let grants: Vec<Grant> = stage.replicas[index].lanes.iter().map(|held| held.row.grant()).collect();
    stage.tell(&name, Event::Dropped { replica: replica.clone(), grants, why: "the lease is over".into() });
    stage.tell(&name, Event::Left { replica });
    stage.replicas[index].state = State::Dead;
}

/// The database was failed over: lanes that are still this replica's are opened again, the others dropped.
pub fn meets(stage: &mut Stage) {
    for index in 0..stage.replicas.len() {
        if !stage.replicas[index].runs() {
            continue;
        }
        let (number, id, name) =
            (stage.replicas[index].number, stage.replicas[index].id(), stage.replicas[index].name.clone());
        let mine = |row: &&Row| row.owner == Some(number);
        let held = std::mem::take(&mut stage.replicas[index].lanes);
        let mut kept: Vec<Row> = stage.database.rows.iter().filter(mine).cloned().collect();
        kept.retain(|row| held.iter().any(|held| held.row.grant() == row.grant()));
        let lost =
            held.iter().map(|held| held.row.grant()).filter(|grant| !kept.iter().any(|row| row.grant() == *grant));
        let grants: Vec<Grant> = lost.collect();
        stage.tell(&name, Event::Dropped { replica: id, grants, why: "failed over".into() });
        for row in &mut stage.database.rows {
            if row.owner == Some(number) && !kept.iter().any(|kept| kept.grant() == row.grant()) {
                row.owner = None;
            }
        }
        kept.into_iter().for_each(|row| open(stage, index, row));
    }
}
