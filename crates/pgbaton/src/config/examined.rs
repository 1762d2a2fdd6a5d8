//! A configuration as `pgbaton doctor` looks at it: what its relays are made of, and what in it is valid and still not wise.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use super::sink::SinkFields;
use super::{Config, file};
use crate::connection::Database;
use crate::control::doctor::Finding;
use crate::dsn;
use crate::error::Error;
use crate::relay::RelaySpec;

/// The check that all of it belongs to.
const CHECK: &str = "configuration";
/// Below this a machine that is busy for a moment loses its lanes.
const SHORT_TTL: Duration = Duration::from_secs(2);
/// Above this the lanes of a replica that died stand still for long.
const LONG_TTL: Duration = Duration::from_secs(60);

/// What is looked at of a configuration.
pub(crate) struct Examined {
    pub(crate) database: Database,
    pub(crate) ttl: Duration,
    pub(crate) relays: Vec<ExaminedRelay>,
}

/// One relay of it.
pub(crate) struct ExaminedRelay {
    pub(crate) spec: RelaySpec,
    pub(crate) goes_to: Destination,
}

/// Where its messages go.
pub(crate) enum Destination {
    /// The replica's own standard output, which nobody else can look at.
    Stdout,
    /// This file, which is not opened as the sink opens it.
    File(PathBuf),
    /// What is asked by its probe.
    Asked,
}

impl Config {
    /// What is looked at of it.
    pub(crate) fn examined(self) -> Result<Examined, Error> {
        let destination = |sink: &Option<SinkFields>| match sink {
            Some(SinkFields::Stdout) => Destination::Stdout,
            Some(SinkFields::File(path)) => Destination::File(path.clone()),
            _ => Destination::Asked,
        };
        let destinations: Vec<Destination> = self.relays.iter().map(|relay| destination(&relay.sink)).collect();
        let replica = self.into_replica()?;
        let relays = replica.relays.into_iter().zip(destinations);
        let relays = relays.map(|(spec, goes_to)| ExaminedRelay { spec, goes_to }).collect();
        Ok(Examined { database: replica.database, ttl: replica.ttl, relays })
    }

    /// What is valid and still not wise. `path` is the file it was read from.
    pub(crate) fn smells(&self, path: &Path) -> Vec<Finding> {
        let mut found = Vec::new();
        self.of_the_process(&mut found);
        self.of_relays(&mut found);
        self.of_secrets(path, &mut found);
        if found.is_empty() {
            found.push(Finding::ok(CHECK, format!("{} is valid", path.display())));
        }
        found
    }

    fn of_the_process(&self, found: &mut Vec<Finding>) {
        let ttl = self.replica.ttl;
        if ttl < SHORT_TTL {
            let what = format!(
                "lease.ttl is {ttl:?}: a machine or a database that is slow for a moment costs a replica its lanes"
            );
            found.push(Finding::warning(CHECK, what, "Raise it on all replicas: 5s is the default"));
        } else if ttl > LONG_TTL {
            let what = format!("lease.ttl is {ttl:?}: for so long the lanes of a replica that died stand still");
            found.push(Finding::note(CHECK, what, "Lower it on all replicas, unless that is meant: 5s is the default"));
        }
        for warning in self.replica.database.iter().flat_map(Database::warnings) {
            found.push(Finding::warning(CHECK, format!("database.dsn: {warning}"), "As it says"));
        }
        if let Some(listen) = self.http.listen.filter(|listen| !listen.ip().is_loopback()) {
            let what = format!(
                "http.listen is {listen}: whoever reaches that address reads metrics and health without a password"
            );
            found.push(Finding::note(CHECK, what, "See that only your monitoring reaches it, or listen at 127.0.0.1"));
        }
        if let Some(host) = self.traces.endpoint.as_deref().and_then(host_of).filter(|host| !is_here(host)) {
            let what = format!("traces.endpoint: topics and keys go to {host} without TLS");
            found.push(Finding::note(
                CHECK,
                what,
                "Run a collector on this machine, and have that send them on with TLS",
            ));
        }
    }

    fn of_relays(&self, found: &mut Vec<Finding>) {
        for relay in &self.relays {
            let Some(name) = &relay.name else { continue };
            if relay.lanes == 1 {
                let what =
                    format!("relay {name} has one lane: one replica delivers all of it, one batch after the other");
                found.push(Finding::note(
                    CHECK,
                    what,
                    format!("`pgbaton lanes split {name} --yes` doubles them, if that is not meant"),
                ));
            }
            if relay.limits.in_flight < relay.limits.batch_messages {
                let what = format!(
                    "relay {name}: in_flight ({}) is below batch_messages ({}), which therefore never fill",
                    relay.limits.in_flight, relay.limits.batch_messages
                );
                found.push(Finding::note(CHECK, what, "Raise in_flight, or lower batch_messages"));
            }
            if let Some(sink) = &relay.sink {
                of_sink(name.as_str(), sink, found);
            }
        }
    }

    /// Secrets that others on this machine may read.
    fn of_secrets(&self, path: &Path, found: &mut Vec<Finding>) {
        let mut files = Vec::new();
        named_files(&self.given.keys, "", &mut files);
        // A secret of the environment is none of the file's.
        let table = file::read(path).ok().and_then(|text| text.parse::<Table>().ok());
        if table.is_some_and(|table| holds_secret(&table, "")) {
            files.push(path.to_owned());
        }
        for path in files.iter().filter(|path| is_for_everybody(path)) {
            let path = path.display();
            let what = format!("{path} holds a secret, and every account of this machine may read it");
            found.push(Finding::warning(
                CHECK,
                what,
                format!("chmod o= {path}, and see that its group is the replica's"),
            ));
        }
    }
}

fn of_sink(relay: &str, sink: &SinkFields, found: &mut Vec<Finding>) {
    match sink {
        #[cfg(feature = "http")]
        SinkFields::Http(sink) => {
            if let Some(host) = sink.plain_host() {
                let what = format!(
                    "relay {relay}: messages go to {host} without TLS, and whoever is between can read and change them"
                );
                found.push(Finding::warning(CHECK, what, "Use an https URL"));
            }
            if !sink.signs() {
                let what = format!(
                    "relay {relay}: webhooks are not signed, so that a receiver cannot tell them from somebody else's"
                );
                found.push(Finding::note(
                    CHECK,
                    what,
                    "Set sink.secret, and have the receiver verify it; or see to it by a header",
                ));
            }
        }
        #[cfg(feature = "postgres")]
        SinkFields::Postgres(sink) => {
            for warning in sink.warnings() {
                found.push(Finding::warning(CHECK, format!("relay {relay}: sink.dsn: {warning}"), "As it says"));
            }
        }
        SinkFields::Discard => {
            let what =
                format!("relay {relay}: the sink is discard: its messages are thrown away and count as delivered");
            found.push(Finding::warning(CHECK, what, "Use it for measuring alone"));
        }
        SinkFields::Stdout | SinkFields::File(_) => {}
    }
}

/// The host of a URL, without what may be secret in it.
fn host_of(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next()?;
    Some(host.strip_prefix('[').map_or_else(|| host.split(':').next(), |v6| v6.split(']').next()).unwrap_or(host))
}

fn is_here(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether what stands under a key is a secret: in the section of headers all that does, of a DSN its password.
fn is_secret(section: &str, key: &str, value: &str) -> bool {
    match key {
        "dsn" => dsn::holds_password(value),
        "secret" => true,
        _ => section == "headers",
    }
}

fn holds_secret(table: &Table, section: &str) -> bool {
    table.iter().any(|(key, value)| match value {
        Value::String(text) => is_secret(section, key, text),
        Value::Table(table) => holds_secret(table, key),
        _ => false,
    })
}

/// Files that hold one secret each.
fn named_files(table: &Table, section: &str, files: &mut Vec<PathBuf>) {
    for (key, value) in table {
        match (value, key.strip_suffix("_file")) {
            (Value::Table(table), _) => named_files(table, key, files),
            (Value::String(path), Some(key)) => {
                let path = Path::new(path);
                if file::read_value(path).is_ok_and(|value| is_secret(section, key, &value)) {
                    files.push(path.to_owned());
                }
            }
            _ => {}
        }
    }
}

fn is_for_everybody(path: &Path) -> bool {
    const OTHERS_READ: u32 = 0o004;
    std::fs::metadata(path).is_ok_and(|there| there.permissions().mode() & OTHERS_READ != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::doctor::Level;

    fn smells(text: &str) -> Vec<Finding> {
        Config::parse(text, []).unwrap().smells(Path::new("/nowhere/pgbaton.toml"))
    }

    fn told(text: &str) -> Vec<(Level, String)> {
        smells(text).into_iter().map(|finding| (finding.level, finding.what)).collect()
    }

    const GOOD: &str = "[database]\ndsn = \"host=/tmp user=u\"\n[relays.orders]\nsink = { type = \"stdout\" }\n";

    #[test]
    fn a_plain_configuration_smells_of_nothing() {
        assert_eq!(told(GOOD), [(Level::Ok, "/nowhere/pgbaton.toml is valid".to_owned())]);
    }

    #[test]
    fn what_is_not_wise_is_told() {
        for (text, level, word) in [
            ("[lease]\nttl = \"1s\"\n", Level::Warning, "lease.ttl"),
            ("[lease]\nttl = \"2m\"\n", Level::Note, "lease.ttl"),
            ("[http]\nlisten = \"0.0.0.0:9478\"\n", Level::Note, "http.listen"),
            ("[traces]\nendpoint = \"http://user:pw@collector:4318/v1\"\n", Level::Note, "go to collector without"),
            ("[relays.one]\nlanes = 1\nsink = { type = \"stdout\" }\n", Level::Note, "relay one has one lane"),
            ("[relays.one]\nin_flight = 10\nsink = { type = \"stdout\" }\n", Level::Note, "in_flight (10)"),
            ("[relays.one]\nsink = { type = \"discard\" }\n", Level::Warning, "thrown away"),
            (
                "[relays.one]\nsink = { type = \"http\", url = \"http://shop.example/x\" }\n",
                Level::Warning,
                "shop.example",
            ),
            ("[relays.one]\nsink = { type = \"http\", url = \"https://shop.example/x\" }\n", Level::Note, "not signed"),
        ] {
            let told = told(&format!("{GOOD}{text}"));
            assert!(told.iter().any(|(found, what)| *found == level && what.contains(word)), "{text}: {told:?}");
            assert!(!told.iter().any(|(_, what)| what.contains("pw")), "{told:?}");
        }
        let far = GOOD.replace("host=/tmp", "host=db.example password=pw");
        assert!(told(&far).iter().any(|(level, what)| *level == Level::Warning && what.contains("not verified")));
    }

    #[test]
    fn loopback_is_here() {
        let here = format!("{GOOD}[relays.one]\nsink = {{ type = \"http\", url = \"http://127.0.0.1:1/x\" }}\n");
        assert!(!told(&here).iter().any(|(_, what)| what.contains("without TLS")), "{:?}", told(&here));
        assert_eq!(host_of("http://[::1]:4318/v1"), Some("::1"));
    }

    #[test]
    fn secrets_are_found_where_they_stand() {
        let holds = |text: &str| holds_secret(&text.parse().unwrap(), "");
        for text in [
            "[database]\ndsn = \"host=a password=pw\"",
            "[database]\ndsn = \"postgresql://u:pw@a/b\"",
            "[relays.a.sink]\nsecret = \"whsec_x\"",
            "[relays.a.sink]\nheaders = { authorization = \"Bearer x\" }",
        ] {
            assert!(holds(text), "{text}");
        }
        assert!(!holds("name = \"r1\"\n[database]\ndsn = \"host=a user=u\""));
        assert!(!holds("[database]\ndsn_file = \"/run/dsn\""), "that file holds it");
    }
}
