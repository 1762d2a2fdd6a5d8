//! The reason for all this: two relays over one backlog never publish the same row, through publish and acknowledge. The
//! classic relay, put to the same test, does.

use std::time::Duration;

use pgbaton::relay::Limits;
use proof::classic::{self, Classic};
use proof::fixture::{Fixture, PRODUCER, RELAY};
use proof::on_each_version;
use proof::writers::{self, Arrival, Outbox, Plan, Verdict, Writers, Written};

use crate::hand::until;
use crate::recorder::Records;
use crate::replicas::Setup;

on_each_version!(two_replicas_never_publish_one_row, two_classic_relays_publish_rows_twice);

const MESSAGES: usize = 4_000;

/// Publishing a batch takes longer than a relay waits before it looks again.
const SLOW: Duration = Duration::from_millis(150);

async fn backlog(fixture: &Fixture, outbox: Outbox) -> Written {
    let admin = fixture.admin().await.unwrap();
    writers::prepare(&admin, PRODUCER, 200).await.unwrap();
    if outbox == Outbox::Classic {
        classic::prepare(&admin, PRODUCER, RELAY).await.unwrap();
    }
    let plan = Plan { messages: MESSAGES as u64, keys: 200, tasks: 4, outbox, ..Plan::default() };
    Writers::start(fixture.producer_dsn(), plan).await.unwrap().finish().await.unwrap()
}

async fn two_replicas_never_publish_one_row(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let written = backlog(&fixture, Outbox::Native).await;
    let records = Records::default();
    let setup = Setup { limits: Limits { batch_messages: 20, ..Limits::default() }, ..Setup::default() };
    let start = |name| setup.start(fixture.relay_dsn(), name, &records.sink(name, SLOW));
    let (first, second) = (start("first"), start("second"));
    until("everything arrived", || async { records.count() >= MESSAGES }).await;
    first.stop().await;
    second.stop().await;
    for name in ["first", "second"] {
        let calls = records.calls().iter().filter(|call| call.replica == name).count();
        assert!(calls > 10, "{name} published {calls} batches");
    }

    // All of it was acknowledged: a third replica finds only what is new.
    let third = start("third");
    let producer = fixture.producer().await.unwrap();
    crate::hand::insert(&producer, "new", "k", 1).await;
    until("the new one arrived", || async { records.calls().iter().any(|call| call.topics == ["new 1"]) }).await;
    third.stop().await;
    records.assert_exclusive();
    let old: Vec<Arrival> =
        records.calls().into_iter().filter(|call| call.topics != ["new 1"]).flat_map(|call| call.messages).collect();
    let verdict = Verdict::of(&written, &old);
    assert!(verdict.is_flawless() && verdict.delivered == MESSAGES, "{verdict:?}");
}

async fn two_classic_relays_publish_rows_twice(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let written = backlog(&fixture, Outbox::Classic).await;
    let relay = Classic { batch: 100, tick: Duration::from_millis(100), slowness: SLOW };
    let relays = [0, 1].map(|_| {
        let dsn = fixture.relay_dsn().to_owned();
        tokio::spawn(async move { relay.run(&dsn).await })
    });
    let admin = fixture.admin().await.unwrap();
    until("everything is marked as published", || async {
        let left = "select from classic_outbox where published_at is null limit 1";
        admin.query(left, &[]).await.unwrap().is_empty()
    })
    .await;
    relays.iter().for_each(tokio::task::JoinHandle::abort);

    let rows = admin.query("select message_id, payload::text from classic_inbox order by seq", &[]).await.unwrap();
    let arrivals: Vec<Arrival> =
        rows.iter().map(|row| Arrival { message_id: row.get(0), payload: row.get(1) }).collect();
    let verdict = Verdict::of(&written, &arrivals);
    assert!(verdict.duplicates > 0, "it was lucky this time: {verdict:?}");
    assert_eq!((verdict.lost, verdict.unexpected), (0, 0), "{verdict:?}");
}
