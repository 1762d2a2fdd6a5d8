//! A lane that is held: by a message that its sink does not take, or a sink that answers nothing certain.

use std::time::Duration;

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

/// A replica with an inbox that takes no message of lane 5.
async fn holding(major: u32, more: &str) -> (Fixture, Process, Client) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let admin = outbox.admin().await.unwrap();
    let strict = "alter table app.inbox add constraint not_lane_5
                    check (hashtextextended(key collate \"C\", 0) & 15 <> 5)";
    admin.batch_execute(strict).await.unwrap();
    let sink = outbox.inbox_sink("app.inbox");
    let mut replica = outbox.run("r1", &format!("[relays.orders]\nsink = {sink}\n{more}")).unwrap();
    replica.wait_for_lines("lane opened", 16, Duration::from_secs(60)).await.unwrap();
    (outbox, replica, admin)
}

/// Messages of so many bytes for lane 5, or for the others.
async fn insert(admin: &Client, which: &str, count: i32, bytes: i32) {
    let sql = format!(
        "insert into pgbaton.outbox (topic, key, payload)
         select 't', k, convert_to(repeat('x', {bytes}), 'utf8') from (
           select n::text as k from generate_series(1, 1000000) n
           where hashtextextended(n::text collate \"C\", 0) & 15 {which} 5 limit {count}) k"
    );
    admin.batch_execute(&sql).await.unwrap();
}

async fn arrived(admin: &Client) -> i64 {
    admin.query_one("select count(*) from app.inbox", &[]).await.unwrap().get(0)
}

async fn the_other_lanes_go_on_although_its_backlog_fills_the_memory(major: u32) {
    let (_outbox, replica, admin) = holding(major, "memory = \"1 MiB\"").await;
    insert(&admin, "=", 2_000, 3_000).await;
    until("a refusal", async || !replica.lines_with("not_lane_5").is_empty()).await;
    for round in 1..=3 {
        insert(&admin, "<>", 100, 3_000).await;
        until("the others' messages", async || arrived(&admin).await == 100 * round).await;
    }
    admin.batch_execute("alter table app.inbox drop constraint not_lane_5").await.unwrap();
    until("all messages", async || arrived(&admin).await == 2_300).await;
}

async fn what_it_holds_is_not_shown_as_passed(major: u32) {
    let (outbox, replica, admin) = holding(major, "").await;
    insert(&admin, "<>", 20, 10).await;
    until("the others' messages", async || arrived(&admin).await == 20).await;
    // All lanes get on without a message, which is written down only together with something that matters.
    admin.batch_execute("select pg_current_xact_id()").await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    insert(&admin, "=", 1, 10).await;
    insert(&admin, "<>", 200, 10).await;
    until("a refusal", async || !replica.lines_with("not_lane_5").is_empty()).await;
    until("the others' messages", async || arrived(&admin).await == 220).await;
    // The position that knows of them is written as well.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let answer = outbox.pgbaton(&["lanes", "--json", "--dsn", outbox.relay_dsn()]).await.unwrap();
    let lanes: serde_json::Value = serde_json::from_slice(&answer.stdout).unwrap();
    let passed: Vec<i64> =
        lanes["lanes"].as_array().unwrap().iter().map(|lane| lane["passed"].as_i64().unwrap()).collect();
    assert!(passed[5] < 21, "{passed:?}");
    assert!(passed[4] >= 21, "{passed:?}");
}

async fn uncertain_answers_are_followed_by_pauses(major: u32) {
    let (_outbox, replica, admin) = holding(major, "").await;
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
    until("the message", async || arrived(&admin).await == 1).await;
}
