//! What the owner of an adopted table did to a row may have its message sent again: once for each setting back, and in the lane of
//! its new key beside that of its former one.

use std::collections::HashMap;

use super::{Reason, letter};
use crate::case::Case;
use crate::covered::Cover;
use crate::facts::{MessageNo, Publish, PublishNo, at, taken};
use crate::history::{Deed, Nanos};
use crate::lanes::related;
use crate::meddled::Row;

/// Excuses by what the owner did to just this row.
pub(super) struct Owner<'a> {
    case: &'a Case,
    /// Settings back that have excused a publish, by their numbers among the row's deeds: which one, and when it began.
    used: HashMap<(MessageNo, usize), (PublishNo, Nanos)>,
}

impl<'a> Owner<'a> {
    pub(super) fn new(case: &'a Case) -> Self {
        Self { case, used: HashMap::new() }
    }

    /// The calls that a publish of this message has to be told from: the last one before it, and if that was in a lane that has
    /// no message in common with this one's, since the row's key was changed, the last one of this one's, too.
    pub(super) fn before(
        &self,
        message: MessageNo,
        (number, publish): (PublishNo, &'a Publish),
        last: Option<PublishNo>,
    ) -> Vec<(PublishNo, &'a Publish)> {
        let found = |number| Some((number, at(&self.case.facts.publishes, number)?));
        let last = last.and_then(found);
        let elsewhere = last.is_some_and(|(_, last)| !self.in_one_lane(last, publish));
        let row = self.case.meddled.of(message).filter(|_| elsewhere && self.case.meddled.is_rekeyed(message));
        let calls = row.into_iter().flat_map(|row| &row.calls).map(|call| call.number);
        let before = calls.take_while(|call| *call != number).filter_map(found);
        let own = before.filter(|(_, earlier)| self.in_one_lane(earlier, publish)).last();
        last.into_iter().chain(own).collect()
    }

    /// The last call before of which the sink said that it took the row's message: what it drops later it may have from that one.
    pub(super) fn last_taken(&self, message: MessageNo, number: PublishNo) -> Option<(PublishNo, &'a Publish)> {
        let row = self.case.meddled.of(message)?;
        let before = row.calls.iter().map(|call| call.number).take_while(|call| *call != number);
        let found = before.filter_map(|number| Some((number, at(&self.case.facts.publishes, number)?)));
        found.filter(|(_, earlier)| letter(self.case, message, earlier).is_some_and(taken)).last()
    }

    fn in_one_lane(&self, a: &Publish, b: &Publish) -> bool {
        let grants = &self.case.facts.grants;
        at(grants, a.grant).zip(at(grants, b.grant)).is_none_or(|(a, b)| related(a, b))
    }

    /// Why the message may come again in this publish. A setting back excuses one publish.
    pub(super) fn excuse(
        &mut self,
        message: MessageNo,
        (before, earlier): (PublishNo, &Publish),
        (number, publish): (PublishNo, &Publish),
        cover: Option<Cover>,
    ) -> Option<Reason> {
        let row = self.case.meddled.of(message)?;
        if self.is_in_two_lanes(row, (before, earlier), (number, publish), cover) {
            return Some(|repeats| &mut repeats.rekeyed);
        }
        // Whoever set it back found it marked: after the first call had begun, and if it is known when that was marked, after that.
        let own = |cover: &Cover| (cover.grant, cover.batch, cover.again) == (earlier.grant, earlier.batch, false);
        let since = cover.filter(own).map_or(earlier.t, |cover| cover.sent);
        let nth = row.deeds.iter().enumerate().position(|(nth, done)| {
            let between = done.to >= since && done.from <= publish.t;
            // What it has excused may lie between the two, in another lane.
            let left = self.used.get(&(message, nth)).is_none_or(|(by, t)| *by == number || *t > earlier.t);
            done.deed == Deed::SetBack && done.may_stand() && between && left
        })?;
        self.used.entry((message, nth)).or_insert((number, publish.t));
        Some(|repeats| &mut repeats.set_back)
    }

    /// Whether a call of the other lane that the row is in began before this one was answered: of two such calls the sink may take
    /// what it has from the one that began later.
    pub(super) fn is_sent_meanwhile(&self, message: MessageNo, (number, publish): (PublishNo, &Publish)) -> bool {
        let Some(row) = self.case.meddled.of(message) else { return false };
        let answered = publish.answered.map_or(Nanos::MAX, |(t, _)| t);
        let mut later = row.calls.iter().filter(|call| publish.t <= call.t && call.t <= answered);
        later.any(|call| {
            let other = at(&self.case.facts.publishes, call.number);
            other.is_some_and(|other| self.is_in_two_lanes(row, (number, publish), (call.number, other), None))
        })
    }

    /// Whether one of two calls, of lanes that have nothing in common, may have read the row under its former key and the other
    /// one under its new key; the second one before it was marked for the first.
    fn is_in_two_lanes(
        &self,
        row: &Row,
        (before, earlier): (PublishNo, &Publish),
        (number, publish): (PublishNo, &Publish),
        cover: Option<Cover>,
    ) -> bool {
        if self.in_one_lane(earlier, publish) {
            return false;
        }
        let read_from = |number| {
            let call = row.calls.iter().find(|call| call.number == number);
            call.map_or(Nanos::MAX, |call| call.read_from)
        };
        let (first, second) = (read_from(before), read_from(number));
        let before_the_mark = cover.is_none_or(|cover| second <= cover.t);
        let mut changes = row.may(Deed::Rekeyed);
        before_the_mark
            && changes.any(|done| {
                (first <= done.to && done.from <= publish.t) || (second <= done.to && done.from <= earlier.t)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use crate::found::Check;
    use crate::history::{Deed, Grant};
    use crate::story::{Story, grant};
    use crate::verdict::Repeats;

    /// Two owners of two lanes.
    fn lanes(exactly_once: bool) -> (Story, [Grant; 2]) {
        let lanes = [grant(0, 2, 1), grant(1, 2, 1)];
        let story = Story::run(exactly_once).joined(1, "r", 1_000).joined(1, "s", 1_000);
        (story.claimed(5, "r", &lanes[..1]).claimed(5, "s", &lanes[1..]), lanes)
    }

    fn found(story: &Story) -> (u64, Repeats) {
        let found = story.judged(check);
        (found.of(Check::Repeats), found.counts.repeats)
    }

    #[test]
    fn a_setting_back_excuses_one_repeat_of_that_row() {
        for (exactly_once, letter) in [(false, "d"), (true, "r")] {
            let (story, [g, _]) = lanes(exactly_once);
            let sent = story.published(10, "r", &g, 1, &["a"], "d").marked(20, &g, 1, false, &[]);
            let set_back = |t, ids: &[&str]| sent.clone().meddled(t, 2, Deed::SetBack, ids).ledger(900, &[2]);
            let again = |story: Story, t, batch| story.published(t, "r", &g, batch, &["a"], letter);
            let once = Repeats { set_back: 1, ..Repeats::default() };
            assert_eq!(found(&again(set_back(30, &["a"]), 40, 2)), (0, once.clone()));
            let twice = again(again(set_back(30, &["a"]), 40, 2).marked(50, &g, 2, false, &[]), 60, 3);
            let wrong = if exactly_once { 2 } else { 1 };
            assert_eq!(found(&twice), (wrong, once.clone()), "once for each setting back");
            assert_eq!(found(&again(set_back(50, &["a"]), 40, 2)).0, wrong, "it was sent before");
            assert_eq!(found(&again(set_back(8, &["a"]), 40, 2)).0, wrong, "it was marked later");
            assert_eq!(found(&again(set_back(30, &["b"]), 40, 2)).0, wrong, "that was another row");
            assert_eq!(found(&again(set_back(30, &["a"]).rolled_back(31, 2), 40, 2)), (0, once), "the ledger knows");
            let undone = sent.clone().meddles(30, 2, Deed::SetBack, &["a"]).rolled_back(31, 2).ledger(900, &[]);
            assert_eq!(found(&again(undone, 40, 2)).0, wrong);
            for deed in [Deed::Locked, Deed::Changed, Deed::Rekeyed, Deed::Deleted] {
                let story = sent.clone().meddled(30, 2, deed, &["a"]).ledger(900, &[2]);
                assert_eq!(found(&again(story, 40, 2)).0, wrong, "{deed:?} excuses nothing within one lane");
            }
        }
    }

    /// It was sent again, and the sink had not taken it then: what it drops later it has from before.
    #[test]
    fn an_answer_that_was_lost_does_not_use_a_setting_back_up() {
        let (story, [g, _]) = lanes(true);
        let sent = story.published(10, "r", &g, 1, &["a"], "d").marked(20, &g, 1, false, &[]);
        let unsure = |story: Story| story.published(40, "r", &g, 2, &["a"], "ambiguous");
        let dropped = |story: Story, t| story.published(t, "r", &g, 2, &["a"], "r").ledger(900, &[2]);
        let good = dropped(unsure(sent.clone().meddled(30, 2, Deed::SetBack, &["a"])), 50);
        assert_eq!(found(&good), (0, Repeats { set_back: 1, ambiguous: 1, ..Repeats::default() }));
        assert_eq!(found(&dropped(good, 60)).0, 2);
        assert!(found(&dropped(unsure(sent), 50)).0 > 0);
    }

    /// The sink has it from the call that began later.
    #[test]
    fn of_two_lanes_at_once_either_may_come_first() {
        let (story, [a, b]) = lanes(true);
        let both = |deed, answered| {
            let story = story.clone().meddled(8, 2, deed, &["a"]).publish(10, "r", &a, 1, &["a"]).writing(11, "r", &a);
            let story = story.published(15, "s", &b, 1, &["a"], "d");
            found(&story.answered(answered, "r", &a, 1, "r").ledger(900, &[2])).0
        };
        assert_eq!((both(Deed::Rekeyed, 20), both(Deed::Rekeyed, 14)), (0, 1));
        assert_eq!(both(Deed::Changed, 20), 2, "it has no other lane");
    }

    /// The answer to the mark was lost: the position that covers it was written for a later batch.
    #[test]
    fn when_it_was_marked_only_the_mark_of_its_very_batch_knows() {
        let (story, [g, _]) = lanes(false);
        let sent = story.published(10, "r", &g, 1, &["a"], "d").meddled(30, 2, Deed::SetBack, &["a"]).ledger(900, &[2]);
        let next = |batch, again| {
            let story = sent.clone().published(35, "r", &g, 2, &["b"], "d").marked(40, &g, batch, again, &[]);
            found(&story.published(50, "r", &g, 3, &["a"], "d")).0
        };
        assert_eq!((next(2, false), next(1, true), next(1, false)), (0, 0, 1));
    }

    #[test]
    fn a_row_of_another_key_may_be_in_two_lanes() {
        let rekeyed = (0, Repeats { rekeyed: 1, ..Repeats::default() });
        for (exactly_once, letter) in [(false, "d"), (true, "r")] {
            let (story, [a, b]) = lanes(exactly_once);
            let sent = story.published(10, "r", &a, 1, &["a"], "d");
            let other = |story: Story, t| story.published(t, "s", &b, 1, &["a"], letter).ledger(900, &[2]);
            let moved = |t, deed, ids: &[&str]| sent.clone().meddled(t, 2, deed, ids);
            assert_eq!(found(&other(moved(15, Deed::Rekeyed, &["a"]), 20)), rekeyed);
            assert_eq!(found(&other(moved(15, Deed::Rekeyed, &["a"]).marked(18, &a, 1, false, &[]), 20)), rekeyed);
            assert!(found(&other(moved(15, Deed::Rekeyed, &["b"]), 20)).0 > 0, "that was another row");
            assert!(found(&other(moved(25, Deed::Rekeyed, &["a"]), 20)).0 > 0, "it was sent before");
            assert!(found(&other(moved(15, Deed::Changed, &["a"]), 20)).0 > 0);
            let late =
                moved(15, Deed::Rekeyed, &["a"]).marked(18, &a, 1, false, &[]).claimed(19, "q", &[grant(1, 2, 2)]);
            let late = late.published(20, "q", &grant(1, 2, 2), 1, &["a"], letter).ledger(900, &[2]);
            assert!(found(&late).0 > 0, "it took the lane after the row was marked");
            let again = other(moved(15, Deed::Rekeyed, &["a"]), 20).published(30, "r", &a, 2, &["a"], letter);
            assert!(found(&again).0 > 0, "nothing excuses that its first lane sends it once more");
        }
    }
}
