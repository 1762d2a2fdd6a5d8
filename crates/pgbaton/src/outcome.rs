//! What became of a message at the sink, and what a sink answers when no single message is to blame.

use std::fmt;
use std::time::Duration;

use crate::lane::Epoch;
use crate::lease::LeaseOver;

/// What became of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The sink has it now.
    Delivered,
    /// The sink had it already and dropped the repeat.
    Repeated,
    /// Nothing was written, and a later attempt may succeed.
    Retry {
        /// The sink asked to be left alone for so long.
        after: Option<Duration>,
        /// Why.
        fault: Fault,
    },
    /// The sink can never take this message.
    Rejected(Fault),
    /// Nothing was written, and nothing is known against this message: the sink went down, the lease ended, or an earlier
    /// message of its key was not taken. The next call says what it was, if it lasts.
    NotTried,
}

impl Outcome {
    /// Whether the message is at the sink.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Delivered | Self::Repeated)
    }
}

/// What went wrong at a sink: a stable code and a text for a person. Neither holds a payload or a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    code: &'static str,
    text: String,
}

/// Longer texts come from servers that quote what they were sent.
const TEXT_KEPT: usize = 500;

impl Fault {
    /// A fault with a text that is cut to 500 characters and cleaned of control characters.
    #[must_use]
    pub fn new(code: &'static str, text: &str) -> Self {
        let text = text.chars().take(TEXT_KEPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { code, text }
    }

    /// Stable, of the form `sink.reason`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.code
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

/// The answer to a whole append: no message is to blame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It cannot be reached, or takes nothing from anybody. Nothing was written.
    #[error("the sink is down: {0}")]
    SinkDown(Fault),
    /// A newer epoch has opened this lane at the sink. Nothing was written.
    #[error("fenced: the sink knows epoch {epoch}")]
    Fenced {
        /// The epoch that the sink holds.
        epoch: Epoch,
    },
    /// It may have been written, wholly or in part: the answer was lost.
    #[error("it may have been written: {0}")]
    Ambiguous(Fault),
    /// The sink does not stand where it was last known to stand. Nothing was written.
    #[error("the sink stands elsewhere than it was last known to")]
    Moved,
    /// The lease ended before the write. Nothing was written.
    #[error("the lease ended before the write")]
    LeaseOver,
}

/// So that a sink can say `deadline.check()?` before its one write of a call. After an earlier write of the same call the
/// answer is [`AppendError::Ambiguous`] instead, since something was written.
impl From<LeaseOver> for AppendError {
    fn from(_: LeaseOver) -> Self {
        Self::LeaseOver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_texts_are_cut_and_cleaned() {
        let fault = Fault::new("sink.test", &format!("a\0b\n{}", "ü".repeat(1_000)));
        let shown = fault.to_string();
        assert!(shown.starts_with("sink.test: a b ü"));
        assert_eq!(shown.chars().count(), "sink.test: ".len() + 500);
    }
}
