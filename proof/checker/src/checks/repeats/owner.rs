//! What the owner of an adopted table did to a row may have its message sent again: once for each setting back, and in the lane of
//! its new key beside that of its former one.

use std::collections::HashMap;

use super::Reason;
use crate::case::Case;
use crate::covered::Cover;
use crate::facts::{MessageNo, Publish, PublishNo, at};
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
