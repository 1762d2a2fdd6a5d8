//! The faults: what there is, what stands in whose way, and who draws them.
//!
//! Each is a small unit that begins, lasts and ends by itself. Several are under way at once where they do not touch the same
//! thing. What is drawn depends on the seed alone: kind, target, and the fault's own stream of random numbers.

mod network;
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
use tokio::task::JoinSet;

use super::fleet::is_lasting;
use super::log::Fault;
use super::plan::{between, millis};
use super::stage::Stage;
use crate::Error;
use units::Thing;
pub(super) use units::{Kind, chosen, impossible, list};

const SHORTEST_GAP: Duration = Duration::from_millis(300);
/// At most so many fail-overs in a run, and doublings of the lanes.
const FAIL_OVERS: u32 = 20;
const SPLITS: u32 = 3;

/// One drawing of a kind.
pub(super) struct Hit {
    kind: Kind,
    /// Whom it hits, where there is a choice.
    target: usize,
    pub(super) random: StdRng,
}

impl Hit {
    fn begin(&self, stage: &Stage, target: &str, pid: Option<u32>) -> Fault {
        stage.log.begin(self.kind.name, target, pid)
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

/// Draws until it is told to stop, and returns when the last one is over.
pub(super) async fn conduct(stage: Arc<Stage>, mut calm: watch::Receiver<bool>) {
    let mut random = stage.plan.random("faults", 0);
    let (busy, mut under_way) = (Arc::<Mutex<HashSet<(Thing, usize)>>>::default(), JoinSet::new());
    let (mut fail_overs, mut splits) = (0, 0);
    let total: u32 = stage.plan.kinds.iter().map(|kind| kind.weight).sum();
    loop {
        let gap = between(&mut random, SHORTEST_GAP, stage.plan.gap);
        if tokio::time::timeout(gap, calm.wait_for(|calm| *calm)).await.is_ok() {
            break;
        }
        let mut at = random.random_range(0..total.max(1));
        let replicas = stage.fleet.posts.len();
        let mut target = random.random_range(0..replicas.max(1));
        let own = StdRng::seed_from_u64(random.random());
        let drawn = stage.plan.kinds.iter().find(|kind| at.checked_sub(kind.weight).map(|left| at = left).is_none());
        let Some(kind) = drawn.copied() else { continue };
        if impossible(kind, &stage).is_some() {
            continue;
        }
        if matches!(kind.name, "kill" | "clean_stop") && is_lasting(target, replicas) {
            target = random.random_range(1..replicas);
        }
        fail_overs += u32::from(kind.name.starts_with("fail_over"));
        splits += u32::from(kind.name == "split");
        let enough = (kind.name.starts_with("fail_over") && fail_overs > FAIL_OVERS)
            || (kind.name == "split" && splits > SPLITS);
        let Some(taken) = take(&busy, kind, target, replicas).filter(|_| !enough) else {
            stage.log.not_then(kind.name);
            continue;
        };
        let stage = Arc::clone(&stage);
        under_way.spawn(async move {
            let mut hit = Hit { kind, target, random: own };
            match carry_out(&stage, &mut hit).await {
                Ok(true) => {}
                Ok(false) => stage.log.not_then(kind.name),
                Err(error) => stage.log.failed(kind.name, error.to_string()),
            }
            drop(taken);
        });
        while under_way.try_join_next().is_some() {}
    }
    while under_way.join_next().await.is_some() {}
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

fn take(busy: &Busy, kind: Kind, target: usize, replicas: usize) -> Option<Taken> {
    let things: Vec<(Thing, usize)> = kind
        .needs
        .iter()
        .flat_map(|thing| match thing {
            Thing::Process | Thing::Way | Thing::SinkWay | Thing::Clock => vec![(*thing, target)],
            Thing::Fleet => (0..replicas).map(|nth| (Thing::Process, nth)).collect(),
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

/// False: something else was in its way.
async fn carry_out(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    match hit.kind.name {
        "kill" => replicas::kill(stage, hit).await,
        "stop_short" => replicas::stop(stage, hit, false).await,
        "stop_long" => replicas::stop(stage, hit, true).await,
        "clean_stop" => replicas::clean_stop(stage, hit).await,
        "reconfigure" => replicas::reconfigure(stage, hit).await,
        "rolling_restart" => replicas::rolling_restart(stage, hit).await,
        "replica_clock" => replicas::clock(stage, hit).await,
        "cut" | "stall" | "black_hole" | "refuse" => network::outbox(stage, hit).await,
        "sink_cut" | "sink_hangs" => network::sink(stage, hit).await,
        "terminate" => server::backends(stage, hit, "pg_terminate_backend").await,
        "cancel" => server::backends(stage, hit, "pg_cancel_backend").await,
        "restart_fast" => server::restart(stage, hit, false).await,
        "restart_immediate" => server::restart(stage, hit, true).await,
        "fail_over_sync" => server::fail_over(stage, hit, true).await,
        "fail_over_async" => server::fail_over(stage, hit, false).await,
        "slots" => server::slots(stage, hit).await,
        "disk_full" => server::disk_full(stage, hit).await,
        "server_clock" => server::clock(stage, hit).await,
        "snapshot" => server::snapshot(stage, hit).await,
        "split" => server::split(stage, hit).await,
        "sink_outage" => sink::outage(stage, hit).await,
        "sink_slow" => sink::slow(stage, hit).await,
        "sink_fails" => sink::fails(stage, hit).await,
        other => Err(Error::new(format!("nobody carries out {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Kind {
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
    }
}
