//! This machine's boot-time clock, and the deadline that every write to a sink is compared with.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::history::{self, Held};
use crate::lease::{BootInstant, Lease, LeaseOver};

/// The boot-time clock: monotonic, and it counts the time the machine was suspended.
#[must_use]
pub fn now() -> BootInstant {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    BootInstant::from_boot(Duration::new(seconds, nanos))
}

/// The lease of one replica identity, shared by all its tasks. Once it is over it stays over: a renewal that belongs to
/// a later identity has another one.
#[derive(Debug, Clone)]
pub struct SharedLease(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    lease: Lease,
    over: bool,
}

impl SharedLease {
    /// Shares this lease.
    #[must_use]
    pub fn new(lease: Lease) -> Self {
        Self(Arc::new(Mutex::new(State { lease, over: false })))
    }

    /// A renewal sent at `sent` was confirmed just now.
    pub fn renewed(&self, sent: BootInstant) {
        self.with(|state| state.lease.renewed(sent, now()));
    }

    /// Ends it for good: the database no longer knows this replica.
    pub fn end(&self) {
        self.with(|state| state.over = true);
    }

    /// The lease as it stands.
    #[must_use]
    pub fn get(&self) -> Lease {
        self.with(|state| state.lease)
    }

    /// How long something may still be written.
    ///
    /// # Errors
    /// [`LeaseOver`], and from then on always.
    pub fn check(&self) -> Result<Duration, LeaseOver> {
        self.with(|state| {
            let now = now();
            if state.over {
                return Err(LeaseOver { ended: now.since(state.lease.deadline()) });
            }
            let checked = state.lease.may_write(now).map(|deadline| deadline.since(now));
            state.over = checked.is_err();
            checked
        })
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Until when one lane may write to its sink: as long as the lease runs and the lane was not taken away.
///
/// It moves with each renewal, so a slow call may take longer than one lease. A sink calls [`Deadline::check`] right
/// before each write, with nothing in between: a process that was frozen runs what was due before its timers fire.
#[derive(Debug, Clone)]
pub struct Deadline {
    lease: SharedLease,
    stopped: watch::Receiver<bool>,
    /// Whose it is, for the history.
    told_of: Option<Arc<Held>>,
}

impl Deadline {
    /// The deadline of a lane that stops when `stopped` turns true or its sender is gone.
    #[must_use]
    pub fn new(lease: SharedLease, stopped: watch::Receiver<bool>) -> Self {
        Self { lease, stopped, told_of: None }
    }

    /// The same; each successful look at the clock is told in the history.
    pub(crate) fn told_of(self, held: Arc<Held>) -> Self {
        Self { told_of: Some(held), ..self }
    }

    /// A deadline for tests of sinks: a lease of this length that nobody renews.
    #[must_use]
    pub fn after(ttl: Duration) -> Self {
        let (sender, stopped) = watch::channel(false);
        // Nobody will stop it; a dropped sender would count as stopped.
        drop(tokio::spawn(async move { sender.closed().await }));
        Self { lease: SharedLease::new(Lease::begin(ttl, now())), stopped, told_of: None }
    }

    /// How long something may still be written.
    ///
    /// # Errors
    /// [`LeaseOver`] once the lease has ended or the lane was taken away.
    pub fn check(&self) -> Result<Duration, LeaseOver> {
        // Looked at before: what stands still between this and the check must not seem to have written late.
        let looked = history::now();
        let left = self.left()?;
        if let Some(held) = &self.told_of {
            history::writing(held, looked);
        }
        Ok(left)
    }

    /// The same, for who is not about to write.
    pub(crate) fn left(&self) -> Result<Duration, LeaseOver> {
        if self.is_stopped() {
            return Err(LeaseOver { ended: Duration::ZERO });
        }
        self.lease.check()
    }

    /// Returns when nothing may be written any more. Cancel-safe.
    pub async fn over(&self) {
        /// Timers do not count suspended time and fire late after a freeze, so the clock is read again this often.
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        let mut stopped = self.stopped.clone();
        while let Ok(left) = self.left() {
            tokio::select! {
                changed = stopped.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(left.min(LOOK_AGAIN)) => {}
            }
        }
    }

    fn is_stopped(&self) -> bool {
        *self.stopped.borrow() || self.stopped.has_changed().is_err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_is_over_stays_over() {
        let lease = SharedLease::new(Lease::begin(Duration::from_secs(5), now()));
        assert!(lease.check().is_ok());
        lease.end();
        lease.renewed(now());
        assert!(lease.check().is_err());
    }

    #[tokio::test]
    async fn a_lane_that_is_taken_away_ends_the_deadline_at_once() {
        let lease = SharedLease::new(Lease::begin(Duration::from_secs(60), now()));
        let (stop, stopped) = watch::channel(false);
        let deadline = Deadline::new(lease, stopped);
        assert!(deadline.check().is_ok());
        stop.send_replace(true);
        deadline.over().await;
        assert!(deadline.check().is_err());
    }

    #[tokio::test]
    async fn the_deadline_moves_with_each_renewal() {
        let lease = SharedLease::new(Lease::begin(Duration::from_millis(200), now()));
        let (_stop, stopped) = watch::channel(false);
        let deadline = Deadline::new(lease.clone(), stopped);
        tokio::time::sleep(Duration::from_millis(100)).await;
        lease.renewed(now());
        let began = now();
        deadline.over().await;
        assert!(now().since(began) >= Duration::from_millis(150));
    }
}
