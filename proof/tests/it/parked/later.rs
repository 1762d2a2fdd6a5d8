//! Messages that are to be delivered at a later time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proof::endpoint::{Endpoint, Received, Reply};
use proof::on_each_version;

use super::{SOON_AGAIN, Scene, count, taken, willing};
use crate::hand::until;

on_each_version!(
    a_message_waits_for_its_time_and_its_key_waits_behind_it,
    the_time_of_each_message_of_a_key_is_kept,
    a_message_that_waits_survives_its_owner,
    what_comes_before_and_fails_comes_before_all_the_same,
    a_clock_that_is_set_back_keeps_nothing_waiting,
);

/// Topics, keys and how much later each is to be delivered, in seconds.
async fn send(scene: &Scene, messages: &[(&str, Option<&str>, Option<f64>)]) -> Instant {
    for (topic, key, later) in messages {
        let sql = "select pgbaton.send(topic => $1, payload => '{}'::json, key => $2,
                                       deliver_at => clock_timestamp() + $3::float8 * interval '1 s')";
        scene.admin.execute(sql, &[topic, key, later]).await.unwrap();
    }
    Instant::now()
}

/// When a topic arrived.
fn arrival(endpoint: &Endpoint, topic: &str) -> Option<Instant> {
    endpoint.received().iter().find(|received| received.header("pgbaton-topic") == topic).map(|received| received.at)
}

async fn a_message_waits_for_its_time_and_its_key_waits_behind_it(major: u32) {
    let endpoint = willing().await;
    let scene = Scene::to(major, &endpoint, "").await;
    let messages =
        [("k/1", Some("k"), Some(2.0)), ("k/2", Some("k"), None), ("alone", None, Some(2.0)), ("l/1", Some("l"), None)];
    let sent = send(&scene, &messages).await;
    send(&scene, &[("k/3", Some("k"), None), ("past", None, Some(-60.0)), ("never", None, Some(1e9))]).await;
    until("what is due at once", async || arrival(&endpoint, "past").is_some() && arrival(&endpoint, "l/1").is_some())
        .await;
    assert!(sent.elapsed() < Duration::from_millis(1_500), "this machine is too slow for this test");
    until("they are set aside", async || scene.count("pgbaton.parked").await == 5).await;
    assert_eq!(scene.count("pgbaton.parked where code is null and attempts = 0 and faults = '[]'").await, 5);
    until("all others", async || endpoint.count() == 6).await;
    for topic in ["k/1", "alone"] {
        let after = arrival(&endpoint, topic).unwrap().duration_since(sent);
        // The first of them was sent a moment earlier.
        assert!(after > Duration::from_millis(1_800) && after < Duration::from_secs(4), "{topic}: {after:?}");
    }
    assert_eq!(taken(&endpoint, |_| true)["k"], ["k/1", "k/2", "k/3"]);
    until("one is left", async || scene.count("pgbaton.parked").await == 1).await;
}

/// A message that waits behind another one waits for its own time as well, and one that is over by then does not.
async fn the_time_of_each_message_of_a_key_is_kept(major: u32) {
    let endpoint = willing().await;
    let scene = Scene::to(major, &endpoint, "").await;
    let messages = [
        ("k/1", Some("k"), Some(1.0)),
        ("k/2", Some("k"), Some(3.0)),
        ("k/3", Some("k"), Some(2.0)),
        ("k/4", Some("k"), None),
    ];
    let sent = send(&scene, &messages).await;
    until("the first one", async || endpoint.count() >= 1).await;
    let early = endpoint.count() == 1;
    until("all", async || endpoint.count() == 4).await;
    assert!(early, "the second one came with the first");
    assert_eq!(taken(&endpoint, |_| true)["k"], ["k/1", "k/2", "k/3", "k/4"]);
    let after = |topic| arrival(&endpoint, topic).unwrap().duration_since(sent);
    assert!(after("k/2") > Duration::from_millis(2_800) && after("k/4") < Duration::from_secs(6), "{:?}", after("k/4"));
}

async fn a_message_that_waits_survives_its_owner(major: u32) {
    let endpoint = willing().await;
    let mut scene = Scene::to(major, &endpoint, "").await;
    send(&scene, &[("k/1", Some("k"), Some(3_600.0)), ("k/2", Some("k"), None), ("l/1", Some("l"), None)]).await;
    until("what is due", async || endpoint.count() == 1).await;
    until("the others are set aside", async || scene.count("pgbaton.parked").await == 2).await;
    // Its position is written by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.replica.kill().unwrap();
    scene.replica = scene.fixture.run("r2", &scene.section).unwrap();
    until("it has its lanes", async || !scene.replica.lines_with("lanes taken over").is_empty()).await;
    assert_eq!(endpoint.count(), 1);
    // As `pgbaton messages retry` does.
    let hurry = "update pgbaton.parked set next_at = now(), deliver_at = null where next_at is not null";
    scene.admin.execute(hurry, &[]).await.unwrap();
    until("all", async || endpoint.count() == 3).await;
    assert_eq!(taken(&endpoint, |_| true)["k"], ["k/1", "k/2"]);
    until("nothing is set aside", async || count(&scene.admin, "pgbaton.parked").await == 0).await;
}

/// The second message is set aside when its batch is begun, the first one later.
async fn what_comes_before_and_fails_comes_before_all_the_same(major: u32) {
    let refusals = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = Arc::clone(&refusals);
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let refused =
            received.header("pgbaton-topic") == "k/1" && counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 4;
        async move { Reply::Status(if refused { 500 } else { 204 }) }
    });
    let endpoint = endpoint.await.unwrap();
    let scene = Scene::to(major, &endpoint, &format!("{SOON_AGAIN}attempts = 1000\n")).await;
    let one = "insert into pgbaton.outbox (topic, key, deliver_at) values ('k/1', 'k', null), ('k/2', 'k', now() + interval '1 s'),
               ('k/3', 'k', null), ('l/1', 'l', null), ('m/1', 'm', null), ('n/1', 'n', null), ('o/1', 'o', null)";
    scene.admin.batch_execute(one).await.unwrap();
    until("all", async || taken(&endpoint, |_| true).values().map(Vec::len).sum::<usize>() >= 7).await;
    assert_eq!(taken(&endpoint, |_| true)["k"], ["k/1", "k/2", "k/3"]);
    until("nothing is set aside", async || scene.count("pgbaton.parked").await == 0).await;
}

/// Times of next attempts that were written an hour ahead of now.
async fn a_clock_that_is_set_back_keeps_nothing_waiting(major: u32) {
    let mended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let endpoint = Endpoint::start(move |_| {
        let status = if seen.load(std::sync::atomic::Ordering::Relaxed) { 204 } else { 500 };
        async move { Reply::Status(status) }
    });
    let endpoint = endpoint.await.unwrap();
    let scene = Scene::to(major, &endpoint, super::commands::LATER).await;
    send(&scene, &[("k/1", Some("k"), None), ("l/1", Some("l"), Some(3_600.0))]).await;
    until("they are set aside", async || scene.count("pgbaton.parked where next_at > now()").await == 2).await;
    mended.store(true, std::sync::atomic::Ordering::Relaxed);
    let ahead =
        "update pgbaton.parked set parked_at = parked_at + interval '1 hour', last_at = last_at + interval '1 hour',
                        next_at = next_at + interval '1 hour'";
    scene.admin.batch_execute(ahead).await.unwrap();
    until("the one that failed", async || {
        taken(&endpoint, |_| true).contains_key("k") && scene.count("pgbaton.parked").await == 1
    })
    .await;
    assert_eq!(
        scene.count("pgbaton.parked where topic = 'l/1' and next_at = deliver_at").await,
        1,
        "the time of the other one stays"
    );
}
