//! `pgbaton run` and `pgbaton check-config`.

use std::path::PathBuf;
use std::time::Duration;

use pgbaton::config::{Config, Log};
use pgbaton::replica::{AllMetrics, Replica};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::{Failure, say};

/// How often the counters go to the log.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// Runs a replica until a signal.
pub(crate) async fn run(path: &PathBuf) -> Result<(), Failure> {
    let config = Config::load(path)?;
    start_log(&config.log)?;
    let replica = Replica::new(config.into_replica()?);
    let metrics = replica.metrics();
    let stop = stop_on_signal()?;
    let counting = tokio::spawn(count(metrics.clone()));
    let result = replica.run(stop).await;
    counting.abort();
    log_counts(&metrics);
    if let Err(error) = result {
        tracing::error!(%error, "stopped: a person has to decide");
        return Err(Failure::Logged);
    }
    tracing::info!("stopped");
    Ok(())
}

/// Reads and validates a configuration.
pub(crate) fn check(path: &PathBuf) -> Result<(), Failure> {
    let config = Config::load(path)?;
    filter(&config.log)?;
    config.into_replica()?;
    say(&format!("{} is valid", path.display()));
    Ok(())
}

/// Logs go to standard error: standard output may be a sink.
fn start_log(log: &Log) -> Result<(), Failure> {
    let builder =
        tracing_subscriber::fmt().with_env_filter(filter(log)?).with_writer(std::io::stderr).with_target(false);
    // By default it tells standard error that standard error cannot be written, and dies of that.
    let builder = builder.log_internal_errors(false);
    if log.json {
        builder.json().init();
    } else {
        builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init();
    }
    Ok(())
}

fn filter(log: &Log) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(&log.filter)
        .map_err(|error| Failure::Usage(format!("log.level {:?} is no filter: {error}", log.filter)))
}

/// The first signal drains; the second one ends the process at once, leaving what is in flight to the next owner.
fn stop_on_signal() -> Result<watch::Receiver<bool>, Failure> {
    let failed = |error: std::io::Error| Failure::Usage(format!("signals cannot be waited for: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move {
        let mut signals = 0;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            signals += 1;
            if signals == 1 {
                tracing::info!(
                    "draining: lanes are given back when what is in flight has finished; again to stop at once"
                );
                stop.send_replace(true);
            } else {
                tracing::warn!("stopped at once: the other replicas take over after a ttl");
                std::process::exit(1);
            }
        }
    });
    Ok(stopped)
}

async fn count(metrics: AllMetrics) {
    let mut ticks = tokio::time::interval(COUNT_EVERY);
    ticks.tick().await; // the first one comes at once
    loop {
        ticks.tick().await;
        log_counts(&metrics);
    }
}

fn log_counts(metrics: &AllMetrics) {
    for (relay, metrics) in metrics {
        let counts = metrics.counts();
        tracing::info!(
            %relay,
            delivered = counts.delivered,
            repeated = counts.repeated,
            retried = counts.retried,
            rejected = counts.rejected,
            sink_failures = counts.sink_failures,
            acknowledgements = counts.acknowledgements,
            lanes = counts.lanes,
            "counts since the start"
        );
    }
}
