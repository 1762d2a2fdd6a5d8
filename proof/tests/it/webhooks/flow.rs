//! The executable with an `http` sink: refusals keep a key's order, outages lose nothing.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::{Fixture, PRODUCER, toml_text};
use proof::writers::{self, Arrival, Mix, Plan, Verdict, Writers, Written};

use crate::hand::{SOON, insert, until};

const KEYS: u32 = 20;

/// A relay with this endpoint.
pub fn relays(url: &str, more: &str) -> String {
    format!(
        "[lease]\nttl = \"2s\"\n[relays.orders]\nlanes = 4\nin_flight = 40\nbatch_messages = 10\n\
         sink = {{ type = \"http\", url = {}, allow_private = true{more} }}\n",
        toml_text(url)
    )
}

pub async fn write(fixture: &Fixture, messages: u64, seed: u64) -> Written {
    let mix = Mix { long: 0.0, ..Mix::default() };
    let plan = Plan { messages, keys: KEYS, tasks: 4, seed, mix, ..Plan::default() };
    Writers::start(fixture.producer_dsn(), plan).await.unwrap().finish().await.unwrap()
}

pub async fn prepared() -> Fixture {
    let fixture = Fixture::new(15).await.unwrap();
    writers::prepare(&fixture.admin().await.unwrap(), PRODUCER, KEYS).await.unwrap();
    fixture
}

pub fn arrival(received: &Received) -> Arrival {
    let payload = String::from_utf8(received.body.to_vec()).unwrap();
    Arrival { message_id: received.id().to_owned(), payload }
}

#[tokio::test]
async fn refusals_keep_the_order_of_each_key() {
    let fixture = prepared().await;
    let written = write(&fixture, 400, 1).await;
    let taken = Arc::new(Mutex::new(Vec::new()));
    let (notes, number) = (Arc::clone(&taken), AtomicUsize::new(0));
    let endpoint = Endpoint::start(move |received| {
        let refuses = number.fetch_add(1, Ordering::Relaxed) % 7 == 3;
        if !refuses {
            notes.lock().unwrap().push(arrival(&received));
        }
        async move { Reply::Status(if refuses { 503 } else { 200 }) }
    })
    .await
    .unwrap();
    let mut replica = fixture.run("first", &relays(&endpoint.url("/hook"), ", concurrency = 8")).unwrap();
    until("everything arrives", async || taken.lock().unwrap().len() >= written.sent.len()).await;
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    let arrivals = taken.lock().unwrap().clone();
    let verdict = Verdict::of(&written, &arrivals);
    assert!(verdict.is_flawless() && verdict.delivered == 400, "{verdict:?}");
    assert!(endpoint.count() > arrivals.len(), "nothing was refused");
    assert_eq!(endpoint.most_of_one_key(), 1);
}

/// Not there, then without access, then well: the same replica goes through all of it.
#[tokio::test]
async fn an_outage_loses_nothing() {
    let fixture = prepared().await;
    let written = write(&fixture, 100, 2).await;
    let port = Endpoint::willing().await.unwrap().port();
    let url = format!("http://127.0.0.1:{port}/hook");
    let mut replica =
        fixture.run("first", &relays(&url, ", headers = { authorization = \"Bearer hunter2\" }")).unwrap();
    replica.wait_for_line("http.unreachable", SOON).await.unwrap();
    let well = Arc::new(AtomicBool::new(false));
    let state = Arc::clone(&well);
    let endpoint = Endpoint::listen(port, None, move |_| {
        let status = if state.load(Ordering::Relaxed) { 200 } else { 401 };
        async move { Reply::Status(status) }
    })
    .await
    .unwrap();
    let line = replica.wait_for_line("http.refused", SOON).await.unwrap();
    assert!(line.contains("the sink is down"), "{line}");
    assert!(replica.lines_with("ERROR").is_empty(), "an outage is nobody's error");
    let before = endpoint.count();
    well.store(true, Ordering::Relaxed);
    until("everything arrives", async || {
        let arrivals: Vec<Arrival> = endpoint.received().iter().map(|received| arrival(received)).collect();
        Verdict::of(&written, &arrivals[before..]).lost == 0
    })
    .await;
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    let said = std::fs::read_to_string(replica.stderr()).unwrap();
    assert!(!said.contains("hunter2"), "a secret is in the log");
}

#[tokio::test]
async fn the_relay_comes_back_when_the_endpoint_says() {
    let fixture = prepared().await;
    let endpoint = Endpoint::start({
        let number = AtomicUsize::new(0);
        move |_| {
            let first = number.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if first { Reply::With(429, "retry-after", "2".to_owned()) } else { Reply::Status(200) } }
        }
    })
    .await
    .unwrap();
    let mut replica = fixture.run("first", &relays(&endpoint.url("/hook"), "")).unwrap();
    insert(&fixture.producer().await.unwrap(), "m", "k", 1).await;
    until("it is sent again", async || endpoint.count() == 2).await;
    let [first, second] = &endpoint.received()[..] else { panic!("one message, twice") };
    assert_eq!(first.id(), second.id());
    assert!(second.at - first.at >= Duration::from_secs(2), "{:?}", second.at - first.at);
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

#[tokio::test]
async fn a_private_address_is_refused_at_start() {
    let fixture = Fixture::new(15).await.unwrap();
    let endpoint = Endpoint::willing().await.unwrap();
    let relays = relays(&endpoint.url("/"), "").replace(", allow_private = true", "");
    let mut replica = fixture.run("first", &relays).unwrap();
    assert!(!replica.wait(SOON).await.unwrap().success());
    assert!(!replica.lines_with("allow_private").is_empty());
    assert_eq!(endpoint.connections(), 0);
}
