//! A relay that empties what is not read yet.

use std::time::Duration;

use super::{Scene, Sink};
use crate::hand::until;
use crate::segments::{aside, count};

/// A lane is far from the end of a segment that is not in use when segments are looked after.
pub async fn empties_what_is_needed(wrong: Option<&'static str>) -> Vec<String> {
    const KEY: u32 = 1;
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    let (segment, _) = aside(&scene.admin).await;
    scene.slow_down(KEY, Duration::from_millis(10)).await;
    let mut open = scene.open().await;
    for _ in 0..900 {
        scene.send_into(&mut open, KEY, Some(segment)).await;
    }
    scene.commit(open).await;
    scene.start("r1", 1, "").await;
    // Seconds later for a wrong one, long after the last message for the right one.
    until("the segment is emptied", async || count(&scene.admin, segment).await == 0).await;
    scene.judged().await
}
