//! What a run is to be, from the command line and the seed.

use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use super::outbox::SourceKind;
use super::{Args, faults};
use crate::Error;

/// Where the messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum SinkKind {
    /// An inbox table: exactly once.
    Postgres,
    /// Webhooks to an endpoint of this process: at least once.
    Http,
    /// A file of JSON lines for each replica: at least once.
    File,
}

impl SinkKind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            SinkKind::Postgres => "postgres",
            SinkKind::Http => "http",
            SinkKind::File => "file",
        }
    }
}

/// How long a replica's lease lasts.
pub(super) const TTL: Duration = Duration::from_millis(TTL_MS);
pub(super) const TTL_MS: u64 = 2_000;
/// How long a replica drains at most when it is to stop.
pub(super) const DRAIN_MS: u64 = 5_000;
/// The most that a replica's configuration asks for; changed configurations stay below.
pub(super) const BATCH_MESSAGES: u64 = 200;
/// The same of a lane's messages that no written position covers yet.
pub(super) const IN_FLIGHT: u64 = 1_000;
/// Keys that the writers use.
pub(super) const KEYS: u32 = 2_000;
/// A run of this length or more is a long one, with bulk loads of a million rows.
const LONG: Duration = Duration::from_secs(15 * 60);

/// A whole run.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    /// Write and hurt for at least so long …
    pub(super) length: Duration,
    /// … until so many messages are committed …
    pub(super) messages: u64,
    /// … and so many faults are over.
    pub(super) faults: usize,
    pub(super) source: SourceKind,
    pub(super) sink: SinkKind,
    pub(super) replicas: u32,
    /// The faults to draw from.
    pub(super) kinds: Vec<&'static faults::Unit>,
    /// The command line that tries the same again.
    pub(super) command: String,
    /// Whether it is a long one.
    pub(super) long: bool,
    pub(super) folder: PathBuf,
    /// Rows of one bulk load.
    pub(super) bulk: u64,
    /// How long transactions of the patient writers stay open, at most.
    pub(super) open_for: Duration,
    /// Messages that the relay may be behind before writers wait.
    pub(super) behind: i64,
    /// How long each segment is written to.
    pub(super) segment: Duration,
    /// How long the rest may take after calm, at most.
    pub(super) drain_within: Duration,
    /// The longest pause between two faults. A bulk load of a million rows needs half a minute without a lost connection.
    pub(super) gap: Duration,
}

impl Plan {
    pub(super) fn new(args: &Args) -> Result<Plan, Error> {
        let seed = args.seed.unwrap_or_else(rand::random);
        let minutes = args.minutes.unwrap_or(if args.messages.is_some() { 0.0 } else { 3.0 });
        let length = Duration::try_from_secs_f64(minutes * 60.0)
            .map_err(|cause| Error::because("--minutes cannot be so much", &cause))?;
        let long = length >= LONG || args.messages.is_some_and(|messages| messages >= 2_000_000);
        let folder = args.folder.clone().map_or_else(|| own_folder(seed), own_by_name)?;
        let seconds = Duration::from_secs;
        // An adopted table is slower: a mark for each batch, and at an inbox one batch at a time.
        let (bulk, behind) = match (long, args.sink, args.source) {
            (true, SinkKind::Http, _) => (100_000, 60_000),
            (true, _, SourceKind::Native) => (1_000_000, 300_000),
            (true, ..) => (300_000, 100_000),
            (false, SinkKind::Http, _) => (20_000, 20_000),
            (false, _, SourceKind::Native) => (50_000, 60_000),
            (false, ..) => (20_000, 20_000),
        };
        Ok(Plan {
            seed,
            length,
            messages: args.messages.unwrap_or_default(),
            faults: args.faults_min,
            source: args.source,
            sink: args.sink,
            replicas: args.replicas,
            kinds: faults::chosen(&args.faults)?,
            command: command(args, seed),
            long,
            folder,
            bulk,
            open_for: if long { seconds(180) } else { seconds(25) },
            behind,
            segment: if long { seconds(60) } else { seconds(20) },
            drain_within: drains(args.source, args.sink, bulk + behind.unsigned_abs()),
            gap: Duration::from_millis(if long { 3_500 } else { 2_500 }),
        })
    }

    /// Whether this kind of fault is among those to be drawn.
    pub(super) fn draws(&self, kind: &str) -> bool {
        self.kinds.iter().any(|drawn| drawn.name == kind)
    }

    /// How long so many messages may take after calm.
    pub(super) fn drains(&self, messages: u64) -> Duration {
        self.drain_within.min(drains(self.source, self.sink, messages))
    }

    /// A stream of random numbers of its own for each purpose, so that what one draws does not change what another one gets.
    pub(super) fn random(&self, purpose: &str, number: u64) -> StdRng {
        // FNV-1a: the standard library's hashes may differ between releases, and a seed is to be worth something later.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in self.seed.to_le_bytes().iter().chain(purpose.as_bytes()).chain(&number.to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        StdRng::seed_from_u64(hash)
    }
}

/// How long messages may take after calm: until all have their leases again, ten times what that takes, and then at the pace of a
/// slow machine.
fn drains(source: SourceKind, sink: SinkKind, messages: u64) -> Duration {
    let a_second = match sink {
        // Seen at 200, where builds ran beside it.
        SinkKind::Http if cfg!(debug_assertions) => 100,
        SinkKind::Http => 750,
        _ if source.is_adopted() && cfg!(debug_assertions) => 100,
        _ if source.is_adopted() => 750,
        SinkKind::Postgres | SinkKind::File if cfg!(debug_assertions) => 400,
        SinkKind::Postgres | SinkKind::File => 2_000,
    };
    Duration::from_secs(30 + messages / a_second)
}

/// What a person enters to have the same again. Neither `--json` nor `--folder` change what happens.
fn command(args: &Args, seed: u64) -> String {
    let mut words = vec![format!("./dev torture --seed {seed}")];
    if args.source.is_adopted() {
        words.push(format!("--source {}", args.source.name()));
    }
    words.push(format!("--sink {} --replicas {}", args.sink.name(), args.replicas));
    words.extend(args.minutes.map(|minutes| format!("--minutes {minutes}")));
    words.extend(args.messages.map(|messages| format!("--messages {messages}")));
    if args.faults_min > 0 {
        words.push(format!("--faults-min {}", args.faults_min));
    }
    if !args.faults.is_empty() {
        words.push(format!("--faults {}", args.faults.join(",")));
    }
    words.join(" ")
}

/// A new one for this run.
fn own_folder(seed: u64) -> Result<PathBuf, Error> {
    for number in 1_u32.. {
        let path = std::env::temp_dir().join(format!("pgbaton-torture-{seed}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(cause) if cause.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(cause) => return Err(Error::because(format!("creating {}", path.display()), &cause)),
        }
    }
    Err(Error::new("there is no name left for a folder"))
}

/// It has to be empty: two histories in one folder would be judged as one, and in the end what a run makes is removed by its
/// name.
fn own_by_name(path: PathBuf) -> Result<PathBuf, Error> {
    let failed = |cause| Error::because(format!("making {}", path.display()), &cause);
    std::fs::create_dir_all(&path).map_err(failed)?;
    match std::fs::read_dir(&path).map_err(failed)?.next() {
        None => Ok(path),
        Some(_) => Err(Error::new(format!("{} is not empty: --folder takes a new or an empty one", path.display()))),
    }
}

/// A duration of this range.
pub(super) fn between(random: &mut StdRng, least: Duration, most: Duration) -> Duration {
    least + most.saturating_sub(least).mul_f64(random.random::<f64>())
}

/// The same in milliseconds.
pub(super) fn millis(random: &mut StdRng, least: u64, most: u64) -> Duration {
    between(random, Duration::from_millis(least), Duration::from_millis(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Plan {
        pub(in crate::torture) fn for_tests(seed: u64, sink: SinkKind) -> Plan {
            let second = Duration::from_secs(1);
            Plan {
                seed,
                length: second,
                messages: 0,
                faults: 0,
                source: SourceKind::Native,
                sink,
                replicas: 3,
                kinds: faults::chosen(&[]).unwrap(),
                command: String::new(),
                long: false,
                folder: std::env::temp_dir(),
                bulk: 0,
                open_for: second,
                behind: 0,
                segment: second,
                drain_within: second,
                gap: second,
            }
        }
    }

    #[test]
    fn each_purpose_has_a_stream_of_its_own_that_the_seed_decides() {
        let plan = |seed| Plan::for_tests(seed, SinkKind::File);
        let draw = |seed, purpose, number| plan(seed).random(purpose, number).random::<u64>();
        assert_eq!(draw(1, "faults", 0), draw(1, "faults", 0));
        let others = [draw(2, "faults", 0), draw(1, "replica", 0), draw(1, "faults", 1)];
        assert!(others.iter().all(|other| *other != draw(1, "faults", 0)));
    }

    #[test]
    fn what_a_person_enters_to_have_the_same_again_says_all_that_decides() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let parse = |line: &str| <Line as clap::Parser>::parse_from(line.split_whitespace()).args;
        let line =
            "torture --sink http --replicas 2 --minutes 0.5 --messages 7 --faults-min 3 --faults kill,cut --json";
        let said = command(&parse(line), 42);
        assert_eq!(
            said,
            "./dev torture --seed 42 --sink http --replicas 2 --minutes 0.5 --messages 7 --faults-min 3 --faults kill,cut"
        );
        let again = parse(said.trim_start_matches("./dev "));
        assert_eq!(command(&again, 42), said);
        assert_eq!(again.seed, Some(42));
        let adopted = command(&parse("torture --source delete"), 1);
        assert_eq!(adopted, "./dev torture --seed 1 --source delete --sink postgres --replicas 3");
    }

    #[test]
    fn a_folder_with_anything_in_it_is_not_taken() {
        let folder = std::env::temp_dir().join(format!("pgbaton-torture-folder-{}", std::process::id()));
        assert_eq!(own_by_name(folder.clone()).unwrap(), folder);
        assert_eq!(own_by_name(folder.clone()).unwrap(), folder);
        std::fs::write(folder.join("Cargo.toml"), "").unwrap();
        let refused = own_by_name(folder.clone()).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(refused.contains("is not empty"), "{refused}");
    }

    #[test]
    fn what_is_left_has_time_enough_to_be_delivered_and_no_more() {
        let plan = Plan {
            drain_within: drains(SourceKind::Native, SinkKind::Http, 30_000),
            ..Plan::for_tests(1, SinkKind::Http)
        };
        assert_eq!(plan.drains(0), Duration::from_secs(30));
        assert!(plan.drains(15_000) < plan.drain_within);
        assert_eq!(plan.drains(1_000_000), plan.drain_within);
        assert!(drains(SourceKind::Native, SinkKind::Postgres, 1_300_000).as_secs() >= 1_300_000 / 2_000 + 30);
    }
}
