//! What an adopted table costs beside the outbox and beside relays of other kinds: rate, WAL and dead rows.
//!
//! The same messages lie in the outbox and in a table as applications have it, which is filled anew for each drain. No checkpoint
//! comes between filling and draining, so that nobody's WAL has images of whole pages.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, pin_mut};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::bare::borrow;
use super::covered::Last;
use super::drain::{Backlog, Drained, drain, drain_backlog};
use super::figures::{Figures, count, median, rate};
use super::site::Site;
use super::{Args, LANES, messages};
use crate::Error;

const TABLE: &str = "
drop schema if exists app cascade;
create schema app;
grant usage on schema app to pgbaton_relay;
create table app.outbox (
  id uuid primary key, site_id text not null, topic text not null, payload jsonb not null,
  created_at timestamptz not null, published_at timestamptz, locked_by text, locked_until timestamptz);
grant select, update, delete on app.outbox to pgbaton_relay;
insert into app.outbox (id, site_id, topic, payload, created_at)
  select message_id, key, topic, payload_json::jsonb, created_at + id * interval '1 us' from pgbaton.outbox order by id;
create index on app.outbox (created_at, id) where published_at is null;
vacuum (analyze) app.outbox";

const SOURCE: &str = ".source]
type = \"table\"
table = \"app.outbox\"
id = \"id\"
order = \"created_at\"
key = \"site_id\"
topic = \"topic\"
payload = \"payload\"
created_at = \"created_at\"
pending = \"published_at is null\"
mark = ";

/// The last row of each lane: a lane's rows are marked in order.
const LAST: &str = "
select array_agg(id) from (
  select distinct on (hashtextextended(site_id collate \"C\", 0) & ($1::bigint - 1)) id from app.outbox
  order by hashtextextended(site_id collate \"C\", 0) & ($1::bigint - 1), created_at desc, id desc) l";

/// A relay of another kind: the statement that takes rows, and the one that marks them if that does not.
struct Other {
    takes: &'static str,
    marks: Option<&'static str>,
}

/// The classic relay: locks that end before it publishes, so that two of them may take the same rows.
const CLASSIC: Other = Other {
    takes: "
select id, site_id, topic, payload::text from app.outbox where published_at is null
order by created_at, id limit $1 for update skip locked",
    marks: Some("update app.outbox set published_at = now() where id = any($1)"),
};

/// Rows locked, "published" and deleted in one transaction, by one statement a batch: the fastest form. It deletes, where the
/// others mark, since relays of that family do: what they hold locked until it is published they need not mark.
const LOCKS: Other = Other {
    takes: "
with taken as materialized (
  select id from app.outbox where published_at is null order by created_at, id limit $1 for update skip locked
)
delete from app.outbox o using taken where o.id = taken.id returning o.id, o.site_id, o.topic, o.payload::text",
    marks: None,
};

/// Rows claimed by columns of their own, committed, published, and marked.
const CLAIMS: Other = Other {
    takes: "
with taken as materialized (
  select id from app.outbox where published_at is null and (locked_until is null or locked_until < now())
  order by created_at, id limit $1 for update skip locked
)
update app.outbox o set locked_by = 'r1', locked_until = now() + interval '1 minute' from taken where o.id = taken.id
returning o.id, o.site_id, o.topic, o.payload::text",
    marks: Some("update app.outbox set published_at = now(), locked_by = null, locked_until = null where id = any($1)"),
};

/// What those are given at once.
const BATCH: i64 = 1_000;

/// One drain, per message.
struct Cost {
    rate: f64,
    wal: f64,
    dead: f64,
}

pub(super) async fn run(args: &Args, figures: &mut Figures) -> Result<(), Error> {
    let site = Site::open(args).await?;
    let waiting = args.messages(1_000_000, 5_000);
    figures.doing(&format!("adopted: {waiting} messages in the outbox and in a table, in turn"));
    messages::write(&site, waiting).await?;
    let last = Last::find(&site.admin).await?;
    let mut costs: [(&str, Vec<Cost>); 6] =
        ["native", "mark", "delete", "classic", "locks", "claims"].map(|name| (name, Vec::new()));
    for round in 0..args.rounds(3) {
        for (name, all) in &mut costs {
            let relay = format!("{name}{round}");
            all.push(match *name {
                "native" => native(&site, &relay, &last).await?,
                "mark" => adopted(&site, &relay, "{ published_at = \"now()\" }").await?,
                "delete" => adopted(&site, &relay, "\"delete\"").await?,
                "classic" => other(&site, &CLASSIC).await?,
                "locks" => other(&site, &LOCKS).await?,
                _ => other(&site, &CLAIMS).await?,
            });
        }
    }
    for (name, all) in &costs {
        let of = |figure: fn(&Cost) -> f64| median(&all.iter().map(figure).collect::<Vec<_>>());
        figures.add(&format!("adopted_{name}_per_second"), of(|cost| cost.rate), "messages/s");
        figures.add(&format!("adopted_{name}_wal_bytes_per_message"), of(|cost| cost.wal), "B");
        figures.add(&format!("adopted_{name}_dead_per_message"), of(|cost| cost.dead), "dead rows");
    }
    Ok(())
}

async fn native(site: &Site, relay: &str, last: &Last) -> Result<Cost, Error> {
    let drained = drain(site, relay, last, 1).await?;
    Ok(Cost { rate: drained.rate(), wal: drained.wal / drained.messages, dead: 0.0 })
}

async fn adopted(site: &Site, relay: &str, mark: &str) -> Result<Cost, Error> {
    let rows = fill(site).await?;
    let drained = drain_table(site, relay, mark, rows).await?;
    Ok(Cost { rate: drained.rate(), wal: drained.wal / drained.messages, dead: dead(site).await? / drained.messages })
}

/// Has a new relay deliver so many rows of the table, and drops it.
pub(super) async fn drain_table(site: &Site, relay: &str, mark: &str, rows: f64) -> Result<Drained, Error> {
    let row = site.admin.query_one(LAST, &[&i64::from(LANES)]).await;
    let last: Vec<uuid::Uuid> = row
        .and_then(|row| row.try_get(0))
        .map_err(|cause| Error::because("looking for each lane's last row", &cause))?;
    let done = async || {
        let sql = "select count(*) = 0 from app.outbox where id = any($1) and published_at is null";
        let row = site.admin.query_one(sql, &[&last]).await;
        row.and_then(|row| row.try_get(0)).map_err(|cause| Error::because("looking for what is pending", &cause))
    };
    let keys = format!("[relays.{relay}{SOURCE}{mark}");
    let drained = drain_backlog(site, relay, Backlog { messages: rows, done }, 1, &keys).await?;
    // The next one adopts the same table.
    let dropped = pgbaton::control::relays::drop(&operator(site)?, relay).await;
    dropped.map_err(|cause| Error::because("dropping a relay", &cause))?;
    Ok(drained)
}

/// By this process, over one connection.
async fn other(site: &Site, Other { takes, marks }: &Other) -> Result<Cost, Error> {
    fill(site).await?;
    let client = site.fixture.admin().await?;
    let (wal, began, mut messages) = (site.wal().await?, Instant::now(), 0);
    loop {
        let failed = |cause| Error::because("a relay of another kind", &cause);
        let ids = take(&client, takes).await.map_err(failed)?;
        if ids.is_empty() {
            break;
        }
        messages += ids.len();
        if let Some(marks) = marks {
            client.execute(*marks, &[&ids]).await.map_err(failed)?;
        }
    }
    let (took, wal, messages) = (began.elapsed(), site.wal().await? - wal, count(messages).max(1.0));
    drop(client);
    Ok(Cost { rate: rate(messages, took), wal: wal / messages, dead: dead(site).await? / messages })
}

async fn take(client: &Client, sql: &str) -> Result<Vec<uuid::Uuid>, tokio_postgres::Error> {
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&BATCH, Type::INT8)];
    let rows = client.query_typed_raw(sql, parameters).await?;
    pin_mut!(rows);
    let (mut ids, mut bytes) = (Vec::new(), 0);
    while let Some(row) = rows.next().await {
        let row = row?;
        bytes += borrow(&row, 4)?;
        ids.push(row.try_get(0)?);
    }
    std::hint::black_box(bytes);
    Ok(ids)
}

/// Makes the table with a copy of all messages; how many.
pub(super) async fn fill(site: &Site) -> Result<f64, Error> {
    for statement in TABLE.split(';') {
        site.execute(statement).await?; // apart: a vacuum runs in no transaction
    }
    site.value("select count(*)::float8 from app.outbox").await
}

/// Row versions that drains have left behind, once everybody's counts have arrived.
async fn dead(site: &Site) -> Result<f64, Error> {
    tokio::time::sleep(Duration::from_secs(1)).await;
    site.value("select (n_tup_upd + n_tup_del)::float8 from pg_stat_all_tables where relid = 'app.outbox'::regclass")
        .await
}

fn operator(site: &Site) -> Result<pgbaton::Database, Error> {
    let patience = Duration::from_secs(30);
    pgbaton::Database::new(site.fixture.admin_dsn(), patience)
        .map_err(|cause| Error::because("the owner's DSN", &cause))
}
