//! A relay that empties what is not read yet.

use std::time::{Duration, Instant};

use checker::Verdict;

use super::{Scene, Sink};
use crate::hand::until;
use crate::segments::{aside, count};

/// A lane is stuck in the middle of a segment that is not in use when segments are looked after.
pub async fn empties_what_is_needed(wrong: Option<&'static str>) -> Verdict {
    // Segments are looked after every five seconds.
    const LOOKS: Duration = Duration::from_secs(12);
    const KEY: u32 = 1;
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    let (segment, _) = aside(&scene.admin).await;
    let gate = scene.gate(KEY).await;
    let mut open = scene.open().await;
    // More than is read ahead.
    for _ in 0..1_000 {
        scene.send_into(&mut open, KEY, Some(segment)).await;
    }
    scene.commit(open).await;
    scene.start("r1", 1, "").await;
    let begun = Instant::now();
    until("the segment is emptied, or kept", async || {
        let emptied = count(&scene.admin, segment).await == 0;
        if wrong.is_some() { emptied } else { begun.elapsed() > LOOKS }
    })
    .await;
    gate.open().await;
    until("the segment is emptied", async || count(&scene.admin, segment).await == 0).await;
    scene.judged().await
}
