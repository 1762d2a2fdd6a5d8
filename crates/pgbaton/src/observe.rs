//! The seam for whoever wants to see each message that was delivered, such as an exporter of traces.
//!
//! The library parses no headers for it and knows no protocol: it lends out what the sink was given and what it answered.

use std::fmt::Debug;
use std::time::SystemTime;

use crate::lane::Grant;
use crate::outcome::Outcome;
use crate::sink::Part;

/// Sees what sinks answer.
///
/// Called on the task of a lane, for several lanes at once, in the order in which each lane's calls were answered. It holds
/// up the lane, so it has to return at once and wait for nothing.
pub trait Observe: Debug + Send + Sync {
    /// The sink has answered a call.
    fn answered(&self, answered: &Answered<'_>);
}

/// A call to a sink, and its answer.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// The lane, and the epoch it is held under.
    pub grant: &'a Grant,
    /// The messages that the sink was given.
    pub part: &'a Part<'a>,
    /// One for each of them, in the same order; a message without one was not answered for.
    pub outcomes: &'a [Outcome],
    /// When the call began, by this machine's wall clock.
    pub began: SystemTime,
}
