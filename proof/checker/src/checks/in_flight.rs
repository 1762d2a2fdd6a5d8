//! in_flight: of each lane, no more messages are handed over and not yet covered by a written position than the run allows, and
//! one batch.
//!
//! Each owner counts from nothing, and so does one that has met another timeline: it goes on from the written position. A
//! position counts from a little before it is told to be confirmed: the relay acts upon it before it tells.

use std::collections::VecDeque;

use super::TOLD_WITHIN;
use crate::case::{Case, lines_of_call};
use crate::covered::is_rest_of;
use crate::facts::{Publish, PublishNo, at};
use crate::found::{Check, Found};
use crate::lanes::stint;

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
    let mut last: Option<&Publish> = None;
    for number in lane {
        let Some(publish) = at(&facts.publishes, *number) else { continue };
        let current = (stint(facts, publish), publish.replica);
        match owner {
            Some(owner) if current < owner => continue,
            Some(owner) if current == owner => {}
            _ => {
                flying.clear();
                (sum, over, owner, last) = (0, false, Some(current), None);
            }
        }
        let now = publish.t.saturating_add(TOLD_WITHIN);
        flying.retain(|(earlier, messages)| {
            let stays = case.coverage.let_go(*earlier) > now;
            sum -= if stays { 0 } else { *messages };
            stays
        });
        // What is left of a batch is part of what its first attempt handed over.
        let rest = !flying.is_empty() && last.is_some_and(|last| is_rest_of(facts, publish, last));
        last = Some(publish);
        if !rest {
            flying.push_back((*number, u64::from(publish.len)));
            sum += u64::from(publish.len);
        }
        found.counts.most_in_flight = found.counts.most_in_flight.max(sum);
        // Once for each time that it is exceeded.
        if sum > most && !over {
            found.violation(facts, Check::InFlight, || {
                let (lane, about) = case.lane(publish.grant);
                let text = format!("{sum} messages of lane {lane} were in flight, and at most {most} may be");
                let first = flying.front().and_then(|(first, _)| at(&facts.publishes, *first));
                let mut lines: Vec<_> = first.into_iter().flat_map(lines_of_call).collect();
                lines.push(publish.line);
                (text, lines, about)
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

    #[test]
    fn what_is_left_of_a_batch_counts_once() {
        let g = grant(0, 1, 1);
        let story = Story::run(false)
            .published(SECOND, "r", &g, 1, &["a", "b", "c"], "dtt")
            .published(SECOND * 2, "r", &g, 1, &["b", "c"], "dt")
            .published(SECOND * 3, "r", &g, 1, &["c"], "d");
        assert_eq!(story.judged(check).counts.most_in_flight, 3);
    }

    /// The lane was read anew, and cut into other batches under the same number.
    #[test]
    fn another_batch_under_the_same_number_counts() {
        let g = grant(0, 1, 1);
        let ids: Vec<String> = (0..13).map(|n| format!("n{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let story = Story::run(false).published(SECOND, "r", &g, 1, &["a"], "ambiguous").reopened(SECOND * 2, "r", &g);
        let found = story.published(SECOND * 3, "r", &g, 1, &ids, "").judged(check);
        assert_eq!((found.of(Check::InFlight), found.counts.most_in_flight), (1, 13));
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
