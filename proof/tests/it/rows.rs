//! Whatever a producer may insert travels unchanged, through the real executable, into an inbox and into a file; and what
//! cannot travel is refused at insert, by a constraint whose name says why.

mod flow;

use flow::{Arrived, Flow, Row};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::shared;
use tokio_postgres::error::SqlState;

on_each_version!(
    every_row_travels_unchanged,
    windows_of_large_messages_keep_the_order_of_keys,
    what_cannot_travel_is_refused_at_insert,
);

async fn every_row_travels_unchanged(major: u32) {
    let rows = rows();
    let flow = Flow::start(major, "").await;
    let ids = flow.insert(&rows).await;
    let (inbox, file) = flow.arrived(ids.len()).await;
    for (row, id) in rows.iter().zip(&ids) {
        let sent = flow.created_at(id).await;
        assert_eq!(inbox.get(id), Some(&Arrived::in_inbox(row, &sent)), "inbox: {}", row.what);
        assert_eq!(file.get(id), Some(&Arrived::in_file(row, &sent)), "file: {}", row.what);
    }
}

/// One row of each kind that something on the way could trip over.
fn rows() -> Vec<Row> {
    let json = |what, text: &str| Row { json: Some(text.to_owned()), ..Row::new(what) };
    let bytes = |what, bytes: &[u8]| Row { bytes: Some(bytes.to_vec()), ..Row::new(what) };
    let headers = |what, text: String| Row { headers: Some(text), ..Row::new(what) };
    let key = |what, key: &str| Row { key: Some(key.to_owned()), ..Row::new(what) };
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let deep_object = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    let all_bytes: Vec<u8> = (0..=255).collect();
    vec![
        Row::new("no payload"),
        bytes("an empty payload", b""),
        json("a JSON null", "null"),
        json("an empty JSON text", "\"\""),
        json("white space and line breaks", "{ \"a\" :1,\n\r\n\t\"b\": [ ] }"),
        json("keys given twice", "{\"a\": 1, \"a\": 2, \"\": 3, \"\": 4}"),
        json("an escaped NUL", "{\"a\\u0000b\": \"\\u0000\"}"),
        json("half a surrogate", "[\"\\ud800\", \"\\udc00\\ud800\"]"),
        json("escapes as they were written", "[\"\\/\\u0041\\n\\u2028\", \"\u{2028}\u{7f}\"]"),
        json("a number of 10,000 digits", &"9".repeat(10_000)),
        json("numbers as they were written", "[1E400, -0, 1.10, 0.1e-7, 12345678901234567890]"),
        json("5,000 levels", &nested(5_000)),
        bytes("text", "Grüße, 世界 🦀\n\t\"'\\".as_bytes()),
        bytes("all 256 bytes", &all_bytes),
        bytes("a NUL", b"\0"),
        bytes("no UTF-8", b"a\xff\xfe"),
        headers("empty headers", "{}".to_owned()),
        headers("headers of 1,000 levels", deep_object(1_000)),
        headers("header keys given twice", "{ \"x\": \"1\", \"x\": \"2\"\n}".to_owned()),
        key("an empty key", ""),
        key("a key of other letters", "ключ 世界 🦀 e\u{301}"),
        key("a key of control characters", "\u{1}\n\t\"\\'\u{7f}\u{feff}"),
        key("a long key", &"k".repeat(10_000)),
        Row { topic: "тема/世界 \"🦀\"\n".to_owned(), ..Row::new("a topic of other letters") },
        bytes("just small enough to come with the others", &[b'x'; 16_384 - 1]),
        bytes("just too large to come with the others", &[b'x'; 16_384]),
        bytes("17 kB", &[0xfe; 17_000]),
        json("17 kB of JSON", &format!("\"{}\"", "ü".repeat(8_500))),
        bytes("1 MB", &all_bytes.repeat(4_096)),
        Row {
            key: Some("k".repeat(20_000)),
            headers: Some(format!("{{\"h\": \"{}\"}}", "h".repeat(20_000))),
            ..json("everything large", &nested(3_000))
        },
    ]
}

/// A third are larger than what comes with a window, a few larger than a batch; the window is full of them.
async fn windows_of_large_messages_keep_the_order_of_keys(major: u32) {
    const MESSAGES: i64 = 1_500;
    let flow = Flow::start(major, "memory = \"1 MiB\"\nlanes = 4\n").await;
    let insert = format!(
        "insert into pgbaton.outbox (topic, key, payload, headers)
         select 't', 'k' || n % 20, repeat('x', case when n % 100 = 0 then 300000 when n % 3 = 0 then 20000 else 10 end)::bytea,
                json_build_object('n', n)
         from generate_series(1, {MESSAGES}) n"
    );
    flow.outbox.producer().await.unwrap().batch_execute(&insert).await.unwrap();
    flow.arrived(usize::try_from(MESSAGES).unwrap()).await;
    let order = "select key, (headers->>'n')::int8, length(payload) from app.inbox order by seq";
    let rows = flow.admin.query(order, &[]).await.unwrap();
    let inbox: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for (whose, order) in [("inbox", inbox), ("file", flow.file_order())] {
        assert_eq!(order.len(), usize::try_from(MESSAGES).unwrap(), "{whose}");
        for key in 0..20 {
            let of_key = order.iter().filter(|(found, _)| *found == format!("k{key}")).map(|(_, n)| *n);
            assert!(of_key.is_sorted_by(|a, b| a < b), "{whose}: the order of k{key}");
        }
    }
}

async fn what_cannot_travel_is_refused_at_insert(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    let check = Some(SqlState::CHECK_VIOLATION);
    for (values, code, named) in [
        ("('', null, null, null)", check.clone(), "outbox_topic_is_empty"),
        ("('t', '{}', '\\x00', null)", check.clone(), "outbox_has_two_payloads"),
        ("('t', '{}', '', null)", check.clone(), "outbox_has_two_payloads"),
        ("('t', null, null, '[]')", check.clone(), "outbox_headers_are_not_an_object"),
        ("('t', null, null, '1')", check.clone(), "outbox_headers_are_not_an_object"),
        ("('t', null, null, 'null')", check.clone(), "outbox_headers_are_not_an_object"),
        ("('t', null, null, '\"{}\"')", check.clone(), "outbox_headers_are_not_an_object"),
        ("(null, null, null, null)", Some(SqlState::NOT_NULL_VIOLATION), "topic"),
        ("('t', '{', null, null)", Some(SqlState::INVALID_TEXT_REPRESENTATION), "json"),
        ("('t', '{}{}', null, null)", Some(SqlState::INVALID_TEXT_REPRESENTATION), "json"),
        ("(E'a\\x00b', null, null, null)", Some(SqlState::CHARACTER_NOT_IN_REPERTOIRE), "0x00"),
        ("(E't\\xff', null, null, null)", Some(SqlState::CHARACTER_NOT_IN_REPERTOIRE), "0xff"),
        ("('t', repeat('[', 1000000)::json, null, null)", Some(SqlState::STATEMENT_TOO_COMPLEX), "stack depth"),
        ("('t', null, null, repeat('{\"a\":', 1000000)::json)", Some(SqlState::STATEMENT_TOO_COMPLEX), "stack depth"),
    ] {
        let insert = format!("insert into pgbaton.outbox (topic, payload_json, payload, headers) values {values}");
        let error = producer.batch_execute(&insert).await.unwrap_err();
        let told = error.as_db_error().unwrap();
        assert_eq!(Some(told.code()), code.as_ref(), "{values}: {error:?}");
        let says = format!("{} {} {}", told.message(), told.constraint().unwrap_or(""), told.column().unwrap_or(""));
        assert!(says.contains(named), "{values}: {says}");
    }
    let none = outbox.admin().await.unwrap().query_one("select count(*) from pgbaton.outbox", &[]).await.unwrap();
    assert_eq!(none.get::<_, i64>(0), 0);
}

/// A message must fit into one message of the protocol in both directions, with room to spare.
#[tokio::test]
async fn a_message_over_256_mib_is_refused_at_insert() {
    let outbox = Fixture::new(15).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    for payload in [
        "repeat('x', 268435456)::bytea",
        "('\"' || repeat('x', 268435456) || '\"')::json",
        "'1'::json, headers => ('{\"a\":\"' || repeat('x', 268435456) || '\"}')::json",
    ] {
        let error = producer.batch_execute(&format!("select pgbaton.send('t', {payload})")).await.unwrap_err();
        let told = error.as_db_error().unwrap();
        assert_eq!(told.constraint(), Some("outbox_message_is_larger_than_256_mib"), "{payload}: {error:?}");
    }
}

#[tokio::test]
async fn messages_of_100_mb_pass_into_an_inbox_with_only_a_few_held() {
    large_messages_pass("inbox").await;
}

#[tokio::test]
async fn messages_of_100_mb_pass_into_a_file_with_only_a_few_held() {
    large_messages_pass("file").await;
}

/// Six wait, in lanes of their own: not more than a few copies of one are in memory at a time.
async fn large_messages_pass(sink: &str) {
    const MOST_MIB: u64 = 500;
    let flow = Flow::start_some(15, "", &[sink]).await;
    let producer = flow.outbox.producer().await.unwrap();
    for key in ["a", "b", "c", "d", "e", "f"] {
        let send = format!("select pgbaton.send('t', repeat('0123456789', 10000000), '{key}')");
        producer.batch_execute(&send).await.unwrap();
    }
    flow.until("six large messages", async |flow| match sink {
        "file" => flow.outbox.file().metadata().is_ok_and(|file| file.len() > 600_000_000),
        _ => flow.inbox_sizes().await == (6, Some(100_000_000)),
    })
    .await;
    let most = flow.most_memory_kib() / 1024;
    println!("{sink}: resident at most: {most} MiB");
    assert!(most < MOST_MIB, "{sink}: {most} MiB");
}

/// The largest that is let in also comes out.
#[tokio::test]
async fn a_message_of_just_256_mib_travels() {
    let flow = Flow::start(15, "").await;
    let send = "select pgbaton.send('t', repeat('x', 268435455)::bytea)";
    flow.outbox.producer().await.unwrap().batch_execute(send).await.unwrap();
    flow.until("one large message", async |flow| {
        flow.inbox_sizes().await == (1, Some(268_435_455))
            && flow.outbox.file().metadata().is_ok_and(|file| file.len() > 268_435_455)
    })
    .await;
    println!("resident at most: {} MiB", flow.most_memory_kib() / 1024);
    // Its server goes on with the others' databases.
    assert!(shared(15).await.unwrap().pid().is_some());
}
