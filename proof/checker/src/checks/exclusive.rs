//! exclusive: at most one replica has a lane.
//!
//! An epoch of a lane has one owner, until an asynchronous fail-over. Ownerships of a lane, and of what it was split from or
//! into, do not overlap: the statement that takes it is sent no earlier than the owner before gave it back, stopped it or left,
//! or its lease ended, whichever came first. A killed owner has its lane until the end of its last lease. A replica publishes
//! only under a grant that it holds from the call's beginning to its last write, one call at a time, and gives back no lane with
//! a call under way; and no position is written under an epoch, and nothing is sent, once the next owner was told that it has the
//! lane, on the same timeline.

use std::collections::{HashMap, HashSet};

use super::TOLD_WITHIN;
use crate::case::{Case, lines_of_call};
use crate::covered::may_have_arrived;
use crate::facts::{Ack, Claim, Ended, Facts, GrantNo, Line, Publish, ReplicaNo, at};
use crate::found::{About, Check, Found};
use crate::history::Nanos;
use crate::lanes::{Finest, Ownership};
use crate::table::{duration, lane};

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    found.counts.claims = facts.claims.len() as u64;
    found.counts.replicas = facts.replicas.iter().filter(|replica| replica.pid.is_some()).count() as u64;
    one_owner_of_an_epoch(case, found);
    no_overlap(case, found);
    publishes_under_a_grant(case, found);
    one_call_at_a_time(case, found);
    deeds_of_the_owner(case, found);
}

fn one_owner_of_an_epoch(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let mut owners: HashMap<(&str, u32, i64, u32), (ReplicaNo, u32)> = HashMap::new();
    let mut split: HashSet<(&str, u32)> = HashSet::new();
    let mut fewest: HashMap<&str, u32> = HashMap::new();
    for claim in &facts.claims {
        let Some(grant) = at(&facts.grants, claim.grant) else { continue };
        let few = fewest.entry(&grant.relay).or_insert(grant.of);
        *few = (*few).min(grant.of);
        if grant.lane >= *few {
            split.insert((&grant.relay, grant.lane));
        }
        let key = (grant.relay.as_str(), grant.lane, grant.epoch, facts.unbroken_since(claim.timeline));
        let (owner, line) = *owners.entry(key).or_insert((claim.replica, claim.line));
        if owner != claim.replica {
            found.violation(facts, Check::Exclusive, || {
                let (lane, about) = case.lane(claim.grant);
                let text = format!("Two replicas were given lane {lane} under epoch {}", grant.epoch);
                (text, vec![line, claim.line], about)
            });
        }
    }
    found.counts.split_lanes = split.len() as u64;
}

fn no_overlap(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let mut first_publish: HashMap<(ReplicaNo, u32), Nanos> = HashMap::new();
    for publish in &facts.publishes {
        let first = first_publish.entry((publish.replica, publish.grant)).or_insert(publish.t);
        *first = (*first).min(publish.t);
    }
    let finest = Finest::new(facts);
    let mut holders: HashMap<(&str, u32), &Ownership> = HashMap::new();
    let mut accused: HashSet<(u32, u32)> = HashSet::new();
    // In the order in which they began.
    for next in &case.ownerships {
        for place in finest.of(next.grant) {
            let Some(holder) = holders.get(&place).copied() else {
                holders.insert(place, next);
                continue;
            };
            if holder.replica != next.replica && next.from < holder.to() {
                if accused.insert((holder.line, next.line)) {
                    found.violation(facts, Check::Exclusive, || overlap(case, holder, next));
                }
            } else if let Some(unowned) = next.from.checked_sub(holder.to()) {
                let counts = &mut found.counts;
                counts.longest_unowned_ms = counts.longest_unowned_ms.max(unowned / 1_000_000);
                let took = first_publish.get(&(next.replica, next.grant)).and_then(|t| t.checked_sub(holder.to()));
                counts.longest_take_over_ms = counts.longest_take_over_ms.max(took.unwrap_or_default() / 1_000_000);
            }
            if next.to() >= holder.to() || next.replica == holder.replica {
                holders.insert(place, next);
            }
        }
    }
}

fn overlap(case: &Case, holder: &Ownership, next: &Ownership) -> (String, Vec<u32>, About) {
    let facts = &case.facts;
    let (Some(old), Some(new)) = (at(&facts.grants, holder.grant), at(&facts.grants, next.grant)) else {
        return Default::default();
    };
    let text = format!(
        "Lane {} under epoch {} was taken {} before lane {} under epoch {} had ended",
        lane(new),
        new.epoch,
        duration(holder.to() - next.from),
        lane(old),
        old.epoch
    );
    let mut lines = vec![holder.line, next.line];
    lines.extend(holder.ended_line);
    (text, lines, case.lane(next.grant).1)
}

fn publishes_under_a_grant(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let mut owned: HashMap<(ReplicaNo, u32), Vec<&Ownership>> = HashMap::new();
    for ownership in &case.ownerships {
        owned.entry((ownership.replica, ownership.grant)).or_default().push(ownership);
    }
    for publish in &facts.publishes {
        found.counts.batches += 1;
        found.counts.published += u64::from(publish.len);
        let of_it = owned.get(&(publish.replica, publish.grant)).map_or(&[][..], Vec::as_slice);
        if of_it.iter().any(|ownership| holds(ownership, publish)) {
            continue;
        }
        found.violation(facts, Check::Exclusive, || {
            let (lane, about) = case.lane(publish.grant);
            let replica = at(&facts.replicas, publish.replica).map_or("", |replica| &replica.name);
            let mut lines = lines_of_call(publish);
            let what = match of_it.last() {
                Some(ownership) => {
                    lines.extend(publish.writing.map(|(_, line)| line));
                    lines.push(ownership.line);
                    lines.extend(ownership.ended_line);
                    "no longer holds"
                }
                None => "never took",
            };
            let text = format!("Replica {replica} published batch {} of lane {lane}, which it {what}", publish.batch);
            (text, lines, about)
        });
    }
}

/// Whether a publish was begun and written within an ownership, leases aside: those have a check of their own. A lane is given
/// back only when its last call is over. One that is stopped from outside learns of it a moment later: what it begins meanwhile
/// is cut before anything is sent.
fn holds(ownership: &Ownership, publish: &Publish) -> bool {
    let given_back = matches!(ownership.how, Some(Ended::Settled | Ended::Unsettled));
    let slack = if given_back || may_have_arrived(publish) { 0 } else { TOLD_WITHIN };
    let answered = publish.answered.map_or(Nanos::MAX, |(t, _)| t);
    let last = if given_back { publish.wrote().max(answered) } else { publish.wrote() };
    ownership.from <= publish.t && last <= ownership.stopped.saturating_add(slack)
}

fn one_call_at_a_time(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    for (last, next) in &facts.overlapping {
        let (Some(last), Some(next)) = (at(&facts.publishes, *last), at(&facts.publishes, *next)) else { continue };
        found.violation(facts, Check::Exclusive, || {
            let (lane, about) = case.lane(next.grant);
            let text = format!("Batch {} of lane {lane} was published before the call before it was over", next.batch);
            let lines = [last.line].into_iter().chain(lines_of_call(next)).collect();
            (text, lines, about)
        });
    }
}

/// Something that only the owner may do.
struct Deed {
    what: &'static str,
    grant: GrantNo,
    timeline: u32,
    /// When it was begun; of several writes, the last one.
    t: Nanos,
    line: Line,
}

fn deeds(facts: &Facts) -> Vec<Deed> {
    let position = |ack: &Ack| {
        let Ack { grant, timeline, sent, line, .. } = *ack;
        Deed { what: "A position", grant, timeline, t: sent, line }
    };
    let publish = |publish: &Publish| {
        let Publish { grant, timeline, line, writing, .. } = *publish;
        let line = writing.map_or(line, |(_, line)| line);
        Deed { what: "A batch", grant, timeline, t: publish.wrote(), line }
    };
    let publishes = facts.publishes.iter().filter(|publish| may_have_arrived(publish)).map(publish);
    let mut deeds: Vec<Deed> = facts.acks.iter().map(position).chain(publishes).collect();
    deeds.sort_by_key(|deed| (deed.t, deed.line));
    deeds
}

fn deeds_of_the_owner(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let finest = Finest::new(facts);
    let mut claims: Vec<&Claim> = facts.claims.iter().collect();
    claims.sort_by_key(|claim| (facts.time(claim.line), claim.line));
    let mut claims = claims.into_iter().peekable();
    let mut newest: HashMap<(&str, u32), &Claim> = HashMap::new();
    let epoch = |grant| at(&facts.grants, grant).map_or(0, |grant| grant.epoch);
    for deed in deeds(facts) {
        while let Some(claim) = claims.next_if(|claim| facts.time(claim.line) <= deed.t) {
            for place in finest.of(claim.grant) {
                let known = newest.entry(place).or_insert(claim);
                if (claim.timeline, epoch(claim.grant)) >= (known.timeline, epoch(known.grant)) {
                    *known = claim;
                }
            }
        }
        let is_newer = |claim: &&Claim| claim.timeline == deed.timeline && epoch(claim.grant) > epoch(deed.grant);
        let Some(newer) = finest.of(deed.grant).filter_map(|place| newest.get(&place).copied()).find(is_newer) else {
            continue;
        };
        found.violation(facts, Check::Exclusive, || {
            let (lane, about) = case.lane(deed.grant);
            let text = format!(
                "{} of lane {lane} was written under epoch {}, after epoch {} had begun",
                deed.what,
                epoch(deed.grant),
                epoch(newer.grant)
            );
            (text, vec![newer.line, deed.line], about)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Event, Grant};
    use crate::story::{SECOND, Story, grant};

    fn two() -> Story {
        Story::run(false).joined(1, "r1", 5 * SECOND).joined(2, "r2", 60 * SECOND)
    }

    fn one(lane: u32, of: u32, epoch: i64) -> [Grant; 1] {
        [grant(lane, of, epoch)]
    }

    #[test]
    fn a_lane_is_taken_after_it_was_given_back_or_its_lease_ended() {
        let story = || two().claimed(10, "r1", &one(0, 2, 1));
        let after_lease = story().claimed(5 * SECOND, "r2", &one(0, 2, 2)).judged(check);
        assert_eq!(after_lease.of(Check::Exclusive), 0);
        let within = story().claimed(5 * SECOND - 1, "r2", &one(0, 2, 2)).judged(check);
        assert_eq!(within.of(Check::Exclusive), 1);
        assert_eq!(within.listed[0].lines, [1, 3, 4]);
        let given_back = story().released(20, "r1", &one(0, 2, 1)).claimed(21, "r2", &one(0, 2, 2));
        assert_eq!(given_back.judged(check).of(Check::Exclusive), 0);
        let left = story().left(20, "r1").claimed(21, "r2", &one(0, 2, 2));
        assert_eq!(left.judged(check).of(Check::Exclusive), 0);
        let other_lane = story().claimed(11, "r2", &one(1, 2, 1)).judged(check);
        assert_eq!(other_lane.of(Check::Exclusive), 0);
    }

    #[test]
    fn a_renewed_lease_keeps_the_lane() {
        let story = two().claimed(10, "r1", &one(0, 2, 1)).renewed(3 * SECOND, "r1", 8 * SECOND);
        assert_eq!(story.claimed(6 * SECOND, "r2", &one(0, 2, 2)).judged(check).of(Check::Exclusive), 1);
    }

    #[test]
    fn halves_do_not_overlap_with_the_whole() {
        let story = || two().claimed(10, "r1", &one(1, 2, 1));
        assert_eq!(story().claimed(20, "r2", &one(3, 4, 2)).judged(check).of(Check::Exclusive), 1);
        let split = story().released(15, "r1", &one(1, 2, 1)).claimed(20, "r2", &[grant(3, 4, 2), grant(1, 4, 2)]);
        let split = split.judged(check);
        assert_eq!((split.of(Check::Exclusive), split.counts.split_lanes), (0, 1));
    }

    #[test]
    fn an_epoch_has_one_owner_on_a_timeline() {
        let story = || two().claimed(10, "r1", &one(0, 1, 1)).dropped(20, "r1", &one(0, 1, 1));
        assert_eq!(story().claimed(30, "r2", &one(0, 1, 1)).judged(check).of(Check::Exclusive), 1);
        for (synchronous, expected) in [(true, 1), (false, 0)] {
            let failed_over = story().failed_over(22, 24, 2, synchronous).on(2);
            assert_eq!(failed_over.claimed(30, "r2", &one(0, 1, 1)).violations(check, Check::Exclusive), expected);
        }
    }

    #[test]
    fn a_raised_epoch_stays_with_its_owner() {
        let [from, to] = [grant(0, 1, 1), grant(0, 1, 5)];
        let raised = Event::Raised { replica: "r1".into(), sent: 20, timeline: 1, from: from.clone(), to: to.clone() };
        let story = two().claimed(10, "r1", &[from]).at(21, raised).published(30, "r1", &to, 1, &["a"], "d").claimed(
            40,
            "r2",
            &one(0, 1, 6),
        );
        let found = story.judged(check);
        assert_eq!(found.of(Check::Exclusive), 1);
        assert!(found.listed[0].text.contains("under epoch 5 had ended"));
    }

    #[test]
    fn nothing_is_published_without_the_lane() {
        let g = grant(0, 1, 1);
        let held = || two().claimed(10, "r1", std::slice::from_ref(&g));
        assert_eq!(held().published(20, "r1", &g, 1, &["a"], "d").judged(check).of(Check::Exclusive), 0);
        assert_eq!(held().published(20, "r2", &g, 1, &["a"], "d").judged(check).of(Check::Exclusive), 1);
        let released = held().released(20, "r1", std::slice::from_ref(&g));
        assert_eq!(released.published(21, "r1", &g, 1, &["a"], "cut").judged(check).of(Check::Exclusive), 1);
        for (answer, expected) in [("cut", 0), ("d", 1)] {
            let dropped = held().dropped(20, "r1", std::slice::from_ref(&g));
            assert_eq!(dropped.published(21, "r1", &g, 1, &["a"], answer).judged(check).of(Check::Exclusive), expected);
        }
    }

    /// It writes in pieces, the last of them when the lane is not its own any more.
    #[test]
    fn nothing_is_written_without_the_lane_by_a_call_that_was_begun_with_it() {
        let g = grant(0, 1, 1);
        let call = |wrote| {
            let story = two().claimed(10, "r1", std::slice::from_ref(&g)).publish(20, "r1", &g, 1, &["a", "b"]);
            story.writing(21, "r1", &g).writing(wrote, "r1", &g)
        };
        for (wrote, answered, expected) in [(25, 29, 0), (30, 29, 0), (31, 29, 1), (25, 31, 1)] {
            let story = call(wrote).released(30, "r1", std::slice::from_ref(&g)).answered(answered, "r1", &g, 1, "dd");
            assert_eq!(story.violations(check, Check::Exclusive), expected, "{wrote} {answered}");
        }
        // Nobody told that it lost the lane, and its lease lasts: the claim is a violation, too.
        for (wrote, expected) in [(49, 1), (50, 2)] {
            let story = call(wrote).answered(60, "r1", &g, 1, "dd").claimed(50, "r2", &one(0, 1, 2));
            assert_eq!(story.violations(check, Check::Exclusive), expected, "{wrote}");
        }
    }

    #[test]
    fn a_lane_has_one_call_at_a_time() {
        let g = grant(0, 1, 1);
        let story = || two().claimed(10, "r1", std::slice::from_ref(&g)).publish(20, "r1", &g, 1, &["a"]);
        let good = story().answered(21, "r1", &g, 1, "d").publish(22, "r1", &g, 2, &["b"]);
        assert_eq!(good.judged(check).of(Check::Exclusive), 0);
        assert_eq!(story().publish(22, "r1", &g, 2, &["b"]).judged(check).of(Check::Exclusive), 1);
    }

    #[test]
    fn who_lost_a_lane_writes_no_position() {
        let story = || {
            two().claimed(10, "r1", &one(1, 2, 1)).left(20, "r1").claimed(30, "r2", &[grant(3, 4, 3), grant(1, 4, 3)])
        };
        // A position that was sent at 30.
        assert_eq!(story().acknowledged(31, "r1", &grant(1, 2, 1), 5).judged(check).of(Check::Exclusive), 1);
        assert_eq!(story().acknowledged(30, "r1", &grant(1, 2, 1), 5).judged(check).of(Check::Exclusive), 0);
        assert_eq!(story().acknowledged(31, "r2", &grant(1, 4, 3), 5).judged(check).of(Check::Exclusive), 0);
        // The claim was lost in a fail-over, and the lane is still the first one's.
        let lost = story().failed_over(40, 50, 2, false).on(2).acknowledged(60, "r1", &grant(1, 2, 1), 5);
        assert_eq!(lost.judged(check).of(Check::Exclusive), 0);
    }

    #[test]
    fn who_lost_a_lane_sends_nothing() {
        /// The claim is a violation, too.
        const WITHIN_THE_LEASE: u64 = 1;
        let g = grant(1, 2, 1);
        let story = || {
            // Nobody told that it lost the lane.
            let story = Story::run(false).joined(1, "r1", 60 * SECOND).claimed(10, "r1", &one(1, 2, 1));
            story.claimed(5 * SECOND, "r2", &one(3, 4, 3))
        };
        let beyond = |story: Story| story.violations(check, Check::Exclusive) - WITHIN_THE_LEASE;
        assert_eq!(beyond(story().published(5 * SECOND, "r1", &g, 1, &["a"], "d")), 1);
        assert_eq!(beyond(story().published(5 * SECOND, "r1", &g, 1, &["a"], "cut")), 0);
        assert_eq!(beyond(story().published(5 * SECOND - 1, "r1", &g, 1, &["a"], "d")), 0);
        assert_eq!(beyond(story().on(2).published(5 * SECOND, "r1", &g, 1, &["a"], "d")), 0);
    }

    #[test]
    fn take_overs_are_measured() {
        let story = two().claimed(10, "r1", &one(0, 1, 1)).claimed(6 * SECOND, "r2", &one(0, 1, 2)).published(
            7 * SECOND,
            "r2",
            &grant(0, 1, 2),
            1,
            &["a"],
            "d",
        );
        let counts = story.judged(check).counts;
        assert_eq!((counts.longest_unowned_ms, counts.longest_take_over_ms), (1_000, 2_000));
    }
}
