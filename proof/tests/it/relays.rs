//! Relays over time: registered, filtered, split, listed, dropped; and replicas whose configurations differ.

use std::process::Output;

use proof::fixture::Fixture;
use proof::on_each_version;
use serde_json::Value;
use tokio_postgres::Client;

use crate::hand::{Hand, SOON, insert, until};

mod splitting;
mod unsettled;

on_each_version!(
    topics_are_filtered_by_patterns,
    a_relay_is_listed_and_dropped,
    a_relay_is_not_dropped_while_an_acknowledgement_is_under_way,
    a_relay_whose_replicas_died_is_dropped,
    a_relay_that_starts_at_the_latest_gets_what_commits_from_then_on,
    replicas_leave_alone_what_they_do_not_know,
);

pub async fn ask(fixture: &Fixture, arguments: &[&str]) -> Output {
    fixture.pgbaton(arguments).await.unwrap()
}

pub async fn inbox(client: &Client, relay: &str) -> Vec<String> {
    let rows = client.query("select topic from app.inbox where relay = $1 order by seq", &[&relay]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Also of stragglers, which another statement reads.
async fn topics_are_filtered_by_patterns(major: u32) {
    let hand = Hand::new(major, 2).await;
    hand.fixture.inbox("app.inbox").await.unwrap();
    let sink = hand.fixture.inbox_sink("app.inbox");
    let relays = format!(
        "[relays.eu]\nlanes = 2\ntopics = [\"orders.*.eu\", \"10%_off\"]\nsink = {sink}\n\
         [relays.all]\nlanes = 2\nsink = {sink}\n"
    );
    let mut replica = hand.fixture.run("r1", &relays).unwrap();
    replica.wait_for_lines("claimed", 4, SOON).await.unwrap();
    let open = hand.fixture.producer().await.unwrap();
    let send = |topic: &str| format!("select pgbaton.send('{topic}', ''::text, key => 'k')");
    open.batch_execute(&format!("begin; {}", send("orders.late.eu"))).await.unwrap();
    let late: i64 = open.query_one(&send("orders.late.us"), &[]).await.unwrap().get(0);
    for topic in ["orders.paid.eu", "orders.paid.us", "orders.eu", "orders..eu", "10%_off", "10 off", "ORDERS.paid.eu"]
    {
        hand.producer.batch_execute(&send(topic)).await.unwrap();
    }
    until("all but the late ones arrive", async || inbox(&hand.admin, "all").await.len() == 7).await;
    // Below the floor it is the statement for stragglers that reads them.
    let floor = "select max(floor) from pgbaton.newest where relay = 'eu'";
    let mut more = 0;
    until("the floor is above the late ones", async || {
        hand.producer.batch_execute(&send("orders.more.eu")).await.unwrap();
        more += 1;
        until("one more arrives", async || inbox(&hand.admin, "eu").await.len() == 3 + more).await;
        hand.admin.query_one(floor, &[]).await.unwrap().get::<_, i64>(0) >= late
    })
    .await;
    open.batch_execute("commit").await.unwrap();
    until("the late ones arrive", async || inbox(&hand.admin, "all").await.len() == 9 + more).await;
    let mut wanted = vec!["orders.paid.eu", "orders..eu", "10%_off"];
    wanted.extend(std::iter::repeat_n("orders.more.eu", more));
    wanted.push("orders.late.eu");
    until("what is wanted arrives", async || inbox(&hand.admin, "eu").await.len() >= wanted.len()).await;
    assert_eq!(inbox(&hand.admin, "eu").await, wanted);
}

async fn a_relay_is_listed_and_dropped(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let relays =
        "[relays.a]\nlanes = 2\nsink = { type = \"discard\" }\n[relays.b]\nlanes = 4\nsink = { type = \"discard\" }\n";
    let mut replica = fixture.run("r1", relays).unwrap();
    replica.wait_for_lines("claimed", 6, SOON).await.unwrap();
    let listed = ask(&fixture, &["relays", "list", "--json", "--dsn", fixture.relay_dsn()]).await;
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let (first, second) = (&listed["relays"][0], &listed["relays"][1]);
    assert_eq!((&first["name"], &first["lanes"], &first["owned"]), (&"a".into(), &2.into(), &2.into()));
    assert_eq!((&second["name"], &second["lanes_now"], &second["replicas"]), (&"b".into(), &4.into(), &1.into()));

    let drop_b = ["relays", "drop", "b", "--dsn", fixture.migrate_dsn()];
    let unsure = ask(&fixture, &drop_b).await;
    assert_eq!(unsure.status.code(), Some(2), "a person has to say that it is meant");
    let sure = [&drop_b[..], &["--yes"]].concat();
    let running = ask(&fixture, &sure).await;
    assert_eq!(running.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&running.stderr).contains("is run by a replica"));
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    let by_relay = ask(&fixture, &["relays", "drop", "b", "--yes", "--dsn", fixture.relay_dsn()]).await;
    assert_eq!(by_relay.status.code(), Some(1), "only the schema's owner may");
    assert!(ask(&fixture, &sure).await.status.success());
    let left = "select (select count(*) from pgbaton.relay), (select count(*) from pgbaton.lane),
                       (select count(*) from pgbaton.position where relay = 'b')";
    let row = fixture.admin().await.unwrap().query_one(left, &[]).await.unwrap();
    assert_eq!([row.get::<_, i64>(0), row.get(1), row.get(2)], [1, 2, 0]);
    let again = ask(&fixture, &sure).await;
    assert!(String::from_utf8_lossy(&again.stderr).contains("there is no relay b"));
    // Whoever still has it configured registers it anew.
    let mut replica = fixture.run("r2", relays).unwrap();
    replica.wait_for_lines("claimed", 6, SOON).await.unwrap();
}

async fn a_relay_that_starts_at_the_latest_gets_what_commits_from_then_on(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.fixture.inbox("app.inbox").await.unwrap();
    hand.insert("before", "k", 3).await;
    let open = hand.open_transaction("open", "k2", 1).await;
    let relays =
        format!("[relays.late]\nlanes = 2\nstart = \"latest\"\nsink = {}\n", hand.fixture.inbox_sink("app.inbox"));
    let mut replica = hand.fixture.run("r1", &relays).unwrap();
    replica.wait_for_lines("lane opened", 2, SOON).await.unwrap();
    hand.insert("after", "k", 1).await;
    until("it arrives", async || inbox(&hand.admin, "late").await.len() == 1).await;
    open.batch_execute("commit").await.unwrap();
    until("so does what was open", async || inbox(&hand.admin, "late").await.len() == 2).await;
    assert_eq!(inbox(&hand.admin, "late").await, ["after 1", "open 1"]);
    // `start` counts only once.
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    hand.insert("while nobody ran", "k", 1).await;
    let _replica = hand.fixture.run("r2", &relays).unwrap();
    until("it arrives", async || inbox(&hand.admin, "late").await.len() == 3).await;
}

/// In the middle of a rolling change: one runs a and b, the other b and c.
async fn replicas_leave_alone_what_they_do_not_know(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let relays = |names: [&str; 2]| {
        names.map(|name| format!("[relays.{name}]\nlanes = 2\nsink = {{ type = \"discard\" }}\n")).concat()
    };
    let mut first = fixture.run("first", &relays(["a", "b"])).unwrap();
    first.wait_for_lines("claimed", 4, SOON).await.unwrap();
    let mut second = fixture.run("second", &relays(["b", "c"])).unwrap();
    let admin = fixture.admin().await.unwrap();
    let shares = "select string_agg(distinct l.relay || ' ' || r.name, ', ' order by l.relay || ' ' || r.name)
                  from pgbaton.lane l join pgbaton.replica r on r.id = l.owner having count(*) = 6";
    until("each has its share of what it knows", async || {
        let row = admin.query_opt(shares, &[]).await.unwrap();
        row.is_some_and(|row| row.get::<_, &str>(0) == "a first, b first, b second, c second")
    })
    .await;
    second.terminate().unwrap();
    assert!(second.wait(SOON).await.unwrap().success());
    insert(&fixture.producer().await.unwrap(), "m", "k", 1).await;
    let owned = "select count(*) filter (where owner is not null), count(*) from pgbaton.lane";
    until("b goes back, c waits", async || {
        let row = admin.query_one(owned, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1)) == (4, 6)
    })
    .await;
}

/// It would appear afterwards, as the position of whoever registers the relay next.
async fn a_relay_is_not_dropped_while_an_acknowledgement_is_under_way(major: u32) {
    let hand = Hand::new(major, 1).await;
    let late = hand.fixture.relay().await.unwrap();
    late.batch_execute("begin; select pg_advisory_xact_lock_shared(pgbaton.lane_lock('orders', 0))").await.unwrap();
    let drop_it = ["relays", "drop", "orders", "--yes", "--dsn", hand.fixture.migrate_dsn()];
    let refused = ask(&hand.fixture, &drop_it).await;
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    late.batch_execute("commit").await.unwrap();
    // Nor while somebody owns a lane, whatever the replicas say.
    let owner = hand.holder().await;
    hand.give(0, owner.id).await;
    hand.admin.batch_execute("update pgbaton.replica set relays = '{}', beat = beat + 1, ttl_ms = 100").await.unwrap();
    let beating = hand.fixture.admin().await.unwrap();
    let beats = tokio::spawn(async move {
        for _ in 0..2_000 {
            beating.batch_execute("update pgbaton.replica set beat = beat + 1").await.unwrap();
            tokio::time::sleep(proof::process::POLL).await;
        }
    });
    let refused = ask(&hand.fixture, &drop_it).await;
    beats.abort();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(ask(&hand.fixture, &drop_it).await.status.success(), "nobody beats any more");
}

async fn a_relay_whose_replicas_died_is_dropped(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let relays = "[lease]\nttl = \"1s\"\n[relays.a]\nlanes = 2\nsink = { type = \"discard\" }\n";
    let mut replica = fixture.run("r1", relays).unwrap();
    replica.wait_for_lines("claimed", 2, SOON).await.unwrap();
    replica.kill().unwrap();
    let dropped = ask(&fixture, &["relays", "drop", "a", "--yes", "--dsn", fixture.migrate_dsn()]).await;
    assert!(dropped.status.success(), "{dropped:?}");
}
