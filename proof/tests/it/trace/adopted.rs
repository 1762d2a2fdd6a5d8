//! The same of a row of an adopted table.

use std::sync::Arc;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::on_each_version;
use proof::process::Process;
use serde_json::Value;

use super::{found, traced, traced_with, words};
use crate::adopted::stepwise::Steps;
use crate::adopted::{Adopted, SOURCE};
use crate::hand::until;

on_each_version!(
    a_rows_fate_is_told,
    whether_a_row_is_pending_is_told_by_the_configuration,
    a_row_waits_while_no_replica_runs,
    a_row_that_cannot_be_read_is_not_guessed_at,
    rows_with_ids_of_several_columns_are_found,
);

async fn row(adopted: &Adopted, topic: &str) -> String {
    let sql = r#"select id::text from app."Outbox" where topic = $1"#;
    adopted.admin.query_one(sql, &[&topic]).await.unwrap().get(0)
}

/// A table of which one row is dead and another waits behind it, all others delivered: with the relay's configuration.
async fn failing(major: u32) -> (Endpoint, Adopted, Process, String) {
    let endpoint = Endpoint::start(|received: Arc<Received>| async move {
        Reply::Status(if received.header("pgbaton-topic") == "bad/1" { 400 } else { 204 })
    })
    .await
    .unwrap();
    let adopted = Adopted::new(major).await;
    adopted
        .execute(
            r#"insert into app."Outbox" (site_id, topic, payload, created_at)
               select k, k || '/' || n, '{"a": "secret"}', now() + n * interval '1 ms'
               from generate_series(1, 2) n, unnest('{bad,a,b,c}'::text[]) k"#,
        )
        .await;
    let sink = format!("{{ type = \"http\", url = \"{}\", allow_private = true }}", endpoint.url("/"));
    let relay = format!("[relays.orders]\nlanes = 4\nsink = {sink}\n{SOURCE}");
    let replica = adopted.fixture.run("r1", &relay).unwrap();
    until("its key waits", async || adopted.count("pgbaton.parked").await == 2).await;
    adopted.none_is_left(r#"app."Outbox" where published_at is null and site_id <> 'bad'"#).await;
    (endpoint, adopted, replica, relay)
}

async fn a_rows_fate_is_told(major: u32) {
    let (_endpoint, adopted, _replica, _) = failing(major).await;
    let (dead, behind) = (row(&adopted, "bad/1").await, row(&adopted, "bad/2").await);
    let (of, told) = found(&adopted.fixture, &format!("orders:{dead}")).await;
    assert_eq!((&of["state"], &of["parked"]["code"]), (&"dead".into(), &"http.rejected".into()), "{told}");
    assert_eq!((&of["row"]["key"], &of["lane"]["replica_name"]), (&"bad".into(), &"r1".into()), "{told}");
    let (of, told) = found(&adopted.fixture, &format!("orders:{behind}")).await;
    assert!(words(&of).contains(&format!("waits behind orders:{dead}")), "{told}");
    // The row's id alone, where the relay is named.
    let (code, told) = traced(&adopted.fixture, &[&dead, "--relay", "orders"]).await;
    assert_eq!((code, &told["relays"][0]["state"]), (Some(0), &"dead".into()), "{told}");
    // Given up, and left out.
    let discard = ["dead", "discard", "orders", "--all", "--yes", "--dsn", adopted.fixture.relay_dsn()];
    assert!(adopted.fixture.pgbaton(&discard).await.unwrap().status.success());
    let (of, told) = found(&adopted.fixture, &format!("orders:{dead}")).await;
    assert_eq!(of["state"], "given_up", "{told}");
}

/// Which rows are pending stands in the configuration alone.
async fn whether_a_row_is_pending_is_told_by_the_configuration(major: u32) {
    let (_endpoint, adopted, _replica, relay) = failing(major).await;
    let delivered = format!("orders:{}", row(&adopted, "a/1").await);
    let (of, told) = found(&adopted.fixture, &delivered).await;
    assert_eq!((&of["state"], &of["row"]["pending"]), (&"not_known".into(), &Value::Null), "{told}");
    assert!(words(&of).contains("Whether it is pending is not known"), "{told}");
    let told = traced_with(&adopted.fixture, &relay, &delivered).await;
    let of = &told["relays"][0];
    assert_eq!((&of["state"], &of["row"]["topic"]), (&"not_pending".into(), &"a/1".into()), "{told}");
    assert!(of["row"]["created_at"].is_string() && !told.to_string().contains("secret"), "{told}");
    let wrong = relay.replace("key = \"site_id\"", "key = \"topic\"");
    let told = traced_with(&adopted.fixture, &wrong, &delivered).await;
    assert!(
        words(&told["relays"][0]).contains("has another source for this relay than it was registered for"),
        "{told}"
    );
}

async fn a_row_waits_while_no_replica_runs(major: u32) {
    let adopted = Adopted::new(major).await;
    let steps = Steps::new(&adopted, 4).await;
    adopted.execute("delete from pgbaton.replica").await;
    adopted.insert(1).await;
    let id = format!("orders:{}", row(&adopted, "orders").await);
    let told = traced_with(&adopted.fixture, &adopted.to_files(SOURCE), &id).await;
    let of = &told["relays"][0];
    assert_eq!((&of["state"], &of["row"]["pending"]), (&"waits".into(), &true.into()), "{told}");
    assert!(words(of).contains("nobody runs relay orders"), "{told}");
    let lane: i64 = adopted
        .admin
        .query_one(r#"select (hashtextextended(site_id collate "C", 0) & 3) from app."Outbox""#, &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(of["lane"]["lane"], lane, "{told}");
    for id in ["orders:00000000-0000-0000-0000-0000000000aa", "orders:no uuid"] {
        let (code, told) = traced(&adopted.fixture, &[id]).await;
        assert_eq!((code, &told["relays"][0]["state"]), (Some(1), &"gone".into()), "{told}");
    }
    drop(steps);
}

async fn a_row_that_cannot_be_read_is_not_guessed_at(major: u32) {
    let adopted = Adopted::new(major).await;
    let steps = Steps::new(&adopted, 4).await;
    adopted.insert(1).await;
    let id = format!("orders:{}", row(&adopted, "orders").await);
    // A condition of a configuration that the table does not know.
    let wrong = SOURCE.replace("published_at is null", "sent_at is null");
    let told = traced_with(&adopted.fixture, &adopted.to_files(&wrong), &id).await;
    let of = &told["relays"][0];
    assert_eq!(&of["state"], "not_known", "{told}");
    assert!(words(of).contains("Whether it is pending is not known: ") && words(of).contains("sent_at"), "{told}");
    let digest = format!("orders:sha256:{}", "0".repeat(64));
    let (code, told) = traced(&adopted.fixture, &[&digest]).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(words(&told["relays"][0]).contains("is a digest"), "{told}");
    adopted.execute(&format!(r#"revoke select on app."Outbox" from {}"#, proof::fixture::RELAY)).await;
    let (code, told) = traced(&adopted.fixture, &[&id]).await;
    assert_eq!((code, &told["relays"][0]["state"]), (Some(1), &"not_known".into()), "{told}");
    assert!(words(&told["relays"][0]).contains("permission denied"), "{told}");
    adopted.execute(r#"alter table app."Outbox" rename to former"#).await;
    let (_, told) = traced(&adopted.fixture, &[&id]).await;
    assert!(words(&told["relays"][0]).contains("there is no table"), "{told}");
    drop(steps);
}

async fn rows_with_ids_of_several_columns_are_found(major: u32) {
    let adopted = Adopted::with(
        major,
        "create table app.events (stream text, version bigint, body jsonb not null, sent boolean not null default false,
           primary key (stream, version))",
    )
    .await;
    adopted.execute("insert into app.events (stream, version, body) values ('a,b', 7, '{}')").await;
    let source = r#"
        [relays.orders.source]
        type = "table"
        table = "app.events"
        id = ["stream", "version"]
        key = "stream"
        topic = { constant = "event" }
        payload = "body"
        pending = "not sent"
        mark = { sent = "true" }
    "#;
    let replica = adopted.run_source("r1", source);
    adopted.none_is_left("app.events where not sent").await;
    let id = r#"orders:["a,b", "7"]"#;
    let told = traced_with(&adopted.fixture, &adopted.to_files(source), id).await;
    let of = &told["relays"][0];
    assert_eq!((&of["state"], &of["row"]["key"]), (&"not_pending".into(), &"a,b".into()), "{told}");
    assert_eq!(
        (&of["row"]["message_id"], &of["row"]["topic"]),
        (&r#"orders:["a,b","7"]"#.into(), &"event".into()),
        "{told}"
    );
    drop(replica);
}
