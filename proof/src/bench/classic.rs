//! The fastest relay in use: rows locked, "published" and deleted in one transaction, by one client.
//!
//! One statement a batch does all three, and its rows are published as they stream in, before the commit: no form of it
//! that was tried is faster. It works on a table of its own with the usual columns.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, pin_mut};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::bare::borrow;
use super::site::Site;
use crate::Error;

/// The usual outbox, with the same messages.
const COPY: &str = "
drop table if exists public.classic_outbox;
create table public.classic_outbox (
  id bigint primary key, message_id uuid not null, topic text not null, key text, headers json, payload bytea,
  payload_json json, created_at timestamptz not null);
insert into public.classic_outbox
  select id, message_id, topic, key, headers, payload, payload_json, created_at from pgbaton.outbox order by id;
vacuum (analyze) public.classic_outbox";

const TAKE: &str = "
with taken as materialized (
  select id from public.classic_outbox order by id limit $1 for update skip locked
)
delete from public.classic_outbox o using taken where o.id = taken.id
returning o.message_id, o.topic, o.key, o.headers, o.payload, o.payload_json, o.created_at, o.id";

/// Makes its table with a copy of all messages.
pub(super) async fn copy(site: &Site) -> Result<(), Error> {
    for statement in COPY.split(';') {
        site.execute(statement).await?; // apart: a vacuum runs in no transaction
    }
    Ok(())
}

/// Drains it in batches of this size; how many messages, and how long it took.
pub(super) async fn drain(client: &Client, batch: i64) -> Result<(usize, Duration), Error> {
    drain_at_most(client, batch, usize::MAX).await
}

/// The same until it has had so many.
pub(super) async fn drain_at_most(client: &Client, batch: i64, most: usize) -> Result<(usize, Duration), Error> {
    let began = Instant::now();
    let mut messages = 0;
    loop {
        let found = take(client, batch).await.map_err(|cause| Error::because("the classic relay", &cause))?;
        messages += found;
        if found == 0 || messages >= most {
            return Ok((messages, began.elapsed()));
        }
    }
}

async fn take(client: &Client, batch: i64) -> Result<usize, tokio_postgres::Error> {
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&batch, Type::INT8)];
    let rows = client.query_typed_raw(TAKE, parameters).await?;
    pin_mut!(rows);
    let (mut found, mut bytes) = (0, 0);
    while let Some(row) = rows.next().await {
        bytes += borrow(&row?, 7)?;
        found += 1;
    }
    std::hint::black_box(bytes);
    Ok(found)
}
