//! What happens to the sink itself.

use std::path::Path;
use std::time::Duration;

use rand::RngExt;

use super::Hit;
use crate::Error;
use crate::torture::destination::{Destination, Mood, file_of};
use crate::torture::stage::Stage;
use crate::torture::ways::{Trouble, hurt};

/// An inbox's server is restarted, in order or not; an endpoint refuses; files are full, after some of a batch.
pub(super) async fn outage(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let length = hit.about_a_lease();
    match stage.destination.as_ref() {
        Destination::Inbox { cluster, .. } => {
            let _fault = hit.begin(stage, "sink", None);
            let mut cluster = cluster.lock().await;
            if hit.random.random_bool(0.5) {
                cluster.stop_immediate().await?;
            } else {
                cluster.stop_fast().await?;
            }
            stage.hold(length).await;
            cluster.start_again().await?;
        }
        Destination::Endpoint { .. } => {
            let _fault = hit.begin(stage, "sink", None);
            let doors = || stage.fleet.posts.iter().filter_map(|post| post.ways.sink.as_ref());
            for door in doors() {
                hurt(door, Trouble::Refuse).await?;
            }
            stage.hold(length).await;
            for door in doors() {
                door.heal().await?;
            }
        }
        Destination::Files { folder } => return fill(stage, hit, folder, length).await,
    }
    Ok(true)
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
    let fault = hit.begin(stage, "sink", None);
    let by = if hit.random.random_bool(0.2) { hit.millis(500, 2_500) } else { hit.millis(5, 150) };
    stage.destination.slow(by).await?;
    stage.hold(hit.millis(1_000, 8_000)).await;
    stage.destination.slow(Duration::ZERO).await?;
    fault.end();
    Ok(true)
}

/// It takes messages, and the answers are lost: an inbox's backends end right after their commits, as far as that can be
/// aimed at from outside; an endpoint answers with errors or closes.
pub(super) async fn fails(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let fault = hit.begin(stage, "sink", None);
    let length = hit.millis(300, 4_000);
    match stage.destination.as_ref() {
        Destination::Inbox { fixture, .. } => {
            let deadline = tokio::time::Instant::now() + length;
            let verb = if hit.random.random_bool(0.5) { "pg_terminate_backend" } else { "pg_cancel_backend" };
            let sql = format!(
                "select count({verb}(pid)) from pg_stat_activity where datname = current_database()
                 and usename = '{}' and random() < 0.3",
                crate::fixture::RELAY
            );
            let admin = fixture.admin().await?;
            while tokio::time::Instant::now() < deadline {
                crate::torture::primary::within(admin.query_one(&sql, &[])).await?;
                stage.hold(hit.millis(5, 200)).await;
            }
        }
        Destination::Endpoint { mood, .. } => {
            mood.send_replace(if hit.random.random_bool(0.7) { Mood::Failing } else { Mood::Hanging });
            stage.hold(length).await;
            mood.send_replace(Mood::Willing);
        }
        Destination::Files { .. } => return Ok(false),
    }
    fault.end();
    Ok(true)
}
