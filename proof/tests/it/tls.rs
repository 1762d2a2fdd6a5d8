//! Verified connections and credentials, on a server of its own with certificates of its own authority.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use pgbaton::{Database, Error, control};
use proof::fixture::{Fixture, finish, toml_text};
use proof::on_each_version;
use proof::process::{POLL, Process};
use proof::servers::{Binaries, Cluster, Options, shared};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use tokio::time::Instant;

const SOON: Duration = Duration::from_secs(60);

on_each_version!(
    servers_are_verified_as_the_mode_says,
    clients_show_who_they_are,
    passwords_come_from_the_dsn_the_environment_or_a_file,
    what_does_not_mend_itself_ends_the_replica,
);

/// A server with TLS, and the files of its clients.
struct Secured {
    cluster: Cluster,
    outbox: Fixture,
}

impl Secured {
    async fn start(major: u32) -> Secured {
        let options = Options { settings: vec![("log_connections".to_owned(), "on".to_owned())], ..Options::default() };
        let cluster = Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap();
        let outbox = Fixture::on(&cluster).await.unwrap();
        let admin = outbox.admin().await.unwrap();
        let roles = "create role scram login password 'open sesame' in role pgbaton_relay;
                     create role naked login in role pgbaton_relay;
                     create role certified login in role pgbaton_relay";
        admin.batch_execute(roles).await.unwrap();
        let secured = Secured { cluster, outbox };
        secured.write_certificates();
        let hba = "local all all trust\n\
                   host all postgres 127.0.0.1/32 trust\n\
                   hostssl all scram 127.0.0.1/32 scram-sha-256\n\
                   hostnossl all naked 127.0.0.1/32 trust\n\
                   hostssl all certified 127.0.0.1/32 cert\n";
        secured.give("pg_hba.conf", hba);
        for setting in ["ssl = on", "ssl_ca_file = 'ca.crt'"] {
            admin.batch_execute(&format!("alter system set {setting}")).await.unwrap();
        }
        admin.batch_execute("select pg_reload_conf()").await.unwrap();
        // The server takes up new settings when it comes to it.
        let deadline = Instant::now() + SOON;
        while secured.status("user=scram password='open sesame' sslmode=require").await.is_err() {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(secured.cluster.log()).unwrap());
            tokio::time::sleep(POLL).await;
        }
        secured
    }

    fn write_certificates(&self) {
        let (ca, stranger) = (authority("pgbaton test"), authority("a stranger"));
        let (server, key) = signed(&ca, "server", &["db.example", "127.0.0.1"]);
        self.give("server.crt", &server);
        self.give("server.key", &key);
        self.give("ca.crt", &ca.pem());
        self.write("ca.crt", &ca.pem());
        self.write("stranger.crt", &stranger.pem());
        for (name, issuer) in [("client", &ca), ("impostor", &stranger)] {
            let (certificate, key) = signed(issuer, "certified", &[]);
            self.write(&format!("{name}.crt"), &certificate);
            self.write(&format!("{name}.key"), &key);
        }
        self.write("shared.key", &std::fs::read_to_string(self.path("client.key")).unwrap());
        std::fs::set_permissions(self.path("shared.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// A file of the server's, for its account alone.
    fn give(&self, name: &str, text: &str) {
        let folder = self.cluster.data_directory();
        let owner = std::fs::metadata(&folder).unwrap();
        let path = folder.join(name);
        private(&path, text);
        chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }

    fn write(&self, name: &str, text: &str) {
        private(&self.path(name), text);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.outbox.folder().join(name)
    }

    /// A DSN of this server; names of files in angle brackets are those in the fixture's folder.
    fn dsn(&self, rest: &str) -> String {
        let mut rest = rest.to_owned();
        while let Some((before, after)) = rest.split_once('<') {
            let (name, after) = after.split_once('>').unwrap();
            rest = format!("{before}{}{after}", self.path(name).display());
        }
        let host = if rest.contains("host=") { "" } else { "host=db.example" };
        format!("{host} hostaddr=127.0.0.1 port={} dbname={} {rest}", self.cluster.port(), self.outbox.database)
    }

    async fn status(&self, rest: &str) -> Result<(), Error> {
        let database = Database::new(&self.dsn(rest), SOON)?;
        control::status(&database).await.map(drop)
    }

    /// `pgbaton status` in the fixture's folder with these variables.
    async fn run_status(&self, rest: &str, variables: &[(&str, &str)]) -> Output {
        let mut command = self.outbox.command().unwrap();
        command.args(["status", "--dsn", &self.dsn(rest)]).envs(variables.iter().copied());
        finish(&mut command).await.unwrap()
    }

    /// Each DSN with the code of its error, or "", and a word of it.
    async fn expect(&self, cases: &[(&str, &str, &str)]) {
        for (rest, code, word) in cases {
            match self.status(rest).await {
                Ok(()) => assert_eq!(*code, "", "{rest} is accepted"),
                Err(error) => {
                    assert_eq!(error.code(), *code, "{rest}: {error}");
                    assert!(error.to_string().contains(word), "{rest}: {word} is missing in {error}");
                    assert!(!error.to_string().contains("sesame"), "{error}");
                }
            }
        }
    }
}

fn private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key in PEM form.
fn signed(ca: &CertifiedIssuer<'static, KeyPair>, name: &str, hosts: &[&str]) -> (String, String) {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    (params.signed_by(&key, ca).unwrap().pem(), key.serialize_pem())
}

async fn servers_are_verified_as_the_mode_says(major: u32) {
    let server = Secured::start(major).await;
    let scram = |rest: &str| format!("user=scram password='open sesame' {rest}");
    for (rest, code, word) in [
        ("sslmode=verify-full sslrootcert=<ca.crt>", "", ""),
        ("host=127.0.0.1 sslmode=verify-full sslrootcert=<ca.crt>", "", ""),
        ("sslmode=verify-full sslrootcert=<ca.crt> channel_binding=require", "", ""),
        ("sslmode=verify-full sslrootcert=<ca.crt> sslsni=0", "", ""),
        ("sslmode=verify-full sslrootcert=<stranger.crt>", "refused", "UnknownIssuer"),
        ("host=other.example sslmode=verify-full sslrootcert=<ca.crt>", "refused", "other.example"),
        ("host=other.example sslmode=verify-ca sslrootcert=<ca.crt>", "", ""),
        ("sslmode=verify-ca sslrootcert=<stranger.crt>", "refused", "UnknownIssuer"),
        ("host=other.example sslmode=require sslrootcert=<ca.crt>", "", ""),
        ("sslmode=require sslrootcert=<stranger.crt>", "refused", "UnknownIssuer"),
        ("sslmode=prefer sslrootcert=<stranger.crt>", "refused", "UnknownIssuer"),
        ("sslmode=require", "", ""),
        ("sslmode=require channel_binding=require", "", ""),
        ("host=not_a..name sslmode=require", "", ""),
        ("sslmode=prefer", "", ""),
        ("", "", ""),
        ("sslmode=disable", "refused", "28000"),
        ("sslmode=verify-full sslrootcert=<missing.crt>", "config.invalid", "missing.crt"),
        ("sslmode=verify-full sslrootcert=<client.key>", "config.invalid", "client.key"),
    ] {
        server.expect(&[(&scram(rest), code, word)]).await;
    }
    for (version, application) in [("TLSv1.2", "older"), ("TLSv1.3", "newer")] {
        let bound = if version == "TLSv1.2" { "max" } else { "min" };
        let rest = format!("sslmode=require ssl_{bound}_protocol_version={version} application_name={application}");
        server.expect(&[(&scram(&rest), "", "")]).await;
        let log = std::fs::read_to_string(server.cluster.log()).unwrap();
        let line = log.lines().find(|line| line.contains(&format!("application_name={application}"))).unwrap();
        assert!(line.contains(&format!("protocol={version}")), "{line}");
    }
    let direct = server.status(&scram("sslmode=verify-full sslrootcert=<ca.crt> sslnegotiation=direct")).await;
    assert_eq!(direct.is_ok(), major >= 17, "{direct:?}");
    // The same authority, where the system keeps them.
    let ca = server.path("ca.crt");
    let output = server.run_status(&scram("sslrootcert=system"), &[("SSL_CERT_FILE", ca.to_str().unwrap())]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A server without TLS.
    let plain = Fixture::new(major).await.unwrap();
    let status =
        async |rest: &str| control::status(&Database::new(&format!("{} {rest}", plain.relay_dsn()), SOON)?).await;
    let error = status("sslmode=require").await.unwrap_err();
    assert!(error.code() == "refused" && error.to_string().contains("does not support TLS"), "{error}");
    status("sslmode=prefer").await.unwrap();
    let error = status("channel_binding=require").await.unwrap_err();
    assert!(error.code() == "refused" && error.to_string().contains("channel binding"), "{error}");
    let socket = format!("host={} port={}", server.outbox.folder().display(), server.cluster.port());
    assert!(status(&socket).await.is_err_and(|error| error.code() == "database.unavailable"));
}

async fn clients_show_who_they_are(major: u32) {
    let server = Secured::start(major).await;
    let verified = "sslmode=verify-full sslrootcert=<ca.crt>";
    for (rest, code, word) in [
        ("user=certified sslcert=<client.crt> sslkey=<client.key>", "", ""),
        ("user=certified sslcert=<client.crt> sslkey=<client.key> sslcertmode=disable", "refused", "certificate"),
        ("user=certified", "refused", "certificate"),
        ("user=certified sslcert=<impostor.crt> sslkey=<impostor.key>", "refused", "UnknownCA"),
        ("user=certified sslcert=<client.crt> sslkey=<impostor.key>", "config.invalid", "sslkey"),
        ("user=certified sslcert=<client.crt> sslkey=<shared.key>", "config.invalid", "0600"),
        ("user=certified sslcert=<client.crt> sslkey=<ca.crt>", "config.invalid", "private key"),
        ("user=certified sslcert=<client.crt> sslkey=<missing.key>", "config.invalid", "missing.key"),
        // Somebody else's certificate does not make this one's password right.
        ("user=scram password=wrong sslcert=<client.crt> sslkey=<client.key>", "refused", "28P01"),
        ("user=scram", "refused", "PGPASSWORD"),
        ("user=naked", "refused", "28000"),
    ] {
        server.expect(&[(&format!("{verified} {rest}"), code, word)]).await;
    }
    // Only without TLS, which `prefer` then tries.
    server.expect(&[("user=naked sslmode=prefer", "", ""), ("user=naked sslmode=disable", "", "")]).await;
    // Where libpq looks for them by default.
    let folder = server.path(".postgresql");
    std::fs::create_dir(&folder).unwrap();
    for (from, to) in [("ca.crt", "root.crt"), ("client.crt", "postgresql.crt"), ("client.key", "postgresql.key")] {
        private(&folder.join(to), &std::fs::read_to_string(server.path(from)).unwrap());
    }
    let home = server.outbox.folder().to_str().unwrap().to_owned();
    let output = server.run_status("user=certified sslmode=verify-full", &[("HOME", &home)]).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

async fn passwords_come_from_the_dsn_the_environment_or_a_file(major: u32) {
    let server = Secured::start(major).await;
    let home = server.outbox.folder().to_str().unwrap().to_owned();
    let pass = server.path("pass").to_str().unwrap().to_owned();
    let line = format!("db.example:{}:*:scram:open sesame\n", server.cluster.port());
    server.write("pass", &format!("*:1:*:*:wrong\n{line}"));
    let user = "user=scram sslmode=require";
    let named = format!("{user} passfile='{pass}'");
    for (rest, variables, accepted) in [
        (user, &[][..], false),
        (user, &[("PGPASSWORD", "open sesame")], true),
        (user, &[("PGPASSWORD", "wrong"), ("PGPASSFILE", &pass)], false),
        (user, &[("PGPASSFILE", &pass)], true),
        (&named, &[("PGPASSFILE", "/nowhere")], true),
        ("user=certified sslmode=require", &[("PGPASSFILE", &pass)], false),
        ("sslmode=require", &[("PGUSER", "scram"), ("PGPASSFILE", &pass)], true),
        ("", &[("PGUSER", "scram"), ("PGPASSWORD", "open sesame"), ("PGSSLMODE", "require")], true),
        ("", &[("PGUSER", "scram"), ("PGPASSWORD", "open sesame"), ("PGSSLMODE", "disable")], false),
    ] {
        let output = server.run_status(rest, variables).await;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(if accepted { 0 } else { 1 }), "{rest} {variables:?}: {error}");
        assert!(!error.contains("sesame") && (accepted || error.contains("[refused]")), "{error}");
    }
    // The default file, and one that others may read.
    for (mode, accepted) in [(0o600, true), (0o644, false)] {
        server.write(".pgpass", &line);
        std::fs::set_permissions(server.path(".pgpass"), std::fs::Permissions::from_mode(mode)).unwrap();
        let output = server.run_status(user, &[("HOME", &home)]).await;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), accepted, "{mode:o}: {error}");
        // As an error's hint, and as a warning.
        assert!(accepted || (error.contains("PGPASSWORD") && error.contains("0600")), "{error}");
    }
    // Nothing but the environment.
    let port = server.cluster.port().to_string();
    let mut command = server.outbox.command().unwrap();
    command.args(["status", "--dsn", ""]).envs([
        ("PGHOST", "127.0.0.1"),
        ("PGPORT", &port),
        ("PGDATABASE", &server.outbox.database),
        ("PGUSER", "scram"),
        ("PGPASSWORD", "open sesame"),
    ]);
    let output = finish(&mut command).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A replica that waits for a better certificate or password would wait for ever.
async fn what_does_not_mend_itself_ends_the_replica(major: u32) {
    let server = Secured::start(major).await;
    for (name, rest, words) in [
        (
            "stranger",
            "password='open sesame' sslmode=verify-full sslrootcert=<stranger.crt>",
            ["UnknownIssuer", "sslrootcert"],
        ),
        ("missing", "sslmode=require", ["PGPASSWORD", ".pgpass"]),
    ] {
        let text = format!(
            "[database]\ndsn = {}\n[relays.orders]\nsink = {{ type = \"discard\" }}\n",
            toml_text(&server.dsn(&format!("user=scram {rest}")))
        );
        let mut command = server.outbox.command().unwrap();
        command.arg("run").arg("--config").arg(server.outbox.write(&format!("{name}.toml"), &text).unwrap());
        let mut replica = Process::start(name, server.outbox.folder(), command).unwrap();
        let status = replica.wait(SOON).await.unwrap();
        let log = std::fs::read_to_string(replica.stderr()).unwrap();
        assert_eq!(status.code(), Some(1), "{log}");
        for word in words {
            assert!(log.contains(word), "{word} is missing in {log}");
        }
    }
    // Nobody has to look at a server that is down.
    let gone = format!("host=127.0.0.1 port=1 user=u dbname={}", shared(major).await.unwrap().port());
    let error = control::status(&Database::new(&gone, SOON).unwrap()).await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("127.0.0.1:1"), "{error}");
}
