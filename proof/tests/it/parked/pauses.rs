//! What operators pause, and resume.

use std::sync::Arc;
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::on_each_version;

use super::adopted::{http, run};
use super::commands::told;
use super::{KEYS, SOON_AGAIN, Scene, taken, topics, willing};
use crate::adopted::Adopted;
use crate::hand::until;

on_each_version!(
    a_relay_that_is_paused_delivers_nothing_until_it_is_resumed,
    a_lane_that_is_paused_waits_alone,
    a_key_that_is_paused_waits_alone,
    topics_that_are_paused_hold_their_keys,
    what_had_failed_is_not_tried_while_it_is_paused,
    rows_of_a_key_that_is_paused_wait,
    a_key_that_its_lane_has_in_hand_is_set_aside,
    both_halves_of_a_paused_lane_are_paused,
);

/// A replica looks four times a second.
const SEEN: Duration = Duration::from_millis(800);

/// A replica that has its lanes.
async fn scene(major: u32, endpoint: &Endpoint, more: &str) -> Scene {
    let scene = Scene::to(major, endpoint, more).await;
    until("it has its lanes", async || !scene.replica.lines_with("lanes taken over").is_empty()).await;
    scene
}

async fn command(scene: &Scene, arguments: &[&str]) {
    let told = told(&scene.fixture, &[arguments, &["--yes"]].concat()).await;
    assert!(told["paused"] == true || told["resumed"] == true, "{told}");
}

async fn a_relay_that_is_paused_delivers_nothing_until_it_is_resumed(major: u32) {
    let endpoint = willing().await;
    let scene = scene(major, &endpoint, SOON_AGAIN).await;
    scene.insert(&KEYS, 5).await;
    until("the first ones", async || endpoint.count() == 40).await;
    command(&scene, &["pause", "orders"]).await;
    let told_again = told(&scene.fixture, &["pause", "orders", "--yes"]).await;
    assert_eq!(told_again["paused"], false);
    tokio::time::sleep(SEEN).await;
    scene.insert(&KEYS, 5).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!(endpoint.count(), 40);
    assert_eq!(scene.count("pgbaton.parked").await, 0);
    let list = told(&scene.fixture, &["pauses"]).await;
    assert_eq!((&list["pauses"][0]["relay"], &list["pauses"][0]["what"]), (&"orders".into(), &"all".into()), "{list}");
    command(&scene, &["resume", "orders"]).await;
    until("all", async || endpoint.count() == 80).await;
    let audit = told(&scene.fixture, &["audit"]).await;
    assert_eq!(
        (&audit["deeds"][0]["what"], &audit["deeds"][1]["what"]),
        (&"resume".into(), &"pause".into()),
        "{audit}"
    );
}

async fn a_lane_that_is_paused_waits_alone(major: u32) {
    let endpoint = willing().await;
    let scene = scene(major, &endpoint, SOON_AGAIN).await;
    command(&scene, &["pause", "orders", "--lane", "2"]).await;
    tokio::time::sleep(SEEN).await;
    scene.insert(&KEYS, 5).await;
    let of_lane = scene.count("pgbaton.outbox where hash & 3 = 2").await;
    let others = usize::try_from(40 - of_lane).unwrap();
    until("all others", async || endpoint.count() == others).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!(endpoint.count(), others);
    command(&scene, &["resume", "orders", "--every"]).await;
    until("all", async || endpoint.count() == 40).await;
}

async fn a_key_that_is_paused_waits_alone(major: u32) {
    let endpoint = willing().await;
    let mut scene = scene(major, &endpoint, SOON_AGAIN).await;
    command(&scene, &["pause", "orders", "--key", "bad"]).await;
    tokio::time::sleep(SEEN).await;
    scene.insert(&KEYS, 20).await;
    until("all others", async || endpoint.count() == 140).await;
    until("its messages are set aside", async || scene.count("pgbaton.parked where code is null").await == 20).await;
    // What was delivered is written by then. Whoever has the lane next keeps to the pause.
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.replica.kill().unwrap();
    scene.replica = scene.fixture.run("r2", &scene.section).unwrap();
    until("it has its lanes", async || !scene.replica.lines_with("lanes taken over").is_empty()).await;
    scene.insert(&KEYS, 1).await;
    until("all others again", async || endpoint.count() >= 147).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!((endpoint.count(), scene.count("pgbaton.parked").await), (147, 21));
    let list = told(&scene.fixture, &["messages", "list", "--relay", "orders", "--key", "bad"]).await;
    assert_eq!(list["messages"][0]["paused"], true, "{list}");
    // Nobody gets past it by asking for another attempt.
    let tried = told(&scene.fixture, &["messages", "retry", "orders", "--key", "bad", "--yes"]).await;
    assert_eq!(tried["messages"], 0);
    command(&scene, &["resume", "orders", "--key", "bad"]).await;
    until("all", async || endpoint.count() == 168).await;
    let mut wanted = topics("bad", 20);
    wanted.push("bad/1".to_owned());
    assert_eq!(taken(&endpoint, |_| true)["bad"], wanted);
    until("nothing is set aside", async || scene.count("pgbaton.parked").await == 0).await;
}

async fn topics_that_are_paused_hold_their_keys(major: u32) {
    let endpoint = willing().await;
    let scene = scene(major, &endpoint, SOON_AGAIN).await;
    command(&scene, &["pause", "orders", "--topic", "*/3"]).await;
    command(&scene, &["pause", "orders", "--topic", "a/*"]).await;
    tokio::time::sleep(SEEN).await;
    scene.insert(&KEYS, 5).await;
    until("what comes before", async || endpoint.count() == 14).await;
    until("all others are set aside", async || scene.count("pgbaton.parked").await == 26).await;
    command(&scene, &["resume", "orders", "--topic", "*/3"]).await;
    until("all others", async || endpoint.count() == 35).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!(scene.count("pgbaton.parked").await, 5);
    command(&scene, &["resume", "orders", "--topic", "a/*"]).await;
    until("all", async || endpoint.count() == 40).await;
    let arrived = taken(&endpoint, |_| true);
    KEYS.iter().for_each(|key| assert_eq!(arrived[*key], topics(key, 5)));
}

async fn what_had_failed_is_not_tried_while_it_is_paused(major: u32) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == "bad/1" { 500 } else { 204 })
    });
    let endpoint = endpoint.await.unwrap();
    let scene = scene(major, &endpoint, &format!("{SOON_AGAIN}attempts = 1000\n")).await;
    scene.insert(&KEYS, 5).await;
    until("it has failed", async || scene.count("pgbaton.parked where attempts > 2").await == 1).await;
    command(&scene, &["pause", "orders", "--key", "bad"]).await;
    tokio::time::sleep(SEEN).await;
    let before = endpoint.count();
    tokio::time::sleep(SEEN).await;
    assert_eq!(endpoint.count(), before);
    assert_eq!(scene.count("pgbaton.parked where next_at = 'infinity'").await, 1);
    command(&scene, &["resume", "orders", "--key", "bad"]).await;
    until("it is tried again", async || endpoint.count() > before).await;
}

async fn rows_of_a_key_that_is_paused_wait(major: u32) {
    let endpoint = willing().await;
    let adopted = Adopted::new(major).await;
    let replica = run(&adopted, &http(&endpoint), SOON_AGAIN);
    until("it has its lanes", async || !replica.lines_with("lanes taken over").is_empty()).await;
    told(&adopted.fixture, &["pause", "orders", "--key", "bad", "--yes"]).await;
    tokio::time::sleep(SEEN).await;
    super::adopted::insert(&adopted, &KEYS, 20).await;
    until("all others are marked", async || adopted.pending().await == 20).await;
    until("its rows are set aside", async || adopted.count("pgbaton.parked").await == 20).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!(endpoint.count(), 140);
    told(&adopted.fixture, &["resume", "orders", "--key", "bad", "--yes"]).await;
    until("all are marked", async || adopted.pending().await == 0).await;
    assert_eq!(taken(&endpoint, |_| true)["bad"], topics("bad", 20));
}

/// Nothing else goes through, so nobody is blamed and the lane waits, until the key is paused that the sink does not take.
async fn a_key_that_its_lane_has_in_hand_is_set_aside(major: u32) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-key") == "bad" { 503 } else { 204 })
    });
    let endpoint = endpoint.await.unwrap();
    let scene = scene(major, &endpoint, SOON_AGAIN).await;
    scene.insert(&["bad"], 3).await;
    until("it is tried", async || endpoint.count() > 0).await;
    assert_eq!(scene.count("pgbaton.parked").await, 0, "nothing says that it is not the sink");
    command(&scene, &["pause", "orders", "--key", "bad"]).await;
    until("it is set aside", async || scene.count("pgbaton.parked where code is null").await == 3).await;
    let before = endpoint.count();
    scene.insert(&KEYS, 1).await;
    until("the others arrive", async || taken(&endpoint, |_| true).len() == KEYS.len()).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!(
        endpoint.received().iter().skip(before).filter(|received| received.header("pgbaton-key") == "bad").count(),
        0
    );
}

async fn both_halves_of_a_paused_lane_are_paused(major: u32) {
    let endpoint = willing().await;
    let scene = scene(major, &endpoint, SOON_AGAIN).await;
    command(&scene, &["pause", "orders", "--lane", "2"]).await;
    tokio::time::sleep(SEEN).await;
    let migrate = scene.fixture.relay_dsn();
    let split = scene.fixture.pgbaton(&["lanes", "split", "orders", "--yes", "--dsn", migrate]).await.unwrap();
    assert!(split.status.success(), "{}", String::from_utf8_lossy(&split.stderr));
    assert_eq!(scene.count("pgbaton.pause where lane in (2, 6)").await, 2);
    tokio::time::sleep(SEEN).await;
    scene.insert(&KEYS, 5).await;
    let of_lane = scene.count("pgbaton.outbox where hash & 3 = 2").await;
    let others = usize::try_from(40 - of_lane).unwrap();
    until("all others", async || endpoint.count() >= others).await;
    tokio::time::sleep(SEEN).await;
    assert_eq!(endpoint.count(), others);
    command(&scene, &["resume", "orders", "--every"]).await;
    until("all", async || endpoint.count() == 40).await;
}
