//! The configuration file: read raw, then validated as a whole, so that all problems are reported together.
//!
//! `docs/configuration.md` lists every key with its default, unit and effect.

use std::path::PathBuf;
use std::time::Duration;

use toml::Table;

use crate::connection::Database;
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::relay::{LANES, Limits, Pace, RelaySpec, Start};
use crate::replica::{DRAIN, ReplicaSpec, TTL};

mod section;
mod sink;

pub use section::duration;
use section::{Problems, Section};

/// A configuration that has been validated. Holds secrets: it cannot be printed.
pub struct Config {
    /// How the replica and its relays are set up, without the sinks' connections.
    replica: ReplicaFields,
    relays: Vec<RelayFields>,
    /// How to log.
    pub log: Log,
}

/// How to log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// One JSON object a line, instead of text.
    pub json: bool,
    /// A filter such as `info` or `pgbaton=debug`.
    pub filter: String,
}

struct ReplicaFields {
    name: String,
    database: Option<Database>,
    ttl: Duration,
    drain: Duration,
}

struct RelayFields {
    name: Option<RelayName>,
    lanes: i32,
    start: Start,
    topics: Vec<String>,
    sink: Option<sink::SinkFields>,
    limits: Limits,
    pace: Pace,
    wake: bool,
    resend_lost: bool,
}

/// Not less, or renewals have no time for a second try.
const LEAST_TTL: Duration = Duration::from_secs(1);
const MOST_TTL: Duration = Duration::from_secs(3_600);

impl Config {
    /// Reads and validates a configuration file.
    ///
    /// # Errors
    /// All problems at once, each with the key it is about. Values of secrets are never quoted.
    pub fn load(path: &PathBuf) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            Error::new(Kind::Config, format!("the configuration {} cannot be read", path.display())).because(error)
        })?;
        Self::parse(&text)
    }

    /// The same from a text.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str) -> Result<Self, Error> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's own display quotes the line, which may hold a password.
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
            Error::new(Kind::Config, format!("line {line} of the configuration is not TOML: {}", error.message()))
        })?;
        let problems = Problems::default();
        let mut root = Section::new("", table, &problems);
        let mut database = root.section("database");
        let mut lease = root.section("lease");
        let ttl = lease.duration("ttl", TTL);
        if ttl < LEAST_TTL {
            problems.add("lease.ttl", &format!("is {ttl:?}; it cannot be shorter than {LEAST_TTL:?}"));
        }
        if ttl > MOST_TTL {
            problems.add(
                "lease.ttl",
                &format!("is {ttl:?}; a dead replica's lanes would stand still for longer than {MOST_TTL:?}"),
            );
        }
        lease.finish();
        let dsn = database.required_string("dsn");
        let database_for = dsn.and_then(|dsn| parse_dsn(&dsn, ttl, "database.dsn", &problems));
        database.finish();
        let name = root.string("name").unwrap_or_else(|| format!("pid-{}", std::process::id()));
        let drain = root.duration("drain", DRAIN);
        let replica = ReplicaFields { name, database: database_for, ttl, drain };
        let log = log(&mut root, &problems);
        let relays = relays(&mut root, &replica.name, ttl, &problems);
        one_writer_a_file(&relays, &problems);
        root.finish();
        problems.into_result()?;
        Ok(Self { replica, relays, log })
    }

    /// What a replica is started with.
    ///
    /// # Errors
    /// None once validated; the types do not know that.
    pub fn into_replica(self) -> Result<ReplicaSpec, Error> {
        let missing = || Error::new(Kind::Internal, "a validated configuration lacks a field");
        let database = self.replica.database.ok_or_else(missing)?;
        let mut relays = Vec::new();
        for relay in self.relays {
            relays.push(RelaySpec {
                name: relay.name.ok_or_else(missing)?,
                lanes: relay.lanes,
                start: relay.start,
                topics: relay.topics,
                sink: relay.sink.ok_or_else(missing)?.build()?,
                limits: relay.limits,
                pace: relay.pace,
                wake: relay.wake,
                resend_lost: relay.resend_lost,
            });
        }
        let ReplicaFields { name, ttl, drain, .. } = self.replica;
        Ok(ReplicaSpec { name, database, ttl, drain, relays })
    }

    /// The database with the outbox.
    ///
    /// # Errors
    /// As [`Config::into_replica`].
    pub fn database(&self) -> Result<Database, Error> {
        self.replica.database.clone().ok_or_else(|| Error::new(Kind::Internal, "no database"))
    }
}

/// A wait for an answer is a third of the lease, so that a renewal can be tried again.
fn parse_dsn(dsn: &str, ttl: Duration, key: &str, problems: &Problems) -> Option<Database> {
    match Database::new(dsn, ttl / 3) {
        Ok(database) => Some(database),
        Err(error) => {
            problems.add(key, &format!("cannot be read: {error}"));
            None
        }
    }
}

fn log(root: &mut Section<'_>, problems: &Problems) -> Log {
    let mut section = root.section("log");
    let format = section.string("format").unwrap_or_else(|| "text".into());
    if !matches!(format.as_str(), "text" | "json") {
        problems.add("log.format", "is neither \"text\" nor \"json\"");
    }
    let filter = section.string("level").unwrap_or_else(|| "info".into());
    // A bare word that is no level would be taken for a target, and silence everything else.
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let bare = |part: &&str| !part.contains(['=', '[']) && !levels.contains(&part.trim().to_ascii_lowercase().as_str());
    if let Some(word) = filter.split(',').find(bare) {
        problems
            .add("log.level", &format!("{word:?} is no level: write one of {}, or target=level", levels.join(", ")));
    }
    section.finish();
    Log { json: format == "json", filter }
}

fn relays(root: &mut Section<'_>, replica: &str, ttl: Duration, problems: &Problems) -> Vec<RelayFields> {
    let mut all = root.section("relays");
    let relays: Vec<RelayFields> =
        all.subsections().into_iter().map(|(name, section)| relay(replica, &name, section, ttl, problems)).collect();
    all.finish();
    if relays.is_empty() {
        problems.add("relays", "there is none: add a section [relays.NAME] with a sink");
    }
    relays
}

/// Two writers of one file would cut each other's lines.
fn one_writer_a_file(relays: &[RelayFields], problems: &Problems) {
    let mut paths = std::collections::BTreeSet::new();
    for path in relays.iter().filter_map(|relay| relay.sink.as_ref()?.path()) {
        if !paths.insert(path) {
            problems.add("sink.path", &format!("{} is written by two relays: put `{{relay}}` into it", path.display()));
        }
    }
}

fn relay(replica: &str, name: &str, mut section: Section<'_>, ttl: Duration, problems: &Problems) -> RelayFields {
    let path = section.path().to_owned();
    let key = |field: &str| format!("{path}.{field}");
    let relay_name = RelayName::new(name);
    if relay_name.is_none() {
        problems.add(&path, "a relay is named by 1 to 63 of a-z, 0-9, _ and -");
    }
    let lanes = section.integer("lanes", LANES.unsigned_abs(), 1, 4_096);
    if lanes.count_ones() != 1 {
        problems.add(&key("lanes"), "is not a power of two");
    }
    let start = match section.string("start").as_deref() {
        None | Some("earliest") => Start::Earliest,
        Some("latest") => Start::Latest,
        Some(_) => {
            problems.add(&key("start"), "is neither \"earliest\" nor \"latest\"");
            Start::Earliest
        }
    };
    let topics = section.strings("topics");
    if topics.iter().any(String::is_empty) {
        problems.add(&key("topics"), "holds an empty text; no topic is empty");
    }
    if section.string("source").is_some_and(|source| source != "native") {
        problems.add(&key("source"), "is not \"native\", the only one there is");
    }
    let limits = Limits::default();
    let limits = Limits {
        in_flight: section.size("in_flight", limits.in_flight, 1, 1_000_000),
        batch_messages: section.size("batch_messages", limits.batch_messages, 1, 100_000),
        batch_bytes: section.bytes("batch_bytes", limits.batch_bytes),
        memory: section.bytes("memory", limits.memory),
    };
    let pace = Pace::default();
    let pace = Pace {
        busy: section.duration("poll_busy", pace.busy),
        idle: section.duration("poll_idle", pace.idle),
        acknowledge: section.duration("acknowledge", pace.acknowledge),
        acknowledge_idle: section.duration("acknowledge_idle", pace.acknowledge_idle),
        retry_cap: section.duration("retry_cap", pace.retry_cap),
    };
    let wake = section.boolean("wake", false);
    let on_sink_loss = section.string("on_sink_loss").unwrap_or_else(|| "stop".into());
    if !matches!(on_sink_loss.as_str(), "stop" | "resend") {
        problems.add(&key("on_sink_loss"), "is neither \"stop\" nor \"resend\"");
    }
    let sink = sink::read(section.section("sink"), (replica, name), ttl, problems);
    section.finish();
    let lanes = i32::try_from(lanes).unwrap_or_default();
    RelayFields {
        name: relay_name,
        lanes,
        start,
        topics,
        sink,
        limits,
        pace,
        wake,
        resend_lost: on_sink_loss == "resend",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [database]
        dsn = "host=localhost dbname=app"
        [relays.orders]
        sink = { type = "stdout" }
    "#;

    fn problems(text: &str) -> String {
        Config::parse(text).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn defaults_suffice() {
        let config = Config::parse(GOOD).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.relays.len(), 1);
        assert_eq!(config.relays[0].lanes, 16);
        assert_eq!(config.replica.ttl, Duration::from_secs(5));
    }

    #[test]
    fn all_problems_are_reported_together() {
        let text = r#"
            nmae = "x"
            [database]
            [lease]
            ttl = "1ms"
            [relays.Orders]
            lanes = 12
            poll_idle = 5
            memory = "lots"
            sink = { type = "carrier pigeon" }
        "#;
        let found = problems(text);
        for key in ["nmae", "database.dsn", "lease.ttl", "relays.Orders", "lanes", "poll_idle", "memory", "sink.type"] {
            assert!(found.contains(key), "{key} is missing in: {found}");
        }
    }

    #[test]
    fn levels_are_levels() {
        let level = |level: &str| problems(&format!("{GOOD}\n[log]\nlevel = \"{level}\""));
        assert!(level("warning").contains("log.level"));
        assert_eq!(level("info,pgbaton=debug"), "");
    }

    #[test]
    fn a_dsn_that_cannot_work_is_a_problem() {
        for dsn in ["", "host=x sslmode=require", "host=a,b port=1,2,3"] {
            let found = problems(&GOOD.replace("host=localhost dbname=app", dsn));
            assert!(found.contains("database.dsn"), "{dsn}: {found}");
        }
    }

    #[test]
    fn a_file_has_one_writer() {
        let two = |path: &str| {
            format!(
                "[database]\ndsn = \"host=x\"\n[relays.a]\nsink = {{ type = \"file\", path = \"{path}\" }}\n\
                 [relays.b]\nsink = {{ type = \"file\", path = \"{path}\" }}"
            )
        };
        assert!(problems(&two("/tmp/x")).contains("sink.path"));
        assert_eq!(problems(&two("/tmp/{relay}")), "");
    }

    #[test]
    fn secrets_are_not_quoted() {
        let found =
            problems("[database]\ndsn = \"host=x password=hunter2 hunter2=1\"\n[relays.a.sink]\ntype = \"stdout\"");
        assert!(found.contains("database.dsn") && !found.contains("hunter2"), "{found}");
        let found = problems("[database]\ndsn = \"password=hunter2\" oops");
        assert!(found.contains("line 2") && !found.contains("hunter2"), "{found}");
    }

    #[test]
    fn a_value_in_the_place_of_a_section_is_a_problem() {
        assert!(problems("database = 5").contains("database"));
    }
}
