//! A lane of which it is not known what its sink holds is not split: the sink's word is worth something for the whole lane
//! only, so it has to be taken first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pgbaton::clock::Deadline;
use pgbaton::lane::{Epoch, Grant};
use pgbaton::outcome::{AppendError, Code, Fault, Meaning, Outcome};
use pgbaton::sink::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use pgbaton::source::Opaque;

use crate::hand::{Hand, until};
use crate::replicas::Setup;

static AWAY: Code = Code { name: "test.away", meaning: Meaning::Down, says: "It is away", todo: "Wait" };

/// Keeps positions, as a real one does; now and then it stores a batch, loses its answer, and is away for a while.
#[derive(Clone, Default)]
struct Forgetful(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    topics: Vec<String>,
    fences: HashMap<i32, (Epoch, Option<Opaque>)>,
    /// The answer to the next batch is lost.
    loses_answer: bool,
    away: bool,
}

impl Forgetful {
    fn with<T>(&self, f: impl FnOnce(&mut Kept) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

#[async_trait]
impl Sink for Forgetful {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        Ok(Capabilities { fences: true, keeps_position: true, ..Capabilities::plain(Tier::T1) })
    }

    async fn open(&self, grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        self.with(|kept| {
            if kept.away {
                return Err(OpenError::SinkDown(Fault::new(&AWAY, "away")));
            }
            kept.fences.entry(grant.lane.number).or_insert((grant.epoch, None)).0 = grant.epoch;
            Ok(Box::new(OpenForgetful { sink: self.clone(), grant: grant.clone() }) as Box<dyn OpenLane>)
        })
    }
}

struct OpenForgetful {
    sink: Forgetful,
    grant: Grant,
}

#[async_trait]
impl OpenLane for OpenForgetful {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(self.sink.with(|kept| kept.fences[&self.grant.lane.number].1.clone()))
    }

    async fn append(&mut self, part: &Part<'_>, _deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        self.sink.with(|kept| {
            let (epoch, position) = kept.fences.get_mut(&self.grant.lane.number).unwrap();
            if *epoch != self.grant.epoch {
                return Err(AppendError::Fenced { epoch: *epoch });
            }
            if position.as_ref() != part.prev {
                return Err(AppendError::Moved);
            }
            *position = Some(part.next.clone());
            kept.topics.extend(part.messages().map(|message| message.topic.to_owned()));
            if std::mem::take(&mut kept.loses_answer) {
                kept.away = true;
                return Err(AppendError::Ambiguous(Fault::new(&AWAY, "the answer was lost")));
            }
            Ok(vec![Outcome::Delivered; part.len()])
        })
    }
}

#[tokio::test]
async fn the_sinks_word_counts_for_both_halves() {
    let hand = Hand::new(15, 2).await;
    let sink = Arc::new(Forgetful::default());
    let setup = Setup { lanes: 2, ..Setup::default() };
    let replica = setup.start(hand.fixture.relay_dsn(), "r1", &sink);
    hand.insert("first", "k", 1).await;
    until("it delivers", async || sink.with(|kept| kept.topics.len()) == 1).await;
    sink.with(|kept| kept.loses_answer = true);
    // Of all keys, so that each half has its part of the batch in doubt.
    hand.producer
        .batch_execute(
            "select pgbaton.send('doubt ' || n, ''::text, key => 'key ' || n) from generate_series(1, 100) n",
        )
        .await
        .unwrap();
    until("it is away", async || sink.with(|kept| kept.away)).await;
    hand.admin.batch_execute("update pgbaton.relay set lanes = 4").await.unwrap();
    // Several looks, each of which orders the lane in doubt to be split.
    tokio::time::sleep(Duration::from_secs(2)).await;
    sink.with(|kept| kept.away = false);
    let lanes = "select count(*) filter (where owner is not null), count(*) from pgbaton.lane";
    until("all lanes are split and run", async || {
        let row = hand.admin.query_one(lanes, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1)) == (4, 4)
    })
    .await;
    hand.insert("last", "k", 1).await;
    until("it goes on", async || sink.with(|kept| kept.topics.iter().any(|topic| topic == "last 1"))).await;
    let mut topics = sink.with(|kept| kept.topics.clone());
    let all = topics.len();
    topics.sort();
    topics.dedup();
    assert_eq!((topics.len(), all), (102, 102), "lost or repeated");
    replica.stop().await;
}
