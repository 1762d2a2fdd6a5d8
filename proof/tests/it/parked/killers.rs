//! A message that kills whoever hands it to the sink.

use std::sync::Arc;
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::Process;
use tokio::sync::mpsc;
use tokio_postgres::Client;

use super::adopted::http;
use super::commands::LATER;
use super::{KEYS, SOON_AGAIN, Scene, insert, taken, topics};
use crate::adopted::{Adopted, SOURCE};
use crate::hand::{SOON, until};

on_each_version!(
    a_message_that_kills_its_owners_is_found_and_set_aside,
    a_row_that_kills_its_owners_is_found_and_set_aside,
    a_message_that_kills_when_it_is_tried_again_is_found,
    replicas_that_are_killed_for_nothing_cost_no_message,
    only_a_death_counts,
);

/// Lanes change hands soon.
const QUICK: &str = "[lease]\nttl = \"2s\"\n";

/// No replica outlives a message of this topic: the endpoint tells of it, and waits for the end.
async fn deadly(topic: &'static str) -> (Endpoint, mpsc::UnboundedReceiver<()>) {
    let (asks, asked) = mpsc::unbounded_channel();
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let asks = (received.header("pgbaton-topic") == topic).then(|| asks.clone());
        async move {
            if let Some(asks) = asks {
                let _ = asks.send(());
                std::future::pending::<()>().await;
            }
            Reply::Status(204)
        }
    });
    (endpoint.await.unwrap(), asked)
}

/// Starts replicas one after the other, each killed by that message, until it is dead. Gives how many died, and the last one.
async fn until_it_is_dead(
    admin: &Client,
    asked: &mut mpsc::UnboundedReceiver<()>,
    start: impl Fn(u32) -> Process,
) -> (u32, Process) {
    let dead = "select count(*) from pgbaton.parked where dead_at is not null";
    let mut died = 0;
    loop {
        assert!(died < 8, "it was not found");
        let mut replica = start(died);
        let found = async {
            while admin.query_one(dead, &[]).await.unwrap().get::<_, i64>(0) == 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::select! {
            killed = asked.recv() => assert!(killed.is_some()),
            () = found => return (died, replica),
            () = tokio::time::sleep(SOON) => panic!("nothing happens: {}", replica.lines_with("").join("\n")),
        }
        replica.kill().unwrap();
        died += 1;
    }
}

fn section(endpoint: &Endpoint, more: &str) -> String {
    let sink = http(endpoint);
    format!("{QUICK}[relays.orders]\nlanes = 4\nsink = {sink}\n{more}")
}

/// Twice died of, and given up.
const TWICE: usize = 3;

/// What is known of the dead message: its topic, code and deaths, and the codes of its faults.
async fn known(admin: &Client) -> (String, String, i32, Vec<String>) {
    let sql = "select topic, code, deaths, array(select f ->> 'code' from jsonb_array_elements(faults) f)
               from pgbaton.parked where dead_at is not null";
    let row = admin.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2), row.get(3))
}

fn died(times: usize) -> Vec<String> {
    vec!["relay.died".to_owned(); times]
}

async fn a_message_that_kills_its_owners_is_found_and_set_aside(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let (endpoint, mut asked) = deadly("bad/2").await;
    insert(&admin, &KEYS, 20).await;
    let text = section(&endpoint, SOON_AGAIN);
    let start = |n| fixture.run(&format!("r{n}"), &text).unwrap();
    let (deaths, replica) = until_it_is_dead(&admin, &mut asked, start).await;
    // Three that told nobody what they died of, and two that tried it alone.
    assert_eq!(deaths, 5);
    assert_eq!(known(&admin).await, ("bad/2".to_owned(), "relay.died".to_owned(), 2, died(TWICE)));
    let waits = "select count(*) from pgbaton.parked where dead_at is null and topic <> all($1::text[])";
    let behind = topics("bad", 20);
    until("nothing else is set aside", async || {
        admin.query_one(waits, &[&behind]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
    let arrived = taken(&endpoint, |received| received.header("pgbaton-topic") != "bad/2");
    for key in &KEYS[1..] {
        let last: Vec<String> = arrived[*key].iter().rev().take(20).rev().cloned().collect();
        assert_eq!(last.last(), Some(&format!("{key}/20")), "{key}");
        let mut first_of_each = Vec::new();
        arrived[*key].iter().for_each(|topic| {
            if !first_of_each.contains(topic) {
                first_of_each.push(topic.clone());
            }
        });
        assert_eq!(first_of_each, topics(key, 20), "{key}");
    }
    assert_eq!(arrived["bad"].last(), Some(&"bad/1".to_owned()));
    assert!(!replica.lines_with("a message is dead").is_empty());
}

async fn a_row_that_kills_its_owners_is_found_and_set_aside(major: u32) {
    let adopted = Adopted::new(major).await;
    let (endpoint, mut asked) = deadly("bad/2").await;
    super::adopted::insert(&adopted, &KEYS, 20).await;
    let text = format!("{}\n{SOURCE}", section(&endpoint, &format!("dead = \"skip\"\n{SOON_AGAIN}")));
    let start = |n| adopted.fixture.run(&format!("r{n}"), &text).unwrap();
    let (deaths, replica) = until_it_is_dead(&adopted.admin, &mut asked, start).await;
    assert_eq!(deaths, 5);
    assert_eq!(known(&adopted.admin).await, ("bad/2".to_owned(), "relay.died".to_owned(), 2, died(TWICE)));
    until("all others are marked", async || adopted.pending().await == 1).await;
    until("nothing else is set aside", async || adopted.count("pgbaton.parked").await == 1).await;
    drop(replica);
}

/// It had been set aside with others before, because the sink refused them, and waits with those for its next attempt.
async fn a_message_that_kills_when_it_is_tried_again_is_found(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let refusing = Endpoint::start(|received: Arc<Received>| async move {
        let refused = ["bad/1", "a/1", "b/1", "c/1"].contains(&received.header("pgbaton-topic"));
        Reply::Status(if refused { 500 } else { 204 })
    });
    let refusing = refusing.await.unwrap();
    insert(&admin, &KEYS, 5).await;
    let mut first = fixture.run("first", &section(&refusing, LATER)).unwrap();
    let waiting = "select count(*) = 4 and (select count(*) from pgbaton.parked) = 20 from pgbaton.parked where next_at is not null";
    until("they are set aside", async || admin.query_one(waiting, &[]).await.unwrap().get(0)).await;
    first.kill().unwrap();
    admin.execute("update pgbaton.parked set next_at = now() where next_at is not null", &[]).await.unwrap();
    let (endpoint, mut asked) = deadly("bad/1").await;
    let text = section(&endpoint, &format!("dead = \"skip\"\n{SOON_AGAIN}"));
    let start = |n| fixture.run(&format!("r{n}"), &text).unwrap();
    let (deaths, replica) = until_it_is_dead(&admin, &mut asked, start).await;
    // The first one died of something else.
    assert!((3..=4).contains(&deaths), "{deaths}");
    let (topic, code, deaths, _) = known(&admin).await;
    assert_eq!((topic.as_str(), code.as_str(), deaths), ("bad/1", "relay.died", 2));
    until("nothing else is set aside", async || super::count(&admin, "pgbaton.parked").await == 1).await;
    assert_eq!(taken(&endpoint, |received| received.header("pgbaton-topic") != "bad/1")["bad"], topics("bad", 5)[1..]);
    drop(replica);
}

/// Suspects are set aside, tried alone, and delivered in order; nobody is dead.
async fn replicas_that_are_killed_for_nothing_cost_no_message(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    let admin = fixture.admin().await.unwrap();
    insert(&admin, &KEYS, 40).await;
    let section = format!(
        "{QUICK}[relays.orders]\nlanes = 4\nbatch_messages = 10\nsink = {}\n{SOON_AGAIN}",
        fixture.inbox_sink("app.inbox")
    );
    // Before anything is written; then while suspects are tried, and between an attempt and its position.
    for (n, fault) in
        ["lane.before_append:kill:1", "sink.checked:kill:1", "lane.delivered:kill:9", "lane.appended:kill:20"]
            .into_iter()
            .enumerate()
    {
        let mut replica = fixture.run_with_faults(&format!("r{n}"), &section, fault).unwrap();
        let ended = replica.wait(Duration::from_secs(60)).await;
        assert!(ended.is_ok(), "{fault}: {}", replica.lines_with("").join("\n"));
    }
    let last = fixture.run("last", &section).unwrap();
    until("all", async || super::count(&admin, "app.inbox").await == 320).await;
    until("nothing is set aside", async || super::count(&admin, "pgbaton.parked").await == 0).await;
    let order = "(select key, topic, row_number() over (partition by key order by seq) as place,
                         split_part(topic, '/', 2)::integer as wanted from app.inbox) o where place <> wanted";
    assert_eq!(super::count(&admin, order).await, 0, "each key is in order");
    drop(last);
}

/// Not that a replica that lives has tried it, and gave the lane away before there was an answer.
async fn only_a_death_counts(major: u32) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == "bad/1" { 500 } else { 204 })
    });
    let endpoint = endpoint.await.unwrap();
    let scene = Scene::to(major, &endpoint, LATER).await;
    let other = scene.fixture.run("r2", &scene.section).unwrap();
    until("both have lanes", async || !other.lines_with("lanes taken over").is_empty()).await;
    scene.insert(&KEYS, 1).await;
    until("it is set aside", async || scene.count("pgbaton.parked where attempts = 1").await == 1).await;
    let other = "select r.id from pgbaton.replica r where r.id <> (
                   select l.owner from pgbaton.lane l, pgbaton.parked p where l.lane = p.hash & (l.lanes - 1))";
    for (trying, deaths) in [(other, 0), ("gen_random_uuid()", 1)] {
        let tries = format!("update pgbaton.parked set suspect = true, next_at = now(), trying = ({trying})");
        let attempts: i32 = scene.admin.query_one("select attempts from pgbaton.parked", &[]).await.unwrap().get(0);
        scene.admin.batch_execute(&tries).await.unwrap();
        let tried = format!("pgbaton.parked where attempts = {} and trying is null", attempts + 1);
        until("it was tried again", async || scene.count(&tried).await == 1).await;
        let row = scene.admin.query_one("select deaths, jsonb_array_length(faults) from pgbaton.parked", &[]);
        let row = row.await.unwrap();
        assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (deaths, attempts + 1 + deaths));
    }
}
