//! `pgbaton run` and `pgbaton check-config`.
//!
//! One replica runs after the other, each with the configuration as it was read last. Between two of them lanes are given
//! back and taken over like between two processes, and the counters go on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pgbaton::config::{self, Config, Given, Http, Log};
use pgbaton::metrics::AllMetrics;
use pgbaton::replica::{Replica, ReplicaSpec};
use pgbaton::source::SourceSpec;
use pgbaton::source::table::NO_AGE;
use pgbaton::vitals::Vitals;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tracing_appender::non_blocking::ErrorCounter;

use crate::http::{Answers, Server};
use crate::traces::{self, Traces};
use crate::{Failure, log, say};

/// How often the counters go to the log.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// How long the thread that writes the log gets for the last line.
const LAST_LINE: Duration = Duration::from_millis(100);

/// Runs replicas until a signal.
pub(crate) async fn run(path: &Path) -> Result<(), Failure> {
    let Configured { standing, replica } = read(path)?;
    let log = log::Handle::start(&standing.log)?;
    let orders = orders()?;
    let answers = Arc::new(Answers::new(Arc::default(), Vitals::default()));
    let server = Server::start(standing.http, &answers);
    let counting = tokio::spawn(count(Arc::clone(&answers), log.dropped()));
    let daemon = Daemon { path, log, server, answers: Arc::clone(&answers), standing };
    let result = daemon.run(replica, orders).await;
    counting.abort();
    log_counts(&answers);
    result
}

/// Reads and validates a configuration.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    let Configured { replica, .. } = read(path)?;
    for relay in &replica.relays {
        if let SourceSpec::Table(table) = &relay.source
            && table.created_at.is_none()
        {
            say(&format!("relay {}: {NO_AGE}", relay.name));
        }
    }
    say(&format!("{} is valid", path.display()));
    Ok(())
}

/// What the process follows.
struct Standing {
    given: Given,
    log: Log,
    http: Http,
    traces: config::Traces,
}

/// A configuration that has been validated to its end.
struct Configured {
    standing: Standing,
    replica: ReplicaSpec,
}

fn read(path: &Path) -> Result<Configured, Failure> {
    let config = Config::load(path, std::env::vars_os())?;
    log::filter(&config.log)?;
    traces::check(&config.traces)?;
    let (given, log, http, traces) = (config.given(), config.log.clone(), config.http, config.traces.clone());
    let standing = Standing { given, log, http, traces };
    Ok(Configured { standing, replica: config.into_replica()? })
}

struct Daemon<'a> {
    path: &'a Path,
    log: log::Handle,
    server: Server,
    answers: Arc<Answers>,
    standing: Standing,
}

/// What a signal asks for.
enum Order {
    Stop,
    ReadAgain,
}

impl Daemon<'_> {
    /// Runs this replica, and after it those that new configurations ask for.
    async fn run(mut self, first: ReplicaSpec, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<(), Failure> {
        let mut next = Some(first);
        let mut leaving = false;
        while let Some(spec) = next.take() {
            let (stop, stopped) = watch::channel(false);
            let (metrics, vitals) = (Arc::clone(&self.answers.metrics), self.answers.vitals.clone());
            let traces = Traces::start(&self.standing.traces)?;
            let replica = Replica::in_process(spec, metrics, vitals);
            let replica = match &traces {
                Some(traces) => replica.observed_by(traces.observer()),
                None => replica,
            };
            let mut replica = tokio::spawn(replica.run(stopped));
            let ended = loop {
                tokio::select! {
                    ended = &mut replica => break ended,
                    Some(order) = orders.recv() => match order {
                        Order::Stop => (leaving, next) = (true, None),
                        Order::ReadAgain if leaving => {}
                        Order::ReadAgain => next = self.read_again().or(next),
                    }
                }
                stop.send_replace(leaving || next.is_some());
            };
            if let Some(traces) = traces {
                traces.end().await;
            }
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::error!(%error, "stopped: a person has to decide");
                    return Err(Failure::Logged);
                }
                Err(error) => {
                    tracing::error!(%error, "stopped: a fault in pgbaton, please report it with the log");
                    return Err(Failure::Logged);
                }
            }
        }
        tracing::info!("stopped");
        Ok(())
    }

    /// Follows the configuration as it is now, if it can be used; gives what a new replica is to be started with.
    fn read_again(&mut self) -> Option<ReplicaSpec> {
        let read = read(self.path).and_then(|read| {
            if read.standing.log != self.standing.log {
                self.log.change(&read.standing.log)?;
            }
            Ok(read)
        });
        self.answers.reload_refused(read.is_err());
        match read {
            Ok(Configured { standing, replica }) => self.follow(standing).then_some(replica),
            Err(failure) => {
                let problems = match failure {
                    Failure::Library(error) => error.to_string(),
                    Failure::Usage(text) => text,
                    Failure::Output(error) => error.to_string(),
                    Failure::Logged | Failure::Found => return None,
                };
                // One line, as everything in the log.
                let problems = problems.lines().map(str::trim).collect::<Vec<_>>().join("; ");
                tracing::error!(%problems, "the configuration was read again and is refused: the old one stays");
                None
            }
        }
    }

    /// Whether the replica has to be started again.
    fn follow(&mut self, standing: Standing) -> bool {
        let before = std::mem::replace(&mut self.standing, standing);
        let (log, http) = (before.log != self.standing.log, before.http != self.standing.http);
        let replica = before.given != self.standing.given;
        if http {
            self.server = Server::start(self.standing.http, &self.answers);
        }
        if replica {
            tracing::info!(
                log,
                http,
                replica,
                "the configuration was read again: draining, then the replica starts again with it"
            );
        } else if log || http {
            tracing::info!(log, http, replica, "the configuration was read again and is followed");
        } else {
            tracing::info!("the configuration was read again and has not changed");
        }
        replica
    }
}

/// SIGTERM or SIGINT drains; the second one ends the process at once, leaving what is in flight to the next owner. SIGHUP
/// has the configuration read again.
///
/// They are waited for on a thread of their own, so that a process that stands still can be ended all the same.
fn orders() -> Result<mpsc::UnboundedReceiver<Order>, Failure> {
    let failed = |error: std::io::Error| Failure::Usage(format!("signals cannot be waited for: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let signals = {
        let _entered = runtime.enter();
        let listen = |kind| signal(kind).map_err(failed);
        (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?, listen(SignalKind::hangup())?)
    };
    let (order, orders) = mpsc::unbounded_channel();
    let wait = move || runtime.block_on(give_orders(signals, order));
    std::thread::Builder::new().name("signals".into()).spawn(wait).map_err(failed)?;
    Ok(orders)
}

async fn give_orders(
    (mut terminate, mut interrupt, mut hangup): (Signal, Signal, Signal),
    order: mpsc::UnboundedSender<Order>,
) {
    let mut leaving = false;
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {
                // Who would follow it is gone only at the end of the process.
                let _ = order.send(Order::ReadAgain);
                continue;
            }
        }
        if leaving {
            tracing::warn!("stopped at once: the other replicas take over after a ttl");
            std::thread::sleep(LAST_LINE);
            std::process::exit(1);
        }
        leaving = true;
        tracing::info!("draining: lanes are given back when what is in flight has finished; again to stop at once");
        let _ = order.send(Order::Stop);
    }
}

async fn count(answers: Arc<Answers>, dropped: ErrorCounter) {
    let mut told = 0;
    let mut ticks = tokio::time::interval(COUNT_EVERY);
    ticks.tick().await; // the first one comes at once
    loop {
        ticks.tick().await;
        log_counts(&answers);
        let lines = dropped.dropped_lines();
        if lines > told {
            tracing::warn!(lines, "lines of the log were dropped: nobody read it fast enough");
            told = lines;
        }
    }
}

fn log_counts(answers: &Answers) {
    let metrics: &AllMetrics = &answers.metrics;
    for relay in answers.vitals.read().relays {
        let counts = metrics.relay(&relay).counts();
        tracing::info!(
            %relay,
            delivered = counts.delivered,
            repeated = counts.repeated,
            retried = counts.retried,
            rejected = counts.rejected,
            set_aside = counts.set_aside,
            dead = counts.dead,
            sink_failures = counts.sink_failures,
            acknowledgements = counts.acknowledgements,
            lanes = counts.lanes,
            "counts since the start"
        );
    }
}
