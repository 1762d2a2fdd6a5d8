//! What one relay of one replica knows of an adopted table's rows: found pending, taken to be delivered, marked. Pure.
//!
//! A row that is taken is *known* until it is marked, and until a look that began after that: a look that began before may
//! still show it as pending. So no row is taken twice, and one that its user sets back to pending is taken again.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;

use crate::error::Error;
use crate::lane::Grant;
use crate::lease::BootInstant;
use crate::source::Stint;
use crate::source::settle::Registration;

/// A row by its id columns, as texts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub(in crate::source) struct RowId(pub(super) Arc<[String]>);

impl From<Vec<String>> for RowId {
    fn from(columns: Vec<String>) -> Self {
        Self(columns.into())
    }
}

impl From<RowId> for Vec<String> {
    fn from(id: RowId) -> Self {
        id.0.to_vec()
    }
}

impl RowId {
    /// As the text of an array.
    pub(super) fn as_array(&self) -> String {
        let quoted = |text: &String| format!("\"{}\"", text.replace('\\', r"\\").replace('"', r#"\""#));
        format!("{{{}}}", self.0.iter().map(quoted).collect::<Vec<_>>().join(","))
    }

    /// Reads an id of so many columns, from this column of an answer on.
    pub(super) fn read(row: &Row, from: usize, columns: usize) -> Result<Self, Error> {
        let id = (0..columns).map(|n| row.try_get(from + n)).collect::<Result<Vec<String>, _>>()?;
        Ok(Self(id.into()))
    }
}

/// A row that was taken to be delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::source) struct TakenRow {
    pub(super) id: RowId,
    /// Which version of it was read; `None` if that is not known.
    pub(super) version: Option<i64>,
}

/// Everything that is known, of one incarnation.
#[derive(Default)]
pub(super) struct Taken {
    lanes: BTreeMap<i32, OpenLane>,
    /// Taken and not marked, or marked since the last look began; each with the lane it was taken for.
    known: HashMap<RowId, i32>,
    marked: Vec<RowId>,
}

struct OpenLane {
    grant: Grant,
    stint: Stint,
    registration: Registration,
    /// Pending by the last look and not known, in order.
    found: VecDeque<RowId>,
    /// The number of its last batch that was marked in this stint.
    marked: i64,
    /// The first of `found` cannot be a message: nothing is taken before it can, and no look asks for the lane. It is tried
    /// again from this moment on.
    blocked: Option<BootInstant>,
    /// Something was taken since the last look for it.
    took: bool,
}

/// A lane that is asked for rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) lane: i32,
    pub(super) of: i32,
    pub(super) stint: Stint,
}

/// Lanes that have nothing left of the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lacks {
    None,
    Some,
    All,
}

impl Taken {
    pub(super) fn open(&mut self, grant: Grant, stint: Stint, registration: Registration) {
        self.forget(grant.lane.number);
        let lane = OpenLane {
            stint,
            registration,
            found: VecDeque::new(),
            marked: i64::MIN,
            blocked: None,
            took: false,
            grant,
        };
        self.lanes.insert(lane.grant.lane.number, lane);
    }

    /// What was taken for it and not marked is taken again by whoever opens it next.
    pub(super) fn close(&mut self, grant: &Grant) {
        if self.lanes.get(&grant.lane.number).is_some_and(|lane| lane.grant == *grant) {
            self.forget(grant.lane.number);
        }
    }

    fn forget(&mut self, lane: i32) {
        if self.lanes.remove(&lane).is_some() {
            self.known.retain(|_, of| *of != lane);
        }
    }

    /// Whether this lane is open.
    pub(super) fn has(&self, lane: i32) -> bool {
        self.lanes.contains_key(&lane)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Those of these grants that are open.
    pub(super) fn asked<'a>(&self, grants: impl IntoIterator<Item = &'a Grant>) -> Vec<Asked> {
        let open = |grant: &Grant| self.lanes.get(&grant.lane.number).filter(|lane| lane.grant == *grant);
        let asked =
            |grant: &Grant, lane: &OpenLane| Asked { lane: grant.lane.number, of: grant.lane.of, stint: lane.stint };
        grants.into_iter().filter_map(|grant| Some(asked(grant, open(grant)?))).collect()
    }

    pub(super) fn registration(&self, asked: Asked) -> Option<(Grant, Registration)> {
        self.same(asked).map(|lane| (lane.grant.clone(), lane.registration.clone()))
    }

    /// Rows that are known, and so may be among those that a look brings.
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }

    /// Those of these lanes that a look asks for. Of one that is blocked it would bring the same rows again and again, which
    /// count as much as those of others.
    pub(super) fn to_look_for(&self, asked: &[Asked]) -> Vec<Asked> {
        let goes_on = |asked: &&Asked| self.same(**asked).is_some_and(|lane| lane.blocked.is_none());
        asked.iter().filter(goes_on).copied().collect()
    }

    /// How many of these lanes have nothing left of the last look.
    pub(super) fn lacks(&self, asked: &[Asked]) -> Lacks {
        let open = asked.iter().filter_map(|asked| self.same(*asked)).filter(|lane| lane.blocked.is_none());
        let (lacking, others): (Vec<_>, Vec<_>) = open.partition(|lane| lane.found.is_empty());
        match (lacking.is_empty(), others.is_empty()) {
            (true, _) => Lacks::None,
            (false, true) => Lacks::All,
            (false, false) => Lacks::Some,
        }
    }

    /// Those of all lanes that a look is for: these, and those that have taken something since the last one. What is left of that to one
    /// that stands still would come again and again.
    pub(super) fn moving(&self, asked: &[Asked]) -> Vec<Asked> {
        let moving = |(number, lane): (&i32, &OpenLane)| {
            let of = Asked { lane: *number, of: lane.grant.lane.of, stint: lane.stint };
            (lane.took || asked.contains(&of)).then_some(of)
        };
        self.lanes.iter().filter_map(moving).collect()
    }

    /// A look begins: what was marked before is not pending to it, or is so again.
    pub(super) fn look_begins(&mut self) {
        for row in self.marked.drain(..) {
            self.known.remove(&row);
        }
    }

    /// A look has found these, in order. It replaces what an earlier one found for the lanes it asked for.
    pub(super) fn found(&mut self, asked: &[Asked], rows: impl IntoIterator<Item = (i32, RowId)>) {
        let asked = self.to_look_for(asked);
        for asked in &asked {
            if let Some(lane) = self.same_mut(*asked) {
                lane.found.clear();
                lane.took = false;
            }
        }
        for (number, row) in rows {
            if !self.known.contains_key(&row)
                && let Some(asked) = asked.iter().find(|asked| asked.lane == number)
                && let Some(lane) = self.same_mut(*asked)
            {
                lane.found.push_back(row);
            }
        }
    }

    /// What to fetch next: at most `each` rows of each lane, and as evenly as `most` in all allows.
    pub(super) fn next(&self, asked: &[Asked], each: usize, most: usize) -> Vec<(Asked, Vec<RowId>)> {
        let asked = self.to_look_for(asked);
        let each = each.min(most.div_ceil(asked.len().max(1))).max(1);
        let first = |asked: &Asked| {
            let lane = self.same(*asked).filter(|lane| !lane.found.is_empty())?;
            Some((*asked, lane.found.iter().take(each).cloned().collect()))
        };
        asked.iter().filter_map(first).collect()
    }

    /// The first so many that were found have been fetched: those that are still there are taken. False if the lane was closed
    /// meanwhile.
    pub(super) fn take<'a>(
        &mut self,
        asked: Asked,
        fetched: usize,
        rows: impl IntoIterator<Item = &'a TakenRow>,
    ) -> bool {
        let Some(lane) = self.same_mut(asked) else { return false };
        lane.found.drain(..fetched.min(lane.found.len()));
        lane.took = true;
        self.known.extend(rows.into_iter().map(|row| (row.id.clone(), asked.lane)));
        true
    }

    /// The next row of this lane cannot be a message. It is tried again, but not before this moment.
    pub(super) fn block(&mut self, asked: Asked, again: BootInstant) {
        if let Some(lane) = self.same_mut(asked) {
            lane.blocked = Some(again);
            // What follows is looked for anew.
            lane.found.truncate(1);
        }
    }

    /// The row that blocked this lane does so no more: the next look finds what is there, and in its order.
    pub(super) fn unblock(&mut self, asked: Asked) {
        if let Some(lane) = self.same_mut(asked) {
            lane.blocked = None;
            lane.found.clear();
        }
    }

    /// The rows that block these lanes and are to be tried again by now.
    pub(super) fn to_try(&self, asked: &[Asked], now: BootInstant) -> Vec<(Asked, RowId)> {
        let due = |asked: &Asked| {
            let lane = self.same(*asked).filter(|lane| lane.blocked.is_some_and(|again| now >= again))?;
            Some((*asked, lane.found.front()?.clone()))
        };
        asked.iter().filter_map(due).collect()
    }

    /// Lanes that are blocked.
    pub(super) fn blocked(&self) -> BTreeSet<i32> {
        self.lanes.iter().filter(|(_, lane)| lane.blocked.is_some()).map(|(number, _)| *number).collect()
    }

    /// Whether the lane was not closed since.
    pub(super) fn is_open(&self, grant: &Grant, stint: Stint) -> bool {
        self.of_stint(grant, stint).is_some()
    }

    /// Whether the rows of the lane's batch of this number are to be marked: it is the stint they were taken in, and they were
    /// not yet.
    pub(super) fn is_due(&self, grant: &Grant, stint: Stint, batch: i64) -> bool {
        self.of_stint(grant, stint).is_some_and(|lane| lane.marked < batch)
    }

    /// These rows, which were taken in this stint, are set aside.
    pub(super) fn set_aside<'a>(&mut self, grant: &Grant, stint: Stint, rows: impl IntoIterator<Item = &'a RowId>) {
        if self.is_open(grant, stint) {
            self.marked.extend(rows.into_iter().cloned());
        }
    }

    /// The rows of the lane's batch of this number, which were taken in this stint, are marked. Said once more it means nothing:
    /// they may have been set back and taken again since.
    pub(super) fn marked(&mut self, grant: &Grant, stint: Stint, batch: i64, rows: &[TakenRow]) {
        if self.is_due(grant, stint, batch) {
            self.marked.extend(rows.iter().map(|row| row.id.clone()));
            if let Some(lane) = self.lanes.get_mut(&grant.lane.number) {
                lane.marked = batch;
            }
        }
    }

    fn of_stint(&self, grant: &Grant, stint: Stint) -> Option<&OpenLane> {
        self.lanes.get(&grant.lane.number).filter(|lane| lane.grant == *grant && lane.stint == stint)
    }

    fn same(&self, asked: Asked) -> Option<&OpenLane> {
        self.lanes.get(&asked.lane).filter(|lane| lane.stint == asked.stint && lane.grant.lane.of == asked.of)
    }

    fn same_mut(&mut self, asked: Asked) -> Option<&mut OpenLane> {
        self.lanes.get_mut(&asked.lane).filter(|lane| lane.stint == asked.stint && lane.grant.lane.of == asked.of)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lane::{Epoch, Lane, RelayName};

    fn row(id: &str) -> RowId {
        RowId([id.to_owned()].into())
    }

    fn rows(ids: &[&str]) -> Vec<RowId> {
        ids.iter().map(|id| row(id)).collect()
    }

    fn sent(ids: &[&str]) -> Vec<TakenRow> {
        ids.iter().map(|id| TakenRow { id: row(id), version: Some(7) }).collect()
    }

    fn grant(lane: i32) -> Grant {
        Grant { lane: Lane { relay: RelayName::new("orders").unwrap(), number: lane, of: 4 }, epoch: Epoch(1) }
    }

    /// Lanes 0 and 1 are open.
    fn taken() -> (Taken, Vec<Asked>) {
        let mut taken = Taken::default();
        for lane in [0, 1] {
            taken.open(grant(lane), Stint(7), Registration("r".into()));
        }
        let asked = taken.asked([&grant(0), &grant(1), &grant(2)]);
        assert_eq!(asked.len(), 2);
        (taken, asked)
    }

    fn look(taken: &mut Taken, asked: &[Asked], lane: i32, ids: &[&str]) {
        taken.look_begins();
        taken.found(asked, ids.iter().map(|id| (lane, row(id))));
    }

    fn next(taken: &Taken, asked: &[Asked]) -> Vec<RowId> {
        taken.next(asked, 10, 100).into_iter().flat_map(|(_, rows)| rows).collect()
    }

    #[test]
    fn what_is_taken_is_not_found_again_until_it_was_marked() {
        let (mut taken, asked) = taken();
        look(&mut taken, &asked, 0, &["a", "b"]);
        assert!(taken.take(asked[0], 2, &sent(&["a", "b"])));
        look(&mut taken, &asked, 0, &["a", "b", "c"]);
        assert_eq!(next(&taken, &asked), rows(&["c"]));
        assert!(taken.is_due(&grant(0), Stint(7), 1));

        // A look that began before the mark shows it, and one that begins after shows it only if it was set back.
        taken.look_begins();
        taken.marked(&grant(0), Stint(7), 1, &sent(&["a"]));
        taken.found(&asked, [(0, row("a")), (0, row("b"))]);
        assert_eq!(next(&taken, &asked), []);
        look(&mut taken, &asked, 0, &["a", "b"]);
        assert_eq!(next(&taken, &asked), rows(&["a"]));
        assert!(!taken.is_due(&grant(0), Stint(7), 1) && taken.is_due(&grant(0), Stint(7), 2));

        // What is said again of the first time does not free what was taken again.
        taken.take(asked[0], 1, &sent(&["a"]));
        taken.marked(&grant(0), Stint(7), 1, &sent(&["a"]));
        look(&mut taken, &asked, 0, &["a", "b"]);
        assert_eq!(next(&taken, &asked), []);
    }

    #[test]
    fn a_lane_that_was_closed_gets_its_rows_again() {
        let (mut taken, asked) = taken();
        look(&mut taken, &asked, 0, &["a"]);
        taken.take(asked[0], 1, &sent(&["a"]));
        taken.close(&grant(0));
        taken.open(grant(0), Stint(8), Registration("r".into()));
        let again = taken.asked([&grant(0)]);
        look(&mut taken, &again, 0, &["a"]);
        assert_eq!(next(&taken, &again), rows(&["a"]));
        // What was asked for the earlier stint comes too late.
        assert!(!taken.take(asked[0], 1, &sent(&["a"])));
        // And so does a mark of it: what was handed out since is not marked by that.
        assert!(!taken.is_open(&grant(0), Stint(7)) && taken.is_open(&grant(0), Stint(8)));
        taken.take(again[0], 1, &sent(&["a"]));
        taken.marked(&grant(0), Stint(7), 1, &sent(&["a"]));
        assert!(!taken.is_due(&grant(0), Stint(7), 1) && taken.is_due(&grant(0), Stint(8), 1));
        look(&mut taken, &again, 0, &["a"]);
        assert_eq!(next(&taken, &again), []);
    }

    #[test]
    fn lanes_share_what_may_be_fetched() {
        let (mut taken, asked) = taken();
        taken.found(&asked, (0..20).map(|n| (n % 2, row(&n.to_string()))));
        let sizes = |taken: &Taken, each, most| {
            taken.next(&asked, each, most).iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&taken, 100, 100), [10, 10]);
        assert_eq!(taken.lacks(&asked), Lacks::None);
        taken.take(asked[0], 10, &[]);
        assert_eq!((taken.lacks(&asked), taken.lacks(&asked[..1])), (Lacks::Some, Lacks::All));
        taken.found(&asked, (0..20).map(|n| (n % 2, row(&n.to_string()))));
        assert_eq!(sizes(&taken, 3, 100), [3, 3]);
        assert_eq!(sizes(&taken, 100, 7), [4, 4]);
        taken.block(asked[0], at(1));
        assert_eq!(sizes(&taken, 100, 100), [10]);
        assert_eq!(sizes(&taken, 100, 7), [7]);
    }

    fn at(seconds: u64) -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(seconds))
    }

    /// A look brings so many rows in all: those of a lane that cannot go on would leave no room for others.
    #[test]
    fn a_blocked_lane_is_left_out_of_looks_until_its_first_row_is_good() {
        let (mut taken, asked) = taken();
        look(&mut taken, &asked, 0, &["bad", "behind it"]);
        taken.block(asked[0], at(10));
        assert_eq!((taken.to_look_for(&asked), taken.blocked()), (vec![asked[1]], BTreeSet::from([0])));
        assert_eq!((taken.lacks(&asked), taken.lacks(&asked[..1])), (Lacks::All, Lacks::None));
        // Whatever a look brings of it has no effect.
        look(&mut taken, &asked, 0, &["another"]);
        assert_eq!(next(&taken, &asked), []);
        assert_eq!(taken.to_try(&asked, at(9)), []);
        assert_eq!(taken.to_try(&asked, at(10)), [(asked[0], row("bad"))]);
        // Still bad.
        taken.block(asked[0], at(20));
        assert_eq!(taken.to_try(&asked, at(19)), []);
        assert_eq!(taken.to_try(&asked, at(20)), [(asked[0], row("bad"))]);
        taken.unblock(asked[0]);
        assert!(taken.blocked().is_empty() && taken.lacks(&asked[..1]) == Lacks::All);
        assert_eq!((taken.to_try(&asked, at(99)), next(&taken, &asked)), (vec![], vec![]));
        look(&mut taken, &asked, 0, &["before it", "bad"]);
        assert_eq!(next(&taken, &asked), rows(&["before it", "bad"]));
    }

    /// Rows that were no longer pending when they were fetched are let go.
    #[test]
    fn rows_that_are_gone_are_not_known() {
        let (mut taken, asked) = taken();
        look(&mut taken, &asked, 1, &["a", "b", "c"]);
        assert!(taken.take(asked[1], 2, &sent(&["b"])));
        assert_eq!(next(&taken, &asked), rows(&["c"]));
        assert_eq!(taken.known(), 1);
        look(&mut taken, &asked, 1, &["a", "b", "c"]);
        assert_eq!(next(&taken, &asked), rows(&["a", "c"]));
    }
}
