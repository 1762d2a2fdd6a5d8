//! A message that the sink does not take, which holds its lane: what the log says of it, and how often.

use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::lane::Grant;
use crate::lease::BootInstant;
use crate::metrics::{Holding, Metrics};
use crate::outcome::Fault;
use crate::reminder::Reminder;

/// A sink that has asked for a later attempt for so long does not recover alone.
const PATIENCE: Duration = Duration::from_secs(300);

/// What the sink said of the first message of a batch that it did not take.
pub(super) struct Refusal<'a> {
    pub(super) fault: &'a Fault,
    pub(super) message: &'a str,
    pub(super) topic: &'a str,
    /// How many of the batch are left.
    pub(super) left: usize,
}

/// A lane while it is held.
pub(super) struct Held {
    /// Counts it for as long as this lives.
    _holding: Holding,
    since: BootInstant,
    told: Reminder,
}

impl Held {
    pub(super) fn new(metrics: &Arc<Metrics>) -> Self {
        Self { _holding: metrics.hold(), since: clock::now(), told: Reminder::default() }
    }

    /// Tells of a refusal, unless the same was told a short while ago. The next attempt comes after `pause`.
    pub(super) fn tell(&mut self, grant: &Grant, batch: i64, refusal: &Refusal<'_>, pause: Duration) {
        let now = clock::now();
        if !self.told.is_due(refusal.fault.code().name, now) {
            return;
        }
        let Refusal { fault, message: message_id, topic, left } = *refusal;
        let held = now.since(self.since);
        if held >= PATIENCE {
            tracing::error!(
                %grant, %fault, batch, message_id, topic, left, ?pause, ?held,
                "the sink has asked to try again for minutes; its lane is held until the sink takes it"
            );
        } else {
            tracing::warn!(
                %grant, %fault, batch, message_id, topic, left, ?pause, ?held,
                "the sink asks to try again; its lane is held until the sink takes it"
            );
        }
    }
}
