//! Order per key under load, through hand-overs, and whatever commits late.

use proof::on_each_version;
use tokio_postgres::Client;

use super::{Adopted, SOURCE, end};
use crate::hand::{SOON, until};

on_each_version!(keys_keep_their_order_under_load, a_row_that_commits_late_overtakes_nothing_of_its_key);

const KEYS: u32 = 20;
const WRITERS: u32 = 4;
const EACH: u32 = 150;

impl Adopted {
    fn to_shared_inbox(&self) -> String {
        format!("[relays.orders]\nlanes = 4\nsink = {}\n{SOURCE}", self.fixture.inbox_sink("app.inbox"))
    }

    /// How many messages of a key arrived before an earlier one of it.
    async fn out_of_order(&self) -> i64 {
        let numbers = "(select key, (payload_json::jsonb ->> 'n')::int as n,
                          lag((payload_json::jsonb ->> 'n')::int) over (partition by key order by seq) as before from app.inbox) i";
        self.count(&format!("{numbers} where n <= before")).await
    }
}

/// A transaction that takes the key before it inserts, as writers have to whose order counts.
async fn write(client: Client, writer: u32) {
    for n in 0..EACH {
        let key = (n * 7 + writer * 3) % KEYS;
        let end = if n % 10 == 9 { "rollback" } else { "commit" };
        let sql = format!(
            r#"begin; select pg_advisory_xact_lock({key}); update app.counter set n = n + 1 where key = {key};
               insert into app."Outbox" (site_id, topic, payload)
                 select 'key ' || key, 'orders', jsonb_build_object('n', n) from app.counter where key = {key}; {end}"#
        );
        client.batch_execute(&sql).await.unwrap();
    }
}

/// A second replica comes, and the first one is killed.
async fn keys_keep_their_order_under_load(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    adopted
        .execute(&format!(
            "create table app.counter (key int primary key, n int not null default 0);
             insert into app.counter select n from generate_series(0, {KEYS} - 1) n"
        ))
        .await;
    let relays = format!("[lease]\nttl = \"2s\"\n{}", adopted.to_shared_inbox());
    let mut first = adopted.fixture.run("r1", &relays).unwrap();
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        writers.push(tokio::spawn(write(adopted.fixture.admin().await.unwrap(), writer)));
    }
    until("some have arrived", async || adopted.count("app.inbox").await > 50).await;
    let second = adopted.fixture.run("r2", &relays).unwrap();
    until("the second one has lanes", async || {
        adopted.count("pgbaton.lane l join pgbaton.replica r on r.id = l.owner where r.name = 'r2'").await > 0
    })
    .await;
    first.kill().unwrap();
    for writer in writers {
        writer.await.unwrap();
    }
    adopted.all_marked().await;
    let written = adopted.count(r#"app."Outbox""#).await;
    assert_eq!(written, i64::from(WRITERS * EACH / 10 * 9));
    assert_eq!((adopted.count("app.inbox").await, adopted.out_of_order().await), (written, 0));
    end(second).await;
}

/// It holds its key's lock until it commits, so that nothing of its key is there before it; others pass it.
async fn a_row_that_commits_late_overtakes_nothing_of_its_key(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    let insert = |site: &str, n: u32| {
        format!(r#"insert into app."Outbox" (site_id, topic, payload) values ('{site}', 'orders', '{{"n": {n}}}')"#)
    };
    let late = adopted.fixture.admin().await.unwrap();
    late.batch_execute(&format!("begin; select pg_advisory_xact_lock(1); {}", insert("late", 1))).await.unwrap();
    adopted.insert(50).await;
    let mut replica = adopted.fixture.run("r1", &adopted.to_shared_inbox()).unwrap();
    adopted.all_marked().await;
    let next = adopted.fixture.admin().await.unwrap();
    let waits = format!("begin; select pg_advisory_xact_lock(1); {}; commit", insert("late", 2));
    let waiting = tokio::spawn(async move { next.batch_execute(&waits).await.unwrap() });
    until("another one of its key waits", async || {
        adopted.count("pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())").await > 0
    })
    .await;
    assert_eq!(adopted.count("app.inbox where key = 'late'").await, 0);
    late.batch_execute("commit").await.unwrap();
    waiting.await.unwrap();
    until("both arrive", async || adopted.count("app.inbox where key = 'late'").await == 2).await;
    assert_eq!(adopted.out_of_order_of("late").await, 0);
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

impl Adopted {
    async fn out_of_order_of(&self, key: &str) -> i64 {
        let of_key = format!(
            "(select payload_json::jsonb ->> 'n' as n, row_number() over (order by seq)::text as nth from app.inbox where key = '{key}') i"
        );
        self.count(&format!("{of_key} where n <> nth")).await
    }
}
