//! Who had which lane, from when until when, over splits and epochs.

use std::collections::HashMap;

use crate::facts::{Ended, Facts, GrantNo, Line, Publish, ReplicaNo, at};
use crate::history::{Grant, Nanos};

/// One replica's ownership of one grant.
#[derive(Debug, Clone, Copy)]
pub struct Ownership {
    /// Whose.
    pub replica: ReplicaNo,
    /// Of what.
    pub grant: GrantNo,
    /// When the statement that took it was sent: it cannot have begun earlier.
    pub from: Nanos,
    /// When it was given back, stopped, or left with the replica; the end of time if none of them is told.
    pub stopped: Nanos,
    /// How it ended, if that is told.
    pub how: Option<Ended>,
    /// The last moment of the replica's lease: whatever is not told, it ends there.
    pub lease: Nanos,
    /// Where its beginning is told.
    pub line: Line,
    /// Where its end is told: the ending, or the last renewal.
    pub ended_line: Option<Line>,
}

impl Ownership {
    /// The first moment at which another replica may take the lane.
    #[must_use]
    pub fn to(&self) -> Nanos {
        self.stopped.min(self.lease)
    }
}

/// When, told where, and how.
type End = (Nanos, Line, Ended);

/// All ownerships, in the order in which they began.
#[must_use]
pub fn ownerships(facts: &Facts) -> Vec<Ownership> {
    let mut endings: HashMap<(ReplicaNo, GrantNo), Vec<End>> = HashMap::new();
    for ending in &facts.endings {
        endings.entry((ending.replica, ending.grant)).or_default().push((ending.t, ending.line, ending.how));
    }
    let mut all: Vec<Ownership> = facts
        .claims
        .iter()
        .map(|claim| {
            let replica = at(&facts.replicas, claim.replica);
            let lease = replica.and_then(|replica| replica.leases.iter().max_by_key(|lease| lease.until));
            let left = replica.and_then(|replica| replica.left).map(|(t, line)| (t, line, Ended::Left));
            let ended = endings.get(&(claim.replica, claim.grant)).into_iter().flatten().copied();
            let stopped = ended.chain(left).filter(|(t, ..)| *t >= claim.sent).min();
            let lease_end = lease.map_or(0, |lease| lease.until);
            let ended_line = match stopped {
                Some((t, line, _)) if t <= lease_end => Some(line),
                _ => lease.map(|lease| lease.line),
            };
            Ownership {
                replica: claim.replica,
                grant: claim.grant,
                from: claim.sent,
                stopped: stopped.map_or(Nanos::MAX, |(t, ..)| t),
                how: stopped.map(|(.., how)| how),
                lease: lease_end,
                line: claim.line,
                ended_line,
            }
        })
        .collect();
    all.sort_by_key(|ownership| (ownership.from, ownership.line));
    all
}

/// A lane by relay, number, and of how many.
pub type Lane<'a> = (&'a str, u32, u32);

/// A grant's lane.
#[must_use]
pub fn lane(grant: &Grant) -> Lane<'_> {
    (&grant.relay, grant.lane, grant.of)
}

/// A lane, and those that it may have been split from.
pub fn ancestors((relay, lane, of): Lane<'_>) -> impl Iterator<Item = Lane<'_>> {
    let halved = std::iter::successors(Some(of), |of| (of % 2 == 0 && *of > 0).then_some(of / 2));
    halved.map(move |of| (relay, lane % of.max(1), of))
}

/// Timeline and epoch of a publish: what is less than another owner's was sent by a former owner, late.
#[must_use]
pub fn stint(facts: &Facts, publish: &Publish) -> (u32, i64) {
    (publish.timeline, at(&facts.grants, publish.grant).map_or(0, |grant| grant.epoch))
}

/// Whether two lanes have a message in common: they are the same, or one was split from the other.
#[must_use]
pub fn related(a: &Grant, b: &Grant) -> bool {
    let few = a.of.min(b.of).max(1);
    a.relay == b.relay && a.lane % few == b.lane % few
}

/// The finest lanes that a relay ever had, and which of them a lane is made of.
#[derive(Debug)]
pub struct Finest<'a> {
    facts: &'a Facts,
    most: HashMap<&'a str, u32>,
}

impl<'a> Finest<'a> {
    /// Looks how far lanes were split.
    #[must_use]
    pub fn new(facts: &'a Facts) -> Self {
        let mut most: HashMap<&str, u32> = HashMap::new();
        for grant in &facts.grants {
            let known = most.entry(&grant.relay).or_default();
            *known = (*known).max(grant.of);
        }
        Self { facts, most }
    }

    /// The finest lanes of a grant's lane.
    pub fn of(&self, grant: GrantNo) -> impl Iterator<Item = (&'a str, u32)> + use<'a> {
        let grant = at(&self.facts.grants, grant);
        let most = grant.and_then(|grant| self.most.get(grant.relay.as_str())).copied().unwrap_or_default();
        grant.into_iter().flat_map(move |grant| {
            let step = usize::try_from(grant.of.max(1)).unwrap_or(usize::MAX);
            (grant.lane..most.max(grant.lane + 1)).step_by(step).map(|lane| (grant.relay.as_str(), lane))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, grant};

    #[test]
    fn halves_are_related_to_what_they_were_split_from() {
        assert!(related(&grant(1, 4, 1), &grant(5, 8, 2)));
        assert!(related(&grant(5, 8, 2), &grant(1, 4, 1)));
        assert!(!related(&grant(1, 8, 1), &grant(5, 8, 2)));
        assert!(!related(&grant(1, 4, 1), &grant(6, 8, 2)));
    }

    #[test]
    fn a_lane_is_made_of_the_finest_lanes() {
        let facts = Story::default().claimed(10, "r1", &[grant(1, 4, 1)]).claimed(20, "r1", &[grant(5, 8, 2)]).facts();
        let finest = Finest::new(&facts);
        assert_eq!(finest.of(0).map(|(_, lane)| lane).collect::<Vec<_>>(), [1, 5]);
        assert_eq!(finest.of(1).map(|(_, lane)| lane).collect::<Vec<_>>(), [5]);
    }

    #[test]
    fn an_ownership_ends_with_the_lane_or_with_the_lease() {
        let facts = Story::default()
            .joined(1, "r1", 100)
            .claimed(10, "r1", &[grant(0, 2, 1), grant(1, 2, 1)])
            .renewed(20, "r1", 120)
            .released(30, "r1", &[grant(0, 2, 1)])
            .facts();
        let all = ownerships(&facts);
        assert_eq!(all.iter().map(Ownership::to).collect::<Vec<_>>(), [30, 120]);
        assert_eq!(all.iter().map(|ownership| ownership.how).collect::<Vec<_>>(), [Some(Ended::Settled), None]);
    }
}
