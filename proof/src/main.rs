//! `proof`: shows and measures what pgbaton does. `./dev` builds and starts it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use proof::{bench, demo, mutants, torture, wrong};

/// Shows and measures what pgbaton does.
#[derive(Parser)]
#[command(name = "proof")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Three replicas, one killed, one frozen: is anything lost, repeated or out of order?
    ///
    /// Exit code 0 if nothing is; with --naive, if the classic relay was caught with duplicates.
    Demo(demo::Args),
    /// Measure what the relay costs, and how fast it is.
    Bench(bench::Args),
    /// Break the code on purpose, one rule at a time, and see whether the test of that rule notices.
    Mutants(mutants::Args),
    /// Hostile writers and faults against real replicas, for minutes or hours: is any guarantee broken?
    ///
    /// Exit code 0 if none is.
    Torture(torture::Args),
    /// Build the wrong relays, which `./dev test` lets the checker of a torture run catch.
    Wrong,
    /// One replica of the classic relay, for `demo --naive`.
    #[command(hide = true)]
    Classic,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("proof: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(run(args.command)).unwrap_or_else(|error| {
        eprintln!("proof: {error}");
        ExitCode::FAILURE
    })
}

async fn run(command: Command) -> Result<ExitCode, proof::Error> {
    match command {
        Command::Demo(args) => demo::run(args).await,
        Command::Bench(args) => bench::run(args).await.map(|()| ExitCode::SUCCESS),
        Command::Mutants(args) => mutants::run(&args),
        Command::Torture(args) => torture::run(args).await,
        Command::Wrong => wrong::build(),
        Command::Classic => demo::run_classic().await,
    }
}
