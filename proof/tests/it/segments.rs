//! Segments of the outbox: emptied once every lane of every relay has passed them, and never before.

use pgbaton::{Database, housekeeping};
use proof::on_each_version;
use tokio_postgres::Client;

use crate::hand::{Hand, Holder, SOON, until};

mod racing;
mod ring;
mod set_back;

on_each_version!(
    a_segment_is_emptied_once_every_lane_has_passed_it,
    what_was_open_when_a_position_was_taken_keeps_its_segment,
    a_long_diff_gives_up_segments_on_its_way,
    another_relay_keeps_what_it_needs,
    a_relay_that_starts_at_the_latest_keeps_nothing_older,
    retention_keeps_what_everybody_has_passed,
    nobody_queues_behind_a_long_reader,
    a_segment_is_not_emptied_while_a_relay_is_registered,
    a_transaction_that_sees_nothing_new_empties_nothing,
    the_relays_role_runs_nothing_as_the_owner,
);

/// Two segments that are not in use, nor will be soon.
pub async fn aside(client: &Client) -> (i16, i16) {
    let now: i16 = client.query_one("select pgbaton.segment_at(now())", &[]).await.unwrap().get(0);
    ((now + 3) % 8, (now + 4) % 8)
}

/// Inserts messages into a segment, as if that were the one in use.
pub async fn insert_into(client: &Client, segment: i16, name: &str, key: &str, count: i32) {
    let sql = "insert into pgbaton.outbox (segment, topic, key)
               select $1, $2 || ' ' || n, $3 from generate_series(1, $4) n";
    client.execute(sql, &[&segment, &name, &key, &count]).await.unwrap();
}

/// Messages that a segment holds.
pub async fn count(client: &Client, segment: i16) -> i64 {
    let sql = "select count(*) from pgbaton.outbox where segment = $1";
    client.query_one(sql, &[&segment]).await.unwrap().get(0)
}

/// Has segments emptied as the relay's role, which must not be able to do it otherwise.
pub async fn empty(hand: &Hand) {
    let database = Database::new(hand.fixture.relay_dsn(), SOON).unwrap();
    housekeeping::empty(&database).await.unwrap();
}

/// Tries to empty a segment, and says why it was not.
pub async fn why(client: &Client, segment: i16) -> Option<String> {
    client.query_one("select pgbaton.empty_segment($1)", &[&segment]).await.unwrap().get(0)
}

async fn a_segment_is_emptied_once_every_lane_has_passed_it(major: u32) {
    let hand = Hand::new(major, 2).await;
    let (segment, _) = aside(&hand.admin).await;
    let keys = [hand.key(0).await, hand.key(1).await];
    insert_into(&hand.admin, segment, "a", &keys[0], 3).await;
    insert_into(&hand.admin, segment, "b", &keys[1], 3).await;
    rolled_back(&hand.admin, segment, &keys[1]).await;

    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    empty(&hand).await;
    owner.deliver().await;
    assert_eq!(why(&hand.relay, segment).await.unwrap(), "relay orders, lane 1");
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 6, "lane 1 needs it");

    owner.open(&hand, 1).await;
    owner.deliver().await;
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 0);
    assert_eq!(owner.sorted(), ["a 1", "a 2", "a 3", "b 1", "b 2", "b 3"]);
    is_used_again(&hand, segment, &mut owner).await;
}

async fn rolled_back(client: &Client, segment: i16, key: &str) {
    client.batch_execute("begin").await.unwrap();
    insert_into(client, segment, "rolled back", key, 3).await;
    client.batch_execute("rollback").await.unwrap();
}

/// It is written to and read as before.
async fn is_used_again(hand: &Hand, segment: i16, owner: &mut Holder) {
    insert_into(&hand.admin, segment, "again", &hand.key(0).await, 1).await;
    owner.drain().await;
    assert_eq!(owner.got.last().unwrap(), "again 1");
}

/// Its greatest transaction id lies below S, and yet S does not see all of it.
async fn what_was_open_when_a_position_was_taken_keeps_its_segment(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    let open = hand.fixture.admin().await.unwrap();
    open.batch_execute("begin").await.unwrap();
    insert_into(&open, segment, "open", "k", 1).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    open.batch_execute("commit").await.unwrap();
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 2);

    owner.drain().await;
    assert_eq!(owner.got, ["m 1", "open 1"]);
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 2, "nothing is written down yet");
    owner.acknowledge().await.unwrap();
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 0);
}

/// S stays where it was for the whole of a backlog; what lies at or below `last` has been dealt with.
async fn a_long_diff_gives_up_segments_on_its_way(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (first, second) = aside(&hand.admin).await;
    insert_into(&hand.admin, first, "first", "k", 400).await;
    insert_into(&hand.admin, second, "second", "k", 2_000).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.read_some().await;
    owner.acknowledge().await.unwrap();
    empty(&hand).await;
    assert_eq!(count(&hand.admin, first).await, 400, "{} were read", owner.got.len());
    while owner.got.len() < 400 {
        owner.read_some().await;
    }
    assert!(owner.got.len() < 2_000);
    owner.acknowledge().await.unwrap();
    empty(&hand).await;
    assert_eq!((count(&hand.admin, first).await, count(&hand.admin, second).await), (0, 2_000));

    let mut next = hand.holder().await;
    next.open(&hand, 0).await;
    next.drain().await;
    assert_eq!(owner.got.len() + next.got.len(), 2_400);
}

async fn another_relay_keeps_what_it_needs(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    hand.register("late", false).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    assert_eq!(why(&hand.relay, segment).await.unwrap(), "relay late, lane 0");
    hand.admin.batch_execute("delete from pgbaton.lane where relay = 'late'").await.unwrap();
    assert_eq!(why(&hand.relay, segment).await.unwrap(), "relay late, which lacks lanes");
    hand.admin.batch_execute("delete from pgbaton.lane; delete from pgbaton.relay").await.unwrap();
    assert_eq!(why(&hand.relay, segment).await.unwrap(), "no relay that reads the outbox is registered");
    assert_eq!(count(&hand.admin, segment).await, 1);
}

/// What was committed before it was registered is none of its business; what was open then is.
async fn a_relay_that_starts_at_the_latest_keeps_nothing_older(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, other) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    let open = hand.fixture.admin().await.unwrap();
    open.batch_execute("begin").await.unwrap();
    insert_into(&open, other, "open", "k", 1).await;
    hand.register("late", true).await;
    open.batch_execute("commit").await.unwrap();
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    empty(&hand).await;
    assert_eq!((count(&hand.admin, segment).await, count(&hand.admin, other).await), (0, 1));
    assert_eq!(why(&hand.relay, other).await.unwrap(), "relay late, lane 0");
}

async fn retention_keeps_what_everybody_has_passed(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    hand.admin.batch_execute("update pgbaton.ring set retention = '1 hour'").await.unwrap();
    assert_eq!(why(&hand.relay, segment).await.unwrap(), "retention");
    hand.admin.batch_execute("update pgbaton.outbox set created_at = now() - interval '61 minutes'").await.unwrap();
    owner.deliver().await;
    assert_eq!(why(&hand.relay, segment).await, None);
}

/// A dump or a report holds the segment for hours. Whoever waited for its lock would hold up inserts and reads.
async fn nobody_queues_behind_a_long_reader(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    let reader = hand.fixture.admin().await.unwrap();
    reader.batch_execute(&format!("begin; select * from pgbaton.outbox_{segment}")).await.unwrap();
    let waits = "select exists (select from pg_locks where locktype = 'relation' and not granted)";
    let mut waited = false;
    let mut emptying = std::pin::pin!(empty(&hand));
    let watcher = hand.fixture.admin().await.unwrap();
    // A wait of 50 ms is longer than several of these looks.
    while futures_util::FutureExt::now_or_never(&mut emptying).is_none() {
        waited |= watcher.query_one(waits, &[]).await.unwrap().get::<_, bool>(0);
    }
    assert!(!waited, "inserts and reads would have queued behind it");
    assert_eq!(why(&hand.relay, segment).await.unwrap(), "another transaction uses it");
    assert_eq!(count(&hand.admin, segment).await, 1);
    reader.batch_execute("commit").await.unwrap();
    empty(&hand).await;
    assert_eq!(count(&hand.admin, segment).await, 0);
}

/// "Every lane of every relay" must not be asked while there is about to be one more.
async fn a_segment_is_not_emptied_while_a_relay_is_registered(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    let registering = hand.fixture.relay().await.unwrap();
    registering.batch_execute("begin; select pg_advisory_xact_lock_shared(pgbaton.relays_lock())").await.unwrap();
    assert!(why(&hand.relay, segment).await.unwrap().contains("being registered"));
    registering.batch_execute("rollback").await.unwrap();
    assert_eq!(why(&hand.relay, segment).await, None);

    // And the other way round: whoever registers waits until it is emptied.
    hand.admin.batch_execute("begin; select pg_advisory_xact_lock(pgbaton.relays_lock())").await.unwrap();
    let waiting = tokio::spawn(async move {
        registering.batch_execute("begin; select pg_advisory_xact_lock_shared(pgbaton.relays_lock()); commit").await
    });
    let queued = "select exists (select from pg_locks where locktype = 'advisory' and not granted)";
    until("it waits", async || hand.admin.query_one(queued, &[]).await.unwrap().get(0)).await;
    hand.admin.batch_execute("commit").await.unwrap();
    waiting.await.unwrap().unwrap();
}

async fn a_transaction_that_sees_nothing_new_empties_nothing(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    hand.relay.batch_execute("begin isolation level repeatable read").await.unwrap();
    assert!(why(&hand.relay, segment).await.unwrap().contains("does not see"));
    hand.relay.batch_execute("rollback").await.unwrap();
    assert_eq!(why(&hand.relay, segment).await, None);
}

/// The function runs with the owner's rights, and types are looked for in the session's own schema first.
async fn the_relays_role_runs_nothing_as_the_owner(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "m", "k", 1).await;
    hand.relay
        .batch_execute(
            "create temp table seen (who text);
             create function pg_temp.evil(value anyelement) returns boolean language plpgsql
               as $$ begin insert into pg_temp.seen values (current_user); return true; end $$;
             create domain pg_temp.text as pg_catalog.text check (pg_temp.evil(value));
             create domain pg_temp.bigint as pg_catalog.int8 check (pg_temp.evil(value));
             create domain pg_temp.xid8 as pg_catalog.xid8 check (pg_temp.evil(value));
             create table pg_temp.relay as select * from pgbaton.relay;
             grant all on seen to public",
        )
        .await
        .unwrap();
    let _ = why(&hand.relay, segment).await;
    let seen = hand.relay.query("select who from pg_temp.seen where who <> current_user", &[]).await.unwrap();
    assert!(seen.is_empty(), "{:?}", seen.iter().map(|row| row.get::<_, String>(0)).collect::<Vec<_>>());
}
