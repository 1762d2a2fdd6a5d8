//! A DSN as libpq takes it, read and validated: what it says, then what the environment fills in, then `.pgpass`.
//!
//! A key that libpq knows is honoured, or left aside where that weakens nothing, or refused by its name; `keys` has the
//! table. Problems name keys and variables and are reported together; they never quote a value, which may be a secret.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rustls::SupportedProtocolVersion;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use tokio_postgres::config::ChannelBinding;

use crate::error::{Error, Kind};
use crate::tls::{self, Mode, Root};

mod hosts;
mod keys;
mod passfile;
mod text;

use keys::{KEYS, Use};
use passfile::{Passfile, Unused};

/// What fills the gaps of a DSN: this process's environment, or a test's.
pub(crate) struct Environment<'a> {
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// The account's name, which is the user's where nothing else says one.
    pub(crate) account: &'a dyn Fn() -> Option<String>,
}

impl Environment<'static> {
    pub(crate) fn of_this_process() -> Self {
        Self { variable: &|name| std::env::var_os(name), account: &|| whoami::username().ok() }
    }
}

/// Where a host is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// The folder of a Unix socket.
    Socket(PathBuf),
    Tcp {
        name: String,
        /// Where the DSN says it, the name is not looked up.
        address: Option<IpAddr>,
    },
}

/// One server that may be meant. Holds a secret: it cannot be printed.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) place: Place,
    pub(crate) port: u16,
    pub(crate) password: Option<String>,
}

/// Which of several servers is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The first one that answers.
    Any,
    /// One that takes writes: neither in recovery nor read-only by default.
    ReadWrite,
    /// One that is not in recovery.
    Primary,
}

/// A validated DSN. Holds secrets: it cannot be printed.
pub(crate) struct Dsn {
    /// At least one.
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) application_name: String,
    pub(crate) options: Option<String>,
    pub(crate) channel_binding: ChannelBinding,
    pub(crate) tls: tls::Options,
    pub(crate) target: Target,
    /// Whether the hosts are tried in another order each time.
    pub(crate) shuffled: bool,
    /// What its owner should know. For the log, once there is one.
    pub(crate) warnings: Vec<String>,
}

impl Dsn {
    /// Reads and validates a DSN.
    ///
    /// # Errors
    /// All problems at once, each with its key or variable.
    pub(crate) fn read(text: &str, environment: &Environment<'_>) -> Result<Self, Error> {
        let mut values = Values::default();
        match text::pairs(text) {
            Ok(pairs) => values.take(pairs),
            Err(problem) => values.problems.push(problem),
        }
        values.fill(environment);
        let home = (environment.variable)("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let folder = home.as_ref().map(|home| home.join(".postgresql"));
        let user = values.text("user").or_else(environment.account);
        if user.is_none() {
            values.problem("`user` is missing: add it, or set PGUSER");
        }
        let user = user.unwrap_or_default();
        let database = values.text("dbname").unwrap_or_else(|| user.clone());
        let mut hosts = hosts::read(&mut values);
        let tls = tls_options(&mut values, folder.as_deref(), &hosts);
        let mut dsn = Self {
            user,
            database,
            application_name: values
                .text("application_name")
                .or_else(|| values.text("fallback_application_name"))
                .unwrap_or_else(|| "pgbaton".into()),
            options: values.text("options"),
            channel_binding: values
                .choice(
                    "channel_binding",
                    &[
                        ("disable", ChannelBinding::Disable),
                        ("prefer", ChannelBinding::Prefer),
                        ("require", ChannelBinding::Require),
                    ],
                )
                .unwrap_or(ChannelBinding::Prefer),
            tls,
            target: target(&mut values),
            shuffled: values.choice("load_balance_hosts", &[("disable", false), ("random", true)]).unwrap_or(false),
            warnings: Vec::new(),
            hosts: Vec::new(),
        };
        dsn.warnings.extend(passwords(&mut values, &dsn, home.as_deref(), &mut hosts));
        dsn.hosts = hosts;
        values.into_result()?;
        dsn.warnings.extend(dsn.unverified());
        Ok(dsn)
    }

    /// What to say of a connection that somebody between may read or answer.
    fn unverified(&self) -> Option<String> {
        let away: Vec<String> = self.hosts.iter().filter(|host| !host.is_local()).map(ToString::to_string).collect();
        (self.tls.unverified() && !away.is_empty()).then(|| {
            format!(
                "the connection to {} is not verified, so that somebody between may read and change what passes: use \
                 sslmode=verify-full with sslrootcert, or sslmode=disable if the network is safe",
                away.join(", ")
            )
        })
    }
}

/// A value and who gave it.
struct Given {
    text: String,
    /// The key or the variable, for problems.
    by: String,
}

/// What was given, and what is wrong with it.
#[derive(Default)]
struct Values {
    given: BTreeMap<&'static str, Given>,
    problems: Vec<String>,
}

impl Values {
    /// What the DSN itself says; of a key that is given twice, the last.
    fn take(&mut self, pairs: Vec<text::Pair>) {
        for pair in pairs {
            match KEYS.iter().find(|key| key.name == pair.key) {
                Some(key) => {
                    self.given.insert(key.name, Given { text: pair.value, by: format!("`{}`", key.name) });
                }
                None => self.problems.push(format!("{} is unknown", pair.called)),
            }
        }
    }

    /// What the environment says of keys that the DSN does not name. An empty variable says nothing.
    fn fill(&mut self, environment: &Environment<'_>) {
        let named: Vec<&str> = self.given.keys().copied().collect();
        for key in KEYS.iter().filter(|key| !named.contains(&key.name)) {
            let Some((variable, text)) = key.variable.and_then(|name| Some((name, (environment.variable)(name)?)))
            else {
                continue;
            };
            match text.into_string() {
                Ok(text) if text.is_empty() => {}
                Ok(text) => {
                    self.given.insert(key.name, Given { text, by: variable.to_owned() });
                }
                Err(_) => self.problems.push(format!("{variable} is not UTF-8")),
            }
        }
        // The oldest of them, which libpq still reads.
        let demanded =
            (environment.variable)("PGREQUIRESSL").is_some_and(|value| value.as_encoded_bytes().starts_with(b"1"));
        if demanded {
            self.given.entry("sslmode").or_insert_with(|| Given { text: "require".into(), by: "PGREQUIRESSL".into() });
        }
        for key in KEYS {
            if let (Use::Only(values, instead), Some(given)) = (&key.usage, self.given.get(key.name))
                && !given.text.is_empty()
                && !values.contains(&given.text.as_str())
            {
                self.problems.push(format!("{} cannot be honoured: {instead}", given.by));
            }
        }
    }

    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// A value; an empty one is none, but still beats the environment's.
    fn given(&self, key: &str) -> Option<&Given> {
        self.given.get(key).filter(|given| !given.text.is_empty())
    }

    fn text(&self, key: &str) -> Option<String> {
        self.given(key).map(|given| given.text.clone())
    }

    /// A value that is one of these words. Here an empty one is a problem: it might stand for a stricter word.
    fn choice<T: Copy>(&mut self, key: &str, words: &[(&str, T)]) -> Option<T> {
        let given = self.given.get(key)?;
        let found = words.iter().find(|(word, _)| *word == given.text).map(|(_, meaning)| *meaning);
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            self.problems.push(format!("{} is none of {}", given.by, words.join(", ")));
        }
        found
    }

    fn into_result(self) -> Result<(), Error> {
        if self.problems.is_empty() {
            return Ok(());
        }
        Err(Error::new(Kind::Config, format!("the DSN cannot be used: {}", self.problems.join("; "))))
    }
}

fn target(values: &mut Values) -> Target {
    if let Some(given) = values.given("target_session_attrs")
        && ["read-only", "standby", "prefer-standby"].contains(&given.text.as_str())
    {
        let problem = format!("{} asks for a server that takes no writes: use read-write, primary or any", given.by);
        values.problem(problem);
        return Target::ReadWrite;
    }
    let words = [("read-write", Target::ReadWrite), ("primary", Target::Primary), ("any", Target::Any)];
    values.choice("target_session_attrs", &words).unwrap_or(Target::ReadWrite)
}

fn tls_options(values: &mut Values, folder: Option<&Path>, hosts: &[Host]) -> tls::Options {
    let system = values.given("sslrootcert").is_some_and(|given| given.text == "system");
    let mode = mode(values, system);
    let by_default = |name: &str| folder.map(|folder| folder.join(name)).filter(|path| path.exists());
    let root = if system {
        Some(Root::System)
    } else {
        values.text("sslrootcert").map(PathBuf::from).or_else(|| by_default("root.crt")).map(Root::File)
    };
    let send = [("disable", false), ("allow", true)];
    if values.given("sslcertmode").is_some_and(|given| given.text == "require") {
        values.problem("`sslcertmode=require` cannot be honoured: let the server demand the certificate instead");
    }
    let sends = values.given("sslcertmode").is_none_or(|given| given.text != "require")
        && values.choice("sslcertmode", &send).unwrap_or(true);
    let certificate = values.text("sslcert").map(PathBuf::from).or_else(|| by_default("postgresql.crt"));
    let key = values.text("sslkey").map(PathBuf::from).or_else(|| folder.map(|folder| folder.join("postgresql.key")));
    let client = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (Some(_), None) => {
            values.problem("`sslcert` needs `sslkey`");
            None
        }
        (None, _) => {
            if values.given("sslkey").is_some() {
                values.problem("`sslkey` needs `sslcert`");
            }
            None
        }
    };
    let direct = values.choice("sslnegotiation", &[("postgres", false), ("direct", true)]).unwrap_or(false);
    if direct && matches!(mode, Mode::Disable | Mode::Prefer) {
        values.problem("`sslnegotiation=direct` needs `sslmode=require` or stricter");
    }
    // On a socket there is never TLS, so that nothing is read for it.
    let sockets = !hosts.is_empty() && hosts.iter().all(|host| matches!(host.place, Place::Socket(_)));
    tls::Options {
        mode: if sockets { Mode::Disable } else { mode },
        root,
        client: client.filter(|_| sends),
        sni: values.choice("sslsni", &[("1", true), ("0", false)]).unwrap_or(true),
        direct,
        versions: versions(values),
    }
    .with_names_checked(values, hosts)
}

fn mode(values: &mut Values, system: bool) -> Mode {
    if values.given("sslmode").is_some_and(|given| given.text == "allow") {
        values.problem("`sslmode=allow` begins without encryption and is not supported: use prefer or stricter");
        return Mode::VerifyFull;
    }
    let given = values.choice(
        "sslmode",
        &[
            ("disable", Mode::Disable),
            ("prefer", Mode::Prefer),
            ("require", Mode::Require),
            ("verify-ca", Mode::VerifyCa),
            ("verify-full", Mode::VerifyFull),
        ],
    );
    if system && given.is_some_and(|mode| mode != Mode::VerifyFull) {
        // Anybody gets a certificate from one of the system's authorities: for another name.
        values.problem("`sslrootcert=system` needs `sslmode=verify-full`, which it stands for where no mode is given");
    }
    given.unwrap_or(if system { Mode::VerifyFull } else { Mode::Prefer })
}

/// TLS 1.2 and 1.3 are there; what libpq calls the minimum and the maximum chooses among them.
fn versions(values: &mut Values) -> &'static [&'static SupportedProtocolVersion] {
    static BOTH: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    static NEWER: [&SupportedProtocolVersion; 1] = [&TLS13];
    static OLDER: [&SupportedProtocolVersion; 1] = [&TLS12];
    // An empty maximum is libpq's way to say that there is none.
    let highest = values.given("ssl_max_protocol_version").is_some();
    let least = [("TLSv1", 2), ("TLSv1.1", 2), ("TLSv1.2", 2), ("TLSv1.3", 3)];
    let least = values.choice("ssl_min_protocol_version", &least).unwrap_or(2);
    let most =
        if highest { values.choice("ssl_max_protocol_version", &[("TLSv1.2", 2), ("TLSv1.3", 3)]) } else { None };
    match (least, most.unwrap_or(3)) {
        (2, 3) => &BOTH,
        (3, 3) => &NEWER,
        (2, _) => &OLDER,
        _ => {
            values.problem("`ssl_min_protocol_version` is above `ssl_max_protocol_version`");
            &BOTH
        }
    }
}

impl tls::Options {
    /// A name that no certificate can be for cannot be verified.
    fn with_names_checked(self, values: &mut Values, hosts: &[Host]) -> Self {
        let odd = |host: &&Host| matches!(&host.place, Place::Tcp { name, .. } if ServerName::try_from(name.as_str()).is_err());
        if self.mode == Mode::VerifyFull && hosts.iter().any(|host| odd(&host)) {
            values.problem(
                "`host` names a host for which there can be no certificate, and `sslmode=verify-full` wants one",
            );
        }
        self
    }
}

/// Gives each host its password: the DSN's or PGPASSWORD, else the one in the password file. Returns what to warn of.
fn passwords(values: &mut Values, dsn: &Dsn, home: Option<&Path>, hosts: &mut [Host]) -> Option<String> {
    if let Some(password) = values.text("password") {
        hosts.iter_mut().for_each(|host| host.password = Some(password.clone()));
        return None;
    }
    let named = values.text("passfile").map(PathBuf::from);
    let path = named.clone().or_else(|| home.map(|home| home.join(".pgpass")))?;
    match Passfile::read(&path) {
        Ok(file) => {
            for host in hosts {
                let port = host.port.to_string();
                let found = host
                    .names()
                    .iter()
                    .find_map(|name| file.password([name.as_str(), port.as_str(), &dsn.database, &dsn.user]));
                host.password = found.map(str::to_owned);
            }
            None
        }
        Err(Unused::Missing) => {
            named.map(|path| format!("the password file {} is not there, and is not used", path.display()))
        }
        Err(Unused::Unfit(why)) => Some(format!("the password file {} is not used: {why}", path.display())),
    }
}

#[cfg(test)]
mod tests;
