//! What the relay makes the server write: per message in a drain, and its bookkeeping while it is idle and at 600
//! messages a second.
//!
//! The relay's share is the WAL of a run with it less the WAL of a run of the same length without it. A run without it
//! has what the server writes by itself (a record of running transactions every 15 s) and what the writers write.
//! A checkpoint comes before each run, so each run has the page images of the pages that it touches first: a handful
//! of the relay's, all of them small tables. Leaves of the outbox have none, since nothing writes to them.

use std::time::Duration;

use super::covered::Last;
use super::drain::{DISCARD, drain};
use super::figures::{Figures, Goal, count, median, rate};
use super::site::{Site, end, shared_out};
use super::writers::Writers;
use super::{Args, messages};
use crate::Error;

/// Dead rows of the outbox's leaves, by the statistics and by the rows themselves.
const DEAD: &str = "
select (select sum(n_dead_tup + n_tup_upd + n_tup_del) from pg_stat_all_tables
        where schemaname = 'pgbaton' and relname like 'outbox%')::float8
     + (select count(*) from pgbaton.outbox where xmax <> '0')::float8";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let waiting = args.messages(1_000_000, 20_000);
    figures.doing(&format!("wal: a drain of {waiting} messages"));
    messages::write(&site, waiting).await?;
    drains(args, figures, &site).await?;

    let length = args.seconds(20);
    figures.doing(&format!("wal: four runs of {length:?}: idle and with writers, each without and with the relay"));
    site.execute("truncate pgbaton.outbox").await?;
    let writers = Writers::connect(&site).await?;
    let alone = Run::of(&site, None, length, &writers).await?;
    let written = Run::of(&site, Some(&writers), length, &writers).await?;
    let replica = site.start("wal", "wal", DISCARD, "")?;
    shared_out(&site, "wal", 1).await?;
    let idle = Run::of(&site, None, length, &writers).await?;
    let relayed = Run::of(&site, Some(&writers), length, &writers).await?;
    end(replica).await?;
    let second = |bytes: f64| rate(bytes, length);
    figures.add("wal_server_alone_bytes_per_second", second(alone.wal), "B/s, no relay, no writer");
    figures.add("wal_idle_bytes_per_second", second(idle.wal - alone.wal), "B/s of an idle relay");
    figures.add("wal_idle_positions_per_second", second(idle.positions), "rows/s");
    figures.add("wal_idle_renewals_per_second", second(idle.renewals), "row versions/s");
    figures.add("wal_600_writers_bytes_per_message", written.wal / written.messages.max(1.0), "B of the writers");
    let relay = relayed.wal - written.wal * relayed.messages / written.messages.max(1.0);
    figures.add("wal_600_bytes_per_second", second(relay), "B/s of the relay at 600 messages/s");
    figures.add("wal_600_bytes_per_message", relay / relayed.messages.max(1.0), "B of the relay at 600 messages/s");
    figures.add("wal_600_positions_per_second", second(relayed.positions), "rows/s");
    let dead = site.value::<f64>(DEAD).await?;
    figures.judge("wal_600_dead_tuples", dead, "dead rows in the outbox's leaves", Goal::AtMost(0.0));
    Ok(())
}

async fn drains(args: &Args, figures: &mut Figures, site: &Site) -> Result<(), Error> {
    let last = Last::find(&site.admin).await?;
    let size = "select sum(pg_total_relation_size(relid))::float8 from pg_partition_tree('pgbaton.outbox')";
    let before: f64 = site.value(size).await?;
    let (mut bytes, mut rows) = (Vec::new(), Vec::new());
    for round in 0..args.rounds(3) {
        let relay = format!("drain{round}");
        site.execute("checkpoint").await?;
        let drained = drain(site, &relay, &last, 1).await?;
        let count = format!("select count(*)::float8 from pgbaton.position where relay = '{relay}' and seq > 0");
        rows.push(site.value::<f64>(&count).await? * 1e6 / drained.messages);
        site.execute("checkpoint").await?;
        let wal = site.wal().await?;
        tokio::time::sleep(drained.took).await; // the same length without the relay
        bytes.push((drained.wal - (site.wal().await? - wal)) / drained.messages);
    }
    figures.judge("wal_bytes_per_message", median(&bytes), "B in a drain", Goal::AtMost(5.0));
    figures.add("wal_positions_per_million_messages", median(&rows), "rows in a drain");
    let dead = site.value::<f64>(DEAD).await? / f64::from(i32::try_from(last.messages).unwrap_or(i32::MAX));
    figures.judge("dead_tuples_per_message", dead, "in the outbox's leaves", Goal::AtMost(0.0));
    let grown = site.value::<f64>(size).await? - before;
    figures.judge("outbox_growth_bytes", grown, "B that the outbox grew by in the drains", Goal::AtMost(0.0));
    Ok(())
}

/// What was written in one run.
struct Run {
    wal: f64,
    messages: f64,
    positions: f64,
    renewals: f64,
}

impl Run {
    /// `busy` writes, or nobody does. The connections are there in either case.
    async fn of(site: &Site, busy: Option<&Writers>, length: Duration, _idle: &Writers) -> Result<Run, Error> {
        let counts = "select array[(select count(*) from pgbaton.position), coalesce((select sum(beat) from pgbaton.replica), 0)]::float8[]";
        site.execute("checkpoint").await?;
        let (wal, before) = (site.wal().await?, site.value::<Vec<f64>>(counts).await?);
        let sent = match busy {
            Some(writers) => writers.write(length).await?.len(),
            None => {
                tokio::time::sleep(length).await;
                0
            }
        };
        let after = site.value::<Vec<f64>>(counts).await?;
        let mut grown = after.iter().zip(before).map(|(after, before)| after - before);
        let (positions, renewals) = (grown.next().unwrap_or_default(), grown.next().unwrap_or_default());
        Ok(Run { wal: site.wal().await? - wal, messages: count(sent), positions, renewals })
    }
}
