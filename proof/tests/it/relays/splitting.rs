//! Lanes are doubled while messages go on: nothing is lost, nothing comes twice, and each key keeps its order.

use std::collections::BTreeMap;

use proof::on_each_version;
use tokio_postgres::Client;

use super::ask;
use crate::hand::{Hand, SOON, until};

on_each_version!(lanes_are_split_under_load, a_lane_that_cannot_be_opened_is_not_split);

const KEYS: i32 = 40;

/// Number after number for each key, in transactions of different length.
async fn write(client: &Client, rounds: std::ops::Range<i32>) {
    for round in rounds {
        let send = "select pgbaton.send(n::text, ''::text, key => 'key ' || k) from generate_series(1, $1) k, (values ($2::int)) v(n)";
        client.execute(send, &[&KEYS, &round]).await.unwrap();
    }
}

/// To a sink that keeps positions, so that whatever a split does wrong shows as a repeat or a gap.
async fn lanes_are_split_under_load(major: u32) {
    const ROUNDS: i32 = 300;
    let hand = Hand::new(major, 1).await;
    hand.fixture.inbox("app.inbox").await.unwrap();
    let relays = format!("[relays.split]\nlanes = 2\nsink = {}\n", hand.fixture.inbox_sink("app.inbox"));
    let mut replicas = [hand.fixture.run("r1", &relays).unwrap(), hand.fixture.run("r2", &relays).unwrap()];
    replicas[1].wait_for_line("joined", SOON).await.unwrap();
    let split = ["lanes", "split", "split", "--yes", "--json", "--dsn", hand.fixture.relay_dsn()];
    let splitting = async {
        for lanes in [4, 8] {
            let answer = ask(&hand.fixture, &split).await;
            assert!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
            let told: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
            assert_eq!(told, serde_json::json!({ "relay": "split", "lanes": lanes, "done": true }));
        }
    };
    tokio::join!(write(&hand.producer, 0..ROUNDS), splitting);
    // One of them dies; what it had counts for both halves.
    replicas[0].kill().unwrap();
    write(&hand.producer, ROUNDS..ROUNDS + 20).await;
    let answer = ask(&hand.fixture, &split).await;
    assert!(answer.status.success());

    let count = "select count(*) from app.inbox where relay = 'split'";
    let wanted = i64::from(KEYS * (ROUNDS + 20));
    until("all of it arrives", async || hand.admin.query_one(count, &[]).await.unwrap().get::<_, i64>(0) >= wanted)
        .await;
    let mut seen: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for row in
        hand.admin.query("select key, topic from app.inbox where relay = 'split' order by seq", &[]).await.unwrap()
    {
        seen.entry(row.get(0)).or_default().push(row.get::<_, &str>(1).parse().unwrap());
    }
    assert_eq!(seen.len(), usize::try_from(KEYS).unwrap());
    for (key, numbers) in seen {
        assert_eq!(numbers, (0..ROUNDS + 20).collect::<Vec<_>>(), "{key}");
    }
    let lanes = "select count(*), min(lanes), max(lanes) from pgbaton.lane where relay = 'split'";
    until("16 lanes", async || {
        let row = hand.admin.query_one(lanes, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i32>(1), row.get::<_, i32>(2)) == (16, 16, 16)
    })
    .await;
    // The sink dropped nothing: what is unique there would hide a repeat.
    let repeated = replicas[1].lines_with("repeated=");
    assert!(repeated.iter().all(|line| line.contains("repeated=0")), "{repeated:?}");
}

/// What the sink of such a lane holds is not known: its halves would start from too early a place.
async fn a_lane_that_cannot_be_opened_is_not_split(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.fixture.inbox("app.inbox").await.unwrap();
    let relays = format!("[relays.split]\nlanes = 1\nsink = {}\n", hand.fixture.inbox_sink("app.inbox"));
    let mut replica = hand.fixture.run("r1", &relays).unwrap();
    replica.wait_for_line("lane opened", SOON).await.unwrap();
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    // It can still be looked at when the replica starts, and not be opened.
    hand.admin.batch_execute("alter table app.inbox_fence rename column epoch to gone").await.unwrap();
    let mut replica = hand.fixture.run("r2", &relays).unwrap();
    replica.wait_for_line("the sink is down", SOON).await.unwrap();
    let want = "update pgbaton.relay set lanes = 2 where name = 'split'";
    hand.admin.batch_execute(want).await.unwrap();
    hand.insert("m", "k", 3).await;
    replica.wait_for_lines("the sink is down", 4, SOON).await.unwrap();
    let lanes = "select count(*) from pgbaton.lane where relay = 'split'";
    assert_eq!(hand.admin.query_one(lanes, &[]).await.unwrap().get::<_, i64>(0), 1);
    hand.admin.batch_execute("alter table app.inbox_fence rename column gone to epoch").await.unwrap();
    until("it is split", async || hand.admin.query_one(lanes, &[]).await.unwrap().get::<_, i64>(0) == 2).await;
    until("and delivers", async || super::inbox(&hand.admin, "split").await.len() == 3).await;
}
