//! Rows of an adopted table that the sink does not take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::on_each_version;
use proof::process::Process;

use super::{KEYS, SOON_AGAIN, taken, topics};
use crate::adopted::{Adopted, SOURCE};
use crate::hand::until;

on_each_version!(
    a_failing_row_holds_its_key_alone,
    a_row_that_is_marked_by_hand_is_forgotten,
    exactly_once_whenever_the_owner_is_killed,
);

/// One transaction with so many rows of each of these keys, in turn.
pub(super) async fn insert(adopted: &Adopted, keys: &[&str], each: i32) {
    let sql = r#"insert into app."Outbox" (site_id, topic, payload, created_at)
                 select k, k || '/' || n, '{}', now() + n * interval '1 ms'
                 from generate_series(1, $2::integer) n, unnest($1::text[]) k"#;
    adopted.admin.execute(sql, &[&keys, &each]).await.unwrap();
}

pub(super) fn run(adopted: &Adopted, sink: &str, more: &str) -> Process {
    let text = format!("[relays.orders]\nlanes = 4\nsink = {sink}\n{more}\n{SOURCE}");
    adopted.fixture.run("r1", &text).unwrap()
}

pub(super) fn http(endpoint: &Endpoint) -> String {
    format!("{{ type = \"http\", url = \"{}\", allow_private = true }}", endpoint.url("/"))
}

async fn a_failing_row_holds_its_key_alone(major: u32) {
    let refusals = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&refusals);
    let endpoint = Endpoint::start(move |received: Arc<Received>| {
        let refused = received.header("pgbaton-topic") == "bad/1" && counted.fetch_add(1, Ordering::Relaxed) < 5;
        async move { Reply::Status(if refused { 500 } else { 204 }) }
    })
    .await
    .unwrap();
    let adopted = Adopted::new(major).await;
    insert(&adopted, &KEYS, 20).await;
    let replica = run(&adopted, &http(&endpoint), SOON_AGAIN);
    until("all but those of the key", async || adopted.pending().await <= 20).await;
    until("all are marked", async || adopted.pending().await == 0).await;
    until("nothing is set aside", async || adopted.count("pgbaton.parked").await == 0).await;
    assert_eq!(endpoint.count(), KEYS.len() * 20 + 5, "nothing was sent twice");
    let arrived = taken(&endpoint, |_| true);
    for key in KEYS {
        assert_eq!(arrived[key], topics(key, 20), "{key}");
    }
    drop(replica);
}

/// While it is set aside, or dead.
async fn a_row_that_is_marked_by_hand_is_forgotten(major: u32) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        let refused = received.header("pgbaton-topic") == "bad/1";
        Reply::Status(if refused { 500 } else { 204 })
    })
    .await
    .unwrap();
    let adopted = Adopted::new(major).await;
    insert(&adopted, &KEYS, 5).await;
    let replica = run(&adopted, &http(&endpoint), SOON_AGAIN);
    until("all but those of the key", async || adopted.pending().await == 5).await;
    until("its key is set aside", async || adopted.count("pgbaton.parked").await == 5).await;
    adopted.execute(r#"update app."Outbox" set published_at = now() where topic = 'bad/1'"#).await;
    until("all are marked", async || adopted.pending().await == 0).await;
    until("nothing is set aside", async || adopted.count("pgbaton.parked").await == 0).await;
    let arrived = taken(&endpoint, |received| received.header("pgbaton-topic") != "bad/1");
    assert_eq!(arrived["bad"], topics("bad", 5)[1..]);
    drop(replica);
}

async fn exactly_once_whenever_the_owner_is_killed(major: u32) {
    for (point, times) in
        [("lane.appended", 3), ("lane.delivered", 4), ("acknowledge.locked", 2), ("acknowledge.locked", 4)]
    {
        let adopted = Adopted::new(major).await;
        adopted.fixture.inbox("app.inbox").await.unwrap();
        let strict = "alter table app.inbox add constraint good check (topic not in ('bad/2', 'c/3')) not valid";
        adopted.execute(strict).await;
        insert(&adopted, &KEYS, 8).await;
        let text = format!(
            "[relays.orders]\nlanes = 2\nbatch_messages = 10\nsink = {}\n{SOON_AGAIN}\n{SOURCE}",
            adopted.fixture.inbox_sink("app.inbox")
        );
        let mut first = adopted.fixture.run_with_faults("r1", &text, &format!("{point}:kill:{times}")).unwrap();
        let ended = first.wait(Duration::from_secs(60)).await;
        assert!(ended.is_ok(), "{point}: it was not reached {times} times");
        let second = adopted.fixture.run("r2", &text).unwrap();
        let waiting = 7 + 6;
        until(&format!("{point}: all others"), async || {
            adopted.count("app.inbox").await == 64 - waiting && adopted.count("pgbaton.parked").await == waiting
        })
        .await;
        assert_eq!(adopted.pending().await, waiting);
        // As an operator would.
        adopted
            .execute(
                "alter table app.inbox drop constraint good;
                 update pgbaton.parked set dead_at = null, next_at = now(), attempts = 0 where dead_at is not null",
            )
            .await;
        until(&format!("{point}: all"), async || adopted.pending().await == 0).await;
        until(&format!("{point}: nothing is set aside"), async || adopted.count("pgbaton.parked").await == 0).await;
        let order = "(select topic, row_number() over (partition by key order by seq) as place,
                             split_part(topic, '/', 2)::integer as wanted from app.inbox) o where place <> wanted";
        assert_eq!((adopted.count("app.inbox").await, adopted.count(order).await), (64, 0), "{point}: once, in order");
        drop(second);
    }
}
