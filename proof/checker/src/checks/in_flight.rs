//! in_flight: of each lane, no more messages are handed over and not yet covered by a written position than the run allows, and
//! one batch.
//!
//! Each owner counts from nothing, and so does one that has met another timeline: it goes on from the written position. A position counts from a little before it is told to be confirmed: the relay acts upon it before it tells.

use std::collections::VecDeque;

use crate::case::{Case, lines_of_call};
use crate::facts::{PublishNo, at};
use crate::found::{About, Check, Found};
use crate::history::Nanos;

/// How much later than known a position may be told.
const TOLD_WITHIN: Nanos = 250_000_000;

pub fn check(case: &Case, found: &mut Found) {
    let Some(run) = case.facts.run() else { return };
    let most = run.in_flight.saturating_add(run.batch_messages);
    for lane in case.coverage.lanes() {
        follow(case, found, lane, most);
    }
}

fn follow(case: &Case, found: &mut Found, lane: &[PublishNo], most: u64) {
    let facts = &case.facts;
    let (mut flying, mut sum): (VecDeque<(PublishNo, u64)>, u64) = (VecDeque::new(), 0);
    let (mut over, mut owner) = (false, None);
    for number in lane {
        let Some(publish) = at(&facts.publishes, *number) else { continue };
        let newest =
            (publish.timeline, at(&facts.grants, publish.grant).map_or(0, |grant| grant.epoch), publish.replica);
        match owner {
            Some(owner) if newest < owner => continue, // a former owner's, sent late
            Some(owner) if newest == owner => {}
            _ => {
                flying.clear();
                (sum, over, owner) = (0, false, Some(newest));
            }
        }
        let now = publish.t.saturating_add(TOLD_WITHIN);
        flying.retain(|(earlier, messages)| {
            let stays = case.coverage.let_go(*earlier) > now;
            sum -= if stays { 0 } else { *messages };
            stays
        });
        // What is left of a batch is part of what its first attempt handed over.
        let rest = flying.back().and_then(|(earlier, _)| at(&facts.publishes, *earlier)).is_some_and(|earlier| {
            (earlier.batch, earlier.grant, earlier.replica) == (publish.batch, publish.grant, publish.replica)
        });
        if !rest {
            flying.push_back((*number, u64::from(publish.len)));
            sum += u64::from(publish.len);
        }
        found.counts.most_in_flight = found.counts.most_in_flight.max(sum);
        // Once for each time that it is exceeded.
        if sum > most && !over {
            found.violation(facts, Check::InFlight, || {
                let grant = at(&facts.grants, publish.grant);
                let text = format!(
                    "{sum} messages of lane {} were in flight, and at most {most} may be",
                    grant.map_or_else(String::new, crate::table::lane)
                );
                let first = flying.front().and_then(|(first, _)| at(&facts.publishes, *first));
                let mut lines: Vec<_> = first.into_iter().flat_map(lines_of_call).collect();
                lines.push(publish.line);
                (text, lines, About { lane: grant.cloned(), ..About::default() })
            });
        }
        over = sum > most;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{SECOND, Story, grant};

    /// Batches of four; the run allows eight in flight and one batch.
    fn batches(count: i64) -> Story {
        (1..=count).fold(Story::run(false), |story, batch| {
            let ids: Vec<String> = (0..4).map(|n| format!("{batch}.{n}")).collect();
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            story.published(SECOND * batch.unsigned_abs(), "r", &grant(0, 1, 1), batch, &ids, "dddd")
        })
    }

    #[test]
    fn what_is_not_covered_is_bounded() {
        let good = batches(3).judged(check);
        assert_eq!((good.of(Check::InFlight), good.counts.most_in_flight), (0, 12));
        let bad = batches(5).judged(check);
        assert_eq!((bad.of(Check::InFlight), bad.counts.most_in_flight), (1, 20));
        let covered = batches(5).acknowledged(SECOND * 2 + 5, "r", &grant(0, 1, 1), 2);
        assert_eq!(covered.judged(check).of(Check::InFlight), 0);
    }

    #[test]
    fn what_is_tried_again_counts_once() {
        let g = grant(0, 1, 1);
        let story = (1..=9)
            .fold(Story::run(false), |story, n| story.published(SECOND * n, "r", &g, 1, &["a", "b", "c", "d"], "tttt"));
        assert_eq!(story.judged(check).counts.most_in_flight, 4);
    }

    /// At a sink that keeps a position, numbers jump over what the new primary does not know.
    #[test]
    fn a_new_timeline_starts_anew() {
        let g = grant(0, 1, 1);
        let story = batches(3).on(2).published(SECOND * 9, "r", &g, 8, &["2.0", "2.1", "2.2", "2.3"], "dddd");
        assert_eq!(story.judged(check).counts.most_in_flight, 12);
        let next = batches(3).published(SECOND * 9, "s", &grant(0, 1, 2), 8, &["2.0", "2.1", "2.2", "2.3"], "dddd");
        assert_eq!(next.judged(check).counts.most_in_flight, 12);
    }

    #[test]
    fn the_next_owner_starts_anew() {
        let next = grant(0, 1, 2);
        let story = batches(3).published(SECOND * 9, "s", &next, 1, &["1.0", "1.1", "1.2", "1.3"], "dddd").published(
            SECOND * 10,
            "s",
            &next,
            2,
            &["2.0", "2.1", "2.2", "2.3"],
            "dddd",
        );
        assert_eq!(story.judged(check).counts.most_in_flight, 12);
    }
}
