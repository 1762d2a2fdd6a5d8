//! What operators do meanwhile.

use pgbaton::control::pauses::{self, What};
use rand::RngExt;

use super::{Hit, undo};
use crate::Error;
use crate::torture::fleet::LANES;
use crate::torture::outbox::NAME;
use crate::torture::primary::{UNDO_WITHIN, again};
use crate::torture::stage::Stage;

/// Dead messages are tried again. False if there are none.
pub(super) async fn redrive(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let fault = hit.begin(stage, "dead messages", None);
    let revived = stage.revive().await;
    fault.end();
    revived.map(|messages| messages > 0)
}

/// Something is paused for a while.
pub(super) async fn pause(stage: &Stage, hit: &mut Hit) -> Result<bool, Error> {
    let length = hit.millis(500, 6_000);
    let what = match hit.random.random_range(0..10) {
        0 => What::All,
        1..4 => What::Lane(hit.random.random_range(0..LANES.cast_signed())),
        4..8 => What::Key(format!("k{}", hit.random.random_range(0..50))),
        _ => What::Key(format!("k{}", hit.random.random_range(0..2_000))),
    };
    let fault = hit.begin(stage, "the relay", None);
    let paused = pauses::pause(&stage.primary.operator(UNDO_WITHIN)?, NAME, &what).await;
    if paused.is_ok() {
        stage.hold(length).await;
    }
    undo(stage, hit, again(UNDO_WITHIN, || stage.resume())).await;
    fault.end();
    paused.map_err(|error| Error::because("pausing", &error))
}
