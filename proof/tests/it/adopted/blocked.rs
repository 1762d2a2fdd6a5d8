//! Rows that hold their lanes: other lanes are served all the same, the row is named, and the lane goes on once it can.

use futures_util::future::join_all;
use proof::fixture::toml_text;
use proof::on_each_version;

use super::{Adopted, SOURCE, end, lane_of, pending_beside};
use crate::daemon::{ANYWHERE, address_of, get, get_until};
use crate::hand::{SOON, until};

on_each_version!(
    a_row_that_cannot_be_a_message_holds_its_lane,
    a_row_that_the_server_cannot_read_holds_its_lane,
    a_large_row_is_looked_at_as_well,
    what_stands_behind_such_a_row_leaves_room_for_others,
    a_lane_whose_row_is_gone_is_no_longer_refused,
    a_key_that_cannot_be_read_holds_one_lane,
    a_relay_that_cannot_be_measured_keeps_no_other_from_it,
);

/// Rows as [`SOURCE`] reads them, but that any text may stand for the payload and the headers.
const LOOSE: &str = r#"
    create table app."Outbox" (
      id uuid primary key default gen_random_uuid(), site_id text not null, topic text, payload text, headers json, bytes bytea,
      created_at timestamptz not null default clock_timestamp(), published_at timestamptz);
    create index on app."Outbox" (created_at, id) where published_at is null;"#;

/// How a row is spoilt and mended, and what is said of it.
struct Spoilt {
    /// What the source says besides.
    source: &'static str,
    spoil: &'static str,
    mend: &'static str,
    said: &'static str,
}

const TEXTS: &str = "payload = \"payload\"\npayload_is_json = true\nheaders = \"headers\"";

/// Rows that cannot be messages.
const NO_MESSAGES: [Spoilt; 4] = [
    Spoilt { source: TEXTS, spoil: "topic = null", mend: "topic = 'orders'", said: "its topic is null" },
    Spoilt { source: TEXTS, spoil: "topic = ''", mend: "topic = 'orders'", said: "its topic is empty" },
    Spoilt { source: TEXTS, spoil: "headers = '[1]'", mend: "headers = null", said: "its headers are no JSON object" },
    Spoilt { source: TEXTS, spoil: "payload = '{\"secret\":'", mend: "payload = '{}'", said: "its payload is no JSON" },
];

/// Rows of which the server cannot make what the source asks for: none of a fetch comes then.
const UNREADABLE: [Spoilt; 4] = [
    Spoilt {
        source: "payload = { column = \"payload\", path = \"$\" }",
        spoil: "payload = '{\"secret\":'",
        mend: "payload = '{}'",
        said: "its \\\"payload\\\" cannot be read as it is configured to be (22P02)",
    },
    Spoilt {
        source: "payload = { column = \"payload\", path = \"strict $.a\" }",
        spoil: "payload = '{\"secret\": 1}'",
        mend: "payload = '{\"a\": 1}'",
        said: "its \\\"payload\\\" cannot be read as it is configured to be (2203A)",
    },
    Spoilt {
        source: "payload = \"bytes\"\npayload_is_json = true",
        spoil: r"bytes = '\xff'",
        mend: "bytes = '{}'",
        said: "its \\\"bytes\\\" cannot be read as it is configured to be (22021)",
    },
    Spoilt {
        source: "payload = \"payload\"\nheaders = \"headers\"\nheader = { a = { column = \"headers\", path = \"$.b\" } }",
        spoil: r#"headers = '{"secret": "\u0000"}'"#,
        mend: "headers = '{}'",
        said: "its \\\"headers\\\" cannot be read as it is configured to be (22P05)",
    },
];

async fn a_row_that_cannot_be_a_message_holds_its_lane(major: u32) {
    join_all(NO_MESSAGES.iter().map(|spoilt| is_held(major, spoilt, ""))).await;
}

async fn a_row_that_the_server_cannot_read_holds_its_lane(major: u32) {
    join_all(UNREADABLE.iter().map(|spoilt| is_held(major, spoilt, ""))).await;
}

/// It is fetched by itself, and its size is no reason to hold all lanes.
async fn a_large_row_is_looked_at_as_well(major: u32) {
    let large = ", payload = to_json(repeat('secret', 10000))::text";
    join_all(NO_MESSAGES[..3].iter().map(|spoilt| is_held(major, spoilt, large))).await;
}

async fn is_held(major: u32, Spoilt { source, spoil, mend, said }: &Spoilt, more: &str) {
    let adopted = Adopted::with(major, LOOSE).await;
    let insert = format!(
        r#"insert into app."Outbox" (site_id, topic, payload)
           select 'site ' || n % 20, 'orders', {} from generate_series(1, 200) n"#,
        if source.contains("strict") { r#"'{"a": 2}'"# } else { "to_json(n)" }
    );
    adopted.execute(&insert).await;
    let third = r#"(select id from app."Outbox" where site_id = 'site 3' order by created_at offset 2 limit 1)"#;
    let spoilt: String = adopted.admin.query_one(&format!("select {third}::text"), &[]).await.unwrap().get(0);
    adopted.execute(&format!(r#"update app."Outbox" set {spoil}{more} where id = '{spoilt}'"#)).await;
    let mut replica = adopted.run_source("r1", &SOURCE.replace("payload = \"payload\"", source));
    adopted.none_is_left(&pending_beside("site 3")).await;
    // What stands before it has gone, as has nothing behind it.
    let of_lane = format!(r#"app."Outbox" where {} = {}"#, lane_of("site_id"), lane_of("'site 3'"));
    let time = format!(r#"(select created_at from app."Outbox" where id = '{spoilt}')"#);
    adopted.none_is_left(&format!("{of_lane} and published_at is null and created_at < {time}")).await;
    let line = replica.wait_for_line("the lane is held", SOON).await.unwrap();
    let said = said.replace('\\', "");
    assert!(line.replace('\\', "").contains(&said), "{said}: {line}");
    assert!(line.contains(&format!("orders:{spoilt}")) && !line.contains("secret"), "{line}");
    assert_eq!(adopted.count(&format!("{of_lane} and published_at is not null and created_at >= {time}")).await, 0);
    adopted.execute(&format!(r#"update app."Outbox" set {mend} where id = '{spoilt}'"#)).await;
    adopted.all_marked().await;
    until("all have arrived", async || adopted.lines("r1").len() >= 200).await;
    end(replica).await;
    let lines = adopted.lines("r1");
    let of_key: Vec<&str> =
        lines.iter().filter(|line| line["key"] == "site 3").map(|line| line["created_at"].as_str().unwrap()).collect();
    assert!(lines.len() == 200 && of_key.len() == 10 && of_key.is_sorted(), "{} {of_key:?}", lines.len());
}

/// There are more rows of its lane than a look brings.
async fn what_stands_behind_such_a_row_leaves_room_for_others(major: u32) {
    let adopted = Adopted::with(major, LOOSE).await;
    adopted
        .execute(
            r#"insert into app."Outbox" (site_id, topic) values ('site', null);
               insert into app."Outbox" (site_id, topic) select 'site', 'orders' from generate_series(1, 25000);
               insert into app."Outbox" (site_id, topic) select 'other ' || n, 'orders' from generate_series(1, 40) n"#,
        )
        .await;
    let replica = adopted.run("r1");
    adopted.none_is_left(&pending_beside("site")).await;
    assert!(adopted.pending().await > 25_000);
    adopted
        .execute(
            r#"delete from app."Outbox" where ctid in (select ctid from app."Outbox" where site_id = 'site' limit 24000);
               update app."Outbox" set topic = 'orders' where topic is null"#,
        )
        .await;
    adopted.all_marked().await;
    end(replica).await;
}

/// Nothing else of its lane is there to be read.
async fn a_lane_whose_row_is_gone_is_no_longer_refused(major: u32) {
    let adopted = Adopted::with(major, LOOSE).await;
    adopted.execute(r#"insert into app."Outbox" (site_id, topic) values ('site', null)"#).await;
    let mut replica = adopted.fixture.run("r1", &format!("{ANYWHERE}{}", adopted.to_files(SOURCE))).unwrap();
    let address = address_of(&mut replica).await;
    let refused = |count: u32| format!("pgbaton_lanes_refused{{relay=\"orders\"}} {count}\n");
    get_until(&address, "/metrics", "a refused lane", |answer| answer.body.contains(&refused(1))).await;
    adopted.execute(r#"update app."Outbox" set published_at = now()"#).await;
    get_until(&address, "/metrics", "no refused lane", |answer| answer.body.contains(&refused(0))).await;
    end(replica).await;
}

/// A look reads the key of every row.
async fn a_key_that_cannot_be_read_holds_one_lane(major: u32) {
    let adopted = Adopted::with(major, LOOSE).await;
    adopted
        .execute(
            r#"insert into app."Outbox" (site_id, topic, payload)
               select 'site', 'orders', json_build_object('k', n % 20)::text from generate_series(1, 200) n;
               update app."Outbox" set payload = '{"secret":'
               where id = (select id from app."Outbox" order by created_at offset 50 limit 1)"#,
        )
        .await;
    let spoilt: String = adopted
        .admin
        .query_one(r#"select id::text from app."Outbox" where payload = '{"secret":'"#, &[])
        .await
        .unwrap()
        .get(0);
    let source = SOURCE.replace("key = \"site_id\"", "key = { column = \"payload\", path = \"$.k\" }");
    let mut replica = adopted.run_source("r1", &source);
    if major < 16 {
        // There is no way to see it before.
        assert!(!replica.wait(SOON).await.unwrap().success());
        assert!(!replica.lines_with("which is no jsonb").is_empty());
        return;
    }
    let line = replica.wait_for_line("the lane is held", SOON).await.unwrap();
    assert!(line.contains(&format!("orders:{spoilt}")) && !line.contains("secret"), "{line}");
    let key = lane_of("(case when payload <> '{\"secret\":' then payload end)::json ->> 'k'");
    let others = format!("{key} <> {}", lane_of(&format!("'{spoilt}'")));
    adopted.none_is_left(&format!(r#"app."Outbox" where published_at is null and {others}"#)).await;
    adopted.execute(&format!(r#"update app."Outbox" set payload = '{{"k": 7}}' where id = '{spoilt}'"#)).await;
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 200);
}

/// Its table may no longer be read.
async fn a_relay_that_cannot_be_measured_keeps_no_other_from_it(major: u32) {
    let adopted =
        Adopted::with(major, &format!(r#"{LOOSE} create table app.first (like app."Outbox" including all)"#)).await;
    let first = SOURCE.replace("orders", "first").replace("app.Outbox", "app.first");
    let file = toml_text(&adopted.fixture.folder().join("first.jsonl").to_string_lossy());
    let relays = format!(
        "{ANYWHERE}[relays.first]\nlanes = 1\nsink = {{ type = \"file\", path = {file} }}\n{first}\n{}",
        adopted.to_files(SOURCE)
    );
    let mut replica = adopted.fixture.run("r1", &relays).unwrap();
    let address = address_of(&mut replica).await;
    replica.wait_for_lines("lane opened", 5, SOON).await.unwrap();
    adopted.execute("revoke select on app.first from pgbaton_relay").await;
    adopted.execute(r#"insert into app."Outbox" (site_id, topic) values ('site', null)"#).await;
    let behind = "pgbaton_ids_behind{relay=\"orders\"} 1\n";
    get_until(&address, "/metrics", "it is measured", |answer| answer.body.contains(behind)).await;
    let oldest = "pgbaton_oldest_undelivered_age_seconds{relay=\"orders\"}";
    assert!(get(&address, "/metrics").await.body.contains(oldest));
    end(replica).await;
}
