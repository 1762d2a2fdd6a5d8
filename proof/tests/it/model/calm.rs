//! Liveness: from any state, what happens once nothing more goes wrong.
//!
//! An *eventually* of the checker would only speak of paths that end within its horizon, and is unsound where paths
//! join. So it is asked as an *always* instead: in each reachable state, a run is started in which every process does
//! what it can, every answer arrives, and time goes on when there is nothing else to do. It must come to a state where
//! all is well, within a number of ticks. So no reachable state is a dead end, and fair running leads out of it.

use super::setting::Setting;
use super::world::{Step, World};

/// A start, an expiry and a hold after each other, each of up to four ticks on a slow clock.
const TICKS: u8 = 14;

/// A tick with more steps than this would never end.
const STEPS_PER_TICK: usize = 200;

pub fn recovers(setting: &Setting, world: &World) -> bool {
    let mut world = world.clone();
    for _ in 0..TICKS {
        if !settles(setting, &mut world) {
            return false;
        }
        if world.is_well() {
            return true;
        }
        world = world.after(setting, &Step::Tick);
    }
    false
}

/// Does all that can be done before time goes on. Says whether that has an end.
fn settles(setting: &Setting, world: &mut World) -> bool {
    for _ in 0..STEPS_PER_TICK {
        match world.lawful(setting).into_iter().find(|step| *step != Step::Tick) {
            Some(step) => *world = world.after(setting, &step),
            None => return true,
        }
    }
    false
}
