//! Commit order, under everything that writers do: nothing is lost, no key is out of order, and a transaction that stays
//! open delays only its own messages.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use futures_util::SinkExt;
use proof::fixture::{Fixture, PRODUCER};
use proof::on_each_version;
use proof::writers::{self, Mix, Plan, Sent, Verdict, Writers, Written, key_name};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::hand::until;
use crate::recorder::Records;
use crate::replicas::Setup;

on_each_version!(nothing_is_lost_and_no_key_is_out_of_order, a_bulk_load_that_commits_late_arrives_whole);

const KEYS: u32 = 40;
const MESSAGES: u64 = 6_000;
/// Of each kind of peculiar transaction, and each of several writers.
const ROUNDS: u32 = 25;

async fn nothing_is_lost_and_no_key_is_out_of_order(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    writers::prepare(&fixture.admin().await.unwrap(), PRODUCER, KEYS).await.unwrap();
    let records = Records::default();
    let setup = Setup::default();
    let start = |name| setup.start(fixture.relay_dsn(), name, &records.sink(name, Duration::from_millis(2)));
    let (first, second) = (start("first"), start("second"));

    let (open, of_open) = open_throughout(&fixture).await;
    let mix = Mix { long: 0.002, savepoint: 0.2, rolled_back: 0.1, ..Mix::default() };
    let plan = Plan { messages: MESSAGES, keys: KEYS, tasks: 6, mix, ..Plan::default() };
    let ordinary = Writers::start(fixture.producer_dsn(), plan).await.unwrap();
    let peculiar: Vec<_> =
        (0..3).map(|number| tokio::spawn(write_peculiarly(fixture.producer_dsn().to_owned(), number))).collect();
    let mut written = ordinary.finish().await.unwrap();
    for writer in peculiar {
        written.sent.extend(writer.await.unwrap());
    }

    let all_but_open = written.sent.len();
    until("all that is committed arrived", || async { records.count() >= all_but_open }).await;
    let arrivals = records.arrivals();
    assert!(arrivals.iter().all(|arrival| arrival.message_id != of_open.message_id));
    let verdict = Verdict::of(&written, &arrivals);
    assert!(verdict.is_flawless() && verdict.delivered == all_but_open, "{verdict:?}");

    open.batch_execute("commit").await.unwrap();
    written.sent.push(of_open);
    until("what had stayed open arrived", || async { records.count() > all_but_open }).await;
    first.stop().await;
    second.stop().await;
    records.assert_exclusive();
    let verdict = Verdict::of(&written, &records.arrivals());
    assert!(verdict.is_flawless() && verdict.delivered == all_but_open + 1, "{verdict:?}");
}

/// A transaction that was there before everything else, with one message.
async fn open_throughout(fixture: &Fixture) -> (Client, Sent) {
    let client = fixture.producer().await.unwrap();
    client.batch_execute("begin").await.unwrap();
    let sent = insert(&client, None, 0).await;
    (client, sent)
}

/// Takes the key's row and keeps it until the transaction's end. Gives which of the key's messages comes next.
async fn lock(client: &Client, key: u32) -> i64 {
    let sql = "update shop.customer set orders = orders + 1 where id = $1 returning orders";
    client.query_one(sql, &[&key_name(key)]).await.unwrap().get(0)
}

fn sent(key: Option<u32>, n: i64, id: i64, message_id: String) -> Sent {
    Sent { id, message_id, key, n, committed_at: SystemTime::now() }
}

/// An insert of its own, without `pgbaton.send`.
async fn insert(client: &Client, key: Option<u32>, n: i64) -> Sent {
    let payload = sent(key, n, 0, String::new()).payload();
    let sql = "insert into pgbaton.outbox (topic, key, payload_json) values ('orders', $1, ($2::text)::json)
               returning id, message_id::text";
    let row = client.query_one(sql, &[&key.map(key_name), &payload]).await.unwrap();
    sent(key, n, row.get(0), row.get(1))
}

async fn write_peculiarly(dsn: String, number: u32) -> Vec<Sent> {
    let client = proof::fixture::connect(&dsn).await.unwrap();
    let mut all = Vec::new();
    for round in 0..ROUNDS {
        let key = (round * 7 + number * 13) % KEYS;
        all.push(with_an_early_id(&client, key).await);
        all.extend(by_copy(&client, key).await);
        all.push(prepared(&client, key, &format!("t{number}-{round}")).await);
        all.push(through_subtransactions(&client, key).await);
    }
    all
}

/// The transaction has its id long before it takes its number.
async fn with_an_early_id(client: &Client, key: u32) -> Sent {
    client.batch_execute("begin; select pg_current_xact_id(); select pg_sleep(0.02)").await.unwrap();
    let n = lock(client, key).await;
    let sent = insert(client, Some(key), n).await;
    client.batch_execute("commit").await.unwrap();
    sent
}

async fn by_copy(client: &Client, key: u32) -> Vec<Sent> {
    client.batch_execute("begin").await.unwrap();
    let mut copied = Vec::new();
    for _ in 0..5 {
        copied.push(sent(Some(key), lock(client, key).await, 0, Uuid::new_v4().to_string()));
    }
    let copy = "copy pgbaton.outbox (topic, key, payload_json, message_id) from stdin (format csv, quote '''')";
    let mut rows = Box::pin(client.copy_in(copy).await.unwrap());
    for sent in &copied {
        let row = format!("orders,{},'{}',{}\n", key_name(key), sent.payload(), sent.message_id);
        rows.send(std::io::Cursor::new(row.into_bytes())).await.unwrap();
    }
    rows.as_mut().finish().await.unwrap();
    client.batch_execute("commit").await.unwrap();
    copied
}

/// Committed by another session, a while later; others are prepared and rolled back.
async fn prepared(client: &Client, key: u32, name: &str) -> Sent {
    client.batch_execute("begin").await.unwrap();
    insert(client, None, 0).await;
    client.batch_execute(&format!("prepare transaction 'undone {name}'")).await.unwrap();
    client.batch_execute(&format!("rollback prepared 'undone {name}'")).await.unwrap();
    client.batch_execute("begin").await.unwrap();
    let n = lock(client, key).await;
    let sent = insert(client, Some(key), n).await;
    client.batch_execute(&format!("prepare transaction '{name}'")).await.unwrap();
    client.batch_execute("select pg_sleep(0.01)").await.unwrap();
    client.batch_execute(&format!("commit prepared '{name}'")).await.unwrap();
    sent
}

/// Kept and rolled back ones, one within the other: each takes an id of its own, and the messages have the outer one.
async fn through_subtransactions(client: &Client, key: u32) -> Sent {
    client.batch_execute("begin; savepoint a").await.unwrap();
    lock(client, key).await;
    insert(client, Some(key), -1).await;
    client.batch_execute("savepoint b").await.unwrap();
    insert(client, Some(key), -2).await;
    client.batch_execute("release b; rollback to a; savepoint c").await.unwrap();
    let n = lock(client, key).await;
    let sent = insert(client, Some(key), n).await;
    client.batch_execute("release c; savepoint d").await.unwrap();
    insert(client, Some(key), -3).await;
    client.batch_execute("rollback to d; commit").await.unwrap();
    sent
}

const BULK: usize = 200_000;
const BULK_KEYS: usize = 50;

/// Its transaction is old when it commits: all of it are stragglers, which come in steps.
async fn a_bulk_load_that_commits_late_arrives_whole(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    writers::prepare(&fixture.admin().await.unwrap(), PRODUCER, KEYS).await.unwrap();
    let records = Records::default();
    let setup = Setup::default();
    let replica = setup.start(fixture.relay_dsn(), "first", &records.sink("first", Duration::ZERO));
    let bulk = fixture.producer().await.unwrap();
    let load = format!(
        "begin; insert into pgbaton.outbox (topic, key, payload_json)
         select 'bulk', 'bulk ' || n % {BULK_KEYS}, n::text::json from generate_series(0, {BULK} - 1) n"
    );
    bulk.batch_execute(&load).await.unwrap();

    let plan =
        Plan { messages: 1_000, keys: KEYS, tasks: 4, mix: Mix { long: 0.0, ..Mix::default() }, ..Plan::default() };
    let mut written = Written::default();
    for seed in 0..2 {
        let plan = Plan { seed, ..plan };
        written.sent.extend(Writers::start(fixture.producer_dsn(), plan).await.unwrap().finish().await.unwrap().sent);
        until("what others commit arrives", || async { records.count() >= written.sent.len() }).await;
    }
    let verdict = Verdict::of(&written, &records.arrivals());
    assert!(verdict.is_flawless(), "{verdict:?}");

    bulk.batch_execute("commit").await.unwrap();
    until("the bulk arrives", || async { records.count() >= written.sent.len() + BULK }).await;
    replica.stop().await;
    let mut next: HashMap<usize, usize> = HashMap::new();
    for call in records.calls() {
        let of_bulk = call.topics.iter().zip(&call.messages).filter(|(topic, _)| *topic == "bulk");
        for (_, message) in of_bulk {
            let n: usize = message.payload.parse().unwrap();
            let next = next.entry(n % BULK_KEYS).or_insert(n % BULK_KEYS);
            assert_eq!(*next, n, "key {}", n % BULK_KEYS);
            *next = n + BULK_KEYS;
        }
    }
    assert_eq!(records.count(), written.sent.len() + BULK);
}
