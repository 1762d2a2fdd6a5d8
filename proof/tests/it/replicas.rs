//! Replicas that run inside of a test, in one process with it.

use std::sync::Arc;
use std::time::Duration;

use pgbaton::lane::RelayName;
use pgbaton::relay::{Limits, Pace, RelaySpec, Start};
use pgbaton::replica::{Replica, ReplicaSpec};
use pgbaton::retry::Policy;
use pgbaton::sink::Sink;
use pgbaton::source::SourceSpec;
use pgbaton::{Database, Error};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::hand::SOON;

/// How replicas of a test are set up.
#[derive(Clone)]
pub struct Setup {
    pub ttl: Duration,
    pub lanes: i32,
    pub relays: Vec<&'static str>,
    pub limits: Limits,
    pub policy: Policy,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            ttl: Duration::from_secs(5),
            lanes: 16,
            relays: vec!["orders"],
            limits: Limits::default(),
            policy: Policy::default(),
        }
    }
}

/// A running replica. Dropping it is like killing it: nothing is given back.
pub struct Running {
    stop: watch::Sender<bool>,
    task: JoinHandle<Result<(), Error>>,
}

impl Setup {
    /// Starts a replica that delivers to this sink.
    pub fn start(&self, dsn: &str, name: &'static str, sink: &Arc<impl Sink + 'static>) -> Running {
        let database = Database::new(dsn, self.ttl / 3).unwrap();
        let relays = self.relays.iter().map(|relay| self.relay(relay, Arc::clone(sink) as Arc<dyn Sink>)).collect();
        let spec = ReplicaSpec { name: name.to_owned(), database, ttl: self.ttl, drain: SOON, relays };
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(Replica::new(spec).run(stopped));
        Running { stop, task }
    }

    fn relay(&self, name: &str, sink: Arc<dyn Sink>) -> RelaySpec {
        RelaySpec {
            policy: self.policy.clone(),
            name: RelayName::new(name).unwrap(),
            source: SourceSpec::Native,
            lanes: self.lanes,
            start: Start::Earliest,
            topics: Vec::new(),
            sink,
            limits: self.limits,
            pace: Pace::default(),
            resend_lost: false,
            wake: false,
        }
    }
}

impl Running {
    /// Lets it drain and leave.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        (&mut self.task).await.unwrap().unwrap();
    }

    /// Ends it at once, as a kill would.
    pub fn kill(self) {
        drop(self);
    }

    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}
