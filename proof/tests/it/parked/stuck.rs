//! What is set aside of one lane cannot be written: the others go on.

use std::sync::Arc;
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::on_each_version;

use super::{SOON_AGAIN, Scene};
use crate::hand::until;

on_each_version!(
    a_lane_whose_aside_is_locked_keeps_no_other_waiting,
    a_lane_whose_aside_is_refused_keeps_no_other_waiting
);

/// Of all lanes.
const KEYS: [&str; 16] = ["bad", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o"];

async fn refusing(topic: &'static str) -> Endpoint {
    Endpoint::start(move |received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == topic { 500 } else { 204 })
    })
    .await
    .unwrap()
}

/// Lanes that are through, without the one of the failing key.
const OTHERS: &str = "pgbaton.newest n where n.lane <> (hashtextextended('bad' collate \"C\", 0) & 3)::integer
                      and not exists (select from pgbaton.outbox o where not pg_visible_in_snapshot(o.xid, n.consumed)
                                      and (o.hash & 3)::integer = n.lane)";

async fn a_lane_whose_aside_is_locked_keeps_no_other_waiting(major: u32) {
    let endpoint = refusing("bad/1").await;
    let scene = Scene::to(major, &endpoint, SOON_AGAIN).await;
    scene.insert(&KEYS, 1).await;
    until("it is set aside", async || scene.count("pgbaton.parked").await == 1).await;
    let mut holder = scene.fixture.admin().await.unwrap();
    let locked = holder.transaction().await.unwrap();
    locked.execute("select from pgbaton.parked for update", &[]).await.unwrap();
    until("it cannot be written", async || !scene.replica.lines_with("cannot be set aside yet").is_empty()).await;
    let before = endpoint.count();
    scene.insert(&KEYS[1..], 20).await;
    // Between its tries.
    until("the others are through", async || scene.count(OTHERS).await == 3).await;
    assert!(endpoint.count() > before);
    locked.rollback().await.unwrap();
    until("all of it", async || scene.count("pgbaton.parked").await == 1 && endpoint.count() >= 15 * 21).await;
}

async fn a_lane_whose_aside_is_refused_keeps_no_other_waiting(major: u32) {
    let endpoint = refusing("bad/1").await;
    let scene = Scene::to(major, &endpoint, SOON_AGAIN).await;
    let none = "alter table pgbaton.parked add constraint none check (topic <> 'bad/1') not valid";
    scene.admin.batch_execute(none).await.unwrap();
    scene.insert(&KEYS, 20).await;
    until("it is refused", async || !scene.replica.lines_with("messages that failed cannot be set aside").is_empty())
        .await;
    let through = || {
        let received = endpoint.received();
        received.iter().filter(|received| received.header("pgbaton-topic") != "bad/1").count()
    };
    until("the others are through", async || scene.count(OTHERS).await == 3).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let held = through();
    scene.admin.batch_execute("alter table pgbaton.parked drop constraint none").await.unwrap();
    until("it is mended", async || scene.count("pgbaton.parked").await == 20).await;
    scene.insert(&KEYS[1..], 1).await;
    until("all lanes go on", async || through() >= held + 15).await;
}
