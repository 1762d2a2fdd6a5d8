//! positions: of each lane, and of what it was split into, neither batch nor consumed ever falls from one confirmed position to
//! the next, in the order in which they were sent. An asynchronous fail-over takes back what was confirmed since its standby was
//! cut off, and nothing before.

use std::collections::HashMap;

use crate::case::Case;
use crate::facts::{Ack, at};
use crate::found::{Check, Found};
use crate::lanes::{Lane, ancestors, lane};

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let mut acks: Vec<&Ack> = facts.acks.iter().collect();
    acks.sort_by_key(|ack| (ack.sent, ack.line));
    found.counts.positions = acks.len() as u64;
    let mut told: HashMap<Lane<'_>, Vec<&Ack>> = HashMap::new();
    for ack in acks {
        let Some(grant) = at(&facts.grants, ack.grant) else { continue };
        // A lane that has none yet goes on from the lane it was split from.
        let last_of = |lane| told.get(&lane)?.iter().rev().find(|before| !taken_back(case, before, ack)).copied();
        let before: Option<&Ack> = ancestors(lane(grant)).find_map(last_of);
        told.entry(lane(grant)).or_default().push(ack);
        let Some(before) = before else { continue };
        let fell = match (ack.batch < before.batch, ack.consumed < before.consumed) {
            (true, _) => format!("batch {} after batch {}", ack.batch, before.batch),
            (_, true) => format!("consumed {:?} after consumed {:?}", ack.consumed, before.consumed),
            _ => continue,
        };
        found.violation(facts, Check::Positions, || {
            let (lane, about) = case.lane(ack.grant);
            (format!("The position of lane {lane} fell: {fell}"), vec![before.line, ack.line], about)
        });
    }
}

/// Whether a fail-over between the two may have lost the first one.
fn taken_back(case: &Case, before: &Ack, ack: &Ack) -> bool {
    let mut fail_overs = case.facts.fail_overs.iter().filter(|fail_over| fail_over.timeline <= ack.timeline);
    fail_overs.any(|fail_over| fail_over.may_lose(before.timeline, before.t))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Event, Position};
    use crate::story::{Story, grant};

    #[test]
    fn positions_only_grow() {
        let g = grant(1, 2, 1);
        let story = || Story::run(false).position(10, "r", &g, 5, 100).position(11, "r", &grant(0, 2, 1), 1, 1);
        assert_eq!(
            story().position(20, "r", &g, 5, 100).position(30, "r", &g, 6, 100).violations(check, Check::Positions),
            0
        );
        assert_eq!(story().position(20, "s", &grant(1, 2, 2), 4, 100).violations(check, Check::Positions), 1);
        assert_eq!(story().position(20, "r", &g, 6, 99).violations(check, Check::Positions), 1);
    }

    /// Of an adopted table only batches are told.
    #[test]
    fn without_a_snapshot_batches_count_alone() {
        let told = |story: Story, t, batch| {
            let positions = vec![Position { grant: grant(1, 2, 1), batch, consumed: None, again: false }];
            let (replica, changed) = ("r".into(), Vec::new());
            story
                .at(t, Event::Acknowledged { replica, sent: t - 1, timeline: 1, positions, changed, aside: Vec::new() })
        };
        let story = told(Story::run(false), 10, 5);
        assert_eq!(told(story.clone(), 20, 5).violations(check, Check::Positions), 0);
        assert_eq!(told(story, 20, 4).violations(check, Check::Positions), 1);
    }

    #[test]
    fn a_half_goes_on_from_the_whole() {
        let story = || Story::run(false).position(10, "r", &grant(1, 2, 1), 5, 100);
        assert_eq!(story().position(20, "r", &grant(3, 4, 2), 5, 100).violations(check, Check::Positions), 0);
        assert_eq!(story().position(20, "r", &grant(3, 4, 2), 4, 100).violations(check, Check::Positions), 1);
        assert_eq!(story().position(20, "r", &grant(7, 8, 3), 4, 100).violations(check, Check::Positions), 1);
        assert_eq!(story().position(20, "r", &grant(2, 4, 2), 4, 100).violations(check, Check::Positions), 0);
    }

    #[test]
    fn only_an_asynchronous_fail_over_takes_them_back() {
        let g = grant(1, 2, 1);
        for (synchronous, expected) in [(true, 1), (false, 0)] {
            let story = Story::run(false)
                .position(10, "r", &g, 5, 100)
                .failed_over(20, 30, 2, synchronous)
                .on(2)
                .position(40, "r", &g, 4, 100);
            assert_eq!(story.violations(check, Check::Positions), expected);
        }
    }
}
