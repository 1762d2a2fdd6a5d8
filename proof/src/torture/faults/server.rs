//! What happens to the outbox's server.

use std::time::Duration;

use checker::history::Event;
use rand::RngExt;
use tokio_postgres::Client;

use super::Hit;
use super::replicas::jump;
use crate::Error;
use crate::torture::pair::FailedOver;
use crate::torture::primary::within;
use crate::torture::stage::Stage;

/// Once, or again and again for a while.
pub(super) async fn backends(stage: &Stage, hit: &mut Hit, verb: &str) -> Result<bool, Error> {
    let all = hit.random.random_bool(0.3);
    let fault = hit.begin(stage, if all { "all backends" } else { "the relay's backends" }, None);
    let times = if hit.random.random_bool(0.4) { hit.random.random_range(2..30) } else { 1 };
    for _ in 0..times {
        // Whoever asks may be among them.
        let _ = stage.primary.to_backends(verb, all).await;
        stage.hold(hit.millis(10, 200)).await;
    }
    fault.end();
    Ok(true)
}

pub(super) async fn restart(stage: &Stage, hit: &mut Hit, immediate: bool) -> Result<bool, Error> {
    let away = if hit.random.random_bool(0.5) { Duration::ZERO } else { hit.about_a_lease() };
    let mut pair = stage.pair.lock().await;
    let fault = hit.begin(stage, "primary", pair.primary.pid());
    let stopped = if immediate { pair.primary.stop_immediate().await } else { pair.primary.stop_fast().await };
    stage.hold(away).await;
    pair.see_that_it_runs().await?;
    fault.end();
    stopped.map(|()| true)
}

/// With a synchronous standby nothing that was confirmed is lost; with an asynchronous one, what was committed since it was
/// cut off.
pub(super) async fn fail_over(stage: &Stage, hit: &mut Hit, synchronous: bool) -> Result<bool, Error> {
    let mut pair = stage.pair.lock().await;
    if !pair.has_standby().await? {
        return Ok(false);
    }
    let fault = hit.begin(stage, "primary", pair.primary.pid());
    let safe = if synchronous {
        pair.make_synchronous().await?;
        None
    } else {
        Some(pair.cut_off().await?)
    };
    stage.hold(hit.millis(300, 4_000)).await;
    let after = if hit.random.random_bool(0.6) { hit.millis(0, 300) } else { hit.millis(300, 5_000) };
    let FailedOver { from, to, timeline } = pair.fail_over(after).await?;
    stage.log.book.tell(Event::FailedOver { from, to, timeline, safe });
    fault.end();
    pair.rebuild().await?;
    Ok(true)
}

/// The relay's connections are ended, so that it has to compete for places.
pub(super) async fn slots(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let _pair = stage.pair.lock().await;
    let fault = hit.begin(stage, "primary", None);
    let deadline = tokio::time::Instant::now() + hit.millis(500, 6_000);
    let mut others: Vec<Client> = Vec::new();
    while tokio::time::Instant::now() < deadline && !stage.is_calm() {
        stage.primary.to_backends("pg_terminate_backend", false).await?;
        while let Ok(client) = stage.primary.producer().await {
            others.push(client);
        }
        stage.hold(Duration::from_millis(300)).await;
    }
    drop(others);
    fault.end();
    Ok(true)
}

/// Tables cannot grow, and in one of three cases neither can the log: then the server gives up.
pub(super) async fn disk_full(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let mut pair = stage.pair.lock().await;
    let (log_too, length) = (hit.random.random_bool(0.33), hit.millis(500, 5_000));
    let Some(disk) = pair.disk() else { return Ok(false) };
    let fault = hit.begin(stage, "primary", pair.primary.pid());
    let filled = disk.fill();
    if filled.is_ok() {
        let deadline = tokio::time::Instant::now() + length;
        while log_too && tokio::time::Instant::now() < deadline {
            let Ok(admin) = stage.primary.admin().await else { break };
            let write = "create table if not exists public.x (); drop table public.x; select pg_switch_wal()";
            if within(admin.batch_execute(write)).await.is_err() && admin.is_closed() {
                break;
            }
        }
        stage.hold(deadline - tokio::time::Instant::now()).await;
    }
    disk.free()?;
    pair.see_that_it_runs().await?;
    fault.end();
    filled.map(|()| true)
}

pub(super) async fn clock(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    // The clock stays the same over fail-overs.
    let set = async |offset: &str| match &stage.pair.lock().await.clock {
        Some(clock) => clock.set(offset),
        None => Ok(()),
    };
    let fault = hit.begin(stage, "primary", None);
    set(jump(hit)).await?;
    stage.hold(hit.millis(1_000, 20_000)).await;
    set("+0").await?;
    fault.end();
    Ok(true)
}

/// Nothing dead can be removed meanwhile.
pub(super) async fn snapshot(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let admin = stage.primary.admin().await?;
    let fault = hit.begin(stage, "primary", None);
    let most = u64::try_from(stage.plan.open_for.as_millis()).unwrap_or(u64::MAX);
    within(admin.batch_execute("begin isolation level repeatable read; select count(*) from pgbaton.lane")).await?;
    stage.hold(hit.millis(most / 4, most)).await;
    // The server may have gone away meanwhile, and the snapshot with it.
    let _ = within(admin.batch_execute("commit")).await;
    fault.end();
    Ok(true)
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
