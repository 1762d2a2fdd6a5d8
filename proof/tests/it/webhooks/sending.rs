//! What is sent, in which order, and how much of it at once.

use std::collections::HashMap;
use std::sync::Mutex;

use pgbaton::message::{Message, Messages, Payload, Timestamp};
use pgbaton::outcome::Outcome;
use proof::endpoint::Reply;

use super::{A_MOMENT, append, append_until, batch, laid, words};
use crate::hand::SOON;
use pgbaton::clock::Deadline;

#[tokio::test]
async fn one_of_each_key_and_never_more_than_allowed() {
    // Neighbours often have one key. Long enough that all that may be under way at once are.
    let (endpoint, mut lane) = laid(
        |settings| settings.concurrency = 6,
        |_| async {
            tokio::time::sleep(A_MOMENT / 20).await;
            Reply::Status(200)
        },
    )
    .await;
    let ids: Vec<String> =
        (0..60).map(|n| if n % 3 == 0 { format!("{n}") } else { format!("k{}/{n}", n % 4) }).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert_eq!(append(&mut lane, &ids).await, Ok(vec![Outcome::Delivered; 60]));
    assert_eq!((endpoint.most_under_way(), endpoint.most_of_one_key()), (6, 1));
    assert!(endpoint.connections() <= 6, "{} connections", endpoint.connections());
    let mut sent: HashMap<&str, Vec<&str>> = HashMap::new();
    let arrived = endpoint.ids();
    for id in arrived.iter().filter(|id| id.contains('/')) {
        sent.entry(id.split('/').next().unwrap()).or_default().push(id);
    }
    for (key, sent) in sent {
        let wanted: Vec<&str> = ids.iter().copied().filter(|id| id.split('/').next() == Some(key)).collect();
        assert_eq!(sent, wanted);
    }
}

/// A single key is one request at a time, whatever is allowed.
#[tokio::test]
async fn a_key_alone_uses_one_connection() {
    let (endpoint, mut lane) = laid(|settings| settings.concurrency = 16, |_| async { Reply::Status(204) }).await;
    for round in 0..3 {
        let ids: Vec<String> = (0..20).map(|n| format!("k/{round}-{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(append(&mut lane, &ids).await, Ok(vec![Outcome::Delivered; 20]));
    }
    assert_eq!((endpoint.count(), endpoint.most_under_way(), endpoint.connections()), (60, 1, 1));
}

#[tokio::test]
async fn a_key_waits_for_its_message_and_others_do_not() {
    let tried = Mutex::new(Vec::new());
    let (endpoint, mut lane) = laid(
        |settings| settings.concurrency = 3,
        move |received| {
            let mut tried = tried.lock().unwrap();
            let first = !tried.contains(&received.id().to_owned());
            tried.push(received.id().to_owned());
            let fails = first && matches!(received.id(), "a/2" | "5");
            async move { Reply::Status(if fails { 503 } else { 200 }) }
        },
    )
    .await;
    let outcomes = append(&mut lane, &["a/1", "a/2", "b/1", "a/3", "5", "b/2", "a/4", "6"]).await.unwrap();
    let (retry, held) = ("retry http.unavailable", "not tried");
    assert_eq!(words(&outcomes), ["delivered", retry, "delivered", held, retry, "delivered", held, "delivered"]);
    assert_eq!(append(&mut lane, &["a/2", "a/3", "5", "a/4"]).await, Ok(vec![Outcome::Delivered; 4]));
    let of_a: Vec<String> = endpoint.ids().into_iter().filter(|id| id.starts_with("a/")).collect();
    assert_eq!(of_a, ["a/1", "a/2", "a/2", "a/3", "a/4"]);
}

/// What a receiver gets to see; the conformance suite compares the rest.
#[tokio::test]
async fn requests_are_as_documented() {
    let (endpoint, mut lane) = laid(
        |settings| {
            settings.url = settings.url.replace("/hook", "/in/{topic}?from=pgbaton");
            settings.headers = vec![("Authorization".to_owned(), "Bearer s3cret".to_owned())];
            settings.secret = Some("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned());
        },
        |_| async { Reply::Status(202) },
    )
    .await;
    let mut messages = Messages::default();
    messages.push(Message {
        id: "an-id",
        topic: "orders/paid ü",
        key: Some("k 1"),
        headers: Some(r#"{"traceparent": "00-a-b-01", "authorization": "theirs"}"#),
        payload: Payload::Bytes(b"\0\xff"),
        created_at: Timestamp(0),
    });
    assert_eq!(append_until(&mut lane, &messages, &Deadline::after(SOON)).await, Ok(vec![Outcome::Delivered]));
    let received = endpoint.received().remove(0);
    assert_eq!(received.uri, "/in/orders%2Fpaid%20%C3%BC?from=pgbaton");
    assert_eq!(&received.body[..], b"\0\xff");
    for (name, value) in [
        ("host", format!("127.0.0.1:{}", endpoint.port()).as_str()),
        ("content-type", "application/octet-stream"),
        ("content-length", "2"),
        ("authorization", "Bearer s3cret"),
        ("traceparent", "00-a-b-01"),
        ("webhook-id", "an-id"),
        ("idempotency-key", "an-id"),
        ("pgbaton-topic", "orders/paid%20%C3%BC"),
        ("pgbaton-key", "k%201"),
    ] {
        assert_eq!(received.header(name), value, "{name}");
    }
    assert!(received.header("webhook-signature").starts_with("v1,"));
    let sent: i64 = received.header("webhook-timestamp").parse().unwrap();
    let now = jiff::Timestamp::now().as_second();
    assert!((now - 60..=now).contains(&sent), "{sent}");
    // The same id at every attempt.
    assert_eq!(append_until(&mut lane, &messages, &Deadline::after(SOON)).await, Ok(vec![Outcome::Delivered]));
    assert_eq!(endpoint.ids(), ["an-id", "an-id"]);
}

#[tokio::test]
async fn a_topic_that_would_walk_up_the_path_is_rejected() {
    let (endpoint, mut lane) =
        laid(|settings| settings.url.push_str("/{topic}"), |_| async { Reply::Status(200) }).await;
    let mut messages = batch(&["k/1"]);
    messages.push(Message { topic: "..", ..batch(&["k/2"]).iter().next().unwrap() });
    messages.push(batch(&["k/3"]).iter().next().unwrap());
    let outcomes = append_until(&mut lane, &messages, &Deadline::after(SOON)).await.unwrap();
    assert_eq!(words(&outcomes), ["delivered", "rejected http.topic", "not tried"]);
    assert_eq!(endpoint.count(), 1);
}
