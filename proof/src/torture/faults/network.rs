//! What happens to a replica's ways.

use rand::RngExt;

use super::Hit;
use crate::Error;
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

pub(super) async fn outbox(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let trouble = match hit.kind.name {
        "cut" => Trouble::Cut,
        "black_hole" => Trouble::BlackHole,
        "refuse" => Trouble::Refuse,
        _ if hit.random.random_bool(0.5) => Trouble::StallQuestions,
        _ => Trouble::StallAnswers,
    };
    let length = hit.about_a_lease();
    let Some(post) = stage.fleet.posts.get(hit.target) else { return Ok(false) };
    let fault = hit.begin(stage, &post.name, post.lock().await.pid());
    post.ways.hurt(trouble).await?;
    if trouble != Trouble::Cut {
        stage.hold(length).await;
    }
    post.ways.heal().await?;
    fault.end();
    Ok(true)
}

/// With a cut, answers are lost of what the sink has taken: they are kept back for a moment first.
pub(super) async fn sink(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let Some(post) = stage.fleet.posts.get(hit.target) else { return Ok(false) };
    let Some(door) = &post.ways.sink else { return Ok(false) };
    let fault = hit.begin(stage, &post.name, post.lock().await.pid());
    if hit.kind.name == "sink_cut" {
        hurt(door, Trouble::StallAnswers).await?;
        stage.hold(hit.millis(5, 700)).await;
        hurt(door, Trouble::Cut).await?;
    } else {
        let trouble = match hit.random.random_range(0..3) {
            0 => Trouble::BlackHole,
            1 => Trouble::StallQuestions,
            _ => Trouble::StallAnswers,
        };
        hurt(door, trouble).await?;
        stage.hold(hit.about_a_lease()).await;
    }
    door.heal().await?;
    fault.end();
    Ok(true)
}
