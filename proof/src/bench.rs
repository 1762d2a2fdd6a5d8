//! The figures of this project: what the relay costs the database, how fast it drains, how late messages are, how long
//! a take-over lasts, how much memory it takes, and how many webhooks it sends. `./dev bench --help` names them.
//!
//! Each bench starts a PostgreSQL server of its own and the relay as the executable that ships. What is compared runs
//! in turn (A, B, C, A, B, C …) on the same messages, and medians are taken: machines get warm, and others use them.

mod adopted;
mod bare;
mod classic;
mod covered;
mod drain;
mod figures;
mod http;
mod latency;
mod memory;
mod messages;
mod parked;
mod poison;
mod scenario;
mod site;
mod snapshot;
mod stall;
mod takeover;
mod usage;
mod wal;
mod writers;

use std::time::Duration;

use clap::ValueEnum;

use crate::Error;
use figures::Figures;

/// The lanes of every relay here: the default.
const LANES: i32 = 16;

/// What to measure, and how much of it.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Which figures.
    #[arg(value_enum, default_value_t = What::All)]
    what: What,
    /// End with one JSON object on standard output; everything else goes to standard error.
    #[arg(long)]
    json: bool,
    /// Tiny sizes: shows that the benches work. The figures mean nothing.
    #[arg(long, conflicts_with = "large")]
    quick: bool,
    /// `drain` also with 10,000,000 messages waiting: some 8 GB of disk and several minutes.
    #[arg(long)]
    large: bool,
    /// How many messages wait, instead of each bench's own number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1_000..))]
    messages: Option<u32>,
    /// How often what is compared takes its turn.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// How long the benches with writers run, in seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    seconds: Option<u32>,
    /// The server's setting of that name.
    #[arg(long, default_value = "1GB", value_name = "SIZE")]
    shared_buffers: String,
    /// Commits do not wait for the disk.
    #[arg(long)]
    no_fsync: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// WAL and dead rows that a drain causes, and the relay's own bookkeeping.
    Wal,
    /// Messages a second, beside a bare reader and the fastest relay that locks rows.
    Drain,
    /// From commit to sink at 600 messages a second.
    Latency,
    /// From SIGKILL and SIGTERM to the first publish of the last lane by its new owner.
    Takeover,
    /// Resident memory with 1,000,000 messages waiting.
    Memory,
    /// The rate while another session holds an old snapshot.
    Snapshot,
    /// Requests a second of the `http` sink at an endpoint that answers after 20 ms.
    Http,
    /// An adopted table beside the outbox, and beside relays that lock or claim its rows: rate, WAL and dead rows.
    Adopted,
    /// The rate with 100,000 messages set aside, of the outbox and of an adopted table.
    Parked,
    /// The rate of the others while one message in a hundred is rejected, by an endpoint and by an inbox.
    Poison,
    /// How long producers are held up while segments are emptied: an hour, unless --seconds says otherwise.
    Stall,
    /// The home-made relay and pgbaton in the case that this product was started for: some minutes.
    Scenario,
    /// All of them but `stall` and `scenario`.
    All,
}

impl Args {
    /// How many messages wait: as asked for, else few in a quick run, else the bench's own number.
    fn messages(&self, full: u32, quick: u32) -> u32 {
        self.messages.unwrap_or(if self.quick { quick } else { full })
    }

    fn rounds(&self, full: u32) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { full })
    }

    fn seconds(&self, full: u32) -> Duration {
        let seconds = self.seconds.unwrap_or(if self.quick { 2 } else { full });
        Duration::from_secs(u64::from(seconds))
    }
}

/// Measures, and prints the figures.
///
/// # Errors
/// A server, the relay or a query that failed. A goal that was missed is no error.
pub async fn run(args: Args) -> Result<(), Error> {
    let mut figures = Figures::new(args.json);
    let wanted = |what: What| args.what == What::All || args.what == what;
    if wanted(What::Wal) {
        wal::run(&args, &mut figures).await?;
    }
    if wanted(What::Drain) {
        drain::run(&args, &mut figures).await?;
    }
    if wanted(What::Latency) {
        latency::run(&args, &mut figures).await?;
    }
    if wanted(What::Takeover) {
        takeover::run(&args, &mut figures).await?;
    }
    if wanted(What::Memory) {
        memory::run(&args, &mut figures).await?;
    }
    if wanted(What::Snapshot) {
        snapshot::run(&args, &mut figures).await?;
    }
    if wanted(What::Http) {
        http::run(&args, &mut figures).await?;
    }
    if wanted(What::Adopted) {
        adopted::run(&args, &mut figures).await?;
    }
    if wanted(What::Parked) {
        parked::run(&args, &mut figures).await?;
    }
    if wanted(What::Poison) {
        poison::run(&args, &mut figures).await?;
    }
    if args.what == What::Scenario {
        scenario::run(&args, &mut figures).await?;
    }
    if args.what == What::Stall {
        stall::run(&args, &mut figures).await?;
    }
    figures.finish();
    Ok(())
}
