//! What happens to the sink itself.

use std::path::Path;
use std::time::Duration;

use rand::RngExt;
use tokio::time::Instant;

use super::{Hit, undo};
use crate::Error;
use crate::fixture::{Fixture, RELAY};
use crate::proxy::Proxy;
use crate::torture::destination::{Destination, Mood, file_of};
use crate::torture::primary::{UNDO_WITHIN, again, within};
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

/// An inbox's server is restarted, in order or not; an endpoint refuses; files are full, after some of a batch.
pub(super) async fn outage(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let (length, immediate) = (hit.about_a_lease(), hit.random.random_bool(0.5));
    if let Destination::Files { folder } = stage.destination.as_ref() {
        return fill(stage, hit, folder, length).await;
    }
    let doors = || stage.fleet.posts.iter().filter_map(|post| post.ways.sink.as_ref());
    let fault = hit.begin(stage, "sink", None);
    let down = match stage.destination.as_ref() {
        Destination::Inbox { cluster, .. } => {
            let _fault = hit.begin(stage, "sink", None);
            let mut cluster = cluster.lock().await;
            if immediate { cluster.stop_immediate().await } else { cluster.stop_fast().await }
        }
        _ => refuse(doors()).await,
    };
    if down.is_ok() {
        stage.hold(length).await;
    }
    match stage.destination.as_ref() {
        Destination::Inbox { .. } => undo(stage, hit, stage.destination.see_that_it_runs()).await,
        _ => {
            for door in doors() {
                undo(stage, hit, again(UNDO_WITHIN, || door.heal())).await;
            }
        }
    }
    fault.end();
    down.map(|()| true)
}

async fn refuse(doors: impl Iterator<Item = &Proxy>) -> Result<(), Error> {
    for door in doors {
        hurt(door, Trouble::Refuse).await?;
    }
    Ok(())
}

async fn fill(stage: &Stage, hit: &mut Hit, folder: &Path, length: Duration) -> Result<bool, Error> {
    let mut filled = false;
    for post in &stage.fleet.posts {
        filled |= post.fill(&file_of(folder, &post.name), hit.random.random_range(0..5_000)).await?;
    }
    if filled {
        let _fault = hit.begin(stage, "sink", None);
        stage.hold(length).await;
        for post in &stage.fleet.posts {
            post.free().await;
        }
    }
    Ok(filled)
}

pub(super) async fn slow(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let by = if hit.random.random_bool(0.2) { hit.millis(500, 2_500) } else { hit.millis(5, 150) };
    let fault = hit.begin(stage, "sink", None);
    let slow = stage.destination.slow(by).await;
    if slow.is_ok() {
        stage.hold(hit.millis(1_000, 8_000)).await;
    }
    undo(stage, hit, again(UNDO_WITHIN, || stage.destination.slow(Duration::ZERO))).await;
    fault.end();
    slow.map(|()| true)
}

/// It takes messages, and the answers are lost: an inbox's backends end right after their commits, as far as that can be
/// aimed at from outside; an endpoint answers with errors or closes.
pub(super) async fn fails(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let length = hit.millis(300, 4_000);
    let fault = hit.begin(stage, "sink", None);
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
