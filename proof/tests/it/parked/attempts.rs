//! What is written of attempts, step by step.

use std::time::Duration;

use pgbaton::Database;
use pgbaton::control::parked::{self, Deed, Selection};
use pgbaton::source::{Acknowledged, Batch, Failed, Source};
use proof::on_each_version;

use crate::hand::{Hand, Holder, SOON, until};

on_each_version!(
    an_acknowledgement_that_is_made_twice_counts_once,
    nothing_is_set_aside_under_another_epoch,
    what_is_brought_back_while_its_key_is_tried_is_next,
    nothing_goes_past_a_dead_message_that_holds_its_key,
);

fn failed(after: Option<Duration>) -> Failed {
    Failed { code: "sink.test".to_owned(), text: "a test".to_owned(), counts: true, after, holds: true, suspect: false }
}

/// The next batch with messages.
async fn next(owner: &mut Holder) -> Batch {
    let mut found = None;
    until("something to read", async || {
        found = owner.batches().await.into_iter().find(|batch| !batch.messages.is_empty());
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// Its answer was lost.
async fn an_acknowledgement_that_is_made_twice_counts_once(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 3).await;
    let mut batch = next(&mut owner).await;
    batch.set_aside(vec![(0, Some(failed(Some(Duration::ZERO)))), (1, None), (2, None)]);
    let dealt = batch.into_dealt(0).unwrap();
    for _ in 0..2 {
        let answer = owner.source.acknowledge(std::slice::from_ref(&dealt)).await.unwrap();
        assert!(matches!(answer.as_slice(), [Acknowledged::Written(_)]), "{answer:?}");
    }
    let mut again = next(&mut owner).await;
    assert!(again.is_retry() && again.messages.len() == 3);
    assert_eq!(again.attempts(0).0, 1);
    again.set_aside(vec![(0, Some(failed(Some(Duration::from_secs(3_600))))), (1, None), (2, None)]);
    let dealt = again.into_dealt(0).unwrap();
    for _ in 0..2 {
        owner.source.acknowledge(std::slice::from_ref(&dealt)).await.unwrap();
    }
    let rows =
        "select topic, attempts, next_at is not null, jsonb_array_length(faults) from pgbaton.parked order by number";
    let rows = hand.admin.query(rows, &[]).await.unwrap();
    let told: Vec<(String, i32, bool, i32)> =
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
    let of = |topic: &str, attempts, head| (topic.to_owned(), attempts, head, attempts);
    assert_eq!(told, [of("m 1", 2, true), of("m 2", 0, false), of("m 3", 0, false)]);
}

/// Whoever has lost the lane writes nothing of it.
async fn nothing_is_set_aside_under_another_epoch(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 1).await;
    let mut batch = next(&mut owner).await;
    let other = hand.holder().await;
    hand.give(0, other.id).await;
    batch.set_aside(vec![(0, Some(failed(None)))]);
    let answer = owner.source.acknowledge(&[batch.into_dealt(0).unwrap()]).await.unwrap();
    assert!(matches!(answer.as_slice(), [Acknowledged::LaneLost(..)]), "{answer:?}");
    let parked: i64 = hand.admin.query_one("select count(*) from pgbaton.parked", &[]).await.unwrap().get(0);
    assert_eq!(parked, 0);
}

fn dead(holds: bool) -> Failed {
    Failed { holds, ..failed(None) }
}

/// Has the first of three messages, which is dead, tried again, as an operator would.
async fn bring_back_the_first(hand: &Hand) {
    let database = Database::new(hand.fixture.relay_dsn(), SOON).unwrap();
    let id = hand.admin.query_one("select id from pgbaton.parked where topic = 'm 1'", &[]).await.unwrap().get(0);
    let which = Selection { relay: Some("orders".to_owned()), ids: vec![id], ..Selection::default() };
    assert_eq!(parked::act(&database, &which, Deed::Retry).await.unwrap(), 1);
}

/// A batch of the key is at the sink meanwhile, and its second message fails.
async fn what_is_brought_back_while_its_key_is_tried_is_next(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 3).await;
    let mut batch = next(&mut owner).await;
    batch.set_aside(vec![(0, Some(dead(false))), (1, Some(failed(Some(Duration::ZERO)))), (2, None)]);
    owner.source.acknowledge(&[batch.into_dealt(0).unwrap()]).await.unwrap();
    let mut again = next(&mut owner).await;
    assert!(again.is_retry() && again.messages.len() == 2);
    bring_back_the_first(&hand).await;
    again.set_aside(vec![(1, Some(failed(Some(Duration::ZERO))))]);
    let answer = owner.source.acknowledge(&[again.into_dealt(1).unwrap()]).await.unwrap();
    assert!(matches!(answer.as_slice(), [Acknowledged::Written(_)]), "{answer:?}");
    let next = next(&mut owner).await;
    let topics: Vec<&str> = next.messages.iter().map(|message| message.topic).collect();
    assert_eq!(topics, ["m 1", "m 3"]);
}

async fn nothing_goes_past_a_dead_message_that_holds_its_key(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 3).await;
    let mut batch = next(&mut owner).await;
    batch.set_aside(vec![(0, Some(dead(false))), (1, Some(dead(true))), (2, None)]);
    owner.source.acknowledge(&[batch.into_dealt(0).unwrap()]).await.unwrap();
    bring_back_the_first(&hand).await;
    let next = next(&mut owner).await;
    let topics: Vec<&str> = next.messages.iter().map(|message| message.topic).collect();
    assert_eq!(topics, ["m 1"]);
}
