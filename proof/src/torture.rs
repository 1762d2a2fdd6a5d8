//! `proof torture`: hostile writers and faults without end against real replicas, and a judge that knows only what was written
//! down and what arrived.
//!
//! A run has a primary with a hot standby, N replicas of the real executable that reach both through proxies of their own, a
//! sink, and writers with every kind of transaction. Faults are drawn at random, several at once. At the end all is healed,
//! everything has to be delivered within a stated time, and the [`checker`] judges the history. All random choices come from
//! the seed: `--seed` tries the same again, as far as the timing of real processes allows.

pub mod book;
mod destination;
mod faults;
mod fleet;
mod log;
mod outbox;
mod pace;
mod pair;
mod plan;
mod primary;
mod sampling;
mod stage;
mod summary;
mod ways;
mod writers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use checker::history::Event;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::Error;
use book::{Book, Count};
use outbox::SourceKind;
use pace::Pace;
use plan::{Plan, SinkKind};
use stage::Stage;
use summary::Summary;
use writers::{Writers, Written};

/// What `proof torture` takes.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Write and hurt for at least so many minutes; 3, unless --messages is given.
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Write at least so many messages.
    #[arg(long, value_name = "N")]
    messages: Option<u64>,
    /// Go on until there were so many faults.
    #[arg(long, value_name = "N", default_value_t = 0)]
    faults_min: usize,
    /// What all random choices come from; by default another one each time, which is printed.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// What they are written to: the native outbox, or a table that is adopted, whose rows are marked or deleted.
    #[arg(long, value_enum, default_value_t = SourceKind::Native)]
    source: SourceKind,
    /// Where the messages go.
    #[arg(long, value_enum, default_value_t = SinkKind::Postgres)]
    sink: SinkKind,
    /// How many replicas there are.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=9))]
    replicas: u32,
    /// Draw from these faults only.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    faults: Vec<String>,
    /// Print all kinds of faults, and end.
    #[arg(long)]
    list_faults: bool,
    /// End with one JSON object on standard output instead of a table.
    #[arg(long)]
    json: bool,
    /// Where histories, logs and summary.json go; by default a folder for temporary files.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Keep histories and logs even if all is as promised.
    #[arg(long)]
    keep: bool,
}

/// Between two lines about how it goes.
const SAY_EVERY: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// A relay that delivers nothing and passes nothing for so long, while faults come and go, is stuck.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// With less than this on the disk a run ends.
const LEAST_FREE: u64 = 2 << 30;

/// Runs it. 0: as promised. 1: not. 130: interrupted.
pub async fn run(args: Args) -> Result<ExitCode, Error> {
    if args.list_faults {
        print!("{}", faults::list());
        return Ok(ExitCode::SUCCESS);
    }
    let plan = Plan::new(&args)?;
    eprintln!("{}\nseed {}, in {}", plan.command, plan.seed, plan.folder.display());
    let failed = |cause| Error::because("waiting for signals", &cause);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let folder = plan.folder.clone();
    let summary = tokio::select! {
        summary = perform(plan) => summary?,
        _ = interrupt.recv() => return Ok(ExitCode::from(130)),
        _ = terminate.recv() => return Ok(ExitCode::from(130)),
    };
    let json = serde_json::to_string_pretty(&summary).map_err(|cause| Error::because("writing JSON", &cause))?;
    let file = folder.join("summary.json");
    std::fs::write(&file, &json).map_err(|cause| Error::because(format!("writing {}", file.display()), &cause))?;
    if args.json {
        println!("{json}");
    } else {
        print!("{}", summary.table());
    }
    if summary.flawless && !args.keep {
        sweep(&folder)?;
    } else {
        eprintln!("histories and logs are in {}; the same again: {}", folder.display(), summary.command);
    }
    Ok(if summary.flawless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// From the first process to the verdict.
async fn perform(plan: Plan) -> Result<Summary, Error> {
    let folder = plan.folder.clone();
    let stage = Arc::new(Stage::set(plan).await?);
    let committed = Arc::<AtomicU64>::default();
    let (pace, looking) = {
        let (primary, destination) = (stage.primary.clone(), Arc::clone(&stage.destination));
        pace::start((primary, stage.plan.source), destination, Arc::clone(&committed), stage.plan.behind)
    };
    let book = Book::open(&folder, "writers")?;
    let mut counts = vec![book.count()];
    counts.extend(stage.destination.count());
    let writers = Writers::start(&stage.plan, book, stage.primary.clone(), pace.clone(), committed);
    let faults = tokio::spawn(faults::conduct(Arc::clone(&stage), stage.told_of_calm()));
    let sampling = tokio::spawn(sampling::sample(Arc::clone(&stage)));
    let began = Instant::now();
    until_enough(&stage, &writers, &pace).await;
    let seconds = began.elapsed().as_secs_f64();

    stage.calm_down();
    stage.log.find_failure("the faults", faults.await.map_err(|cause| Error::because("conducting", &cause)));
    summary::find_faults_that_fail(&stage);
    if stage.plan.long {
        summary::find_kinds_that_never_came(&stage);
    }
    stage.fleet.calm().await;
    stage.heal().await;
    let (written, ended) = writers.stop().await;
    stage.log.find_failure("the writers", ended);
    summary::find_deeds_that_never_came(&stage, written);
    stage.log.book.tell(Event::Calm);
    let calm = Instant::now();
    eprintln!("calm: {} messages committed, {} faults", written.messages, stage.log.done());
    let drained = stage.drained(calm).await;
    if drained {
        stage.log.book.tell(Event::Drained);
    }
    let drain_seconds = calm.elapsed().as_secs_f64();
    stage.fleet.stop(&stage.log).await;
    looking.abort();
    sampling.abort();
    let long = stage.plan.long;
    let mut told = finish(&stage, written, &counts, Times { seconds, drained, drain_seconds }).await;
    // Servers and judge need not share the memory.
    let judged = tokio::task::spawn_blocking(move || {
        drop(stage);
        checker::check(&folder)
    });
    match judged.await.map(|judged| judged.map_err(|cause| Error::because("judging", &cause))) {
        Ok(Ok(verdict)) => told.verdict = Some(verdict),
        Ok(Err(error)) => told.findings.push(error.to_string()),
        Err(error) => told.findings.push(format!("the checker ended in the middle: {error}")),
    }
    if long {
        told.find_what_never_happened();
    }
    Ok(told.concluded())
}

struct Times {
    seconds: f64,
    drained: bool,
    drain_seconds: f64,
}

/// Until the plan is fulfilled, or there is no hope of it.
async fn until_enough(stage: &Stage, writers: &Writers, pace: &Pace) {
    let (began, mut said) = (Instant::now(), Instant::now());
    let (mut moved, mut before) = (Instant::now(), (0, 0));
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let (written, done, progress) = (writers.written(), stage.log.done(), pace.progress());
        let plan = &stage.plan;
        if began.elapsed() >= plan.length && written.messages >= plan.messages && done >= plan.faults {
            return;
        }
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            if stage.free().is_ok_and(|free| free < LEAST_FREE) {
                stage.log.find(format!("ended early: {} is on a disk that is nearly full", plan.folder.display()));
                return;
            }
            let Written { messages, committed, unsure, .. } = written;
            eprintln!(
                "{:>5.0} s: {messages} messages in {committed} transactions ({unsure} unsure), {} behind, {done} faults; \
                 writers last met: {}",
                began.elapsed().as_secs_f64(),
                progress.behind(),
                writers.trouble()
            );
        }
        if progress.marks() != before {
            (moved, before) = (Instant::now(), progress.marks());
        } else if moved.elapsed() > STUCK_AFTER {
            stage.log.find(format!("nothing was delivered for {STUCK_AFTER:?}, or nothing written: {progress:?}"));
            return;
        }
    }
}

/// Tells the rest. What the checker says is still missing then.
async fn finish(stage: &Stage, written: Written, counts: &[Count], times: Times) -> Summary {
    let log = &stage.log;
    let ledger = log.find_failure("the ledger", stage.tell_ledger().await);
    let arrived = log.find_failure("what arrived", stage.destination.tell(&log.book).await);
    log.book.tell(book::end(&log.book, counts));
    log.find_failure("the history", log.book.whole());
    stage.keep_logs().await;
    let plan = &stage.plan;
    Summary {
        seed: plan.seed,
        command: plan.command.clone(),
        source: plan.source,
        sink: plan.sink,
        replicas: plan.replicas,
        seconds: times.seconds,
        written,
        ledger: ledger.unwrap_or_default(),
        arrived: arrived.unwrap_or_default(),
        drained: times.drained,
        drain_seconds: times.drain_seconds,
        faults_done: log.done(),
        faults: log.counts(),
        at_points: log.at_points(),
        not_done: summary::not_done(stage),
        effects: log.effects(),
        failures: log.failures(),
        findings: log.findings(),
        verdict: None,
        flawless: false,
    }
}

/// Removes everything but the summary, of what this made.
fn sweep(folder: &Path) -> Result<(), Error> {
    let failed = |cause| Error::because(format!("clearing {}", folder.display()), &cause);
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let made = ["history", "out", "err", "toml", "log", "jsonl", "clock", "off"];
        if path.extension().is_some_and(|extension| made.iter().any(|made| extension == *made)) {
            std::fs::remove_file(&path).map_err(failed)?;
        }
    }
    Ok(())
}
