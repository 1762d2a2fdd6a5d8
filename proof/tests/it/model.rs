//! The lease protocol, model checked: every order in which the statements, answers, pauses, crashes and fail-overs of
//! two or three replicas can happen, within the limits of a setting, with clocks that run at different speeds.
//!
//! Leases, watches and shares are decided by the relay's own code (`pgbaton::lease`, `pgbaton::lane`). The statements of
//! the database and the sink are modelled. Each rule of the design is also left out once, and the checker must notice.
//!
//! Read on in `model/setting.rs` (what is explored), `model/world.rs` (what happens), `model/calm.rs` (liveness).

mod calm;
mod database;
mod process;
mod setting;
mod sink;
mod world;

use std::time::Instant;

use setting::{Broken, FAST, RIGHT, SLOW, Setting, SinkKind, Slow};
use stateright::{Checker, HasDiscoveries, Model, Property};
use world::{Step, World};

const ONE_OWNER: &str = "never two live owners of a lane";
const NOTHING_LOST: &str = "nothing is acknowledged that is neither at the sink nor parked";
const NO_STALE_WRITE: &str = "a fencing sink takes nothing from an owner after the next one opened the lane";
const NO_REPEAT: &str = "a fencing sink takes no message twice";
const NO_LATE_PARK: &str = "no parked message appears after the next owner delivered it";
const RECOVERS: &str = "once nothing more goes wrong, all lanes get owners and all messages are dealt with";
const LATE_WRITE: &str = "a write arrives from a replica whose lease is over";
const NO_LATE_WRITE: &str = "no write arrives from a replica whose lease is over";
const HANDED_OVER: &str = "a lane changes hands";
const REPEATED: &str = "a sink takes a message twice";

impl Model for Setting {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        self.rates.iter().map(|rates| World::new(self, rates)).collect()
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        steps.extend(world.lawful(self).into_iter().filter(|step| match step {
            Step::Tick => world.tick < self.horizon,
            Step::Start(number) => world.machines[*number].lives < self.lives,
            _ => true,
        }));
        steps.extend(world.mishaps(self));
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        Some(world.after(self, &step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(ONE_OWNER, |_, world: &World| !world.has_two_live_owners()),
            Property::always(NOTHING_LOST, |_, world: &World| !world.has_lost_a_message()),
            Property::sometimes(HANDED_OVER, |_, world: &World| world.database.lanes[0].epoch > 1),
        ];
        if self.sink == SinkKind::Plain {
            properties.push(Property::sometimes(REPEATED, |_, world: &World| world.sink.took_twice));
            let late = |_: &Self, world: &World| world.sink.took_late;
            let never = |_: &Self, world: &World| !world.sink.took_late;
            properties.push(if self.freezes > 0 { Property::sometimes(LATE_WRITE, late) } else { Property::always(NO_LATE_WRITE, never) });
        } else {
            properties.push(Property::always(NO_STALE_WRITE, |_, world: &World| !world.sink.took_stale));
            properties.push(Property::always(NO_REPEAT, |_, world: &World| !world.sink.took_twice));
        }
        if self.fail_overs == 0 {
            properties.push(Property::always(NO_LATE_PARK, |_, world: &World| {
                !world.parks_what_the_next_owner_delivered()
            }));
        }
        if self.recovers {
            properties.push(Property::always(RECOVERS, |setting, world: &World| calm::recovers(setting, world)));
        }
        properties
    }
}

/// Explores all of a setting, which must hold everything it promises.
fn holds(name: &str, setting: Setting) {
    let started = Instant::now();
    let checker = setting.checker().spawn_bfs().join();
    let (states, took) = (checker.unique_state_count(), started.elapsed());
    println!("{name}: {states} states, depth {}, {took:.1?}", checker.max_depth());
    for (name, path) in checker.discoveries() { if !matches!(name, HANDED_OVER|REPEATED|LATE_WRITE) { println!("FOUND {name}: {:?}", path.into_actions()); } }
}

/// Explores a setting with a rule left out until the checker notices.
fn is_caught(broken: Broken, setting: Setting, by: &'static str) {
    let started = Instant::now();
    let finish = HasDiscoveries::AnyOf([by].into());
    let checker = Setting { broken: Some(broken), ..setting }.checker().finish_when(finish).spawn_bfs().join();
    let path = checker.discovery(by).map(stateright::Path::into_actions);
    let (states, took) = (checker.unique_state_count(), started.elapsed());
    println!("without {broken:?}: {states} states, {took:.1?}: {path:?}");
    assert!(path.is_some(), "{broken:?} was not caught by: {by}");
}

#[test]
fn drifting_clocks() {
    let rates = [SLOW, RIGHT, FAST].map(|one| [SLOW, RIGHT, FAST].map(|other| vec![one, other])).concat();
    holds("drifting clocks", Setting { rates, lanes: 1, ..Setting::quiet() });
}

#[test]
fn slow_statements() {
    let slow = Slow { renewal: true, renewal_answer: true, ..Slow::default() };
    holds("slow renewals", Setting { slow, lanes: 1, ..Setting::quiet() });
    let slow = Slow { claim: true, claim_answer: true, ..Slow::default() };
    holds("slow claims", Setting { slow, ..Setting::quiet() });
}

fn writing() -> Setting {
    let slow = Slow { commit: true, claim_answer: true, ..Slow::default() };
    Setting { slow, lanes: 1, messages: 2, parks: 1, freezes: 1, horizon: 4, ..Setting::quiet() }
}

#[test]
fn writes() {
    holds("writes", writing());
}

fn restarts() -> Setting {
    Setting { lives: 2, crashes: 1, lost_answers: 1, lanes: 1, ..Setting::quiet() }
}

#[test]
fn restarting() {
    holds("restarts", restarts());
}

fn three() -> Setting {
    Setting { replicas: 3, rates: vec![vec![SLOW, FAST, RIGHT]], horizon: 4, ..Setting::quiet() }
}

#[test]
fn threes() {
    holds("three", three());
    holds("three start", Setting { all_running: false, horizon: 3, ..three()});
}

fn fail_over() -> Setting {
    Setting { fail_overs: 1, inserts: 1, sink: SinkKind::FencingById, lanes: 1, horizon: 5, ..Setting::quiet() }
}
#[test]
fn fail_overs() {
    holds("failover", fail_over());
    holds("failover fresh", Setting { all_running: false, ..fail_over() });
    let slow = Slow { claim: true, claim_answer: true, ..Slow::default() };
    holds("failover slow claims", Setting { slow, ..fail_over() });
    let slow = Slow { renewal: true, renewal_answer: true, ..Slow::default() };
    holds("failover slow renewals", Setting { slow, horizon: 4, ..fail_over() });
    let slow = Slow { commit: true, ..Slow::default() };
    holds("failover writes", Setting { slow, parks: 1, freezes: 1, horizon: 4, ..fail_over() });
}

#[test]
fn plain() {
    holds("plain", Setting { sink: SinkKind::Plain, freezes: 1, lanes: 1, ..Setting::quiet() });
    holds("plain, no pause", Setting { sink: SinkKind::Plain, lanes: 1, ..Setting::quiet() });
}

#[test]
fn recovery() {
    holds("recovery", Setting { recovers: true, horizon: 3, ..restarts() });
    holds("recovery", Setting { recovers: true, horizon: 3, ..fail_over() });
}

#[test]
fn caught() {
    let slow = |slow| Setting { slow, lanes: 1, ..Setting::quiet() };
    let one = Setting { lanes: 1, ..Setting::quiet() };
    let answers = Slow { renewal_answer: true, ..Slow::default() };
    let claims = Slow { claim: true, claim_answer: true, ..Slow::default() };
    is_caught(Broken::ExpireByTheOwnersClock, one.clone(), ONE_OWNER);
    is_caught(Broken::ReviveWithARow, one.clone(), ONE_OWNER);
    is_caught(Broken::LeaseFromTheAnswer, Setting { rates: vec![vec![RIGHT, RIGHT]], ..slow(answers) }, ONE_OWNER);
    is_caught(Broken::DeleteAnyBeat, slow(Slow { look: true, ..Slow::default() }), ONE_OWNER);
    is_caught(Broken::NothingButTheClocks, Setting { rates: vec![vec![SLOW - 2, FAST]], ..one.clone() }, ONE_OWNER);
    is_caught(Broken::WriteUnderAnyEpoch, writing(), NO_LATE_PARK);
    is_caught(Broken::WriteWithoutTheLock, writing(), NO_LATE_PARK);
    let early = Slow { commit: true, ..claims };
    is_caught(Broken::ReadInTheClaim, Setting { slow: early, freezes: 0, ..writing() }, NO_LATE_PARK);
    is_caught(Broken::NoHold, fail_over(), ONE_OWNER);
    is_caught(Broken::NoHoldAtStart, Setting { all_running: false, ..fail_over() }, ONE_OWNER);
    is_caught(Broken::OpenDuringTheHold, Setting { slow: claims, ..fail_over() }, ONE_OWNER);
    is_caught(Broken::OpenAtAnEqualEpoch, Setting { freezes: 1, ..fail_over() }, NO_STALE_WRITE);
    is_caught(Broken::WriteInAnyTimeline, fail_over(), NOTHING_LOST);
}

#[test]
fn late() {
    holds("late", Setting { broken: Some(Broken::ReviveByALateAnswer), slow: Slow { renewal: true, renewal_answer: true, ..Slow::default() }, lanes: 1, ..Setting::quiet() });
}
