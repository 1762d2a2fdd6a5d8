//! A DSN as libpq takes it, read and validated: what it says, then what the environment fills in, then `.pgpass`.
//!
//! A key that libpq knows is honoured, or left aside where that weakens nothing, or refused by its name; `keys` has the
//! table. Problems name keys and variables and are reported together; they never quote a value, which may be a secret.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use tokio_postgres::config::ChannelBinding;

use crate::error::{Error, Kind};
use crate::tls;

mod hosts;
mod keys;
mod passfile;
mod secure;
mod text;
mod values;

use passfile::{Passfile, Unused};
use values::Values;

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
#[derive(Clone)]
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

/// Whether a text that may be a DSN holds a password.
pub(crate) fn holds_password(text: &str) -> bool {
    let secret = |pair: &text::Pair| matches!(pair.key.as_str(), "password" | "sslpassword");
    text::pairs(text).is_ok_and(|pairs| pairs.iter().any(secret))
}

impl Dsn {
    /// Reads and validates a DSN.
    ///
    /// # Errors
    /// All problems at once, each with its key or variable.
    pub(crate) fn read(text: &str, environment: &Environment<'_>) -> Result<Self, Error> {
        let mut values = Values::default();
        let unreadable = |problem| Error::new(Kind::Config, format!("the DSN cannot be read: {problem}"));
        values.take(text::pairs(text).map_err(unreadable)?);
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
        let tls = secure::read(&mut values, folder.as_deref(), &hosts);
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
