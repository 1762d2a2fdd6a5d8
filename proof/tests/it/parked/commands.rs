//! What operators do about messages that were set aside.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pgbaton::source::Source as _;
use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::Process;
use serde_json::Value;

use super::adopted::http;
use super::{KEYS, SOON_AGAIN, Scene, taken, topics};
use crate::adopted::stepwise::Steps;
use crate::adopted::{Adopted, SOURCE};
use crate::hand::until;

on_each_version!(
    a_dead_message_is_found,
    a_dead_message_is_tried_again,
    a_dead_message_is_given_up,
    what_waits_is_tried_at_once,
    what_a_key_has_gone_past_is_tried_again,
    a_dead_row_that_is_marked_by_hand_is_forgotten,
    a_dead_row_that_is_discarded_is_left_out,
);

/// Runs a command as the relay's role, which has to succeed. Gives what it tells with `--json`.
pub(super) async fn told(fixture: &Fixture, arguments: &[&str]) -> Value {
    let output = fixture.pgbaton(&[arguments, &["--json", "--dsn", fixture.relay_dsn()]].concat()).await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a command says that is refused as a wrong command line.
pub(super) async fn refused(fixture: &Fixture, arguments: &[&str]) -> String {
    let output = fixture.pgbaton(&[arguments, &["--dsn", fixture.relay_dsn()]].concat()).await.unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Refuses the second message of a key, and the first of another for good, until it is mended.
async fn failing(mended: &Arc<AtomicBool>) -> Endpoint {
    let mended = Arc::clone(mended);
    Endpoint::start(move |received: Arc<Received>| {
        let failed = match received.header("pgbaton-topic") {
            _ if mended.load(Ordering::Relaxed) => 204,
            "bad/2" => 400,
            "a/1" => 500,
            _ => 204,
        };
        async move { Reply::Status(failed) }
    })
    .await
    .unwrap()
}

pub(super) const LATER: &str = "[relays.orders.retry]\nfirst = \"1h\"\ncap = \"1h\"\n";

/// A scene in which one message is dead and another one waits for its next attempt.
async fn scene(major: u32, mended: &Arc<AtomicBool>) -> (Endpoint, Scene) {
    let endpoint = failing(mended).await;
    let scene = Scene::to(major, &endpoint, LATER).await;
    scene.insert(&KEYS, 3).await;
    until("two keys wait", async || scene.count("pgbaton.parked").await == 5).await;
    (endpoint, scene)
}

async fn list(scene: &Scene, arguments: &[&str]) -> Vec<Value> {
    told(&scene.fixture, arguments).await["messages"].as_array().unwrap().clone()
}

async fn a_dead_message_is_found(major: u32) {
    let (_endpoint, scene) = scene(major, &Arc::default()).await;
    let dead = list(&scene, &["dead", "list", "--relay", "orders"]).await;
    assert_eq!(dead.len(), 1);
    let (id, message) = (dead[0]["id"].as_str().unwrap(), &dead[0]);
    assert_eq!((&message["topic"], &message["code"]), (&"bad/2".into(), &"http.rejected".into()), "{message}");
    assert!(message["faults"].as_array().is_some_and(|faults| faults.len() == 1), "{message}");
    let all = list(&scene, &["messages", "list"]).await;
    assert_eq!(all.len(), 5);
    let behind = all.iter().find(|message| message["topic"] == "bad/3").unwrap();
    assert_eq!(behind["behind"], id, "{behind}");
    // Each way to choose finds it, and nothing else.
    let lane = message["lane"].to_string();
    let found = [
        ["--key", "bad"],
        ["--topic", "bad/*"],
        ["--code", "http.rejected"],
        ["--id", id],
        ["--lane", &lane],
        ["--older", "0s"],
    ];
    let not_found = [["--key", "a"], ["--code", "http.failed"], ["--older", "1h"], ["--relay", "other"]];
    let ways = found.iter().map(|way| (way, 1)).chain(not_found.iter().map(|way| (way, 0)));
    for (way, count) in ways {
        assert_eq!(list(&scene, &[&["dead", "list"], way.as_slice()].concat()).await.len(), count, "{way:?}");
    }
    // A page at a time.
    let page = told(&scene.fixture, &["messages", "list", "--limit", "2"]).await;
    let next = list(&scene, &["messages", "list", "--above", &page["above"].to_string()]).await;
    assert_eq!((page["messages"].as_array().unwrap().len(), next.len()), (2, 3));
    // The payload only where it is asked for.
    let shown = told(&scene.fixture, &["dead", "show", "orders", id]).await;
    assert_eq!((&shown["content"], &shown["message"]["id"]), (&Value::Null, &id.into()));
    let shown = told(&scene.fixture, &["dead", "show", "orders", id, "--payload"]).await;
    assert_eq!(shown["content"]["payload"], serde_json::json!([120]), "{shown}");
}

async fn a_dead_message_is_tried_again(major: u32) {
    let mended = Arc::new(AtomicBool::new(false));
    let (endpoint, scene) = scene(major, &mended).await;
    // Nothing is done that is not meant.
    assert!(refused(&scene.fixture, &["dead", "retry", "orders"]).await.contains("--all"));
    let said = refused(&scene.fixture, &["dead", "retry", "orders", "--key", "bad"]).await;
    assert!(said.contains("1 message(s)") && said.contains("--yes"), "{said}");
    assert_eq!(scene.count("pgbaton.parked where dead_at is not null").await, 1);
    mended.store(true, Ordering::Relaxed);
    let done = told(&scene.fixture, &["dead", "retry", "orders", "--key", "bad", "--yes"]).await;
    assert_eq!(done["messages"], 1);
    until("its key goes on", async || scene.count("pgbaton.parked where key = 'bad'").await == 0).await;
    assert_eq!(taken(&endpoint, |_| true)["bad"], topics("bad", 3));
    let audit = told(&scene.fixture, &["audit", "--relay", "orders"]).await;
    let deed = &audit["deeds"][0];
    let told_of = (&deed["what"], &deed["messages"], &deed["details"]["key"]);
    assert_eq!(told_of, (&"dead retry".into(), &1.into(), &"bad".into()));
    assert!(deed["who"].as_str().is_some_and(|who| !who.is_empty()), "{deed}");
}

async fn a_dead_message_is_given_up(major: u32) {
    let (endpoint, scene) = scene(major, &Arc::default()).await;
    told(&scene.fixture, &["dead", "discard", "orders", "--all", "--yes"]).await;
    until("its key goes on", async || scene.count("pgbaton.parked where key = 'bad'").await == 0).await;
    assert_eq!(taken(&endpoint, |received| received.header("pgbaton-topic") != "bad/2")["bad"], ["bad/1", "bad/3"]);
    assert_eq!(scene.count("pgbaton.parked where key = 'a'").await, 3, "what is not dead stays");
    assert_eq!(scene.count("pgbaton.audit where what = 'dead discard' and messages = 1").await, 1);
}

async fn what_waits_is_tried_at_once(major: u32) {
    let mended = Arc::new(AtomicBool::new(false));
    let (endpoint, scene) = scene(major, &mended).await;
    mended.store(true, Ordering::Relaxed);
    let said = refused(&scene.fixture, &["messages", "retry", "orders", "--all"]).await;
    assert!(said.contains("1 message(s)"), "{said}");
    told(&scene.fixture, &["messages", "retry", "orders", "--code", "http.failed", "--yes"]).await;
    until("its key goes on", async || scene.count("pgbaton.parked where key = 'a'").await == 0).await;
    assert_eq!(taken(&endpoint, |_| true)["a"], topics("a", 3));
    assert_eq!(scene.count("pgbaton.parked where key = 'bad'").await, 2, "what is dead stays");
}

/// It is the first of its key again: what failed behind it meanwhile waits for it.
async fn what_a_key_has_gone_past_is_tried_again(major: u32) {
    let mended = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&mended);
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let status = match received.header("pgbaton-topic") {
            "bad/1" if !seen.load(Ordering::Relaxed) => 400,
            "bad/2" if !seen.load(Ordering::Relaxed) => 500,
            _ => 204,
        };
        async move { Reply::Status(status) }
    })
    .await
    .unwrap();
    let scene = Scene::to(major, &endpoint, &format!("dead = \"skip\"\n{LATER}")).await;
    scene.insert(&KEYS, 3).await;
    until("one is dead, and two wait", async || scene.count("pgbaton.parked").await == 3).await;
    mended.store(true, Ordering::Relaxed);
    told(&scene.fixture, &["dead", "retry", "orders", "--all", "--yes"]).await;
    until("its key goes on", async || scene.count("pgbaton.parked").await == 0).await;
    let arrived = taken(&endpoint, |received| !["bad/1", "bad/2"].contains(&received.header("pgbaton-topic")));
    assert_eq!(arrived["bad"], ["bad/3"]);
    let last = taken(&endpoint, |_| true)["bad"].clone();
    assert_eq!(last[last.len() - 3..], topics("bad", 3));
}

const ROWS: &str = r#"insert into app."Outbox" (site_id, topic, payload, created_at)
                      select k, k || '/' || n, '{}', now() + n * interval '1 ms'
                      from generate_series(1, 3) n, unnest($1::text[]) k"#;

/// An adopted table of which one row is dead, and its key waits.
async fn adopted_scene(major: u32) -> (Endpoint, Adopted, Process) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == "bad/1" { 400 } else { 204 })
    })
    .await
    .unwrap();
    let adopted = Adopted::new(major).await;
    adopted.admin.execute(ROWS, &[&KEYS.as_slice()]).await.unwrap();
    let sink = http(&endpoint);
    let text = format!("[relays.orders]\nlanes = 4\nsink = {sink}\n{SOON_AGAIN}\n{SOURCE}");
    let replica = adopted.fixture.run("r1", &text).unwrap();
    until("its key waits", async || adopted.count("pgbaton.parked").await == 3).await;
    (endpoint, adopted, replica)
}

/// The key waits for a person, and the person marks the row, as ever.
async fn a_dead_row_that_is_marked_by_hand_is_forgotten(major: u32) {
    let (endpoint, adopted, replica) = adopted_scene(major).await;
    let another = Steps::another(&adopted, 4).await;
    another.source.check().await.unwrap();
    assert_eq!(adopted.count("pgbaton.parked").await, 3, "it is pending");
    adopted.execute(r#"update app."Outbox" set published_at = now() where topic = 'bad/1'"#).await;
    // As every replica does once a minute.
    another.source.check().await.unwrap();
    until("its key goes on", async || adopted.count("pgbaton.parked").await == 0).await;
    assert_eq!(taken(&endpoint, |received| received.header("pgbaton-topic") != "bad/1")["bad"], ["bad/2", "bad/3"]);
    drop(replica);
}

/// It stays where it is, so that no look finds it, and its key goes on.
async fn a_dead_row_that_is_discarded_is_left_out(major: u32) {
    let (endpoint, adopted, replica) = adopted_scene(major).await;
    told(&adopted.fixture, &["dead", "discard", "orders", "--all", "--yes"]).await;
    until("its key goes on", async || adopted.count("pgbaton.parked").await == 1).await;
    let arrived = |endpoint: &Endpoint| taken(endpoint, |received| received.header("pgbaton-topic") != "bad/1");
    assert_eq!(arrived(&endpoint)["bad"], ["bad/2", "bad/3"]);
    assert_eq!(told(&adopted.fixture, &["dead", "list"]).await["messages"].as_array().unwrap().len(), 0);
    let retried = told(&adopted.fixture, &["dead", "retry", "orders", "--all", "--yes"]).await;
    assert_eq!(retried["messages"], 0, "what was given up stays so");
    assert_eq!(adopted.pending().await, 1);
    drop(replica);
}
