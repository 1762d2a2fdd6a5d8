//! What happens to the sink itself.

use std::path::Path;
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use super::{Hit, in_force};
use crate::Error;
use crate::fixture::{Fixture, RELAY};
use crate::proxy::Proxy;
use crate::torture::destination::{Destination, Mood, file_of};
use crate::torture::primary::{UNDO_WITHIN, again, within};
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

/// What all of these hit.
const SINK: (&str, Option<u32>) = ("sink", None);

/// An inbox's server is restarted, in order or not; an endpoint refuses; files are full, after some of a batch.
pub(super) async fn outage(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let (length, immediate) = (hit.about_a_lease(), hit.random.random_bool(0.5));
    match stage.destination.as_ref() {
        Destination::Inbox { cluster, .. } => {
            let down = async {
                let mut cluster = cluster.lock().await;
                if immediate { cluster.stop_immediate().await } else { cluster.stop_fast().await }
            };
            in_force(stage, hit, SINK, length, down, stage.destination.see_that_it_runs()).await
        }
        Destination::Endpoint { .. } => in_force(stage, hit, SINK, length, refuse(stage), listen_again(stage)).await,
        Destination::Files { folder } => fill(stage, hit, folder, length).await,
    }
}

fn doors(stage: &Stage) -> impl Iterator<Item = &Proxy> {
    stage.fleet.posts.iter().filter_map(|post| post.ways.sink.as_ref())
}

async fn refuse(stage: &Stage) -> Result<(), Error> {
    for door in doors(stage) {
        hurt(door, Trouble::Refuse).await?;
    }
    Ok(())
}

/// All of them are tried, and the first error given.
async fn listen_again(stage: &Stage) -> Result<(), Error> {
    let mut healed = Ok(());
    for door in doors(stage) {
        healed = healed.and(again(UNDO_WITHIN, || door.heal()).await);
    }
    healed
}

/// False if none of the files can be full now.
async fn fill(stage: &Stage, hit: &mut Hit, folder: &Path, length: Duration) -> Result<bool, Error> {
    let mut limits = Vec::new();
    for post in &stage.fleet.posts {
        let limit = post.limit(&file_of(folder, &post.name), hit.random.random_range(0..5_000)).await;
        limits.extend(limit.map(|limit| (post, limit)));
    }
    if limits.is_empty() {
        return Ok(false);
    }
    let filled = async {
        for (post, limit) in &limits {
            post.fill(*limit).await;
        }
        Ok(())
    };
    let freed = async {
        for (post, _) in &limits {
            post.free().await;
        }
        Ok(())
    };
    in_force(stage, hit, SINK, length, filled, freed).await
}

pub(super) async fn slow(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let by = if hit.random.random_bool(0.2) { hit.millis(500, 2_500) } else { hit.millis(5, 150) };
    let length = hit.millis(1_000, 8_000);
    let quick = again(UNDO_WITHIN, || stage.destination.slow(Duration::ZERO));
    in_force(stage, hit, SINK, length, stage.destination.slow(by), quick).await
}

/// It takes messages, and the answers are lost: an inbox's backends end right after their commits, as far as that can be
/// aimed at from outside; an endpoint answers with errors or closes, or says nothing.
pub(super) async fn fails(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let length = hit.millis(300, 4_000);
    let fault = hit.begin(stage, SINK.0, SINK.1);
    let failed = match stage.destination.as_ref() {
        Destination::Inbox { fixture, .. } => end_some(stage, hit, fixture, length).await,
        Destination::Endpoint { mood, .. } => {
            mood.send_replace(if hit.random.random_bool(0.7) { Mood::Failing } else { Mood::Hanging });
            stage.hold(length).await;
            mood.send_replace(Mood::Willing);
            Ok(true)
        }
        Destination::Files { .. } => Ok(false),
    };
    fault.end();
    failed
}

/// One in three of the relay's backends at a time. False if there was none.
async fn end_some(stage: &Stage, hit: &mut Hit, fixture: &Fixture, length: Duration) -> Result<bool, Error> {
    let deadline = Instant::now() + length;
    let verb = if hit.random.random_bool(0.5) { "pg_terminate_backend" } else { "pg_cancel_backend" };
    let sql = format!(
        "select count({verb}(pid)) from pg_stat_activity
         where datname = current_database() and usename = '{RELAY}' and pid % 3 = $1"
    );
    let admin = again(UNDO_WITHIN, || fixture.admin()).await?;
    let mut ended = 0;
    while Instant::now() < deadline && !stage.is_calm() {
        let row = within(admin.query_one(&sql, &[&hit.random.random_range(0..3_i32)])).await?;
        ended += row.try_get::<_, i64>(0).unwrap_or_default();
        stage.hold(hit.millis(5, 200)).await;
    }
    Ok(ended > 0)
}
