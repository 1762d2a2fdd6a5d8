//! What a run is to be, from the command line and the seed.

use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

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
pub(super) const TTL: Duration = Duration::from_secs(2);
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
    pub(super) sink: SinkKind,
    pub(super) replicas: u32,
    /// The faults to draw from.
    pub(super) kinds: Vec<faults::Kind>,
    pub(super) folder: PathBuf,
    /// Rows of one bulk load.
    pub(super) bulk: u64,
    /// How long transactions of the patient writers stay open, at most.
    pub(super) open_for: Duration,
    /// Messages that the relay may be behind before writers wait.
    pub(super) behind: i64,
    /// How long each segment is written to.
    pub(super) segment: Duration,
    /// How long the rest may take after the last fault.
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
        Ok(Plan {
            seed,
            length,
            messages: args.messages.unwrap_or_default(),
            faults: args.faults_min,
            sink: args.sink,
            replicas: args.replicas,
            kinds: faults::chosen(&args.faults)?,
            folder,
            bulk: if long { 1_000_000 } else { 50_000 },
            open_for: if long { seconds(180) } else { seconds(25) },
            behind: if long { 300_000 } else { 60_000 },
            segment: if long { seconds(60) } else { seconds(20) },
            drain_within: if long { seconds(240) } else { seconds(90) },
            gap: Duration::from_millis(if long { 3_500 } else { 2_500 }),
        })
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

/// Two histories in one folder would be judged as one.
fn own_by_name(path: PathBuf) -> Result<PathBuf, Error> {
    let failed = |cause| Error::because(format!("making {}", path.display()), &cause);
    std::fs::create_dir_all(&path).map_err(failed)?;
    for entry in std::fs::read_dir(&path).map_err(failed)? {
        if entry.map_err(failed)?.path().extension().is_some_and(|extension| extension == "history") {
            return Err(Error::new(format!("{} holds the history of another run: remove it first", path.display())));
        }
    }
    Ok(path)
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
pub(super) mod tests {
    use super::*;

    /// One of no length.
    pub(crate) fn plan(seed: u64) -> Plan {
        let second = Duration::from_secs(1);
        Plan {
            seed,
            length: second,
            messages: 0,
            faults: 0,
            sink: SinkKind::File,
            replicas: 3,
            kinds: Vec::new(),
            folder: std::env::temp_dir(),
            bulk: 0,
            open_for: second,
            behind: 0,
            segment: second,
            drain_within: second,
            gap: second,
        }
    }

    #[test]
    fn each_purpose_has_a_stream_of_its_own_that_the_seed_decides() {
        let draw = |seed, purpose, number| plan(seed).random(purpose, number).random::<u64>();
        assert_eq!(draw(1, "faults", 0), draw(1, "faults", 0));
        let others = [draw(2, "faults", 0), draw(1, "replica", 0), draw(1, "faults", 1)];
        assert!(others.iter().all(|other| *other != draw(1, "faults", 0)));
    }
}
