//! The servers that the DSN names: which answer and suit, how they are set, and what their clock says.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio_postgres::Row;

use super::{Finding, Level, unknown};
use crate::config::Examined;
use crate::connection::{Access, Connection, Database};
use crate::error::{Error, Kind};
use crate::sql;

/// A server's version that is refused below this, and was not tried above.
const LEAST: i32 = 15;
const MOST: i32 = 18;
/// A clock that is off by less is of no interest.
const OFF_BY: f64 = 1.0;
/// Milliseconds. Limits of the role below this end what comes before they are lifted.
const TIGHT_MS: u64 = 100;
/// Milliseconds. Connections rest for some seconds between two uses.
const REST_MS: u64 = 60_000;

/// As `server_facts.sql` gives it.
pub(super) struct Server {
    version: i32,
    in_recovery: bool,
    /// Which server it is, and since when it runs.
    life: String,
    encoding: String,
    backend: i32,
    /// Seconds since 1970.
    clock: f64,
    settings: Settings,
}

/// By name, as a session of this role begins with them.
#[derive(Default)]
struct Settings(BTreeMap<String, Option<String>>);

impl Settings {
    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == value
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).and_then(Option::as_deref).unwrap_or_default()
    }

    /// A limit in milliseconds, unless there is none.
    fn limit(&self, name: &str) -> Option<u64> {
        self.get(name).parse().ok().filter(|limit| *limit > 0)
    }
}

impl Server {
    fn read(row: Option<&Row>) -> Result<Self, Error> {
        let internal = |text| Error::new(Kind::Internal, text);
        let row = row.ok_or_else(|| internal("the server did not say what it is"))?;
        let settings = serde_json::from_str(row.try_get("settings")?)
            .map_err(|error| internal("the server's settings cannot be read").because(error))?;
        Ok(Self {
            version: row.try_get::<_, i32>("version")? / 10_000,
            in_recovery: row.try_get("in_recovery")?,
            life: row.try_get("life")?,
            encoding: row.try_get("encoding")?,
            backend: row.try_get("backend")?,
            clock: row.try_get("clock")?,
            settings: Settings(settings),
        })
    }

    async fn ask(connection: &Connection) -> Result<Self, Error> {
        let [rows] = connection.pipeline(Access::Look, [(sql::SERVER_FACTS, &[])]).await?;
        Self::read(rows.first())
    }

    fn is_read_only(&self) -> bool {
        self.settings.is("default_transaction_read_only", "on")
    }
}

/// Asks each host of the DSN by itself.
pub(super) async fn hosts(database: &Database) -> Vec<Finding> {
    let asked = database.each_host().into_iter().map(|(at, host)| async move {
        let answer = async { Server::ask(&host.connect().await?).await };
        (at, answer.await)
    });
    judge_hosts(&join_all(asked).await, database.takes())
}

type Looked = (String, Result<Server, Error>);

fn judge_hosts(looked: &[Looked], (in_recovery, read_only): (bool, bool)) -> Vec<Finding> {
    const CHECK: &str = "hosts";
    let suits = |server: &Server| (in_recovery || !server.in_recovery) && (read_only || !server.is_read_only());
    let good: Vec<(&str, &Server)> = looked
        .iter()
        .filter_map(|(at, answer)| Some((at.as_str(), answer.as_ref().ok()?)))
        .filter(|(_, server)| suits(server))
        .collect();
    let level = if good.is_empty() { super::Level::Problem } else { super::Level::Warning };
    let mut found = Vec::new();
    for (at, answer) in looked {
        found.push(match answer {
            Err(error) => Finding { what: format!("{at}: {} [{}]", without(&error.in_words(), at), error.code()), ..Finding::of(CHECK, level, error) },
            Ok(server) if suits(server) => Finding::ok(CHECK, format!("{at} takes writes")),
            Ok(server) if server.in_recovery && !good.is_empty() => Finding::ok(CHECK, format!("{at} is in recovery: a standby")),
            Ok(server) if server.in_recovery => Finding::problem(
                CHECK,
                format!("{at} is in recovery, so that no replica can use it"),
                "Name the primary in the DSN, too, or promote this server if it is to be one",
            ),
            Ok(_) => Finding::new(
                CHECK,
                level,
                format!("{at} is read-only (default_transaction_read_only is on), so that no replica writes to it"),
                "Turn it off once whoever turned it on has no reason any more; see `target_session_attrs` if replicas are to override it",
            ),
        });
    }
    let primaries = good.iter().filter(|(_, server)| !server.in_recovery);
    if let Some((first, others)) = primaries.collect::<Vec<_>>().split_first()
        && let Some((other, _)) = others.iter().find(|(_, server)| server.life != first.1.life)
    {
        let what = format!(
            "{} and {other} both take writes and are two servers: one of them is an old primary, or another database altogether",
            first.0
        );
        found.push(Finding::problem(
            CHECK,
            what,
            "Shut the old one down, or make it a standby, before replicas or applications write to it",
        ));
    }
    found
}

/// A host's own name stands before what it says already.
fn without<'a>(text: &'a str, at: &str) -> &'a str {
    text.strip_prefix(at).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(text)
}

/// The server that suits: `server`, `clock` and `settings`.
pub(super) async fn itself(examined: &Examined) -> Vec<Finding> {
    let asked = async {
        let (one, other) = (examined.database.connect().await?, examined.database.connect().await?);
        let (begun, at) = (Instant::now(), SystemTime::now());
        let server = Server::ask(&one).await?;
        let took = begun.elapsed().as_secs_f64();
        let here = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() + took / 2.0;
        let again = Server::ask(&other).await?;
        let [rows] = one.pipeline(Access::Look, [(sql::ROLE_SETTINGS, &[])]).await?;
        let roles = rows
            .iter()
            .map(|row| Ok((row.try_get("role")?, row.try_get("setting")?)))
            .collect::<Result<Vec<_>, Error>>()?;
        // Two connections that are open at once have two processes, unless somebody between shares one.
        let pooled = again.backend == server.backend && again.life == server.life;
        Ok::<_, Error>((server, pooled, here, took, roles))
    };
    match asked.await {
        Ok((server, pooled, here, took, roles)) => {
            let wake = examined.relays.iter().find(|relay| relay.spec.wake).map(|relay| relay.spec.name.as_str());
            let mut found = judge_server(&server, pooled, wake);
            found.push(judge_clock(server.clock - here, took));
            found.extend(judge_settings(&server.settings, &roles));
            found
        }
        Err(error) => ["server", "clock", "settings"].map(|check| unknown(check, &error)).into(),
    }
}

fn judge_server(server: &Server, pooled: bool, wake: Option<&str>) -> Vec<Finding> {
    const CHECK: &str = "server";
    let mut found = Vec::new();
    let Server { version, encoding, .. } = server;
    if *version < LEAST {
        found.push(Finding::problem(
            CHECK,
            format!("it has version {version}"),
            format!("pgbaton needs PostgreSQL {LEAST} to {MOST}"),
        ));
    } else if *version > MOST {
        found.push(Finding::note(
            CHECK,
            format!("it has version {version}, which this version of pgbaton was not tried with"),
            "Use a newer pgbaton, if there is one",
        ));
    }
    if encoding == "SQL_ASCII" {
        found.push(Finding::problem(
            CHECK,
            "the database has the encoding SQL_ASCII, which does not say what its texts mean",
            "Use a database with the encoding UTF8",
        ));
    }
    match (pooled, wake) {
        (true, Some(relay)) => found.push(Finding::warning(
            CHECK,
            format!(
                "a pooler shares its connections by the transaction, so that `wake` of relay {relay} has no effect"
            ),
            "Use a DSN that leads to the server itself, or `wake = false`",
        )),
        (true, None) => found.push(Finding::note(
            CHECK,
            "a pooler shares its connections by the transaction: replicas work with that, and poll",
            "See that it lets as many through as docs/operate.md counts",
        )),
        (false, _) => {}
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, format!("PostgreSQL {version}, {encoding}")));
    }
    found
}

/// `off` is the server's time less this machine's, known to half of what the answer took.
fn judge_clock(off: f64, took: f64) -> Finding {
    const CHECK: &str = "clock";
    let known_to = took / 2.0;
    if off.abs() < OFF_BY + known_to {
        return Finding::ok(CHECK, "the server's clock and this machine's agree");
    }
    let which = if off > 0.0 { "ahead of" } else { "behind" };
    let what = format!(
        "the server's clock is {} {which} this machine's: nothing that pgbaton decides compares the two, but times in logs do not fit, and ages and times of \
         attempts are the server's",
        super::span(off.abs())
    );
    Finding::note(CHECK, what, "Have both machines keep time (NTP)")
}

/// Settings that hurt if they are off, how, and what to do.
const OFF: [(&str, Level, &str, &str); 4] = [
    (
        "fsync",
        Level::Problem,
        ": a crash of the machine may destroy the database, with the outbox",
        "alter system set fsync = on; then reload",
    ),
    (
        "full_page_writes",
        Level::Warning,
        ": a crash in the middle of a write may destroy pages of the outbox",
        "alter system set full_page_writes = on; then reload, unless the file system writes pages as a whole",
    ),
    (
        "autovacuum",
        Level::Warning,
        ": leases and registrations, which are updated, grow with each renewal",
        "alter system set autovacuum = on; then reload",
    ),
    (
        "synchronous_commit",
        Level::Note,
        " for this role: pgbaton turns it on for what it writes. Messages of applications with the same setting are lost in a crash \
         within a second of their commit, with the changes they told of, and are delivered that much later",
        "See whether the applications' roles are meant to have it",
    ),
];

/// `roles`: of whom, or all, and what was set, as `name=value`.
fn judge_settings(settings: &Settings, roles: &[(Option<String>, String)]) -> Vec<Finding> {
    const CHECK: &str = "settings";
    let mut found = Vec::new();
    for (name, level, hurts, remedy) in OFF {
        if settings.is(name, "off") {
            found.push(Finding::new(CHECK, level, format!("{name} is off{hurts}"), remedy));
        }
    }
    for (role, _) in roles.iter().filter(|(_, setting)| setting == "synchronous_commit=off") {
        let whose =
            role.as_ref().map_or_else(|| "all roles of this database".to_owned(), |role| format!("role {role}"));
        let what = format!(
            "synchronous_commit is off for {whose}: messages it commits within a second before a crash are lost, with the changes they tell of"
        );
        found.push(Finding::note(
            CHECK,
            what,
            "`alter role … reset synchronous_commit` (or `alter database …`), unless that is meant",
        ));
    }
    if !settings.is("default_transaction_isolation", "read committed") {
        let what = format!(
            "default_transaction_isolation is {}: pgbaton names its own in each transaction",
            settings.get("default_transaction_isolation")
        );
        found.push(Finding::note(CHECK, what, "Nothing, for pgbaton's sake"));
    }
    for name in ["statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout"] {
        if let Some(limit) = settings.limit(name).filter(|limit| *limit < TIGHT_MS) {
            let what = format!(
                "{name} is {limit} ms for this role: pgbaton sets its own in each transaction, and this may end one before it has"
            );
            found.push(Finding::warning(CHECK, what, format!("alter role CURRENT_USER reset {name}")));
        }
    }
    if let Some(limit) = settings.limit("idle_session_timeout").filter(|limit| *limit < REST_MS) {
        let what = format!(
            "idle_session_timeout is {limit} ms for this role: connections that rest for that long are ended, and made anew each time"
        );
        found.push(Finding::warning(CHECK, what, "alter role CURRENT_USER set idle_session_timeout = 0"));
    }
    if found.is_empty() {
        found.push(Finding::ok(CHECK, "none of them hurts"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(life: &str, in_recovery: bool) -> Server {
        let (life, encoding) = (life.to_owned(), "UTF8".to_owned());
        Server { version: 18, in_recovery, life, encoding, backend: 1, clock: 0.0, settings: Settings::default() }
    }

    fn levels(found: &[Finding]) -> Vec<Level> {
        found.iter().map(|finding| finding.level).collect()
    }

    fn set(settings: &[(&str, &str)]) -> Settings {
        let usual = [("default_transaction_isolation", "read committed")];
        Settings(
            usual.iter().chain(settings).map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect(),
        )
    }

    #[test]
    fn one_host_that_suits_is_enough() {
        let down = || ("b:1".to_owned(), Err(Error::new(Kind::Database, "b:1: refused")));
        let (primary, standby) =
            (("a:1".to_owned(), Ok(server("1", false))), ("c:1".to_owned(), Ok(server("1", true))));
        let found = judge_hosts(&[primary, down(), standby], (false, false));
        assert_eq!(levels(&found), [Level::Ok, Level::Warning, Level::Ok]);
        assert_eq!(found[1].what, "b:1: refused [database.unavailable]");
        let found = judge_hosts(&[("c:1".to_owned(), Ok(server("1", true))), down()], (false, false));
        assert_eq!(levels(&found), [Level::Problem, Level::Problem]);
        // A DSN that takes any server is content with it.
        assert_eq!(levels(&judge_hosts(&[("c:1".to_owned(), Ok(server("1", true)))], (true, true))), [Level::Ok]);
    }

    #[test]
    fn two_primaries_are_one_too_many() {
        let both = |other| [("a:1".to_owned(), Ok(server("1", false))), ("b:1".to_owned(), Ok(server(other, false)))];
        assert_eq!(levels(&judge_hosts(&both("2"), (false, false))), [Level::Ok, Level::Ok, Level::Problem]);
        assert_eq!(levels(&judge_hosts(&both("1"), (false, false))), [Level::Ok, Level::Ok], "one server by two names");
    }

    #[test]
    fn a_read_only_server_suits_whoever_overrides_it() {
        let host = || {
            let mut server = server("1", false);
            server.settings = set(&[("default_transaction_read_only", "on")]);
            [("a:1".to_owned(), Ok(server))]
        };
        assert_eq!(levels(&judge_hosts(&host(), (false, false))), [Level::Problem]);
        assert_eq!(levels(&judge_hosts(&host(), (false, true))), [Level::Ok]);
    }

    #[test]
    fn versions_and_poolers_are_judged() {
        let judged =
            |version, pooled, wake| levels(&judge_server(&Server { version, ..server("1", false) }, pooled, wake));
        assert_eq!(judged(15, false, None), [Level::Ok]);
        assert_eq!(judged(14, false, None), [Level::Problem]);
        assert_eq!(judged(19, false, None), [Level::Note]);
        assert_eq!(judged(18, true, None), [Level::Note]);
        assert_eq!(judged(18, true, Some("orders")), [Level::Warning]);
    }

    #[test]
    fn a_clock_is_off_by_more_than_the_way_takes() {
        assert_eq!(judge_clock(0.3, 0.1).level, Level::Ok);
        assert_eq!(judge_clock(2.0, 4.0).level, Level::Ok, "the answer took longer");
        let found = judge_clock(-3_600.0, 0.1);
        assert_eq!(found.level, Level::Note);
        assert!(found.what.contains("60 min behind"), "{}", found.what);
    }

    #[test]
    fn settings_that_hurt_are_told() {
        assert_eq!(
            levels(&judge_settings(&set(&[("statement_timeout", "0"), ("idle_session_timeout", "0")]), &[])),
            [Level::Ok]
        );
        for (name, value, level) in [
            ("fsync", "off", Level::Problem),
            ("full_page_writes", "off", Level::Warning),
            ("autovacuum", "off", Level::Warning),
            ("synchronous_commit", "off", Level::Note),
            ("default_transaction_isolation", "serializable", Level::Note),
            ("statement_timeout", "50", Level::Warning),
            ("idle_session_timeout", "5000", Level::Warning),
        ] {
            let found = judge_settings(&set(&[(name, value)]), &[]);
            assert_eq!(levels(&found), [level], "{name}");
            assert!(found[0].what.contains(name), "{}", found[0].what);
        }
        let roles =
            [(Some("app".to_owned()), "synchronous_commit=off".to_owned()), (None, "synchronous_commit=on".to_owned())];
        let found = judge_settings(&set(&[]), &roles);
        assert!(levels(&found) == [Level::Note] && found[0].what.contains("role app"), "{found:?}");
    }
}
