//! What is about to be emptied, and is written to or committed at that very moment.

use proof::on_each_version;
use tokio_postgres::Client;

use crate::hand::{Hand, until};
use crate::segments::{aside, count, insert_into, why};

on_each_version!(
    what_commits_while_the_lock_is_waited_for_is_kept,
    what_was_open_when_a_target_was_taken_keeps_its_segment,
    the_segment_in_use_is_never_emptied,
);

/// Nobody needs the segment when it is looked at first: the one that has inserted has not committed.
async fn what_commits_while_the_lock_is_waited_for_is_kept(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    let waits = format!(
        "select exists (select from pg_locks where not granted and relation = 'pgbaton.outbox_{segment}'::regclass)"
    );
    let mut sent = 0;
    loop {
        let open = hand.fixture.admin().await.unwrap();
        open.batch_execute("begin").await.unwrap();
        insert_into(&open, segment, "m", "k", 1).await;
        sent += 1;
        let waiting = async || hand.admin.query_one(&waits, &[]).await.unwrap().get::<_, bool>(0);
        let committing = async {
            // It waits for 50 ms only, so it may have given up on a busy machine.
            for _ in 0..50 {
                if waiting().await {
                    break;
                }
            }
            open.batch_execute("commit").await.unwrap();
        };
        let (kept, ()) = tokio::join!(why(&hand.relay, segment), committing);
        assert_eq!(count(&hand.admin, segment).await, sent, "{kept:?}");
        if kept.as_deref() == Some("relay orders, lane 0") {
            break;
        }
        // Too late: again, with nobody in need of what is there.
        owner.drain().await;
        owner.acknowledge().await.unwrap();
    }
    owner.drain().await;
    assert_eq!(i64::try_from(owner.got.len()).unwrap(), sent);
}

/// Its id lies below what has been read of the diff, and its transaction was there when T was taken, but not in T.
async fn what_was_open_when_a_target_was_taken_keeps_its_segment(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (first, second) = aside(&hand.admin).await;
    let open = hand.fixture.admin().await.unwrap();
    open.batch_execute("begin").await.unwrap();
    insert_into(&open, first, "open", "k", 1).await;
    insert_into(&hand.admin, second, "m", "k", 2_000).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.read_some().await;
    assert!(owner.got.len() < 2_000, "the diff is over");
    owner.acknowledge().await.unwrap();
    open.batch_execute("commit").await.unwrap();
    assert_eq!(why(&hand.relay, first).await.unwrap(), "relay orders, lane 0");
    owner.drain().await;
    assert_eq!((owner.got.len(), owner.got.last().unwrap().as_str()), (2_001, "open 1"));
    owner.acknowledge().await.unwrap();
    assert_eq!(why(&hand.relay, first).await, None);
}

/// Whoever inserts now would wait for the lock, and so would each read.
async fn the_segment_in_use_is_never_emptied(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 3).await;
    owner.drain().await;
    owner.acknowledge().await.unwrap();
    until("the hour does not end meanwhile", async || {
        let (segment, next) = (in_use(&hand.admin, "0 s").await, in_use(&hand.admin, "5 s").await);
        let kept = (why(&hand.relay, segment).await, why(&hand.relay, next).await);
        segment == in_use(&hand.admin, "0 s").await && kept == (Some("in use".to_owned()), Some("in use".to_owned()))
    })
    .await;
    // The one that is next in a moment counts as in use, too.
    hand.admin.batch_execute("select pgbaton.set_ring(8, 5, '0')").await.unwrap();
    until("no segment begins meanwhile", async || {
        let (before, next) = (in_use(&hand.admin, "0 s").await, in_use(&hand.admin, "5 s").await);
        let kept = why(&hand.relay, next).await;
        assert_ne!(before, next);
        before == in_use(&hand.admin, "0 s").await && kept.as_deref() == Some("in use")
    })
    .await;
}

async fn in_use(client: &Client, later: &str) -> i16 {
    let sql = format!("select pgbaton.segment_at(clock_timestamp() + interval '{later}')");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}
