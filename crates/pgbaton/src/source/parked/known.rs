//! What is known in memory of one relay's messages that are set aside. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::filter::Filter;
use crate::lease::BootInstant;

/// How often it is asked which lanes have messages that were set aside: an operator may have brought some back.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// What is due and was not taken is asked for again no sooner.
const AGAIN: Duration = Duration::from_millis(100);
/// How often the filter is made anew at most: each time all keys are walked.
const FILTERED_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Known {
    /// Of each lane that is open.
    lanes: BTreeMap<i32, KnownLane>,
    /// Grows with whatever an answer that is under way may not have seen.
    changes: u64,
    /// When the next one is due; `None`: not before it is asked again.
    due: Option<BootInstant>,
    /// How many rows of an adopted table are, of the whole relay, up to a number.
    rows: i64,
    filter: Option<Filter>,
    /// Keys that were asked for in vain.
    vain: usize,
    /// When it may be made anew.
    again: Option<BootInstant>,
    /// Keys that were put in while it is being made anew.
    since: Option<Vec<i64>>,
}

struct KnownLane {
    /// It may have some. Of the others nothing is asked.
    some: bool,
    /// When it is asked again; `None`: it was not asked yet.
    again: Option<BootInstant>,
    /// The filter has all its keys. Of any other lane all keys are asked for.
    filtered: bool,
    /// So will have the one that is being made.
    coming: bool,
}

/// What the database answered.
pub(super) struct Answer {
    /// Lanes that have some.
    pub(super) some: Vec<i32>,
    pub(super) due: Option<BootInstant>,
    pub(super) rows: i64,
}

impl Known {
    /// Until it is asked, it may have some.
    pub(super) fn opened(&mut self, lane: i32) {
        self.changes += 1;
        self.lanes.insert(lane, KnownLane { some: true, again: None, filtered: false, coming: false });
    }

    /// Somebody has changed what is set aside: of all lanes it is asked anew, and of all keys until there is another filter.
    pub(super) fn forget(&mut self) {
        self.changes += 1;
        self.again = None;
        for lane in self.lanes.values_mut() {
            *lane = KnownLane { some: true, again: None, filtered: false, coming: false };
        }
    }

    pub(super) fn closed(&mut self, lane: i32) {
        self.lanes.remove(&lane);
    }

    /// Some of these keys were set aside, or brought forward, and the first of them is due at that moment.
    pub(super) fn changed(&mut self, lane: i32, hashes: impl IntoIterator<Item = i64>, due: Option<BootInstant>) {
        self.changes += 1;
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.some = true;
        }
        self.due = self.due.into_iter().chain(due).min();
        self.have(hashes);
    }

    /// There are some of these keys.
    pub(super) fn have(&mut self, hashes: impl IntoIterator<Item = i64>) {
        for hash in hashes {
            self.filter.iter_mut().for_each(|filter| filter.put(hash));
            self.since.iter_mut().for_each(|since| since.push(hash));
        }
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn is_to_be_asked(&self, now: BootInstant) -> bool {
        self.lanes.values().any(|lane| lane.again.is_none_or(|again| now >= again))
    }

    /// An answer for these lanes, which was asked for when so many changes were known. If there were more since, it says of no lane
    /// that it has none.
    pub(super) fn answered(&mut self, (changes, lanes): (u64, &[i32]), answer: &Answer, now: BootInstant) {
        let sure = changes == self.changes;
        for number in lanes {
            if let Some(lane) = self.lanes.get_mut(number) {
                let some = answer.some.contains(number);
                lane.some = some || (lane.some && !sure);
                lane.again = Some(now.after(ASKED_EVERY));
            }
        }
        self.rows = answer.rows;
        self.due = self.due.into_iter().chain(answer.due).min();
    }

    fn may_be_in(&self, lane: i32) -> bool {
        self.lanes.get(&lane).is_none_or(|lane| lane.some)
    }

    /// Those of these keys of a lane that may have some, each once.
    pub(super) fn may_have(&self, lane: i32, hashes: &[i64]) -> Vec<i64> {
        if !self.may_be_in(lane) {
            return Vec::new();
        }
        let filter = self.filter.as_ref().filter(|_| self.lanes.get(&lane).is_some_and(|lane| lane.filtered));
        let may_have = |hash: &i64| filter.is_none_or(|filter| filter.may_have(*hash));
        let mut all: Vec<i64> = hashes.iter().copied().filter(may_have).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// So many keys that may have had some have none.
    pub(super) fn asked_in_vain(&mut self, keys: usize) {
        self.vain = self.vain.saturating_add(keys);
    }

    /// Whether all keys are to be put into a new filter: because the one there is lacks a lane, or does not serve any more. From now
    /// on until it is there, what is put in is remembered.
    pub(super) fn filter_begins(&mut self, now: BootInstant) -> bool {
        if !self.lanes.values().any(|lane| lane.some) {
            (self.filter, self.since) = (None, None);
            self.lanes.values_mut().for_each(|lane| lane.filtered = false);
            return false;
        }
        let lacks = self.lanes.values().any(|lane| lane.some && !lane.filtered);
        let worn = self.filter.as_ref().is_some_and(|filter| filter.is_worn(self.vain));
        let begins = (lacks || worn) && self.again.is_none_or(|again| now >= again);
        if begins {
            self.again = Some(now.after(FILTERED_EVERY));
            self.since = Some(Vec::new());
            self.lanes.values_mut().for_each(|lane| lane.coming = true);
        }
        begins
    }

    /// It did not come.
    pub(super) fn filter_failed(&mut self) {
        self.since = None;
    }

    /// It has all keys, as they were when it began. What was opened since may have had others before.
    pub(super) fn filtered(&mut self, mut filter: Filter) {
        filter.fold();
        self.since.take().into_iter().flatten().for_each(|hash| filter.put(hash));
        (self.filter, self.vain) = (Some(filter), 0);
        self.lanes.values_mut().for_each(|lane| lane.filtered = std::mem::take(&mut lane.coming));
    }

    /// Those of these lanes that may have some that are due.
    pub(super) fn due(&self, lanes: &[i32], now: BootInstant) -> Vec<i32> {
        match self.due {
            Some(due) if now >= due => lanes.iter().copied().filter(|lane| self.may_be_in(*lane)).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether something is to be asked, or to be read.
    pub(super) fn is_due(&self, now: BootInstant) -> bool {
        self.is_to_be_asked(now) || self.due.is_some_and(|due| now >= due)
    }

    /// What was due was read. What of it is not taken is asked for again soon; and if there was none, when the next one is.
    pub(super) fn due_was_read(&mut self, any: bool, now: BootInstant) {
        let soon = now.after(AGAIN);
        self.due = any.then_some(soon);
        if !any {
            self.lanes.values_mut().for_each(|lane| lane.again = lane.again.map(|again| again.min(soon)));
        }
    }

    /// How many rows of an adopted table are set aside; `None` if none of these lanes is for sure.
    pub(super) fn rows(&self) -> Option<i64> {
        // Dead ones that their keys go past hold nobody, and are pending all the same.
        (self.rows > 0 || self.lanes.values().any(|lane| lane.some)).then_some(self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    fn answer(some: &[i32]) -> Answer {
        Answer { some: some.to_vec(), due: None, rows: 0 }
    }

    #[test]
    fn a_lane_is_asked_nothing_once_it_is_known_to_have_none() {
        let mut known = Known::default();
        known.opened(1);
        assert!(known.may_be_in(1) && known.is_to_be_asked(at(0)));
        known.answered((known.changes, &[1]), &answer(&[]), at(0));
        assert!(!known.may_be_in(1) && !known.is_to_be_asked(at(4)) && known.is_to_be_asked(at(5)));
        known.changed(1, [7], Some(at(9)));
        assert!(known.may_be_in(1));
        assert_eq!(known.due, Some(at(9)));
    }

    /// The answer is of before: it knows nothing of a lane that was opened, or of a message that was set aside, while it was under way.
    #[test]
    fn an_answer_that_comes_late_says_of_no_lane_that_it_has_none() {
        let mut known = Known::default();
        known.opened(1);
        let changes = known.changes;
        known.opened(2);
        known.answered((changes, &[1, 2]), &answer(&[]), at(0));
        assert!(known.may_be_in(1) && known.may_be_in(2));
        known.answered((known.changes, &[1, 2]), &answer(&[]), at(0));
        assert!(!known.may_be_in(1) && !known.may_be_in(2));
        let changes = known.changes;
        known.changed(1, [], None);
        known.answered((changes, &[1, 2]), &answer(&[]), at(0));
        assert!(known.may_be_in(1));
        // One that was not asked for is unknown.
        assert!(known.may_be_in(3));
    }

    fn with(keys: &[i64]) -> Filter {
        let mut filter = Filter::new();
        keys.iter().for_each(|key| filter.put(*key));
        filter
    }

    const KEYS: [i64; 3] = [1 << 40, 2 << 40, 3 << 40];

    #[test]
    fn what_the_filter_does_not_have_is_not_asked_for() {
        let mut known = Known::default();
        known.opened(1);
        assert_eq!(known.may_have(1, &KEYS), KEYS, "there is none yet");
        assert!(known.filter_begins(at(0)));
        known.filtered(with(&KEYS[..1]));
        assert_eq!(known.may_have(1, &KEYS), KEYS[..1]);
        assert!(!known.filter_begins(at(1)), "it serves");
        known.changed(1, [KEYS[2]], None);
        assert_eq!(known.may_have(1, &[KEYS[2], KEYS[0], KEYS[1], KEYS[2]]), [KEYS[0], KEYS[2]]);
        known.asked_in_vain(2_000);
        assert!(known.filter_begins(at(1)), "it serves no more");
    }

    #[test]
    fn what_is_set_aside_while_the_filter_is_made_is_in_it() {
        let mut known = Known::default();
        known.opened(1);
        assert!(known.filter_begins(at(0)));
        known.changed(1, [KEYS[1]], None);
        known.filtered(with(&[]));
        assert_eq!(known.may_have(1, &KEYS), KEYS[1..2]);
    }

    #[test]
    fn what_a_command_has_changed_is_asked_for_anew() {
        let mut known = Known::default();
        known.opened(1);
        known.answered((known.changes, &[1]), &answer(&[1]), at(0));
        assert!(known.filter_begins(at(0)));
        known.filtered(with(&KEYS[..1]));
        assert_eq!(known.may_have(1, &KEYS), KEYS[..1]);
        known.forget();
        assert!(known.is_to_be_asked(at(0)) && known.may_be_in(1));
        assert_eq!(known.may_have(1, &KEYS), KEYS);
        // A filter that was begun before may lack what was changed.
        assert!(known.filter_begins(at(0)));
        known.forget();
        known.filtered(with(&[]));
        assert_eq!(known.may_have(1, &KEYS), KEYS);
    }

    /// Another one may have had it meanwhile, and have set more aside.
    #[test]
    fn of_a_lane_that_is_opened_while_the_filter_is_made_it_may_lack_some() {
        let mut known = Known::default();
        known.opened(1);
        known.opened(2);
        assert!(known.filter_begins(at(0)));
        known.closed(2);
        known.opened(2);
        known.filtered(with(&[]));
        assert_eq!((known.may_have(1, &KEYS), known.may_have(2, &KEYS)), (Vec::new(), KEYS.to_vec()));
        assert!(!known.filter_begins(at(0)), "not so soon");
        assert!(known.filter_begins(at(1)));
    }

    #[test]
    fn what_was_due_is_asked_for_again_soon_and_not_at_once() {
        let mut known = Known::default();
        known.opened(1);
        known.answered((known.changes, &[1]), &Answer { due: Some(at(3)), ..answer(&[1]) }, at(0));
        assert!(known.due(&[1], at(2)).is_empty() && !known.is_due(at(2)));
        assert_eq!(known.due(&[1], at(3)), [1]);
        known.due_was_read(true, at(3));
        assert!(!known.is_due(at(3)) && known.is_due(at(4)));
        known.due_was_read(false, at(4));
        assert!(!known.is_due(at(4)) && known.is_to_be_asked(at(5)) && known.due(&[1], at(5)).is_empty());
    }
}
