//! Leases: how a replica knows that its lanes are still its own, and how the others know that they no longer are.
//!
//! No clock is compared with another machine's. Each side counts a duration on its own boot-time clock, and the two
//! durations are arranged so that the owner always stops first:
//!
//! ```text
//! owner      sends beat 7                               stops at sent + ttl - margin
//!            |-------------------------------------------|
//! database        beat = 7
//! watcher             first sees 7                                    still 7 after a whole ttl: expires it
//!                     |------------------------------------------------|
//! ```
//!
//! The owner counts from the moment it *sent* the beat, a watcher from the moment it first *saw* it, which is later.
//! Both count a ttl, so whatever the owner does under its lease is over before anybody takes its lanes. The margin
//! covers clocks that run at slightly different speeds, and the way from a check to the wire.
//!
//! What is not covered: a process (or a whole machine) that stands still between its check and its send. Only the sink
//! can refuse that one; it does so by the epoch.

use std::collections::HashMap;
use std::time::Duration;

use crate::lane::ReplicaId;

/// A moment on this machine's boot-time clock: it never steps, and it counts the time the machine was suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(Duration);

impl BootInstant {
    /// The moment `since_boot` after the machine started.
    #[must_use]
    pub fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// Time since the machine started.
    #[must_use]
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// The moment `duration` later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// How long ago `earlier` was; zero if it is yet to come.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Counts a replica's renewals. Grows by one with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Beat(pub i64);

/// The lease is over: nothing may be written to a sink any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lease ended {ended:?} ago")]
pub struct LeaseOver {
    /// How long ago it ended, as this replica knows it.
    pub ended: Duration,
}

/// This replica's right to its lanes, for as long as it keeps renewing it in time.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    ttl: Duration,
    margin: Duration,
    sent: BootInstant,
}

/// What to do about the lease now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseStep {
    /// Send a renewal.
    Renew,
    /// Nothing before this moment.
    Wait(BootInstant),
    /// It ran out. Drop all lanes, take a new identity, start again.
    Over,
}

impl Lease {
    /// A lease that starts with a beat sent at `sent`. The margin is a tenth of the ttl.
    #[must_use]
    pub fn begin(ttl: Duration, sent: BootInstant) -> Self {
        Self { ttl, margin: ttl / 10, sent }
    }

    /// A renewal that was sent at `sent` has been confirmed, however long the answer took.
    ///
    /// A late answer is worth what its time of sending is worth: it never moves the deadline back, and it cannot
    /// revive a lease that has ended, since by then somebody else may hold the lanes.
    pub fn renewed(&mut self, sent: BootInstant, now: BootInstant) {
        if self.may_write(now).is_ok() && sent > self.sent {
            self.sent = sent;
        }
    }

    /// The moment after which nothing may be written.
    #[must_use]
    pub fn deadline(&self) -> BootInstant {
        self.sent.after(self.ttl - self.margin)
    }

    /// Whether something may still be written; if so, until when.
    ///
    /// # Errors
    /// [`LeaseOver`] from the deadline on.
    pub fn may_write(&self, now: BootInstant) -> Result<BootInstant, LeaseOver> {
        let deadline = self.deadline();
        if now < deadline { Ok(deadline) } else { Err(LeaseOver { ended: now.since(deadline) }) }
    }

    /// What to do now: a renewal is due each third of the ttl.
    #[must_use]
    pub fn next(&self, now: BootInstant) -> LeaseStep {
        let due = self.sent.after(self.ttl / 3);
        if self.may_write(now).is_err() {
            LeaseStep::Over
        } else if now >= due {
            LeaseStep::Renew
        } else {
            LeaseStep::Wait(due)
        }
    }
}

/// The beats of the other replicas, as this one has seen them.
#[derive(Debug, Clone)]
pub struct Watch {
    ttl: Duration,
    seen: HashMap<ReplicaId, (Beat, BootInstant)>,
    claims_from: Option<BootInstant>,
}

impl Watch {
    /// Watches with the ttl that all replicas share.
    #[must_use]
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, seen: HashMap::new(), claims_from: None }
    }

    /// Waits at least this long: while the ttl is being changed, the longest one counts.
    pub fn at_least(&mut self, ttl: Duration) {
        self.ttl = self.ttl.max(ttl);
    }

    /// One look at all replicas, whose answer arrived at `now`. Replicas that are gone are forgotten.
    pub fn saw(&mut self, replicas: &[(ReplicaId, Beat)], now: BootInstant) {
        self.seen.retain(|id, _| replicas.iter().any(|(replica, _)| replica == id));
        for (id, beat) in replicas {
            let seen = self.seen.entry(*id).or_insert((*beat, now));
            if seen.0 != *beat {
                *seen = (*beat, now);
            }
        }
    }

    /// Another incarnation of the database: its beats may be older than what was seen, so all is counted afresh.
    pub fn restart(&mut self) {
        self.seen.clear();
        self.claims_from = None;
    }

    /// A timeline that no replica has lived with for a whole ttl yet, seen at `now`. In the state that was lost somebody
    /// else may hold any lane, under a lease that runs on: claim nothing until a ttl after it was first seen.
    pub fn hold_claims(&mut self, now: BootInstant) {
        self.claims_from.get_or_insert(now.after(self.ttl));
    }

    /// Whether lanes may be claimed and opened.
    #[must_use]
    pub fn may_claim(&self, now: BootInstant) -> bool {
        self.claims_from.is_none_or(|from| now >= from)
    }

    /// Who has shown the same beat for a whole ttl, with that beat: it may be deleted if the beat is still that one.
    #[must_use]
    pub fn expired(&self, now: BootInstant) -> Vec<(ReplicaId, Beat)> {
        let mut expired: Vec<_> = self
            .seen
            .iter()
            .filter(|(_, (_, first_seen))| now.since(*first_seen) >= self.ttl)
            .map(|(id, (beat, _))| (*id, *beat))
            .collect();
        expired.sort();
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const TTL: Duration = Duration::from_secs(5);

    fn at(millis: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_millis(millis))
    }

    fn id(n: u128) -> ReplicaId {
        ReplicaId(Uuid::from_u128(n))
    }

    #[test]
    fn a_lease_runs_from_the_moment_the_renewal_was_sent() {
        let mut lease = Lease::begin(TTL, at(1_000));
        assert_eq!(lease.deadline(), at(5_500));
        lease.renewed(at(2_000), at(5_000));
        assert_eq!(lease.deadline(), at(6_500));
        assert!(lease.may_write(at(6_499)).is_ok());
        assert_eq!(lease.may_write(at(6_600)), Err(LeaseOver { ended: Duration::from_millis(100) }));
    }

    #[test]
    fn a_late_answer_does_not_revive_a_lease() {
        let mut lease = Lease::begin(TTL, at(0));
        lease.renewed(at(4_000), at(4_600));
        assert_eq!(lease.next(at(4_600)), LeaseStep::Over);
    }

    #[test]
    fn an_answer_that_was_overtaken_does_not_move_the_deadline_back() {
        let mut lease = Lease::begin(TTL, at(0));
        lease.renewed(at(3_000), at(3_100));
        lease.renewed(at(2_000), at(3_200));
        assert_eq!(lease.deadline(), at(7_500));
    }

    #[test]
    fn renewals_are_due_each_third() {
        let lease = Lease::begin(Duration::from_secs(6), at(0));
        assert_eq!(lease.next(at(1_999)), LeaseStep::Wait(at(2_000)));
        assert_eq!(lease.next(at(2_000)), LeaseStep::Renew);
        assert_eq!(lease.next(at(5_400)), LeaseStep::Over);
    }

    #[test]
    fn a_replica_expires_after_a_whole_ttl_of_the_same_beat() {
        let mut watch = Watch::new(TTL);
        watch.saw(&[(id(1), Beat(1)), (id(2), Beat(7))], at(0));
        watch.saw(&[(id(1), Beat(1)), (id(2), Beat(8))], at(4_000));
        assert!(watch.expired(at(4_999)).is_empty());
        assert_eq!(watch.expired(at(5_000)), vec![(id(1), Beat(1))]);
        assert_eq!(watch.expired(at(9_000)), vec![(id(1), Beat(1)), (id(2), Beat(8))]);
    }

    #[test]
    fn after_another_incarnation_beats_are_counted_afresh() {
        let mut watch = Watch::new(TTL);
        watch.saw(&[(id(1), Beat(1))], at(0));
        watch.restart();
        watch.saw(&[(id(1), Beat(1))], at(4_000));
        assert!(watch.expired(at(8_999)).is_empty());
    }

    #[test]
    fn claims_wait_a_whole_ttl_after_a_new_timeline() {
        let mut watch = Watch::new(TTL);
        assert!(watch.may_claim(at(0)));
        watch.hold_claims(at(1_000));
        assert!(!watch.may_claim(at(5_999)));
        assert!(watch.may_claim(at(6_000)));
    }

    /// The claim of this module, over many ways the clocks can lie to each other: the owner's last moment is before
    /// the watcher's first.
    #[test]
    fn the_owner_stops_before_anybody_may_take_its_lanes() {
        for delay in [0_u64, 1, 50, 4_000] {
            for speed in [0.95_f64, 1.0, 1.05] {
                let lease = Lease::begin(TTL, at(10_000));
                // The beat is seen `delay` after it was sent; the watcher's clock runs at another speed.
                let expires_true = 10_000.0 + f64::from(u32::try_from(delay).unwrap()) + 5_000.0 / speed;
                let owner_true = lease.deadline().since_boot().as_secs_f64() * 1_000.0;
                assert!(owner_true < expires_true, "delay {delay} speed {speed}");
            }
        }
    }
}
