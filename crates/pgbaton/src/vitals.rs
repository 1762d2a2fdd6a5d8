//! Whether a replica lives, and whether it can work: what a supervisor and a load balancer ask, answered without touching
//! the database.
//!
//! The tasks of a replica leave marks here; whoever asks compares them with the clock.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{self, SharedLease};
use crate::lane::{RelayName, ReplicaId};
use crate::lease::BootInstant;

/// The marks of one process. Cloned handles share them; they outlive the replicas that run one after the other.
#[derive(Debug, Clone, Default)]
pub struct Vitals(Arc<Mutex<Marks>>);

#[derive(Debug)]
struct Marks {
    name: String,
    ttl: Duration,
    relays: Vec<RelayName>,
    /// When the loop that looks after the lanes last went round. Before it has begun: since when it is about to.
    progressed: BootInstant,
    /// When the database last answered a look, and whether it did so the last time.
    answered: Option<BootInstant>,
    answers: bool,
    identity: Option<(ReplicaId, SharedLease)>,
}

/// A process that has just started lives: whoever asks it before its replica begins must not have it restarted.
impl Default for Marks {
    fn default() -> Self {
        Self {
            name: String::new(),
            ttl: Duration::ZERO,
            relays: Vec::new(),
            progressed: clock::now(),
            answered: None,
            answers: false,
            identity: None,
        }
    }
}

/// What was known at one moment.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The replica's name.
    pub name: String,
    /// How long lanes stay with a replica that no longer renews.
    pub ttl: Duration,
    /// The relays it runs.
    pub relays: Vec<RelayName>,
    /// How long ago its supervisor made progress, or was to begin.
    pub progress: Duration,
    /// How long ago the database last answered a look; `None` if it never did.
    pub database: Option<Duration>,
    /// Whether it answered the last one.
    pub answers: bool,
    /// The identity that holds a lease, and what is left of it; `None` if there is none, or it is over.
    pub lease: Option<(ReplicaId, Duration)>,
}

impl Reading {
    /// Whether the supervisor makes progress. It goes round four times a second, but waits for the database, and that is
    /// bounded by the lease.
    #[must_use]
    pub fn lives(&self) -> bool {
        const LEAST: Duration = Duration::from_secs(10);
        self.progress <= LEAST.max(3 * self.ttl)
    }

    /// Whether it can work: the database answered within one ttl, and the lease is held. A sink that is down is no reason
    /// to say no: it would be down for any other replica, too.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.lease.is_some() && self.database.is_some_and(|ago| ago <= self.ttl)
    }
}

impl Vitals {
    /// What is known now.
    #[must_use]
    pub fn read(&self) -> Reading {
        let now = clock::now();
        self.with(|marks| Reading {
            name: marks.name.clone(),
            ttl: marks.ttl,
            relays: marks.relays.clone(),
            progress: now.since(marks.progressed),
            database: marks.answered.map(|at| now.since(at)),
            answers: marks.answers,
            lease: marks.identity.as_ref().and_then(|(id, lease)| Some((*id, lease.check().ok()?))),
        })
    }

    /// Whether the supervisor has made no progress for two ttls: more than waiting for the database explains.
    pub(crate) fn stands_still(&self) -> bool {
        self.with(|marks| clock::now().since(marks.progressed) > 2 * marks.ttl)
    }

    /// A replica begins.
    pub(crate) fn begin(&self, name: &str, ttl: Duration, relays: Vec<RelayName>) {
        self.with(|marks| {
            (marks.name, marks.ttl, marks.relays) = (name.to_owned(), ttl, relays);
            marks.progressed = clock::now();
        });
    }

    pub(crate) fn progress(&self) {
        self.with(|marks| marks.progressed = clock::now());
    }

    pub(crate) fn looked(&self, answers: bool) {
        self.with(|marks| {
            marks.answers = answers;
            if answers {
                marks.answered = Some(clock::now());
            }
        });
    }

    /// An identity that holds a lease from now on, until it is over.
    pub(crate) fn joined(&self, id: ReplicaId, lease: SharedLease) {
        self.with(|marks| marks.identity = Some((id, lease)));
    }

    fn with<T>(&self, f: impl FnOnce(&mut Marks) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Lease;
    use uuid::Uuid;

    const TTL: Duration = Duration::from_secs(5);

    fn reading() -> Reading {
        Reading {
            name: String::new(),
            ttl: TTL,
            relays: Vec::new(),
            progress: Duration::ZERO,
            database: Some(Duration::ZERO),
            answers: true,
            lease: Some((ReplicaId(Uuid::nil()), TTL)),
        }
    }

    #[test]
    fn a_supervisor_may_wait_for_three_leases() {
        let lives = |secs, ttl| Reading { progress: Duration::from_secs(secs), ttl, ..reading() }.lives();
        assert!(lives(10, Duration::from_secs(1)) && !lives(11, Duration::from_secs(1)));
        assert!(lives(15, TTL) && !lives(16, TTL));
        assert!(Vitals::default().read().lives(), "it has just started");
    }

    #[test]
    fn ready_is_a_lease_and_a_database() {
        assert!(reading().ready());
        assert!(Reading { answers: false, ..reading() }.ready());
        assert!(!Reading { lease: None, ..reading() }.ready());
        assert!(!Reading { database: Some(TTL + Duration::from_millis(1)), ..reading() }.ready());
        assert!(!Reading { database: None, ..reading() }.ready());
    }

    #[test]
    fn it_stands_still_after_two_ttls() {
        let vitals = Vitals::default();
        vitals.begin("r", Duration::from_millis(1), Vec::new());
        assert!(!Vitals::stands_still(&vitals) || vitals.read().progress > Duration::from_millis(2));
        std::thread::sleep(Duration::from_millis(5));
        assert!(vitals.stands_still());
        vitals.begin("r", TTL, Vec::new());
        assert!(!vitals.stands_still());
    }

    #[test]
    fn a_lease_that_is_over_is_none() {
        let vitals = Vitals::default();
        let lease = SharedLease::new(Lease::begin(TTL, clock::now()));
        vitals.joined(ReplicaId(Uuid::nil()), lease.clone());
        assert!(vitals.read().lease.is_some());
        lease.end();
        assert!(vitals.read().lease.is_none());
    }
}
