//! What happens to a replica's process.

use std::time::Duration;

use rand::RngExt;

use super::{Hit, in_force};
use crate::Error;
use crate::torture::fleet::Post;
use crate::torture::plan::{TTL, TTL_MS};
use crate::torture::primary::{UNDO_WITHIN, again};
use crate::torture::stage::Stage;

fn post<'a>(stage: &'a Stage, hit: &Hit) -> Result<&'a Post, Error> {
    stage.fleet.posts.get(hit.target).map(AsRef::as_ref).ok_or_else(|| Error::new("there is no such replica"))
}

/// Over when the next process starts.
pub(super) async fn kill(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let post = post(stage, hit)?;
    let after = hit.millis(0, 3_000);
    post.kill(after, |pid| hit.begin(stage, &post.name, Some(pid)), &stage.log).await
}

pub(super) async fn stop(stage: &Stage, hit: &mut Hit, long: bool) -> Result<bool, Error> {
    let post = post(stage, hit)?;
    let length = if long { hit.millis(TTL_MS + TTL_MS / 4, TTL_MS * 4) } else { hit.millis(20, TTL_MS * 3 / 4) };
    let (fault, pid) = {
        let mut state = post.lock().await;
        let Some(pid) = state.pid() else { return Ok(false) };
        // One that stands at a fail point is resumed by others, who would end this, too.
        if state.process().is_none_or(|process| process.is_stopped()) {
            return Ok(false);
        }
        let fault = hit.begin(stage, &post.name, Some(pid));
        if state.process().is_none_or(|process| process.pause().is_err()) {
            return Ok(false);
        }
        state.paused = true;
        (fault, pid)
    };
    stage.hold(length).await;
    let mut state = post.lock().await;
    if state.pid() == Some(pid)
        && let Some(process) = state.process()
    {
        // It may have been killed meanwhile.
        let _ = process.resume();
    }
    state.paused = false;
    drop(state);
    fault.end();
    Ok(true)
}

pub(super) async fn clean_stop(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let post = post(stage, hit)?;
    let pid = post.lock().await.pid();
    if pid.is_none() {
        return Ok(false);
    }
    let fault = hit.begin(stage, &post.name, pid);
    let after = hit.millis(0, 4_000);
    let stopped = post.stop(after, &stage.log).await?;
    stage.hold(after).await;
    fault.end();
    Ok(stopped)
}

pub(super) async fn reconfigure(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let post = post(stage, hit)?;
    let pid = post.lock().await.pid();
    if pid.is_none() {
        return Ok(false);
    }
    let fault = hit.begin(stage, &post.name, pid);
    let told = post.reconfigure(&stage.plan.folder, &stage.fleet.common).await?;
    stage.hold(TTL).await;
    fault.end();
    Ok(told)
}

/// False if one of them had no process when its turn came.
pub(super) async fn rolling_restart(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let fault = hit.begin(stage, "all", None);
    let mut all = true;
    for post in &stage.fleet.posts {
        all &= if post.lasting {
            post.reconfigure(&stage.plan.folder, &stage.fleet.common).await?
        } else {
            // The next start writes the configuration again.
            post.change().await;
            post.stop(Duration::ZERO, &stage.log).await?
        };
        stage.hold(TTL).await;
    }
    fault.end();
    Ok(all)
}

/// Whoever follows a clock looks at it once a second.
pub(super) const CLOCK_LEAST: u64 = 2_500;

const JUMPS: [&str; 8] = ["+1h", "-1h", "+3d", "-3d", "+7s", "-7s", "+400d", "-90d"];

/// A jump of a wall clock.
pub(super) fn jump(hit: &mut Hit) -> &'static str {
    JUMPS.get(hit.random.random_range(0..JUMPS.len())).copied().unwrap_or("+1h")
}

pub(super) async fn clock(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let post = post(stage, hit)?;
    let Some(clock) = &post.clock else { return Ok(false) };
    let pid = post.lock().await.pid();
    if pid.is_none() {
        return Ok(false);
    }
    let (offset, length) = (jump(hit), hit.millis(CLOCK_LEAST, 15_000));
    let set_right = again(UNDO_WITHIN, || async { clock.set("+0") });
    in_force(stage, hit, (post.name.as_str(), pid), length, async { clock.set(offset) }, set_right).await
}
