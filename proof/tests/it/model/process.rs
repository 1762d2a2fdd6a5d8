//! What a replica of the model keeps in memory. Lease and watch are those of the relay itself.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pgbaton::lane::{Epoch, Grant, Holdings, Lane, LaneFact, RelayName, ReplicaFact, ReplicaId};
use pgbaton::lease::{Beat, BootInstant, Lease, Watch};
use uuid::Uuid;

use super::database::{Database, Granted, Id, LaneRow};
use super::setting::{CLOCK_OFFSET, TTL};

/// A replica's boot-time clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Clock {
    pub offset: u64,
    pub rate: u64,
}

impl Clock {
    pub fn new(replica: usize, rate: u64) -> Self {
        Self { offset: CLOCK_OFFSET * replica as u64, rate }
    }

    pub fn at(self, tick: u8) -> BootInstant {
        BootInstant::from_boot(Duration::from_millis(self.offset + self.rate * u64::from(tick)))
    }
}

/// A lease that two states of the model can be compared by: it is known by its deadline.
#[derive(Debug, Clone, Copy)]
pub struct HeldLease(pub Lease);

impl PartialEq for HeldLease {
    fn eq(&self, other: &Self) -> bool {
        self.0.deadline() == other.0.deadline()
    }
}

impl Hash for HeldLease {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.deadline().hash(state);
    }
}

/// A watch that two states of the model can be compared by. It keeps its memory to itself, so after each change it is
/// asked what it will say at each of the coming ticks.
#[derive(Debug, Clone)]
pub struct Watcher {
    watch: Arc<Watch>,
    answers: Vec<(ReplicaId, Beat, u8)>,
    claims_from: u8,
}

/// As many ticks as a ttl takes on the slowest clock.
const FORESIGHT: u8 = 4;

impl Watcher {
    pub fn new() -> Self {
        Self { watch: Arc::new(Watch::new(TTL)), answers: Vec::new(), claims_from: 0 }
    }

    pub fn get(&self) -> &Watch {
        &self.watch
    }

    /// Whether these beats are what it has seen already.
    pub fn knows(&self, beats: &[(ReplicaId, Beat)]) -> bool {
        beats.len() == self.answers.len() && self.answers.iter().all(|(id, beat, _)| beats.contains(&(*id, *beat)))
    }

    pub fn change(&mut self, clock: Clock, tick: u8, change: impl FnOnce(&mut Watch)) {
        let watch = Arc::make_mut(&mut self.watch);
        change(watch);
        self.answers.clear();
        for later in tick..=tick + FORESIGHT {
            for (id, beat) in watch.expired(clock.at(later)) {
                if !self.answers.iter().any(|(known, ..)| *known == id) {
                    self.answers.push((id, beat, later));
                }
            }
        }
        self.answers.sort();
        let claims = |later: &u8| watch.may_claim(clock.at(*later));
        self.claims_from = if claims(&tick) { 0 } else { (tick..=tick + FORESIGHT).find(claims).unwrap() };
    }
}

impl PartialEq for Watcher {
    fn eq(&self, other: &Self) -> bool {
        (&self.answers, self.claims_from) == (&other.answers, other.claims_from)
    }
}

impl Hash for Watcher {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.answers, self.claims_from).hash(state);
    }
}

/// A renewal on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Renewal {
    None,
    Sent { at: u8 },
    Answered { sent: u8, found: bool, timeline: u8 },
}

/// A claim on its way. There is never more than one, and until it is answered or given up nothing else is decided.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Claim {
    None,
    /// With the position that a statement whose snapshot is from now would read.
    Sent {
        lane: usize,
        epoch: u8,
        position_now: u8,
    },
    Answered(Granted),
}

/// What an open lane is doing about its next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Nothing in flight, everything written.
    Idle,
    /// The message was read, and the clock was compared with the deadline: the write comes next.
    Checked { message: u8 },
    /// The sink has everything up to the position, which is not written yet.
    Unwritten,
    /// A transaction that acknowledges or parks is open.
    Writing { parks: bool },
}

/// A lane that this replica runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenLane {
    pub epoch: u8,
    pub position: u8,
    pub stage: Stage,
}

/// A running process.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct Process {
    pub id: Id,
    pub clock: Clock,
    pub lease: HeldLease,
    pub watcher: Watcher,
    /// The timeline that everything in memory belongs to.
    pub timeline: u8,
    pub renewal: Renewal,
    pub claim: Claim,
    pub lanes: Vec<Option<OpenLane>>,
    /// Stopped between its check and its send. (At all other points a process that takes no step is a stopped one.)
    pub frozen: bool,
}

impl Process {
    pub fn start(id: Id, clock: Clock, tick: u8, database: &Database) -> Self {
        Self {
            id,
            clock,
            lease: HeldLease(Lease::begin(TTL, clock.at(tick))),
            watcher: Watcher::new(),
            timeline: database.timeline,
            renewal: Renewal::None,
            claim: Claim::None,
            lanes: vec![None; database.lanes.len()],
            frozen: false,
        }
    }

    pub fn may_write(&self, tick: u8) -> bool {
        self.lease.0.may_write(self.clock.at(tick)).is_ok()
    }

    pub fn may_claim(&self, tick: u8) -> bool {
        self.watcher.get().may_claim(self.clock.at(tick))
    }

    /// Whether a write to the sink is about to happen.
    pub fn is_about_to_send(&self) -> bool {
        self.lanes.iter().flatten().any(|lane| matches!(lane.stage, Stage::Checked { .. }))
    }

    /// The lanes it runs, as the relay's own code wants them.
    pub fn running(&self) -> Vec<Grant> {
        let open = self.lanes.iter().enumerate();
        open.filter_map(|(number, lane)| lane.as_ref().map(|lane| grant(number, self.lanes.len(), lane.epoch)))
            .collect()
    }
}

pub fn replica_id(id: Id) -> ReplicaId {
    ReplicaId(Uuid::from_u128(u128::from(id)))
}

pub fn beat(beat: u8) -> Beat {
    Beat(i64::from(beat))
}

fn relay() -> &'static RelayName {
    static RELAY: LazyLock<RelayName> = LazyLock::new(|| RelayName::new("model").unwrap());
    &RELAY
}

fn grant(number: usize, of: usize, epoch: u8) -> Grant {
    let lane = Lane { relay: relay().clone(), number: i32::try_from(number).unwrap(), of: i32::try_from(of).unwrap() };
    Grant { lane, epoch: Epoch(i64::from(epoch)) }
}

/// One look at the database, as the relay's own code wants it.
pub fn holdings(database: &Database) -> Holdings {
    let replica = |id| ReplicaFact { id: replica_id(id), relays: vec![relay().clone()] };
    let lanes = database.lanes.iter().enumerate();
    let lane = |(number, row): (usize, &LaneRow)| LaneFact {
        grant: grant(number, database.lanes.len(), row.epoch),
        owner: row.owner.map(replica_id),
        wanted: i32::try_from(database.lanes.len()).unwrap(),
    };
    Holdings {
        replicas: database.replicas.iter().map(|row| replica(row.id)).collect(),
        lanes: lanes.map(lane).collect(),
    }
}
