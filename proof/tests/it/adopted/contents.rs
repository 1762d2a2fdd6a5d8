//! What a row says as a message: payloads, headers and keys from columns of all types; and rows that cannot be messages.

use futures_util::future::join_all;
use proof::on_each_version;
use serde_json::{Value, json};

use super::{Adopted, SOURCE, end};
use crate::hand::{SOON, until};

on_each_version!(what_a_row_says, a_row_that_cannot_be_a_message_holds_its_lane, a_large_row_is_looked_at_as_well);

const EVENTS: &str = r#"
    create table app.a (id int primary key, topic text, head json, meta jsonb, bytes bytea, doc json, docb jsonb, words text,
      flag boolean, amount numeric, at timestamp default '2024-01-02 03:04:05.678', sent boolean default false);
    insert into app.a values
      (1, 'one', '{"b": 1,  "a": "x"}', '{"kind": "k1", "order": {"id": 7, "tags": ["x", "y"]}}', 'text', '{"z": 1,  "a": [1.50]}',
       '{"z": 1, "a": [1.50]}', '{"in": "text"}', true, 1.50),
      (2, 'two', null, '{"order": {"id": "seven"}}', '\xff00', '"a text"', 'null', '[1]', null, null),
      (3, 'three', '{}', null, null, null, null, null, false, 0);
    create table app.b (like app.a including all); insert into app.b select * from app.a;
    create table app.c (like app.a including all); insert into app.c select * from app.a;
    create table app.d (like app.a including all); insert into app.d select * from app.a;
    create table app.e (like app.a including all); insert into app.e select * from app.a;
"#;

/// What the relay of `app.NAME` sent of each of the three rows, without what is not looked at here.
async fn sent(major: u32, sources: &[(&str, &str)]) -> Vec<Vec<Value>> {
    let adopted = Adopted::with(major, EVENTS).await;
    let mut relays = String::new();
    for (name, source) in sources {
        let file = adopted.fixture.folder().join(format!("{name}.jsonl"));
        relays.push_str(&format!(
            "[relays.{name}]\nlanes = 1\nsink = {{ type = \"file\", path = {} }}\n[relays.{name}.source]\ntype = \"table\"\n\
             table = \"app.{name}\"\nid = \"id\"\npending = \"not sent\"\nmark = {{ sent = \"true\" }}\n{source}\n",
            proof::fixture::toml_text(&file.to_string_lossy())
        ));
    }
    let replica = adopted.fixture.run("r1", &relays).unwrap();
    for (name, _) in sources {
        adopted.none_is_left(&format!("app.{name} where not sent")).await;
    }
    end(replica).await;
    let parts = |line: &Value| {
        let part = |name: &str| line.get(name).cloned().unwrap_or_default();
        json!([part("topic"), part("key"), part("headers"), part("json"), part("text"), part("base64")])
    };
    sources.iter().map(|(name, _)| adopted.lines(name).iter().map(parts).collect()).collect()
}

async fn what_a_row_says(major: u32) {
    let sources = [
        (
            "a",
            "topic = \"topic\"\npayload = \"bytes\"\nheaders = \"head\"\nkey = { column = \"meta\", path = \"$.order.id\" }",
        ),
        (
            "b",
            "topic = { constant = \"all's\" }\npayload = \"doc\"\nkey = \"flag\"\nheaders = \"head\"\n\
             header = { source = { constant = \"shop\" }, kind = { column = \"meta\", path = \"$.kind\" }, amount = \"amount\", a = \"id\" }",
        ),
        (
            "c",
            "topic = \"topic\"\npayload = \"docb\"\nheaders = { column = \"meta\", path = \"$.order ? (@.id == 7)\" }",
        ),
        ("d", "topic = \"topic\"\npayload = \"words\"\npayload_is_json = true\ncreated_at = \"at\""),
        ("e", "topic = \"topic\"\npayload = { column = \"words\", path = \"$.in\" }"),
    ];
    let sent = sent(major, &sources).await;
    let none = Value::Null;
    assert_eq!(
        sent[0],
        [
            json!(["one", "7", { "b": 1, "a": "x" }, none, "text", none]),
            json!(["two", "seven", none, none, none, "/wA="]),
            json!(["three", none, {}, none, none, none]),
        ]
    );
    assert_eq!(
        sent[1],
        [
            json!(["all's", "true", { "b": 1, "a": "1", "source": "shop", "kind": "k1", "amount": "1.50" }, { "z": 1, "a": [1.5] }, none, none]),
            json!(["all's", none, { "a": "2", "source": "shop" }, "a text", none, none]),
            json!(["all's", "false", { "a": "3", "source": "shop", "amount": "0" }, none, none, none]),
        ]
    );
    assert_eq!(
        sent[2],
        [
            json!(["one", none, { "id": 7, "tags": ["x", "y"] }, { "z": 1, "a": [1.5] }, none, none]),
            json!(["two", none, none, none, none, none]),
            json!(["three", none, none, none, none, none]),
        ]
    );
    assert_eq!(
        sent[3],
        [
            json!(["one", none, none, { "in": "text" }, none, none]),
            json!(["two", none, none, [1], none, none]),
            json!(["three", none, none, none, none, none]),
        ]
    );
    assert_eq!(
        sent[4],
        [
            json!(["one", none, none, "text", none, none]),
            json!(["two", none, none, none, none, none]),
            json!(["three", none, none, none, none, none]),
        ]
    );
}

/// Rows as [`SOURCE`] reads them, but that any text may stand for the payload and the headers.
const LOOSE: &str = r#"
    create table app."Outbox" (
      id uuid primary key default gen_random_uuid(), site_id text not null, topic text, payload text, headers json,
      created_at timestamptz not null default clock_timestamp(), published_at timestamptz);
    create index on app."Outbox" (created_at, id) where published_at is null;"#;

/// How a row is spoilt and mended, and what is said of it.
const SPOILT: [(&str, &str, &str); 4] = [
    ("topic = null", "topic = 'orders'", "its topic is null"),
    ("topic = ''", "topic = 'orders'", "its topic is empty"),
    ("headers = '[1]'", "headers = null", "its headers are no JSON object"),
    ("payload = '{\"secret\":'", "payload = '{}'", "its payload is no JSON"),
];

async fn a_row_that_cannot_be_a_message_holds_its_lane(major: u32) {
    join_all(SPOILT.map(|(spoil, mend, said)| is_held(major, "", spoil, mend, said))).await;
}

/// It is fetched by itself, and its size is no reason to hold all lanes.
async fn a_large_row_is_looked_at_as_well(major: u32) {
    let large = ", payload = to_json(repeat('secret', 10000))::text";
    join_all(SPOILT[..3].iter().map(|(spoil, mend, said)| is_held(major, large, spoil, mend, said))).await;
}

async fn is_held(major: u32, more: &str, spoil: &str, mend: &str, said: &str) {
    let adopted = Adopted::with(major, LOOSE).await;
    adopted.execute(
        r#"insert into app."Outbox" (site_id, topic, payload) select 'site ' || n % 20, 'orders', to_json(n) from generate_series(1, 200) n"#,
    )
    .await;
    let third = r#"(select id from app."Outbox" where site_id = 'site 3' order by created_at offset 2 limit 1)"#;
    let spoilt: String = adopted.admin.query_one(&format!("select {third}::text"), &[]).await.unwrap().get(0);
    adopted.execute(&format!(r#"update app."Outbox" set {spoil}{more} where id = '{spoilt}'"#)).await;
    let source =
        SOURCE.replace("payload = \"payload\"", "payload = \"payload\"\npayload_is_json = true\nheaders = \"headers\"");
    let mut replica = adopted.run_source("r1", &source);
    let lane = |site: &str| format!("(hashtextextended({site} collate \"C\", 0) & 3)");
    let (of_row, of_bad) = (lane("site_id"), lane("'site 3'"));
    adopted.none_is_left(&format!(r#"app."Outbox" where published_at is null and {of_row} <> {of_bad}"#)).await;
    // What stands before it has gone, as has nothing behind it.
    let of_lane = format!(r#"app."Outbox" where {of_row} = {of_bad}"#);
    let time = format!(r#"(select created_at from app."Outbox" where id = '{spoilt}')"#);
    adopted.none_is_left(&format!("{of_lane} and published_at is null and created_at < {time}")).await;
    let line = replica.wait_for_line(said, SOON).await.unwrap();
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
