//! A sink that takes all of a call or nothing, and keeps no positions: which of several messages it refuses is found, also where
//! further batches were taken into the one in hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use pgbaton::clock::Deadline;
use pgbaton::lane::Grant;
use pgbaton::outcome::{AppendError, Code, Fault, Meaning, Outcome};
use pgbaton::relay::Limits;
use pgbaton::sink::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use pgbaton::source::Opaque;

use crate::hand::{Hand, until};
use crate::replicas::Setup;

static BUSY: Code = Code { name: "test.busy", meaning: Meaning::Busy, says: "It is busy", todo: "Wait" };
static NEVER: Code = Code { name: "test.never", meaning: Meaning::Reject, says: "It is refused", todo: "Nothing" };

/// Refuses calls that hold a message without a key, and takes the first call's messages only at the third attempt.
#[derive(Clone, Default)]
struct AllOrNothing(Arc<Mutex<Taken>>);

#[derive(Default)]
struct Taken {
    calls: usize,
    topics: Vec<(String, String)>,
}

#[async_trait]
impl Sink for AllOrNothing {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        Ok(Capabilities::plain(Tier::T3))
    }

    async fn open(&self, _grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        Ok(Box::new(OpenAllOrNothing(self.clone())))
    }
}

struct OpenAllOrNothing(AllOrNothing);

#[async_trait]
impl OpenLane for OpenAllOrNothing {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    async fn append(&mut self, part: &Part<'_>, _deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        let mut taken = self.0.0.lock().unwrap();
        taken.calls += 1;
        if taken.calls < 3 {
            let busy = Outcome::Retry { after: None, fault: Fault::new(&BUSY, "busy") };
            return Ok(vec![busy; part.len()]);
        }
        if part.messages().any(|message| message.key.is_none()) {
            return Err(AppendError::Refused(Fault::new(&NEVER, "no key")));
        }
        let topics =
            part.messages().map(|message| (message.key.unwrap_or_default().to_owned(), message.topic.to_owned()));
        taken.topics.extend(topics);
        Ok(vec![Outcome::Delivered; part.len()])
    }
}

#[tokio::test]
async fn what_is_refused_together_is_found() {
    let hand = Hand::new(15, 1).await;
    // Batches of ten, of which some are taken into the first.
    for n in 1..=6 {
        for key in ["a", "b", "c"] {
            hand.insert(&format!("{key}{n}"), key, 4).await;
        }
        hand.producer.execute("select pgbaton.send('bad ' || $1::text, ''::text)", &[&n.to_string()]).await.unwrap();
    }
    let sink = Arc::new(AllOrNothing::default());
    let limits = Limits { batch_messages: 10, ..Limits::default() };
    let replica = Setup { lanes: 1, limits, ..Setup::default() }.start(hand.fixture.relay_dsn(), "r1", &sink);
    until("all others", async || sink.0.lock().unwrap().topics.len() >= 72).await;
    until("six are dead", async || {
        let dead = "select count(*) from pgbaton.parked where dead_at is not null";
        hand.admin.query_one(dead, &[]).await.unwrap().get::<_, i64>(0) == 6
    })
    .await;
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, topic) in sink.0.lock().unwrap().topics.clone() {
        by_key.entry(key).or_default().push(topic);
    }
    for key in ["a", "b", "c"] {
        let wanted: Vec<String> = (1..=6).flat_map(|n| (1..=4).map(move |m| format!("{key}{n} {m}"))).collect();
        assert_eq!(by_key[key], wanted);
    }
    replica.stop().await;
    let passed = "select count(*) from pgbaton.outbox o, pgbaton.newest n
                  where not pg_visible_in_snapshot(o.xid, n.consumed)";
    assert_eq!(hand.admin.query_one(passed, &[]).await.unwrap().get::<_, i64>(0), 0, "all of it is passed");
}
