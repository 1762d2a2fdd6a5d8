//! How long a read is waited for: not much longer than anything else at first, so that a connection that has fallen silent
//! is given up soon, and twice as long each time that this was not enough, so that a slow server gets its answer through.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest. A message of 256 MiB, fetched alone, takes its time.
pub(super) const MOST: Duration = Duration::from_secs(30);

/// What the next read is given.
pub(super) struct Patience {
    least: Duration,
    millis: AtomicU64,
}

impl Patience {
    pub(super) fn new(least: Duration) -> Self {
        Self { least, millis: AtomicU64::new(millis(least)) }
    }

    pub(super) fn now(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    /// The longest there is, for what is known to be large.
    pub(super) fn most(&self) -> Duration {
        MOST.max(self.least)
    }

    /// A read took so long, and was answered or not. A server that was slow keeps what it needed until it is quick again.
    pub(super) fn follow(&self, took: Duration, answered: bool) {
        let now = self.now();
        // The server may have ended it first, by the same limit.
        let next = match answered {
            true if took <= self.least => self.least,
            false if took >= now * 3 / 4 => (now * 2).min(self.most()),
            _ => return,
        };
        self.millis.store(millis(next), Ordering::Relaxed);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_makes_patient_and_quick_answers_impatient_again() {
        let patience = Patience::new(Duration::from_secs(1));
        patience.follow(Duration::from_millis(10), false); // refused at once: says nothing
        assert_eq!(patience.now(), Duration::from_secs(1));
        for wanted in [2, 4, 8, 16, 30, 30] {
            patience.follow(patience.now(), false);
            assert_eq!(patience.now(), Duration::from_secs(wanted));
        }
        patience.follow(Duration::from_secs(20), true);
        assert_eq!(patience.now(), Duration::from_secs(30), "it needs that");
        patience.follow(Duration::from_millis(10), true);
        assert_eq!(patience.now(), Duration::from_secs(1));
    }

    #[test]
    fn a_lease_may_be_long() {
        let patience = Patience::new(Duration::from_secs(100));
        patience.follow(patience.now(), false);
        assert_eq!(patience.now(), Duration::from_secs(100));
    }
}
