//! How long to wait before trying again.

use std::time::Duration;

/// Exponential back-off with a cap and jitter. Never overflows; a success resets it.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    failures: u32,
}

impl Backoff {
    /// Waits about `first`, then twice as long each time, never longer than `cap`.
    #[must_use]
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, failures: 0 }
    }

    /// The next wait. `jitter` is drawn by the caller from 0 to 1 and spreads waits over the upper half of the range,
    /// so that replicas do not come back in step.
    pub fn next(&mut self, jitter: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.failures = (self.failures + 1).min(31);
        let full = self.first.saturating_mul(factor).min(self.cap);
        full.mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
    }

    /// It went well: the next failure starts from the beginning.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_start_again_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let waits: Vec<_> = (0..6).map(|_| backoff.next(1.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1_000, 1_000]);
        backoff.reset();
        assert_eq!(backoff.next(0.0), Duration::from_millis(50));
    }

    #[test]
    fn a_thousand_failures_do_not_overflow() {
        let mut backoff = Backoff::new(Duration::from_secs(3_600), Duration::from_secs(7_200));
        for _ in 0..1_000 {
            assert!(backoff.next(0.5) <= Duration::from_secs(7_200));
        }
    }
}
