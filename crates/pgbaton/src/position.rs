//! Positions: how far a lane has been dealt with, said in a way that no commit can slip past.
//!
//! A number from a sequence is taken at insert and becomes visible at commit, so "everything up to id 41" skips a
//! message whose transaction commits late. A position says it with snapshots instead:
//!
//! ```text
//!  id ──────────────────────────────────────────────────────────►
//!        ·  ·  s  ·  ·  s  ·  · │ ·  w  w  ·  w  w  w  w │
//!                             floor            last    ceiling
//!  ·  visible in S: dealt with        S = consumed
//!  s  straggler: not visible in S, of a transaction that ran when S was taken; visible in T
//!  w  window: above the floor, visible in T and not in S        T = target
//! ```
//!
//! *Consumed* S: everything visible in S has been dealt with. *Target* T is newer, or there is none. What is visible in
//! T and not in S is read in the order of its ids, first the stragglers and then the window, and everything of it up
//! to `last` has been dealt with. Once all of it has, T becomes S; `last` is then the ceiling, for those who look on, and
//! begins anew with the next target.
//!
//! *Floor*: what lies at or below it and is not visible in S belongs to a transaction that ran when S was taken. It
//! comes from pairs (l, x): l was the last number given out, and *afterwards* a transaction took the id x. Every
//! transaction from x on has only numbers above l. So for an S with xmax ≥ x, l is a floor.
//!
//! *Ceiling*: the last number given out, read *after* T was taken, so nothing visible in T lies above it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A transaction id that does not wrap (`xid8`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xid(pub u64);

/// Which transactions' effects are visible: `pg_snapshot`, written `xmin:xmax:xip,xip`.
///
/// Visible is what is below `xmin`, or below `xmax` and not in `xip`, if it committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot {
    xmin: Xid,
    xmax: Xid,
    xip: Vec<Xid>,
}

impl Snapshot {
    /// The snapshot that sees nothing: where a relay that starts at the earliest message stands.
    #[must_use]
    pub fn nothing() -> Self {
        Self { xmin: Xid(1), xmax: Xid(1), xip: Vec::new() }
    }

    /// The first transaction id that was not yet given out.
    #[must_use]
    pub fn xmax(&self) -> Xid {
        self.xmax
    }

    /// Whether the effects of this transaction are visible, provided it committed.
    #[must_use]
    pub fn sees(&self, xid: Xid) -> bool {
        xid < self.xmin || (xid < self.xmax && self.xip.binary_search(&xid).is_err())
    }

    /// Whether it sees everything that `other` sees, and is not the same.
    #[must_use]
    pub fn newer_than(&self, other: &Self) -> bool {
        self != other && self.xmax >= other.xmax && self.xip.iter().all(|xid| !other.sees(*xid))
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:", self.xmin.0, self.xmax.0)?;
        for (index, xid) in self.xip.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { "," }, xid.0)?;
        }
        Ok(())
    }
}

/// A text that is no snapshot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a snapshot of the form xmin:xmax:xip,xip")]
pub struct NotASnapshot;

impl FromStr for Snapshot {
    type Err = NotASnapshot;

    fn from_str(text: &str) -> Result<Self, NotASnapshot> {
        let mut parts = text.splitn(3, ':');
        let mut part = || parts.next().ok_or(NotASnapshot);
        let xid = |text: &str| text.parse().map(Xid).map_err(|_| NotASnapshot);
        let (xmin, xmax, list) = (xid(part()?)?, xid(part()?)?, part()?);
        let mut xip = Vec::new();
        if !list.is_empty() {
            for text in list.split(',') {
                xip.push(xid(text)?);
            }
        }
        let ascending = xip.is_sorted_by(|a, b| a < b);
        let within = xip.iter().all(|x| *x >= xmin && *x < xmax);
        if xmin.0 > 0 && xmin <= xmax && ascending && within { Ok(Self { xmin, xmax, xip }) } else { Err(NotASnapshot) }
    }
}

impl Serialize for Snapshot {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Snapshot {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Which life of which database: system identifier, database oid, timeline. Written `7713…/16497/1`.
///
/// Transaction ids and numbers mean something only within one incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// Made when the cluster was initialised; the same on all its standbys.
    pub system: i64,
    /// The database's oid.
    pub database: u32,
    /// Grows with each promotion of a standby.
    pub timeline: i32,
}

impl Incarnation {
    /// Whether both are lives of the same database.
    #[must_use]
    pub fn same_database(&self, other: &Self) -> bool {
        (self.system, self.database) == (other.system, other.database)
    }

    /// Whether this is an earlier life of that one's database: a server that is in it is an old primary.
    #[must_use]
    pub fn is_before(&self, other: &Self) -> bool {
        self.same_database(other) && self.timeline < other.timeline
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.system, self.database, self.timeline)
    }
}

/// A text that is no incarnation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an incarnation of the form system/database/timeline")]
pub struct NotAnIncarnation;

impl FromStr for Incarnation {
    type Err = NotAnIncarnation;

    fn from_str(text: &str) -> Result<Self, NotAnIncarnation> {
        let mut parts = text.splitn(3, '/');
        let mut part = || parts.next().ok_or(NotAnIncarnation);
        Ok(Self {
            system: part()?.parse().map_err(|_| NotAnIncarnation)?,
            database: part()?.parse().map_err(|_| NotAnIncarnation)?,
            timeline: part()?.parse().map_err(|_| NotAnIncarnation)?,
        })
    }
}

impl Serialize for Incarnation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What a lane is reading up to.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Target {
    /// T.
    pub snapshot: Snapshot,
    /// The last number given out, read after T was taken.
    pub ceiling: i64,
}

/// How far a lane has been dealt with.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    consumed: Snapshot,
    floor: i64,
    target: Option<Target>,
    last: i64,
}

/// What is to be read next from a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// There is no target: take one.
    AtRest,
    /// Messages of these transactions, with ids above `after`, up to `upto`.
    Stragglers {
        /// Ran when S was taken, and are visible in T.
        xids: Vec<Xid>,
        /// Dealt with up to here.
        after: i64,
        /// The floor.
        upto: i64,
    },
    /// Messages with ids above `after`, up to `upto`.
    Window {
        /// Dealt with up to here.
        after: i64,
        /// The ceiling.
        upto: i64,
    },
    /// All that T sees has been dealt with: finish.
    Exhausted,
}

impl Position {
    /// Puts together what was stored.
    #[must_use]
    pub fn new(consumed: Snapshot, floor: i64, target: Option<Target>, last: i64) -> Self {
        Self { consumed, floor, target, last }
    }

    /// S.
    #[must_use]
    pub fn consumed(&self) -> &Snapshot {
        &self.consumed
    }

    /// What lies at or below it and is not visible in S is a straggler.
    #[must_use]
    pub fn floor(&self) -> i64 {
        self.floor
    }

    /// T with its ceiling.
    #[must_use]
    pub fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// Of what T sees and S does not, everything up to this id has been dealt with. At rest: all that S sees lies at or
    /// below it.
    #[must_use]
    pub fn last(&self) -> i64 {
        self.last
    }

    /// Whether a cluster that gives out this transaction id next can have had this position.
    #[must_use]
    pub fn is_within(&self, next: Xid) -> bool {
        let target = self.target.as_ref().is_none_or(|target| target.snapshot.xmax <= next);
        target && self.consumed.xmax <= next
    }

    /// Whether a lane can have come here from an earlier position of its own: S never goes back, and within one diff
    /// neither does `last`.
    #[must_use]
    pub fn follows(&self, earlier: &Self) -> bool {
        if self.consumed != earlier.consumed {
            return self.consumed.newer_than(&earlier.consumed);
        }
        earlier.target.is_none() || (self.target == earlier.target && self.last >= earlier.last)
    }

    /// Whether this target may be taken up: there is none yet, and it sees all that S sees, and more.
    #[must_use]
    pub fn can_aim(&self, target: &Target) -> bool {
        self.target.is_none() && target.snapshot.newer_than(&self.consumed)
    }

    /// Takes up a target. One that is not newer than S would declare messages undelivered that were delivered, and
    /// the other way round when it is finished: it is not taken up.
    #[must_use]
    pub fn aim(self, target: &Target) -> Self {
        if self.can_aim(target) { Self { target: Some(target.clone()), last: 0, ..self } } else { self }
    }

    /// What is to be read next.
    #[must_use]
    pub fn phase(&self) -> Phase {
        let Some(target) = &self.target else { return Phase::AtRest };
        if self.last < self.floor {
            let xids: Vec<Xid> = self.consumed.xip.iter().copied().filter(|xid| target.snapshot.sees(*xid)).collect();
            if !xids.is_empty() {
                return Phase::Stragglers { xids, after: self.last, upto: self.floor };
            }
        }
        let after = self.last.max(self.floor);
        if after < target.ceiling { Phase::Window { after, upto: target.ceiling } } else { Phase::Exhausted }
    }

    /// The same position with a floor that is also valid for its S. Of two valid floors the greater reads less.
    #[must_use]
    pub fn raise_floor(self, floor: i64) -> Self {
        Self { floor: self.floor.max(floor), ..self }
    }

    /// Everything up to this id has been dealt with.
    #[must_use]
    pub fn advance(self, last: i64) -> Self {
        Self { last: self.last.max(last), ..self }
    }

    /// If all that T sees has been dealt with, T becomes S, with the best floor known for it.
    #[must_use]
    pub fn finish(self, floors: &Floors) -> Self {
        if self.phase() != Phase::Exhausted {
            return self;
        }
        match self.target {
            Some(target) => {
                // A floor stays one for every later S: it only says which transactions own the ids below it.
                let floor = floors.floor_for(&target.snapshot).map_or(self.floor, |floor| floor.max(self.floor));
                Self { consumed: target.snapshot, floor, target: None, last: target.ceiling }
            }
            None => self,
        }
    }
}

/// The pairs (l, x) from which floors are taken: l was the last number given out before a transaction took the id x.
#[derive(Debug, Clone, Default)]
pub struct Floors {
    /// Ascending in x.
    pairs: Vec<(i64, Xid)>,
}

/// More would only help a diff that has been running for longer than this many acknowledgements.
const PAIRS_KEPT: usize = 256;

impl Floors {
    /// Remembers a pair.
    pub fn add(&mut self, l: i64, x: Xid) {
        let at = self.pairs.partition_point(|(_, known)| *known < x);
        self.pairs.insert(at, (l, x));
        if self.pairs.len() > PAIRS_KEPT {
            self.pairs.remove(0);
        }
    }

    /// The floor of a diff that starts at S: l of the newest pair with x ≤ xmax(S).
    #[must_use]
    pub fn floor_for(&self, consumed: &Snapshot) -> Option<i64> {
        let known = self.pairs.partition_point(|(_, x)| *x <= consumed.xmax());
        self.pairs.get(..known).and_then(<[_]>::last).map(|(l, _)| *l)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    fn target(text: &str, ceiling: i64) -> Target {
        Target { snapshot: snapshot(text), ceiling }
    }

    #[test]
    fn snapshots_are_written_as_they_were_read() {
        for text in ["1:1:", "10:20:10,14,15", "740:740:"] {
            assert_eq!(snapshot(text).to_string(), text);
        }
        for bad in ["", "1:1", "0:1:", "5:4:", "1:5:9", "1:9:5,3", "1:9:3,3", "a:b:c", "1:2:1,"] {
            assert!(bad.parse::<Snapshot>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_snapshot_sees_what_had_ended_before_it() {
        let seen = snapshot("10:20:10,14");
        for (xid, sees) in [(9, true), (10, false), (11, true), (14, false), (19, true), (20, false)] {
            assert_eq!(seen.sees(Xid(xid)), sees, "{xid}");
        }
    }

    #[test]
    fn newer_means_seeing_more_and_missing_nothing() {
        let old = snapshot("10:20:10,14");
        assert!(!old.newer_than(&old));
        assert!(snapshot("14:20:14").newer_than(&old));
        assert!(snapshot("10:25:10,14,22").newer_than(&old));
        // Sees more above, but not 12, which the old one sees.
        assert!(!snapshot("12:25:12").newer_than(&old));
        assert!(!snapshot("10:19:10,14").newer_than(&old));
    }

    #[test]
    fn incarnations_are_written_as_they_were_read() {
        let text = "-7713636560908872033/16497/2";
        assert_eq!(text.parse::<Incarnation>().unwrap().to_string(), text);
        assert!("1/2".parse::<Incarnation>().is_err());
    }

    #[test]
    fn a_position_goes_through_stragglers_and_window_to_rest() {
        let floors = Floors::default();
        let position = Position::new(snapshot("10:20:10,14"), 50, None, 0).aim(&target("14:30:14", 80));
        assert_eq!(position.phase(), Phase::Stragglers { xids: vec![Xid(10)], after: 0, upto: 50 });
        let position = position.advance(20);
        assert_eq!(position.phase(), Phase::Stragglers { xids: vec![Xid(10)], after: 20, upto: 50 });
        let position = position.advance(50);
        assert_eq!(position.phase(), Phase::Window { after: 50, upto: 80 });
        let position = position.advance(80);
        assert_eq!(position.phase(), Phase::Exhausted);
        let position = position.finish(&floors);
        assert_eq!(position, Position::new(snapshot("14:30:14"), 50, None, 80));
        // The next one is read from the beginning again.
        assert_eq!(position.aim(&target("40:40:", 90)).last(), 0);
    }

    #[test]
    fn without_stragglers_the_window_starts_at_the_floor() {
        let position = Position::new(snapshot("20:20:"), 50, None, 0).aim(&target("25:25:", 80));
        assert_eq!(position.phase(), Phase::Window { after: 50, upto: 80 });
        let position = Position::new(snapshot("20:20:"), 80, None, 0).aim(&target("25:25:", 80));
        assert_eq!(position.phase(), Phase::Exhausted);
    }

    #[test]
    fn an_older_target_is_not_taken_up() {
        let position = Position::new(snapshot("20:20:"), 0, None, 0);
        assert_eq!(position.clone().aim(&target("15:15:", 80)), position);
        assert_eq!(position.clone().aim(&target("20:20:", 80)), position);
    }

    #[test]
    fn a_floor_is_taken_from_the_newest_pair_that_s_covers() {
        let mut floors = Floors::default();
        assert_eq!(floors.floor_for(&snapshot("20:20:")), None);
        floors.add(200, Xid(30));
        floors.add(100, Xid(20));
        assert_eq!(floors.floor_for(&snapshot("19:19:")), None);
        assert_eq!(floors.floor_for(&snapshot("20:20:")), Some(100));
        assert_eq!(floors.floor_for(&snapshot("29:29:")), Some(100));
        assert_eq!(floors.floor_for(&snapshot("25:30:25")), Some(200));
    }

    #[test]
    fn only_so_many_pairs_are_kept() {
        let mut floors = Floors::default();
        for n in 1..=1_000_u32 {
            floors.add(i64::from(n), Xid(u64::from(n)));
        }
        assert_eq!(floors.pairs.len(), PAIRS_KEPT);
        assert_eq!(floors.floor_for(&snapshot("1000:1000:")), Some(1_000));
    }

    #[test]
    fn positions_survive_being_written_down() {
        let position = Position::new(snapshot("10:20:10,14"), 50, Some(target("14:30:14", 80)), 60);
        let text = serde_json::to_string(&position).unwrap();
        assert_eq!(serde_json::from_str::<Position>(&text).unwrap(), position);
    }
}
