//! Lanes and who holds them: the unit of ownership, of order and of parallelism.
//!
//! `balance` decides which lanes this replica claims and releases. It looks only at what the database says, so every
//! replica comes to the same shares without talking to the others.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

/// A relay's name: one named flow from an outbox to a sink.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayName(Arc<str>);

impl RelayName {
    /// Takes 1 to 63 of `a-z`, `0-9`, `_` and `-`: it goes into metrics, lock names and transactional ids as it is.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let fits = (1..=63).contains(&name.len())
            && name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
        fits.then(|| Self(name.into()))
    }

    /// The name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A running process. A new one for each start, so that nobody inherits the lanes of a predecessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub Uuid);

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hash bucket of keys within a relay: lane `number` of `of`. The low bits of the hash, which the schema defines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The relay it belongs to.
    pub relay: RelayName,
    /// From 0 to `of - 1`.
    pub number: i32,
    /// How many lanes the relay has: a power of two.
    pub of: i32,
}

/// The lane of this hash: its low bits.
pub(crate) fn of_hash(hash: i64, lanes: i32) -> i32 {
    i32::try_from(hash & i64::from(lanes - 1)).unwrap_or_default()
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} of {}", self.relay, self.number, self.of)
    }
}

/// A lane's fencing number. It grows by one each time the lane changes hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One replica's right to one lane. Worth something only together with a running lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// The lane.
    pub lane: Lane,
    /// Under which epoch it was granted.
    pub epoch: Epoch,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lane {} epoch {}", self.lane, self.epoch)
    }
}

/// A replica as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaFact {
    /// Its identity.
    pub id: ReplicaId,
    /// The relays it takes lanes for. None once it is leaving.
    pub relays: Vec<RelayName>,
}

/// A lane as the database knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneFact {
    /// The lane and its current epoch.
    pub grant: Grant,
    /// Who holds it, if anybody.
    pub owner: Option<ReplicaId>,
    /// How many lanes its relay is to have. A lane of a smaller number is to be split.
    pub wanted: i32,
}

/// What one look at the database told.
#[derive(Debug, Clone, Default)]
pub struct Holdings {
    /// All replicas.
    pub replicas: Vec<ReplicaFact>,
    /// All lanes of all relays.
    pub lanes: Vec<LaneFact>,
}

/// What to do about one lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BalanceStep {
    /// Try to get this free lane.
    Claim(Grant),
    /// Give this lane back, once what is in flight has finished. One that is not running here (the answer to its claim
    /// was lost) is given back at once.
    Release(Grant),
    /// Split this lane in two, once what is in flight has finished.
    Split(Grant),
    /// I run it, and the table says it is no longer mine: stop without writing anything.
    Stop(Grant),
}

/// Compares what this replica runs with what the database says, and with its fair share.
///
/// Shares are even per relay among the replicas that run it. What does not divide evenly goes round by relay, so that
/// no replica gets the odd lane of every relay. Free lanes are dealt out in order of replica, so that replicas which
/// look at the same time seldom reach for the same lane; the claim itself decides.
#[must_use]
pub fn balance(holdings: &Holdings, me: ReplicaId, running: &[Grant]) -> Vec<(BalanceStep, &'static str)> {
    let mut steps = corrections(holdings, me, running);
    let mut relays: Vec<&RelayName> = holdings.lanes.iter().map(|fact| &fact.grant.lane.relay).collect();
    relays.sort();
    relays.dedup();
    let mut odd_lanes_before = 0;
    for relay in relays {
        let lanes: Vec<&LaneFact> = holdings.lanes.iter().filter(|fact| fact.grant.lane.relay == *relay).collect();
        let mut members: Vec<ReplicaId> =
            holdings.replicas.iter().filter(|member| member.relays.contains(relay)).map(|member| member.id).collect();
        members.sort();
        let shares = shares(lanes.len(), members.len(), odd_lanes_before);
        odd_lanes_before += lanes.len().checked_rem(members.len()).unwrap_or_default();
        steps.extend(balance_relay(&lanes, &members, &shares, me, running));
    }
    steps
}

/// Where the table and this replica disagree.
fn corrections(holdings: &Holdings, me: ReplicaId, running: &[Grant]) -> Vec<(BalanceStep, &'static str)> {
    let mine = |grant: &Grant| holdings.lanes.iter().any(|fact| fact.owner == Some(me) && fact.grant == *grant);
    let stop = running
        .iter()
        .filter(|grant| !mine(grant))
        .map(|grant| (BalanceStep::Stop(grant.clone()), "the table names another owner or epoch"));
    let disown =
        holdings.lanes.iter().filter(|fact| fact.owner == Some(me) && !running.contains(&fact.grant)).map(|fact| {
            (BalanceStep::Release(fact.grant.clone()), "held by the table alone: the answer to a claim was lost")
        });
    stop.chain(disown).collect()
}

/// How many lanes each member of a relay should hold, in order of member.
fn shares(lanes: usize, members: usize, odd_lanes_before: usize) -> Vec<usize> {
    let (Some(each), Some(odd)) = (lanes.checked_div(members), lanes.checked_rem(members)) else {
        return Vec::new();
    };
    (0..members)
        .map(|rank| {
            // Ranks odd_lanes_before .. odd_lanes_before + odd, round the ring, get one more.
            let turn = (rank + members - odd_lanes_before % members) % members;
            each + usize::from(turn < odd)
        })
        .collect()
}

fn balance_relay(
    lanes: &[&LaneFact],
    members: &[ReplicaId],
    shares: &[usize],
    me: ReplicaId,
    running: &[Grant],
) -> Vec<(BalanceStep, &'static str)> {
    let held_by = |id: ReplicaId| lanes.iter().filter(|fact| fact.owner == Some(id)).count();
    let share_of = |id: ReplicaId| {
        members.iter().position(|member| *member == id).and_then(|rank| shares.get(rank)).copied().unwrap_or_default()
    };
    let mut held: Vec<&Grant> = lanes
        .iter()
        .filter(|fact| fact.owner == Some(me) && running.contains(&fact.grant))
        .map(|fact| &fact.grant)
        .collect();
    held.sort();
    let surplus = held.len().saturating_sub(share_of(me));
    if surplus > 0 {
        let reason = if members.contains(&me) { "above the fair share" } else { "leaving" };
        return held.iter().rev().take(surplus).map(|grant| (BalanceStep::Release((*grant).clone()), reason)).collect();
    }
    let small = lanes.iter().filter(|fact| fact.grant.lane.of < fact.wanted && held.contains(&&fact.grant));
    let splits = small.map(|fact| (BalanceStep::Split(fact.grant.clone()), "the relay is to have more lanes"));
    let lacks = |id: ReplicaId| share_of(id).saturating_sub(held_by(id));
    let before_me: usize = members.iter().take_while(|member| **member != me).map(|member| lacks(*member)).sum();
    let mut free: Vec<&Grant> = lanes.iter().filter(|fact| fact.owner.is_none()).map(|fact| &fact.grant).collect();
    free.sort();
    let claims = free
        .iter()
        .skip(before_me)
        .chain(free.iter().take(before_me))
        .take(lacks(me))
        .map(|grant| (BalanceStep::Claim((*grant).clone()), "free and within the fair share"));
    splits.chain(claims).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(name: &str) -> RelayName {
        RelayName::new(name).unwrap()
    }

    fn id(n: u128) -> ReplicaId {
        ReplicaId(Uuid::from_u128(n))
    }

    fn fact(name: &str, number: i32, of: i32, owner: Option<u128>) -> LaneFact {
        let lane = Lane { relay: relay(name), number, of };
        LaneFact { grant: Grant { lane, epoch: Epoch(1) }, owner: owner.map(id), wanted: of }
    }

    fn member(n: u128, relays: &[&str]) -> ReplicaFact {
        ReplicaFact { id: id(n), relays: relays.iter().map(|name| relay(name)).collect() }
    }

    fn claims(steps: &[(BalanceStep, &str)]) -> Vec<i32> {
        steps
            .iter()
            .filter_map(|(step, _)| if let BalanceStep::Claim(grant) = step { Some(grant.lane.number) } else { None })
            .collect()
    }

    #[test]
    fn names_are_plain() {
        for bad in ["", "A", "a b", "ü", &"x".repeat(64)] {
            assert!(RelayName::new(bad).is_none(), "{bad}");
        }
        assert_eq!(relay("orders-2_b").to_string(), "orders-2_b");
    }

    #[test]
    fn replicas_that_look_at_once_reach_for_different_lanes() {
        let lanes = (0..16).map(|number| fact("a", number, 16, None)).collect();
        let holdings = Holdings { replicas: (1..=3).map(|n| member(n, &["a"])).collect(), lanes };
        let mut all: Vec<i32> = (1..=3).flat_map(|n| claims(&balance(&holdings, id(n), &[]))).collect();
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<_>>());
    }

    #[test]
    fn odd_lanes_go_round_by_relay() {
        let mut lanes = Vec::new();
        for name in ["a", "b", "c"] {
            lanes.extend((0..16).map(|number| fact(name, number, 16, None)));
        }
        let holdings = Holdings { replicas: (1..=3).map(|n| member(n, &["a", "b", "c"])).collect(), lanes };
        for n in 1..=3 {
            assert_eq!(claims(&balance(&holdings, id(n), &[])).len(), 16);
        }
    }

    #[test]
    fn a_joining_replica_makes_the_others_release() {
        let lanes: Vec<_> = (0..4).map(|number| fact("a", number, 4, Some(1))).collect();
        let running: Vec<_> = lanes.iter().map(|fact| fact.grant.clone()).collect();
        let holdings = Holdings { replicas: vec![member(1, &["a"]), member(2, &["a"])], lanes };
        let steps = balance(&holdings, id(1), &running);
        assert_eq!(steps.len(), 2);
        assert!(steps.iter().all(|(step, _)| matches!(step, BalanceStep::Release(_))));
        assert!(balance(&holdings, id(2), &[]).is_empty());
    }

    /// A lane above the share is given back as it is: its next owner splits it. A free one has to be settled first.
    #[test]
    fn a_lane_is_split_by_the_owner_who_keeps_it() {
        let mut lanes: Vec<_> = (0..4).map(|number| fact("a", number, 4, (number < 3).then_some(1))).collect();
        lanes.iter_mut().for_each(|fact| fact.wanted = 8);
        let running: Vec<_> = lanes.iter().take(3).map(|fact| fact.grant.clone()).collect();
        let alone = Holdings { replicas: vec![member(1, &["a"])], lanes: lanes.clone() };
        let steps = balance(&alone, id(1), &running);
        assert_eq!(steps.iter().filter(|(step, _)| matches!(step, BalanceStep::Split(_))).count(), 3);
        assert_eq!(claims(&steps), vec![3]);
        let shared = Holdings { replicas: vec![member(1, &["a"]), member(2, &["a"])], lanes };
        let steps = balance(&shared, id(1), &running);
        assert!(matches!(steps.as_slice(), [(BalanceStep::Release(_), _)]));
    }

    #[test]
    fn a_leaving_replica_releases_everything() {
        let lanes: Vec<_> = (0..4).map(|number| fact("a", number, 4, Some(1))).collect();
        let running: Vec<_> = lanes.iter().map(|fact| fact.grant.clone()).collect();
        let holdings = Holdings { replicas: vec![member(1, &[]), member(2, &["a"])], lanes };
        assert_eq!(balance(&holdings, id(1), &running).len(), 4);
    }

    #[test]
    fn disagreement_with_the_table_is_settled_first() {
        let holdings = Holdings {
            replicas: vec![member(1, &["a"])],
            lanes: vec![fact("a", 0, 2, Some(1)), fact("a", 1, 2, Some(2))],
        };
        let ran = Grant { lane: Lane { relay: relay("a"), number: 1, of: 2 }, epoch: Epoch(1) };
        let steps = balance(&holdings, id(1), std::slice::from_ref(&ran));
        assert_eq!(steps[0].0, BalanceStep::Stop(ran));
        assert!(matches!(steps[1].0, BalanceStep::Release(_)));
    }
}
