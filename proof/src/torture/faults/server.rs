//! What happens to the outbox's server.

use std::time::Duration;

use checker::history::Event;
use rand::RngExt;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::replicas::{CLOCK_LEAST, jump};
use super::{Hit, undo};
use crate::Error;
use crate::servers::Cluster;
use crate::torture::pair::{FailedOver, Pair};
use crate::torture::primary::{UNDO_WITHIN, again, within};
use crate::torture::stage::Stage;

/// How long replicas are waited for that have to find the new primary.
const MOVED_WITHIN: Duration = Duration::from_secs(20);
/// How long the log is written to until its disk is full.
const FILL_WITHIN: Duration = Duration::from_secs(10);

/// Once, or again and again for a while. False if there was no backend to hit.
pub(super) async fn backends(stage: &Stage, hit: &mut Hit, verb: &str) -> Result<bool, Error> {
    let all = hit.random.random_bool(0.3);
    let fault = hit.begin(stage, if all { "all backends" } else { "the relay's backends" }, None);
    let times = if hit.random.random_bool(0.4) { hit.random.random_range(2..30) } else { 1 };
    let mut done = Ok(0);
    for _ in 0..times {
        // The superuser who asks is not among them; the server may be busy all the same.
        done = match (done, stage.primary.to_backends(verb, all).await) {
            (Ok(before), Ok(now)) => Ok(before + now),
            (Err(_), Ok(now)) => Ok(now),
            (Ok(0), Err(error)) => Err(error),
            (done, Err(_)) => done,
        };
        stage.hold(hit.millis(10, 200)).await;
    }
    fault.end();
    done.map(|hit| hit > 0)
}

pub(super) async fn restart(stage: &Stage, hit: &mut Hit, immediate: bool) -> Result<bool, Error> {
    let away = if hit.random.random_bool(0.5) { Duration::ZERO } else { hit.about_a_lease() };
    let mut pair = stage.pair.lock().await;
    let fault = hit.begin(stage, "primary", pair.primary.pid());
    let stopped = if immediate { pair.primary.stop_immediate().await } else { pair.primary.stop_fast().await };
    stage.hold(away).await;
    undo(stage, hit, pair.see_that_it_runs()).await;
    fault.end();
    stopped.map(|()| true)
}

/// How the primary and its standby change places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailOver {
    /// Nothing that was confirmed is lost.
    Synchronous,
    /// What was committed since the standby was cut off is lost.
    Asynchronous,
    /// Nothing is lost, and the old primary comes back for a while.
    Wakes,
}

pub(super) async fn fail_over(stage: &Stage, hit: &mut Hit, how: FailOver) -> Result<bool, Error> {
    let mut pair = stage.pair.lock().await;
    if !pair.has_standby().await? {
        return Ok(false);
    }
    let fault = hit.begin(stage, "primary", pair.primary.pid());
    let done = change_places(stage, hit, &mut pair, how).await;
    undo(stage, hit, pair.see_that_it_runs()).await;
    undo(stage, hit, pair.wait_for_nobody()).await;
    fault.end();
    // If this fails, the next fail-over makes one.
    let rebuilt = pair.rebuild().await;
    done.and(rebuilt).map(|()| true)
}

async fn change_places(stage: &Stage, hit: &mut Hit, pair: &mut Pair, how: FailOver) -> Result<(), Error> {
    let safe = if how == FailOver::Asynchronous {
        Some(pair.cut_off().await?)
    } else {
        pair.make_synchronous().await?;
        None
    };
    stage.hold(hit.millis(300, 4_000)).await;
    let after = if hit.random.random_bool(0.6) { hit.millis(0, 300) } else { hit.millis(300, 5_000) };
    // Who starts now may meet the old primary first, and has nothing to tell it by.
    stage.fleet.let_start(how != FailOver::Wakes);
    let done = pair.fail_over(after).await;
    let woken = match done {
        Ok((FailedOver { from, to, timeline }, mut old)) => {
            stage.log.book.tell(Event::FailedOver { from, to, timeline, safe });
            let woken = if how == FailOver::Wakes { wake(stage, hit, pair, &mut old).await } else { Ok(()) };
            pair.bury(old).await;
            woken
        }
        Err(error) => Err(error),
    };
    stage.fleet.let_start(true);
    woken
}

/// The old primary comes back, takes writes, and is where replicas look for the outbox, too. All of them have met the new one:
/// none may write to the old one.
async fn wake(stage: &Stage, hit: &mut Hit, pair: &Pair, old: &mut Cluster) -> Result<(), Error> {
    if !all_have_moved(stage, pair).await? {
        stage.log.effect("fail_over_wakes woke nobody: a replica did not come to the new primary in time");
        return Ok(());
    }
    old.start_again().await?;
    // It waits for no standby, or no write would ever be seen.
    let admin = old.admin("postgres").await?;
    within(admin.batch_execute("alter system reset synchronous_standby_names")).await?;
    within(admin.batch_execute("select pg_reload_conf()")).await?;
    let before = pair.written_by_replicas(old).await?;
    stage.hold(hit.millis(500, 8_000)).await;
    let after = pair.written_by_replicas(old).await?;
    if before != after {
        stage.log.find(format!("a replica wrote to an old primary that came back: {before} became {after}"));
    }
    stage.log.effect("fail_over_wakes brought an old primary back");
    old.stop_immediate().await
}

/// Waits until each replica that has a process has renewed its lease at the new primary. False if that takes long: it may stand
/// still at a fail point.
async fn all_have_moved(stage: &Stage, pair: &Pair) -> Result<bool, Error> {
    let deadline = Instant::now() + MOVED_WITHIN;
    let renewed = async |names: &[String]| -> Result<Vec<String>, Error> {
        let admin = pair.primary.admin(&stage.primary.database).await?;
        let sql = "select coalesce((select string_agg(concat(id, ' ', beat), ', ' order by id) from pgbaton.replica r
                                    where r.name = n), '') from unnest($1::text[]) n";
        let rows = within(admin.query(sql, &[&names])).await?;
        let beats: Result<_, _> = rows.iter().map(|row| row.try_get(0)).collect();
        beats.map_err(|cause| Error::because("reading renewals", &cause))
    };
    let names = stage.fleet.present().await;
    let before = renewed(&names).await?;
    while Instant::now() < deadline && !stage.is_calm() {
        let (now, present) = (renewed(&names).await?, stage.fleet.present().await);
        let moved = |nth: usize, name: &String| now.get(nth) != before.get(nth) || !present.contains(name);
        if names.iter().enumerate().all(|(nth, name)| moved(nth, name)) {
            return Ok(true);
        }
        stage.hold(Duration::from_millis(100)).await;
    }
    Ok(false)
}

/// The relay's connections are ended, so that it has to compete for places.
pub(super) async fn slots(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let _pair = stage.pair.lock().await;
    let fault = hit.begin(stage, "primary", None);
    let deadline = Instant::now() + hit.millis(500, 6_000);
    let mut others: Vec<Client> = Vec::new();
    let mut done = Ok(());
    while Instant::now() < deadline && !stage.is_calm() {
        done = stage.primary.to_backends("pg_terminate_backend", false).await.map(drop);
        if done.is_err() {
            break;
        }
        while let Ok(client) = stage.primary.producer().await {
            others.push(client);
        }
        stage.hold(Duration::from_millis(300)).await;
    }
    let taken = !others.is_empty();
    drop(others);
    fault.end();
    done.map(|()| taken)
}

/// Tables cannot grow, and in one of three cases neither can the log: then the server gives up.
pub(super) async fn disk_full(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let mut pair = stage.pair.lock().await;
    let (log_too, length) = (hit.random.random_bool(0.33), hit.millis(500, 5_000));
    let Some(disk) = pair.disk() else { return Ok(false) };
    let fault = hit.begin(stage, "primary", pair.primary.pid());
    let filled = disk.fill();
    if filled.is_ok() {
        if log_too && fill_the_log(stage).await {
            stage.log.effect("disk_full crashed the server");
        }
        stage.hold(length).await;
    }
    undo(stage, hit, again(UNDO_WITHIN, || async { pair.free() })).await;
    undo(stage, hit, pair.see_that_it_runs()).await;
    fault.end();
    filled.map(|()| true)
}

/// Writes to the log, and has the server go on to its next file, until that does not exist any more and cannot be made. True if
/// the server has crashed by that: nobody else ends connections meanwhile.
async fn fill_the_log(stage: &Stage) -> bool {
    let deadline = Instant::now() + FILL_WITHIN;
    let mut connected = None;
    while Instant::now() < deadline && !stage.is_calm() {
        if connected.is_none() {
            connected = stage.primary.admin().await.ok();
        }
        if let Some(admin) = &connected {
            // Each by itself: what fails does not take the next one along.
            for sql in ["select pg_logical_emit_message(true, '', repeat('x', 1000000))", "select pg_switch_wal()"] {
                let _ = within(admin.batch_execute(sql)).await;
            }
            if admin.is_closed() {
                return true;
            }
        }
        stage.hold(Duration::from_millis(20)).await;
    }
    false
}

pub(super) async fn clock(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    // The clock stays the same over fail-overs.
    let set = async |offset: &str| match &stage.pair.lock().await.clock {
        Some(clock) => clock.set(offset),
        None => Ok(()),
    };
    let fault = hit.begin(stage, "primary", None);
    let jumped = set(jump(hit)).await;
    if jumped.is_ok() {
        stage.hold(hit.millis(CLOCK_LEAST, 20_000)).await;
    }
    // Whoever has the servers may keep them for long.
    undo(stage, hit, async { set("+0").await }).await;
    fault.end();
    jumped.map(|()| true)
}

/// Nothing dead can be removed meanwhile. It is over when its connection is, too: what it says of itself is how long it was
/// really held.
pub(super) async fn snapshot(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let most = u64::try_from(stage.plan.open_for.as_millis()).unwrap_or(u64::MAX);
    let length = hit.millis(most / 4, most);
    let admin = stage.primary.admin().await?;
    within(admin.batch_execute("begin isolation level repeatable read; select count(*) from pgbaton.lane")).await?;
    let fault = hit.begin(stage, "primary", None);
    let deadline = Instant::now() + length;
    while Instant::now() < deadline && !stage.is_calm() && !admin.is_closed() {
        stage.hold(Duration::from_millis(200)).await;
    }
    let ended = within(admin.batch_execute("commit")).await;
    fault.end();
    if admin.is_closed() {
        stage.log.effect("snapshot was cut short");
        return Ok(true);
    }
    ended.map(|()| true)
}

pub(super) async fn split(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let database = stage.primary.operator(Duration::from_secs(5))?;
    let fault = hit.begin(stage, "lanes", None);
    // Refused while the last one is not over.
    let split = pgbaton::control::relays::split(&database, "orders").await;
    if split.is_ok() {
        let _ = pgbaton::control::relays::wait_for_split(&database, "orders", Duration::from_secs(20)).await;
    }
    fault.end();
    Ok(split.is_ok())
}
