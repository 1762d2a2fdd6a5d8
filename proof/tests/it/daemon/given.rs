//! Where the configuration comes from: the file, the environment over it, and files that hold one value.

use proof::fixture::{Fixture, finish, toml_text};
use proof::process::Process;

use super::SOON;

const DISCARD: &str = "[relays.orders]\nsink = { type = \"discard\" }\n";

/// The password's file and the environment together make a configuration that the file alone is not.
#[tokio::test]
async fn a_replica_runs_on_a_secret_and_the_environment() {
    let outbox = Fixture::new(15).await.unwrap();
    let secret = outbox.write("dsn", &format!("{}\n", outbox.relay_dsn())).unwrap();
    let text = "name = \"r1\"\n[database]\ndsn = \"host=127.0.0.1 port=1\"\n[log]\nlevel = \"error\"\n[http]\nlisten = \"off\"\n";
    let mut command = outbox.command().unwrap();
    command
        .args(["run", "--config"])
        .arg(outbox.write("r1.toml", text).unwrap())
        .env("PGBATON__DATABASE__DSN_FILE", &secret)
        .env("PGBATON__LOG__LEVEL", "pgbaton=debug")
        .env("PGBATON__NAME", "42")
        .env("PGBATON__RELAYS__ORDERS__LANES", "4")
        .env("PGBATON__RELAYS__ORDERS__SINK", "{ type = \"discard\" }");
    let mut replica = Process::start("r1", outbox.folder(), command).unwrap();
    replica.wait_for_lines("claimed", 4, SOON).await.unwrap();
    let row = outbox.admin().await.unwrap().query_one("select name from pgbaton.replica", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "42");
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused() {
    let outbox = Fixture::new(15).await.unwrap();
    let secret = outbox.write("dsn", "host=hunter2\n").unwrap();
    let secret = secret.to_str().unwrap();
    let both = format!("[database]\ndsn = \"host=x\"\ndsn_file = {}\n{DISCARD}", toml_text(secret));
    let by_file = |path: &str| format!("[database]\ndsn_file = {}\n{DISCARD}", toml_text(path));
    let good = format!("[database]\ndsn = \"host=x\"\n{DISCARD}");
    for (text, variable, words) in [
        (both, None, &["database.dsn", "given twice", "dsn_file"][..]),
        (by_file("/dev/zero"), None, &["database.dsn_file", "/dev/zero", "plain file"]),
        (by_file("missing"), None, &["database.dsn_file", "missing"]),
        (good.clone(), Some(("PGBATON__DATABASE__DNS", "x")), &["database.dns", "unknown", "PGBATON__DATABASE__DNS"]),
        (good.clone(), Some(("PGBATON__RELAYS__ORDERS__LANES", "3")), &["lanes", "PGBATON__RELAYS__ORDERS__LANES"]),
        (good, Some(("PGBATON__HTTP__LISTEN", "everywhere")), &["http.listen", "PGBATON__HTTP__LISTEN"]),
    ] {
        let path = outbox.write("bad.toml", &text).unwrap();
        let mut command = outbox.command().unwrap();
        command.args(["check-config", "--config"]).arg(path).envs(variable);
        let output = finish(&mut command).await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{error}");
        for word in words {
            assert!(error.contains(word), "{word} is missing in {error}");
        }
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// Devices never end, and a pipe may never begin.
#[tokio::test]
async fn a_configuration_is_a_regular_file() {
    let outbox = Fixture::new(15).await.unwrap();
    for path in ["/dev/zero", "/dev/stdin", "/"] {
        let output = outbox.pgbaton(&["check-config", "--config", path]).await.unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains("plain file"), "{path}: {error}");
    }
}
