//! A replica: one running process, with its part in all its relays.
//!
//! It lives through one identity after the other (`relay/claim.rs`): each has its own lease, and is dropped whole when
//! that lease is over.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use crate::connection::Database;
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::metrics::AllMetrics;
use crate::observe::Observe;
use crate::outcome::{Fault, codes};
use crate::relay::claim::{Ended, Identity};
use crate::relay::{self, RelaySpec};
use crate::retry::Backoff;
use crate::sink::{Capabilities, ProbeError};
use crate::vitals::Vitals;

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

/// Not less, or renewals have no time for a second try.
pub(crate) const LEAST_TTL: Duration = Duration::from_secs(1);

/// Not more: a dead replica's lanes stand still for so long.
pub(crate) const MOST_TTL: Duration = Duration::from_secs(3_600);

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
        let name = crate::config::default_name();
        Ok(Self { name, database, ttl: TTL, drain: DRAIN, relays: Vec::new() })
    }

    /// One relay more. Their names differ.
    #[must_use]
    pub fn relay(mut self, relay: RelaySpec) -> Self {
        self.relays.push(relay);
        self
    }

    /// What cannot work, where a program rather than a configuration file says it.
    fn check(&self) -> Result<(), Error> {
        if !(LEAST_TTL..=MOST_TTL).contains(&self.ttl) {
            let text = format!("`ttl` is {:?}, and has to be from {LEAST_TTL:?} to {MOST_TTL:?}", self.ttl);
            return Err(Error::new(Kind::Config, text));
        }
        let mut names = HashSet::new();
        for relay in &self.relays {
            relay.check()?;
            if !names.insert(&relay.name) {
                return Err(Error::new(Kind::Config, format!("two relays are named {}", relay.name)));
            }
        }
        Ok(())
    }
}

/// One process's part in all its relays.
pub struct Replica {
    pub(crate) spec: ReplicaSpec,
    pub(crate) metrics: Arc<AllMetrics>,
    pub(crate) vitals: Vitals,
    pub(crate) observer: Option<Arc<dyn Observe>>,
}

impl Replica {
    /// Nothing happens before [`Replica::run`].
    #[must_use]
    pub fn new(spec: ReplicaSpec) -> Self {
        Self::in_process(spec, Arc::default(), Vitals::default())
    }

    /// One of several that run in a process one after the other: they count on, and leave their marks at one place.
    #[must_use]
    pub fn in_process(spec: ReplicaSpec, metrics: Arc<AllMetrics>, vitals: Vitals) -> Self {
        Self { spec, metrics, vitals, observer: None }
    }

    /// Has each answer of a sink shown to this.
    #[must_use]
    pub fn observed_by(self, observer: Arc<dyn Observe>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Runs until `stop` turns true, then drains, writes positions and gives the lanes back.
    ///
    /// Trouble with the database or a sink does not end it.
    ///
    /// # Errors
    /// What a person has to decide: a setting that cannot work, a schema that does not fit, an outbox that was altered, positions
    /// of another database, a sink that cannot be used as configured.
    pub async fn run(self, mut stop: watch::Receiver<bool>) -> Result<(), Error> {
        self.spec.check()?;
        let relays = self.spec.relays.iter().map(|relay| relay.name.clone()).collect();
        self.vitals.begin(&self.spec.name, self.spec.ttl, relays);
        let result = self.live(&mut stop).await;
        self.spec.relays.iter().for_each(|relay| self.metrics.relay(&relay.name).at_rest());
        result
    }

    async fn live(&self, stop: &mut watch::Receiver<bool>) -> Result<(), Error> {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let capabilities = tokio::select! {
            biased;
            () = stopped(stop) => return Ok(()),
            capabilities = self.probe_sinks() => capabilities?,
        };
        let mut previous = None;
        while !*stop.borrow() {
            self.vitals.progress();
            match Identity::live(self, &capabilities, &mut previous, stop).await {
                Ok(Ended::Stopped) => break,
                Ok(Ended::Lost) => {
                    backoff.reset();
                    tracing::warn!("this replica's lease is over: all lanes dropped, starting again as a new one");
                }
                // A password that is being changed, or a role that is locked for a moment, ends no replica that has worked.
                Err(error) if error.is_transient() || (previous.is_some() && error.is_login_refused()) => {
                    self.vitals.looked(false);
                    let pause = backoff.next(rand::random());
                    tracing::warn!(%error, ?pause, "the database cannot be used; trying again after the pause");
                    tokio::select! {
                        () = stopped(stop) => break,
                        () = tokio::time::sleep(pause) => {}
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks every sink what it can do, all at once. One that is down is asked again by its lanes: it holds up no other relay.
    async fn probe_sinks(&self) -> Result<HashMap<RelayName, Capabilities>, Error> {
        let mut capabilities = HashMap::new();
        let probes = self.spec.relays.iter().map(|relay| async move {
            let metrics = self.metrics.relay(&relay.name);
            let probed = tokio::time::timeout(self.spec.ttl, relay::probe(relay, &metrics)).await;
            let silent = Fault::new(&codes::sink::SILENT, "no answer to the first question");
            (relay, metrics, probed.unwrap_or(Err(ProbeError::SinkDown(silent))))
        });
        for (relay, metrics, probed) in join_all(probes).await {
            match probed {
                Ok(found) => drop(capabilities.insert(relay.name.clone(), found)),
                Err(error @ ProbeError::Unusable(_)) => {
                    return Err(Error::new(Kind::Sink, format!("relay {}: {error}", relay.name))
                        .hint("Check the relay's `sink` section"));
                }
                Err(ProbeError::SinkDown(fault)) => {
                    metrics.sink_is_down(&fault);
                    tracing::warn!(relay = %relay.name, %fault, "the sink is down; its lanes wait for it");
                }
            }
        }
        Ok(capabilities)
    }
}

/// Returns when the replica is to stop. Cancel-safe. Keeps no guard of the channel, which would hold up its sender.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that nobody is left who could say so.
    let _ = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::discard::Discard;

    fn problem(change: impl FnOnce(&mut ReplicaSpec)) -> String {
        let mut spec = ReplicaSpec::new("host=x").unwrap().relay(RelaySpec::new("orders", Discard).unwrap());
        change(&mut spec);
        spec.check().err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_program_is_told_what_a_configuration_is() {
        assert_eq!(problem(|_| ()), "");
        assert!(problem(|spec| spec.ttl = Duration::from_millis(10)).contains("ttl"));
        assert!(problem(|spec| spec.relays[0].lanes = 12).contains("orders: `lanes`"));
        assert!(problem(|spec| spec.relays[0].topics = vec![String::new()]).contains("orders: `topics`"));
        assert!(problem(|spec| spec.relays[0].limits.in_flight = 0).contains("orders: a limit"));
        assert!(problem(|spec| spec.relays.push(spec.relays[0].clone())).contains("named orders"));
    }
}
