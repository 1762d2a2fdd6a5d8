//! The servers that a DSN names: three lists side by side, of names, addresses and ports.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::values::Values;
use super::{Host, Place};

const DEFAULT_PORT: u16 = 5432;

/// Where servers put their sockets by default: password files call these `localhost`.
const DEFAULT_FOLDERS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Pairs the lists up. What is wrong is added to the problems.
pub(super) fn read(values: &mut Values) -> Vec<Host> {
    let list = |key: &str| -> Vec<String> {
        values.text(key).map(|text| text.split(',').map(|item| item.trim().to_owned()).collect()).unwrap_or_default()
    };
    let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
    let count = names.len().max(addresses.len());
    if count == 0 {
        values.problem("it names no host: add `host=…` (a name, an address, or the folder of a socket) or set PGHOST");
    }
    if !names.is_empty() && !addresses.is_empty() && names.len() != addresses.len() {
        values.problem("`host` and `hostaddr` are lists of different lengths: they go in pairs");
    }
    if ports.len() > 1 && ports.len() != count {
        values
            .problem("`port` names another number of ports than there are hosts: give one port, or one for each host");
    }
    let mut hosts = Vec::new();
    for index in 0..count {
        let item = |list: &[String]| list.get(index).filter(|item| !item.is_empty()).cloned();
        let port = if ports.len() > 1 { item(&ports) } else { ports.first().filter(|port| !port.is_empty()).cloned() };
        match one(item(&names), item(&addresses), port) {
            Ok(host) => hosts.push(host),
            Err(problem) if count == 1 => values.problem(problem),
            Err(problem) => values.problem(format!("host number {}: {problem}", index + 1)),
        }
    }
    hosts
}

fn one(name: Option<String>, address: Option<String>, port: Option<String>) -> Result<Host, &'static str> {
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or("`port` is no number from 1 to 65535")?,
        None => DEFAULT_PORT,
    };
    let address = match address {
        Some(address) => Some(address.parse::<IpAddr>().map_err(|_| "`hostaddr` is no IP address")?),
        None => None,
    };
    let place = match (name, address) {
        (None, None) => return Err("`host` is empty"),
        (None, Some(address)) => Place::Tcp { name: address.to_string(), address: Some(address) },
        (Some(name), None) if name.starts_with('/') => Place::Socket(PathBuf::from(name)),
        (Some(name), None) if name.starts_with('@') => {
            return Err("`host` is an abstract socket, which is not supported: use a folder");
        }
        // In a URL whose password is not encoded, a piece of it may stand here.
        (Some(name), _) if !is_a_name(&name) => {
            return Err(
                "`host` has a character that is in no host's name (`@`, `/` and the like in a password must be \
                        percent-encoded)",
            );
        }
        (Some(name), address) => Place::Tcp { name, address },
    };
    Ok(Host { place, port, password: None })
}

/// A name, or an address, perhaps with its interface: `fe80::1%eth0`.
fn is_a_name(text: &str) -> bool {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<IpAddr>().is_ok() || text.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

impl Host {
    /// Whether nobody can stand between.
    pub(super) fn is_local(&self) -> bool {
        match &self.place {
            Place::Socket(_) => true,
            Place::Tcp { address: Some(address), .. } => address.is_loopback(),
            Place::Tcp { name, .. } => name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        }
    }

    /// What a password file may call it.
    pub(super) fn names(&self) -> Vec<String> {
        match &self.place {
            Place::Tcp { name, .. } => vec![name.clone()],
            Place::Socket(folder) if DEFAULT_FOLDERS.iter().any(|default| folder == Path::new(default)) => {
                vec!["localhost".into(), folder.display().to_string()]
            }
            Place::Socket(folder) => vec![folder.display().to_string()],
        }
    }
}

/// As errors and logs call it.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Socket(folder) => write!(f, "{}/.s.PGSQL.{}", folder.display(), self.port),
            Place::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Place::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
        }
    }
}
