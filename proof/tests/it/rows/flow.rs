//! One outbox flowing into an inbox and into a file, and what has arrived there.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use proof::fixture::Fixture;
use proof::process::{POLL, Process};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

const SOON: Duration = Duration::from_secs(120);

/// A message as its producer inserts it.
pub(super) struct Row {
    /// What it is an example of.
    pub(super) what: &'static str,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) headers: Option<String>,
    pub(super) json: Option<String>,
    pub(super) bytes: Option<Vec<u8>>,
}

impl Row {
    pub(super) fn new(what: &'static str) -> Row {
        Row { what, topic: "t".to_owned(), key: None, headers: None, json: None, bytes: None }
    }
}

/// A message as it arrived.
#[derive(Debug, PartialEq)]
pub(super) struct Arrived {
    topic: String,
    key: Option<String>,
    headers: Option<String>,
    json: Option<String>,
    bytes: Option<Vec<u8>>,
    /// In microseconds since 1970.
    created_at: String,
}

impl Arrived {
    pub(super) fn in_inbox(row: &Row, created_at: &str) -> Arrived {
        let Row { topic, key, headers, json, bytes, .. } = row;
        Arrived {
            topic: topic.clone(),
            key: key.clone(),
            headers: headers.clone(),
            json: json.clone(),
            bytes: bytes.clone(),
            created_at: created_at.to_owned(),
        }
    }

    /// In a file of lines, JSON over several lines becomes one.
    pub(super) fn in_file(row: &Row, created_at: &str) -> Arrived {
        let one_line = |text: String| text.replace(['\n', '\r'], " ");
        let inbox = Arrived::in_inbox(row, created_at);
        Arrived { headers: inbox.headers.map(one_line), json: inbox.json.map(one_line), ..inbox }
    }
}

/// A running relay for each sink. Both belong to one replica.
pub(super) struct Flow {
    pub(super) outbox: Fixture,
    pub(super) admin: Client,
    replica: Process,
}

impl Flow {
    /// Both relays. `options` are those of each.
    pub(super) async fn start(major: u32, options: &str) -> Flow {
        Flow::start_some(major, options, &["inbox", "file"]).await
    }

    /// Some of the relays.
    pub(super) async fn start_some(major: u32, options: &str, relays: &[&str]) -> Flow {
        let outbox = Fixture::new(major).await.unwrap();
        outbox.inbox("app.inbox").await.unwrap();
        let section = |name: &&str| {
            let sink = if *name == "file" { outbox.file_sink() } else { outbox.inbox_sink("app.inbox") };
            format!("[relays.{name}]\n{options}sink = {sink}\n")
        };
        let replica = outbox.run("r1", &relays.iter().map(section).collect::<String>()).unwrap();
        let admin = outbox.admin().await.unwrap();
        Flow { outbox, admin, replica }
    }

    /// Inserts the rows as an application does, and returns their message ids.
    pub(super) async fn insert(&self, rows: &[Row]) -> Vec<String> {
        let producer = self.outbox.producer().await.unwrap();
        let insert = "insert into pgbaton.outbox (topic, key, headers, payload_json, payload)
                      values ($1, $2, $3::text::json, $4::text::json, $5) returning message_id::text";
        let mut ids = Vec::new();
        for Row { what, topic, key, headers, json, bytes } in rows {
            let values: [(&(dyn ToSql + Sync), Type); 5] = [
                (topic, Type::TEXT),
                (key, Type::TEXT),
                (headers, Type::TEXT),
                (json, Type::TEXT),
                (bytes, Type::BYTEA),
            ];
            let found = producer.query_typed(insert, &values).await;
            let found = found.unwrap_or_else(|error| panic!("{what}: {error:?}"));
            ids.push(found[0].get(0));
        }
        ids
    }

    /// Everything that has arrived, once there are so many messages in both places.
    pub(super) async fn arrived(&self, count: usize) -> (BTreeMap<String, Arrived>, BTreeMap<String, Arrived>) {
        self.until("everything arrived", async |flow| {
            let rows = flow.admin.query_one("select count(*) from app.inbox", &[]).await.unwrap();
            rows.get::<_, i64>(0) >= i64::try_from(count).unwrap() && flow.lines().lines().count() >= count
        })
        .await;
        (self.inbox().await, self.file())
    }

    async fn inbox(&self) -> BTreeMap<String, Arrived> {
        let all = "select message_id, topic, key, headers::text, payload_json::text, payload,
                     (extract(epoch from created_at) * 1000000)::bigint::text from app.inbox";
        let rows = self.admin.query(all, &[]).await.unwrap();
        rows.iter()
            .map(|row| {
                let arrived = Arrived {
                    topic: row.get(1),
                    key: row.get(2),
                    headers: row.get(3),
                    json: row.get(4),
                    bytes: row.get(5),
                    created_at: row.get(6),
                };
                (row.get(0), arrived)
            })
            .collect()
    }

    fn file(&self) -> BTreeMap<String, Arrived> {
        let text = self.lines();
        text.lines()
            .map(|line| {
                let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(line).unwrap();
                let known = ["id", "topic", "key", "headers", "created_at", "json", "text", "base64"];
                assert!(fields.keys().all(|field| known.contains(field)), "{line}");
                let raw = |name| fields.get(name).map(|value| value.get().to_owned());
                let string = |name| raw(name).and_then(|text| serde_json::from_str::<Option<String>>(&text).unwrap());
                let base64 = string("base64").map(|text| STANDARD.decode(text).unwrap());
                let created: jiff::Timestamp = string("created_at").unwrap().parse().unwrap();
                let arrived = Arrived {
                    topic: string("topic").unwrap(),
                    key: string("key"),
                    headers: raw("headers"),
                    json: raw("json"),
                    bytes: base64.or_else(|| string("text").map(String::into_bytes)),
                    created_at: created.as_microsecond().to_string(),
                };
                (string("id").unwrap(), arrived)
            })
            .collect()
    }

    /// Keys and the header `n` of the file's lines, in their order.
    pub(super) fn file_order(&self) -> Vec<(String, i64)> {
        let text = self.lines();
        text.lines()
            .map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                (line["key"].as_str().unwrap().to_owned(), line["headers"]["n"].as_i64().unwrap())
            })
            .collect()
    }

    /// The file as far as its lines are whole.
    fn lines(&self) -> String {
        let text = std::fs::read_to_string(self.outbox.file()).unwrap_or_default();
        text[..text.rfind('\n').map_or(0, |end| end + 1)].to_owned()
    }

    /// When the outbox says a message was inserted, in microseconds since 1970.
    pub(super) async fn created_at(&self, id: &str) -> String {
        let look = "select (extract(epoch from created_at) * 1000000)::bigint::text from pgbaton.outbox
                    where message_id::text = $1";
        self.admin.query_one(look, &[&id]).await.unwrap().get(0)
    }

    /// How many messages the inbox has, and the length of the shortest payload.
    pub(super) async fn inbox_sizes(&self) -> (i64, Option<i32>) {
        let row = self.admin.query_one("select count(*), min(length(payload)) from app.inbox", &[]).await.unwrap();
        (row.get(0), row.get(1))
    }

    /// The most memory the replica has had resident.
    pub(super) fn most_memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.replica.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(super) async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Flow) -> bool) {
        let deadline = Instant::now() + SOON;
        while !holds(self).await {
            assert!(Instant::now() < deadline, "not within {SOON:?}: {what}; {:?}", self.replica.lines_with("WARN"));
            tokio::time::sleep(POLL).await;
        }
    }
}
