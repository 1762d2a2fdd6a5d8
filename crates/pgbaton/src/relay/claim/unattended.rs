//! Relays that nobody runs. They keep their messages until somebody does, or an operator drops them: that must be seen.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lane::{Holdings, RelayName};
use crate::lease::BootInstant;

/// A rolling change may leave a relay without replicas for a moment.
const AFTER: Duration = Duration::from_secs(60);
/// It is said again.
const AGAIN: Duration = Duration::from_secs(3_600);

/// Since when each of them has had no replica, as this one has seen it, and when that is to be said next.
#[derive(Default)]
pub(super) struct Unattended(BTreeMap<RelayName, (BootInstant, BootInstant)>);

impl Unattended {
    /// One look at all replicas and lanes. Gives the relays of which it is time to say something, with for how long.
    pub(super) fn saw(&mut self, holdings: &Holdings, now: BootInstant) -> Vec<(RelayName, Duration)> {
        let attended = |name: &RelayName| holdings.replicas.iter().any(|replica| replica.relays.contains(name));
        let lonely =
            |name: &RelayName| holdings.lanes.iter().any(|fact| fact.grant.lane.relay == *name) && !attended(name);
        self.0.retain(|name, _| lonely(name));
        for fact in &holdings.lanes {
            let name = &fact.grant.lane.relay;
            if !self.0.contains_key(name) && lonely(name) {
                self.0.insert(name.clone(), (now, now.after(AFTER)));
            }
        }
        let mut told = Vec::new();
        for (name, (since, due)) in &mut self.0 {
            if now >= *due {
                told.push((name.clone(), now.since(*since)));
                *due = now.after(AGAIN);
            }
        }
        told
    }

    /// All of them, however short it has been.
    pub(super) fn names(&self) -> Vec<RelayName> {
        self.0.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::lane::{Epoch, Grant, Lane, LaneFact, ReplicaFact, ReplicaId};

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    #[test]
    fn it_is_said_after_a_minute_and_every_hour_until_somebody_runs_it() {
        let name = RelayName::new("old").unwrap();
        let lane = Lane { relay: name.clone(), number: 0, of: 1 };
        let lane = LaneFact { grant: Grant { lane, epoch: Epoch(1) }, owner: None, wanted: 1 };
        let mut holdings = Holdings { replicas: Vec::new(), lanes: vec![lane] };
        let mut unattended = Unattended::default();
        let mut said = |holdings: &Holdings, seconds| unattended.saw(holdings, at(seconds)).len();
        assert_eq!([said(&holdings, 1_000), said(&holdings, 1_059), said(&holdings, 1_060)], [0, 0, 1]);
        assert_eq!([said(&holdings, 1_061), said(&holdings, 4_659), said(&holdings, 4_660)], [0, 0, 1]);
        holdings.replicas.push(ReplicaFact { id: ReplicaId(Uuid::nil()), relays: vec![name] });
        assert_eq!(said(&holdings, 9_000), 0);
        holdings.replicas.clear();
        assert_eq!([said(&holdings, 9_001), said(&holdings, 9_060), said(&holdings, 9_061)], [0, 0, 1]);
        assert_eq!(unattended.names().len(), 1);
    }
}
