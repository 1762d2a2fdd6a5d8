//! What a DSN says about TLS. Where words contradict each other, the stricter one is meant or the DSN is refused.

use std::path::{Path, PathBuf};

use rustls::SupportedProtocolVersion;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};

use super::values::Values;
use super::{Host, Place};
use crate::tls::{self, Mode, Root};

/// Reads all that is said. `folder` is where libpq looks for files that are not named.
pub(super) fn read(values: &mut Values, folder: Option<&Path>, hosts: &[Host]) -> tls::Options {
    let system = values.given("sslrootcert").is_some_and(|given| given.text == "system");
    let mode = mode(values, system);
    let by_default = |name: &str| folder.map(|folder| folder.join(name)).filter(|path| path.exists());
    let root = if system {
        Some(Root::System)
    } else {
        values.text("sslrootcert").map(PathBuf::from).or_else(|| by_default("root.crt")).map(Root::File)
    };
    let sends = values.choice("sslcertmode", &[("disable", false), ("allow", true)]).unwrap_or(true);
    let client = client(values, folder, by_default("postgresql.crt"));
    let direct = values.choice("sslnegotiation", &[("postgres", false), ("direct", true)]).unwrap_or(false);
    if direct && matches!(mode, Mode::Disable | Mode::Prefer) {
        values.problem("`sslnegotiation=direct` needs `sslmode=require` or stricter");
    }
    // libpq would read it without being told to.
    if by_default("root.crl").is_some() && matches!(root, Some(Root::File(_))) && mode != Mode::Disable {
        values.problem("~/.postgresql/root.crl cannot be honoured: revocation lists are not read; move it away");
    }
    // A name that no certificate can be for cannot be verified.
    let nameless =
        |host: &Host| matches!(&host.place, Place::Tcp { name, .. } if ServerName::try_from(name.as_str()).is_err());
    if mode == Mode::VerifyFull && hosts.iter().any(nameless) {
        values
            .problem("`host` names a host for which there can be no certificate, and `sslmode=verify-full` wants one");
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
}

/// The files of the client's certificate and key.
fn client(values: &mut Values, folder: Option<&Path>, default: Option<PathBuf>) -> Option<(PathBuf, PathBuf)> {
    let certificate = values.text("sslcert").map(PathBuf::from).or(default);
    let key = values.text("sslkey").map(PathBuf::from).or_else(|| folder.map(|folder| folder.join("postgresql.key")));
    match (certificate, key) {
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
    }
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
