//! Owners of the lanes held here that died one after the other. Pure.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::lane::Grant;
use crate::lease::BootInstant;

/// Who has held a lane for so long did not die of what is in it.
const LONG: Duration = Duration::from_secs(60);

/// Of each lane that was taken over after a death.
#[derive(Default)]
pub(super) struct Deaths(HashMap<Grant, After>);

struct After {
    deaths: Arc<AtomicU32>,
    since: BootInstant,
}

impl Deaths {
    /// These lanes were claimed, each after so many deaths.
    pub(super) fn of_claims(&mut self, claims: Vec<(Grant, u32)>, now: BootInstant) -> Vec<Grant> {
        let died = claims.iter().filter(|(_, deaths)| *deaths > 0);
        let after = |deaths| After { deaths: Arc::new(AtomicU32::new(deaths)), since: now };
        self.0.extend(died.map(|(grant, deaths)| (grant.clone(), after(*deaths))));
        claims.into_iter().map(|(grant, _)| grant).collect()
    }

    /// What the lane's task is told, and changes once it has done something about it.
    pub(super) fn of(&self, grant: &Grant) -> Arc<AtomicU32> {
        self.0.get(grant).map(|after| Arc::clone(&after.deaths)).unwrap_or_default()
    }

    /// The lane's epoch has grown in the same hands.
    pub(super) fn raised(&mut self, from: &Grant, to: &Grant) {
        if let Some(after) = self.0.remove(from) {
            self.0.insert(to.clone(), after);
        }
    }

    /// Lanes that were held for long enough.
    pub(super) fn survived(&self, now: BootInstant) -> Vec<Grant> {
        let long = |after: &After| now.since(after.since) >= LONG;
        self.0.iter().filter(|(_, after)| long(after)).map(|(grant, _)| grant.clone()).collect()
    }

    /// What those before died of is not in these.
    pub(super) fn forget(&mut self, survived: &[Grant]) {
        for grant in survived {
            if let Some(after) = self.0.remove(grant) {
                after.deaths.store(0, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn keep(&mut self, which: impl Fn(&Grant) -> bool) {
        self.0.retain(|grant, _| which(grant));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Epoch, Lane, RelayName};

    fn grant(number: i32, epoch: i64) -> Grant {
        Grant { lane: Lane { relay: RelayName::new("orders").unwrap(), number, of: 4 }, epoch: Epoch(epoch) }
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn a_death_counts_until_the_lane_was_held_for_a_minute() {
        let mut deaths = Deaths::default();
        let claimed = deaths.of_claims(vec![(grant(1, 7), 2), (grant(2, 7), 0)], at(100));
        assert_eq!(claimed, [grant(1, 7), grant(2, 7)]);
        let known = |deaths: &Deaths, grant| deaths.of(&grant).load(Ordering::Relaxed);
        assert_eq!((known(&deaths, grant(1, 7)), known(&deaths, grant(2, 7))), (2, 0));
        deaths.raised(&grant(1, 7), &grant(1, 9));
        assert_eq!((known(&deaths, grant(1, 7)), known(&deaths, grant(1, 9))), (0, 2));
        assert_eq!(deaths.survived(at(159)), []);
        assert_eq!(deaths.survived(at(160)), [grant(1, 9)]);
        let told = deaths.of(&grant(1, 9));
        deaths.forget(&[grant(1, 9)]);
        assert_eq!((deaths.survived(at(999)), told.load(Ordering::Relaxed)), (vec![], 0));
    }
}
