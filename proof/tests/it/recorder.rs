//! A sink that remembers who was handed what, when and under which deadline; as slow as a test wants it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use pgbaton::clock::{self, Deadline};
use pgbaton::lane::{Grant, Lane};
use pgbaton::lease::BootInstant;
use pgbaton::message::Payload;
use pgbaton::outcome::{AppendError, Fault, Outcome};
use pgbaton::sink::{Capabilities, OpenError, OpenLane, Opening, Part, ProbeError, Sink, Tier};
use pgbaton::source::Opaque;
use proof::writers::Arrival;

/// One call of `append`.
#[derive(Debug, Clone)]
pub struct Call {
    /// The name of the replica that made it.
    pub replica: &'static str,
    pub grant: Grant,
    pub messages: Vec<Arrival>,
    pub topics: Vec<String>,
    pub began: BootInstant,
    pub ended: BootInstant,
    /// Until when something might still be written, as the replica knew at the beginning.
    pub until: BootInstant,
}

/// What all replicas of a test have written.
#[derive(Debug, Clone, Default)]
pub struct Records(Arc<Mutex<Vec<Call>>>);

impl Records {
    /// The sink as one replica has it.
    pub fn sink(&self, replica: &'static str, slow: Duration) -> Arc<Recorder> {
        Arc::new(Recorder { records: self.clone(), replica, slow })
    }

    /// All calls in the order in which they ended.
    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().unwrap().clone()
    }

    /// All messages in the order in which they arrived.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.calls().into_iter().flat_map(|call| call.messages).collect()
    }

    /// That no lane was ever published under two epochs at once, nor under an older one after a newer one.
    pub fn assert_exclusive(&self) {
        let mut newest: HashMap<Lane, Call> = HashMap::new();
        for call in self.calls() {
            if let Some(before) = newest.get(&call.grant.lane) {
                let one_after_the_other = before.grant.epoch == call.grant.epoch
                    || (before.grant.epoch < call.grant.epoch && before.ended <= call.began);
                assert!(one_after_the_other, "{} and {} published at once", before.grant, call.grant);
            }
            newest.insert(call.grant.lane.clone(), call);
        }
    }

    /// How many messages have arrived.
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().iter().map(|call| call.messages.len()).sum()
    }
}

/// The sink.
pub struct Recorder {
    records: Records,
    replica: &'static str,
    slow: Duration,
}

#[async_trait]
impl Sink for Recorder {
    async fn probe(&self) -> Result<Capabilities, ProbeError> {
        Ok(Capabilities::plain(Tier::T5))
    }

    async fn open(&self, grant: &Grant, _opening: Opening) -> Result<Box<dyn OpenLane>, OpenError> {
        let (records, replica, slow) = (self.records.clone(), self.replica, self.slow);
        Ok(Box::new(OpenRecorder { records, replica, slow, grant: grant.clone() }))
    }
}

struct OpenRecorder {
    records: Records,
    replica: &'static str,
    slow: Duration,
    grant: Grant,
}

#[async_trait]
impl OpenLane for OpenRecorder {
    async fn position(&mut self) -> Result<Option<Opaque>, Fault> {
        Ok(None)
    }

    /// It counts as written at the end, so that a call that is cut off has written nothing.
    async fn append(&mut self, part: &Part<'_>, deadline: &Deadline) -> Result<Vec<Outcome>, AppendError> {
        let began = clock::now();
        let left = deadline.check().map_err(|_| AppendError::LeaseOver)?;
        let until = began.after(left);
        tokio::time::sleep(self.slow).await;
        deadline.check().map_err(|_| AppendError::LeaseOver)?;
        let call = Call {
            replica: self.replica,
            grant: self.grant.clone(),
            messages: part.messages().map(|message| arrival(message.id, message.payload)).collect(),
            topics: part.messages().map(|message| message.topic.to_owned()).collect(),
            began,
            ended: clock::now(),
            until,
        };
        self.records.0.lock().unwrap().push(call);
        Ok(vec![Outcome::Delivered; part.len()])
    }
}

fn arrival(id: &str, payload: Payload<'_>) -> Arrival {
    let payload = match payload {
        Payload::Json(json) => json.to_owned(),
        Payload::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Payload::None => String::new(),
    };
    Arrival { message_id: id.to_owned(), payload }
}
