//! A replica that is stopped (SIGSTOP) past its lease and goes on: what it still sends is what had passed the check
//! when it was stopped, and no more. Nobody but itself can stop it: an endpoint refuses no epoch.

use std::time::Instant;

use proof::endpoint::Endpoint;
use proof::process::Process;
use proof::writers::{Arrival, Verdict, Written};

use super::flow::{arrival, prepared, relays, write};
use crate::hand::{SOON, until};

const BACKLOG: u64 = 300;
const LANES_AND_IN_FLIGHT: usize = 4 * 40;

/// Stopped before anything of a batch is written.
#[tokio::test]
async fn before_an_append_it_sends_nothing_any_more() {
    assert_eq!(late_requests("lane.before_append:stop:5").await, 0);
}

/// Stopped between the check and the write: what was checked is written, and no more. The signal takes a moment to stop
/// all threads, so even that may have been written before.
#[tokio::test]
async fn between_check_and_write_it_sends_what_was_checked() {
    let threads = std::thread::available_parallelism().unwrap().get();
    let late = late_requests("sink.checked:stop:9").await;
    assert!(late <= threads, "{late} requests of {threads} threads");
}

/// How many requests came from a replica after it was woken, of lanes that it no longer had.
async fn late_requests(fault: &str) -> usize {
    let fixture = prepared().await;
    let mut written = write(&fixture, BACKLOG, 1).await;
    let endpoint = Endpoint::willing().await.unwrap();
    let named = |name: &str| relays(&endpoint.url("/hook"), &format!(", headers = {{ x-replica = \"{name}\" }}"));
    let mut first = fixture.run_with_faults("first", &named("first"), fault).unwrap();
    until("it is stopped", async || is_stopped(&first)).await;
    let mut second = fixture.run("second", &named("second")).unwrap();
    until("the other one delivers everything", async || lost(&written, &endpoint) == 0).await;

    let woken = Instant::now();
    first.resume().unwrap();
    first.wait_for_line("this replica's lease is over", SOON).await.unwrap();
    // It starts again, and takes its share of what comes now.
    first.wait_for_lines("joined", 2, SOON).await.unwrap();
    let backlog: Vec<String> = written.sent.iter().map(|sent| sent.message_id.clone()).collect();
    written.sent.extend(write(&fixture, 50, 2).await.sent);
    until("what came afterwards arrives", async || lost(&written, &endpoint) == 0).await;
    end([&mut first, &mut second]).await;

    let verdict = Verdict::of(&written, &arrivals(&endpoint));
    assert_eq!((verdict.lost, verdict.unexpected), (0, 0), "{verdict:?}");
    assert!(verdict.duplicates <= LANES_AND_IN_FLIGHT, "more repeats than were in flight: {verdict:?}");
    let received = endpoint.received();
    let late = received.iter().filter(|received| received.at > woken && received.header("x-replica") == "first");
    late.filter(|received| backlog.iter().any(|id| id == received.id())).count()
}

fn is_stopped(process: &Process) -> bool {
    // The state stands behind the name, which is in parentheses.
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    state.rsplit(") ").next().unwrap().starts_with('T')
}

fn arrivals(endpoint: &Endpoint) -> Vec<Arrival> {
    endpoint.received().iter().map(|received| arrival(received)).collect()
}

fn lost(written: &Written, endpoint: &Endpoint) -> usize {
    Verdict::of(written, &arrivals(endpoint)).lost
}

async fn end(replicas: [&mut Process; 2]) {
    for replica in replicas {
        replica.terminate().unwrap();
        assert!(replica.wait(SOON).await.unwrap().success());
    }
}
