//! The case that this product was started for: a backlog, three replicas that look every five seconds, and a sink that is slower
//! than that. The home-made relay and pgbaton, on a table of the same kind, one replica killed on the way: how many rows arrive
//! twice.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Args;
use super::figures::Figures;
use super::site::{Site, end, poll_every};
use crate::Error;
use crate::classic::{self, Classic};
use crate::fixture::{PRODUCER, RELAY};
use crate::process::Process;

/// Rows that were published long ago, and are left alone: as many as the case had that this repeats (315, and then a backlog).
const OLD: u32 = 315;
/// How often a replica looks for work.
const TICK: Duration = Duration::from_secs(5);
/// How long the sink takes for a batch.
const SLOW: Duration = Duration::from_millis(5_500);
/// The home-made relay takes so many at once. With fewer it would take hours.
const CLASSIC_BATCH: i64 = 5_000;

const TABLE: &str = "
create schema app;
create table app.outbox (id uuid primary key default gen_random_uuid(), site_id text not null, topic text not null,
  payload jsonb not null, created_at timestamptz not null default clock_timestamp(), published_at timestamptz);
create index on app.outbox (created_at, id) where published_at is null;
grant usage on schema app to pgbaton_relay;
grant select, update (published_at) on app.outbox to pgbaton_relay;";

const SLOW_INBOX: &str = "
create function public.slow() returns trigger language plpgsql as $$ begin perform pg_sleep(SECONDS); return null; end $$;
create trigger slow before insert on public.inbox for each statement execute function public.slow()";

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let backlog = args.messages(200_000, 2_000);
    figures.doing(&format!(
        "scenario: {backlog} rows, three home-made replicas that look every {TICK:?}, one of them killed"
    ));
    home_made(&site, backlog, figures).await?;
    figures.doing(&format!("scenario: {backlog} rows, three replicas of pgbaton, one of them killed"));
    pgbaton(&site, backlog, figures).await
}

async fn home_made(site: &Site, backlog: u32, figures: &mut Figures) -> Result<(), Error> {
    classic::prepare(&site.admin, PRODUCER, RELAY).await?;
    let fill = format!(
        "insert into classic_outbox (topic, key, payload, published_at)
         select 'orders', 'site ' || n % 100, json_build_object('n', n), case when n <= {OLD} then now() end
         from generate_series(1, {OLD} + {backlog}) n;
         analyze classic_outbox"
    );
    site.execute(&fill).await?;
    let (mut replicas, began) = (JoinSet::new(), Instant::now());
    let how = Classic { batch: CLASSIC_BATCH, tick: TICK, slowness: SLOW };
    let mut first = None;
    for _ in 0..3 {
        let dsn = site.fixture.relay_dsn().to_owned();
        let started = replicas.spawn(async move { how.run(&dsn).await });
        first.get_or_insert(started);
    }
    let pending = async || site.value::<i64>("select count(*) from classic_outbox where published_at is null").await;
    let third = i64::from(backlog) * 2 / 3;
    poll_every(TICK / 5, async || Ok(pending().await? <= third)).await?;
    if let Some(first) = first {
        first.abort();
    }
    poll_every(TICK / 5, async || Ok(pending().await? == 0)).await?;
    let took = began.elapsed();
    // What is under way is published, too, and only then all can be counted.
    tokio::time::sleep(SLOW * 2).await;
    replicas.shutdown().await;
    let twice = "select (count(*) - count(distinct message_id))::float8 from classic_inbox";
    figures.add("scenario_home_made_seconds", took.as_secs_f64(), "s until all are marked");
    figures.add("scenario_home_made_repeats", site.value(twice).await?, &format!("rows of {backlog} published again"));
    Ok(())
}

async fn pgbaton(site: &Site, backlog: u32, figures: &mut Figures) -> Result<(), Error> {
    site.execute(TABLE).await?;
    site.fixture.inbox("public.inbox").await?;
    site.execute(&SLOW_INBOX.replace("SECONDS", &SLOW.as_secs_f64().to_string())).await?;
    let fill = format!(
        "insert into app.outbox (site_id, topic, payload, published_at)
         select 'site ' || n % 100, 'orders', jsonb_build_object('n', n), case when n <= {OLD} then now() end
         from generate_series(1, {OLD} + {backlog}) n;
         analyze app.outbox"
    );
    site.execute(&fill).await?;
    let (sink, began) = (site.fixture.inbox_sink("public.inbox"), Instant::now());
    let mut replicas = ["s1", "s2", "s3"].map(|name| site.start(name, "scenario", &sink, SETTINGS)).into_iter();
    let mut first: Option<Process> = replicas.next().transpose()?;
    let others = replicas.collect::<Result<Vec<Process>, Error>>()?;
    let pending = async || site.value::<i64>("select count(*) from app.outbox where published_at is null").await;
    let third = i64::from(backlog) * 2 / 3;
    poll_every(TICK / 5, async || Ok(pending().await? <= third)).await?;
    if let Some(first) = &mut first {
        first.kill()?;
    }
    poll_every(TICK / 5, async || Ok(pending().await? == 0)).await?;
    let took = began.elapsed();
    for replica in others {
        end(replica).await?;
    }
    let unit = |what: &str| format!("rows of {backlog} {what}");
    let missing = "select count(*)::float8 from app.outbox o
                   where not exists (select from public.inbox i where i.message_id = 'scenario:' || o.id)";
    let arrived: f64 = site.value("select count(*)::float8 from public.inbox").await?;
    let distinct: f64 = site.value("select count(distinct message_id)::float8 from public.inbox").await?;
    figures.add("scenario_pgbaton_seconds", took.as_secs_f64(), "s until all are marked");
    figures.add("scenario_pgbaton_arrived", arrived, &unit("arrived"));
    figures.add("scenario_pgbaton_repeats", arrived - distinct, &unit("published again"));
    // The old ones are in nobody's inbox.
    let missing = site.value::<f64>(missing).await? - f64::from(OLD);
    figures.add("scenario_pgbaton_missing", missing, &unit("never published"));
    Ok(())
}

/// It looks as seldom as the home-made relay does.
const SETTINGS: &str = "poll_idle = \"5s\"
[relays.scenario.source]
type = \"table\"
table = \"app.outbox\"
id = \"id\"
order = \"created_at\"
key = \"site_id\"
topic = \"topic\"
payload = \"payload\"
created_at = \"created_at\"
pending = \"published_at is null\"
mark = { published_at = \"now()\" }";
