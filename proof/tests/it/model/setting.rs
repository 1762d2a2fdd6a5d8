//! What one run of the model checker explores: how many replicas, how much may go wrong, and which rule is left out.

use std::time::Duration;

/// The lease, in the model's milliseconds. Three ticks of a clock that runs right, so a renewal is due at each tick.
pub const TTL: Duration = Duration::from_millis(60);

/// Milliseconds that a clock gains per tick of real time. The margin of a tenth of the ttl covers a slow owner against
/// a fast watcher: 3 × 19 ≥ 54, so the owner has stopped at the tick at which the watcher counts 3 × 21 ≥ 60.
pub const SLOW: u64 = 19;
pub const RIGHT: u64 = 20;
pub const FAST: u64 = 21;

/// How far ahead the boot-time clock of each replica is of the one before it. No rule may depend on it.
pub const CLOCK_OFFSET: u64 = 1_000;

/// The one lane that carries messages. The other is claimed, held and released like it.
pub const BUSY: usize = 0;

/// What the destination can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkKind {
    /// Takes everything.
    Plain,
    /// Compares the epoch in each write and keeps a position that whoever opens the lane settles with.
    Fencing,
    /// The same, and drops a repeat by message id: what is needed after a fail-over.
    FencingById,
}

/// A rule of the design that is left out, to show that the checker would notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// A replica is expired by the time that its own clock wrote into the database.
    ExpireByTheOwnersClock,
    /// A lease that ended is renewed as if nothing had happened; a missing row is put back.
    ReviveWithARow,
    /// Only this of the above: the answer to a renewal revives a lease that has ended meanwhile.
    ReviveByALateAnswer,
    /// The lease runs from the answer to a renewal.
    LeaseFromTheAnswer,
    /// Expiry deletes the replica whatever its beat is by now.
    DeleteAnyBeat,
    /// Acknowledge and park do not compare owner and epoch.
    WriteUnderAnyEpoch,
    /// Acknowledge and park do not take the lane's lock.
    WriteWithoutTheLock,
    /// Acknowledge and park do not compare the timeline.
    WriteInAnyTimeline,
    /// The statement that claims a lane also reads its position: as of before it had the lock.
    ReadInTheClaim,
    /// A replica that lives through a fail-over goes on claiming.
    NoHold,
    /// A replica that starts after a fail-over claims at once.
    NoHoldAtStart,
    /// A new timeline is recorded as settled before anybody has lived with it for a ttl.
    SettleAtOnce,
    /// A lane that is a replica's own by the table alone is left as it is.
    KeepWhatOnlyTheTableHolds,
    /// The hold ends claims, but the answer to a claim that was on its way still opens its lane.
    OpenDuringTheHold,
    /// A sink that already holds the very epoch of a new grant is taken for our own.
    OpenAtAnEqualEpoch,
    /// Nothing: but the clocks drift further than the margin covers.
    NothingButTheClocks,
}

/// What may take any amount of time, so that anything can happen in between. All else happens at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slow {
    /// From a beat to another replica's look at it.
    pub look: bool,
    /// From sending a renewal to the database.
    pub renewal: bool,
    /// From there to the answer.
    pub renewal_answer: bool,
    /// From sending a claim to the database.
    pub claim: bool,
    /// From there to the answer and the opening of the lane.
    pub claim_answer: bool,
    /// From inserting an acknowledgement or a parked message to its commit.
    pub commit: bool,
}

/// One run of the checker.
#[derive(Debug, Clone)]
pub struct Setting {
    /// How many lanes.
    pub lanes: usize,
    /// Whether all replicas run from the start, instead of starting at any moment.
    pub all_running: bool,
    /// What takes time.
    pub slow: Slow,
    /// The last tick of real time.
    pub horizon: u8,
    /// The rates of the replicas' clocks: one list per start to explore.
    pub rates: Vec<Vec<u64>>,
    /// The sink.
    pub sink: SinkKind,
    /// Messages in the outbox at the start.
    pub messages: u8,
    /// Messages committed later, at any moment.
    pub inserts: u8,
    /// Messages that the sink finds fault with.
    pub parks: u8,
    /// How often a process is frozen between its check and its send.
    pub freezes: u8,
    /// How often a process dies.
    pub crashes: u8,
    /// How often each process may start.
    pub lives: u8,
    /// How often a standby takes over, in any older state.
    pub fail_overs: u8,
    /// Whether a grant's answer may be lost.
    pub lost_answers: u8,
    /// Whether each state is also asked whether it recovers: that takes longer than all the rest.
    pub recovers: bool,
    /// What is left out of the rules.
    pub broken: Option<Broken>,
}

impl Setting {
    /// Two replicas whose clocks drift, one message, nothing that goes wrong but time itself.
    pub fn quiet() -> Self {
        Self {
            lanes: 2,
            all_running: true,
            slow: Slow::default(),
            horizon: 5,
            rates: vec![vec![SLOW, FAST]],
            sink: SinkKind::Fencing,
            messages: 1,
            inserts: 0,
            parks: 0,
            freezes: 0,
            crashes: 0,
            lives: 1,
            fail_overs: 0,
            lost_answers: 0,
            recovers: false,
            broken: None,
        }
    }

    /// Whether this rule is left out.
    pub fn lacks(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }
}
