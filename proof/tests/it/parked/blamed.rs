//! Who is blamed, and when.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;

use super::{KEYS, SOON_AGAIN, Scene, count, insert, taken};
use crate::hand::until;

on_each_version!(
    a_backlog_is_not_set_aside_while_everything_fails,
    what_is_set_aside_later_holds_its_key_too,
    a_message_is_blamed_although_nothing_more_may_be_in_flight,
);

/// A sink that answers 500 to everything: as much as may be in flight fails, and there is more that could be tried.
async fn a_backlog_is_not_set_aside_while_everything_fails(major: u32) {
    let failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&failing);
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let failed = received.header("pgbaton-topic") == "bad/1" || fails.load(Ordering::Relaxed);
        async move { Reply::Status(if failed { 500 } else { 204 }) }
    })
    .await
    .unwrap();
    let scene = Scene::to(major, &endpoint, &format!("in_flight = 20\nbatch_messages = 10\n{SOON_AGAIN}")).await;
    // One that is tried again now and then: a batch of its own stands among the others.
    scene.insert(&KEYS, 1).await;
    until("it is set aside", async || scene.count("pgbaton.parked").await == 1).await;
    failing.store(true, Ordering::Relaxed);
    scene.insert(&KEYS[1..], 60).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    // In lanes that have less than is read ahead nothing else can be tried.
    let aside = scene.count("pgbaton.parked").await;
    assert_eq!(aside, 1, "the others wait");
    failing.store(false, Ordering::Relaxed);
    let arrived = |endpoint: &Endpoint| {
        let received = endpoint.received();
        received.iter().map(|received| received.header("pgbaton-topic").to_owned()).collect::<HashSet<_>>().len()
    };
    until("all messages", async || arrived(&endpoint) == 1 + 7 * 60).await;
    until("all but one", async || scene.count("pgbaton.parked").await == 1).await;
}

/// What is known of keys is kept in memory, and made anew every few seconds: what is set aside in between is known, too.
async fn what_is_set_aside_later_holds_its_key_too(major: u32) {
    let up = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&up);
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let topic = received.header("pgbaton-topic");
        let failed = ["bad/1", "a/2"].contains(&topic) && !seen.load(Ordering::Relaxed);
        async move { Reply::Status(if failed { 500 } else { 204 }) }
    })
    .await
    .unwrap();
    let scene = Scene::to(major, &endpoint, SOON_AGAIN).await;
    scene.insert(&KEYS, 1).await;
    until("it is set aside", async || scene.count("pgbaton.parked").await == 1).await;
    // The keys are looked up by now.
    tokio::time::sleep(Duration::from_secs(6)).await;
    scene.insert(&KEYS, 3).await;
    until("another one is", async || scene.count("pgbaton.parked where attempts > 0").await == 2).await;
    scene.insert(&["a"], 20).await;
    until("what follows waits", async || scene.count("pgbaton.parked where key = 'a'").await == 22).await;
    up.store(true, Ordering::Relaxed);
    until("nothing is set aside", async || scene.count("pgbaton.parked").await == 0).await;
    let a = taken(&endpoint, |received| received.header("pgbaton-topic") != "a/2")["a"].clone();
    // The same topic twice in a row counts once.
    let wanted: Vec<String> = [1, 3, 1].into_iter().chain(3..=20).map(|n| format!("a/{n}")).collect();
    assert_eq!(a, wanted);
}

/// All others of its batch went through, and they are as many as may be in flight: nothing else can be tried.
async fn a_message_is_blamed_although_nothing_more_may_be_in_flight(major: u32) {
    for answers in [true, false] {
        let endpoint = Endpoint::start(move |received: Arc<Received>| async move {
            if received.header("pgbaton-topic") != "bad/1" {
                return Reply::Status(204);
            }
            if !answers {
                std::future::pending::<()>().await;
            }
            Reply::Status(500)
        })
        .await
        .unwrap();
        let fixture = Fixture::new(major).await.unwrap();
        let admin = fixture.admin().await.unwrap();
        let url = endpoint.url("/");
        let sink = format!("{{ type = \"http\", url = \"{url}\", allow_private = true, timeout = \"1s\" }}");
        let limits = "lanes = 1\nin_flight = 10\nbatch_messages = 10";
        let section = format!("[relays.orders]\n{limits}\nsink = {sink}\n{SOON_AGAIN}");
        insert(&admin, &KEYS, 5).await;
        let replica = fixture.run("r1", &section).unwrap();
        let others = || taken(&endpoint, |received| received.header("pgbaton-key") != "bad");
        until("it holds its key alone", async || {
            count(&admin, "pgbaton.parked").await == 5 && others().values().map(Vec::len).sum::<usize>() == 35
        })
        .await;
        drop(replica);
    }
}
