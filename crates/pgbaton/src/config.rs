//! The configuration: a file and the environment over it, read raw, then validated as a whole, so that all problems are
//! reported together.
//!
//! `docs/configuration.md` lists every key with its default, unit and effect.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use toml::Table;

use crate::connection::Database;
use crate::error::{Error, Kind};
use crate::lane::RelayName;
use crate::relay::{LANES, Limits, MOST_LANES, Pace, RelaySpec, Start};
use crate::replica::{DRAIN, LEAST_TTL, MOST_TTL, ReplicaSpec, TTL};
use crate::retry::Policy;
use crate::source::SourceSpec;

mod adopted;
mod examined;
mod file;
mod overrides;
mod retry;
mod section;
mod sink;
mod source;

pub(crate) use examined::{Destination, Examined, ExaminedRelay};
pub(crate) use section::is_plain;
use section::{Problems, Section};
pub use section::{duration, time};

/// A configuration that has been validated. Holds secrets: it cannot be printed.
pub struct Config {
    /// How the replica and its relays are set up, without the sinks' connections.
    replica: ReplicaFields,
    relays: Vec<RelayFields>,
    /// How to log.
    pub log: Log,
    /// Where to answer questions about how it goes.
    pub http: Http,
    /// Where traces go.
    pub traces: Traces,
    given: Given,
}

/// Where traces of delivered messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traces {
    /// A collector that takes OTLP over HTTP; `None` for no traces.
    pub endpoint: Option<String>,
}

/// What a replica was configured with, to be compared with what it is configured with now. Holds secrets: it cannot be
/// printed.
#[derive(Clone, PartialEq)]
pub struct Given {
    keys: Table,
    /// What files held, by the key whose value they hold: a secret that was changed is a change.
    files: BTreeMap<String, String>,
}

/// Sections that a process follows without its replica being started again.
const BESIDE_THE_REPLICA: [&str; 2] = ["http", "log"];

/// Where the daemon answers questions about how it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http {
    /// The address to listen at; `None` for nowhere.
    pub listen: Option<SocketAddr>,
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
    source: SourceSpec,
    lanes: i32,
    start: Start,
    topics: Vec<String>,
    sink: Option<sink::SinkFields>,
    limits: Limits,
    pace: Pace,
    policy: Policy,
    wake: bool,
    resend_lost: bool,
}

impl Config {
    /// Reads and validates a configuration file, with the environment over it: of `environment`, which is names and values
    /// of variables, those count that begin with `PGBATON__`.
    ///
    /// # Errors
    /// All problems at once, each with the key it is about. Values of secrets are never quoted.
    pub fn load(path: &Path, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Error> {
        let text = file::read(path).map_err(|error| {
            Error::new(Kind::Config, format!("the configuration {} cannot be read", path.display())).because(error)
        })?;
        Self::parse(&text, environment)
    }

    /// The same from a text.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn parse(text: &str, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, Error> {
        Self::read(text, environment, None)
    }

    /// `known` is the database where the text does not say.
    fn read(
        text: &str,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
        known: Option<Database>,
    ) -> Result<Self, Error> {
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            // The parser's own display quotes the line, which may hold a password.
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
            Error::new(Kind::Config, format!("line {line} of the configuration is not TOML: {}", error.message()))
        })?;
        let (overrides, problems) = overrides::apply(&mut table, environment);
        let problems = problems.with_overrides(overrides);
        let keys = table.clone();
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
        let database_for = known.or_else(|| {
            let dsn = database.required_string("dsn");
            dsn.and_then(|dsn| parse_dsn(&dsn, ttl, "database.dsn", &problems))
        });
        database.finish();
        let name = root.string("name").unwrap_or_else(default_name);
        if name.is_empty() || !name.chars().all(section::is_plain) {
            problems.add("name", "is empty, or holds characters that cannot be shown");
        }
        let drain = root.duration("drain", DRAIN);
        let replica = ReplicaFields { name, database: database_for, ttl, drain };
        let log = log(&mut root, &problems);
        let http = http(&mut root, &problems);
        let traces = traces(&mut root, &problems);
        let relays = relays(&mut root, &replica.name, ttl, &problems);
        one_writer_a_file(&relays, &problems);
        root.finish();
        let files = problems.into_result()?;
        Ok(Self { replica, relays, log, http, traces, given: Given::of_replica(keys, files) })
    }

    /// What the replica was configured with: as long as this is the same, nothing is gained by starting it again.
    #[must_use]
    pub fn given(&self) -> Given {
        self.given.clone()
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
                source: relay.source,
                lanes: relay.lanes,
                start: relay.start,
                topics: relay.topics,
                sink: relay.sink.ok_or_else(missing)?.build(),
                limits: relay.limits,
                pace: relay.pace,
                policy: relay.policy,
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
        self.replica
            .database
            .clone()
            .ok_or_else(|| Error::new(Kind::Internal, "a validated configuration lacks its database"))
    }
}

impl Given {
    fn of_replica(mut keys: Table, mut files: BTreeMap<String, String>) -> Self {
        for section in BESIDE_THE_REPLICA {
            keys.remove(section);
        }
        files.retain(|key, _| !BESIDE_THE_REPLICA.iter().any(|section| key.split('.').next() == Some(section)));
        Self { keys, files }
    }
}

/// The machine's name and the process's number: in containers every process has the number 1.
pub(crate) fn default_name() -> String {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy();
    // It may become part of a path.
    let clean = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    let host: String = host.split('.').next().unwrap_or_default().chars().map(clean).take(63).collect();
    format!("{host}-{}", std::process::id())
}

fn http(root: &mut Section<'_>, problems: &Problems) -> Http {
    let mut section = root.section("http");
    let listen = section.string("listen").unwrap_or_else(|| "127.0.0.1:9478".into());
    section.finish();
    if listen == "off" {
        return Http { listen: None };
    }
    let address = listen.parse();
    if address.is_err() {
        problems.add("http.listen", "is neither \"off\" nor an address with a port such as \"127.0.0.1:9478\"");
    }
    Http { listen: address.ok() }
}

fn traces(root: &mut Section<'_>, problems: &Problems) -> Traces {
    let mut section = root.section("traces");
    let endpoint = section.string("endpoint");
    section.finish();
    if endpoint.as_ref().is_some_and(|endpoint| !endpoint.starts_with("http://")) {
        problems.add("traces.endpoint", "is no URL such as \"http://127.0.0.1:4318/v1/traces\"; there is no TLS");
    }
    Traces { endpoint }
}

/// A wait for an answer is a third of the lease, so that a renewal can be tried again.
fn parse_dsn(dsn: &str, ttl: Duration, key: &str, problems: &Problems) -> Option<Database> {
    match Database::new(dsn, ttl / 3) {
        Ok(database) => Some(database),
        Err(error) => {
            problems.add(key, &error.in_words());
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

/// Settings without a meaning for an adopted table.
const OF_THE_OUTBOX: [&str; 4] = ["topics", "start", "wake", "on_sink_loss"];

fn relay(replica: &str, name: &str, mut section: Section<'_>, ttl: Duration, problems: &Problems) -> RelayFields {
    let path = section.path().to_owned();
    let key = |field: &str| format!("{path}.{field}");
    let relay_name = RelayName::new(name);
    if relay_name.is_none() {
        problems.add(&path, "a relay is named by 1 to 63 of a-z, 0-9, _ and -");
    }
    let source = source::read(&mut section, problems);
    if let SourceSpec::Table(_) = source {
        let keys = section.names().into_iter().filter(|name| OF_THE_OUTBOX.contains(&name.as_str()));
        keys.for_each(|name| {
            problems.add(&key(&name), "is for the outbox: of a table, `pending` says what is delivered");
        });
    }
    let lanes = section.integer("lanes", LANES.unsigned_abs(), 1, MOST_LANES.unsigned_abs());
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
    let limits = match source {
        SourceSpec::Native => Limits::default(),
        // Marking a row costs more than reading it: what is read far ahead only waits.
        SourceSpec::Table(_) => Limits { in_flight: 1_000, ..Limits::default() },
    };
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
    let policy = retry::read(&mut section, matches!(source, SourceSpec::Table(_)), problems);
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
        source,
        lanes,
        start,
        topics,
        sink,
        limits,
        pace,
        policy,
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
        Config::parse(text, []).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn defaults_suffice() {
        let config = Config::parse(GOOD, []).unwrap_or_else(|error| panic!("{error}"));
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
        for dsn in ["", "host=x sslmode=verify-ca sslrootcert=/missing", "host=a,b port=1,2,3", "host=x sslcrl=/x"] {
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

    #[cfg(feature = "http")]
    #[test]
    fn a_webhook_is_configured() {
        let sink = |options: &str| problems(&GOOD.replace("type = \"stdout\"", &format!("type = \"http\", {options}")));
        let whole = "url = \"http://example.org/{topic}\", concurrency = 256, timeout = \"1s\", allow_private = true, \
                     headers = { authorization = \"Bearer x\" }, secret = \"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"";
        assert_eq!(sink(whole), "");
        let found = sink(
            "url = \"http://u:hunter2@h/\", concurrency = 257, timeout = \"0s\", allow_private = 1, retries = 3, \
             headers = { host = \"hunter2\", a = 5 }, secret = \"hunter2\"",
        );
        for key in ["url", "concurrency", "timeout", "allow_private", "retries", "headers", "headers.a", "secret"] {
            assert!(found.contains(&format!("sink.{key}: ")), "{key} is missing in {found}");
        }
        assert!(!found.contains("hunter2"), "{found}");
        assert!(sink("concurrency = 1").contains("sink.url"));
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

    fn with(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        Config::parse(text, environment).map_err(|error| error.to_string())
    }

    #[test]
    fn the_environment_beats_the_file() {
        let config = with(
            GOOD,
            &[
                ("PGBATON__NAME", "7"),
                ("PGBATON__LEASE__TTL", "9s"),
                ("PGBATON__RELAYS__ORDERS__LANES", "4"),
                ("PGBATON__RELAYS__ORDERS__SINK", "{ type = \"discard\" }"),
                ("PGBATON__RELAYS__B-2__SINK__TYPE", "stdout"),
                ("PGBATON_DSN", "not one of these"),
            ],
        )
        .unwrap();
        assert_eq!((config.replica.name.as_str(), config.replica.ttl), ("7", Duration::from_secs(9)));
        let lanes: Vec<_> = config.relays.iter().map(|r| (r.name.as_ref().unwrap().as_str(), r.lanes)).collect();
        assert_eq!(lanes, [("b-2", 16), ("orders", 4)]);
        assert!(matches!(config.relays[1].sink, Some(sink::SinkFields::Discard)));
    }

    #[test]
    fn a_variable_that_names_no_key_is_refused() {
        for (variable, value, key) in [
            ("PGBATON__NMAE", "x", "nmae"),
            ("PGBATON__RELAYS__ORDERS__LANE", "4", "relays.orders.lane"),
            ("PGBATON__RELAYS__TYPO__LANES", "4", "relays.typo.sink.type"),
            ("PGBATON__RELAYS__ORDERS__LANES", "twelve", "relays.orders.lanes"),
            ("PGBATON__RELAYS__ORDERS__LANES__X", "1", "relays.orders.lanes"),
            ("PGBATON__DATABASE", "5", "database"),
            ("PGBATON__DATABASE__", "x", "names no key"),
            ("PGBATON__", "x", "names no key"),
        ] {
            let found = with(GOOD, &[(variable, value)]).err().unwrap_or_default();
            assert!(found.contains(variable) && found.contains(key), "{variable}: {found}");
        }
        let found = with(GOOD, &[("PGBATON__DATABASE__DSN", "hunter2")]).err().unwrap_or_default();
        assert!(found.contains("PGBATON__DATABASE__DSN") && !found.contains("hunter2"), "{found}");
    }

    /// A file with this text, gone with the value.
    struct Temporary(std::path::PathBuf);

    impl Temporary {
        fn new(name: &str, text: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("pgbaton-config-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            Self(path)
        }

        fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for Temporary {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_text_may_be_in_a_file() {
        let secret = Temporary::new("secret", b"host=localhost dbname=app\r\n");
        let text = |path: &str| GOOD.replace("dsn = \"host=localhost dbname=app\"", &format!("dsn_file = \"{path}\""));
        let config = with(&text(secret.path()), &[]).unwrap();
        assert!(config.given.files["database.dsn"].ends_with("dbname=app"));
        let twice = GOOD.replace("dsn =", &format!("dsn_file = \"{}\"\ndsn =", secret.path()));
        assert!(problems(&twice).contains("database.dsn: is given twice"));
        // The environment's form counts, whichever it is.
        assert_eq!(with(&text("/nowhere"), &[("PGBATON__DATABASE__DSN", "host=y")]).err(), None);
        assert_eq!(with(GOOD, &[("PGBATON__DATABASE__DSN_FILE", secret.path())]).err(), None);
        let both = [("PGBATON__DATABASE__DSN_FILE", secret.path()), ("PGBATON__DATABASE__DSN", "host=y")];
        assert!(with(GOOD, &both).err().unwrap_or_default().contains("given twice"));
        let large = Temporary::new("large", &vec![b'x'; (1 << 20) + 1]);
        for (path, word) in
            [("/nowhere", "No such file"), ("/dev/zero", "plain"), ("/tmp", "plain"), (large.path(), "1 MiB")]
        {
            let found = problems(&text(path));
            assert!(found.contains("database.dsn_file") && found.contains(path) && found.contains(word), "{found}");
        }
        assert!(problems(&GOOD.replace("[relays.orders]", "[relays.orders]\nlanes_file = \"x\"")).contains("unknown"));
    }

    #[test]
    fn a_configuration_may_not_be_endless() {
        for path in ["/dev/zero", "/dev/null", "/"] {
            let error = Config::load(Path::new(path), []).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("plain file"), "{path}: {error}");
        }
    }

    #[test]
    fn what_the_replica_was_given_is_compared() {
        let secret = Temporary::new("rotated", b"host=a");
        let text = format!("[database]\ndsn_file = \"{}\"\n[relays.a]\nsink = {{ type = \"stdout\" }}", secret.path());
        let given = |text: &str, environment: &[(&str, &str)]| with(text, environment).unwrap().given();
        let before = given(&text, &[]);
        assert!(before == given(&format!("# a comment\n{text}"), &[]));
        assert!(before == given(&format!("{text}\n[log]\nlevel = \"debug\"\n[http]\nlisten = \"off\""), &[]));
        assert!(before != given(&text, &[("PGBATON__DRAIN", "1s")]));
        std::fs::write(&secret.0, "host=b").unwrap();
        assert!(before != given(&text, &[]));
    }

    #[test]
    fn where_to_listen() {
        let http =
            |listen: &str| with(&format!("{GOOD}\n[http]\nlisten = \"{listen}\""), &[]).map(|config| config.http);
        assert_eq!(with(GOOD, &[]).unwrap().http.listen, Some("127.0.0.1:9478".parse().unwrap()));
        assert_eq!(http("off"), Ok(Http { listen: None }));
        assert_eq!(http("[::1]:80"), Ok(Http { listen: Some("[::1]:80".parse().unwrap()) }));
        assert!(http("9478").err().unwrap_or_default().contains("http.listen"));
    }
}
