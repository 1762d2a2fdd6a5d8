//! Whether the replicas that a message waits for still renew their leases. A beat says nothing of when it was: whoever wants to know has
//! to see it move.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{RelayTrace, State};
use crate::connection::Connection;
use crate::control::replicas::beats;
use crate::error::Error;

/// A lease is renewed three times a ttl. Nobody is made to wait for longer.
const LONGEST: Duration = Duration::from_secs(8);
/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Watches the owners of lanes in which the message is still to be delivered, until each has renewed its lease or could have twice.
/// Gives for how long.
pub(super) async fn watch(connection: &Connection, relays: &mut [RelayTrace]) -> Result<Duration, Error> {
    let began = Instant::now();
    let mut lanes: Vec<_> = relays
        .iter_mut()
        .filter(|relay| matches!(relay.state, State::Waits | State::SetAside | State::NotKnown))
        .filter_map(|relay| relay.lane.as_mut())
        .filter(|lane| lane.replica.is_some())
        .collect();
    let ttl = lanes.iter().map(|lane| lane.ttl).max().unwrap_or_default();
    let deadline = began + (ttl * 3 / 4).min(LONGEST);
    let mut watched: BTreeSet<String> = lanes.iter().filter_map(|lane| lane.replica.clone()).collect();
    while !watched.is_empty() {
        let (beats, _) = beats(connection).await?;
        for lane in &mut lanes {
            let Some(replica) = lane.replica.as_ref().filter(|replica| watched.contains(*replica)) else { continue };
            let moved = beats.get(replica).zip(lane.beat).is_some_and(|(now, before)| *now > before);
            lane.beat_moved = Some(moved);
        }
        watched.retain(|replica| {
            let is_of = |lane: &&mut &mut super::LaneTrace| lane.replica.as_ref() == Some(replica);
            beats.contains_key(replica)
                && lanes.iter_mut().find(is_of).is_some_and(|lane| lane.beat_moved != Some(true))
        });
        if Instant::now() >= deadline {
            break;
        }
        if !watched.is_empty() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
    Ok(began.elapsed())
}
