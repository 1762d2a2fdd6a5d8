//! repeats: a message comes again only where that is allowed.
//!
//! Where the sink refuses old epochs and drops repeats, no message arrives twice, ever; and since such a sink keeps a position,
//! nothing is sent to it again that it has, unless the database was failed over in between. Elsewhere a message that may have
//! been taken is published again only if something happened to its first publisher, which the history tells: it lost the lane or
//! its lease, was killed, did not get an answer, read the lane anew because of one, gave the lane back in the middle of the
//! batch or after having drained it in vain, or met another timeline. Its own word is not enough: who says that it lost a lane
//! within its lease has to have lost it to somebody, and who gives one back undrained had begun no call for as long as draining
//! may take. Never if a position that covers it was confirmed before, and no fail-over lost that. And nothing arrives more often
//! than it was published.
//!
//! The owner of an adopted table may set a row back, once for each repeat, or change its key, so that it is in two lanes: what
//! that excuses, of just that row, stands in `repeats/owner.rs`.

use std::collections::HashMap;

use super::TOLD_WITHIN;
use crate::case::{Case, lines_of_call};
use crate::covered::may_have_arrived;
use crate::facts::{Answer, Ended, GrantNo, MessageNo, Publish, PublishNo, ReplicaNo, at, taken};
use crate::found::{Check, Found};
use crate::history::{Grant, Nanos};
use crate::lanes::{Ownership, related};
use crate::table::duration;
use crate::verdict::Repeats;
use owner::Owner;

mod owner;

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
    let exactly_once = facts.run().is_some_and(|run| run.exactly_once);
    let (reasons, mut owner) = (Reasons::new(case), Owner::new(case));
    let mut order: Vec<(PublishNo, &Publish)> =
        (0..).zip(&facts.publishes).filter(|(_, publish)| may_have_arrived(publish)).collect();
    order.sort_by_key(|(_, publish)| (publish.t, publish.line));
    let mut carrier: Vec<Option<PublishNo>> = vec![None; facts.ids.count()];
    let mut oldest: Vec<u32> = vec![u32::MAX; facts.ids.count()];
    for (number, publish) in order {
        for (message, letter) in facts.ids_of(publish).iter().zip(facts.letters_of(publish)) {
            let dropped = *letter == b'r';
            found.counts.dropped_by_sink += u64::from(dropped);
            let index = *message as usize;
            let (Some(carrier), Some(oldest)) = (carrier.get_mut(index), oldest.get_mut(index)) else { continue };
            let all_before = owner.before(*message, (number, publish), carrier.replace(number));
            if exactly_once && dropped && *oldest == publish.timeline {
                let taken_before = owner.last_taken(*message, number);
                let mut excuse = |(before, earlier): (PublishNo, &Publish)| {
                    let cover = case.coverage.holds_at(&facts.fail_overs, before, publish.t);
                    owner.excuse(*message, (before, earlier), (number, publish), cover)
                };
                if !taken_before.iter().chain(&all_before).any(|before| excuse(*before).is_some())
                    && !owner.is_sent_meanwhile(*message, (number, publish))
                {
                    dropped_without_reason(case, found, *message, publish);
                }
            }
            *oldest = (*oldest).min(publish.timeline);
            for before in &all_before {
                again((&reasons, &mut owner), found, *message, *before, (number, publish));
            }
            if all_before.is_empty() && dropped && !owner.is_sent_meanwhile(*message, (number, publish)) {
                found.violation(facts, Check::Repeats, || {
                    let text =
                        format!("The sink dropped message {} as a repeat of what nobody published", case.id(*message));
                    (text, lines_of_call(publish), case.about(&[*message]))
                });
            }
        }
    }
}

/// A sink that keeps a position tells whoever opens a lane what it has: there is nothing to drop, but after a fail-over.
fn dropped_without_reason(case: &Case, found: &mut Found, message: MessageNo, publish: &Publish) {
    found.violation(&case.facts, Check::Repeats, || {
        let text = format!(
            "Message {} was sent again to a sink that knows how far it is, without a fail-over, and dropped by it",
            case.id(message)
        );
        let mut about = case.about(&[message]);
        about.lane = at(&case.facts.grants, publish.grant).cloned();
        let lines = case.lines_of_publishes(message).into_iter().chain(case.lines_of_deeds(message));
        (text, lines.collect(), about)
    });
}

fn again(
    (reasons, owner): (&Reasons<'_>, &mut Owner<'_>),
    found: &mut Found,
    message: MessageNo,
    (before, earlier): (PublishNo, &Publish),
    (number, publish): (PublishNo, &Publish),
) {
    let case = reasons.case;
    let facts = &case.facts;
    let covered = case.coverage.holds_at(&facts.fail_overs, before, publish.t);
    let Some(letter) = letter(case, message, earlier) else { return };
    let may_be_there = !matches!(letter, b't' | b'x' | b'-');
    // The sink has not taken it, and the position that passed it has set it aside.
    if !may_be_there && reasons.is_aside(message, publish.t) {
        return;
    }
    let own = match covered {
        Some(_) => None,
        None if !may_be_there => return,
        None => reasons.of(taken(letter), earlier, publish),
    };
    let reason = own.or_else(|| owner.excuse(message, (before, earlier), (number, publish), covered));
    if let Some(reason) = reason {
        *reason(&mut found.counts.repeats) += 1;
        return;
    }
    let why = covered.map_or_else(
        || "though its owner had lost neither the lane nor an answer".to_owned(),
        |cover| format!("{} after a position that covers it was confirmed", duration(publish.t - cover.t)),
    );
    found.violation(facts, Check::Repeats, || {
        let mut lines = lines_of_call(earlier);
        lines.extend(lines_of_call(publish));
        lines.extend(covered.map(|cover| cover.line));
        lines.extend(case.lines_of_deeds(message));
        lines.extend(
            reasons.owner(earlier).into_iter().flat_map(|owned| [Some(owned.line), owned.ended_line]).flatten(),
        );
        let mut about = case.about(&[message]);
        about.lane = at(&facts.grants, earlier.grant).cloned();
        (format!("Message {} was published again {why}", case.id(message)), lines, about)
    });
}

/// What a call's answer says of a message; 0 where it says nothing.
fn letter(case: &Case, message: MessageNo, publish: &Publish) -> Option<u8> {
    let (ids, letters) = (case.facts.ids_of(publish), case.facts.letters_of(publish));
    ids.iter().zip(letters).find(|(id, _)| **id == message).map(|(_, letter)| *letter)
}

/// The count of a reason.
type Reason = fn(&mut Repeats) -> &mut u64;

/// What may excuse a repeat.
struct Reasons<'a> {
    case: &'a Case,
    /// Ownerships, calls in order of time, and reopenings of each grant.
    owned: HashMap<(ReplicaNo, GrantNo), Vec<&'a Ownership>>,
    calls: HashMap<(ReplicaNo, GrantNo), Vec<&'a Publish>>,
    reopened: HashMap<(ReplicaNo, GrantNo), Vec<Nanos>>,
    /// When each message was told to be set aside, first.
    aside: HashMap<MessageNo, Nanos>,
}

impl<'a> Reasons<'a> {
    fn new(case: &'a Case) -> Self {
        let mut reasons = Self {
            case,
            owned: HashMap::new(),
            calls: HashMap::new(),
            reopened: HashMap::new(),
            aside: HashMap::new(),
        };
        for (message, t) in &case.facts.aside {
            let first = reasons.aside.entry(*message).or_insert(*t);
            *first = (*first).min(*t);
        }
        for owned in &case.ownerships {
            reasons.owned.entry((owned.replica, owned.grant)).or_default().push(owned);
        }
        // Of one grant and replica they stand in one file, in order.
        for publish in &case.facts.publishes {
            reasons.calls.entry((publish.replica, publish.grant)).or_default().push(publish);
        }
        for reopening in &case.facts.reopenings {
            reasons.reopened.entry((reopening.replica, reopening.grant)).or_default().push(reopening.t);
        }
        reasons
    }

    /// Why a message of one call may come again in another one; `None` if nothing allows it. `taken`: the sink said that it
    /// took it.
    fn of(&self, taken: bool, earlier: &Publish, publish: &Publish) -> Option<Reason> {
        let same = (earlier.replica, earlier.grant) == (publish.replica, publish.grant);
        let killed = !same && self.case.facts.killed(earlier.replica).is_some_and(|t| t <= publish.t);
        let owner = self.owner(earlier).filter(|_| !same);
        let ended = owner.filter(|owned| owned.to() <= publish.t);
        let given_back = ended.filter(|owned| owned.stopped <= owned.lease).and_then(|owned| owned.how);
        let until = ended.map_or(publish.t, Ownership::to);
        if earlier.timeline < publish.timeline {
            Some(|repeats| &mut repeats.fail_over)
        } else if killed && given_back.is_none() {
            Some(|repeats| &mut repeats.kill)
        } else if !taken {
            Some(|repeats| &mut repeats.ambiguous)
        } else if self.reopened_between(earlier, until) {
            Some(|repeats| &mut repeats.reopened)
        } else {
            let owned = ended?;
            let (excused, reason): (bool, Reason) = match given_back {
                Some(Ended::Settled) => (self.is_unfinished(earlier, until), |repeats| &mut repeats.handed_over),
                Some(Ended::Unsettled) => (self.may_be_unsettled(earlier, until), |repeats| &mut repeats.handed_over),
                Some(Ended::Dropped) => (self.is_taken_away(owned), |repeats| &mut repeats.lost_lease),
                Some(Ended::Raised | Ended::Left) | None => (true, |repeats| &mut repeats.lost_lease),
            };
            excused.then_some(reason)
        }
    }

    /// Whether it had been told by then that it is set aside.
    fn is_aside(&self, message: MessageNo, t: Nanos) -> bool {
        self.aside.get(&message).is_some_and(|aside| *aside <= t)
    }

    /// Whether somebody else had taken the lane, or a part of it, when its owner stopped.
    fn is_taken_away(&self, owned: &Ownership) -> bool {
        let grants = &self.case.facts.grants;
        let Some(lost) = at(grants, owned.grant) else { return false };
        let takes = |grant: &Grant| grant.epoch > lost.epoch && related(grant, lost);
        let meanwhile = |other: &&Ownership| owned.from < other.from && other.from <= owned.stopped;
        let mut others = self.case.ownerships.iter().filter(meanwhile);
        others.any(|other| at(grants, other.grant).is_some_and(takes))
    }

    /// Whether a lane that was given back undrained could not be drained: it was not known what the sink has, or no call was
    /// begun any more for as long as draining may take. A call that was cut off then says nothing: whoever never drains has such,
    /// too.
    fn may_be_unsettled(&self, earlier: &Publish, to: Nanos) -> bool {
        let drain = self.case.facts.run().map_or(0, |run| run.drain_ms.saturating_mul(1_000_000));
        let waited = |last: &Publish| to.saturating_sub(last.t).saturating_add(TOLD_WITHIN) >= drain;
        self.first_answer(earlier, |answer| !matches!(answer, Answer::Letters | Answer::Cut)).is_some_and(|t| t <= to)
            || self.is_unfinished(earlier, to)
            || self.last_call(earlier, to).is_none_or(waited)
    }

    /// Who had the lane when a call began.
    fn owner(&self, publish: &Publish) -> Option<&'a Ownership> {
        let owned = self.owned.get(&(publish.replica, publish.grant))?;
        owned.iter().rev().find(|owned| owned.from <= publish.t).copied()
    }

    /// Whether the lane was read anew since a call, after one of its calls had an answer that does not say what the sink has.
    fn reopened_between(&self, earlier: &Publish, to: Nanos) -> bool {
        let Some(unsure) = self.first_answer(earlier, |answer| answer != Answer::Letters) else { return false };
        let reopened = self.reopened.get(&(earlier.replica, earlier.grant));
        reopened.is_some_and(|reopened| reopened.iter().any(|t| unsure <= *t && *t <= to))
    }

    fn calls_of(&self, publish: &Publish) -> &[&'a Publish] {
        self.calls.get(&(publish.replica, publish.grant)).map_or(&[][..], Vec::as_slice)
    }

    /// When the lane's first call from this one on that has such an answer got it.
    fn first_answer(&self, earlier: &Publish, is: impl Fn(Answer) -> bool) -> Option<Nanos> {
        let calls = self.calls_of(earlier);
        let from = calls.partition_point(|call| call.t < earlier.t);
        calls.iter().skip(from).find(|call| is(call.answer))?.answered.map(|(t, _)| t)
    }

    /// The last call of the lane that was begun until then.
    fn last_call(&self, of: &Publish, to: Nanos) -> Option<&'a Publish> {
        let calls = self.calls_of(of);
        calls.partition_point(|call| call.t <= to).checked_sub(1).and_then(|index| calls.get(index)).copied()
    }

    /// Whether a call belongs to the lane's last batch until then, and that was not taken as a whole.
    fn is_unfinished(&self, earlier: &Publish, to: Nanos) -> bool {
        self.last_call(earlier, to).is_some_and(|last| {
            let letters = self.case.facts.letters_of(last);
            last.batch == earlier.batch && !letters.iter().all(|letter| taken(*letter))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Event;
    use crate::story::{SECOND, Story, grant};

    fn ours(epoch: i64) -> [Grant; 1] {
        [grant(0, 1, epoch)]
    }

    /// Two replicas, whose leases last; the first one has the lane.
    fn two(exactly_once: bool) -> Story {
        Story::run(exactly_once).joined(1, "r1", 1_000).joined(1, "r2", 1_000).claimed(5, "r1", &ours(1))
    }

    /// Violations, and the reasons for what is none.
    fn found(story: &Story) -> (u64, Repeats) {
        let found = story.judged(check);
        (found.of(Check::Repeats), found.counts.repeats)
    }

    #[test]
    fn nothing_arrives_twice_where_the_sink_drops_repeats() {
        for (exactly_once, expected) in [(true, 1), (false, 0)] {
            let [a, b] = [grant(0, 1, 1), grant(0, 1, 2)];
            let story = two(exactly_once)
                .published(10, "r1", &a, 1, &["a"], "")
                .dropped(15, "r1", &ours(1))
                .published(20, "r2", &b, 1, &["a"], "d")
                .arrived(90, "t", &["a", "a"])
                .judged(check);
            assert_eq!((story.of(Check::Repeats), story.counts.repeated), (expected, 1));
        }
    }

    #[test]
    fn what_a_position_covers_does_not_come_again() {
        let (a, b) = (grant(0, 2, 1), grant(2, 4, 2));
        let story = |acknowledged| {
            Story::run(false)
                .joined(1, "r1", 24)
                .claimed(5, "r1", &[grant(0, 2, 1)])
                .published(10, "r1", &a, 1, &["a"], "d")
                .acknowledged(acknowledged, "r1", &a, 1)
                .dropped(25, "r1", &[grant(0, 2, 1)])
                .published(30, "r2", &b, 1, &["a"], "d")
        };
        let bad = story(20).judged(check);
        assert_eq!((bad.of(Check::Repeats), bad.counts.repeats.sum()), (1, 0));
        assert!(bad.listed[0].text.contains("after a position that covers it"));
        assert_eq!(found(&story(40)), (0, Repeats { lost_lease: 1, ..Repeats::default() }));
    }

    #[test]
    fn only_an_asynchronous_fail_over_takes_positions_back() {
        let g = grant(0, 1, 1);
        for (safe, expected) in [(None, 1), (Some(25), 1), (Some(15), 0)] {
            let story = two(false)
                .published(10, "r1", &g, 1, &["a"], "d")
                .acknowledged(20, "r1", &g, 1)
                .failed_over_from(30, 40, 2, safe)
                .on(2)
                .published(50, "r1", &g, 1, &["a"], "d");
            let (violations, repeats) = found(&story);
            assert_eq!((violations, repeats.fail_over), (expected, 1 - expected));
        }
    }

    #[test]
    fn what_was_not_taken_is_tried_again_and_no_repeat() {
        let g = grant(0, 1, 1);
        let story = two(false)
            .published(10, "r1", &g, 1, &["a", "b"], "dt")
            .published(20, "r1", &g, 1, &["b"], "d")
            .published(30, "r1", &g, 2, &["c"], "fenced")
            .published(40, "r1", &g, 2, &["c"], "d");
        assert_eq!(found(&story), (0, Repeats::default()));
    }

    /// A position passes it, and it is published again; one that the sink has taken is not.
    #[test]
    fn what_is_set_aside_is_published_again() {
        let g = grant(0, 1, 1);
        let story = |answer, aside: &[&str]| {
            let first = two(false).published(10, "r1", &g, 1, &["a", "b"], answer);
            found(&first.acknowledged_without(20, &g, 1, aside).published(30, "r1", &g, 2, &["a"], "d")).0
        };
        assert_eq!([story("td", &["a"]), story("td", &[]), story("td", &["b"]), story("dd", &["a"])], [0, 1, 1, 1]);
    }

    #[test]
    fn a_healthy_owner_repeats_nothing() {
        let g = grant(0, 1, 1);
        let again = |story: Story| found(&story.published(30, "r1", &g, 2, &["a"], "d"));
        let first = || two(false).published(10, "r1", &g, 1, &["a"], "d");
        assert_eq!(again(first()).0, 1);
        // It reads anew for no reason.
        assert_eq!(again(first().reopened(25, "r1", &g)).0, 1);
        let unsure = first().published(20, "r1", &g, 2, &["b"], "ambiguous");
        assert_eq!(again(unsure.clone()).0, 1);
        assert_eq!(again(unsure.reopened(25, "r1", &g)), (0, Repeats { reopened: 1, ..Repeats::default() }));
    }

    #[test]
    fn a_lane_that_is_handed_over_leaves_nothing_to_repeat() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let next = |story: Story| found(&story.claimed(25, "r2", &ours(2)).published(30, "r2", &b, 1, &["a"], "d"));
        let first = || two(false).published(10, "r1", &a, 1, &["a"], "d");
        assert_eq!(next(first().released(20, "r1", &ours(1))).0, 1);
        let later = first().published(12, "r1", &a, 2, &["b"], "t");
        assert_eq!(next(later.released(20, "r1", &ours(1))).0, 1, "another batch was interrupted");
        let handed_over = Repeats { handed_over: 1, ..Repeats::default() };
        let interrupted = two(false).published(10, "r1", &a, 1, &["a", "b"], "dt").released(20, "r1", &ours(1));
        assert_eq!(next(interrupted), (0, handed_over));
        let lost_lease = Repeats { lost_lease: 1, ..Repeats::default() };
        assert_eq!(next(first().left(20, "r1")), (0, lost_lease));
        assert_eq!(next(first()).0, 1, "its lease lasts");
    }

    /// Whoever never drains says as much.
    #[test]
    fn who_gives_a_lane_back_undrained_had_tried_to_drain_it() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let first = |until| Story::run(false).joined(1, "r1", until).claimed(5, "r1", &ours(1));
        let next = |story: Story, t| {
            let story = story.released_unsettled(t, "r1", &ours(1)).claimed(t + 1, "r2", &ours(2));
            found(&story.published(t + 2, "r2", &b, 1, &["a"], "d"))
        };
        let handed_over = (0, Repeats { handed_over: 1, ..Repeats::default() });
        let taken = || first(60 * SECOND).published(SECOND, "r1", &a, 1, &["a"], "d");
        assert_eq!(next(taken(), 6 * SECOND - TOLD_WITHIN), handed_over, "five seconds are over");
        assert_eq!(next(taken(), 6 * SECOND - TOLD_WITHIN - 1).0, 1);
        let went_on = taken().published(2 * SECOND, "r1", &a, 2, &["b"], "d");
        assert_eq!(next(went_on, 6 * SECOND).0, 1, "it began another call meanwhile");
        let unsure = taken().published(2 * SECOND, "r1", &a, 2, &["b"], "ambiguous");
        assert_eq!(next(unsure, 3 * SECOND), handed_over);
        let cut = taken().published(2 * SECOND, "r1", &a, 2, &["b"], "cut");
        assert_eq!(next(cut, 3 * SECOND).0, 1);
        let interrupted = first(60 * SECOND).published(SECOND, "r1", &a, 1, &["a", "c"], "dt");
        assert_eq!(next(interrupted, 2 * SECOND), handed_over);
    }

    /// Older histories tell of a lane that was given back undrained as dropped first, and then as settled.
    #[test]
    fn what_older_histories_tell_of_an_undrained_lane() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let dropped =
            Event::Dropped { replica: "r1".into(), grants: ours(1).to_vec(), why: "it is given back as it is".into() };
        for (t, expected) in [(2 * SECOND, 1), (6 * SECOND, 0)] {
            let story = Story::run(false).joined(1, "r1", 60 * SECOND).claimed(5, "r1", &ours(1));
            let story = story.published(SECOND, "r1", &a, 1, &["a"], "d").at(t, dropped.clone());
            let story = story.released(t + 1, "r1", &ours(1)).published(t + 2, "r2", &b, 1, &["a"], "d");
            assert_eq!(found(&story).0, expected);
        }
    }

    #[test]
    fn who_says_that_it_lost_a_lane_had_lost_it() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let lost_lease = (0, Repeats { lost_lease: 1, ..Repeats::default() });
        for (until, claimed, expected) in [(1_000, 25, None), (1_000, 20, Some(())), (19, 25, Some(()))] {
            let story = Story::run(false).joined(1, "r1", until).claimed(5, "r1", &ours(1));
            let story = story.published(10, "r1", &a, 1, &["a"], "d").dropped(20, "r1", &ours(1));
            let story = story.claimed(claimed, "r2", &ours(2)).published(30, "r2", &b, 1, &["a"], "d");
            match expected {
                Some(()) => assert_eq!(found(&story), lost_lease),
                None => assert_eq!(found(&story).0, 1, "nobody had taken it, and its lease lasted"),
            }
        }
    }

    #[test]
    fn reasons_are_told_apart() {
        let (a, b) = (grant(0, 1, 1), grant(0, 1, 2));
        let killed = two(false).published(10, "r1", &a, 1, &["a"], "").fault("kill", "r1", 15, 16).published(
            30,
            "r2",
            &b,
            1,
            &["a"],
            "d",
        );
        assert_eq!(found(&killed), (0, Repeats { kill: 1, ..Repeats::default() }));
        let unsure = two(false).published(10, "r1", &a, 1, &["a"], "ambiguous").published(30, "r1", &a, 1, &["a"], "d");
        assert_eq!(found(&unsure), (0, Repeats { ambiguous: 1, ..Repeats::default() }));
        let late = two(false).published(10, "r1", &a, 1, &["a"], "d").published(1_000, "r2", &b, 1, &["a"], "d");
        assert_eq!(found(&late), (0, Repeats { lost_lease: 1, ..Repeats::default() }));
    }

    #[test]
    fn what_a_half_repeats_of_the_whole_is_a_repeat() {
        let (whole, half) = (grant(0, 1, 1), grant(1, 2, 2));
        let story = two(false).published(10, "r1", &whole, 1, &["a"], "d").released(20, "r1", &ours(1)).published(
            30,
            "r2",
            &half,
            1,
            &["a"],
            "d",
        );
        assert_eq!(found(&story).0, 1);
    }

    #[test]
    fn a_sink_drops_only_what_was_published_before() {
        let g = grant(0, 1, 1);
        assert_eq!(found(&Story::run(false).published(10, "r1", &g, 1, &["a"], "r")).0, 1);
    }

    /// It tells what it has: nothing that it would have to drop is sent to it.
    #[test]
    fn a_sink_that_keeps_a_position_drops_something_only_after_a_fail_over() {
        let g = grant(0, 1, 1);
        for (timeline, expected) in [(1, 1), (2, 0)] {
            let story = two(true).published(10, "r1", &g, 1, &["a"], "ambiguous").on(timeline);
            let story = story.published(20, "r1", &g, 1, &["a"], "r").judged(check);
            assert_eq!((story.of(Check::Repeats), story.counts.dropped_by_sink), (expected, 1));
        }
        let twice = two(true).published(10, "r1", &g, 1, &["a"], "d").on(2);
        let twice = twice.published(20, "r1", &g, 1, &["a"], "ambiguous").published(30, "r1", &g, 1, &["a"], "r");
        assert_eq!(found(&twice).0, 0, "it may have been the first one");
    }

    #[test]
    fn nothing_arrives_that_was_not_published() {
        let story = Story::run(false).published(10, "r1", &grant(0, 1, 1), 1, &["a"], "d");
        assert_eq!(found(&story.arrived(90, "t", &["a", "a", "b"])).0, 2);
    }
}
