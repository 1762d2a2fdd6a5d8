//! What became of a message at the sink, and what a sink answers when no single message is to blame. What an error means
//! is said in `codes`, for all sinks.

use std::fmt;
use std::time::Duration;

use crate::lane::Epoch;
use crate::lease::LeaseOver;

pub mod codes;

pub use codes::{Code, Meaning};

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

    /// What a fault means for the message that it is about, by its code's meaning: a sink never chooses for itself. `after`: the
    /// sink asked to be left alone for so long.
    ///
    /// # Errors
    /// It is not about a message: the sink is down.
    pub fn of(fault: Fault, after: Option<Duration>) -> Result<Self, AppendError> {
        match fault.code.meaning {
            Meaning::Reject => Ok(Self::Rejected(fault)),
            Meaning::Retry | Meaning::Silent | Meaning::Busy => Ok(Self::Retry { after, fault }),
            Meaning::Down => Err(AppendError::SinkDown(fault)),
        }
    }

    /// The same for a call with so many messages that wrote nothing, where the fault names none of them.
    ///
    /// # Errors
    /// The sink is down, or refuses one of the messages.
    pub fn of_all(fault: Fault, messages: usize) -> Result<Vec<Self>, AppendError> {
        match Self::of(fault, None)? {
            Self::Rejected(fault) => Err(AppendError::Refused(fault)),
            outcome => Ok(vec![outcome; messages]),
        }
    }
}

/// What went wrong at a sink: a stable code and a text for a person. Neither holds a payload or a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    code: &'static Code,
    text: String,
}

/// Longer texts come from servers that quote what they were sent.
const TEXT_KEPT: usize = 500;

impl Fault {
    /// A fault with a text that is cut to 500 characters and cleaned of control characters.
    #[must_use]
    pub fn new(code: &'static Code, text: &str) -> Self {
        let text = text.chars().take(TEXT_KEPT).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self { code, text }
    }

    /// What it says for a person.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What kind of error it is, and with that what it means.
    #[must_use]
    pub fn code(&self) -> &'static Code {
        self.code
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name, self.text)
    }
}

/// The answer to a whole append, where none is known about a single message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It cannot be reached, or takes nothing from anybody. Nothing was written.
    #[error("the sink is down: {0}")]
    SinkDown(Fault),
    /// Nothing was written: the sink refuses at least one of these messages and does not say which.
    #[error("refused: {0}")]
    Refused(Fault),
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

    static TEST: Code = Code { name: "sink.test", meaning: Meaning::Retry, says: "A test", todo: "Nothing" };

    #[test]
    fn fault_texts_are_cut_and_cleaned() {
        let fault = Fault::new(&TEST, &format!("a\0b\n{}", "ü".repeat(1_000)));
        let shown = fault.to_string();
        assert!(shown.starts_with("sink.test: a b ü"));
        assert_eq!(shown.chars().count(), "sink.test: ".len() + 500);
    }

    #[test]
    fn the_code_says_what_becomes_of_a_message() {
        let after = Some(Duration::from_secs(7));
        for code in codes::ALL {
            let fault = Fault::new(code, "x");
            let (one, all) = (Outcome::of(fault.clone(), after), Outcome::of_all(fault.clone(), 2));
            let retry = |after| Outcome::Retry { after, fault: Fault::new(code, "x") };
            let expected = match code.meaning {
                Meaning::Reject => (Ok(Outcome::Rejected(fault.clone())), Err(AppendError::Refused(fault))),
                Meaning::Retry | Meaning::Silent | Meaning::Busy => (Ok(retry(after)), Ok(vec![retry(None); 2])),
                Meaning::Down => (Err(AppendError::SinkDown(fault.clone())), Err(AppendError::SinkDown(fault))),
            };
            assert_eq!((one, all), expected, "{}", code.name);
        }
    }
}
