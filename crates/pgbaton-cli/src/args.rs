//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};
use pgbaton::Database;
use pgbaton::config::Config;
use pgbaton::control::parked::Selection;

use crate::Failure;

mod again;

pub(crate) use again::{PauseArgs, ReplayArgs, ResumeArgs};

/// A PostgreSQL transactional outbox relay.
#[derive(Parser)]
#[command(
    name = "pgbaton",
    version,
    about,
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong command line or configuration."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a replica until SIGTERM or SIGINT, which drain it; a second one ends it at once.
    Run {
        /// The configuration file.
        #[arg(short, long, env = "PGBATON_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
    /// Read and validate a configuration without connecting to anything.
    CheckConfig {
        /// The configuration file.
        #[arg(short, long, env = "PGBATON_CONFIG", value_name = "FILE")]
        config: PathBuf,
    },
    /// Make the schema `pgbaton`, or bring it up to this version.
    Migrate {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Show the SQL instead of running it.
        #[arg(long)]
        print: bool,
    },
    /// Have inserts wake replicas that are configured with `wake = true`. Off by default: transactions that notify commit
    /// one after the other.
    Wake {
        /// On or off.
        #[arg(value_enum)]
        switch: Switch,
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Print the grants of the three roles as SQL.
    Grants {
        /// The role that runs `pgbaton migrate`.
        #[arg(long, default_value = "pgbaton_migrate", value_name = "ROLE")]
        migrate: String,
        /// The role that runs `pgbaton run`.
        #[arg(long, default_value = "pgbaton_relay", value_name = "ROLE")]
        relay: String,
        /// The role of applications that insert messages.
        #[arg(long, default_value = "pgbaton_producer", value_name = "ROLE")]
        producer: String,
    },
    /// Print the tables that a `postgres` sink needs, and the grants of its role, as SQL.
    Inbox {
        /// The inbox, as schema.table.
        table: String,
        /// The role that the sink's DSN names.
        #[arg(long, default_value = "pgbaton_relay", value_name = "ROLE")]
        role: String,
    },
    /// Look at an outbox table that an application has already, and propose a relay for it, as TOML with reasons and warnings.
    /// Nothing is changed.
    Adopt(AdoptArgs),
    /// Insert one message into the outbox. The payload comes from --json, --payload, or standard input with --stdin.
    Send(SendArgs),
    /// Look for what is wrong, or may soon be: the configuration, every host of the DSN, the database with its roles, settings and whoever holds
    /// something back, segments, replicas, relays, lanes, what was set aside, and both ends of each relay. Nothing is changed. Each finding says
    /// what to do. Exit code 0 with nothing worse than notes, 1 with warnings or problems, 2 with a configuration that cannot be used.
    Doctor(DoctorArgs),
    /// Show replicas and how far each relay is.
    Status {
        #[command(flatten)]
        database: DatabaseArgs,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Show every lane: its owner, epoch and position; or double a relay's lanes.
    #[command(args_conflicts_with_subcommands = true)]
    Lanes {
        #[command(flatten)]
        show: ShowArgs,
        #[command(subcommand)]
        command: Option<LanesCommand>,
    },
    /// Show the registered relays, or drop one.
    Relays {
        #[command(subcommand)]
        command: RelaysCommand,
    },
    /// Show the outbox's segments and who keeps them, or set how they take turns.
    #[command(args_conflicts_with_subcommands = true)]
    Segments {
        #[command(flatten)]
        show: ShowArgs,
        #[command(subcommand)]
        command: Option<SegmentsCommand>,
    },
    /// Messages that were set aside: list them, show one, or have them tried at once.
    Messages {
        #[command(subcommand)]
        command: MessagesCommand,
    },
    /// Messages that were given up after their last attempt or a rejection: list them, show one, try them again, discard them.
    Dead {
        #[command(subcommand)]
        command: DeadCommand,
    },
    /// Deliver messages again that were delivered, as far as the outbox still holds them.
    Replay(ReplayArgs),
    /// Deliver nothing of a relay, a lane, a key or topics until it is resumed.
    Pause(PauseArgs),
    /// Go on with what is paused.
    Resume(ResumeArgs),
    /// Show what is paused.
    Pauses(ShowArgs),
    /// Say where one message is and why: written when and by which transaction, its lane and owner, how far that is, what it waits
    /// for. Exit code 1 if there is no such message.
    Trace(TraceArgs),
    /// Show what operators have done with commands, the newest first.
    Audit {
        /// Of this relay alone.
        #[arg(long)]
        relay: Option<String>,
        #[command(flatten)]
        most: MostArgs,
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Take all positions back to what is certain, after a restore: no message is lost, some may repeat. As the schema's
    /// owner, with all replicas stopped.
    Rebase {
        #[command(flatten)]
        act: ActArgs,
        /// Sinks were written from timelines up to this one, which were given up for this server.
        #[arg(long, value_name = "TIMELINE", default_value_t = 0)]
        forsake_timeline: i32,
    },
    /// Confirm that `pg_upgrade` made this server of the one that the schema knows. As the schema's owner.
    Confirm {
        #[command(flatten)]
        database: DatabaseArgs,
    },
}

/// What to show, and how.
#[derive(ClapArgs)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// One JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// How much to show.
#[derive(ClapArgs)]
pub(crate) struct MostArgs {
    /// So many at most.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..))]
    pub(crate) limit: i64,
}

/// Which messages: those of which all holds that is given.
#[derive(ClapArgs)]
pub(crate) struct WhichArgs {
    /// Of this lane.
    #[arg(long)]
    lane: Option<i32>,
    /// Of this key.
    #[arg(long)]
    key: Option<String>,
    /// Whose topic is like this: `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    topic: Option<String>,
    /// With this message id. May be given several times.
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,
    /// Whose last fault has this code, such as `http.rejected`.
    #[arg(long)]
    code: Option<String>,
    /// Inserted so long ago at least, such as 15m or 2h.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older: Option<Duration>,
}

impl WhichArgs {
    /// Of this relay, or of all.
    pub(crate) fn of(&self, relay: Option<&str>, dead: Option<bool>) -> Selection {
        Selection {
            relay: relay.map(str::to_owned),
            lane: self.lane,
            key: self.key.clone(),
            topic: self.topic.clone(),
            ids: self.ids.clone(),
            code: self.code.clone(),
            older: self.older,
            dead,
        }
    }
}

/// Whose messages are listed.
#[derive(ClapArgs)]
pub(crate) struct ListArgs {
    /// Of this relay alone.
    #[arg(long)]
    pub(crate) relay: Option<String>,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// Only those above this number, which the last line of a list that goes on names.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) above: i64,
    #[command(flatten)]
    pub(crate) most: MostArgs,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// Which message is shown.
#[derive(ClapArgs)]
pub(crate) struct ShowOneArgs {
    /// The relay.
    pub(crate) relay: String,
    /// Its message id.
    pub(crate) id: String,
    /// Show headers and payload, too.
    #[arg(long)]
    pub(crate) payload: bool,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// Which message is traced.
#[derive(ClapArgs)]
pub(crate) struct TraceArgs {
    /// Its message id, as the sink sees it, or its number in the outbox, which is found faster. Of an adopted table the relay and the
    /// id of the row, such as orders:7.
    pub(crate) id: String,
    /// In this relay alone. If it adopts a table, the id of the row will do.
    #[arg(long)]
    pub(crate) relay: Option<String>,
    /// For how long messages are looked through for a message id, such as 5m: no index knows it.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) within: Duration,
    #[command(flatten)]
    pub(crate) show: ShowArgs,
}

/// To which messages something is done.
#[derive(ClapArgs)]
pub(crate) struct DoArgs {
    /// The relay.
    pub(crate) relay: String,
    #[command(flatten)]
    pub(crate) which: WhichArgs,
    /// To all of the relay.
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) act: ActArgs,
}

#[derive(Subcommand)]
pub(crate) enum MessagesCommand {
    /// List messages that were set aside, dead or not, in the order in which they were.
    List(ListArgs),
    /// Show one of them, with its last faults.
    Show(ShowOneArgs),
    /// Have those that wait for their next attempt tried at once.
    Retry(DoArgs),
}

#[derive(Subcommand)]
pub(crate) enum DeadCommand {
    /// List dead messages.
    List(ListArgs),
    /// Show one of them, with its last faults.
    Show(ShowOneArgs),
    /// Try dead messages again, as if they never had been.
    Retry(DoArgs),
    /// Give dead messages up: they are deleted, and their keys go on. The row of an adopted table stays pending, and this
    /// relay leaves it out.
    Discard(DoArgs),
}

/// What to change. Without `--yes` nothing is: what cannot be taken back is asked for twice.
#[derive(ClapArgs)]
pub(crate) struct ActArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Do it.
    #[arg(long)]
    yes: bool,
    /// Tell what was done as one JSON object.
    #[arg(long)]
    json: bool,
}

impl ActArgs {
    /// Whether `--yes` was given.
    pub(crate) fn is_given(&self) -> bool {
        self.yes
    }

    /// Whether it was meant, with what is at stake.
    pub(crate) fn is_meant(&self, stake: &str) -> Result<(), Failure> {
        if self.yes { Ok(()) } else { Err(Failure::Usage(format!("{stake}; add --yes if that is meant"))) }
    }

    /// Tells what was done.
    pub(crate) fn done(&self, what: &serde_json::Value, words: &str) -> Result<(), Failure> {
        if self.json {
            crate::print_json(what)
        } else {
            crate::say(words);
            Ok(())
        }
    }
}

#[derive(Subcommand)]
pub(crate) enum LanesCommand {
    /// Double a relay's lanes while it runs, and wait until that is done. It cannot be taken back.
    Split {
        /// The relay.
        relay: String,
        #[command(flatten)]
        act: ActArgs,
    },
}

#[derive(Subcommand)]
pub(crate) enum RelaysCommand {
    /// Show every relay: its lanes, who runs it, and how far it is.
    List {
        #[command(flatten)]
        show: ShowArgs,
    },
    /// Drop a relay that nobody runs, with its lanes and positions. What it has not delivered it never will. As the
    /// schema's owner.
    Drop {
        /// The relay.
        relay: String,
        #[command(flatten)]
        act: ActArgs,
    },
}

#[derive(Subcommand)]
pub(crate) enum SegmentsCommand {
    /// Set how segments take turns. As the schema's owner; producers wait for some milliseconds.
    Set {
        #[command(flatten)]
        database: DatabaseArgs,
        /// How many segments, 3 to 64.
        #[arg(long, value_parser = clap::value_parser!(i32).range(3..=64))]
        count: Option<i32>,
        /// How long each is written to, such as 1h or 15m.
        #[arg(long, value_parser = seconds_from_one)]
        length: Option<Duration>,
        /// How long messages are kept after they were inserted, at least, such as 0s or 72h.
        #[arg(long, value_parser = whole_seconds)]
        retention: Option<Duration>,
    },
}

fn whole_seconds(text: &str) -> Result<Duration, String> {
    let given = duration(text)?;
    if given.subsec_nanos() == 0 { Ok(given) } else { Err("is not in whole seconds".to_owned()) }
}

fn seconds_from_one(text: &str) -> Result<Duration, String> {
    let given = whole_seconds(text)?;
    if given.is_zero() { Err("is nothing: a segment is written to for 1s at least".to_owned()) } else { Ok(given) }
}

fn duration(text: &str) -> Result<Duration, String> {
    pgbaton::config::duration(text).ok_or_else(|| "is not a duration such as 90s, 15m or 1h".to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(ClapArgs)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// Where the message goes.
    pub(crate) topic: String,
    /// What it is ordered by.
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Headers: one JSON object.
    #[arg(long, value_name = "JSON")]
    pub(crate) headers: Option<String>,
    /// The payload as JSON.
    #[arg(long, value_name = "JSON", conflicts_with_all = ["payload", "stdin"])]
    pub(crate) json: Option<String>,
    /// The payload as text, stored as its bytes.
    #[arg(long, value_name = "TEXT", conflicts_with = "stdin")]
    pub(crate) payload: Option<String>,
    /// The payload is standard input, byte for byte.
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Deliver it no sooner than so long from now, such as 90s or 2h. Later messages of its key wait for it.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) delay: Option<Duration>,
}

#[derive(ClapArgs)]
pub(crate) struct AdoptArgs {
    /// The table, as schema.table, letter by letter: upper case is not turned to lower case.
    pub(crate) table: String,
    #[command(flatten)]
    pub(crate) database: DatabaseArgs,
    /// The relay's name. For --check and --grants also which one of the configuration, if several adopt the table.
    #[arg(long, value_name = "NAME")]
    pub(crate) relay: Option<String>,
    /// The sink of the proposal, as the configuration has it, such as '{ type = "stdout" }'.
    #[arg(long, value_name = "TOML")]
    pub(crate) sink: Option<String>,
    /// Try the relay without writing: its source's checks, some pending rows, its sink. The relay is the one that adopts the
    /// table in the configuration, or else the one that is proposed. Exit code 1 if it would not run, or would hold a lane.
    #[arg(long, conflicts_with = "grants")]
    pub(crate) check: bool,
    /// Print the grants that this relay's role needs, as SQL.
    #[arg(long, conflicts_with = "sink")]
    pub(crate) grants: bool,
    /// The role that runs `pgbaton run`.
    #[arg(long, default_value = "pgbaton_relay", value_name = "ROLE")]
    pub(crate) role: String,
    /// Tell what --check found as one JSON object.
    #[arg(long, requires = "check")]
    pub(crate) json: bool,
}

/// What is looked at.
#[derive(ClapArgs)]
pub(crate) struct DoctorArgs {
    /// The configuration file of the replicas.
    #[arg(short, long, env = "PGBATON_CONFIG", value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Transactions are told of that have been open, or prepared, for so long.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub(crate) long: Duration,
    /// One JSON object, in which each finding has a check, a level, what was found, and what to do.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which database.
#[derive(ClapArgs)]
pub(crate) struct DatabaseArgs {
    /// The database's connection string. Without it and --config: PGBATON_DSN from the environment.
    #[arg(long, value_name = "DSN")]
    dsn: Option<String>,
    /// A configuration file that names it, with the relay's role. Without all of these: PGBATON_CONFIG.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl DatabaseArgs {
    /// The database that was named, by its connection string or in a configuration.
    pub(crate) fn database(&self) -> Result<Database, Failure> {
        /// How long a command waits for an answer.
        const PATIENCE: Duration = Duration::from_secs(60);
        let database = match self.named()? {
            (Some(dsn), _) => Database::new(&dsn, PATIENCE)?,
            (None, Some(config)) => Config::load(&config, std::env::vars_os())?.database()?.with_patience(PATIENCE),
            (None, None) => {
                return Err(Failure::Usage(
                    "name the database with --dsn, --config, PGBATON_DSN or PGBATON_CONFIG".into(),
                ));
            }
        };
        // Commands keep no log.
        for warning in database.warnings() {
            crate::say(&format!("pgbaton: {warning}"));
        }
        Ok(database)
    }

    /// The configuration, if one was named.
    pub(crate) fn config(&self) -> Result<Option<Config>, Failure> {
        let (_, config) = self.named()?;
        Ok(config.map(|config| Config::load(&config, std::env::vars_os())).transpose()?)
    }

    /// A connection string and a configuration: what the command line names counts alone.
    fn named(&self) -> Result<(Option<String>, Option<PathBuf>), Failure> {
        if self.dsn.is_some() || self.config.is_some() {
            return Ok((self.dsn.clone(), self.config.clone()));
        }
        let dsn = std::env::var_os("PGBATON_DSN").map(std::ffi::OsString::into_string).transpose();
        let dsn = dsn.map_err(|_| Failure::Usage("PGBATON_DSN is no text".into()))?;
        Ok((dsn, std::env::var_os("PGBATON_CONFIG").map(PathBuf::from)))
    }
}
