//! A replica whose health and metrics are looked at all the time.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use proof::process::Process;
use tokio::task::JoinHandle;

use super::TTL;
use crate::daemon::{address_of, get, try_get};
use crate::hand::{SOON, until};

const EVERY: Duration = Duration::from_millis(50);

/// What a replica said at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    pub at: Instant,
    pub healthy: bool,
    pub ready: bool,
    /// Of `/readyz`.
    pub database_answers: bool,
    pub has_lease: bool,
    /// Of `/metrics`.
    pub database_up: f64,
    pub lease_left: f64,
    pub lanes_owned: f64,
    pub repeated: f64,
}

/// A replica and what it has said so far.
pub struct Watched {
    pub process: Process,
    pub address: String,
    id: u32,
    samples: Arc<Mutex<Vec<Sample>>>,
    watching: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

impl Watched {
    pub async fn new(mut process: Process) -> Watched {
        let address = address_of(&mut process).await;
        let (samples, id) = (Arc::default(), process.id());
        let watching = tokio::spawn(watch(address.clone(), Arc::clone(&samples)));
        Watched { process, address, id, samples, watching }
    }

    /// Returns once it works.
    pub async fn ready(&self) {
        until("the replica is ready", async || get(&self.address, "/readyz").await.status == 200).await;
    }

    /// What it has said since then.
    pub fn samples(&self, since: Instant) -> Vec<Sample> {
        self.samples.lock().unwrap().iter().filter(|sample| sample.at >= since).cloned().collect()
    }

    /// Whatever happened: it is the process that was started, a supervisor was never told to restart it, the sink never had to
    /// drop a repeat, and nobody was woken for nothing.
    pub async fn judge(&mut self) {
        let name = self.address.clone();
        assert!(!self.watching.is_finished(), "{name} was no longer watched: see above");
        assert_eq!(self.process.exit_status().unwrap(), None, "{name} has ended");
        assert_eq!(self.process.id(), self.id);
        let samples = self.samples.lock().unwrap().clone();
        let sick = samples.iter().position(|sample| !sample.healthy);
        assert_eq!(sick, None, "{name} was not healthy: {:?}", sick.map(|nth| &samples[nth]));
        assert!(samples.iter().all(|sample| sample.repeated == 0.0), "{name} delivered something twice");
        let errors = self.process.lines_with(" ERROR ");
        assert!(errors.is_empty(), "nothing here needs a person: {errors:?}");
    }

    /// Ends it in order, and gives how long that took.
    pub async fn terminate(mut self) -> Duration {
        self.judge().await;
        self.watching.abort();
        let began = Instant::now();
        self.process.terminate().unwrap();
        assert!(self.process.wait(SOON).await.unwrap().success());
        began.elapsed()
    }

    /// Its lives so far.
    pub fn lives(&self) -> usize {
        self.process.lines_with("joined").len()
    }
}

/// Looks until the replica no longer answers, which [`Watched::judge`] finds.
async fn watch(address: String, samples: Arc<Mutex<Vec<Sample>>>) {
    while let Some(sample) = look(&address).await {
        samples.lock().unwrap().push(sample);
        tokio::time::sleep(EVERY).await;
    }
}

async fn look(address: &str) -> Option<Sample> {
    let at = Instant::now();
    let healthy = try_get(address, "/healthz", SOON).await?.status == 200;
    let readyz = try_get(address, "/readyz", SOON).await?;
    let body = readyz.json();
    let (ready, has_lease) = (readyz.status == 200, !body["replica"].is_null());
    let answered = body["database"]["answered_seconds_ago"].as_f64();
    let promised = has_lease && answered.is_some_and(|ago| ago <= TTL.as_secs_f64());
    assert_eq!((ready, &body["ready"]), (promised, &ready.into()), "{body}");
    let metrics = try_get(address, "/metrics", SOON).await?.body;
    let mut sample = Sample {
        at,
        healthy,
        ready,
        database_answers: body["database"]["answers"] == true,
        has_lease,
        database_up: 0.0,
        lease_left: 0.0,
        lanes_owned: 0.0,
        repeated: 0.0,
    };
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ')?;
        let value: f64 = value.parse().ok()?;
        assert!(value >= 0.0, "{line}");
        match name.split('{').next()? {
            "pgbaton_database_up" => sample.database_up = value,
            "pgbaton_lease_left_seconds" => sample.lease_left = value,
            "pgbaton_lanes_owned" => sample.lanes_owned = value,
            "pgbaton_messages_repeated_total" => sample.repeated = value,
            _ => {}
        }
    }
    assert!(sample.lease_left <= TTL.as_secs_f64(), "{sample:?}");
    Some(sample)
}
