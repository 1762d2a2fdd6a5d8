//! Which acknowledgement covers which publish.
//!
//! The number of a batch is not enough to go by: a lane's next owner reads anew and cuts other batches under the same
//! numbers. So each lane's publishes are followed as a pile. A publish under a number takes down all that lies at that number
//! or above it, unless it is the rest of the same batch; a position covers what lies on the pile when it was sent, up to its
//! number. What was taken down is never covered: its messages come again, on a new pile. Lanes that were split from a lane count
//! on from its last batch, so that their publishes and positions are the pile's, too. What a former owner sends late takes
//! nothing down.
//!
//! After a fail-over a lane's numbers may jump ahead, where the sink had more than the new primary knows: a position covers
//! only what was read on its own timeline.
//!
//! Two questions, each answered for the relay where nobody can know: `covers` is the first position that *certainly* covers a
//! publish, for `repeats`; `let_go` is from when it is *certainly* not in flight any more, for `in_flight`.

use std::collections::{HashMap, HashSet};

use crate::facts::{Ack, Answer, Facts, FailOver, GrantNo, Line, Publish, PublishNo, Refusal, at, taken};
use crate::history::Nanos;
use crate::lanes::{Lane, ancestors, lane, stint};

/// What covers a publish.
#[derive(Debug, Clone, Copy)]
pub struct Cover {
    /// Under which grant it was written.
    pub grant: GrantNo,
    /// Up to which batch.
    pub batch: i64,
    /// An earlier attempt had written it.
    pub again: bool,
    /// When it was sent.
    pub sent: Nanos,
    /// When it was known to be confirmed.
    pub t: Nanos,
    /// On which timeline.
    pub timeline: u32,
    /// Where this is told.
    pub line: Line,
}

/// What became of each publish.
#[derive(Debug, Default)]
pub struct Coverage {
    /// The first position that certainly covers it.
    covers: Vec<Option<Cover>>,
    /// When it no longer counted as in flight: a position passed its number, or its number was used again.
    let_go: Vec<Nanos>,
    /// Of each lane, its publishes in order of time.
    lanes: Vec<Vec<PublishNo>>,
}

/// Whether the sink may have taken something of it: something was written, and it was not refused.
#[must_use]
pub fn may_have_arrived(publish: &Publish) -> bool {
    match publish.answer {
        Answer::Letters | Answer::Ambiguous => true,
        Answer::Refused(Refusal::Fenced | Refusal::Moved | Refusal::OneOfThem) => false,
        Answer::Down | Answer::Cut | Answer::None | Answer::Refused(Refusal::LeaseOver) => publish.writing.is_some(),
    }
}

/// The publishes and positions of a lane, and of what was split from it.
type OfLane<'a> = (Vec<PublishNo>, Vec<&'a Ack>);

impl Coverage {
    /// Works it out for all publishes.
    #[must_use]
    pub fn new(facts: &Facts) -> Self {
        let mut coverage = Self {
            covers: vec![None; facts.publishes.len()],
            let_go: vec![Nanos::MAX; facts.publishes.len()],
            lanes: Vec::new(),
        };
        let known: HashSet<Lane<'_>> = facts.grants.iter().map(lane).collect();
        let with_ancestors = |grant| {
            let own = at(&facts.grants, grant).map_or(("", 0, 0), lane);
            ancestors(own).filter(|lane| known.contains(lane))
        };
        let mut lanes: HashMap<Lane<'_>, OfLane<'_>> = HashMap::new();
        for (number, publish) in (0..).zip(&facts.publishes) {
            if may_have_arrived(publish) {
                with_ancestors(publish.grant).for_each(|lane| lanes.entry(lane).or_default().0.push(number));
            }
        }
        for ack in &facts.acks {
            with_ancestors(ack.grant).for_each(|lane| lanes.entry(lane).or_default().1.push(ack));
        }
        let mut lanes: Vec<_> = lanes.into_iter().collect();
        lanes.sort_by_key(|(lane, _)| *lane);
        for (lane, (mut publishes, mut acks)) in lanes {
            publishes.sort_by_key(|number| at(&facts.publishes, *number).map(|publish| (publish.t, publish.line)));
            acks.sort_by_key(|ack| (ack.sent, ack.line));
            let own = coverage.follow(facts, lane, &publishes, &acks);
            coverage.lanes.push(own);
        }
        coverage
    }

    /// Gives the publishes of this very lane.
    fn follow(&mut self, facts: &Facts, of: Lane<'_>, publishes: &[PublishNo], acks: &[&Ack]) -> Vec<PublishNo> {
        let (mut pile, mut all) = (Vec::new(), Vec::new());
        let mut acks = acks.iter().peekable();
        let mut newest = (0, i64::MIN);
        for number in publishes {
            let Some(publish) = at(&facts.publishes, *number) else { continue };
            while let Some(ack) = acks.next_if(|ack| ack.sent <= publish.t) {
                self.cover(facts, &mut pile, ack);
            }
            let own = at(&facts.grants, publish.grant).is_some_and(|grant| lane(grant) == of);
            all.extend(own.then_some(*number));
            let stint = stint(facts, publish);
            if stint < newest {
                if own {
                    self.let_go_at(*number, publish.t);
                }
                continue;
            }
            newest = stint;
            while let Some(top) = pile.last().and_then(|top| Some((*top, at(&facts.publishes, *top)?))) {
                if top.1.batch < publish.batch || is_rest_of(facts, publish, top.1) {
                    break;
                }
                self.let_go_at(top.0, publish.t);
                pile.pop();
            }
            if own {
                pile.push(*number);
            }
        }
        acks.for_each(|ack| self.cover(facts, &mut pile, ack));
        all
    }

    fn cover(&mut self, facts: &Facts, pile: &mut Vec<PublishNo>, ack: &Ack) {
        let up_to = pile.partition_point(|number| at(&facts.publishes, *number).is_some_and(|p| p.batch <= ack.batch));
        for number in pile.drain(..up_to) {
            self.let_go_at(number, ack.t);
            let certain = at(&facts.publishes, number).is_some_and(|publish| publish.timeline == ack.timeline);
            if let (true, Some(cover)) = (certain, self.covers.get_mut(number as usize)) {
                let Ack { grant, batch, again, sent, t, timeline, line, .. } = *ack;
                *cover = Some(Cover { grant, batch, again, sent, t, timeline, line });
            }
        }
    }

    fn let_go_at(&mut self, number: PublishNo, t: Nanos) {
        if let Some(let_go) = self.let_go.get_mut(number as usize) {
            *let_go = t;
        }
    }

    /// The position that covers a publish.
    #[must_use]
    pub fn of(&self, publish: PublishNo) -> Option<Cover> {
        at(&self.covers, publish).copied().flatten()
    }

    /// The position that covers a publish at this moment: confirmed, and not lost by a fail-over.
    #[must_use]
    pub fn holds_at(&self, fail_overs: &[FailOver], publish: PublishNo, t: Nanos) -> Option<Cover> {
        let lost = |cover: &Cover| fail_overs.iter().any(|f| f.may_lose(cover.timeline, cover.t) && f.from <= t);
        self.of(publish).filter(|cover| cover.t < t && !lost(cover))
    }

    /// When a publish no longer counted as in flight.
    #[must_use]
    pub fn let_go(&self, publish: PublishNo) -> Nanos {
        at(&self.let_go, publish).copied().unwrap_or(Nanos::MAX)
    }

    /// The publishes of each lane that may have taken effect, in order of time.
    #[must_use]
    pub fn lanes(&self) -> &[Vec<PublishNo>] {
        &self.lanes
    }
}

/// Whether a publish is what an earlier attempt left of the same batch, or the same batch again.
pub(crate) fn is_rest_of(facts: &Facts, publish: &Publish, before: &Publish) -> bool {
    if (publish.batch, publish.replica, publish.grant) != (before.batch, before.replica, before.grant) {
        return false;
    }
    let letters = facts.letters_of(before);
    let left = facts.ids_of(before).iter().zip(letters).filter(|(_, letter)| !taken(**letter));
    left.map(|(id, _)| id).eq(facts.ids_of(publish))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::{Story, grant};

    fn covered(facts: &Facts) -> Vec<Option<Nanos>> {
        let coverage = Coverage::new(facts);
        (0..crate::facts::next(&facts.publishes)).map(|number| coverage.of(number).map(|cover| cover.t)).collect()
    }

    #[test]
    fn a_position_covers_what_was_published_before_it() {
        let g = grant(0, 1, 1);
        let facts = Story::default()
            .published(10, "r1", &g, 1, &["a"], "d")
            .published(20, "r1", &g, 2, &["b"], "d")
            .acknowledged(30, "r1", &g, 1)
            .published(40, "r1", &g, 3, &["c"], "d")
            .facts();
        assert_eq!(covered(&facts), [Some(30), None, None]);
    }

    #[test]
    fn the_rest_of_a_batch_belongs_to_it() {
        let g = grant(0, 1, 1);
        let facts = Story::default()
            .published(10, "r1", &g, 1, &["a", "b", "c"], "d-t")
            .published(20, "r1", &g, 1, &["b", "c"], "dd")
            .acknowledged(30, "r1", &g, 1)
            .facts();
        assert_eq!(covered(&facts), [Some(30), Some(30)]);
    }

    /// The next owner cuts other batches under the same numbers: its first position does not cover `c`.
    #[test]
    fn a_number_that_is_used_again_covers_nothing_of_before() {
        let (old, new) = (grant(0, 1, 1), grant(0, 1, 2));
        let facts = Story::default()
            .published(10, "r1", &old, 6, &["a", "b", "c"], "ddd")
            .published(20, "r1", &old, 7, &["d"], "")
            .published(50, "r2", &new, 6, &["a", "b"], "dd")
            .acknowledged(60, "r2", &new, 6)
            .published(70, "r2", &new, 7, &["c", "d"], "dd")
            .acknowledged(80, "r2", &new, 7)
            .facts();
        assert_eq!(covered(&facts), [None, None, Some(60), Some(80)]);
    }

    #[test]
    fn a_lane_that_is_read_anew_under_one_grant_is_no_rest() {
        let g = grant(0, 1, 1);
        let facts = Story::default()
            .published(10, "r1", &g, 6, &["a", "b", "c"], "ambiguous")
            .published(20, "r1", &g, 6, &["a", "b"], "dd")
            .acknowledged(30, "r1", &g, 6)
            .facts();
        assert_eq!(covered(&facts), [None, Some(30)]);
    }

    #[test]
    fn a_settled_batch_of_the_owner_before_is_covered() {
        let (old, new) = (grant(0, 1, 1), grant(0, 1, 2));
        let facts =
            Story::default().published(10, "r1", &old, 6, &["a"], "ambiguous").acknowledged(30, "r2", &new, 6).facts();
        assert_eq!(covered(&facts), [Some(30)]);
    }

    #[test]
    fn positions_of_a_new_timeline_say_nothing_of_what_was_published_before() {
        let g = grant(0, 1, 1);
        let facts = Story::default()
            .published(10, "r1", &g, 6, &["a"], "d")
            .failed_over(20, 30, 2, true)
            .on(2)
            .acknowledged(40, "r1", &g, 9)
            .facts();
        assert_eq!(covered(&facts), [None]);
    }

    #[test]
    fn positions_of_a_new_timeline_cover_what_was_read_on_it() {
        let g = grant(0, 1, 1);
        let facts = Story::default()
            .failed_over(20, 30, 2, true)
            .on(2)
            .published(31, "r1", &g, 6, &["a"], "d")
            .acknowledged(40, "r1", &g, 6)
            .facts();
        assert_eq!(covered(&facts), [Some(40)]);
    }

    /// The answer to the last position of the whole lane was lost.
    #[test]
    fn positions_of_halves_cover_the_whole_lane() {
        let (whole, half) = (grant(1, 2, 1), grant(3, 4, 2));
        // Under 6, the number was used again.
        for (number, expected) in [(7, Some(30)), (6, None)] {
            let facts = Story::default()
                .published(10, "r1", &whole, 6, &["a"], "d")
                .published(20, "r2", &half, number, &["b"], "d")
                .acknowledged(30, "r2", &half, number)
                .facts();
            assert_eq!(covered(&facts), [expected, Some(30)]);
        }
    }

    /// A replica that stood still sends what it had begun.
    #[test]
    fn what_a_former_owner_sends_late_takes_nothing_down() {
        let (old, new) = (grant(0, 1, 1), grant(0, 1, 2));
        let facts = Story::default()
            .published(10, "r2", &new, 6, &["a"], "d")
            .published(20, "r1", &old, 6, &["a"], "d")
            .acknowledged(30, "r2", &new, 6)
            .facts();
        assert_eq!(covered(&facts), [Some(30), None]);
        assert_eq!(Coverage::new(&facts).let_go(1), 20);
    }

    #[test]
    fn an_asynchronous_fail_over_takes_back_what_was_not_safe() {
        let g = grant(0, 1, 1);
        let story = Story::default().published(10, "r1", &g, 6, &["a"], "d").acknowledged(15, "r1", &g, 6);
        for (safe, holds) in [(None, true), (Some(16), true), (Some(15), false)] {
            let facts = story.clone().failed_over_from(20, 30, 2, safe).facts();
            let coverage = Coverage::new(&facts);
            assert!(coverage.holds_at(&facts.fail_overs, 0, 19).is_some());
            assert_eq!(coverage.holds_at(&facts.fail_overs, 0, 25).is_some(), holds);
        }
    }
}
