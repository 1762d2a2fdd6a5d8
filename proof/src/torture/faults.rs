//! The faults: what there is, what stands in whose way, and who draws them.
//!
//! Each is a small unit that begins, lasts and ends by itself. Several are under way at once where they do not touch the same
//! thing. What is drawn depends on the seed: kind, target, and the fault's own stream of random numbers. Whatever becomes of one,
//! what it has done is undone at its end, and once more when calm begins.

mod deck;
mod network;
mod operators;
mod replicas;
mod server;
mod sink;
mod units;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::log::Fault;
use super::plan::{between, millis};
use super::stage::Stage;
use super::ways::Trouble;
use crate::Error;
use deck::{Budget, Card, Deck, Quiet};
use server::FailOver;
use units::{Kind, Thing};
pub(super) use units::{Unit, chosen, impossible, list};

const SHORTEST_GAP: Duration = Duration::from_millis(300);

/// One drawing of a kind.
pub(super) struct Hit {
    unit: &'static Unit,
    /// Whom it hits, where there is a choice.
    target: usize,
    pub(super) random: StdRng,
    /// What a run bears only so often has happened, whatever becomes of the rest.
    spent: bool,
}

impl Hit {
    fn begin(&self, stage: &Stage, target: &str, pid: Option<u32>) -> Fault {
        stage.log.begin_drawn(self.unit.name, target, pid)
    }

    fn millis(&mut self, least: u64, most: u64) -> Duration {
        millis(&mut self.random, least, most)
    }

    /// Less than a lease, or more, or much more.
    fn about_a_lease(&mut self) -> Duration {
        match self.random.random_range(0..10) {
            0..4 => self.millis(50, 1_400),
            4..8 => self.millis(1_800, 5_000),
            _ => self.millis(5_000, 12_000),
        }
    }
}

/// How one ended.
struct Ended {
    card: Card,
    /// Whether it spent some of the budget.
    spent: bool,
    /// False if something else was in its way, or there was nobody to hit.
    done: Result<bool, Error>,
    /// Free again once what it spent is accounted for.
    _taken: Taken,
}

/// Draws until it is told to stop, and returns when the last one is over and nothing of any is in force.
pub(super) async fn conduct(stage: Arc<Stage>, mut calm: watch::Receiver<bool>) {
    let mut random = stage.plan.random("gaps", 0);
    let (busy, mut under_way) = (Busy::default(), JoinSet::<Ended>::new());
    let possible = stage.plan.kinds.iter().copied().filter(|unit| impossible(unit, &stage).is_none()).collect();
    let replicas = stage.fleet.posts.len();
    let mut deck = Deck::new(stage.plan.random("faults", 0), possible, replicas);
    let (began, mut budget, mut quiet) = (Instant::now(), Budget::new(&stage.plan), Quiet::new(&stage.plan));
    loop {
        let gap = between(&mut random, SHORTEST_GAP, stage.plan.gap);
        if tokio::time::timeout(gap, calm.wait_for(|calm| *calm)).await.is_ok() {
            break;
        }
        let elapsed = began.elapsed();
        while let Some(ended) = under_way.try_join_next() {
            let given_up = account(&stage, ended, &mut budget, elapsed).and_then(|card| deck.put_back(card));
            not_then(&stage, given_up);
        }
        let is_quiet = quiet.at(elapsed);
        let (drawn, given_up) = deck.draw(|card| {
            let allowed = budget.allows(card.unit.kind, elapsed) && !(is_quiet && card.unit.shakes_the_server());
            if allowed { take(&busy, card.unit, card.target, replicas) } else { None }
        });
        not_then(&stage, given_up);
        if let Some((card, taken)) = drawn {
            under_way.spawn(play(Arc::clone(&stage), card, taken));
        }
    }
    while let Some(ended) = under_way.join_next().await {
        not_then(&stage, account(&stage, ended, &mut budget, began.elapsed()));
    }
}

async fn play(stage: Arc<Stage>, card: Card, taken: Taken) -> Ended {
    let (unit, target) = (card.unit, card.target);
    let mut hit = Hit { unit, target, random: StdRng::seed_from_u64(card.seed), spent: false };
    let began = Instant::now();
    let done = carry_out(&stage, &mut hit).await;
    if let Ok(true) = done {
        stage.log.took_place(unit.name, began.elapsed());
    }
    Ended { card, spent: hit.spent, done, _taken: taken }
}

fn not_then(stage: &Stage, card: Option<Card>) {
    if let Some(card) = card {
        stage.log.not_then(card.unit.name);
    }
}

/// Counts one that is over, and gives back the card of one that did not take place.
fn account(stage: &Stage, ended: Result<Ended, JoinError>, budget: &mut Budget, elapsed: Duration) -> Option<Card> {
    let Ended { card, spent, done, _taken } =
        ended.map_err(|error| stage.log.find(format!("a fault ended in the middle: {error}"))).ok()?;
    if spent {
        budget.spend(card.unit.kind, elapsed);
    }
    match done {
        Ok(true) => None,
        Ok(false) => Some(card),
        Err(error) => {
            stage.log.failed(card.unit.name, error.to_string());
            None
        }
    }
}

/// One that begins, lasts and is undone; the history tells of the time from before the first to after the last.
async fn in_force(
    stage: &Stage,
    hit: &Hit,
    (target, pid): (&str, Option<u32>),
    length: Duration,
    begun: impl Future<Output = Result<(), Error>>,
    undone: impl Future<Output = Result<(), Error>>,
) -> Result<bool, Error> {
    let fault = hit.begin(stage, target, pid);
    let begun = begun.await;
    if begun.is_ok() {
        stage.hold(length).await;
    }
    undo(stage, hit, undone).await;
    fault.end();
    begun.map(|()| true)
}

/// The end of a fault: what it has done is undone, whatever became of it, however often that takes. What stays in force is
/// found, since everything later would suffer from it.
async fn undo(stage: &Stage, hit: &Hit, undone: impl Future<Output = Result<(), Error>>) {
    if let Err(error) = undone.await {
        stage.log.find(format!("{} is still in force: {error}", hit.unit.name));
    }
}

type Busy = Arc<Mutex<HashSet<(Thing, usize)>>>;

/// What a fault has for itself; free again when this is dropped.
struct Taken(Busy, Vec<(Thing, usize)>);

impl Drop for Taken {
    fn drop(&mut self) {
        let mut busy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for thing in &self.1 {
            busy.remove(thing);
        }
    }
}

fn take(busy: &Busy, unit: &Unit, target: usize, replicas: usize) -> Option<Taken> {
    let things: Vec<(Thing, usize)> = unit
        .needs
        .iter()
        .flat_map(|thing| match thing {
            Thing::Process | Thing::Way | Thing::SinkWay | Thing::Clock => vec![(*thing, target)],
            Thing::Fleet => (0..replicas).map(|nth| (Thing::Process, nth)).collect(),
            Thing::Ways => (0..replicas).map(|nth| (Thing::Way, nth)).collect(),
            Thing::SinkWays => (0..replicas).map(|nth| (Thing::SinkWay, nth)).collect(),
            _ => vec![(*thing, 0)],
        })
        .collect();
    let mut held = busy.lock().unwrap_or_else(PoisonError::into_inner);
    if things.iter().any(|thing| held.contains(thing)) {
        return None;
    }
    held.extend(&things);
    Some(Taken(Arc::clone(busy), things))
}

/// False: something else was in its way, or there was nobody to hit.
#[expect(clippy::cognitive_complexity, reason = "one match without a branch inside, exhaustive on purpose")]
async fn carry_out(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    match hit.unit.kind {
        Kind::Kill => replicas::kill(stage, hit).await,
        Kind::StopShort => replicas::stop(stage, hit, false).await,
        Kind::StopLong => replicas::stop(stage, hit, true).await,
        // A process does these to itself: its post sees them.
        Kind::StopAtPoint | Kind::KillAtPoint => Ok(false),
        Kind::CleanStop => replicas::clean_stop(stage, hit).await,
        Kind::Reconfigure => replicas::reconfigure(stage, hit).await,
        Kind::RollingRestart => replicas::rolling_restart(stage, hit).await,
        Kind::ReplicaClock => replicas::clock(stage, hit).await,
        Kind::Cut => network::outbox(stage, hit, Trouble::Cut).await,
        Kind::Stall => network::stall(stage, hit).await,
        Kind::BlackHole => network::outbox(stage, hit, Trouble::BlackHole).await,
        Kind::Refuse => network::outbox(stage, hit, Trouble::Refuse).await,
        Kind::SinkCut => network::sink(stage, hit, true).await,
        Kind::SinkHangs => network::sink(stage, hit, false).await,
        Kind::Terminate => server::backends(stage, hit, "pg_terminate_backend").await,
        Kind::Cancel => server::backends(stage, hit, "pg_cancel_backend").await,
        Kind::RestartFast => server::restart(stage, hit, false).await,
        Kind::RestartImmediate => server::restart(stage, hit, true).await,
        Kind::FailOverSync => server::fail_over(stage, hit, FailOver::Synchronous).await,
        Kind::FailOverAsync => server::fail_over(stage, hit, FailOver::Asynchronous).await,
        Kind::FailOverWakes => server::fail_over(stage, hit, FailOver::Wakes).await,
        Kind::Slots => server::slots(stage, hit).await,
        Kind::DiskFull => server::disk_full(stage, hit).await,
        Kind::ServerClock => server::clock(stage, hit).await,
        Kind::Snapshot => server::snapshot(stage, hit).await,
        Kind::RowsLocked => server::rows_locked(stage, hit).await,
        Kind::Split => server::split(stage, hit).await,
        Kind::SinkOutage => sink::outage(stage, hit).await,
        Kind::SinkSlow => sink::slow(stage, hit).await,
        Kind::SinkFails => sink::fails(stage, hit).await,
        Kind::Redrive => operators::redrive(stage, hit).await,
        Kind::Pause => operators::pause(stage, hit).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Unit {
        chosen(&[name.to_owned()]).unwrap()[0]
    }

    #[test]
    fn nothing_is_had_by_two_at_once() {
        let busy = Busy::default();
        let first = take(&busy, named("kill"), 0, 3).unwrap();
        assert!(take(&busy, named("stop_long"), 0, 3).is_none());
        assert!(take(&busy, named("rolling_restart"), 1, 3).is_none());
        let (_second, _way) = (take(&busy, named("kill"), 1, 3).unwrap(), take(&busy, named("cut"), 0, 3).unwrap());
        drop(first);
        let _third = take(&busy, named("stop_long"), 0, 3).unwrap();
        let _restart = take(&busy, named("restart_fast"), 0, 3).unwrap();
        assert!(take(&busy, named("cancel"), 2, 3).is_none());
        let _hangs = take(&busy, named("sink_hangs"), 1, 3).unwrap();
        assert!(take(&busy, named("sink_outage"), 0, 3).is_none());
        assert!(take(&Busy::default(), named("fail_over_wakes"), 0, 3).is_some_and(|taken| taken.1.len() == 8));
    }
}
