//! How long to wait before trying again, and what becomes of a message that fails. Pure.

use std::time::Duration;

use crate::outcome::Meaning;

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
        let wait = after(self.failures, self.first, self.cap, jitter);
        self.failures = (self.failures + 1).min(31);
        wait
    }

    /// It went well: the next failure starts from the beginning.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

fn after(failures: u32, first: Duration, cap: Duration, jitter: f64) -> Duration {
    let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
    first.saturating_mul(factor).min(cap).mul_f64(0.5 + 0.5 * jitter.clamp(0.0, 1.0))
}

/// How often, and for how long, a message is tried that the sink does not take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// With so many attempts it is dead. At least 1.
    pub attempts: u32,
    /// About so long after the first attempt comes the second one; then twice as long each time.
    pub first: Duration,
    /// But no longer than this.
    pub cap: Duration,
    /// One that fails so long after its first attempt is dead, however few there were.
    pub age: Duration,
    /// What becomes of the key of a dead message.
    pub when_dead: WhenDead,
    /// A dead message of the outbox is copied there under this topic, in the transaction in which it dies.
    pub dead_topic: Option<String>,
    /// Dead messages of the outbox that their keys go past are deleted so long after they died.
    pub dead_keep: Option<Duration>,
}

/// What becomes of the key of a dead message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenDead {
    /// Later messages of its key wait for a person.
    #[default]
    Hold,
    /// They go past it.
    Skip,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts: 10,
            first: Duration::from_secs(1),
            cap: Duration::from_secs(600),
            age: Duration::from_secs(86_400),
            when_dead: WhenDead::default(),
            dead_topic: None,
            dead_keep: None,
        }
    }
}

/// A message that was tried and not taken.
#[derive(Debug, Clone, Copy)]
pub struct Refused {
    /// What the sink's code says.
    pub meaning: Meaning,
    /// The sink asked to be left alone for so long.
    pub asked: Option<Duration>,
    /// Attempts that had counted before this one.
    pub attempts: u32,
    /// Since the first of these.
    pub since: Duration,
    /// It had been set aside before.
    pub was_aside: bool,
    /// A call to the same sink that began after this one had failed has delivered something.
    pub proven: bool,
    /// There is nothing else that could be tried instead.
    pub alone: bool,
}

/// What becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// It may as well be the sink: it stays in its lane's hands.
    Wait,
    /// It is set aside.
    Aside {
        /// Whether this was an attempt.
        counts: bool,
        /// Until the next one; `None`: it is dead.
        after: Option<Duration>,
    },
}

impl Policy {
    /// Whether a failure counts against its message, and what comes next. `jitter` as for [`Backoff::next`].
    ///
    /// A message is blamed where the sink said no to it for good, or where something else went through after it had failed. What
    /// was set aside before never waits in its lane's hands.
    #[must_use]
    pub fn judge(&self, refused: &Refused, jitter: f64) -> Judgement {
        let Refused { meaning, asked, attempts, since, was_aside, proven, alone } = *refused;
        let counts = match meaning {
            Meaning::Reject => return Judgement::Aside { counts: true, after: None },
            Meaning::Retry => proven || alone,
            Meaning::Silent => proven,
            Meaning::Busy | Meaning::Down => false,
        };
        if !counts && !was_aside {
            return Judgement::Wait;
        }
        let attempts = attempts + u32::from(counts);
        if counts && (attempts >= self.attempts || since >= self.age) {
            return Judgement::Aside { counts, after: None };
        }
        let wait = after(attempts.saturating_sub(1), self.first, self.cap, jitter);
        Judgement::Aside { counts, after: Some(wait.max(asked.unwrap_or_default())) }
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

    const FRESH: Refused = Refused {
        meaning: Meaning::Retry,
        asked: None,
        attempts: 0,
        since: Duration::ZERO,
        was_aside: false,
        proven: false,
        alone: false,
    };

    fn judged(refused: Refused) -> Judgement {
        Policy::default().judge(&refused, 1.0)
    }

    fn again(counts: bool, seconds: u64) -> Judgement {
        Judgement::Aside { counts, after: Some(Duration::from_secs(seconds)) }
    }

    #[test]
    fn a_message_is_blamed_only_where_something_else_went_through() {
        use Meaning::{Busy, Down, Retry, Silent};
        for (meaning, proven, alone, counts) in [
            (Retry, false, false, false),
            (Retry, true, false, true),
            (Retry, false, true, true),
            (Silent, false, true, false),
            (Silent, true, false, true),
            (Busy, true, true, false),
            (Down, true, true, false),
        ] {
            let fresh = Refused { meaning, proven, alone, ..FRESH };
            assert_eq!(judged(fresh), if counts { again(true, 1) } else { Judgement::Wait }, "{fresh:?}");
            // One that was set aside before never stays in its lane's hands.
            let again_tried = Refused { attempts: 2, was_aside: true, ..fresh };
            assert_eq!(judged(again_tried), if counts { again(true, 4) } else { again(false, 2) }, "{again_tried:?}");
        }
    }

    #[test]
    fn a_message_dies_of_a_rejection_of_its_attempts_and_of_its_age() {
        const DEAD: Judgement = Judgement::Aside { counts: true, after: None };
        assert_eq!(judged(Refused { meaning: Meaning::Reject, ..FRESH }), DEAD);
        let proven = Refused { proven: true, was_aside: true, attempts: 8, ..FRESH };
        assert_eq!(judged(proven), again(true, 256));
        assert_eq!(judged(Refused { attempts: 9, ..proven }), DEAD);
        let old = Refused { since: Duration::from_secs(86_400), attempts: 1, ..proven };
        assert_eq!(judged(old), DEAD);
        // Nobody dies while the sink may be down.
        assert_eq!(judged(Refused { proven: false, ..old }), again(false, 1));
        assert_eq!(judged(Refused { proven: false, attempts: 99, ..old }), again(false, 600));
    }

    #[test]
    fn a_sink_that_asks_for_patience_gets_it() {
        let asked = Some(Duration::from_secs(1_800));
        assert_eq!(judged(Refused { asked, proven: true, ..FRESH }), again(true, 1_800));
    }
}
