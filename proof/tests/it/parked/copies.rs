//! Copies of dead messages, and for how long these are kept.

use std::sync::Arc;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;

use super::adopted::http;
use super::{KEYS, SOON_AGAIN, count, insert};
use crate::hand::until;

on_each_version!(a_dead_message_is_copied_once_and_deleted_in_time);

async fn a_dead_message_is_copied_once_and_deleted_in_time(major: u32) {
    // What is sent to the first one is refused by its topic, what is sent to the other one always.
    let first = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if ["bad/2", "a/1"].contains(&received.header("pgbaton-topic")) { 422 } else { 204 })
    });
    let (first, other) = (first.await.unwrap(), Endpoint::start(|_| async { Reply::Status(422) }).await.unwrap());
    let fixture = Fixture::new(major).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let relay = |name, topics, endpoint: &Endpoint, more| {
        let sink = http(endpoint);
        format!(
            "[relays.{name}]\nlanes = 2\ntopics = [\"{topics}\"]\ndead = \"skip\"\ndead_topic = \"orders.dead\"\n{more}sink = {sink}\n{}",
            SOON_AGAIN.replace("orders", name)
        )
    };
    let text = relay("orders", "*/*", &first, "dead_keep = \"1s\"\n") + &relay("dead", "orders.dead", &other, "");
    let replica = fixture.run("r1", &text).unwrap();
    insert(&admin, &KEYS, 4).await;
    until("copies of both", async || other.count() == 2).await;
    let received = other.received();
    let bad = received.iter().find(|copy| copy.header("pgbaton-dead-topic") == "bad/2").unwrap();
    let message = first.received().into_iter().find(|first| first.header("pgbaton-topic") == "bad/2").unwrap();
    assert_eq!((bad.header("pgbaton-topic"), bad.header("pgbaton-key")), ("orders.dead", "bad"));
    assert_eq!((bad.header("pgbaton-dead-of"), bad.header("pgbaton-dead-code")), (message.id(), "http.rejected"));
    assert_eq!((bad.header("pgbaton-dead-relay"), &bad.body), ("orders", &message.body));
    assert!(bad.header("pgbaton-dead-fault").contains("422") && bad.id() != message.id());
    until("copies that are dead themselves", async || {
        count(&admin, "pgbaton.parked where relay = 'dead' and dead_at is not null").await == 2
    })
    .await;
    until("the dead ones are deleted", async || count(&admin, "pgbaton.parked where relay = 'orders'").await == 0)
        .await;
    assert_eq!(other.count(), 2, "a copy is not copied");
    assert_eq!(count(&admin, "pgbaton.parked").await, 2, "what nobody said how long to keep is kept");
    assert_eq!(count(&admin, "pgbaton.outbox where topic = 'orders.dead'").await, 2);
    assert!(!replica.lines_with("messages that have been dead for long are deleted").is_empty());
}
