//! Every key that libpq knows, with its environment variable and what becomes of it here.
//!
//! `docs/configuration.md` repeats this table for whoever writes a DSN; a test compares the two.

/// What becomes of a key.
pub(super) enum Use {
    /// It does what it does in libpq.
    Taken,
    /// It is read and left aside, which weakens nothing.
    LeftAside,
    /// It is refused unless its value is one of these, which ask for nothing; and what to do instead.
    Only(&'static [&'static str], &'static str),
}

/// One key.
pub(super) struct Key {
    pub(super) name: &'static str,
    /// The environment variable that fills it.
    pub(super) variable: Option<&'static str>,
    pub(super) usage: Use,
}

const fn taken(name: &'static str, variable: &'static str) -> Key {
    Key { name, variable: Some(variable), usage: Use::Taken }
}

const fn left_aside(name: &'static str, variable: Option<&'static str>) -> Key {
    Key { name, variable, usage: Use::LeftAside }
}

const fn only(
    name: &'static str,
    variable: Option<&'static str>,
    values: &'static [&'static str],
    instead: &'static str,
) -> Key {
    Key { name, variable, usage: Use::Only(values, instead) }
}

const NO_CRL: &str = "revocation lists are not read; leave the certificate's authority out of `sslrootcert` instead";
const NO_OAUTH: &str = "OAuth is not supported; use a password or a client certificate";
const NO_SCRAM_KEY: &str = "SCRAM keys are not supported; use a password or a client certificate";

/// In the order of libpq's documentation.
pub(super) const KEYS: &[Key] = &[
    taken("host", "PGHOST"),
    taken("hostaddr", "PGHOSTADDR"),
    taken("port", "PGPORT"),
    taken("dbname", "PGDATABASE"),
    taken("user", "PGUSER"),
    taken("password", "PGPASSWORD"),
    taken("passfile", "PGPASSFILE"),
    only(
        "require_auth",
        Some("PGREQUIREAUTH"),
        &[],
        "ways to authenticate cannot be chosen; use `channel_binding=require` or a client certificate",
    ),
    taken("channel_binding", "PGCHANNELBINDING"),
    left_aside("connect_timeout", Some("PGCONNECT_TIMEOUT")),
    only(
        "client_encoding",
        Some("PGCLIENTENCODING"),
        &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
        "the encoding is always UTF8; leave it out",
    ),
    taken("options", "PGOPTIONS"),
    taken("application_name", "PGAPPNAME"),
    Key { name: "fallback_application_name", variable: None, usage: Use::Taken },
    left_aside("keepalives", None),
    left_aside("keepalives_idle", None),
    left_aside("keepalives_interval", None),
    left_aside("keepalives_count", None),
    left_aside("tcp_user_timeout", None),
    only("replication", None, &["false", "off", "no", "0"], "this is no replication client; leave it out"),
    only(
        "gssencmode",
        Some("PGGSSENCMODE"),
        &["disable", "prefer"],
        "GSSAPI encryption is not supported; use `sslmode=verify-full`",
    ),
    taken("sslmode", "PGSSLMODE"),
    taken("sslnegotiation", "PGSSLNEGOTIATION"),
    left_aside("sslcompression", Some("PGSSLCOMPRESSION")),
    taken("sslcert", "PGSSLCERT"),
    taken("sslkey", "PGSSLKEY"),
    only("sslkeylogfile", None, &[], "keys of sessions are not written to files; leave it out"),
    only("sslpassword", None, &[], "encrypted keys are not supported; give `sslkey` a key without a password"),
    taken("sslcertmode", "PGSSLCERTMODE"),
    taken("sslrootcert", "PGSSLROOTCERT"),
    only("sslcrl", Some("PGSSLCRL"), &[], NO_CRL),
    only("sslcrldir", Some("PGSSLCRLDIR"), &[], NO_CRL),
    taken("sslsni", "PGSSLSNI"),
    only(
        "requirepeer",
        Some("PGREQUIREPEER"),
        &[],
        "the owner of a socket is not looked at; use a folder that only the server may write to",
    ),
    taken("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION"),
    taken("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION"),
    only("min_protocol_version", Some("PGMINPROTOCOLVERSION"), &["3.0"], "protocol 3.0 is spoken; leave it out"),
    left_aside("max_protocol_version", Some("PGMAXPROTOCOLVERSION")),
    left_aside("krbsrvname", Some("PGKRBSRVNAME")),
    left_aside("gsslib", Some("PGGSSLIB")),
    left_aside("gssdelegation", Some("PGGSSDELEGATION")),
    only("scram_client_key", None, &[], NO_SCRAM_KEY),
    only("scram_server_key", None, &[], NO_SCRAM_KEY),
    only("service", Some("PGSERVICE"), &[], "service files are not read; write what the service says into the DSN"),
    left_aside("servicefile", Some("PGSERVICEFILE")),
    taken("target_session_attrs", "PGTARGETSESSIONATTRS"),
    taken("load_balance_hosts", "PGLOADBALANCEHOSTS"),
    only("oauth_issuer", None, &[], NO_OAUTH),
    only("oauth_client_id", None, &[], NO_OAUTH),
    only("oauth_client_secret", None, &[], NO_OAUTH),
    only("oauth_scope", None, &[], NO_OAUTH),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_list_every_key_and_variable() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let text = std::fs::read_to_string(path).unwrap();
        for key in KEYS {
            for word in std::iter::once(key.name).chain(key.variable) {
                assert!(text.contains(&format!("`{word}`")), "`{word}` is missing in docs/configuration.md");
            }
        }
    }
}
