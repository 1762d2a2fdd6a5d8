//! drained: from calm on no fault begins, every lane has an owner soon, and all that was written is delivered within the time
//! that the run states; and the history has its end, or else it was cut short and proves nothing.

use std::collections::BTreeMap;

use crate::case::Case;
use crate::facts::Facts;
use crate::found::{About, Check, Found};
use crate::history::Nanos;
use crate::lanes::Finest;
use crate::table::duration;

/// For connecting to a server again, on a machine that is busy.
const CONNECTED_WITHIN: Nanos = 3_000_000_000;
/// A lane that changes hands is nobody's for a moment.
const HANDED_OVER_WITHIN: Nanos = 1_000_000_000;

pub fn check(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let (first, last) = (facts.times.iter().min(), facts.times.iter().max());
    found.counts.lasted_ms = last.zip(first).map_or(0, |(last, first)| (last - first) / 1_000_000);
    if facts.end.is_none() {
        found.violation(facts, Check::Drained, || {
            ("The history was cut short: it has no end".to_owned(), last_line(case), About::default())
        });
    }
    let Some((calm, calm_line)) = facts.calm else {
        found.violation(facts, Check::Drained, || {
            ("The history does not tell when the last fault was over".to_owned(), last_line(case), About::default())
        });
        return;
    };
    no_fault_after(facts, found, (calm, calm_line));
    owned_soon(case, found, (calm, calm_line));
    let Some((drained, drained_line)) = facts.drained else {
        found.violation(facts, Check::Drained, || {
            let text = "What was written was never told to be delivered".to_owned();
            (text, vec![calm_line], About::default())
        });
        return;
    };
    let end = facts.end.map_or(Nanos::MAX, |(t, _)| t);
    if !(calm <= drained && drained <= end) {
        found.violation(facts, Check::Drained, || {
            (
                "Calm, drained and the end are not told in this order".to_owned(),
                vec![calm_line, drained_line],
                About::default(),
            )
        });
    }
    let took = drained.saturating_sub(calm);
    found.counts.drained_ms = Some(took / 1_000_000);
    let within = facts.run().map(|run| run.drain_within_ms.saturating_mul(1_000_000));
    if let Some(within) = within.filter(|within| took > *within) {
        found.violation(facts, Check::Drained, || {
            let text =
                format!("It took {} to deliver what was left, and {} are allowed", duration(took), duration(within));
            (text, vec![calm_line, drained_line], About::default())
        });
    }
}

/// A process that may yet stop or kill itself is killed by whoever calms all down.
fn no_fault_after(facts: &Facts, found: &mut Found, (calm, line): (Nanos, u32)) {
    for fault in facts.faults.iter().filter(|fault| fault.from > calm) {
        found.violation(facts, Check::Drained, || {
            (format!("A fault began after calm: {}", fault.kind), vec![line, fault.line], About::default())
        });
    }
}

/// A replica that is gone at calm is expired within a ttl of being looked at, claims may have to wait another one for a new
/// timeline; one more, and [`CONNECTED_WITHIN`], for connecting again.
fn owned_soon(case: &Case, found: &mut Found, (calm, line): (Nanos, u32)) {
    let facts = &case.facts;
    let Some(run) = facts.run() else { return };
    let soon = calm.saturating_add(run.ttl_ms.saturating_mul(3_000_000)).saturating_add(CONNECTED_WITHIN);
    // Once all is delivered replicas are stopped.
    let ended = facts.drained.or(facts.end).map_or(Nanos::MAX, |(t, _)| t);
    if ended <= soon.saturating_add(HANDED_OVER_WITHIN) {
        return;
    }
    let finest = Finest::new(facts);
    let mut owned: BTreeMap<(&str, u32), bool> = BTreeMap::new();
    for ownership in &case.ownerships {
        let then = ownership.from <= soon.saturating_add(HANDED_OVER_WITHIN)
            && ownership.to().saturating_add(HANDED_OVER_WITHIN) >= soon;
        for lane in finest.of(ownership.grant) {
            *owned.entry(lane).or_default() |= then;
        }
    }
    for ((relay, lane), _) in owned.into_iter().filter(|(_, owned)| !owned) {
        found.violation(facts, Check::Drained, || {
            let text = format!("Lane {lane} of {relay} had no owner {} after calm", duration(soon - calm));
            (text, vec![line], About::default())
        });
    }
}

fn last_line(case: &Case) -> Vec<u32> {
    let times = &case.facts.times;
    (0..).zip(times).max_by_key(|(_, t)| **t).map(|(line, _)| line).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;
    use crate::story::grant;
    use crate::story::{SECOND, Story};

    fn end() -> Event {
        Event::End { lines: BTreeMap::new() }
    }

    #[test]
    fn calm_comes_before_the_end() {
        let told = |drained| Story::run(true).at(2 * SECOND, Event::Calm).at(drained, Event::Drained);
        assert_eq!(told(SECOND).at(3 * SECOND, end()).violations(check, Check::Drained), 1);
        assert_eq!(told(4 * SECOND).at(3 * SECOND, end()).violations(check, Check::Drained), 1);
    }

    #[test]
    fn no_fault_begins_after_calm() {
        let story = |from| {
            let story = Story::run(true).at(SECOND, Event::Calm).fault("kill", "r", from, 3 * SECOND);
            story.at(4 * SECOND, Event::Drained).at(5 * SECOND, end()).violations(check, Check::Drained)
        };
        assert_eq!((story(2 * SECOND), story(SECOND / 2)), (1, 0));
    }

    /// The ttl is five seconds; it may take ten to drain, of which it takes twenty here.
    #[test]
    fn lanes_are_owned_soon_after_calm() {
        let story = |claimed, lane| {
            let story = Story::run(true).joined(1, "r1", 2 * SECOND).joined(1, "r2", 60 * SECOND);
            let story = story.claimed(2, "r1", &[grant(0, 2, 1), grant(1, 2, 1)]).at(SECOND, Event::Calm);
            let story = story.claimed(claimed, "r2", &[grant(0, 2, 2), grant(lane, 2, 2)]);
            story.at(21 * SECOND, Event::Drained).at(22 * SECOND, end()).violations(check, Check::Drained) - 1
        };
        assert_eq!(story(6 * SECOND, 1), 0);
        assert_eq!(story(6 * SECOND, 0), 1);
        assert_eq!(story(20 * SECOND + 1, 1), 2);
    }

    #[test]
    fn what_is_left_is_delivered_in_time() {
        let story = |t| Story::run(true).at(SECOND, Event::Calm).at(t, Event::Drained);
        assert_eq!(story(11 * SECOND).at(12 * SECOND, end()).violations(check, Check::Drained), 0);
        assert_eq!(story(11 * SECOND + 1).at(12 * SECOND, end()).violations(check, Check::Drained), 1);
        assert_eq!(story(11 * SECOND).violations(check, Check::Drained), 1);
        assert_eq!(
            Story::run(true).at(SECOND, Event::Calm).at(12 * SECOND, end()).violations(check, Check::Drained),
            1
        );
        assert_eq!(Story::run(true).violations(check, Check::Drained), 2);
    }
}
