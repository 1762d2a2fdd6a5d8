//! What a sink holds when a lane is opened, compared with what the database says.

use pgbaton::lane::Epoch;
use pgbaton::source::{Opaque, Opened};
use proof::fixture::Fixture;
use proof::on_each_version;
use tokio_postgres::Client;

use crate::hand::{Hand, SOON, insert, until};

on_each_version!(a_sink_ahead_is_settled, a_position_of_another_incarnation_does_not_count);

/// The answer to the acknowledgement was lost, or it was never sent: the sink has one batch more.
async fn a_sink_ahead_is_settled(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut first = hand.holder().await;
    first.open(&hand, 0).await;
    hand.insert("m", "k", 1).await;
    first.drain().await;
    first.acknowledge().await.unwrap();
    hand.insert("delivered", "k", 1).await;
    first.drain().await;
    let dealt = first.dealt(0);
    let held = Opaque::new(dealt.batch, &dealt.next);

    let mut second = hand.holder().await;
    let opened = second.open_with(&hand, 0, Some(&held)).await.unwrap();
    assert_eq!(opened, Opened::Settled { batch: 2 });
    let newest = *hand.positions(0).await.last().unwrap();
    assert_eq!((newest.0, newest.2), (second.grant(0).epoch.0, 2), "recorded before anything else is sent");
    hand.insert("new", "k", 1).await;
    second.drain().await;
    assert_eq!(second.got, ["new 1"]);

    // The same again: now the database knows.
    let mut third = hand.holder().await;
    assert_eq!(third.open_with(&hand, 0, Some(&held)).await.unwrap(), Opened::Ours { batch: 2 });
}

async fn a_position_of_another_incarnation_does_not_count(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut first = hand.holder().await;
    first.open(&hand, 0).await;
    hand.insert("m", "k", 1).await;
    first.drain().await;
    let dealt = first.dealt(0);

    let mut elsewhere = dealt.next.clone();
    elsewhere.incarnation.system += 1;
    let mut earlier = dealt.next.clone();
    earlier.incarnation.timeline -= 1;
    for bookmark in [elsewhere, earlier] {
        let mut next = hand.holder().await;
        let opened = next.open_with(&hand, 0, Some(&Opaque::new(7, &bookmark))).await.unwrap();
        assert_eq!(opened, Opened::Announced { batch: 7 });
        next.drain().await;
        assert_eq!(next.got, ["m 1"], "the database's position counts");
    }

    let mut promoted = dealt.next.clone();
    promoted.incarnation.timeline += 1;
    let mut next = hand.holder().await;
    let refused = next.open_with(&hand, 0, Some(&Opaque::new(7, &promoted))).await.unwrap_err();
    assert_eq!(refused.code(), "refused");
    assert!(refused.to_string().contains("old primary"), "{refused}");

    let unreadable = Opaque::from_bytes(b"{\"v\":2}".to_vec());
    let refused = next.open_with(&hand, 0, Some(&unreadable)).await.unwrap_err();
    assert!(refused.to_string().contains("newer version"), "{refused}");
}

/// One lane into an inbox.
async fn with_inbox() -> (Fixture, Client, String) {
    let fixture = Fixture::new(15).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let relays = format!(
        "[lease]\nttl = \"2s\"\n[relays.orders]\nlanes = 1\nsink = {}\nacknowledge = \"10ms\"\n",
        fixture.inbox_sink("app.inbox")
    );
    (fixture, admin, relays)
}

async fn inbox(admin: &Client) -> Vec<String> {
    let rows = admin.query("select topic from app.inbox order by seq", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn epoch(admin: &Client) -> Epoch {
    Epoch(admin.query_one("select epoch from pgbaton.lane", &[]).await.unwrap().get(0))
}

/// Claims were lost in a fail-over: the sink knows an epoch above ours, or the same one, at the first opening. The
/// rightful owner is not refused for ever.
#[tokio::test]
async fn an_epoch_that_the_sink_knows_is_raised() {
    for (at_the_sink, raised) in [(100, 101), (1, 2)] {
        let (fixture, admin, relays) = with_inbox().await;
        let fence = format!("insert into app.inbox_fence (relay, lane, epoch) values ('orders', 0, {at_the_sink})");
        admin.batch_execute(&fence).await.unwrap();
        let mut replica = fixture.run("r1", &relays).unwrap();
        insert(&fixture.producer().await.unwrap(), "m", "k", 5).await;
        until("it delivers", || async { inbox(&admin).await.len() == 5 }).await;
        assert_eq!(epoch(&admin).await, Epoch(raised));
        let fence: i64 = admin.query_one("select epoch from app.inbox_fence", &[]).await.unwrap().get(0);
        assert_eq!(fence, raised);
        assert_eq!(replica.lines_with("raised above it").len(), 1);
        replica.terminate().unwrap();
        assert!(replica.wait(SOON).await.unwrap().success());
    }
}

/// The sink was restored from a backup: what it had is gone, position and messages together.
#[tokio::test]
async fn a_sink_that_lost_its_tail_stops_the_lane_or_gets_it_again() {
    let (fixture, admin, relays) = with_inbox().await;
    let producer = fixture.producer().await.unwrap();
    deliver(&fixture, &admin, &relays, "kept").await;
    admin.batch_execute("create table app.backup as select * from app.inbox_fence").await.unwrap();
    deliver(&fixture, &admin, &relays, "lost").await;
    admin
        .batch_execute(
            "delete from app.inbox where topic like 'lost %';
             update app.inbox_fence f set position = b.position from app.backup b",
        )
        .await
        .unwrap();

    let mut stopped = fixture.run("stopped", &relays).unwrap();
    let alarm = stopped.wait_for_line("it has lost its tail", SOON).await.unwrap();
    assert!(alarm.contains("ERROR"), "{alarm}");
    insert(&producer, "new", "k", 1).await;
    stopped.terminate().unwrap();
    assert!(stopped.wait(SOON).await.unwrap().success());
    assert_eq!(inbox(&admin).await, ["kept 1", "kept 2", "kept 3"], "nothing was published past the gap");

    let mut resending = fixture.run("resending", &format!("{relays}on_sink_loss = \"resend\"\n")).unwrap();
    until("what was lost and what is new arrives", || async { inbox(&admin).await.len() == 7 }).await;
    let wanted = ["kept 1", "kept 2", "kept 3", "lost 1", "lost 2", "lost 3", "new 1"];
    assert_eq!(inbox(&admin).await, wanted);
    resending.terminate().unwrap();
    assert!(resending.wait(SOON).await.unwrap().success());
    // And from now on all is well again.
    deliver(&fixture, &admin, &relays, "later").await;
}

/// Three messages, delivered and acknowledged by a replica that then leaves.
async fn deliver(fixture: &Fixture, admin: &Client, relays: &str, name: &'static str) {
    let mut replica = fixture.run(name, relays).unwrap();
    insert(&fixture.producer().await.unwrap(), name, "k", 3).await;
    let last = format!("{name} 3");
    until("they arrive", || async { inbox(admin).await.contains(&last) }).await;
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}
