//! What each step of the world does: the process's part, and the statement or write it sends.

use pgbaton::lease::Lease;

use super::database::{Database, Granted, Id, Transaction};
use super::process::{Claim, OpenLane, Process, Renewal, Stage};
use super::setting::{BUSY, Broken, Setting, SinkKind, TTL};
use super::sink::{Opener, Write};
use super::world::{Step, World};

impl World {
    #[must_use]
    pub fn after(&self, setting: &Setting, step: &Step) -> Self {
        let mut world = self.clone();
        world.apply(setting, step);
        if !setting.slow.look {
            (0..world.machines.len()).for_each(|number| world.look_at_once(number));
        }
        if let Some(next) = world.at_once(setting, step) {
            return world.after(setting, &next);
        }
        world
    }

    /// What follows a step without delay, where the setting does not say that it takes time.
    fn at_once(&self, setting: &Setting, step: &Step) -> Option<Step> {
        let process = |number: usize| self.machines[number].process.as_ref();
        match *step {
            Step::SendRenewal(number) if !setting.slow.renewal => Some(Step::RunRenewal(number)),
            Step::RunRenewal(number) if !setting.slow.renewal_answer => Some(Step::ReceiveRenewal(number)),
            Step::SendClaim(number, _) if !setting.slow.claim => Some(Step::RunClaim(number)),
            Step::RunClaim(number) | Step::Open(number) if !setting.slow.claim_answer => process(number)
                .filter(|process| matches!(process.claim, Claim::Answered(_)))
                .map(|_| Step::Open(number)),
            Step::Check(number) if setting.freezes == 0 => {
                process(number).filter(|process| process.is_about_to_send()).map(|_| Step::Send(number))
            }
            Step::BeginAcknowledge(_) | Step::BeginPark(_) if !setting.slow.commit => {
                self.database.transactions.len().checked_sub(1).map(Step::Commit)
            }
            _ => None,
        }
    }

    fn apply(&mut self, setting: &Setting, step: &Step) {
        match *step {
            Step::Tick => self.tick += 1,
            Step::Start(number) | Step::StartOver(number) => self.start(setting, number),
            Step::SendRenewal(number) => self.process(number).renewal = Renewal::Sent { at: self.tick },
            Step::RunRenewal(number) => self.run_renewal(setting, number),
            Step::ReceiveRenewal(number) => self.receive_renewal(setting, number),
            Step::Look(number) => {
                self.notice(setting, number);
                self.look(number);
            }
            Step::Expire(number, id, beat) => {
                self.database.expire(id, (!setting.lacks(Broken::DeleteAnyBeat)).then_some(beat));
                self.notice(setting, number);
            }
            Step::Settle(number) => self.database.settled = self.process(number).timeline,
            Step::SendClaim(number, lane) => {
                let row = &self.database.lanes[lane];
                let claim = Claim::Sent { lane, epoch: row.epoch, position_now: row.position };
                if !self.notice(setting, number) {
                    self.process(number).claim = claim;
                }
            }
            Step::RunClaim(number) => self.run_claim(setting, number),
            Step::Open(number) => self.open(setting, number),
            Step::LoseAnswer(number) => {
                self.spent.lost_answers += 1;
                self.process(number).claim = Claim::None;
            }
            Step::Release(number, lane, epoch) => {
                if !self.notice(setting, number) {
                    self.process(number).lanes[lane] = None;
                    let id = self.process(number).id;
                    self.database.release(id, lane, epoch);
                }
            }
            Step::Stop(number, lane) => {
                if !self.notice(setting, number) {
                    self.process(number).lanes[lane] = None;
                }
            }
            Step::Check(number) => self.check(setting, number),
            Step::Send(number) => self.send(setting, number),
            Step::BeginAcknowledge(number) | Step::BeginPark(number) => self.begin_write(setting, number),
            Step::Commit(index) => self.commit(index),
            Step::Abort(index) => self.abort(index),
            Step::Insert => {
                self.spent.inserts += 1;
                self.database.log.push(setting.messages + self.spent.inserts);
            }
            Step::Freeze(number) => {
                self.spent.freezes += 1;
                self.process(number).frozen = true;
            }
            Step::Wake(number) => self.process(number).frozen = false,
            Step::Crash(number) => {
                self.spent.crashes += 1;
                self.machines[number].process = None;
            }
            Step::LoseTouch => self.standby = Some(self.database.replicated()),
            Step::FailOver => self.fail_over(setting),
        }
    }

    fn process(&mut self, number: usize) -> &mut Process {
        self.machines[number].process.as_mut().unwrap()
    }

    fn look(&mut self, number: usize) {
        let (id, clock) = (self.process(number).id, self.process(number).clock);
        let (seen, tick) = (self.beats_but_of(id), self.tick);
        self.process(number).watcher.change(clock, tick, |watch| watch.saw(&seen, clock.at(tick)));
    }

    fn look_at_once(&mut self, number: usize) {
        let Some(process) = &self.machines[number].process else { return };
        let aware = process.timeline == self.database.timeline;
        if aware && !process.frozen && self.look_tells_something(process) {
            self.look(number);
        }
    }

    pub fn start(&mut self, setting: &Setting, number: usize) {
        let machines = self.machines.len();
        let machine = &mut self.machines[number];
        if machine.lives == setting.lives && machine.process.take().is_some() {
            return; // ends here, where a real one would start again
        }
        machine.lives += 1;
        // Later lives have greater numbers, as new identities are random and any order will do.
        let id = Id::try_from(machines * usize::from(machine.lives) + number).unwrap();
        let (clock, tick) = (machine.clock, self.tick);
        let mut process = Process::start(id, clock, tick, &self.database);
        if self.database.timeline != self.database.settled && !setting.lacks(Broken::NoHoldAtStart) {
            process.watcher.change(clock, tick, |watch| watch.hold_claims(clock.at(tick)));
        }
        machine.process = Some(process);
        self.database.register(id, self.stamp(setting, number, tick));
    }

    fn stamp(&self, setting: &Setting, number: usize, tick: u8) -> u64 {
        let clock = self.machines[number].clock;
        if setting.lacks(Broken::ExpireByTheOwnersClock) { clock.offset + clock.rate * u64::from(tick) } else { 0 }
    }

    fn run_renewal(&mut self, setting: &Setting, number: usize) {
        let (id, renewal) = (self.process(number).id, self.process(number).renewal);
        let Renewal::Sent { at } = renewal else { return };
        let stamp = self.stamp(setting, number, at);
        let mut found = self.database.renew(id, stamp);
        if !found && setting.lacks(Broken::ReviveWithARow) {
            self.database.register(id, stamp);
            found = true;
        }
        let timeline = self.database.timeline;
        self.process(number).renewal = Renewal::Answered { sent: at, found, timeline };
    }

    fn receive_renewal(&mut self, setting: &Setting, number: usize) {
        let tick = self.tick;
        let process = self.process(number);
        let Renewal::Answered { sent, found, timeline } = process.renewal else { return };
        process.renewal = Renewal::None;
        if timeline > process.timeline {
            self.notice(setting, number);
        }
        let process = self.process(number);
        if !found {
            self.start(setting, number);
        } else if timeline == process.timeline {
            let (sent, now) = (process.clock.at(sent), process.clock.at(tick));
            let over = process.lease.0.may_write(now).is_err();
            let lease = &mut process.lease.0;
            if setting.lacks(Broken::LeaseFromTheAnswer) {
                lease.renewed(now, now);
            } else if over && (setting.lacks(Broken::ReviveWithARow) || setting.lacks(Broken::ReviveByALateAnswer)) {
                *lease = Lease::begin(TTL, sent);
            } else {
                lease.renewed(sent, now);
            }
        }
    }

    /// What every answer of the database brings along: its timeline. If it is another than that of what is in memory,
    /// all is dropped and read again, but for lanes held under the same epoch with the lease running. Says whether.
    fn notice(&mut self, setting: &Setting, number: usize) -> bool {
        let tick = self.tick;
        let database = self.database.clone();
        let process = self.process(number);
        if process.timeline == database.timeline {
            return false;
        }
        process.timeline = database.timeline;
        let clock = process.clock;
        process.watcher.change(clock, tick, |watch| {
            watch.restart();
            if database.timeline != database.settled && !setting.lacks(Broken::NoHold) {
                watch.hold_claims(clock.at(tick));
            }
        });
        let holds = process.may_write(tick);
        for (number, slot) in process.lanes.iter_mut().enumerate() {
            let kept = slot.take().filter(|lane| holds && database.owns(process.id, number, lane.epoch));
            let position = database.lanes[number].position;
            *slot = kept.map(|lane| OpenLane { position, stage: Stage::Idle, ..lane });
        }
        true
    }

    fn run_claim(&mut self, setting: &Setting, number: usize) {
        let id = self.process(number).id;
        let Claim::Sent { lane, epoch, position_now } = self.process(number).claim else { return };
        let mut granted = self.database.claim(id, lane, epoch);
        if setting.lacks(Broken::ReadInTheClaim) {
            granted = granted.map(|granted| Granted { position: position_now, ..granted });
        }
        self.process(number).claim = granted.map_or(Claim::None, Claim::Answered);
    }

    /// A grant is worth something in the timeline it was given in, while claims are not held.
    fn open(&mut self, setting: &Setting, number: usize) {
        let tick = self.tick;
        let Claim::Answered(granted) = self.process(number).claim.clone() else { return };
        self.process(number).claim = Claim::None;
        if granted.timeline > self.process(number).timeline {
            self.notice(setting, number);
            // The model that breaks this rule goes on with what it was granted.
            if !setting.lacks(Broken::OpenDuringTheHold) {
                return;
            }
        }
        let process = self.process(number);
        let held = !process.may_claim(tick) && !setting.lacks(Broken::OpenDuringTheHold);
        if granted.timeline != process.timeline || held {
            return;
        }
        let (id, timeline, mut position) = (process.id, process.timeline, granted.position);
        if granted.lane == BUSY {
            if self.sink_is_ahead(setting, granted.epoch) {
                let above = self.sink.epoch;
                let raised = self.database.raise(id, BUSY, granted.epoch, above);
                let again = raised.map(|epoch| Granted { epoch, ..granted });
                self.process(number).claim = again.map_or(Claim::None, Claim::Answered);
                return;
            }
            self.sink.open(setting.sink, Opener { id, epoch: granted.epoch });
            // A sink position of the same timeline that is newer than ours: delivered, and to be written here.
            let settled = self.sink.position.filter(|(named, _)| *named == timeline);
            position = settled.map_or(position, |(_, reached)| reached.max(position));
        }
        let stage = if position > granted.position { Stage::Unwritten } else { Stage::Idle };
        self.process(number).lanes[granted.lane] = Some(OpenLane { epoch: granted.epoch, position, stage });
    }

    /// Whether the sink holds an epoch above ours, or the very same: then claims were lost in a fail-over.
    fn sink_is_ahead(&self, setting: &Setting, epoch: u8) -> bool {
        let equal = self.sink.epoch == epoch && !setting.lacks(Broken::OpenAtAnEqualEpoch);
        setting.sink != SinkKind::Plain && (self.sink.epoch > epoch || equal)
    }

    fn check(&mut self, setting: &Setting, number: usize) {
        let log = self.database.log.clone();
        if self.notice(setting, number) {
            return;
        }
        if let Some(lane) = &mut self.process(number).lanes[BUSY] {
            lane.stage = Stage::Checked { message: log[usize::from(lane.position)] };
        }
    }

    fn send(&mut self, setting: &Setting, number: usize) {
        let tick = self.tick;
        let process = self.process(number);
        let (id, timeline, lease_over) = (process.id, process.timeline, !process.may_write(tick));
        let Some(lane) = process.lanes[BUSY].clone() else { return };
        let Stage::Checked { message } = lane.stage else { return };
        let position = lane.position + 1;
        let by = Opener { id, epoch: lane.epoch };
        let taken = self.sink.write(setting.sink, &Write { by, message, position: (timeline, position), lease_over });
        let unwritten = OpenLane { position, stage: Stage::Unwritten, ..lane };
        self.process(number).lanes[BUSY] = taken.then_some(unwritten);
    }

    /// Takes the lane's shared lock, then, in a new statement, inserts where owner, epoch and timeline are still those.
    fn begin_write(&mut self, setting: &Setting, number: usize) {
        let process = self.process(number).clone();
        let Some(lane) = &process.lanes[BUSY] else { return };
        let owns = self.database.owns(process.id, BUSY, lane.epoch) || setting.lacks(Broken::WriteUnderAnyEpoch);
        let same = self.database.timeline == process.timeline || setting.lacks(Broken::WriteInAnyTimeline);
        let parks = lane.stage == Stage::Idle;
        let message = self.database.log.get(usize::from(lane.position)).copied();
        self.spent.parks += u8::from(parks);
        if owns && same {
            self.database.transactions.push(Transaction {
                id: process.id,
                epoch: lane.epoch,
                position: lane.position + u8::from(parks),
                parked: message.filter(|_| parks),
                locked: !setting.lacks(Broken::WriteWithoutTheLock),
            });
            let writing = OpenLane { stage: Stage::Writing { parks }, ..lane.clone() };
            self.process(number).lanes[BUSY] = Some(writing);
        } else if !self.notice(setting, number) {
            self.process(number).lanes[BUSY] = None;
        }
    }

    fn commit(&mut self, index: usize) {
        let done = self.database.commit(index);
        if let Some(lane) = self.writing(&done) {
            *lane = OpenLane { epoch: done.epoch, position: done.position, stage: Stage::Idle };
        }
    }

    fn abort(&mut self, index: usize) {
        let undone = self.database.transactions.remove(index);
        if let Some(lane) = self.writing(&undone) {
            lane.stage = if undone.parked.is_some() { Stage::Idle } else { Stage::Unwritten };
        }
    }

    /// The lane in the memory of the process that waits for this transaction, if it still does.
    fn writing(&mut self, transaction: &Transaction) -> Option<&mut OpenLane> {
        let processes = self.machines.iter_mut().filter_map(|machine| machine.process.as_mut());
        let mut lanes =
            processes.filter(|process| process.id == transaction.id).flat_map(|process| &mut process.lanes[BUSY]);
        lanes.find(|lane| lane.epoch == transaction.epoch && matches!(lane.stage, Stage::Writing { .. }))
    }

    /// The old primary is gone with its open transactions. Statements on their way arrive at the new one.
    fn fail_over(&mut self, setting: &Setting) {
        self.spent.fail_overs += 1;
        while !self.database.transactions.is_empty() {
            self.abort(0);
        }
        let timeline = self.database.timeline + 1;
        let older = self.standby.take().unwrap_or_else(|| Database::new(setting.lanes, setting.messages));
        self.database = Database { timeline, ..older };
        if self.spent.fail_overs < setting.fail_overs {
            self.standby = Some(self.database.clone());
        }
    }
}
