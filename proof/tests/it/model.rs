//! The lease protocol, model checked: every order in which the statements, answers, pauses, crashes and fail-overs of
//! two or three replicas can happen, within the limits of a setting, with clocks that run at different speeds.
//!
//! Leases, watches and shares are decided by the relay's own code (`pgbaton::lease`, `pgbaton::lane`). The statements of
//! the database and the sink are modelled. Each rule of the design is also left out once, and the checker must notice.
//!
//! Read on in `model/setting.rs` (what is explored), `model/world.rs` (what happens), `model/calm.rs` (liveness).

mod calm;
mod database;
mod effect;
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
        ];
        // Up to then no beat has been seen for a whole ttl.
        if self.horizon > 3 {
            properties.push(Property::sometimes(HANDED_OVER, |_, world: &World| world.database.lanes[0].epoch > 1));
        }
        if self.sink == SinkKind::Plain {
            properties.push(Property::sometimes(REPEATED, |_, world: &World| world.sink.took_twice));
            properties.push(match self.freezes {
                0 => Property::always(NO_LATE_WRITE, |_, world: &World| !world.sink.took_late),
                _ => Property::sometimes(LATE_WRITE, |_, world: &World| world.sink.took_late),
            });
        } else {
            properties.push(Property::always(NO_STALE_WRITE, |_, world: &World| !world.sink.took_stale));
            properties.push(Property::always(NO_REPEAT, |_, world: &World| !world.sink.took_twice));
        }
        if self.fail_overs == 0 {
            properties
                .push(Property::always(NO_LATE_PARK, |_, world: &World| !world.parks_what_the_next_owner_delivered()));
        }
        if self.recovers {
            properties.push(Property::always(RECOVERS, |setting, world: &World| calm::recovers(setting, world)));
        }
        properties
    }
}

/// Explores all of a setting, which must hold everything it promises.
fn holds(what: &str, setting: Setting) {
    let started = Instant::now();
    let checker = setting.checker().spawn_bfs().join();
    let (states, depth, took) = (checker.unique_state_count(), checker.max_depth(), started.elapsed());
    println!("{what}: {states} states, depth {depth}, {took:.1?}");
    checker.assert_properties();
}

/// Explores a setting with a rule left out until the checker notices, and prints how it comes to harm.
fn is_caught(broken: Broken, setting: Setting, by: &'static str) {
    let setting = Setting { broken: Some(broken), ..setting };
    let started = Instant::now();
    let checker = setting.clone().checker().finish_when(HasDiscoveries::AnyOf([by].into())).spawn_bfs().join();
    let (states, took) = (checker.unique_state_count(), started.elapsed());
    let Some(path) = checker.discovery(by) else { panic!("without {broken:?}, this still holds: {by}") };
    let holds = setting.properties().into_iter().find(|property| property.name == by).unwrap().condition;
    // The checker keeps the last harm it found, which may come some steps after the first.
    let until_harm = path.into_vec().into_iter().take_while(|(world, _)| holds(&setting, world));
    let steps: Vec<Step> = until_harm.filter_map(|(_, step)| step).collect();
    println!("{broken:?}: {states} states, {took:.1?}, breaks \"{by}\" by {steps:?}");
}

fn one_lane() -> Setting {
    Setting { lanes: 1, ..Setting::quiet() }
}

/// Two messages, a fault, a pause, and acknowledgements that take their time.
fn writing() -> Setting {
    let slow = Slow { commit: true, claim_answer: true, ..Slow::default() };
    Setting { slow, messages: 2, parks: 1, freezes: 1, horizon: 4, ..one_lane() }
}

fn restarting() -> Setting {
    let slow = Slow { claim_answer: true, ..Slow::default() };
    Setting { slow, lives: 2, crashes: 1, lost_answers: 1, horizon: 4, ..one_lane() }
}

/// No messages: who holds the lanes is enough to explore.
fn failing_over() -> Setting {
    Setting { fail_overs: 1, sink: SinkKind::FencingById, messages: 0, horizon: 5, ..one_lane() }
}

fn slow_renewals() -> Slow {
    Slow { renewal: true, renewal_answer: true, ..Slow::default() }
}

fn slow_claims() -> Slow {
    Slow { claim: true, claim_answer: true, ..Slow::default() }
}

#[test]
fn one_owner_whatever_way_the_clocks_drift() {
    let rates = [SLOW, RIGHT, FAST].map(|one| [SLOW, RIGHT, FAST].map(|other| vec![one, other])).concat();
    holds("drifting clocks", Setting { rates, ..one_lane() });
}

#[test]
fn one_owner_however_late_statements_and_answers_are() {
    holds("slow renewals", Setting { slow: slow_renewals(), ..one_lane() });
    holds("slow claims, two lanes", Setting { slow: slow_claims(), ..Setting::quiet() });
    holds("slow looks", Setting { slow: Slow { look: true, ..Slow::default() }, horizon: 4, ..one_lane() });
}

#[test]
fn one_owner_through_crashes_lost_answers_and_restarts() {
    holds("restarts", restarting());
}

#[test]
fn three_replicas_share_two_lanes() {
    let three = Setting { rates: vec![vec![SLOW, FAST, RIGHT]], ..Setting::quiet() };
    holds("three replicas", Setting { horizon: 4, ..three.clone() });
    holds("three replicas that start at any moment", Setting { all_running: false, horizon: 2, ..three });
}

#[test]
fn nothing_lost_repeated_or_stale_at_a_fencing_sink() {
    holds("writes", writing());
}

/// What only the sink can stop, and what no sink is needed for.
#[test]
fn a_plain_sink_takes_late_writes_from_a_paused_process_and_only_from_it() {
    let plain = Setting { sink: SinkKind::Plain, ..one_lane() };
    holds("plain sink, a pause between check and send", Setting { freezes: 1, ..plain.clone() });
    holds("plain sink, no such pause", plain);
}

#[test]
fn one_owner_through_a_fail_over_that_loses_commits() {
    holds("fail-over", failing_over());
    holds("fail-over, fresh replicas", Setting { all_running: false, horizon: 3, ..failing_over() });
    let claims = Setting { slow: slow_claims(), lanes: 2, horizon: 2, ..failing_over() };
    holds("fail-over, slow claims, two lanes", claims.clone());
    holds("fail-over, slow claims, two lanes, fresh replicas", Setting { all_running: false, horizon: 1, ..claims });
    holds("fail-over, slow renewals", Setting { slow: slow_renewals(), horizon: 3, ..failing_over() });
}

#[test]
fn nothing_lost_by_a_fail_over_but_what_the_standby_never_had() {
    let messages = Setting { messages: 1, inserts: 1, ..failing_over() };
    holds("fail-over, messages", Setting { horizon: 3, ..messages.clone() });
    holds("fail-over, messages, a pause", Setting { horizon: 2, freezes: 1, ..messages.clone() });
    let slow = Slow { commit: true, ..Slow::default() };
    holds("fail-over, slow commits", Setting { slow, parks: 1, horizon: 2, ..messages });
}

#[test]
fn every_state_leads_out_of_trouble() {
    holds("recovery from restarts", Setting { recovers: true, horizon: 3, ..restarting() });
    holds("recovery from a fail-over", Setting { recovers: true, messages: 1, horizon: 3, ..failing_over() });
    let slow = Setting { slow: slow_claims(), messages: 1, horizon: 1, ..failing_over() };
    holds("recovery from a fail-over, slow claims", Setting { recovers: true, ..slow });
    let lost = Setting { recovers: true, horizon: 1, ..restarting() };
    is_caught(Broken::KeepWhatOnlyTheTableHolds, lost, RECOVERS);
}

#[test]
fn each_rule_of_the_lease_is_needed() {
    let right = vec![vec![RIGHT, RIGHT]];
    let answers = Slow { renewal_answer: true, ..Slow::default() };
    let looks = Slow { look: true, ..Slow::default() };
    is_caught(Broken::ExpireByTheOwnersClock, one_lane(), ONE_OWNER);
    is_caught(Broken::ReviveWithARow, one_lane(), ONE_OWNER);
    is_caught(Broken::LeaseFromTheAnswer, Setting { slow: answers, rates: right, ..one_lane() }, ONE_OWNER);
    is_caught(Broken::DeleteAnyBeat, Setting { slow: looks, ..one_lane() }, ONE_OWNER);
    is_caught(Broken::NothingButTheClocks, Setting { rates: vec![vec![SLOW - 2, FAST]], ..one_lane() }, ONE_OWNER);
}

/// The core refuses it all the same: nothing needs it. What protects here is that a renewal updates a row, and an
/// expired replica has none.
#[test]
fn a_late_answer_that_revived_a_lease_would_do_no_harm() {
    let broken = Some(Broken::ReviveByALateAnswer);
    holds("revived by a late answer", Setting { broken, slow: slow_renewals(), ..one_lane() });
}

#[test]
fn each_rule_of_acknowledge_park_and_claim_is_needed() {
    is_caught(Broken::WriteUnderAnyEpoch, writing(), NO_LATE_PARK);
    is_caught(Broken::WriteWithoutTheLock, writing(), NO_LATE_PARK);
    let slow = Slow { commit: true, ..slow_claims() };
    is_caught(Broken::ReadInTheClaim, Setting { slow, freezes: 0, ..writing() }, NO_LATE_PARK);
}

#[test]
fn each_rule_of_the_fail_over_is_needed() {
    let fresh = Setting { all_running: false, horizon: 2, ..failing_over() };
    is_caught(Broken::NoHold, failing_over(), ONE_OWNER);
    is_caught(Broken::NoHoldAtStart, fresh.clone(), ONE_OWNER);
    is_caught(Broken::SettleAtOnce, Setting { lives: 2, crashes: 1, ..fresh.clone() }, ONE_OWNER);
    is_caught(Broken::OpenDuringTheHold, Setting { slow: slow_claims(), lanes: 2, horizon: 1, ..fresh }, ONE_OWNER);
    let written = Setting { messages: 1, ..failing_over() };
    is_caught(Broken::OpenAtAnEqualEpoch, Setting { freezes: 1, horizon: 3, ..written }, NO_STALE_WRITE);
    is_caught(Broken::WriteInAnyTimeline, Setting { inserts: 2, horizon: 1, ..failing_over() }, NOTHING_LOST);
}

/// Further than the others go: for a release build and some minutes.
#[test]
#[ignore = "minutes, and gigabytes: run it with --release -- --ignored"]
fn deeper() {
    holds("restarts, slow renewals", Setting { slow: slow_renewals(), horizon: 5, ..restarting() });
    holds("fail-over, slow renewals", Setting { slow: slow_renewals(), horizon: 4, ..failing_over() });
    let messages = Setting { messages: 1, inserts: 1, horizon: 4, ..failing_over() };
    holds("fail-over, messages", Setting { freezes: 1, ..messages.clone() });
    let slow = Slow { commit: true, ..Slow::default() };
    holds("fail-over, slow commits", Setting { slow, parks: 1, horizon: 3, ..messages });
    holds("fail-over, slow claims", Setting { slow: slow_claims(), lanes: 2, horizon: 4, ..failing_over() });
    holds("two fail-overs", Setting { fail_overs: 2, horizon: 4, ..failing_over() });
    let three = Setting { rates: vec![vec![SLOW, FAST, RIGHT]], lanes: 2, ..failing_over() };
    holds("three replicas, fail-over", Setting { horizon: 3, ..three });
}
