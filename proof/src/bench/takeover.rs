//! How long the lanes of a replica stand still when it dies or is stopped: from the signal to the first message that a
//! new owner publishes of the last of its lanes. Writers at 600 messages a second keep every lane busy.

use std::time::Duration;

use super::figures::{Figures, Goal, percentile};
use super::site::{Site, end, poll, shared_out};
use super::writers::{Writers, now};
use super::{Args, LANES};
use crate::Error;
use crate::fixture::toml_text;
use crate::process::Process;

const INBOX: &str = "app.inbox";
const RELAY_NAME: &str = "hand";

/// Every lane has a message in this time, at 600 a second over 1,000 keys.
const AFTERWARDS: Duration = Duration::from_secs(2);

/// For each lane of $1 (which `replica` had when the signal was sent): the first message since $2 that another replica
/// published, in milliseconds since the signal. The inbox notes who wrote a row.
const FIRST: &str = "
select coalesce(max(first), -1)::float8, count(*) from (
  select min(extract(epoch from i.received_at) * 1e3) - $2::float8 / 1e3 as first
  from app.inbox i join pgbaton.outbox o on o.message_id = i.message_id::uuid
  where (o.hash & $4)::integer = any($1::integer[]) and i.sent_by <> $3
    and extract(epoch from i.received_at) * 1e6 > $2::float8
  group by o.hash & $4) l";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    site.fixture.inbox(INBOX).await?;
    site.execute("alter table app.inbox add column sent_by text not null default current_setting('application_name')")
        .await?;
    let rounds = args.rounds(4);
    let mut number = 0;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(start(&site, &mut number)?);
    }
    for (signal, name, goal) in [(Signal::Kill, "takeover_kill", 6_000.0), (Signal::Terminate, "takeover_term", 500.0)]
    {
        let mut took = Vec::new();
        for round in 1..=rounds {
            figures.doing(&format!("{name}: round {round} of {rounds}"));
            shared_out(&site, RELAY_NAME, replicas.len()).await?;
            let victim = replicas.remove(0);
            took.push(hand_over(&site, signal, victim).await?);
            replicas.push(start(&site, &mut number)?);
        }
        figures.judge(&format!("{name}_ms"), percentile(&took, 1.0), "ms, the longest round", Goal::AtMost(goal));
        figures.add(&format!("{name}_median_ms"), percentile(&took, 0.5), "ms");
    }
    for (_, process) in replicas {
        end(process).await?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Signal {
    Kill,
    Terminate,
}

/// A replica whose name the inbox notes.
fn start(site: &Site, number: &mut u32) -> Result<(String, Process), Error> {
    *number += 1;
    let name = format!("hand-{number}");
    let dsn = format!("{} application_name={name}", site.fixture.relay_dsn());
    let sink = format!("{{ type = \"postgres\", dsn = {}, table = \"{INBOX}\" }}", toml_text(&dsn));
    let process = site.start(&name, RELAY_NAME, &sink, "")?;
    Ok((name, process))
}

/// Ends one replica under load; milliseconds until the last of its lanes goes on elsewhere.
async fn hand_over(site: &Site, signal: Signal, (name, mut process): (String, Process)) -> Result<f64, Error> {
    let lanes: Vec<i32> = site
        .value(&format!(
            "select array_agg(lane) from pgbaton.lane l join pgbaton.replica r on r.id = l.owner where r.name = '{name}'"
        ))
        .await?;
    let writers = Writers::connect(site).await?;
    let load = tokio::spawn(async move { writers.write(AFTERWARDS * 5).await });
    poll(|| flows(site, &name)).await?;
    let sent = now();
    match signal {
        Signal::Kill => process.kill()?,
        Signal::Terminate => process.terminate()?,
    }
    poll(|| async {
        let row = site.admin.query_one(FIRST, &[&lanes, &sent, &name, &i64::from(LANES - 1)]).await;
        let row = row.map_err(|cause| Error::because("looking for what the new owners published", &cause))?;
        Ok(usize::try_from(row.get::<_, i64>(1)) == Ok(lanes.len()))
    })
    .await?;
    let row = site.admin.query_one(FIRST, &[&lanes, &sent, &name, &i64::from(LANES - 1)]).await;
    let took = row.and_then(|row| row.try_get(0)).map_err(|cause| Error::because("the first publish", &cause))?;
    load.await.map_err(|cause| Error::because("the writers", &cause))??;
    if matches!(signal, Signal::Terminate) {
        let status = process.wait(Duration::from_secs(30)).await?;
        if !status.success() {
            return Err(Error::new(format!("{name} ended with {status}")));
        }
    }
    Ok(took)
}

/// Whether this replica has published within the last half second.
async fn flows(site: &Site, name: &str) -> Result<bool, Error> {
    site.value(&format!(
        "select count(*) > 0 from app.inbox where sent_by = '{name}' and received_at > clock_timestamp() - interval '0.5 s'"
    ))
    .await
}
