//! What happens to a replica's ways.

use std::time::Duration;

use rand::RngExt;

use super::{Hit, in_force};
use crate::Error;
use crate::torture::primary::{UNDO_WITHIN, again};
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

/// One way, the other way flows.
pub(super) async fn stall(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let questions = hit.random.random_bool(0.5);
    outbox(stage, hit, if questions { Trouble::StallQuestions } else { Trouble::StallAnswers }).await
}

/// False if nobody was connected.
pub(super) async fn outbox(stage: &Stage, hit: &mut Hit, trouble: Trouble) -> Result<bool, Error> {
    let length = if trouble == Trouble::Cut { Duration::ZERO } else { hit.about_a_lease() };
    let Some(post) = stage.fleet.posts.get(hit.target) else { return Ok(false) };
    let pid = post.lock().await.pid();
    if pid.is_none() || post.ways.connections() == 0 {
        return Ok(false);
    }
    let healed = again(UNDO_WITHIN, || post.ways.heal());
    in_force(stage, hit, (post.name.as_str(), pid), length, post.ways.hurt(trouble), healed).await
}

/// With a cut, answers are lost of what the sink has taken: they are kept back for a moment first. False if nobody was connected.
pub(super) async fn sink(stage: &Stage, hit: &mut Hit, cut: bool) -> Result<bool, Error> {
    let Some(post) = stage.fleet.posts.get(hit.target) else { return Ok(false) };
    let Some(door) = &post.ways.sink else { return Ok(false) };
    let pid = post.lock().await.pid();
    if pid.is_none() || door.connections() == 0 {
        return Ok(false);
    }
    let trouble = match hit.random.random_range(0..3) {
        _ if cut => Trouble::StallAnswers,
        0 => Trouble::BlackHole,
        1 => Trouble::StallQuestions,
        _ => Trouble::StallAnswers,
    };
    let length = if cut { hit.millis(5, 700) } else { hit.about_a_lease() };
    let over = async {
        let lost = if cut { hurt(door, Trouble::Cut).await } else { Ok(()) };
        again(UNDO_WITHIN, || door.heal()).await.and(lost)
    };
    in_force(stage, hit, (post.name.as_str(), pid), length, hurt(door, trouble), over).await
}
