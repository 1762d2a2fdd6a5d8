//! Every statement is understood by a real server as the relay's role, and says in its header what it is for.

use std::path::{Path, PathBuf};

use proof::fixture::Fixture;
use proof::on_each_version;
use tokio_postgres::Client;

on_each_version!(every_statement_is_the_relays_to_run, every_inbox_statement_is_the_relays_to_run);

async fn every_statement_is_the_relays_to_run(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let (relay, producer) = (outbox.relay().await.unwrap(), outbox.producer().await.unwrap());
    let owner = outbox.migrator().await.unwrap();
    for verb in pgbaton::sql::ALL {
        let client = match verb.name {
            // The one statement that an application runs; that relays may not is shown in `roles`.
            "send" => &producer,
            "confirm" | "drop_relay" | "rebase" | "set_ring" => &owner,
            _ => &relay,
        };
        let planned = plan(client, verb.sql).await;
        assert!(planned.is_ok(), "{}: {:?}", verb.name, planned.err());
        if std::ptr::eq(client, &raw const owner) {
            assert!(plan(&relay, verb.sql).await.is_err(), "{}: only the owner may", verb.name);
        }
    }
}

async fn every_inbox_statement_is_the_relays_to_run(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let client = outbox.relay().await.unwrap();
    for path in sql_files(&sources().join("sink/postgres")) {
        if path.ends_with("inbox.sql") {
            continue; // DDL: Fixture::inbox ran it
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let planned = plan(&client, &text.replace("{schema}", "app").replace("{table}", "inbox")).await;
        assert!(planned.is_ok(), "{}: {:?}", path.display(), planned.err());
    }
}

/// Prepares a statement and has it explained, which checks its grants, too. Nothing is run.
async fn plan(client: &Client, sql: &str) -> Result<(), tokio_postgres::Error> {
    let parameters = client.prepare(sql).await?.params().len();
    let nulls = vec!["null"; parameters].join(", ");
    let nulls = if nulls.is_empty() { nulls } else { format!("({nulls})") };
    let explain = format!("begin; prepare verb as {sql}\n; explain execute verb{nulls}");
    let explained = client.batch_execute(&explain).await;
    client.batch_execute("rollback; deallocate all").await?;
    explained
}

/// Each file of `sql/` is a verb, so that no statement escapes the test above.
#[test]
fn every_file_is_a_verb() {
    let mut files: Vec<String> = sql_files(&sources().join("sql"))
        .iter()
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    let verbs: Vec<&str> = pgbaton::sql::ALL.iter().map(|verb| verb.name).collect();
    assert_eq!(files, verbs);
}

#[test]
fn every_statement_has_a_header() {
    let mut files = sql_files(&sources().join("sql"));
    files.extend(sql_files(&sources().join("sink/postgres")).into_iter().filter(|path| !path.ends_with("inbox.sql")));
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("--")).collect();
        let header = header.join("\n");
        assert!(header.lines().next().is_some_and(|line| line.len() > 20), "{}: no purpose", path.display());
        assert!(header.contains("Rows:"), "{}: what rows?", path.display());
        // The greatest number of a parameter in the text.
        let body = &text[header.len()..];
        let greatest = (1..=20).rev().find(|n| body.contains(&format!("${n}"))).unwrap_or(0);
        for n in 1..=greatest {
            let range = |from: i32| (from..n).any(|start| header.contains(&format!("${start} to $")));
            assert!(header.contains(&format!("${n}")) || range(1), "{}: what is ${n}?", path.display());
        }
        let locks = header.to_lowercase();
        assert!(locks.contains("lock") || !takes_locks(body), "{}: what locks?", path.display());
    }
}

fn takes_locks(sql: &str) -> bool {
    ["update ", "delete ", "_lock"].iter().any(|word| sql.contains(word))
}

fn sql_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "sql"))
        .collect();
    assert!(!files.is_empty());
    files
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/pgbaton/src")
}
