//! Messages that were delivered are delivered again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;

use super::adopted::{http, run};
use super::commands::{refused, told};
use super::{KEYS, SOON_AGAIN, Scene, count, insert, taken, topics, willing};
use crate::adopted::Adopted;
use crate::hand::until;

on_each_version!(
    what_was_delivered_is_delivered_again_and_marked,
    messages_to_be_replayed_are_chosen_and_counted_first,
    what_is_not_delivered_yet_is_not_replayed,
    a_replay_goes_to_another_sink,
    a_replay_is_exactly_once_whenever_the_owner_is_killed,
    of_an_adopted_table_nothing_is_replayed,
);

/// All of these keys are delivered, and their positions written.
async fn delivered(major: u32, endpoint: &Endpoint) -> Scene {
    let scene = Scene::to(major, endpoint, SOON_AGAIN).await;
    scene.insert(&KEYS, 20).await;
    until("all", async || endpoint.count() == 160).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene
}

async fn what_was_delivered_is_delivered_again_and_marked(major: u32) {
    let endpoint = willing().await;
    let scene = delivered(major, &endpoint).await;
    let done = told(&scene.fixture, &["replay", "orders", "--key", "a", "--since", "1h", "--yes"]).await;
    assert_eq!(done["messages"], 20, "{done}");
    until("the key once more", async || endpoint.count() == 180).await;
    scene.insert(&["a"], 1).await;
    until("and what comes after it", async || endpoint.count() == 181).await;
    let received = endpoint.received();
    let of_key: Vec<_> = received.iter().filter(|received| received.header("pgbaton-key") == "a").collect();
    let twice: Vec<String> = topics("a", 20).into_iter().chain(topics("a", 20)).chain(topics("a", 1)).collect();
    assert_eq!(of_key.iter().map(|received| received.header("pgbaton-topic").to_owned()).collect::<Vec<_>>(), twice);
    let ids: BTreeSet<&str> = of_key.iter().map(|received| received.id()).collect();
    assert_eq!(ids.len(), 41, "each has an id of its own");
    for (first, again) in of_key[..20].iter().zip(&of_key[20..40]) {
        assert_eq!(again.header("pgbaton-replay-of"), first.id());
        assert_eq!(again.header("pgbaton-replay"), done["replay"].to_string());
    }
    until("nothing is set aside", async || scene.count("pgbaton.parked").await == 0).await;
}

async fn messages_to_be_replayed_are_chosen_and_counted_first(major: u32) {
    let endpoint = willing().await;
    let scene = delivered(major, &endpoint).await;
    let said = refused(&scene.fixture, &["replay", "orders", "--key", "a"]).await;
    assert!(said.contains("20 message(s)") && said.contains("--yes"), "{said}");
    assert!(refused(&scene.fixture, &["replay", "orders", "--yes"]).await.contains("--all"));
    let one = endpoint.received()[3].id().to_owned();
    let done = told(&scene.fixture, &["replay", "orders", "--id", &one, "--keep-ids", "--yes"]).await;
    assert_eq!(done["messages"], 1, "{done}");
    until("the one", async || endpoint.count() == 161).await;
    assert_eq!(endpoint.received().last().unwrap().id(), one);
    until("it is no longer set aside", async || scene.count("pgbaton.parked").await == 0).await;
    for (arguments, messages) in
        [(["--topic", "*/20"], 8), (["--until", "2h"], 0), (["--since", "2020-01-01T00:00:00Z"], 160)]
    {
        let arguments = [&["replay", "orders"][..], &arguments].concat();
        let said = refused(&scene.fixture, &arguments).await;
        assert!(said.contains(&format!("{messages} message(s)")), "{arguments:?}: {said}");
    }
    let audit = told(&scene.fixture, &["audit"]).await;
    let deeds = audit["deeds"].as_array().unwrap();
    let whats: Vec<&str> = deeds.iter().map(|deed| deed["what"].as_str().unwrap()).collect();
    assert_eq!(whats, ["replay done", "replay"], "{audit}");
    assert_eq!((&deeds[0]["messages"], &deeds[0]["details"]["replay"]), (&1.into(), &done["replay"]), "{audit}");
}

async fn what_is_not_delivered_yet_is_not_replayed(major: u32) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == "bad/3" { 400 } else { 204 })
    });
    let endpoint = endpoint.await.unwrap();
    let scene = Scene::to(major, &endpoint, SOON_AGAIN).await;
    scene.insert(&KEYS, 5).await;
    until("all that can be", async || endpoint.count() == 38).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    told(&scene.fixture, &["pause", "orders", "--yes"]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    scene.insert(&KEYS, 5).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Not the dead one, nor those behind it, nor those that were inserted since.
    let said = refused(&scene.fixture, &["replay", "orders", "--all"]).await;
    assert!(said.contains("37 message(s)"), "{said}");
}

async fn a_replay_goes_to_another_sink(major: u32) {
    let (one, other) = (willing().await, willing().await);
    let fixture = Fixture::new(major).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let sink = |endpoint: &Endpoint| format!("lanes = 2\nsink = {}", http(endpoint));
    let text = format!("[relays.orders]\n{}\n[relays.again]\ntopics = [\"none\"]\n{}\n", sink(&one), sink(&other));
    let replica = fixture.run("r1", &text).unwrap();
    insert(&admin, &KEYS, 5).await;
    until("all", async || one.count() == 40).await;
    // A lane that matches nothing writes how far it is now and then.
    until("they are dealt with", async || {
        let said = refused(&fixture, &["replay", "again", "--topic", "b/*"]).await;
        said.contains("5 message(s)")
    })
    .await;
    told(&fixture, &["replay", "again", "--topic", "b/*", "--yes"]).await;
    until("some at the other sink", async || other.count() == 5).await;
    assert_eq!(taken(&other, |_| true)["b"], topics("b", 5));
    assert_eq!(one.count(), 40);
    drop(replica);
}

async fn a_replay_is_exactly_once_whenever_the_owner_is_killed(major: u32) {
    for point in ["lane.before_append", "lane.appended", "lane.delivered", "acknowledge.locked"] {
        let fixture = Fixture::new(major).await.unwrap();
        fixture.inbox("app.inbox").await.unwrap();
        let admin = fixture.admin().await.unwrap();
        let section = format!(
            "[lease]\nttl = \"2s\"\n[relays.orders]\nlanes = 2\nbatch_messages = 10\nsink = {}\n{SOON_AGAIN}",
            fixture.inbox_sink("app.inbox")
        );
        insert(&admin, &KEYS, 10).await;
        let mut first = fixture.run("r1", &section).unwrap();
        until("all", async || count(&admin, "app.inbox").await == 80).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        first.terminate().unwrap();
        first.wait(Duration::from_secs(20)).await.unwrap();
        assert_eq!(told(&fixture, &["replay", "orders", "--all", "--yes"]).await["messages"], 80);
        let mut second = fixture.run_with_faults("r2", &section, &format!("{point}:kill:3")).unwrap();
        let ended = second.wait(Duration::from_secs(60)).await;
        assert!(ended.is_ok(), "{point} was not reached");
        let third = fixture.run("r3", &section).unwrap();
        until("all once more", async || count(&admin, "app.inbox").await == 160).await;
        until("nothing is set aside", async || count(&admin, "pgbaton.parked").await == 0).await;
        assert_eq!(count(&admin, "app.inbox").await, 160, "{point}");
        let order = "(select key, topic, row_number() over (partition by key order by seq) as place,
                             split_part(topic, '/', 2)::integer as wanted from app.inbox) o where (place - 1) % 10 + 1 <> wanted";
        assert_eq!(count(&admin, order).await, 0, "{point}: each key is in order");
        drop(third);
    }
}

async fn of_an_adopted_table_nothing_is_replayed(major: u32) {
    let endpoint = willing().await;
    let adopted = Adopted::new(major).await;
    let replica = run(&adopted, &http(&endpoint), SOON_AGAIN);
    until("it has its lanes", async || !replica.lines_with("lanes taken over").is_empty()).await;
    let arguments = ["replay", "orders", "--all", "--dsn", adopted.fixture.relay_dsn()];
    let output = adopted.fixture.pgbaton(&arguments).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Set the rows back to pending"));
}
