//! Who reads what next.
//!
//! The lanes of a replica usually stand at the same place and share one query. A lane that had no room is left behind;
//! it then reads alone, up to just where the others stood, and goes on with them. All of that is decided here, from
//! what is known, without doing any of it.
//!
//! A *place* is a position as the reader sees it: ahead of what has been acknowledged by what has been read since.

use std::time::Duration;

use crate::lease::BootInstant;
use crate::position::{Floors, Phase, Position, Snapshot, Target, Xid};

/// A lane as the planner sees it.
#[derive(Debug, Clone)]
pub struct LaneView {
    /// Its number.
    pub lane: i32,
    /// Of how many. While a relay's lanes are being split, they differ, and share no query.
    pub of: i32,
    /// Everything up to here has been read.
    pub place: Position,
    /// Whether it can take more messages.
    pub room: bool,
    /// Since when it has had nothing to publish. `None` while it has.
    pub idle_since: Option<BootInstant>,
    /// Whether it has already been read for in this pass.
    pub served: bool,
}

/// What to read, for which lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadStep {
    /// Look for a new target.
    Aim {
        /// The lanes that stand at rest.
        lanes: Vec<i32>,
    },
    /// Take up a target that other lanes have already.
    Adopt {
        /// The lane that lags.
        lane: i32,
        /// The others' target, newer than the lane's S.
        target: Target,
    },
    /// Read messages of straggling transactions: `after < id <= upto`, visible in `target`.
    Stragglers {
        /// The lanes that stand here.
        lanes: Vec<i32>,
        /// Transactions that ran when S was taken and are visible in T.
        xids: Vec<Xid>,
        /// Read up to here.
        after: i64,
        /// At most the floor.
        upto: i64,
    },
    /// Read a window: `after < id <= upto`, visible in T and not in S.
    Window {
        /// The lanes that stand here.
        lanes: Vec<i32>,
        /// Read up to here.
        after: i64,
        /// At most the ceiling.
        upto: i64,
    },
}

/// How long the lanes of a group wait for one of them to get room, while another has nothing to do.
pub const PATIENCE: Duration = Duration::from_millis(50);

/// Brings places up to date with what is known by now: every floor that is known for an S goes to all lanes at that S,
/// and a lane that has read all of its target comes to rest. Call it before planning, so that lanes which share S, T
/// and the last id read stand at equal places.
pub fn level(places: &mut [&mut Position], floors: &Floors) {
    for place in places.iter_mut() {
        **place = place.clone().finish(floors);
    }
    let known: Vec<(Snapshot, i64)> = places.iter().map(|place| (place.consumed().clone(), place.floor())).collect();
    for place in places.iter_mut() {
        let best = known.iter().filter(|(consumed, _)| consumed == place.consumed()).map(|(_, floor)| *floor).max();
        // A greater floor may leave nothing of the target to read.
        **place = place.clone().raise_floor(best.unwrap_or_default()).finish(floors);
    }
}

/// The next step of this pass with its reason, or `None` when the pass is over.
///
/// A pass reads once for each group of lanes that stand at one place, those furthest behind first; mark the lanes of a
/// step as served once it is done, and call again.
#[must_use]
pub fn next_step(lanes: &[LaneView], now: BootInstant) -> Option<(ReadStep, &'static str)> {
    if let Some(step) = adopt(lanes) {
        return Some((step, "others have a newer target"));
    }
    let mut groups = groups(lanes);
    groups.sort_by_key(|group| group.first().map(|lane| (lane.place.consumed().xmax(), lane.place.last())));
    groups.iter().find_map(|group| step_of(group, lanes, now))
}

/// Lanes by where they stand, in no particular order.
fn groups(lanes: &[LaneView]) -> Vec<Vec<&LaneView>> {
    let mut groups: Vec<Vec<&LaneView>> = Vec::new();
    for lane in lanes {
        let together = |other: &&LaneView| (other.of, &other.place) == (lane.of, &lane.place);
        match groups.iter_mut().find(|group| group.first().is_some_and(together)) {
            Some(group) => group.push(lane),
            None => groups.push(vec![lane]),
        }
    }
    groups
}

/// A lane at rest takes the newest target that other lanes have, if it is newer than its own S: it sees all that S
/// sees, and more. So it comes to the same S as they do, and can merge with them.
fn adopt(lanes: &[LaneView]) -> Option<ReadStep> {
    lanes.iter().filter(|lane| lane.place.phase() == Phase::AtRest).find_map(|lane| {
        lanes
            .iter()
            .filter_map(|other| other.place.target())
            .filter(|target| lane.place.can_aim(target))
            .max_by_key(|target| target.ceiling)
            .map(|target| ReadStep::Adopt { lane: lane.lane, target: target.clone() })
    })
}

fn step_of(group: &[&LaneView], all: &[LaneView], now: BootInstant) -> Option<(ReadStep, &'static str)> {
    let (lanes, reason) = who_reads(group, now)?;
    let place = &group.first()?.place;
    // Just where the next lanes of the same diff stand: from there on they are one group.
    let merge_at = |after: i64| {
        all.iter()
            .map(|other| &other.place)
            .filter(|other| other.consumed() == place.consumed() && other.target() == place.target())
            .map(Position::last)
            .filter(|last| *last > after)
            .min()
            .unwrap_or(i64::MAX)
    };
    match place.phase() {
        Phase::AtRest => Some((ReadStep::Aim { lanes }, reason)),
        Phase::Stragglers { xids, after, upto } => {
            Some((ReadStep::Stragglers { lanes, xids, after, upto: upto.min(merge_at(after)) }, reason))
        }
        Phase::Window { after, upto } => {
            Some((ReadStep::Window { lanes, after, upto: upto.min(merge_at(after)) }, reason))
        }
        Phase::Exhausted => None, // `level` leaves none behind
    }
}

/// Which lanes of a group read now: all together, or, when some have no room and others starve, those that have.
fn who_reads(group: &[&LaneView], now: BootInstant) -> Option<(Vec<i32>, &'static str)> {
    // Lanes without room are never read for: they do not keep a pass going.
    if group.iter().filter(|lane| lane.room).all(|lane| lane.served) {
        return None;
    }
    let with_room: Vec<i32> = group.iter().filter(|lane| lane.room).map(|lane| lane.lane).collect();
    if with_room.is_empty() {
        return None;
    }
    if with_room.len() == group.len() {
        return Some((with_room, "all lanes that stand here have room"));
    }
    let starving =
        group.iter().any(|lane| lane.room && lane.idle_since.is_some_and(|since| now.since(since) >= PATIENCE));
    starving.then_some((with_room, "a lane starves while its neighbours have no room"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        text.parse().unwrap()
    }

    fn target() -> Target {
        Target { snapshot: snapshot("30:30:"), ceiling: 1_000 }
    }

    fn lane(lane: i32, place: Position) -> LaneView {
        LaneView { lane, of: 4, place, room: true, idle_since: None, served: false }
    }

    fn now() -> BootInstant {
        BootInstant::from_boot(Duration::from_secs(100))
    }

    #[test]
    fn lanes_at_rest_aim_together() {
        let at_rest = Position::new(snapshot("20:20:"), 0, None, 0);
        let lanes = [lane(0, at_rest.clone()), lane(1, at_rest)];
        assert_eq!(next_step(&lanes, now()).unwrap().0, ReadStep::Aim { lanes: vec![0, 1] });
    }

    #[test]
    fn lanes_that_stand_together_share_a_window_from_the_greatest_floor() {
        let place = |floor| Position::new(snapshot("20:20:"), floor, Some(target()), 0);
        let mut lanes = [lane(0, place(10)), lane(1, place(40))];
        level(&mut lanes.each_mut().map(|lane| &mut lane.place), &Floors::default());
        assert_eq!(next_step(&lanes, now()).unwrap().0, ReadStep::Window { lanes: vec![0, 1], after: 40, upto: 1_000 });
    }

    #[test]
    fn lanes_of_another_number_share_no_query() {
        let at_rest = Position::new(snapshot("20:20:"), 0, None, 0);
        let lanes = [lane(0, at_rest.clone()), LaneView { of: 8, ..lane(1, at_rest) }];
        assert_eq!(next_step(&lanes, now()).unwrap().0, ReadStep::Aim { lanes: vec![0] });
    }

    #[test]
    fn a_floor_that_leaves_nothing_to_read_brings_the_lane_to_rest() {
        let mut low = Position::new(snapshot("20:20:"), 10, Some(target()), 0);
        let mut high = Position::new(snapshot("20:20:"), 1_000, None, 0);
        level(&mut [&mut low, &mut high], &Floors::default());
        assert_eq!(low, Position::new(snapshot("30:30:"), 1_000, None, 1_000));
    }

    #[test]
    fn a_lane_that_lags_reads_up_to_where_the_others_stand() {
        let place = |last| Position::new(snapshot("20:20:"), 0, Some(target()), last);
        let mut lanes = [lane(0, place(100)), lane(1, place(500)), lane(2, place(500))];
        assert_eq!(next_step(&lanes, now()).unwrap().0, ReadStep::Window { lanes: vec![0], after: 100, upto: 500 });
        lanes[0].served = true;
        assert_eq!(
            next_step(&lanes, now()).unwrap().0,
            ReadStep::Window { lanes: vec![1, 2], after: 500, upto: 1_000 }
        );
        // Arrived: all three are one group.
        lanes[0].place = place(500);
        assert_eq!(
            next_step(&lanes, now()).unwrap().0,
            ReadStep::Window { lanes: vec![0, 1, 2], after: 500, upto: 1_000 }
        );
    }

    #[test]
    fn a_lane_at_rest_takes_up_the_others_target_if_it_is_newer() {
        let leader = lane(1, Position::new(snapshot("25:25:"), 0, Some(target()), 500));
        let laggard = lane(0, Position::new(snapshot("20:20:"), 0, None, 0));
        let step = next_step(&[laggard, leader.clone()], now()).unwrap().0;
        assert_eq!(step, ReadStep::Adopt { lane: 0, target: target() });
        // Not newer: the lane has seen more than that target sees.
        let ahead = lane(0, Position::new(snapshot("40:40:"), 0, None, 0));
        let step = next_step(&[ahead, leader], now()).unwrap().0;
        assert!(!matches!(step, ReadStep::Adopt { .. }));
    }

    #[test]
    fn stragglers_come_first_and_stop_at_the_floor() {
        let place = Position::new(snapshot("10:20:10,14"), 50, None, 0)
            .aim(&Target { snapshot: snapshot("14:30:14"), ceiling: 80 });
        let step = next_step(&[lane(0, place)], now()).unwrap().0;
        assert_eq!(step, ReadStep::Stragglers { lanes: vec![0], xids: vec![Xid(10)], after: 0, upto: 50 });
    }

    #[test]
    fn a_group_waits_for_a_lane_without_room_unless_another_starves() {
        let place = Position::new(snapshot("20:20:"), 0, Some(target()), 100);
        let mut lanes = [lane(0, place.clone()), lane(1, place)];
        lanes[0].room = false;
        assert_eq!(next_step(&lanes, now()), None);
        lanes[1].idle_since = Some(now());
        assert_eq!(next_step(&lanes, now().after(Duration::from_millis(49))), None);
        let step = next_step(&lanes, now().after(PATIENCE)).unwrap().0;
        assert_eq!(step, ReadStep::Window { lanes: vec![1], after: 100, upto: 1_000 });
    }

    #[test]
    fn a_pass_ends_when_every_group_was_served() {
        let mut lanes = [lane(0, Position::new(snapshot("20:20:"), 0, Some(target()), 100))];
        lanes[0].served = true;
        assert_eq!(next_step(&lanes, now()), None);
    }

    #[test]
    fn a_pass_ends_although_a_lane_without_room_was_not_served() {
        let at_rest = Position::new(snapshot("20:20:"), 0, None, 0);
        let mut lanes = [lane(0, at_rest.clone()), lane(1, at_rest)];
        lanes[0].room = false;
        lanes[1].idle_since = Some(BootInstant::from_boot(Duration::ZERO));
        assert_eq!(next_step(&lanes, now()).unwrap().0, ReadStep::Aim { lanes: vec![1] });
        lanes[1].served = true;
        assert_eq!(next_step(&lanes, now()), None);
    }

    /// A capped window that comes back short is not the end of the diff.
    #[test]
    fn reaching_the_others_is_not_reaching_the_ceiling() {
        let place = Position::new(snapshot("20:20:"), 0, Some(target()), 100).advance(500);
        assert_eq!(place.clone().finish(&Floors::default()), place);
    }
}
