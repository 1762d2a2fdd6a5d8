//! Reading without gaps: snapshots, floor, ceiling, stragglers, windows.

use pgbaton::source::Next;
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

use crate::gate::{Gate, Match};
use crate::hand::{Hand, Holder, SOON, sorted, sql, topics};

on_each_version!(
    a_floor_is_never_newer_than_its_snapshot,
    what_commits_between_snapshot_and_ceiling_is_delivered,
    what_commits_between_snapshot_and_ceiling_in_one_round_trip_is_delivered,
    a_window_of_other_lanes_rows_is_not_the_end,
    the_very_first_message_of_a_fresh_sequence_is_delivered,
    a_target_is_not_taken_in_a_transaction_with_an_id,
    a_target_older_than_what_a_lane_has_seen_is_not_taken_up,
    stragglers_go_on_from_where_they_stood,
    a_lane_that_reads_up_to_its_neighbours_does_not_skip_the_rest,
    a_lane_without_room_does_not_keep_the_reader_busy,
    messages_are_found_in_whichever_leaf_they_are,
    a_lane_far_behind_looks_into_the_segments_it_needs,
);

/// The smallest window: more messages than this take more than one read.
const MORE_THAN_A_WINDOW: i32 = 300;
const MORE_THAN_THE_LARGEST_WINDOW: i32 = 20_000;

/// A pair (l, x) is a floor only for snapshots that cover x: a transaction that began after the snapshot and before x
/// may own an id below l.
async fn a_floor_is_never_newer_than_its_snapshot(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.insert("early", "k", MORE_THAN_A_WINDOW).await;
    let gate = gate_of(&hand).await;
    let mut owner = hand.holder_at(&gate.dsn(hand.fixture.relay_dsn()), SOON).await;
    owner.open(&hand, 0).await;

    // Begins after the target's snapshot was taken, and has its id before the ceiling is read, which becomes l.
    let ceiling = gate.hold(Match::verb("ceiling"));
    let between = async {
        ceiling.reached().await;
        let late = hand.open_transaction("late", "k", 1).await;
        ceiling.release();
        late
    };
    let ((), late) = tokio::join!(owner.read_some(), between);
    let so_far = owner.got.len();
    assert!(so_far > 0 && so_far < topics("early", MORE_THAN_A_WINDOW).len(), "the target is not exhausted: {so_far}");
    owner.acknowledge().await.unwrap();
    // Before the next target is taken, which would list it as running.
    late.batch_execute("commit").await.unwrap();
    owner.drain().await;

    assert_eq!(owner.sorted(), sorted([topics("early", MORE_THAN_A_WINDOW), topics("late", 1)].concat()));
}

/// The ceiling is read after T, so nothing that T sees has a greater id.
async fn what_commits_between_snapshot_and_ceiling_is_delivered(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.insert("before", "k", 1).await;
    let gate = gate_of(&hand).await;
    let mut owner = hand.holder_at(&gate.dsn(hand.fixture.relay_dsn()), SOON).await;
    owner.open(&hand, 0).await;

    drain_while_one_commits(&hand, &gate, &mut owner).await;
    assert_eq!(owner.got, ["before 1", "between 1"]);
}

/// The same while messages come in, when both are asked for in one round trip.
async fn what_commits_between_snapshot_and_ceiling_in_one_round_trip_is_delivered(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let mut owner = hand.holder_at(&gate.dsn(hand.fixture.relay_dsn()), SOON).await;
    owner.open(&hand, 0).await;
    hand.insert("before", "k", 1).await;
    owner.read_some().await;

    drain_while_one_commits(&hand, &gate, &mut owner).await;
    assert_eq!(owner.got, ["before 1", "between 1"]);
}

/// Drains while a message commits between T and its ceiling.
async fn drain_while_one_commits(hand: &Hand, gate: &Gate, owner: &mut Holder) {
    // Whichever of the two statements comes second.
    let either = Match::Contains(vec![sql("target").to_owned(), sql("ceiling").to_owned()]);
    let second = gate.hold_after(1, either);
    let between = async {
        second.reached().await;
        hand.insert("between", "k", 1).await;
        second.release();
    };
    tokio::join!(owner.drain(), between);
    owner.drain().await;
}

/// Before the first message the sequence's last value is 1, and was not given out.
async fn the_very_first_message_of_a_fresh_sequence_is_delivered(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.drain().await;
    owner.acknowledge().await.unwrap();
    // The lane's S now covers the acknowledgement, whose pair becomes its floor.
    owner.drain().await;
    hand.insert("first", "k", 1).await;
    owner.drain().await;
    assert_eq!(owner.got, ["first 1"]);
}

/// A snapshot does not list the transaction that took it: once others have moved on, its own rows count as seen although
/// they are not there.
async fn a_target_is_not_taken_in_a_transaction_with_an_id(major: u32) {
    let hand = Hand::new(major, 1).await;
    let gate = gate_of(&hand).await;
    let mut owner = hand.holder_at(&gate.dsn(hand.fixture.relay_dsn()), SOON).await;
    owner.open(&hand, 0).await;
    // What is asked once after an opening is through.
    owner.drain().await;
    let unfinished = hand.open_transaction("unfinished", "k", 1).await;
    let id: String = unfinished.query_one("select pg_current_xact_id()::text", &[]).await.unwrap().get(0);
    hand.insert("other", "k", 1).await;
    let seen: bool = unfinished
        .query_one("select pg_visible_in_snapshot($1::text::xid8, pg_current_snapshot())", &[&id])
        .await
        .unwrap()
        .get(0);
    assert!(seen, "this is the danger");
    unfinished.batch_execute("commit").await.unwrap();
    let begin = Match::Contains(vec!["begin isolation level read committed read only".to_owned()]);
    gate.append(begin, "select pg_current_xact_id()");
    let refused = owner.read().await.unwrap_err();
    assert!(refused.to_string().contains("a transaction that has an id"), "{refused}");
    owner.drain().await;
    assert_eq!(owner.sorted(), ["other 1", "unfinished 1"]);
}

/// Two lanes of one replica may stand far apart. The one that has come further does not go back to the other's target.
async fn a_target_older_than_what_a_lane_has_seen_is_not_taken_up(major: u32) {
    let hand = Hand::new(major, 2).await;
    let (ahead, behind) = (hand.key(0).await, hand.key(1).await);
    hand.insert("behind", &behind, MORE_THAN_A_WINDOW).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 1).await;
    owner.read_some().await;
    assert!(owner.got.len() < 300, "its target stays: there is more to read");

    hand.insert("ahead", &ahead, 1).await;
    let mut before = hand.holder().await;
    before.open(&hand, 0).await;
    before.drain().await;
    assert_eq!(before.got, ["ahead 1"]);
    before.acknowledge().await.unwrap();

    owner.open(&hand, 0).await;
    owner.drain().await;
    hand.insert("last", &ahead, 1).await;
    owner.drain().await;
    assert_eq!(owner.sorted(), sorted([topics("behind", MORE_THAN_A_WINDOW), topics("last", 1)].concat()));
}

/// A transaction of many rows commits late: its rows come in steps, each from where the one before ended, also when
/// another replica goes on.
async fn stragglers_go_on_from_where_they_stood(major: u32) {
    const STRAGGLERS: i32 = 40_000; // more than two of the largest windows
    let hand = Hand::new(major, 1).await;
    let bulk = hand.open_transaction("bulk", "k", STRAGGLERS).await;
    hand.insert("other", "k", 1).await;
    let mut first = hand.holder().await;
    first.open(&hand, 0).await;
    first.drain().await;
    assert_eq!(first.got, ["other 1"], "the open transaction delays only its own rows");
    // A floor above all ids of the bulk, which makes them stragglers.
    first.acknowledge().await.unwrap();
    first.drain().await;
    bulk.batch_execute("commit").await.unwrap();
    first.read_some().await;
    first.acknowledge().await.unwrap();
    let so_far = first.got.len();
    assert!((2..20_000).contains(&so_far), "a step is bounded: {so_far}");

    let mut second = hand.holder().await;
    second.open(&hand, 0).await;
    second.drain().await;

    let got = [first.got, second.got].concat();
    assert_eq!(got, [topics("other", 1), topics("bulk", STRAGGLERS)].concat());
}

/// A lane without room is left behind. It then reads up to just where the others stand, which is not the end.
async fn a_lane_that_reads_up_to_its_neighbours_does_not_skip_the_rest(major: u32) {
    let hand = Hand::new(major, 2).await;
    let keys = [hand.key(0).await, hand.key(1).await];
    let rounds = 2 * MORE_THAN_A_WINDOW / 10;
    for round in 0..rounds {
        for (lane, key) in keys.iter().enumerate() {
            hand.insert(&format!("lane {lane} round {round:03}"), key, 5).await;
        }
    }
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.open(&hand, 1).await;
    owner.room(0, false);
    owner.read_some().await;
    assert!(owner.got.iter().all(|topic| topic.starts_with("lane 1")), "the other one has no room");
    owner.room(0, true);
    owner.drain().await;

    for lane in 0..2 {
        let prefix = format!("lane {lane} ");
        let got: Vec<String> = owner.got.iter().filter(|topic| topic.starts_with(&prefix)).cloned().collect();
        let wanted: Vec<String> =
            (0..rounds).flat_map(|round| topics(&format!("lane {lane} round {round:03}"), 5)).collect();
        assert_eq!(got, wanted);
    }
}

/// It stands in the middle of its difference, and the others have nothing to read.
async fn a_lane_without_room_does_not_keep_the_reader_busy(major: u32) {
    let hand = Hand::new(major, 2).await;
    let key = hand.key(0).await;
    hand.insert("held", &key, 2 * MORE_THAN_A_WINDOW).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.open(&hand, 1).await;
    owner.read_some().await;
    owner.room(0, false);
    // The other lane reads up to the end first. It gets on whenever anybody on the server has committed something.
    let mut answers = Vec::new();
    while answers.last() != Some(&Next::WithRoom) {
        assert!(answers.len() < 1_000, "{:?}", &answers[990..]);
        answers.push(owner.read().await.unwrap());
    }
    assert!(owner.got.len() < 2 * usize::try_from(MORE_THAN_A_WINDOW).unwrap(), "it is still on its way");
}

/// None of the rows of the first windows is for this lane.
async fn a_window_of_other_lanes_rows_is_not_the_end(major: u32) {
    let hand = Hand::new(major, 2).await;
    let (theirs, ours) = (hand.key(0).await, hand.key(1).await);
    hand.insert("theirs", &theirs, 5 * MORE_THAN_A_WINDOW).await;
    hand.insert("ours", &ours, 2).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 1).await;
    owner.drain().await;
    assert_eq!(owner.got, topics("ours", 2));
}

/// The hour turns while transactions are open, and a long statement writes into the leaf of the hour it began in.
async fn messages_are_found_in_whichever_leaf_they_are(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    let mut wanted = Vec::new();
    for leaf in [3, 4, 5, 6, 7, 0, 1, 2, 3, 2] {
        let late = hand.fixture.admin().await.unwrap();
        late.batch_execute("begin").await.unwrap();
        insert_into(&late, leaf, &format!("late {}", wanted.len())).await;
        let name = format!("early {}", wanted.len());
        insert_into(&hand.admin, leaf, &name).await;
        insert_into(&hand.admin, (leaf + 1) % 8, &name).await;
        owner.drain().await;
        late.batch_execute("commit").await.unwrap();
        owner.drain().await;
        owner.acknowledge().await.unwrap();
        wanted.extend(
            [topics(&name, LEAF), topics(&name, LEAF), topics(&format!("late {}", wanted.len()), LEAF)].concat(),
        );
    }
    assert_eq!(owner.got, wanted);
}

/// It takes up the target of the lanes ahead, for which the segments with old messages did not matter.
async fn a_lane_far_behind_looks_into_the_segments_it_needs(major: u32) {
    let hand = Hand::new(major, 2).await;
    let behind = hand.key(0).await;
    let old = "insert into pgbaton.outbox (segment, topic, key) values (2, 'old', $1)";
    hand.admin.execute(old, &[&behind]).await.unwrap();
    let mut owner = hand.holder().await;
    owner.open(&hand, 1).await;
    let ahead = hand.key(1).await;
    let new =
        "insert into pgbaton.outbox (segment, topic, key) select 5, 'new ' || n, $1 from generate_series(1, $2) n";
    // A floor is known once a target has passed that is newer than an acknowledgement.
    for _ in 0..3 {
        hand.admin.execute(new, &[&ahead, &1]).await.unwrap();
        owner.drain().await;
        owner.acknowledge().await.unwrap();
    }
    hand.admin.execute(new, &[&ahead, &MORE_THAN_THE_LARGEST_WINDOW]).await.unwrap();
    owner.read_some().await;
    assert!(owner.got.len() < usize::try_from(MORE_THAN_THE_LARGEST_WINDOW).unwrap(), "it is still on its way");
    owner.open(&hand, 0).await;
    owner.drain().await;
    assert_eq!(owner.got.iter().filter(|topic| *topic == "old").count(), 1);
}

const LEAF: i32 = 3;

async fn insert_into(client: &Client, leaf: i32, name: &str) {
    let sql = "insert into pgbaton.outbox (segment, topic, key)
               select $1::int, $2 || ' ' || n, 'k' from generate_series(1, $3) n";
    client.execute(sql, &[&leaf, &name, &LEAF]).await.unwrap();
}

/// On an idle database a look for news takes no transaction id and writes nothing.
#[tokio::test]
async fn an_idle_look_takes_no_transaction_id() {
    // A vacuum of the server's own would take ids.
    let settings = vec![("autovacuum".to_owned(), "off".to_owned())];
    let options = Options { settings, ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(15).unwrap(), options).await.unwrap();
    let hand = Hand::on(Fixture::on(&cluster).await.unwrap(), 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.drain().await;
    let next = || async {
        let row = hand.admin.query_one("select pg_snapshot_xmax(pg_current_snapshot())::text", &[]).await.unwrap();
        row.get::<_, String>(0)
    };
    let before = next().await;
    for _ in 0..20 {
        owner.drain().await;
    }
    assert_eq!(before, next().await);
    let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 0] = [];
    let row = hand.relay.query_typed(sql("target"), &parameters).await.unwrap();
    assert!(row[0].get::<_, bool>("alone"));
}

async fn gate_of(hand: &Hand) -> Gate {
    let row = hand.admin.query_one("select current_setting('port')::integer", &[]).await.unwrap();
    Gate::start(u16::try_from(row.get::<_, i32>(0)).unwrap()).await
}
