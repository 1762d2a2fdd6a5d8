//! `proof demo`: the main job end to end, with things going wrong on purpose, and the count afterwards.
//!
//! Three replicas of the real executable share the lanes of one outbox. Concurrent transactions write orders; one
//! replica is killed with SIGKILL in the middle, another is frozen past its lease and woken. Nothing is restarted by
//! hand. Then what was committed is compared with what arrived. With `--naive` the [`classic`](crate::classic) relay is
//! put through the same.

mod destination;
mod fleet;
mod lanes;
mod place;
mod report;
mod screen;
mod setup;
mod stage;

use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Error;
use crate::classic::Classic;
use crate::writers::{Outbox, Plan, Verdict, Writers};
use place::Place;
use report::{Contestant, Report, SinkKind};
use screen::{Screen, Tone, grouped};
use stage::Stage;

/// How long writing takes, whatever the number of messages, if the machine keeps up: time enough for a take-over and
/// a freeze with load before, during and after them.
const WRITE_FOR: u64 = 25;
/// Concurrent transactions. More than can be kept waiting by the few that stay open for a second.
const WRITERS: u64 = 24;
/// A frozen replica is woken this long after the others have dealt with its absence.
const ASLEEP: Duration = Duration::from_millis(1_500);
/// The classic relay has no lease to outlive; it is frozen for about as long.
const NAIVE_FREEZE: Duration = Duration::from_secs(7);
/// Far more than a take-over needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Even a slow machine writes more than this in a second.
const LEAST_RATE: u64 = 500;
/// Between a take-over and the freeze each lane gets messages with near certainty: twenty on average.
const MESSAGES_A_LANE: u64 = 20;

/// What `proof demo` takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Orders to write.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    messages: u64,
    /// Customers, each a key whose orders must stay in order.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    keys: u32,
    /// Where the orders go.
    #[arg(long, value_enum, default_value_t = SinkKind::Postgres)]
    sink: SinkKind,
    /// Run the classic relay instead: row locks that end before the publish.
    #[arg(long, conflicts_with = "sink")]
    naive: bool,
    /// Use this server instead of a private one: makes a database of its own there, and drops it at the end.
    #[arg(long, env = "PGBATON_DEMO_DSN", hide_env_values = true, value_name = "DSN")]
    dsn: Option<String>,
    /// End with one JSON object on standard output instead of a table.
    #[arg(long)]
    json: bool,
    /// Which transactions are tried.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Runs the demo. 0: as promised. 1: not. 130: interrupted.
pub async fn run(args: Args) -> Result<ExitCode, Error> {
    let screen = Screen::new();
    // From here on a signal is kept until somebody waits for it.
    let (mut interrupt, mut terminate) = (wait_for(SignalKind::interrupt())?, wait_for(SignalKind::terminate())?);
    let mut place = match &args.dsn {
        Some(dsn) => Place::on(dsn).await?,
        None => Place::private().await?,
    };
    let told = tokio::select! {
        told = tell(&args, &place, &screen) => told.map(Some),
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
    };
    screen.clear();
    let clean = told.as_ref().is_ok_and(|report| !report.as_ref().is_some_and(Report::is_alarming));
    if !clean {
        place.folder.keep();
        eprintln!("the logs are in {}", place.folder.path().display());
    }
    place.close().await?;
    let Some(report) = told? else {
        eprintln!("interrupted; everything has been cleaned up");
        return Ok(ExitCode::from(130));
    };
    if args.json {
        println!("{}", serde_json::to_string(&report).map_err(|cause| Error::because("writing JSON", &cause))?);
    } else {
        print!("{}", report.table());
    }
    Ok(if report.is_as_promised() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn wait_for(kind: SignalKind) -> Result<Signal, Error> {
    signal(kind).map_err(|cause| Error::because("waiting for signals", &cause))
}

/// The whole story, from the first process to the count.
async fn tell(args: &Args, place: &Place, screen: &Screen) -> Result<Report, Error> {
    screen.event(Tone::Step, &place.about);
    let mut stage = if args.naive {
        setup::classic(args, place, screen).await?
    } else {
        setup::pgbaton(args, place, screen).await?
    };
    begin(args, place, &mut stage).await?;
    lose_one(&mut stage).await?;
    freeze_another(&mut stage).await?;
    finish(args, stage).await
}

/// The replicas share the work, and the writers start.
async fn begin(args: &Args, place: &Place, stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.until("the replicas have not shared the lanes", PATIENCE, |stage| stage.is_shared()).await?;
    if stage.lanes.is_some() {
        let (lanes, shares) = (stage.lanes.as_ref().map_or(0, lanes::Lanes::count), stage.shares());
        stage.screen.event(Tone::Step, &format!("three replicas of `pgbaton run` share {lanes} lanes: {shares}"));
    } else {
        stage.screen.event(Tone::Step, "three replicas of the classic relay, with a five-second ticker");
    }
    let rate = u32::try_from(args.messages / WRITE_FOR).unwrap_or(u32::MAX).max(1);
    let plan = Plan {
        messages: args.messages,
        keys: args.keys,
        tasks: WRITERS,
        seed: args.seed,
        rate: Some(rate),
        outbox: if args.naive { Outbox::Classic } else { Outbox::Native },
        ..Plan::default()
    };
    stage.writers = Some(Writers::start(&place.producer.dsn, plan).await?);
    stage.screen.event(
        Tone::Step,
        &format!(
            "{WRITERS} writers insert {} orders of {} customers, {} a second",
            grouped(args.messages),
            grouped(args.keys),
            grouped(rate)
        ),
    );
    Ok(())
}

/// How long to wait for the writers.
fn patience(stage: &Stage<'_>) -> Duration {
    PATIENCE + Duration::from_secs(stage.messages / LEAST_RATE)
}

/// The first replica is killed, and the others take over.
async fn lose_one(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.until("a third of the orders has not been written", patience(stage), |stage| stage.written(35)).await?;
    stage.kill(0).await?;
    if let Some(lanes) = stage.lanes.as_ref().map(lanes::Lanes::count) {
        let taken_over = |stage: &Stage<'_>| stage.lanes.as_ref().is_some_and(lanes::Lanes::taken_over);
        stage.until("the lanes of the killed replica have not been taken over", PATIENCE, taken_over).await?;
        stage.screen.event(Tone::Good, &format!("the others have claimed its lanes: {}", stage.shares()));
        let enough = stage.progress.committed + MESSAGES_A_LANE * u64::try_from(lanes).unwrap_or_default();
        let reached = |stage: &Stage<'_>| stage.progress.finished || stage.progress.committed >= enough;
        stage.until("nothing more has been written", PATIENCE, reached).await?;
    }
    Ok(())
}

/// The second replica is frozen until its lease is long over, and then woken.
async fn freeze_another(stage: &mut Stage<'_>) -> Result<(), Error> {
    stage.until("half of the orders have not been written", patience(stage), |stage| stage.written(60)).await?;
    stage.freeze(1)?;
    let name = stage.name(1);
    if stage.lanes.is_none() {
        stage.pass(NAIVE_FREEZE).await?;
        return stage.wake(1);
    }
    stage
        .until("the lanes of the frozen replica have not been taken over", PATIENCE, |stage| stage.is_shared())
        .await?;
    stage.screen.event(Tone::Good, &format!("its lease is over: {} holds all lanes now", stage.name(2)));
    stage.pass(ASLEEP).await?;
    stage.wake(1)?;
    stage.until("the woken replica has not joined again", PATIENCE, |stage| stage.held_by(&name) > 0).await?;
    stage.screen.event(Tone::Good, &format!("{name} saw that its lease was over, dropped its lanes, joined again"));
    Ok(())
}

/// Everything is written and delivered, the replicas stop in order, and the count is taken.
async fn finish(args: &Args, mut stage: Stage<'_>) -> Result<Report, Error> {
    stage.until("the writers have not finished", patience(&stage), |stage| stage.progress.finished).await?;
    let Some(writers) = stage.writers.take() else { return Err(Error::new("nobody has written")) };
    let written = writers.finish().await?;
    stage.screen.event(
        Tone::Step,
        &format!(
            "all written; {} more rolled back, {} transactions open for a second",
            grouped(stage.progress.rolled_back),
            grouped(stage.progress.long)
        ),
    );
    let arrived = stage.until_all_arrived().await?;
    stage.screen.event(Tone::Step, if arrived { "all delivered" } else { "nothing arrives any more" });
    let words = stage.fleet.stop().await?;
    let everything = stage.destination.everything().await?;
    let takeover = match &stage.lanes {
        Some(lanes) => lanes.takeover_time(&everything.landed).await?,
        None => None,
    };
    Ok(Report {
        relay: if args.naive { Contestant::Classic } else { Contestant::Pgbaton },
        sink: args.sink,
        verdict: Verdict::of(&written, everything.landed.iter().map(|landed| &landed.arrival)),
        takeover_ms: takeover.map(|time| time.as_millis()),
        dropped_by_sink: words.repeated,
        inbox_numbers_unused: everything.numbers_unused,
        rolled_back: stage.progress.rolled_back,
        long_transactions: stage.progress.long,
        seconds: (stage.screen.elapsed().as_secs_f64() * 10.0).round() / 10.0,
    })
}

/// One replica of the classic relay, until SIGTERM.
pub async fn run_classic() -> Result<ExitCode, Error> {
    let mut terminate = wait_for(SignalKind::terminate())?;
    let dsn = std::env::var(setup::CLASSIC_DSN).map_err(|cause| {
        Error::because(format!("this is started by `proof demo --naive`; {}", setup::CLASSIC_DSN), &cause)
    })?;
    tokio::select! {
        ended = Classic::default().run(&dsn) => match ended? {},
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
    }
}
