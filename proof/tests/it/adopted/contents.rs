//! What a row says as a message: payloads, headers, keys and times from columns of all types.

use proof::on_each_version;
use serde_json::{Value, json};

use super::{Adopted, end};

on_each_version!(what_a_row_says, what_is_left_open_is_read_in_one_way);

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

/// What the relay of `app.NAME` sent of each row.
async fn delivered(adopted: &Adopted, sources: &[(&str, &str)]) -> Vec<Vec<Value>> {
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
    sources.iter().map(|(name, _)| adopted.lines(name)).collect()
}

/// The same of each of the three rows, without what is not looked at here.
async fn sent(major: u32, sources: &[(&str, &str)]) -> Vec<Vec<Value>> {
    let adopted = Adopted::with(major, EVENTS).await;
    let parts = |line: &Value| {
        let part = |name: &str| line.get(name).cloned().unwrap_or_default();
        json!([part("topic"), part("key"), part("headers"), part("json"), part("text"), part("base64")])
    };
    delivered(&adopted, sources).await.iter().map(|lines| lines.iter().map(parts).collect()).collect()
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

/// Times are in UTC, whatever the session is set to; JSON's own `null` stands for no headers.
async fn what_is_left_open_is_read_in_one_way(major: u32) {
    let ddl = r#"
        create table app.a (id int primary key, topic text default 'a', head json, headb jsonb, at timestamp,
          sent boolean not null default false);
        insert into app.a values (1, 'one', 'null', 'null', '2024-01-02 03:04:05.678'), (2, 'two', ' null ', '{"h": null}');
        create table app.b (like app.a including all); insert into app.b select * from app.a;
        create table app.c (like app.a including all); insert into app.c select * from app.a;
    "#;
    let sources = [
        ("a", "topic = \"topic\"\nheaders = \"head\"\ncreated_at = \"at\""),
        ("b", "topic = \"topic\"\nheaders = \"headb\"\nheader = { x = { constant = \"y\" } }"),
        ("c", "topic = \"topic\"\nheaders = { column = \"headb\", path = \"$.h\" }"),
    ];
    let adopted = Adopted::with(major, ddl).await;
    let elsewhere =
        format!("alter role pgbaton_relay in database {} set timezone = 'America/New_York'", adopted.fixture.database);
    adopted.execute(&elsewhere).await;
    let lines = delivered(&adopted, &sources).await;
    let headers = |of: usize| lines[of].iter().map(|line| line["headers"].clone()).collect::<Vec<_>>();
    assert_eq!(headers(0), [Value::Null, Value::Null]);
    assert_eq!(headers(1), [json!({ "x": "y" }), json!({ "h": null, "x": "y" })]);
    assert_eq!(headers(2), [Value::Null, Value::Null]);
    let time = lines[0][0]["created_at"].as_str().unwrap();
    assert!(time.starts_with("2024-01-02T03:04:05.678"), "{time}");
}
