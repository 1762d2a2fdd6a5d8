//! How the ring is set: more segments, another length, and what goes on meanwhile.

use std::process::Output;

use proof::on_each_version;

use crate::hand::{Hand, SOON, insert, until};
use crate::segments::{aside, count, empty, insert_into};

on_each_version!(the_ring_is_set_while_messages_go_on, an_outbox_that_nobody_can_empty_takes_messages);

fn succeeded(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    stderr
}

async fn the_ring_is_set_while_messages_go_on(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.fixture.inbox("app.inbox").await.unwrap();
    let relays = format!("[relays.orders]\nlanes = 1\nsink = {}\n", hand.fixture.inbox_sink("app.inbox"));
    let mut replica = hand.fixture.run("r1", &relays).unwrap();
    insert(&hand.producer, "before", "k", 3).await;
    // A transaction that has inserted holds the outbox; setting the ring waits for it, and nobody waits for that.
    let open = hand.open_transaction("open", "k", 1).await;
    let dsn = hand.fixture.migrate_dsn().to_owned();
    let arguments = ["segments", "set", "--count", "12", "--length", "2s", "--retention", "0s", "--dsn", &dsn];
    let setting = hand.fixture.pgbaton(&arguments);
    let committing = async {
        for _ in 0..20 {
            insert(&hand.producer, "meanwhile", "k", 1).await;
        }
        open.batch_execute("commit").await.unwrap();
    };
    let (set, ()) = tokio::join!(setting, committing);
    let told = succeeded(&set.unwrap());
    assert!(told.contains("12 segments of 2 s each"), "{told}");

    // Eleven seconds later every segment has been in use.
    let used = "select count(distinct segment) from pgbaton.outbox where segment >= 8";
    let arrived = "select count(*) from app.inbox";
    let mut sent = 24;
    until("new segments are in use", async || {
        insert(&hand.producer, "after", "k", 1).await;
        sent += 1;
        hand.admin.query_one(used, &[]).await.unwrap().get::<_, i64>(0) > 0
    })
    .await;
    until("all of it arrives", async || hand.admin.query_one(arrived, &[]).await.unwrap().get::<_, i64>(0) == sent)
        .await;
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());

    let shown = hand.fixture.pgbaton(&["segments", "--json", "--dsn", hand.fixture.relay_dsn()]).await.unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["segments"].as_array().unwrap().len(), 12);
    let too_long = ["segments", "set", "--count", "12", "--length", "1h", "--retention", "11h", "--dsn", &dsn];
    let refused = hand.fixture.pgbaton(&too_long).await.unwrap();
    assert_eq!(refused.status.code(), Some(1), "a segment would come round before it may be emptied");
    let refused = hand.fixture.pgbaton(&["segments", "set", "--count", "2", "--dsn", &dsn]).await.unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let refused =
        hand.fixture.pgbaton(&["segments", "set", "--count", "9", "--dsn", hand.fixture.relay_dsn()]).await.unwrap();
    assert_eq!(refused.status.code(), Some(1), "only the owner may");
}

/// Every segment is full of what nobody delivers, and comes round again.
async fn an_outbox_that_nobody_can_empty_takes_messages(major: u32) {
    let hand = Hand::new(major, 1).await;
    for segment in 0..8 {
        insert_into(&hand.admin, segment, &format!("old {segment}"), "k", 10).await;
    }
    empty(&hand).await;
    let (first, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, first, "again", "k", 5).await;
    insert(&hand.producer, "new", "k", 5).await;
    empty(&hand).await;
    assert_eq!(count(&hand.admin, first).await, 15);
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.drain().await;
    assert_eq!(owner.got.len(), 90);
    owner.acknowledge().await.unwrap();
    empty(&hand).await;
    let left = "select count(*), count(distinct segment) from pgbaton.outbox";
    let row = hand.admin.query_one(left, &[]).await.unwrap();
    assert!(row.get::<_, i64>(1) <= 2, "only what is in use, or will be in a moment, is left");
}
