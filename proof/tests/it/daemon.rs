//! The daemon around the replica: where its configuration comes from, how it is read again, and what it answers over HTTP.

use std::time::{Duration, Instant};

use proof::process::{POLL, Process};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

mod exposed;
mod given;
mod health;
mod openmetrics;
mod reload;
mod traced;

const SOON: Duration = Duration::from_secs(60);

/// Listens at a port that nobody else has.
pub const ANYWHERE: &str = "[http]\nlisten = \"127.0.0.1:0\"\n";

/// An answer of the daemon.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    content_type: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Where the process listens, as it says in its log: the last address if it has moved.
pub async fn address_of(process: &mut Process) -> String {
    process.wait_for_line("listening for", SOON).await.unwrap();
    let lines = process.lines_with("listening for");
    let line = lines.last().unwrap();
    line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
}

/// One request on a connection of its own. None if there is no answer in time, or the connection is refused.
pub async fn try_get(address: &str, path: &str, within: Duration) -> Option<Answer> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        // The server closes after one answer.
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer)
    };
    let answer = tokio::time::timeout(within, exchange).await.ok().flatten()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, content_type: content_type.to_owned(), body: body.to_owned() })
}

pub async fn get(address: &str, path: &str) -> Answer {
    try_get(address, path, SOON).await.unwrap_or_else(|| panic!("no answer from {address}{path}"))
}

/// Asks until the answer is as expected.
pub async fn get_until(address: &str, path: &str, what: &str, expected: impl Fn(&Answer) -> bool) -> Answer {
    let deadline = Instant::now() + SOON;
    loop {
        let answer = try_get(address, path, SOON).await;
        match answer {
            Some(answer) if expected(&answer) => return answer,
            _ => assert!(Instant::now() < deadline, "never: {what}: {answer:?}"),
        }
        tokio::time::sleep(POLL).await;
    }
}
