//! What happens to the outbox's server.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use checker::history::{Deed, Event};
use pgbaton::control::relays;
use rand::RngExt;
use tokio::time::Instant;
use tokio_postgres::Client;

use super::replicas::{CLOCK_LEAST, jump};
use super::{Hit, in_force, undo};
use crate::Error;
use crate::servers::Cluster;
use crate::torture::log::Fault;
use crate::torture::outbox::{NAME, Pick};
use crate::torture::pair::{FailedOver, Pair};
use crate::torture::plan::TTL_MS;
use crate::torture::primary::{UNDO_WITHIN, again, within};
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

/// How long replicas are waited for that have to find the new primary.
const MOVED_WITHIN: Duration = Duration::from_secs(20);
/// Within how long all owners are to have split their lanes.
const SPLIT_WITHIN: Duration = Duration::from_secs(60);
/// What a server says that has no place for another connection.
const NO_SLOT: [&str; 2] = ["too many clients", "remaining connection slots"];
/// Between two looks at where replicas are.
const LOOK_EVERY: Duration = Duration::from_millis(100);
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
    done.and_then(|done| rebuilt.map(|()| done))
}

/// False if the old primary was to come back, and nobody met it.
async fn change_places(stage: &Stage, hit: &mut Hit, pair: &mut Pair, how: FailOver) -> Result<bool, Error> {
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
    let done = async {
        let (FailedOver { from, to, timeline }, mut old) = pair.fail_over(after).await?;
        stage.log.book.tell(Event::FailedOver { from, to, timeline, safe });
        hit.spent = true;
        let woken = if how == FailOver::Wakes { wake(stage, hit, pair, &mut old).await } else { Ok(true) };
        pair.bury(old).await;
        woken
    };
    let done = done.await;
    stage.fleet.let_start(true);
    done
}

/// The old primary comes back, takes writes, and is where replicas look for the outbox, too. All of them have met the new one:
/// none may write to the old one. False if that was not to be seen.
async fn wake(stage: &Stage, hit: &mut Hit, pair: &Pair, old: &mut Cluster) -> Result<bool, Error> {
    if !all_have_moved(stage, pair).await? {
        stage.log.effect("fail_over_wakes woke nobody: a replica did not come to the new primary in time");
        return Ok(false);
    }
    let met = meet(stage, hit, pair, old).await;
    for post in &stage.fleet.posts {
        undo(stage, hit, again(UNDO_WITHIN, || post.ways.heal())).await;
    }
    if met? {
        stage.log.effect("fail_over_wakes brought an old primary back");
        return Ok(true);
    }
    stage.log.effect("fail_over_wakes: nobody tried the old primary");
    Ok(false)
}

/// Nobody is let through to the old primary before it is known what stands in it. Then the doors to the new one are closed for
/// a while: who has lost its connections finds only the old one. False if nobody has tried it.
async fn meet(stage: &Stage, hit: &mut Hit, pair: &Pair, old: &mut Cluster) -> Result<bool, Error> {
    let (old_side, new_side) = (1 - pair.on(), pair.on());
    let ways = || stage.fleet.posts.iter().map(|post| &post.ways);
    let reached = || ways().map(|doors| doors.side(old_side).reached()).sum::<usize>();
    for doors in ways() {
        hurt(doors.side(old_side), Trouble::Refuse).await?;
    }
    old.start_again().await?;
    // Or no write would ever be seen.
    old.wait_for_standby(false).await?;
    let (written, reached_before) = (pair.written_by_replicas(old).await?, reached());
    for doors in ways() {
        doors.side(old_side).heal().await?;
        hurt(doors.side(new_side), Trouble::Refuse).await?;
    }
    stage.hold(hit.millis(1_000, 4_000)).await;
    for doors in ways() {
        doors.side(new_side).heal().await?;
    }
    stage.hold(hit.millis(500, 4_000)).await;
    let written_then = pair.written_by_replicas(old).await?;
    if written != written_then {
        stage.log.find(format!("a replica wrote to an old primary that came back: {written} became {written_then}"));
    }
    old.stop_immediate().await?;
    Ok(reached() > reached_before)
}

/// Waits until each replica that has a process knows of the new primary. False if that takes long: it may stand still at a fail
/// point.
async fn all_have_moved(stage: &Stage, pair: &Pair) -> Result<bool, Error> {
    let deadline = Instant::now() + MOVED_WITHIN;
    let goes_on = || Instant::now() < deadline && !stage.is_calm();
    // Who reads its configuration again forgets what it knew.
    while stage.fleet.reloads().await && goes_on() {
        stage.hold(LOOK_EVERY).await;
    }
    let mut seen = HashMap::new();
    while goes_on() {
        let moved = renewed_twice(stage, pair, &mut seen).await?;
        if stage.fleet.present().await.iter().all(|name| moved.contains(name)) {
            return Ok(true);
        }
        stage.hold(LOOK_EVERY).await;
    }
    Ok(false)
}

/// The replicas that have renewed a lease at the new primary twice since these beats were first seen. Nobody does before it has
/// the answer to the first one, by which it knows where it is.
async fn renewed_twice(stage: &Stage, pair: &Pair, seen: &mut HashMap<String, i64>) -> Result<HashSet<String>, Error> {
    let admin = pair.primary.admin(&stage.primary.database).await?;
    let rows = within(admin.query("select name, id::text, beat from pgbaton.replica", &[])).await?;
    let failed = |cause| Error::because("reading renewals", &cause);
    let mut renewed = HashSet::new();
    for row in rows {
        let beat: i64 = row.try_get(2).map_err(failed)?;
        if beat >= *seen.entry(row.try_get(1).map_err(failed)?).or_insert(beat) + 2 {
            renewed.insert(row.try_get(0).map_err(failed)?);
        }
    }
    Ok(renewed)
}

/// The relay's connections are ended, so that it has to compete for places. False if there was always one left.
pub(super) async fn slots(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let _pair = stage.pair.lock().await;
    let fault = hit.begin(stage, "primary", None);
    let deadline = Instant::now() + hit.millis(500, 6_000);
    let (mut others, mut all_taken, mut done): (Vec<Client>, _, _) = (Vec::new(), false, Ok(()));
    while Instant::now() < deadline && !stage.is_calm() {
        done = stage.primary.to_backends("pg_terminate_backend", false).await.map(drop);
        if done.is_err() {
            break;
        }
        let refused = loop {
            match stage.primary.producer().await {
                Ok(client) => others.push(client),
                Err(error) => break error.to_string(),
            }
        };
        all_taken |= NO_SLOT.iter().any(|said| refused.contains(said));
        stage.hold(Duration::from_millis(300)).await;
    }
    drop(others);
    fault.end();
    if all_taken { Ok(true) } else { done.map(|()| false) }
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
    let (offset, length) = (jump(hit), hit.millis(CLOCK_LEAST, 20_000));
    // Whoever has the servers may keep them for long.
    in_force(stage, hit, ("primary", None), length, set(offset), set("+0")).await
}

/// Nothing dead can be removed meanwhile. It is over when its connection is, too: then it was cut short, and does not count.
pub(super) async fn snapshot(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let most = u64::try_from(stage.plan.open_for.as_millis()).unwrap_or(u64::MAX);
    let length = hit.millis(most / 4, most);
    let admin = stage.primary.admin().await?;
    within(admin.batch_execute("begin isolation level repeatable read; select count(*) from pgbaton.lane")).await?;
    let fault = hit.begin(stage, "primary", None);
    keep_open(stage, &admin, fault, length, "snapshot was cut short").await
}

/// Keeps a transaction open for so long, and ends it and the fault. False if the connection was over before.
async fn keep_open(
    stage: &Stage,
    admin: &Client,
    fault: Fault,
    length: Duration,
    cut_short: &'static str,
) -> Result<bool, Error> {
    let deadline = Instant::now() + length;
    while Instant::now() < deadline && !stage.is_calm() && !admin.is_closed() {
        stage.hold(Duration::from_millis(200)).await;
    }
    let ended = within(admin.batch_execute("commit")).await;
    fault.end();
    if admin.is_closed() {
        stage.log.effect(cut_short);
        return Ok(false);
    }
    ended.map(|()| true)
}

/// Those in front, which are in flight. What was delivered of them cannot be marked meanwhile. False if none is pending, or if the
/// connection was over before.
pub(super) async fn rows_locked(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let length = hit.millis(TTL_MS + TTL_MS / 4, TTL_MS * 4);
    let rows = hit.random.random_range(1..=200);
    let pick = Pick { deed: Deed::Locked, skip: 0, rows, key: None, size: 0 };
    let admin = stage.primary.admin().await?;
    within(admin.batch_execute("begin; set local lock_timeout = '5s'")).await?;
    let fault = hit.begin(stage, "pending rows", None);
    let locked = within(admin.query(&stage.plan.source.meddle(&pick, 0), &[])).await;
    let any = locked.as_ref().is_ok_and(|rows| !rows.is_empty());
    let length = if any { length } else { Duration::ZERO };
    match keep_open(stage, &admin, fault, length, "rows_locked was cut short").await {
        Ok(false) => Ok(false),
        ended => locked.and(ended).map(|_| any),
    }
}

/// False if it is refused, as long as the last one is not over, or was not over itself in this time: it goes on all the same.
pub(super) async fn split(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let database = stage.primary.operator(Duration::from_secs(5))?;
    let fault = hit.begin(stage, "lanes", None);
    match relays::split(&database, NAME).await {
        Ok(_) => hit.spent = true,
        Err(error) if error.code() == "refused" => return Ok(false),
        Err(error) => return Err(Error::because("splitting the lanes", &error)),
    }
    let deadline = Instant::now() + SPLIT_WITHIN;
    let done = loop {
        // The primary may be another one by now, and away for a while.
        let database = stage.primary.operator(Duration::from_secs(5))?;
        match relays::wait_for_split(&database, NAME, Duration::from_secs(2)).await {
            Ok(true) => break Ok(true),
            Ok(false) | Err(_) if Instant::now() < deadline && !stage.is_calm() => stage.hold(LOOK_EVERY).await,
            ended => break ended.map_err(|error| Error::because("waiting for the lanes to be split", &error)),
        }
    };
    fault.end();
    done
}
