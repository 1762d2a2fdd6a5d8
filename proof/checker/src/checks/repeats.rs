//! repeats: a message comes again only where that is allowed.
//!
//! Where the sink refuses old epochs and drops repeats, no message arrives twice, ever. Elsewhere a message may be published
//! again as long as it was in flight: not if, when its next publish began, a position was confirmed that covers the publish
//! before. An asynchronous fail-over makes the positions before it worthless; a synchronous one does not. What the sink dropped
//! as a repeat is held to the same. And nothing arrives more often than it was published.

use crate::case::{Case, lines_of_call};
use crate::covered::may_have_arrived;
use crate::facts::{Answer, MessageNo, Publish, PublishNo, at};
use crate::found::{Check, Found};
use crate::verdict::Repeats;

pub fn check(case: &Case, found: &mut Found) {
    arrivals(case, found);
    published_again(case, found);
}

fn arrivals(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let exactly_once = facts.run().is_some_and(|run| run.exactly_once);
    let mut published = vec![0_u32; facts.ids.count()];
    for message in &facts.published {
        if let Some(count) = published.get_mut(*message as usize) {
            *count += 1;
        }
    }
    for (message, published) in (0..).zip(&published) {
        let arrived = case.arrivals.of(message).len();
        found.counts.repeated += arrived.saturating_sub(1) as u64;
        let wrong = if exactly_once && arrived > 1 {
            format!("arrived {arrived} times at a sink that drops repeats")
        } else if arrived > *published as usize {
            format!("arrived {arrived} times, and was published {published} times")
        } else {
            continue;
        };
        found.violation(facts, Check::Repeats, || {
            let mut lines = case.lines_of_publishes(message);
            lines.extend(case.lines_of_arrivals(message));
            (format!("Message {} {wrong}", case.id(message)), lines, case.about(&[message]))
        });
    }
}

fn published_again(case: &Case, found: &mut Found) {
    let facts = &case.facts;
    let mut order: Vec<(PublishNo, &Publish)> =
        (0..).zip(&facts.publishes).filter(|(_, publish)| may_have_arrived(publish)).collect();
    order.sort_by_key(|(_, publish)| (publish.t, publish.line));
    let mut carrier: Vec<Option<PublishNo>> = vec![None; facts.ids.count()];
    for (number, publish) in order {
        for (message, letter) in facts.ids_of(publish).iter().zip(facts.letters_of(publish)) {
            let dropped = *letter == b'r';
            found.counts.dropped_by_sink += u64::from(dropped);
            let Some(carrier) = carrier.get_mut(*message as usize) else { continue };
            match carrier.replace(number).and_then(|before| Some((before, at(&facts.publishes, before)?))) {
                Some((before, earlier)) => again(case, found, *message, (before, earlier), publish),
                None if dropped => found.violation(facts, Check::Repeats, || {
                    let text =
                        format!("The sink dropped message {} as a repeat of what nobody published", case.id(*message));
                    (text, lines_of_call(publish), case.about(&[*message]))
                }),
                None => {}
            }
        }
    }
}

fn again(
    case: &Case,
    found: &mut Found,
    message: MessageNo,
    (before, earlier): (PublishNo, &Publish),
    publish: &Publish,
) {
    let facts = &case.facts;
    if let Some(cover) = case.coverage.holds_at(&facts.fail_overs, before, publish.t) {
        found.violation(facts, Check::Repeats, || {
            let text = format!(
                "Message {} was published again {} after a position that covers it was confirmed",
                case.id(message),
                crate::table::duration(publish.t - cover.t)
            );
            let mut lines = lines_of_call(earlier);
            lines.extend(lines_of_call(publish));
            lines.push(cover.line);
            let mut about = case.about(&[message]);
            about.lane = at(&facts.grants, earlier.grant).cloned();
            (text, lines, about)
        });
    } else if may_be_there(case, message, earlier) {
        *reason(case, &mut found.counts.repeats, earlier, publish) += 1;
    }
}

/// Whether an earlier call may have delivered the message: not if the sink said that it did not take it.
fn may_be_there(case: &Case, message: MessageNo, earlier: &Publish) -> bool {
    let (ids, letters) = (case.facts.ids_of(earlier), case.facts.letters_of(earlier));
    let letter = ids.iter().zip(letters).find(|(id, _)| **id == message).map(|(_, letter)| *letter);
    !matches!(letter, Some(b't' | b'x' | b'-'))
}

/// What came between two publishes of a message.
fn reason<'a>(case: &Case, repeats: &'a mut Repeats, earlier: &Publish, publish: &Publish) -> &'a mut u64 {
    let facts = &case.facts;
    let (from, to) = (earlier.t, publish.t);
    if facts.fail_overs.iter().any(|fail_over| fail_over.from <= to && fail_over.t >= from) {
        return &mut repeats.fail_over;
    }
    let same = (earlier.replica, earlier.grant) == (publish.replica, publish.grant);
    let unsure = !matches!(earlier.answer, Answer::Letters);
    if !same && facts.killed_between(earlier.replica, from, to).is_some() {
        return &mut repeats.kill;
    }
    if same {
        return if unsure { &mut repeats.ambiguous } else { &mut repeats.reopened };
    }
    let owned = case.ownerships.iter().find(|owned| (owned.replica, owned.grant) == (earlier.replica, earlier.grant));
    match owned {
        Some(owned) if owned.released && owned.stopped <= to => &mut repeats.handed_over,
        _ => &mut repeats.lost_lease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, grant};

    fn found(story: &Story) -> Found {
        story.judged(check)
    }

    #[test]
    fn nothing_arrives_twice_where_the_sink_drops_repeats() {
        for (exactly_once, expected) in [(true, 1), (false, 0)] {
            let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
            let story = Story::run(exactly_once)
                .published(10, "r1", &a, 1, &["a"], "")
                .published(20, "r2", &b, 1, &["a"], "d")
                .arrived(90, "t", &["a", "a"]);
            let found = found(&story);
            assert_eq!((found.of(Check::Repeats), found.counts.repeated), (expected, 1));
            assert_eq!(found.counts.repeats.lost_lease, 1);
        }
    }

    #[test]
    fn what_a_position_covers_does_not_come_again() {
        let (a, b) = (grant(0, 2, 1), grant(2, 4, 2));
        let story =
            |acknowledged| {
                Story::run(false)
                    .published(10, "r1", &a, 1, &["a"], "d")
                    .acknowledged(acknowledged, "r1", &a, 1)
                    .published(30, "r2", &b, 1, &["a"], "d")
            };
        let bad = found(&story(20));
        assert_eq!((bad.of(Check::Repeats), bad.counts.repeats.sum()), (1, 0));
        assert_eq!(bad.listed[0].lines, [1, 2, 3, 4, 5]);
        let good = found(&story(40));
        assert_eq!((good.of(Check::Repeats), good.counts.repeats.sum()), (0, 1));
    }

    #[test]
    fn only_an_asynchronous_fail_over_takes_positions_back() {
        let g = grant(0, 1, 1);
        for (synchronous, expected) in [(true, 1), (false, 0)] {
            let story = Story::run(false)
                .published(10, "r1", &g, 1, &["a"], "d")
                .acknowledged(20, "r1", &g, 1)
                .failed_over(30, 40, 2, synchronous)
                .published(50, "r1", &g, 1, &["a"], "d");
            let found = found(&story);
            assert_eq!(found.of(Check::Repeats), expected);
            assert_eq!(found.counts.repeats.fail_over, 1 - expected);
        }
    }

    #[test]
    fn what_was_not_taken_is_tried_again_and_no_repeat() {
        let g = grant(0, 1, 1);
        let story = Story::run(false)
            .published(10, "r1", &g, 1, &["a", "b"], "dt")
            .published(20, "r1", &g, 1, &["b"], "d")
            .published(30, "r1", &g, 2, &["c"], "fenced")
            .published(40, "r1", &g, 2, &["c"], "d");
        let found = found(&story);
        assert_eq!((found.of(Check::Repeats), found.counts.repeats.sum()), (0, 0));
    }

    #[test]
    fn reasons_are_told_apart() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let handed = Story::run(false)
            .claimed(5, "r1", std::slice::from_ref(&a))
            .published(10, "r1", &a, 1, &["a", "b"], "dt")
            .released(20, "r1", std::slice::from_ref(&a))
            .published(30, "r2", &b, 1, &["a", "b"], "dd");
        assert_eq!(found(&handed).counts.repeats, Repeats { handed_over: 1, ..Repeats::default() });
        let killed = Story::run(false)
            .joined(1, "r1", 100)
            .published(10, "r1", &a, 1, &["a"], "")
            .fault("kill", "r1", 15, 16)
            .published(30, "r2", &b, 1, &["a"], "d");
        assert_eq!(found(&killed).counts.repeats, Repeats { kill: 1, ..Repeats::default() });
        let unsure =
            Story::run(false).published(10, "r1", &a, 1, &["a"], "ambiguous").published(30, "r1", &a, 1, &["a"], "d");
        assert_eq!(found(&unsure).counts.repeats, Repeats { ambiguous: 1, ..Repeats::default() });
    }

    #[test]
    fn a_sink_drops_only_what_was_published_before() {
        let g = grant(0, 1, 1);
        assert_eq!(found(&Story::run(true).published(10, "r1", &g, 1, &["a"], "r")).of(Check::Repeats), 1);
        let known = Story::run(true).published(10, "r1", &g, 1, &["a"], "cut").published(20, "r1", &g, 1, &["a"], "r");
        let known = found(&known);
        assert_eq!((known.of(Check::Repeats), known.counts.dropped_by_sink), (0, 1));
    }

    #[test]
    fn nothing_arrives_that_was_not_published() {
        let story = Story::run(false).published(10, "r1", &grant(0, 1, 1), 1, &["a"], "d");
        assert_eq!(found(&story.arrived(90, "t", &["a", "a", "b"])).of(Check::Repeats), 2);
    }
}
