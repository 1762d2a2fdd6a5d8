//! An executable without the feature `traces`: it sends none, and says so to whoever asks for them.

use std::convert::Infallible;
use std::sync::Arc;

use pgbaton::config;
use pgbaton::observe::Observe;

use crate::Failure;

/// There are none.
pub(crate) struct Traces(Infallible);

impl Traces {
    pub(crate) fn start(traces: &config::Traces) -> Result<Option<Self>, Failure> {
        check(traces).map(|()| None)
    }

    pub(crate) fn observer(&self) -> Arc<dyn Observe> {
        match self.0 {}
    }

    pub(crate) async fn end(self) {
        match self.0 {}
    }
}

/// Whether these traces can be sent.
pub(crate) fn check(traces: &config::Traces) -> Result<(), Failure> {
    match traces.endpoint {
        None => Ok(()),
        Some(_) => Err(Failure::Usage(
            "traces.endpoint: this executable sends no traces; build it with the feature `traces`".into(),
        )),
    }
}
