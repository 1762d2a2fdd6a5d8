//! How long a producer is held up by the relay while segments are emptied one after the other: inserts at a steady pace, some
//! transactions that stay open for seconds, a report that reads the outbox now and then, and segments of a minute.
//!
//! What the relay causes is a wait for a lock, and the server's log tells every one of them, whatever else the machine
//! does. Inserts into a table of its own, by the same means, show what comes from elsewhere.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::Args;
use super::figures::{Figures, Goal, count, percentile};
use super::site::{Site, end, shared_out};
use crate::Error;

/// Inserts a second of each writer.
const PACE: Duration = Duration::from_micros(6_667);
const WRITERS: usize = 4;

const INSERT: &str = "select pgbaton.send('stall', '{\"a\":1}'::json, key => 'k' || (random() * 1000)::int)";
const CONTROL: &str = "insert into app.control (payload) values ('{\"a\":1}')";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let seconds = if args.quick { 1 } else { 60 };
    let site = Site::open(args).await?;
    figures.doing(&format!("stall: segments of {seconds} s"));
    site.execute("create schema app; create table app.control (id bigint generated always as identity, payload json)")
        .await?;
    site.execute(&format!("select pgbaton.set_ring(8, {seconds}, '0')")).await?;
    site.execute("alter system set deadlock_timeout = '1ms'").await?;
    site.execute("alter system set log_lock_waits = on").await?;
    site.execute("select pg_reload_conf()").await?;
    let replica = site.start("stall", "stall", "{ type = \"discard\" }", "")?;
    shared_out(&site, "stall", 1).await?;

    let until = Instant::now() + args.seconds(3_600);
    let mut inserting = JoinSet::new();
    for _ in 0..WRITERS {
        inserting.spawn(insert(site.fixture.admin().await?, INSERT, until));
    }
    let control = tokio::spawn(insert(site.fixture.admin().await?, CONTROL, until));
    let open = tokio::spawn(stay_open(site.fixture.admin().await?, INSERT, until));
    let report = tokio::spawn(stay_open(site.fixture.admin().await?, "select count(*) from pgbaton.outbox", until));
    let mut took = Vec::new();
    while let Some(times) = inserting.join_next().await {
        took.extend(times.map_err(|error| panicked(&error))??);
    }
    let control = control.await.map_err(|error| panicked(&error))??;
    open.await.map_err(|error| panicked(&error))??;
    report.await.map_err(|error| panicked(&error))??;
    let emptied = replica.lines_with("segment emptied").len();
    end(replica).await?;

    let waits = lock_waits(&site).await?;
    let longest = waits.iter().copied().fold(0.0, f64::max);
    figures.add("stall_segments_emptied", count(emptied), "segments");
    figures.add("stall_inserts", count(took.len()), "inserts");
    figures.add("stall_lock_waits", count(waits.len()), "inserts that waited 1 ms or longer for a lock on the outbox");
    figures.judge("stall_longest_lock_wait_ms", longest, "ms", Goal::AtMost(100.0));
    for (name, times) in [("outbox", &took), ("control", &control)] {
        figures.add(&format!("stall_{name}_p999_ms"), percentile(times, 0.999), "ms an insert");
        figures.add(&format!("stall_{name}_longest_ms"), percentile(times, 1.0), "ms an insert");
    }
    Ok(())
}

fn panicked(error: &tokio::task::JoinError) -> Error {
    Error::because("a writer", error)
}

/// Milliseconds that each statement took, one after the other at a steady pace.
async fn insert(client: Client, sql: &str, until: Instant) -> Result<Vec<f64>, Error> {
    let failed = |cause| Error::because("inserting", &cause);
    let statement = client.prepare(sql).await.map_err(failed)?;
    let mut ticks = tokio::time::interval(PACE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut took = Vec::new();
    while Instant::now() < until {
        ticks.tick().await;
        let began = Instant::now();
        client.execute(&statement, &[]).await.map_err(failed)?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Transactions that do this and stay open for seconds: they hold the segment that they have touched.
async fn stay_open(client: Client, sql: &str, until: Instant) -> Result<(), Error> {
    const OPEN: Duration = Duration::from_secs(3);
    let failed = |cause| Error::because("a long transaction", &cause);
    while Instant::now() + OPEN < until {
        client.batch_execute(&format!("begin; {sql}")).await.map_err(failed)?;
        tokio::time::sleep(OPEN).await;
        client.batch_execute("commit").await.map_err(failed)?;
        tokio::time::sleep(OPEN).await;
    }
    Ok(())
}

/// Milliseconds that inserts waited for a lock on the outbox or one of its segments, by the server's log.
async fn lock_waits(site: &Site) -> Result<Vec<f64>, Error> {
    let outbox: String = site
        .value("select string_agg(oid::text, ' ') from pg_class where relnamespace = 'pgbaton'::regnamespace and relname like 'outbox%'")
        .await?;
    let outbox: Vec<&str> = outbox.split(' ').collect();
    let path = site.server_log();
    let log = std::fs::read_to_string(&path)
        .map_err(|cause| Error::because(format!("reading {}", path.display()), &cause))?;
    Ok(log.lines().filter_map(|line| waited(line, &outbox)).collect())
}

/// From a line such as `process 7 acquired RowExclusiveLock on relation 16500 of database 16384 after 1.5 ms`.
fn waited(line: &str, relations: &[&str]) -> Option<f64> {
    let (_, wait) = line.split_once(" acquired RowExclusiveLock on relation ")?;
    let (relation, _) = wait.split_once(' ')?;
    let (_, after) = wait.rsplit_once(" after ")?;
    relations.contains(&relation).then(|| after.strip_suffix(" ms")?.parse().ok())?
}

#[cfg(test)]
mod tests {
    #[test]
    fn waits_are_read_from_the_servers_log() {
        let line = "2026 [7] LOG:  process 7 acquired RowExclusiveLock on relation 16500 of database 1 after 12.345 ms";
        assert_eq!(super::waited(line, &["1", "16500"]), Some(12.345));
        assert_eq!(super::waited(line, &["1"]), None);
        assert_eq!(super::waited("process 7 still waiting for RowExclusiveLock on relation 16500", &["16500"]), None);
    }
}
