//! The log: to standard error, since standard output may be a sink. Level and format can be changed while it runs.

use pgbaton::config::Log;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::Failure;

type Filter = reload::Layer<EnvFilter, Registry>;
type Filtered = Layered<Filter, Registry>;
/// Whatever writes lines.
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

/// The running log.
pub(crate) struct Handle {
    filter: reload::Handle<EnvFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

impl Handle {
    /// Logs from now on. Called once in a process.
    pub(crate) fn start(log: &Log) -> Result<Self, Failure> {
        let (filter, filter_handle) = reload::Layer::new(filter(log)?);
        let (lines, lines_handle) = reload::Layer::new(lines(log));
        tracing_subscriber::registry().with(filter).with(lines).init();
        Ok(Self { filter: filter_handle, lines: lines_handle })
    }

    /// Logs like this from now on.
    pub(crate) fn change(&self, log: &Log) -> Result<(), Failure> {
        let gone = |error: reload::Error| Failure::Usage(format!("the log cannot be changed: {error}"));
        let filter = filter(log)?;
        self.lines.reload(lines(log)).map_err(gone)?;
        self.filter.reload(filter).map_err(gone)
    }
}

fn lines(log: &Log) -> Lines {
    let layer = fmt::layer().with_writer(std::io::stderr).with_target(false);
    // By default it tells standard error that standard error cannot be written, and dies of that.
    let layer = layer.log_internal_errors(false);
    if log.json {
        layer.json().boxed()
    } else {
        layer.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed()
    }
}

/// The filter of this configuration.
pub(crate) fn filter(log: &Log) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(&log.filter)
        .map_err(|error| Failure::Usage(format!("log.level {:?} is no filter: {error}", log.filter)))
}
