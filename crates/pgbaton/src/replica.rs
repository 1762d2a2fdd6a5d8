//! A replica: one running process, with its part in all its relays.
//!
//! It lives through one identity after the other (`relay/claim.rs`): each has its own lease, and is dropped whole when
//! that lease is over.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::connection::Database;
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::metrics::Metrics;
use crate::relay::RelaySpec;
use crate::relay::claim::{Ended, Identity};
use crate::retry::Backoff;
use crate::sink::{Capabilities, ProbeError};

/// How a replica is set up.
#[derive(Clone)]
pub struct ReplicaSpec {
    /// Shown to operators; not an identity.
    pub name: String,
    /// The database with the outbox.
    pub database: Database,
    /// How long lanes stay with a replica that no longer renews. The same on all replicas.
    pub ttl: Duration,
    /// How long a clean stop may take before what is in flight is left to the next owner.
    pub drain: Duration,
    /// The relays it runs.
    pub relays: Vec<RelaySpec>,
}

/// How long lanes stay with a replica that no longer renews, unless it says otherwise.
pub(crate) const TTL: Duration = Duration::from_secs(5);

/// How long a clean stop may take, unless it says otherwise.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);

impl ReplicaSpec {
    /// A replica without relays, with the defaults of the configuration file. Whoever changes the ttl also makes the database
    /// with a third of it as its patience, so that a renewal can be tried again.
    ///
    /// # Errors
    /// A connection string that cannot be read.
    pub fn new(dsn: &str) -> Result<Self, Error> {
        let database = Database::new(dsn, TTL / 3)?;
        let name = format!("pid-{}", std::process::id());
        Ok(Self { name, database, ttl: TTL, drain: DRAIN, relays: Vec::new() })
    }

    /// One relay more. Their names differ.
    #[must_use]
    pub fn relay(mut self, relay: RelaySpec) -> Self {
        self.relays.push(relay);
        self
    }
}

/// A running replica's counters, one for each relay.
pub type AllMetrics = HashMap<RelayName, Arc<Metrics>>;

/// One process's part in all its relays.
pub struct Replica {
    pub(crate) spec: ReplicaSpec,
    pub(crate) metrics: AllMetrics,
}

impl Replica {
    /// Nothing happens before [`Replica::run`].
    #[must_use]
    pub fn new(spec: ReplicaSpec) -> Self {
        let metrics = spec.relays.iter().map(|relay| (relay.name.clone(), Arc::default())).collect();
        Self { spec, metrics }
    }

    /// The counters of each relay.
    #[must_use]
    pub fn metrics(&self) -> AllMetrics {
        self.metrics.clone()
    }

    /// Runs until `stop` turns true, then drains, writes positions and gives the lanes back.
    ///
    /// Trouble with the database or a sink does not end it.
    ///
    /// # Errors
    /// What a person has to decide: a schema that does not fit, an outbox that was altered, positions of another
    /// database, a sink that cannot be used as configured.
    pub async fn run(self, mut stop: watch::Receiver<bool>) -> Result<(), Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let Some(capabilities) = self.probe_sinks(&mut stop).await? else { return Ok(()) };
        let mut previous = None;
        while !*stop.borrow() {
            match Identity::live(&self, &capabilities, &mut previous, &mut stop).await {
                Ok(Ended::Stopped) => break,
                Ok(Ended::Lost) => {
                    backoff.reset();
                    tracing::warn!("this replica's lease is over: all lanes dropped, starting again as a new one");
                }
                Err(error) if error.is_transient() => {
                    let pause = backoff.next(rand::random());
                    tracing::warn!(%error, ?pause, "the database cannot be used; trying again after the pause");
                    tokio::select! {
                        () = stopped(&mut stop) => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks every sink what it can do, for as long as it takes. `None` if the replica is to stop meanwhile.
    async fn probe_sinks(
        &self,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<Option<HashMap<RelayName, Capabilities>>, Error> {
        let mut capabilities = HashMap::new();
        for relay in &self.spec.relays {
            let mut backoff = Backoff::new(Duration::from_millis(100), relay.pace.retry_cap);
            let found = loop {
                let probed = tokio::select! {
                    biased;
                    () = stopped(stop) => return Ok(None),
                    probed = relay.sink.probe() => probed,
                };
                match probed {
                    Ok(found) => break found,
                    Err(error @ ProbeError::Unusable(_)) => {
                        return Err(Error::new(Kind::Sink, format!("relay {}: {error}", relay.name))
                            .hint("Check the relay's `sink` section"));
                    }
                    Err(error @ ProbeError::SinkDown(_)) => {
                        let pause = backoff.next(rand::random());
                        tracing::warn!(relay = %relay.name, %error, ?pause, "trying again after the pause");
                        tokio::select! {
                            () = stopped(stop) => return Ok(None),
                            () = tokio::time::sleep(pause) => {}
                        }
                    }
                }
            };
            tracing::info!(relay = %relay.name, tier = %found.tier, "the sink can be used");
            capabilities.insert(relay.name.clone(), found);
        }
        Ok(Some(capabilities))
    }
}

/// Returns when the replica is to stop. Cancel-safe. Keeps no guard of the channel, which would hold up its sender.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left who could say so.
    let _ = stop.wait_for(|stop| *stop).await;
}
