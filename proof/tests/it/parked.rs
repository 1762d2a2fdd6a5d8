//! Messages that the sink does not take: each is set aside, and only its key waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::Process;
use tokio_postgres::Client;

use crate::hand::until;

mod adopted;
mod attempts;
mod blamed;
mod commands;
mod copies;
mod killers;
mod kills;
mod later;
mod outage;
mod pauses;
mod replays;
mod stuck;
mod together;

on_each_version!(
    a_failing_message_holds_its_key_alone,
    a_dead_message_holds_its_key_or_not,
    a_message_that_fails_again_and_again_dies,
    of_a_batch_that_is_refused_all_others_arrive,
    nothing_is_set_aside_while_the_sink_is_down,
);

/// A replica of one relay, with what is given of its section.
struct Scene {
    fixture: Fixture,
    admin: Client,
    replica: Process,
    section: String,
}

/// Attempts come soon.
const SOON_AGAIN: &str = "[relays.orders.retry]\nfirst = \"50ms\"\ncap = \"200ms\"\n";

impl Scene {
    async fn to(major: u32, endpoint: &Endpoint, more: &str) -> Scene {
        let fixture = Fixture::new(major).await.unwrap();
        let sink =
            format!("{{ type = \"http\", url = \"{}\", allow_private = true, timeout = \"1s\" }}", endpoint.url("/"));
        Scene::of(fixture, &sink, more).await
    }

    async fn of(fixture: Fixture, sink: &str, more: &str) -> Scene {
        let admin = fixture.admin().await.unwrap();
        let section = format!("[relays.orders]\nlanes = 4\nsink = {sink}\n{more}");
        let replica = fixture.run("r1", &section).unwrap();
        Scene { fixture, admin, replica, section }
    }

    /// One transaction with so many messages of each of these keys, in turn. Their topics are the key and a number.
    async fn insert(&self, keys: &[&str], each: i32) {
        insert(&self.admin, keys, each).await;
    }

    async fn count(&self, of: &str) -> i64 {
        count(&self.admin, of).await
    }
}

/// A test that fails shows what the replica said last.
impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = self.replica.lines_with("");
            said.iter().skip(said.len().saturating_sub(20)).for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Takes everything.
async fn willing() -> Endpoint {
    Endpoint::start(|_: Arc<Received>| async { Reply::Status(204) }).await.unwrap()
}

async fn insert(admin: &Client, keys: &[&str], each: i32) {
    let sql = "insert into pgbaton.outbox (topic, key, payload)
               select k || '/' || n, k, 'x' from generate_series(1, $2::integer) n, unnest($1::text[]) k order by n";
    admin.execute(sql, &[&keys, &each]).await.unwrap();
}

async fn count(admin: &Client, of: &str) -> i64 {
    admin.query_one(&format!("select count(*) from {of}"), &[]).await.unwrap().get(0)
}

/// What was taken, key by key, in the order of arrival; repeats are left out.
fn taken(endpoint: &Endpoint, is_taken: impl Fn(&Received) -> bool) -> BTreeMap<String, Vec<String>> {
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for received in endpoint.received().iter().filter(|received| is_taken(received)) {
        let of_key = by_key.entry(received.header("pgbaton-key").to_owned()).or_default();
        let topic = received.header("pgbaton-topic").to_owned();
        if of_key.last() != Some(&topic) {
            of_key.push(topic);
        }
    }
    by_key
}

fn topics(key: &str, count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("{key}/{n}")).collect()
}

const KEYS: [&str; 8] = ["bad", "a", "b", "c", "d", "e", "f", "g"];

async fn a_failing_message_holds_its_key_alone(major: u32) {
    // The first message of the key is refused five times.
    let refusals = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let counted = Arc::clone(&refusals);
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let refused = received.header("pgbaton-topic") == "bad/1"
            && counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) < 5;
        async move { Reply::Status(if refused { 500 } else { 204 }) }
    })
    .await
    .unwrap();
    let scene = Scene::to(major, &endpoint, SOON_AGAIN).await;
    scene.insert(&KEYS, 20).await;
    let all = KEYS.len() * 20;
    until("all messages", async || endpoint.count() >= all + 5).await;
    scene.insert(&KEYS, 1).await;
    until("one more of each key", async || endpoint.count() >= all + 5 + KEYS.len()).await;
    until("nothing is set aside any more", async || scene.count("pgbaton.parked").await == 0).await;
    assert_eq!(endpoint.count(), all + 5 + KEYS.len(), "nothing was sent twice");
    let arrived = taken(&endpoint, |_| true);
    for key in KEYS {
        let mut wanted = topics(key, 20);
        wanted.push(format!("{key}/1"));
        assert_eq!(arrived[key], wanted, "{key}");
    }
    // It was set aside, and the others went past it.
    let (first, last): (usize, usize) = {
        let ids: Vec<String> =
            endpoint.received().iter().map(|received| received.header("pgbaton-topic").to_owned()).collect();
        let at = |topic: &str| ids.iter().rposition(|of| of == topic).unwrap();
        (at("g/20"), at("bad/2"))
    };
    assert!(first < last, "the last message of another key came before the second one of the failing key");
    assert!(!scene.replica.lines_with("it is set aside and tried again").is_empty());
}

async fn a_dead_message_holds_its_key_or_not(major: u32) {
    for (dead, waiting) in [("hold", 2), ("skip", 0)] {
        let endpoint = Endpoint::start(|received: Arc<Received>| async move {
            Reply::Status(if received.header("pgbaton-topic") == "bad/2" { 400 } else { 204 })
        })
        .await
        .unwrap();
        let scene = Scene::to(major, &endpoint, &format!("dead = \"{dead}\"\n{SOON_AGAIN}")).await;
        scene.insert(&KEYS, 4).await;
        let delivered = KEYS.len() * 4 - 1 - usize::try_from(waiting).unwrap();
        until("all others", async || endpoint.count() > delivered).await;
        until("it is dead", async || scene.count("pgbaton.parked where dead_at is not null").await == 1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(endpoint.count(), delivered + 1, "{dead}: it was tried once, and what waits not at all");
        assert_eq!(scene.count("pgbaton.parked where dead_at is null and holds").await, waiting, "{dead}");
        let row = scene
            .admin
            .query_one("select topic, attempts, code, holds from pgbaton.parked where dead_at is not null", &[]);
        let row = row.await.unwrap();
        let found = (row.get::<_, String>(0), row.get::<_, i32>(1), row.get::<_, String>(2), row.get::<_, bool>(3));
        assert_eq!(found, ("bad/2".to_owned(), 1, "http.rejected".to_owned(), dead == "hold"));
    }
}

async fn a_message_that_fails_again_and_again_dies(major: u32) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == "bad/1" { 500 } else { 204 })
    })
    .await
    .unwrap();
    let more = format!("dead = \"skip\"\n{SOON_AGAIN}attempts = 4\n");
    let scene = Scene::to(major, &endpoint, &more).await;
    scene.insert(&KEYS, 3).await;
    until("it is dead", async || scene.count("pgbaton.parked where dead_at is not null").await == 1).await;
    until("its key goes on", async || scene.count("pgbaton.parked").await == 1).await;
    let row =
        scene.admin.query_one("select attempts, jsonb_array_length(faults) from pgbaton.parked", &[]).await.unwrap();
    assert_eq!((row.get::<_, i32>(0), row.get::<_, i32>(1)), (4, 4));
    let arrived = taken(&endpoint, |received| received.header("pgbaton-topic") != "bad/1");
    assert_eq!(arrived["bad"], ["bad/2", "bad/3"]);
    assert_eq!(endpoint.count(), KEYS.len() * 3 - 1 + 4);
}

async fn of_a_batch_that_is_refused_all_others_arrive(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    let sink = fixture.inbox_sink("app.inbox");
    let admin = fixture.admin().await.unwrap();
    admin
        .batch_execute("alter table app.inbox add constraint good check (topic not in ('bad/3', 'c/7'))")
        .await
        .unwrap();
    insert(&admin, &KEYS, 100).await;
    let scene = Scene::of(fixture, &sink, &format!("dead = \"skip\"\n{SOON_AGAIN}")).await;
    until("all others", async || scene.count("app.inbox").await == 798).await;
    until("two are dead", async || scene.count("pgbaton.parked where dead_at is not null").await == 2).await;
    assert_eq!(scene.count("pgbaton.parked").await, 2);
    let order = "(select key, topic, row_number() over (partition by key order by seq) as place,
                         row_number() over (partition by key order by split_part(topic, '/', 2)::integer) as wanted
                  from app.inbox) o where place <> wanted";
    assert_eq!(scene.count(order).await, 0, "each key is in order");
    assert!(scene.fixture.folder().exists());
}

/// For as long as nothing is answered no attempt is spent.
async fn nothing_is_set_aside_while_the_sink_is_down(major: u32) {
    let up = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = Arc::clone(&up);
    let endpoint = Endpoint::start(move |_| {
        let up = seen.load(std::sync::atomic::Ordering::Relaxed);
        async move {
            if !up {
                std::future::pending::<()>().await;
            }
            Reply::Status(204)
        }
    })
    .await
    .unwrap();
    let scene = Scene::to(major, &endpoint, &format!("{SOON_AGAIN}attempts = 1\n")).await;
    scene.insert(&KEYS, 20).await;
    until("it is told", async || !scene.replica.lines_with("the sink is down").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(scene.count("pgbaton.parked").await, 0);
    up.store(true, std::sync::atomic::Ordering::Relaxed);
    let taken_topics = |endpoint: &Endpoint| {
        let received = endpoint.received();
        let topics = received.iter().map(|received| received.header("pgbaton-topic"));
        topics.collect::<std::collections::BTreeSet<_>>().len()
    };
    until("all messages", async || taken_topics(&endpoint) == KEYS.len() * 20).await;
    assert_eq!(scene.count("pgbaton.parked").await, 0);
}
