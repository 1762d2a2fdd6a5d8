//! The whole world of the model: processes, database, sink and real time; which steps are possible, and what each does.
//!
//! A step is one thing that happens at one place: a process sends something, a server runs a statement, an answer
//! arrives. Between any two of them any amount of time may pass, so a process that takes no step is a process that is
//! paused. Only the way from the check of the deadline to the send takes no time, unless the process is frozen there.

use std::time::Duration;

use pgbaton::lane::{BalanceStep, ReplicaId, balance};
use pgbaton::lease::{Beat, LeaseStep};

use super::database::{Database, Id, ReplicaRow};
use super::process::{Claim, Clock, Process, Renewal, Stage, beat, holdings, replica_id};
use super::setting::{BUSY, Broken, Setting, TTL};
use super::sink::Sink;

/// A machine that a replica runs on.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct Machine {
    pub clock: Clock,
    pub lives: u8,
    pub process: Option<Process>,
}

/// What has gone wrong so far, or has been added: each is limited by the setting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Spent {
    pub inserts: u8,
    pub parks: u8,
    pub freezes: u8,
    pub crashes: u8,
    pub fail_overs: u8,
    pub lost_answers: u8,
}

#[derive(Debug, Clone, PartialEq, Hash)]
pub struct World {
    pub tick: u8,
    pub machines: Vec<Machine>,
    pub database: Database,
    /// The state that the standby has, once it was last heard of before it takes over. Until then: that of the start.
    pub standby: Option<Database>,
    pub sink: Sink,
    pub spent: Spent,
}

/// One thing that happens. A number is that of a machine, but for `Commit` and `Abort`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Real time goes on.
    Tick,
    /// A process starts and registers.
    Start(usize),
    /// A process finds its lease over, or its row gone: it drops all and starts again under a new identity.
    StartOver(usize),
    SendRenewal(usize),
    RunRenewal(usize),
    ReceiveRenewal(usize),
    /// Reads the beats of all replicas.
    Look(usize),
    /// Deletes a replica that has shown the same beat for a whole ttl.
    Expire(usize, Id, u8),
    /// Records the timeline that it has lived with for a whole ttl.
    Settle(usize),
    SendClaim(usize, usize),
    RunClaim(usize),
    /// The answer to a claim arrives, and the lane is opened, at the sink as well.
    Open(usize),
    LoseAnswer(usize),
    Release(usize, usize, u8),
    Stop(usize, usize),
    /// Reads the next message and compares the clock with the deadline.
    Check(usize),
    Send(usize),
    BeginAcknowledge(usize),
    BeginPark(usize),
    Commit(usize),
    Abort(usize),
    /// An application commits a message.
    Insert,
    Freeze(usize),
    Wake(usize),
    Crash(usize),
    /// The last state that reaches the standby is that of now.
    LoseTouch,
    /// The standby takes over: what it had not received is gone.
    FailOver,
}

impl World {
    pub fn new(setting: &Setting, rates: &[u64]) -> Self {
        let machine =
            |(number, rate): (usize, &u64)| Machine { clock: Clock::new(number, *rate), lives: 0, process: None };
        let mut world = Self {
            tick: 0,
            machines: rates.iter().enumerate().map(machine).collect(),
            database: Database::new(setting.lanes, setting.messages),
            standby: None,
            sink: Sink::default(),
            spent: Spent::default(),
        };
        if setting.all_running {
            (0..rates.len()).for_each(|number| world.start(setting, number));
        }
        world
    }

    /// All that can happen now, but for what goes wrong and for starts beyond the number of lives.
    pub fn lawful(&self, setting: &Setting) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.database.transactions.len()).map(Step::Commit).collect();
        for (number, machine) in self.machines.iter().enumerate() {
            match &machine.process {
                None => steps.push(Step::Start(number)),
                Some(process) => {
                    self.on_the_way(number, process, &mut steps);
                    if process.frozen {
                        steps.push(Step::Wake(number));
                    } else {
                        self.of_the_lease(setting, number, process, &mut steps);
                        self.of_claims(setting, number, process, &mut steps);
                        self.of_the_path(number, process, &mut steps);
                    }
                }
            }
        }
        let sending = self.processes().any(|process| process.is_about_to_send() && !process.frozen);
        if !sending {
            steps.push(Step::Tick);
        }
        steps
    }

    /// All that can go wrong now, or be added from outside, within the limits.
    pub fn mishaps(&self, setting: &Setting) -> Vec<Step> {
        let mut steps: Vec<Step> = (0..self.database.transactions.len()).map(Step::Abort).collect();
        for (number, machine) in self.machines.iter().enumerate() {
            let Some(process) = &machine.process else { continue };
            let idle = process.lanes[BUSY].as_ref().filter(|lane| lane.stage == Stage::Idle);
            let reads = idle.is_some_and(|lane| self.database.log.len() > usize::from(lane.position));
            let answered = matches!(process.claim, Claim::Answered(_));
            let possible = [
                (self.spent.crashes < setting.crashes, Step::Crash(number)),
                (self.spent.freezes < setting.freezes && process.is_about_to_send(), Step::Freeze(number)),
                (self.spent.parks < setting.parks && reads, Step::BeginPark(number)),
                (self.spent.lost_answers < setting.lost_answers && answered, Step::LoseAnswer(number)),
            ];
            let acts = |step: &Step| !process.frozen || matches!(step, Step::Crash(_));
            steps.extend(possible.into_iter().filter(|(can, step)| *can && acts(step)).map(|(_, step)| step));
        }
        if self.spent.inserts < setting.inserts {
            steps.push(Step::Insert);
        }
        if self.spent.fail_overs < setting.fail_overs {
            steps.push(Step::FailOver);
            if self.standby.is_none() {
                steps.push(Step::LoseTouch);
            }
        }
        steps
    }

    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.machines.iter().filter_map(|machine| machine.process.as_ref())
    }

    /// Statements that were sent: the server runs them whatever their sender does.
    fn on_the_way(&self, number: usize, process: &Process, steps: &mut Vec<Step>) {
        if matches!(process.renewal, Renewal::Sent { .. }) {
            steps.push(Step::RunRenewal(number));
        }
        if matches!(process.claim, Claim::Sent { .. }) {
            steps.push(Step::RunClaim(number));
        }
    }

    /// Renewing, and watching the others.
    fn of_the_lease(&self, setting: &Setting, number: usize, process: &Process, steps: &mut Vec<Step>) {
        let now = process.clock.at(self.tick);
        let next = process.lease.0.next(now);
        let revives = setting.lacks(Broken::ReviveWithARow);
        let late = setting.lacks(Broken::ReviveByALateAnswer) && process.renewal != Renewal::None;
        match (process.renewal, next) {
            (Renewal::Answered { .. }, _) => steps.push(Step::ReceiveRenewal(number)),
            (Renewal::None, LeaseStep::Renew) => steps.push(Step::SendRenewal(number)),
            (Renewal::None, LeaseStep::Over) if revives => steps.push(Step::SendRenewal(number)),
            _ => {}
        }
        if next == LeaseStep::Over && !revives && !late {
            steps.push(Step::StartOver(number));
            return;
        }
        if self.look_tells_something(process) {
            steps.push(Step::Look(number));
        }
        let expired = self.expired(setting, process);
        for row in &self.database.replicas {
            let known = expired.iter().find(|(id, _)| *id == replica_id(row.id));
            if known.is_some_and(|(_, seen)| *seen == beat(row.beat) || setting.lacks(Broken::DeleteAnyBeat)) {
                steps.push(Step::Expire(number, row.id, row.beat));
            }
        }
        let unsettled = self.database.settled != process.timeline && self.database.timeline == process.timeline;
        if unsettled && (process.may_claim(self.tick) || setting.lacks(Broken::SettleAtOnce)) {
            steps.push(Step::Settle(number));
        }
    }

    fn expired(&self, setting: &Setting, process: &Process) -> Vec<(ReplicaId, Beat)> {
        let now = process.clock.at(self.tick);
        if !setting.lacks(Broken::ExpireByTheOwnersClock) {
            return process.watcher.get().expired(now);
        }
        let ended = |row: &&ReplicaRow| Duration::from_millis(row.stamp) + TTL <= now.since_boot();
        let others = self.database.replicas.iter().filter(|row| row.id != process.id);
        others.filter(ended).map(|row| (replica_id(row.id), beat(row.beat))).collect()
    }

    /// Claims, and what the relay's own code makes of one look at the database.
    fn of_claims(&self, setting: &Setting, number: usize, process: &Process, steps: &mut Vec<Step>) {
        match process.claim {
            _ if !process.may_write(self.tick) => return,
            Claim::Answered(_) => return steps.push(Step::Open(number)),
            Claim::Sent { .. } => return,
            Claim::None => {}
        }
        for (step, _) in balance(&holdings(&self.database), replica_id(process.id), &process.running()) {
            match step {
                BalanceStep::Claim(_) if !process.may_claim(self.tick) => {}
                BalanceStep::Claim(grant) => steps.push(Step::SendClaim(number, lane_of(&grant))),
                BalanceStep::Stop(grant) => steps.push(Step::Stop(number, lane_of(&grant))),
                // The model's relay is never to have more lanes.
                BalanceStep::Split(_) => {}
                BalanceStep::Release(grant) => {
                    let lane = lane_of(&grant);
                    let goes = match &process.lanes[lane] {
                        Some(open) => open.stage == Stage::Idle,
                        None => !setting.lacks(Broken::KeepWhatOnlyTheTableHolds),
                    };
                    if goes {
                        steps.push(Step::Release(number, lane, self.database.lanes[lane].epoch));
                    }
                }
            }
        }
    }

    /// Reading, publishing and acknowledging the messages of the busy lane.
    fn of_the_path(&self, number: usize, process: &Process, steps: &mut Vec<Step>) {
        let Some(lane) = &process.lanes[BUSY] else { return };
        match lane.stage {
            Stage::Idle => {
                if self.database.log.len() > usize::from(lane.position) && process.may_write(self.tick) {
                    steps.push(Step::Check(number));
                }
            }
            Stage::Checked { .. } => steps.push(Step::Send(number)),
            Stage::Unwritten => steps.push(Step::BeginAcknowledge(number)),
            Stage::Writing { .. } => {}
        }
    }

    /// Whether a look would change what the process knows.
    pub fn look_tells_something(&self, process: &Process) -> bool {
        process.timeline != self.database.timeline || !process.watcher.knows(&self.beats_but_of(process.id))
    }

    pub fn beats_but_of(&self, id: Id) -> Vec<(ReplicaId, Beat)> {
        let others = self.database.replicas.iter().filter(|row| row.id != id);
        others.map(|row| (replica_id(row.id), beat(row.beat))).collect()
    }
}

fn lane_of(grant: &pgbaton::lane::Grant) -> usize {
    usize::try_from(grant.lane.number).unwrap()
}

/// What is asked of every state.
impl World {
    /// Whether two replicas may both write to the sink for one lane, at one moment of real time.
    pub fn has_two_live_owners(&self) -> bool {
        (0..self.database.lanes.len()).any(|lane| {
            let live = |process: &&Process| process.lanes[lane].is_some() && process.may_write(self.tick);
            self.processes().filter(live).count() > 1
        })
    }

    /// Whether the database says of a message that it is dealt with, which is neither at the sink nor parked.
    pub fn has_lost_a_message(&self) -> bool {
        let dealt_with = &self.database.log[..self.position().min(self.database.log.len())];
        dealt_with.iter().any(|message| !self.sink.has(*message) && !self.is_parked(*message))
    }

    fn position(&self) -> usize {
        usize::from(self.database.lanes[BUSY].position)
    }

    fn is_parked(&self, message: u8) -> bool {
        self.database.parked.iter().any(|row| row.message == message)
    }

    /// Whether a message is parked by an owner after whom another has delivered it.
    pub fn parks_what_the_next_owner_delivered(&self) -> bool {
        let later =
            |message, epoch| self.sink.taken.iter().any(|taken| taken.message == message && taken.epoch > epoch);
        self.database.parked.iter().any(|row| later(row.message, row.epoch))
    }

    /// Whether each lane is run by one live owner, and all messages are dealt with.
    pub fn is_well(&self) -> bool {
        let owned = |lane: usize| {
            self.processes().any(|process| {
                let epoch = process.lanes[lane].as_ref().map(|open| open.epoch);
                process.may_write(self.tick) && epoch.is_some_and(|epoch| self.database.owns(process.id, lane, epoch))
            })
        };
        (0..self.database.lanes.len()).all(owned) && self.position() == self.database.log.len()
    }
}
