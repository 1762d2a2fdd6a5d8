//! drained: after the last fault all that was written is delivered within the time that the run states; and the history has
//! its end, or else it was cut short and proves nothing.

use crate::case::Case;
use crate::found::{About, Check, Found};
use crate::table::duration;

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
    let Some((drained, drained_line)) = facts.drained else {
        found.violation(facts, Check::Drained, || {
            let text = "What was written was never told to be delivered".to_owned();
            (text, vec![calm_line], About::default())
        });
        return;
    };
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

fn last_line(case: &Case) -> Vec<u32> {
    let times = &case.facts.times;
    (0..).zip(times).max_by_key(|(_, t)| **t).map(|(line, _)| line).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;
    use crate::story::{SECOND, Story};

    fn violations(story: &Story) -> u64 {
        story.judged(check).of(Check::Drained)
    }

    #[test]
    fn what_is_left_is_delivered_in_time() {
        let story = |t| Story::run(true).at(SECOND, Event::Calm).at(t, Event::Drained);
        assert_eq!(violations(&story(11 * SECOND).at(12 * SECOND, Event::End)), 0);
        assert_eq!(violations(&story(11 * SECOND + 1).at(12 * SECOND, Event::End)), 1);
        assert_eq!(violations(&story(11 * SECOND)), 1);
        assert_eq!(violations(&Story::run(true).at(SECOND, Event::Calm).at(12 * SECOND, Event::End)), 1);
        assert_eq!(violations(&Story::run(true)), 2);
    }
}
