//! What becomes of a message by the answer to its request.

use std::future::pending;
use std::time::Duration;

use pgbaton::outcome::Outcome;
use proof::endpoint::{Endpoint, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{A_MOMENT, append, down, laid, lane, settings, words};

/// Answers with the status that a message's id names.
async fn named(received: std::sync::Arc<proof::endpoint::Received>) -> Reply {
    let status = received.id().rsplit('/').next().unwrap().parse().unwrap();
    Reply::Status(status)
}

#[tokio::test]
async fn every_status_has_its_outcome() {
    let (endpoint, mut lane) = laid(|_| (), named).await;
    for (status, word) in [
        ("200", "delivered"),
        ("204", "delivered"),
        ("400", "rejected http.rejected"),
        ("408", "retry http.try_later"),
        ("409", "retry http.in_progress"),
        ("413", "rejected http.rejected"),
        ("415", "rejected http.rejected"),
        ("418", "rejected http.rejected"),
        ("422", "rejected http.rejected"),
        ("425", "retry http.try_later"),
        ("429", "retry http.too_many"),
        ("500", "retry http.failed"),
        ("503", "retry http.unavailable"),
    ] {
        assert_eq!(words(&append(&mut lane, &[status]).await.unwrap()), [word], "{status}");
    }
    for status in ["401", "403", "404", "405", "410"] {
        assert_eq!(down(&append(&mut lane, &[status]).await), "http.refused", "{status}");
    }
    for status in ["301", "302", "304", "307", "308"] {
        assert_eq!(down(&append(&mut lane, &[status]).await), "http.redirected", "{status}");
    }
    assert_eq!(endpoint.connections(), 1, "none of these answers is a reason to connect again");
}

/// With the topic in the URL a URL that is not there says nothing of the others.
#[tokio::test]
async fn a_url_of_a_topic_that_is_not_there_is_the_messages_fault() {
    let (_endpoint, mut lane) = laid(|settings| settings.url.push_str("/{topic}"), named).await;
    assert_eq!(words(&append(&mut lane, &["404"]).await.unwrap()), ["rejected http.rejected"]);
    assert_eq!(down(&append(&mut lane, &["401"]).await), "http.refused");
}

#[tokio::test]
async fn what_was_delivered_before_the_sink_went_down_stays_delivered() {
    let (endpoint, mut lane) = laid(|_| (), named).await;
    let outcomes = append(&mut lane, &["a/200", "b/503", "c/401", "d/200"]).await.unwrap();
    assert_eq!(words(&outcomes), ["delivered", "retry http.unavailable", "not tried", "not tried"]);
    assert_eq!(endpoint.ids(), ["a/200", "b/503", "c/401"], "nothing is sent to an endpoint that is down");
}

#[tokio::test]
async fn the_endpoint_says_when_to_come_back() {
    let date = (jiff::Timestamp::now() + Duration::from_secs(600)).strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let (_endpoint, mut lane) = laid(
        |_| (),
        move |received| {
            let value = match received.id() {
                "seconds" => "7".to_owned(),
                "date" => date.clone(),
                "years" => "99999999".to_owned(),
                _ => "whenever".to_owned(),
            };
            async { Reply::With(429, "retry-after", value) }
        },
    )
    .await;
    for (id, least, most) in [("seconds", 7, 7), ("date", 500, 600), ("years", 3_600, 3_600)] {
        let outcomes = append(&mut lane, &[id]).await.unwrap();
        let [Outcome::Retry { after: Some(after), .. }] = &outcomes[..] else { panic!("{id}: {outcomes:?}") };
        assert!((least..=most).contains(&after.as_secs()), "{id}: {after:?}");
    }
    assert!(matches!(append(&mut lane, &["nonsense"]).await.as_deref(), Ok([Outcome::Retry { after: None, .. }])));
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_not_waited_for() {
    let (endpoint, mut lane) = laid(
        |settings| settings.timeout = A_MOMENT,
        |received| async move { if received.id() == "a/1" { pending().await } else { Reply::Status(200) } },
    )
    .await;
    let outcomes = append(&mut lane, &["a/1", "b/1", "a/2"]).await.unwrap();
    assert_eq!(words(&outcomes), ["retry http.timeout", "delivered", "not tried"]);
    assert_eq!(endpoint.connections(), 2, "its connection is not used again");
}

/// The status is what counts; the rest of the answer is not worth waiting for.
#[tokio::test]
async fn an_answer_without_an_end_is_cut_off() {
    let (endpoint, mut lane) = laid(
        |settings| settings.timeout = A_MOMENT,
        |received| async move {
            match received.id() {
                "endless" => Reply::Endless,
                "unfinished" => Reply::Unfinished,
                _ => Reply::Status(200),
            }
        },
    )
    .await;
    for id in ["endless", "unfinished", "good"] {
        assert_eq!(append(&mut lane, &[id]).await, Ok(vec![Outcome::Delivered]), "{id}");
    }
    assert_eq!(endpoint.connections(), 3, "a connection with half an answer in it is not used again");
}

#[tokio::test]
async fn a_connection_closed_instead_of_an_answer_leaves_it_open() {
    let (endpoint, mut lane) =
        laid(|_| (), |received| async move { if received.id() == "1" { Reply::Close } else { Reply::Status(200) } })
            .await;
    let outcomes = append(&mut lane, &["1", "2"]).await.unwrap();
    assert_eq!(words(&outcomes), ["retry http.connection_lost", "delivered"]);
    assert_eq!(endpoint.ids(), ["1", "2"], "whoever may have got it is not asked again within one call");
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Endpoint::willing().await.unwrap();
    let location = other.url("/elsewhere?token=hunter2");
    let (endpoint, mut lane) = laid(
        |_| (),
        move |_| {
            let location = location.clone();
            async { Reply::With(307, "location", location) }
        },
    )
    .await;
    let answer = append(&mut lane, &["1", "2"]).await;
    assert_eq!(down(&answer), "http.redirected");
    let said = answer.unwrap_err().to_string();
    assert!(said.contains("not followed") && !said.contains("hunter2"), "{said}");
    assert_eq!((endpoint.count(), other.connections()), (1, 0));
}

/// Closed while nobody used it: nothing was sent over it, so nothing is in doubt.
#[tokio::test]
async fn an_idle_connection_that_was_closed_is_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut socket, _) = listener.accept().await.unwrap();
            read_request(&mut socket).await;
            socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        }
    });
    let mut lane = lane(&settings(&format!("http://{address}/"))).await;
    assert_eq!(append(&mut lane, &["1"]).await, Ok(vec![Outcome::Delivered]));
    // By now the other side is closed, and a connection that is made afterwards shows that the news is here.
    let other = Endpoint::willing().await.unwrap();
    drop(TcpStream::connect(("127.0.0.1", other.port())).await.unwrap());
    assert_eq!(append(&mut lane, &["2"]).await, Ok(vec![Outcome::Delivered]));
    answering.await.unwrap();
}

/// Whoever takes in preliminary answers without an end does nothing else.
#[tokio::test]
async fn preliminary_answers_have_an_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let flooding = tokio::spawn(async move {
        // The first connection is the lane's own, and is used.
        let (mut socket, _) = listener.accept().await.unwrap();
        read_request(&mut socket).await;
        let hints = b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(100);
        let mut sent = 0;
        while socket.write_all(&hints).await.is_ok() {
            sent += hints.len();
        }
        sent
    });
    let mut settings = settings(&format!("http://{address}/"));
    settings.timeout = Duration::from_secs(60);
    let mut lane = lane(&settings).await;
    let outcomes = append(&mut lane, &["1"]).await.unwrap();
    assert_eq!(words(&outcomes), ["retry http.connection_lost"]);
    let sent = flooding.await.unwrap();
    assert!(sent < 16 << 20, "{sent} bytes were sent: those of sockets' buffers, and a quota");
}

/// Until the end of the body `{}`.
pub(super) async fn read_request(socket: &mut TcpStream) {
    let mut read = Vec::new();
    while !read.ends_with(b"{}") {
        assert_ne!(socket.read_buf(&mut read).await.unwrap(), 0, "the request breaks off");
    }
}
