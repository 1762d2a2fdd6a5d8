//! What happens to a replica's ways.

use rand::RngExt;

use super::{Hit, undo};
use crate::Error;
use crate::proxy::Proxy;
use crate::torture::primary::{UNDO_WITHIN, again};
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

/// One way, the other way flows.
pub(super) async fn stall(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let questions = hit.random.random_bool(0.5);
    outbox(stage, hit, if questions { Trouble::StallQuestions } else { Trouble::StallAnswers }).await
}

pub(super) async fn outbox(stage: &Stage, hit: &mut Hit, trouble: Trouble) -> Result<bool, Error> {
    let length = hit.about_a_lease();
    let Some(post) = stage.fleet.posts.get(hit.target) else { return Ok(false) };
    let fault = hit.begin(stage, &post.name, post.lock().await.pid());
    let hurt = post.ways.hurt(trouble).await;
    if hurt.is_ok() && trouble != Trouble::Cut {
        stage.hold(length).await;
    }
    undo(stage, hit, again(UNDO_WITHIN, || post.ways.heal())).await;
    fault.end();
    hurt.map(|()| true)
}

/// With a cut, answers are lost of what the sink has taken: they are kept back for a moment first.
pub(super) async fn sink(stage: &Stage, hit: &mut Hit, cut: bool) -> Result<bool, Error> {
    let Some(post) = stage.fleet.posts.get(hit.target) else { return Ok(false) };
    let Some(door) = &post.ways.sink else { return Ok(false) };
    let fault = hit.begin(stage, &post.name, post.lock().await.pid());
    let hurt = if cut { lose_answers(stage, hit, door).await } else { hang(stage, hit, door).await };
    undo(stage, hit, again(UNDO_WITHIN, || door.heal())).await;
    fault.end();
    hurt.map(|()| true)
}

async fn lose_answers(stage: &Stage, hit: &mut Hit, door: &Proxy) -> Result<(), Error> {
    hurt(door, Trouble::StallAnswers).await?;
    stage.hold(hit.millis(5, 700)).await;
    hurt(door, Trouble::Cut).await
}

async fn hang(stage: &Stage, hit: &mut Hit, door: &Proxy) -> Result<(), Error> {
    let trouble = match hit.random.random_range(0..3) {
        0 => Trouble::BlackHole,
        1 => Trouble::StallQuestions,
        _ => Trouble::StallAnswers,
    };
    hurt(door, trouble).await?;
    stage.hold(hit.about_a_lease()).await;
    Ok(())
}
