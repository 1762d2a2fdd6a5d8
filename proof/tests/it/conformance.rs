//! The conformance suite, run against every sink there is. What a sink does not promise is spelt out here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine;
use percent_encoding::percent_decode_str;
use pgbaton::Database;
use pgbaton::message::Timestamp;
use pgbaton::sink::Sink;
use pgbaton::sink::conformance::{Content, Declared, Letter, Report, Subject, run};
use pgbaton::sink::discard::Discard;
use pgbaton::sink::file::JsonLines;
use pgbaton::sink::http::Webhooks;
use pgbaton::sink::postgres::Inbox;
use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::process::Process;
use serde_json::value::RawValue;

use crate::webhooks;

const SOON: Duration = Duration::from_secs(60);

/// What no sink can promise that neither fences nor keeps a position.
const NEITHER_FENCE_NOR_POSITION: [&str; 7] = [
    "a_repeat_is_dropped_by_its_id",
    "a_position_is_given_back",
    "nothing_is_written_from_another_position",
    "an_older_epoch_cannot_open",
    "an_equal_epoch_cannot_open_for_the_first_time",
    "an_open_lane_is_refused_after_a_newer_epoch",
    "a_cancelled_append_is_found_out_by_opening_again",
];

#[tokio::test]
async fn the_postgres_sink_keeps_every_promise_on_15() {
    the_postgres_sink_keeps_every_promise(15).await;
}

#[tokio::test]
async fn the_postgres_sink_keeps_every_promise_on_18() {
    the_postgres_sink_keeps_every_promise(18).await;
}

async fn the_postgres_sink_keeps_every_promise(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    let database = Database::new(fixture.relay_dsn(), SOON).unwrap();
    let sink = Inbox::new(database, "app.inbox").unwrap();
    let report = run(&InboxUnderTest { sink, fixture }).await.unwrap();
    assert_eq!(report.not_promised(), [""; 0], "{report}");
}

#[tokio::test]
async fn the_file_sink_neither_fences_nor_keeps_a_position() {
    let fixture = Fixture::new(15).await.unwrap();
    let sink = JsonLines::file(fixture.file());
    let unreachable = Some(JsonLines::file(fixture.folder().join("missing").join("sink.jsonl")));
    let report = run(&LinesUnderTest { sink, file: fixture.file(), unreachable }).await.unwrap();
    assert_eq!(report.not_promised(), NEITHER_FENCE_NOR_POSITION, "{report}");
}

/// One request at a time: what arrives over several connections has no order but that of each key.
#[tokio::test]
async fn the_http_sink_neither_fences_nor_keeps_a_position() {
    let endpoint = Endpoint::start(|received| {
        let status = if received.body == REFUSED { 422 } else { 200 };
        async move { Reply::Status(status) }
    });
    let endpoint = endpoint.await.unwrap();
    let sink = webhooks::sink(&webhooks::settings(&endpoint.url("/hook")));
    let report = run(&WebhooksUnderTest { sink, endpoint }).await.unwrap();
    assert_eq!(report.not_promised(), NEITHER_FENCE_NOR_POSITION, "{report}");
}

#[tokio::test]
async fn the_discard_sink_promises_nothing_but_to_answer() {
    let report = run(&DiscardUnderTest).await.unwrap();
    let mut weaker = NEITHER_FENCE_NOR_POSITION.to_vec();
    weaker.insert(0, "messages_arrive_whole_and_in_order");
    weaker.extend(["an_unacceptable_message_is_told_and_its_key_waits", "an_unreachable_destination_is_down"]);
    assert_eq!(report.not_promised(), weaker, "{report}");
}

/// In the copy of this test binary that writes to its standard output: where that goes.
const OUTPUT: &str = "PGBATON_TEST_OUTPUT";

/// Standard output is one for a whole process, so the suite runs in a process of its own, whose output is a file.
#[tokio::test]
async fn the_stdout_sink_is_like_the_file_sink() {
    if let Some(file) = std::env::var_os(OUTPUT) {
        let report = on_standard_output(PathBuf::from(file)).await;
        let mut weaker = NEITHER_FENCE_NOR_POSITION.to_vec();
        weaker.push("an_unreachable_destination_is_down");
        assert_eq!(report.not_promised(), weaker, "{report}");
        return;
    }
    let fixture = Fixture::new(15).await.unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "conformance::the_stdout_sink_is_like_the_file_sink", "--nocapture"]);
    command.env(OUTPUT, fixture.folder().join("stdout.out"));
    let mut child = Process::start("stdout", fixture.folder(), command).unwrap();
    let status = child.wait(SOON).await.unwrap();
    let said = std::fs::read_to_string(child.stderr()).unwrap_or_default();
    assert!(status.success(), "{said}");
    assert_eq!(child.lines_with("1 passed").len(), 1);
}

async fn on_standard_output(file: PathBuf) -> Report {
    run(&LinesUnderTest { sink: JsonLines::stdout(), file, unreachable: None }).await.unwrap()
}

/// A message that no JSON column and no line of JSON takes.
fn not_json() -> Letter {
    Letter { content: Content::Json("{".to_owned()), ..Letter::new("not-json", "a") }
}

struct InboxUnderTest {
    sink: Inbox,
    fixture: Fixture,
}

#[async_trait]
impl Subject for InboxUnderTest {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn declared(&self) -> Declared {
        Declared { fences: true, keeps_position: true, drops_repeats: true, can_be_read: true }
    }

    async fn arrived(&self) -> Vec<Letter> {
        let client = self.fixture.admin().await.unwrap();
        let rows = client
            .query(
                "select message_id, topic, key, headers::text, payload, payload_json::text,
                        (extract(epoch from created_at) * 1000000)::bigint
                 from app.inbox order by seq",
                &[],
            )
            .await
            .unwrap();
        rows.iter()
            .map(|row| Letter {
                id: row.get(0),
                topic: row.get(1),
                key: row.get(2),
                headers: row.get(3),
                content: match (row.get(4), row.get(5)) {
                    (Some(bytes), _) => Content::Bytes(bytes),
                    (None, Some(json)) => Content::Json(json),
                    (None, None) => Content::None,
                },
                created_at: Timestamp(row.get(6)),
            })
            .collect()
    }

    fn unacceptable(&self) -> Option<Letter> {
        Some(not_json())
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        // Nobody listens on the first port.
        let database = Database::new("host=127.0.0.1 port=1 user=nobody dbname=nowhere", SOON).unwrap();
        Some(Box::new(Inbox::new(database, "app.inbox").unwrap()))
    }
}

struct LinesUnderTest {
    sink: JsonLines,
    file: PathBuf,
    unreachable: Option<JsonLines>,
}

#[async_trait]
impl Subject for LinesUnderTest {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn declared(&self) -> Declared {
        Declared { fences: false, keeps_position: false, drops_repeats: false, can_be_read: true }
    }

    async fn arrived(&self) -> Vec<Letter> {
        read_lines(&self.file)
    }

    fn unacceptable(&self) -> Option<Letter> {
        Some(not_json())
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        self.unreachable.clone().map(|sink| Box::new(sink) as Box<dyn Sink>)
    }
}

/// A line as it is documented.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    id: String,
    topic: String,
    #[serde(borrow)]
    key: Option<std::borrow::Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "present")]
    headers: Option<&'a RawValue>,
    created_at: String,
    #[serde(default, borrow, deserialize_with = "present")]
    json: Option<&'a RawValue>,
    text: Option<String>,
    base64: Option<String>,
}

/// A payload may be the JSON `null`, which is not the same as none.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    serde::Deserialize::deserialize(deserializer).map(Some)
}

/// What lies in a file of JSON lines. A test harness may have written something before a line's start.
fn read_lines(file: &Path) -> Vec<Letter> {
    let text = std::fs::read_to_string(file).unwrap();
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    complete.lines().filter_map(|line| Some(&line[line.find('{')?..])).map(read_line).collect()
}

fn read_line(line: &str) -> Letter {
    let read: Line<'_> = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:.300}"));
    let raw = |value: &RawValue| value.get().to_owned();
    Letter {
        id: read.id,
        topic: read.topic,
        key: read.key.map(std::borrow::Cow::into_owned),
        headers: read.headers.map(raw),
        content: match (read.json, read.text, read.base64) {
            (Some(json), None, None) => Content::Json(raw(json)),
            (None, Some(text), None) => Content::Bytes(text.into_bytes()),
            (None, None, Some(base64)) => {
                Content::Bytes(base64::engine::general_purpose::STANDARD.decode(base64).unwrap())
            }
            (None, None, None) => Content::None,
            _ => panic!("two payloads: {line:.300}"),
        },
        created_at: Timestamp(read.created_at.parse::<jiff::Timestamp>().unwrap().as_microsecond()),
    }
}

/// What the endpoint does not take.
const REFUSED: &str = "\"refused\"";

struct WebhooksUnderTest {
    sink: Webhooks,
    endpoint: Endpoint,
}

#[async_trait]
impl Subject for WebhooksUnderTest {
    fn sink(&self) -> &dyn Sink {
        &self.sink
    }

    fn declared(&self) -> Declared {
        Declared { fences: false, keeps_position: false, drops_repeats: false, can_be_read: true }
    }

    async fn arrived(&self) -> Vec<Letter> {
        let received = self.endpoint.received();
        received.iter().filter(|received| received.body != REFUSED).map(|received| read_request(received)).collect()
    }

    fn unacceptable(&self) -> Option<Letter> {
        Some(Letter { content: Content::Json(REFUSED.to_owned()), ..Letter::new("refused", "a") })
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        // Nobody listens on the first port.
        Some(Box::new(webhooks::sink(&webhooks::settings("http://127.0.0.1:1/"))))
    }
}

/// A request as it is documented.
fn read_request(received: &Received) -> Letter {
    let header = |name: &str| {
        let value = received.headers.get(name)?.to_str().unwrap();
        Some(percent_decode_str(value).decode_utf8().unwrap().into_owned())
    };
    Letter {
        id: header("webhook-id").unwrap(),
        topic: header("pgbaton-topic").unwrap(),
        key: header("pgbaton-key"),
        headers: header("pgbaton-headers"),
        content: match header("content-type").as_deref() {
            None => Content::None,
            Some("application/json") => Content::Json(String::from_utf8(received.body.to_vec()).unwrap()),
            Some("application/octet-stream") => Content::Bytes(received.body.to_vec()),
            Some(other) => panic!("{other}"),
        },
        created_at: Timestamp(
            header("pgbaton-created-at").unwrap().parse::<jiff::Timestamp>().unwrap().as_microsecond(),
        ),
    }
}

struct DiscardUnderTest;

#[async_trait]
impl Subject for DiscardUnderTest {
    fn sink(&self) -> &dyn Sink {
        &Discard
    }

    fn declared(&self) -> Declared {
        Declared { fences: false, keeps_position: false, drops_repeats: false, can_be_read: false }
    }

    async fn arrived(&self) -> Vec<Letter> {
        Vec::new()
    }

    fn unacceptable(&self) -> Option<Letter> {
        None
    }

    fn unreachable(&self) -> Option<Box<dyn Sink>> {
        None
    }
}
