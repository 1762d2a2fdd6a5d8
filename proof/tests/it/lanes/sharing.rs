//! Shares, joining, leaving and dying.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pgbaton::Database;
use pgbaton::housekeeping;
use proof::fixture::Fixture;
use tokio_postgres::Client;

use crate::hand::{Hand, SOON, insert, until};
use crate::recorder::Records;
use crate::replicas::Setup;

const TTL: Duration = Duration::from_secs(3);

/// How many lanes each replica holds, by name and relay.
async fn held(admin: &Client) -> BTreeMap<(String, String), i64> {
    let sql = "select r.name, l.relay, count(*) from pgbaton.lane l join pgbaton.replica r on r.id = l.owner
               group by 1, 2";
    let rows = admin.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect()
}

async fn held_in_all(admin: &Client, name: &str) -> i64 {
    held(admin).await.iter().filter(|((holder, _), _)| holder == name).map(|(_, lanes)| lanes).sum()
}

async fn epochs(admin: &Client) -> Vec<i64> {
    let rows = admin.query("select epoch from pgbaton.lane order by relay, lane", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn shares_are_even_for_each_relay_and_in_all() {
    let fixture = Fixture::new(15).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let records = Records::default();
    let setup = Setup { ttl: TTL, relays: vec!["a", "b", "c"], ..Setup::default() };
    let names = ["r1", "r2", "r3"];
    let replicas = names.map(|name| setup.start(fixture.relay_dsn(), name, &records.sink(name, Duration::ZERO)));
    until("each of three holds 16 of 48 lanes", || async {
        let mut even = true;
        for name in names {
            even &= held_in_all(&admin, name).await == 16;
        }
        even
    })
    .await;
    assert!(held(&admin).await.values().all(|lanes| (5..=6).contains(lanes)));
    for replica in replicas {
        replica.stop().await;
    }
    let left: i64 =
        admin.query_one("select count(*) from pgbaton.lane where owner is not null", &[]).await.unwrap().get(0);
    assert_eq!(left, 0);
}

/// Two renewals are two thirds of a ttl. Measured while messages are delivered by a slow sink.
#[tokio::test]
async fn a_joining_replica_has_its_share_within_two_renewals() {
    let fixture = Fixture::new(15).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let records = Records::default();
    let setup = Setup { ttl: TTL, ..Setup::default() };
    let slow = Duration::from_millis(20);
    let first = setup.start(fixture.relay_dsn(), "r1", &records.sink("r1", slow));
    until("the first has all lanes", || async { held_in_all(&admin, "r1").await == 16 }).await;
    let producer = fixture.producer().await.unwrap();
    for n in 0..50 {
        insert(&producer, "m", &format!("k{n}"), 20).await;
    }
    let before = epochs(&admin).await;

    let second = setup.start(fixture.relay_dsn(), "r2", &records.sink("r2", slow));
    until("it has joined", || async {
        !admin.query("select from pgbaton.replica where name = 'r2'", &[]).await.unwrap().is_empty()
    })
    .await;
    let joined = Instant::now();
    until("it has its share", || async { held_in_all(&admin, "r2").await == 8 }).await;
    let took = joined.elapsed();
    assert!(took <= 2 * TTL / 3, "{took:?}");

    let grown = epochs(&admin).await.iter().zip(&before).filter(|(now, before)| *now == &(*before + 1)).count();
    assert_eq!(grown, 8, "the epoch grows with each change of hands");
    until("everything arrives", || async { records.count() >= 1_000 }).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(records.count(), 1_000);
}

#[tokio::test]
async fn a_leaving_replica_hands_over_at_once() {
    let fixture = Fixture::new(15).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let records = Records::default();
    let setup = Setup { ttl: TTL, ..Setup::default() };
    let start = |name| setup.start(fixture.relay_dsn(), name, &records.sink(name, Duration::ZERO));
    let (first, second) = (start("r1"), start("r2"));
    until("both have their share", || async {
        held_in_all(&admin, "r1").await == 8 && held_in_all(&admin, "r2").await == 8
    })
    .await;
    let began = Instant::now();
    let leaving = tokio::spawn(first.stop());
    until("the other one has all lanes", || async { held_in_all(&admin, "r2").await == 16 }).await;
    let took = began.elapsed();
    assert!(took <= Duration::from_secs(1), "{took:?}");
    leaving.await.unwrap();
    second.stop().await;
}

/// With the real executable and a real SIGKILL.
#[tokio::test]
async fn a_killed_replica_is_replaced_within_a_ttl_and_a_second() {
    let fixture = Fixture::new(15).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let relays = "[lease]\nttl = \"3s\"\n[relays.orders]\nsink = { type = \"discard\" }";
    let mut first = fixture.run("r1", relays).unwrap();
    let mut second = fixture.run("r2", relays).unwrap();
    until("both have their share", || async {
        held_in_all(&admin, "r1").await == 8 && held_in_all(&admin, "r2").await == 8
    })
    .await;
    let before = epochs(&admin).await;
    first.kill().unwrap();
    let killed = Instant::now();
    until("the other one has all lanes", || async { held_in_all(&admin, "r2").await == 16 }).await;
    let took = killed.elapsed();
    assert!(took <= TTL + Duration::from_secs(1), "{took:?}");
    let grown = epochs(&admin).await.iter().zip(&before).filter(|(now, before)| now > before).count();
    assert_eq!(grown, 8);
    second.terminate().unwrap();
    assert!(second.wait(SOON).await.unwrap().success());
}

#[tokio::test]
async fn a_replica_that_the_database_forgot_starts_again_under_a_new_id() {
    let fixture = Fixture::new(15).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let records = Records::default();
    let setup = Setup { ttl: TTL, lanes: 4, ..Setup::default() };
    let replica = setup.start(fixture.relay_dsn(), "r1", &records.sink("r1", Duration::ZERO));
    until("it has all lanes", || async { held_in_all(&admin, "r1").await == 4 }).await;
    let before = epochs(&admin).await;

    admin.batch_execute("delete from pgbaton.replica").await.unwrap();
    until("it has all lanes again", || async { held_in_all(&admin, "r1").await == 4 }).await;
    assert!(epochs(&admin).await.iter().zip(&before).all(|(now, before)| now > before));
    let producer = fixture.producer().await.unwrap();
    insert(&producer, "m", "k", 10).await;
    until("it delivers", || async { records.count() == 10 }).await;
    replica.stop().await;
}

/// Positions are written to one leaf, then to the other one. What is pruned leaves no dead row, and the newest stays.
#[tokio::test]
async fn positions_are_pruned_by_two_leaves_in_turn() {
    let hand = Hand::new(15, 2).await;
    let database = Database::new(hand.fixture.relay_dsn(), SOON).unwrap();
    let keys = [hand.key(0).await, hand.key(1).await];
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.open(&hand, 1).await;
    for round in 0..3 {
        for _ in 0..10 {
            hand.insert("m", &keys[0], 1).await;
            owner.drain().await;
            owner.acknowledge().await.unwrap();
        }
        let newest = [newest(&hand, 0).await, newest(&hand, 1).await];
        housekeeping::prune(&database, 1).await.unwrap();
        let row = hand
            .admin
            .query_one(
                "select leaf, pg_relation_size('pgbaton.position_0'), pg_relation_size('pgbaton.position_1'),
                        (select count(*) from pgbaton.position) from pgbaton.position_leaf",
                &[],
            )
            .await
            .unwrap();
        let (leaf, sizes): (i16, [i64; 2]) = (row.get(0), [row.get(1), row.get(2)]);
        assert_eq!(leaf, (round + 1) % 2, "they take turns");
        assert_eq!(sizes[usize::try_from(1 - leaf).unwrap()], 0, "emptied whole, so without a dead row");
        assert_eq!(row.get::<_, i64>(3), 2, "one position of each lane");
        assert_eq!([self::newest(&hand, 0).await, self::newest(&hand, 1).await], newest);
    }
    let mut next = hand.holder().await;
    next.open(&hand, 0).await;
    next.open(&hand, 1).await;
    next.drain().await;
    assert_eq!(next.got, [""; 0], "nothing is read again");
}

async fn newest(hand: &Hand, lane: i32) -> (i64, i64, i64) {
    *hand.positions(lane).await.last().unwrap()
}
