//! The log: to standard error, since standard output may be a sink. Level and format can be changed while it runs.
//!
//! A thread of its own writes it, so that whoever reads it, or does not, holds up nothing: lines that cannot be written are
//! dropped, and counted.

use pgbaton::config::Log;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::Failure;

type Filter = reload::Layer<EnvFilter, Registry>;
type Filtered = Layered<Filter, Registry>;
/// Whatever writes lines.
type Lines = Box<dyn Layer<Filtered> + Send + Sync>;

/// Lines that wait to be written.
const LINES: usize = 10_000;

/// The running log. What waits to be written is written when this is dropped, unless nobody reads it.
pub(crate) struct Handle {
    writer: NonBlocking,
    _thread: WorkerGuard,
    filter: reload::Handle<EnvFilter, Registry>,
    lines: reload::Handle<Lines, Filtered>,
}

impl Handle {
    /// Logs from now on. Called once in a process.
    pub(crate) fn start(log: &Log) -> Result<Self, Failure> {
        let (filter, filter_handle) = reload::Layer::new(filter(log)?);
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(LINES).thread_name("log");
        let (writer, thread) = builder.finish(std::io::stderr());
        let (lines, lines_handle) = reload::Layer::new(lines(log, writer.clone()));
        tracing_subscriber::registry().with(filter).with(lines).init();
        Ok(Self { writer, _thread: thread, filter: filter_handle, lines: lines_handle })
    }

    /// Counts the lines that were dropped.
    pub(crate) fn dropped(&self) -> ErrorCounter {
        self.writer.error_counter()
    }

    /// Logs like this from now on.
    pub(crate) fn change(&self, log: &Log) -> Result<(), Failure> {
        let gone = |error: reload::Error| Failure::Usage(format!("the log cannot be changed: {error}"));
        let filter = filter(log)?;
        self.lines.reload(lines(log, self.writer.clone())).map_err(gone)?;
        self.filter.reload(filter).map_err(gone)
    }
}

fn lines(log: &Log, writer: NonBlocking) -> Lines {
    let layer = fmt::layer().with_writer(writer).with_target(false);
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
