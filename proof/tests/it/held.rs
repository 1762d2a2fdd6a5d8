//! A lane that is held: by a message that its sink does not take, or a sink that answers nothing certain.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proof::endpoint::{Endpoint, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::Process;
use tokio_postgres::Client;

use crate::hand::until;

on_each_version!(
    the_other_lanes_go_on_although_its_backlog_fills_the_memory,
    what_it_holds_is_not_shown_as_passed,
    uncertain_answers_are_followed_by_pauses,
);

/// A replica with an endpoint that asks for patience with messages of lane 5, as long as it is told to.
struct Holding {
    outbox: Fixture,
    replica: Process,
    admin: Client,
    _endpoint: Endpoint,
    refuses: Arc<AtomicBool>,
}

impl Holding {
    async fn new(major: u32, more: &str) -> Holding {
        let outbox = Fixture::new(major).await.unwrap();
        let admin = outbox.admin().await.unwrap();
        let sql = format!("select n::text from generate_series(1, {MOST}) n where {LANE} = 5");
        let of_lane_5: HashSet<String> = admin.query(&sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        let refuses = Arc::new(AtomicBool::new(true));
        let seen = Arc::clone(&refuses);
        let endpoint = Endpoint::forgetful(move |received| {
            let refused = seen.load(Ordering::Relaxed) && of_lane_5.contains(received.header("pgbaton-key"));
            async move { Reply::Status(if refused { 429 } else { 204 }) }
        })
        .await
        .unwrap();
        let sink = format!("{{ type = \"http\", url = \"{}\", allow_private = true }}", endpoint.url("/"));
        let mut replica = outbox.run("r1", &format!("[relays.orders]\nsink = {sink}\n{more}")).unwrap();
        replica.wait_for_lines("lane opened", 16, Duration::from_secs(60)).await.unwrap();
        Holding { outbox, replica, admin, _endpoint: endpoint, refuses }
    }

    /// How far each lane is.
    async fn passed(&self) -> Vec<i64> {
        let answer = self.outbox.pgbaton(&["lanes", "--json", "--dsn", self.outbox.relay_dsn()]).await.unwrap();
        let lanes: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
        lanes["lanes"].as_array().unwrap().iter().map(|lane| lane["passed"].as_i64().unwrap()).collect()
    }

    async fn others_passed(&self, number: i64) -> bool {
        let passed = self.passed().await;
        passed.iter().enumerate().all(|(lane, passed)| lane == 5 || *passed >= number)
    }

    async fn is_held(&self) {
        until("a refusal", async || !self.replica.lines_with("its lane is held").is_empty()).await;
    }
}

/// Keys are numbers up to this one.
const MOST: i32 = 100_000;
const LANE: &str = "hashtextextended(n::text collate \"C\", 0) & 15";

/// Messages of so many bytes for lane 5, or for the others.
async fn insert(admin: &Client, which: &str, count: i32, bytes: i32) {
    let sql = format!(
        "insert into pgbaton.outbox (topic, key, payload)
         select 't', k, convert_to(repeat('x', {bytes}), 'utf8') from (
           select n::text as k from generate_series(1, {MOST}) n where {LANE} {which} 5 limit {count}) k"
    );
    admin.batch_execute(&sql).await.unwrap();
}

async fn the_other_lanes_go_on_although_its_backlog_fills_the_memory(major: u32) {
    let holding = Holding::new(major, "memory = \"1 MiB\"").await;
    insert(&holding.admin, "=", 2_000, 3_000).await;
    holding.is_held().await;
    // Requests that are refused count, too: so the others are told by what is passed.
    for round in 1..=3 {
        insert(&holding.admin, "<>", 100, 3_000).await;
        until("the others' messages", async || holding.others_passed(2_000 + 100 * round).await).await;
    }
    holding.refuses.store(false, Ordering::Relaxed);
    until("all messages", async || holding.passed().await.iter().all(|passed| *passed >= 2_300)).await;
}

async fn what_it_holds_is_not_shown_as_passed(major: u32) {
    let holding = Holding::new(major, "").await;
    let admin = &holding.admin;
    insert(admin, "<>", 20, 10).await;
    until("the others' messages", async || holding.others_passed(20).await).await;
    // All lanes get on without a message, which is written down only together with something that matters.
    admin.batch_execute("select pg_current_xact_id()").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    insert(admin, "=", 1, 10).await;
    insert(admin, "<>", 200, 10).await;
    holding.is_held().await;
    until("the others' messages", async || holding.others_passed(221).await).await;
    // The position that knows of them is written as well.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let passed = holding.passed().await;
    assert!(passed[5] < 21, "{passed:?}");
}

async fn uncertain_answers_are_followed_by_pauses(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let admin = outbox.admin().await.unwrap();
    let replica = outbox.run("r1", &format!("[relays.orders]\nsink = {}", outbox.inbox_sink("app.inbox"))).unwrap();
    let trouble = "create function app.trouble() returns trigger language plpgsql as $$
                     begin raise exception 'not now' using errcode = '57014'; end $$;
                   create trigger trouble before insert on app.inbox for each row execute function app.trouble()";
    admin.batch_execute(trouble).await.unwrap();
    insert(&admin, "<>", 1, 10).await;
    until("an attempt", async || !replica.lines_with("57014").is_empty()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let attempts = replica.lines_with("57014").len();
    assert!((2..30).contains(&attempts), "{attempts} attempts in three seconds");
    admin.batch_execute("drop trigger trouble on app.inbox").await.unwrap();
    let arrived = async || admin.query_one("select count(*) from app.inbox", &[]).await.unwrap().get::<_, i64>(0);
    until("the message", async || arrived().await == 1).await;
}
