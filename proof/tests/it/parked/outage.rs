//! A sink that is down for long, and comes back.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pgbaton::clock::Deadline;
use pgbaton::lane::Grant;
use pgbaton::outcome::{AppendError, Code, Fault, Meaning, Outcome};
use pgbaton::retry::Policy;
use pgbaton::sink::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use pgbaton::source::Opaque;

use crate::hand::{Hand, until};
use crate::replicas::Setup;

static AWAY: Code = Code { name: "test.away", meaning: Meaning::Down, says: "It is away", todo: "Wait" };

/// Down until it is said to be up. Each call takes a while then.
#[derive(Default)]
struct Away {
    up: AtomicBool,
    /// Calls while it was down.
    refused: AtomicUsize,
    under_way: AtomicUsize,
    /// Of each call, how many were under way when it began, and how many messages it had.
    calls: Mutex<Vec<(usize, usize)>>,
}

struct Shared(Arc<Away>);

#[async_trait]
impl Sink for Shared {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        Ok(Capabilities::plain(Tier::T3))
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        Ok(Box::new(OpenAway(Arc::clone(&self.0))))
    }
}

struct OpenAway(Arc<Away>);

#[async_trait]
impl OpenLane for OpenAway {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    async fn append(&mut self, part: &Part<'_>, _deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        if !self.0.up.load(Ordering::Relaxed) {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            return Err(AppendError::SinkDown(Fault::new(&AWAY, "away")));
        }
        let under_way = self.0.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.calls.lock().unwrap().push((under_way, part.len()));
        tokio::time::sleep(Duration::from_millis(200)).await;
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
        Ok(vec![Outcome::Delivered; part.len()])
    }
}

/// Ten minutes, sixty times as fast, for messages of which each has one attempt and no time at all: none is spent. Whoever comes back is
/// called by one lane, then by two, then by four.
#[tokio::test]
async fn nothing_is_spent_and_a_sink_that_comes_back_is_not_flooded() {
    let hand = Hand::new(15, 16).await;
    let sink = Arc::new(Away::default());
    let policy = Policy { attempts: 1, age: Duration::ZERO, ..Policy::default() };
    let setup = Setup { policy, ..Setup::default() };
    let replica = setup.start(hand.fixture.relay_dsn(), "r1", &Arc::new(Shared(Arc::clone(&sink))));
    for lane in 0..16 {
        hand.insert("m", &hand.key(lane).await, 20).await;
    }
    until("it is called", async || sink.refused.load(Ordering::Relaxed) > 0).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let count = async |of: &str| -> i64 {
        hand.admin.query_one(&format!("select count(*) from {of}"), &[]).await.unwrap().get(0)
    };
    assert_eq!(count("pgbaton.parked").await, 0, "nothing is set aside");
    assert_eq!(count("pgbaton.lane where owner is not null").await, 16, "the lanes are kept");
    sink.up.store(true, Ordering::Relaxed);
    let delivered = || sink.calls.lock().unwrap().iter().map(|(_, messages)| messages).sum::<usize>();
    until("all messages", async || delivered() >= 320).await;
    assert_eq!(delivered(), 320, "each of them once");
    assert_eq!(count("pgbaton.parked").await, 0);
    let calls = sink.calls.lock().unwrap().clone();
    for (call, (under_way, _)) in calls.iter().enumerate() {
        let most = match call {
            0 => 1,
            1..=2 => 2,
            3..=6 => 4,
            7..=14 => 8,
            _ => 16,
        };
        assert!(*under_way <= most, "call {call} was one of {under_way}: {calls:?}");
    }
    replica.stop().await;
}
