//! The `pgbaton` executable: the relay as a daemon, and thin commands over the library.
//!
//! Data goes to standard output, everything said about it to standard error. Exit codes: 0 done, 1 failed, 2 the
//! command line or the configuration is wrong.

mod adopt;
mod args;
mod daemon;
mod doctor;
mod exposition;
mod http;
mod log;
mod messages;
mod pauses;
mod rebase;
mod relays;
mod replay;
mod schema;
mod segments;
mod send;
mod status;
mod trace;
#[cfg_attr(not(feature = "traces"), path = "no_traces.rs")]
mod traces;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command, DeadCommand, LanesCommand, MessagesCommand, RelaysCommand};
use pgbaton::control::parked::Deed;

/// The C library's allocator gives little back of what large messages once needed: a replica that held 5 MB grew to 130 MB.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// What a command failed with.
pub(crate) enum Failure {
    /// The library's error.
    Library(pgbaton::Error),
    /// The library's error, which is in the log already.
    Logged,
    /// What was looked for is wrong; it was printed.
    Found,
    /// The command line or a file it names is wrong.
    Usage(String),
    /// What was asked for could not be written to standard output.
    Output(std::io::Error),
}

impl From<pgbaton::Error> for Failure {
    fn from(error: pgbaton::Error) -> Self {
        Self::Library(error)
    }
}

fn main() -> ExitCode {
    #[cfg(feature = "faults")]
    pgbaton::faults::check();
    let args = Args::parse();
    // One worker: waking a second one for each few kilobytes that arrive costs more than it brings (`./dev bench drain`).
    // Each relay reads on a thread of its own, leases are renewed on another, and what blocks runs on others again.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("pgbaton: no threads can be started: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(run(args.command));
    // A blocked write to standard output must not keep the process from ending.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Logged | Failure::Found) => ExitCode::FAILURE,
        Err(Failure::Output(error)) => {
            say(&format!("pgbaton: standard output cannot be written: {error}"));
            ExitCode::FAILURE
        }
        Err(Failure::Usage(text)) => {
            say(&format!("pgbaton: {text}"));
            ExitCode::from(2)
        }
        Err(Failure::Library(error)) => {
            say(&format!("pgbaton: {error}"));
            ExitCode::from(if error.code() == "config.invalid" { 2 } else { 1 })
        }
    }
}

async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Run { config } => daemon::run(&config).await,
        Command::CheckConfig { config } => daemon::check(&config),
        Command::Migrate { database, print } => schema::migrate(database, print).await,
        Command::Wake { switch, database } => {
            Ok(pgbaton::migrate::wake(&database.database()?, switch == args::Switch::On).await?)
        }
        Command::Grants { migrate, relay, producer } => {
            schema::grants(&pgbaton::migrate::Roles { migrate, relay, producer })
        }
        Command::Inbox { table, role } => schema::inbox(&table, &role),
        Command::Adopt(args) => adopt::run(&args).await,
        Command::Send(message) => send::run(message).await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Status { database, json } => status::status(database, json).await,
        Command::Lanes { show, command: None } => status::lanes(show).await,
        Command::Lanes { command: Some(LanesCommand::Split { relay, act }), .. } => relays::split(&relay, &act).await,
        Command::Relays { command: RelaysCommand::List { show } } => relays::list(&show).await,
        Command::Relays { command: RelaysCommand::Drop { relay, act } } => relays::drop(&relay, &act).await,
        Command::Segments { show, command: None } => segments::list(&show).await,
        Command::Segments { command: Some(set), .. } => segments::set(set).await,
        Command::Messages { command } => of_messages(command).await,
        Command::Dead { command } => of_dead(command).await,
        Command::Replay(args) => replay::run(&args).await,
        Command::Pause(args) => pauses::pause(&args).await,
        Command::Resume(args) => pauses::resume(&args).await,
        Command::Pauses(show) => pauses::list(&show).await,
        Command::Trace(args) => trace::run(&args).await,
        Command::Audit { relay, most, show } => messages::audit(relay.as_deref(), most.limit, &show).await,
        Command::Rebase { act, forsake_timeline } => rebase::rebase(&act, forsake_timeline).await,
        Command::Confirm { database } => rebase::confirm(&database).await,
    }
}

async fn of_messages(command: MessagesCommand) -> Result<(), Failure> {
    match command {
        MessagesCommand::List(list) => messages::list(&list, None).await,
        MessagesCommand::Show(show) => messages::show(&show).await,
        MessagesCommand::Retry(which) => messages::act(&which, Deed::TryNow).await,
    }
}

async fn of_dead(command: DeadCommand) -> Result<(), Failure> {
    match command {
        DeadCommand::List(list) => messages::list(&list, Some(true)).await,
        DeadCommand::Show(show) => messages::show(&show).await,
        DeadCommand::Retry(which) => messages::act(&which, Deed::Retry).await,
        DeadCommand::Discard(which) => messages::act(&which, Deed::Discard).await,
    }
}

/// Tells whoever started this. That nobody listens is no reason to die.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints data. A reader that has gone away is not an error; data that is lost is.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}

/// Prints a value as one JSON object.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value).map_err(|error| Failure::Output(error.into()))?;
    print(&format!("{text}\n"))
}
