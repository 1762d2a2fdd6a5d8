//! How late messages are: from the answer to the writer's commit to their row in the inbox of a `postgres` sink, at 600
//! messages a second in an open loop. Writers, servers and relay read one clock.

use std::collections::HashMap;
use std::time::Duration;

use super::Args;
use super::figures::{Figures, Goal, count, percentile};
use super::site::{Site, end, poll, shared_out};
use super::writers::{Sent, Writers};
use crate::Error;

const INBOX: &str = "app.inbox";

/// Until caches are warm and every plan has been made.
const WARM_UP: Duration = Duration::from_secs(2);

/// All in microseconds since 1970. Commit times are when the commit record was written: the disk comes after that.
const ARRIVED: &str = "
select i.message_id, extract(epoch from i.received_at)::float8 * 1e6 as received,
       extract(epoch from i.created_at)::float8 * 1e6 as created,
       extract(epoch from pg_xact_commit_timestamp(i.xmin))::float8 * 1e6 as stored
from app.inbox i";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    for replicas in [1, 3] {
        let site = Site::open(args).await?;
        figures.doing(&format!("latency: {replicas} replica(s)"));
        site.fixture.inbox(INBOX).await?;
        let sink = site.fixture.inbox_sink(INBOX);
        let mut processes = Vec::new();
        for number in 1..=replicas {
            processes.push(site.start(&format!("late-{number}"), "late", &sink, "")?);
        }
        shared_out(&site, "late", replicas).await?;
        let writers = Writers::connect(&site).await?;
        let warm = writers.write(WARM_UP.min(args.seconds(2))).await?.len();
        let sent = writers.write(args.seconds(20)).await?;
        let all = i64::try_from(warm + sent.len()).unwrap_or(i64::MAX);
        poll(|| async { Ok(site.value::<i64>("select count(*) from app.inbox").await? >= all) }).await?;
        for process in processes {
            end(process).await?;
        }
        report(figures, &site, &sent, if replicas == 1 { "latency" } else { "latency_three" }).await?;
    }
    Ok(())
}

async fn report(figures: &mut Figures, site: &Site, sent: &[Sent], name: &str) -> Result<(), Error> {
    let rows = site.admin.query(ARRIVED, &[]).await.map_err(|cause| Error::because("reading the inbox", &cause))?;
    let arrived: HashMap<&str, [f64; 3]> =
        rows.iter().map(|row| (row.get(0), [row.get(1), row.get(2), row.get(3)])).collect();
    let (mut received, mut from_insert, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for Sent { message, committed } in sent {
        let Some([at, created, kept]) = arrived.get(message.as_str()) else {
            return Err(Error::new(format!("message {message} did not arrive")));
        };
        received.push((at - committed) / 1e3);
        from_insert.push((at - created) / 1e3);
        stored.push((kept - committed) / 1e3);
    }
    let late = |values: &[f64], most: f64| count(values.iter().filter(|value| **value > most).count());
    figures.judge(&format!("{name}_p50_ms"), percentile(&received, 0.5), "ms commit to inbox", Goal::AtMost(5.0));
    figures.judge(&format!("{name}_p99_ms"), percentile(&received, 0.99), "ms commit to inbox", Goal::AtMost(25.0));
    figures.add(&format!("{name}_max_ms"), percentile(&received, 1.0), "ms commit to inbox");
    figures.add(&format!("{name}_later_than_25_ms"), late(&received, 25.0), "messages");
    figures.add(&format!("{name}_stored_p50_ms"), percentile(&stored, 0.5), "ms commit to the inbox's own commit");
    figures.add(&format!("{name}_stored_p99_ms"), percentile(&stored, 0.99), "ms commit to the inbox's own commit");
    figures.add(&format!("{name}_from_insert_p50_ms"), percentile(&from_insert, 0.5), "ms insert to inbox");
    figures.add(&format!("{name}_from_insert_p99_ms"), percentile(&from_insert, 0.99), "ms insert to inbox");
    Ok(())
}
