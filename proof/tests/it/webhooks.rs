//! The `http` sink against real endpoints on loopback: order, answers, connections, leases, and with the executable.

use std::sync::Arc;
use std::time::Duration;

use pgbaton::clock::Deadline;
use pgbaton::lane::{Epoch, Grant, Lane, RelayName};
use pgbaton::message::{Message, Messages, Payload, Timestamp};
use pgbaton::outcome::{AppendError, Outcome};
use pgbaton::sink::http::{Settings, Webhooks};
use pgbaton::sink::{OpenLane, Opening, Part, Sink};
use pgbaton::source::Opaque;
use proof::endpoint::{Endpoint, Received, Reply};

use crate::hand::SOON;

mod answers;
mod connecting;
mod flow;
mod frozen;
mod leases;
mod sending;

/// Settings that reach loopback.
pub fn settings(url: &str) -> Settings {
    Settings {
        url: url.to_owned(),
        concurrency: 1,
        timeout: SOON,
        headers: Vec::new(),
        allow_private: true,
        ca_file: None,
        secret: None,
    }
}

pub fn sink(settings: &Settings) -> Webhooks {
    Webhooks::new(settings).unwrap_or_else(|problems| panic!("{problems:?}"))
}

pub fn grant() -> Grant {
    Grant { lane: Lane { relay: RelayName::new("orders").unwrap(), number: 0, of: 16 }, epoch: Epoch(1) }
}

async fn lane(settings: &Settings) -> Box<dyn OpenLane> {
    sink(settings).open(&grant(), Opening::First).await.unwrap()
}

/// An endpoint, and a lane that is open at it.
async fn laid<F>(
    change: impl FnOnce(&mut Settings),
    script: impl Fn(Arc<Received>) -> F + Send + Sync + 'static,
) -> (Endpoint, Box<dyn OpenLane>)
where
    F: Future<Output = Reply> + Send + 'static,
{
    let endpoint = Endpoint::start(script).await.unwrap();
    let mut settings = settings(&endpoint.url("/hook"));
    change(&mut settings);
    let lane = lane(&settings).await;
    (endpoint, lane)
}

/// A batch of `id` or `key/id`.
fn batch(messages: &[&str]) -> Messages {
    let mut batch = Messages::default();
    for id in messages {
        let key = id.split_once('/').map(|(key, _)| key);
        batch.push(Message {
            id,
            topic: "t",
            key,
            headers: None,
            payload: Payload::Json("{}"),
            created_at: Timestamp(0),
        });
    }
    batch
}

async fn append_until(
    lane: &mut Box<dyn OpenLane>,
    messages: &Messages,
    deadline: &Deadline,
) -> Result<Vec<Outcome>, AppendError> {
    lane.append(&Part::whole(messages, None, &Opaque::from_bytes(Vec::new())), deadline).await
}

async fn append(lane: &mut Box<dyn OpenLane>, messages: &[&str]) -> Result<Vec<Outcome>, AppendError> {
    append_until(lane, &batch(messages), &Deadline::after(SOON)).await
}

/// Each outcome as a word, with the code of its fault.
fn words(outcomes: &[Outcome]) -> Vec<String> {
    let word = |outcome: &Outcome| match outcome {
        Outcome::Delivered => "delivered".to_owned(),
        Outcome::Repeated => "repeated".to_owned(),
        Outcome::Retry { fault, .. } => format!("retry {}", fault.code().name),
        Outcome::Rejected(fault) => format!("rejected {}", fault.code().name),
        Outcome::NotTried => "not tried".to_owned(),
    };
    outcomes.iter().map(word).collect()
}

/// The code of a sink that is down.
fn down(answer: &Result<Vec<Outcome>, AppendError>) -> &'static str {
    match answer {
        Err(AppendError::SinkDown(fault)) => fault.code().name,
        other => panic!("{other:?}"),
    }
}

const A_MOMENT: Duration = Duration::from_secs(1);
