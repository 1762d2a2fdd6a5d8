//! Nothing is written once the lease is over, nor when nobody waits any more.

use std::time::Duration;

use pgbaton::clock::Deadline;
use pgbaton::message::{Message, Messages, Payload, Timestamp};
use pgbaton::outcome::{AppendError, Outcome};
use proof::endpoint::Reply;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use super::{A_MOMENT, append, append_until, batch, laid, lane, settings, words};
use crate::hand::SOON;

/// Far more than the kernel keeps on both sides.
const LARGE: usize = 64 << 20;

#[tokio::test]
async fn what_is_due_after_the_lease_is_not_sent() {
    let deadline = Deadline::after(A_MOMENT);
    let answers = deadline.clone();
    let (endpoint, mut lane) = laid(
        |_| (),
        move |_| {
            let answers = answers.clone();
            async move {
                answers.over().await;
                Reply::Status(200)
            }
        },
    )
    .await;
    let outcomes = append_until(&mut lane, &batch(&["1", "2", "k/3", "k/4"]), &deadline).await.unwrap();
    assert_eq!(words(&outcomes), ["delivered", "not tried", "not tried", "not tried"]);
    assert_eq!(endpoint.ids(), ["1"]);
    assert_eq!(append_until(&mut lane, &batch(&["2"]), &deadline).await, Err(AppendError::LeaseOver));
    assert_eq!(endpoint.ids(), ["1"]);
    // A renewed lease is another deadline.
    assert_eq!(append(&mut lane, &["2"]).await, Ok(vec![Outcome::Delivered]));
}

/// Nor the rest of a request that was begun.
#[tokio::test]
async fn a_request_is_broken_off_by_the_end_of_the_lease() {
    let (listener, mut lane) = silent().await;
    let messages = large();
    // From here on, and long enough for it to begin.
    let deadline = Deadline::after(A_MOMENT);
    let sending = async {
        let answer = append_until(&mut lane, &messages, &deadline).await;
        drop(lane);
        answer
    };
    let reading = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        deadline.over().await;
        to_the_end(&mut socket).await
    };
    let (answer, read) = tokio::join!(sending, reading);
    assert_eq!(answer, Err(AppendError::LeaseOver));
    assert!(0 < read && read < LARGE, "{read} bytes");
}

#[tokio::test]
async fn a_call_that_is_dropped_writes_no_more() {
    let (listener, mut lane) = silent().await;
    let (deadline, messages) = (Deadline::after(SOON), large());
    let sending = append_until(&mut lane, &messages, &deadline);
    let mut socket = tokio::select! {
        biased;
        _ = sending => panic!("nobody has answered"),
        socket = begun(&listener) => socket,
    };
    let read = to_the_end(&mut socket).await;
    assert!(read < LARGE, "{read} bytes");
}

/// While other requests wait for their turn.
#[tokio::test]
async fn a_lane_that_is_dropped_closes_its_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lane = lane(&settings(&format!("http://{}/", listener.local_addr().unwrap()))).await;
    let (mut socket, _) = listener.accept().await.unwrap();
    drop(lane);
    assert_eq!(to_the_end(&mut socket).await, 0);
}

/// A lane at an endpoint that reads nothing.
async fn silent() -> (TcpListener, Box<dyn pgbaton::sink::OpenLane>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut settings = settings(&format!("http://{}/", listener.local_addr().unwrap()));
    settings.timeout = Duration::from_secs(30);
    let lane = lane(&settings).await;
    (listener, lane)
}

fn large() -> Messages {
    let bytes = vec![b'x'; LARGE];
    let mut messages = Messages::default();
    let payload = Payload::Bytes(&bytes);
    messages.push(Message { id: "1", topic: "t", key: None, headers: None, payload, created_at: Timestamp(0) });
    messages
}

/// Returns once something of a request has come.
async fn begun(listener: &TcpListener) -> TcpStream {
    let (socket, _) = listener.accept().await.unwrap();
    assert_eq!(socket.peek(&mut [0]).await.unwrap(), 1);
    socket
}

/// Bytes until the other side is gone.
async fn to_the_end(socket: &mut TcpStream) -> usize {
    let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
    let reading = async {
        while let Ok(bytes @ 1..) = socket.read(&mut buffer).await {
            read += bytes;
        }
    };
    tokio::time::timeout(SOON, reading).await.unwrap();
    read
}
