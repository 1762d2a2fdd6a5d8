//! `docs/adopt.md`, followed to the letter: its SQL and its commands, in their order and as the roles that it names, on a table
//! that the classic relay has worked on; and back again.

use std::path::{Path, PathBuf};
use std::process::Command;

use proof::fixture::{Fixture, finish};
use proof::on_each_version;
use proof::process::Process;
use proof::servers::shared;
use tokio_postgres::Client;

use crate::hand::{SOON, until};
use crate::lines::ids_in;

on_each_version!(every_step_of_the_guide_works);

/// A block of the page, by what it is written in.
struct Block {
    language: String,
    text: String,
}

fn blocks() -> Vec<Block> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/adopt.md");
    let page = std::fs::read_to_string(page).unwrap();
    let fenced = page.split("\n```").skip(1).step_by(2);
    fenced
        .map(|block| {
            let (language, text) = block.split_once('\n').unwrap();
            Block { language: language.to_owned(), text: text.to_owned() }
        })
        .collect()
}

struct Follower {
    fixture: Fixture,
    /// As the owner of the table.
    admin: Client,
    owner_dsn: String,
    path: std::ffi::OsString,
    /// Lines of the page that hold for those after them.
    exported: String,
    replicas: Vec<Process>,
}

impl Follower {
    async fn new(major: u32) -> Follower {
        let fixture = Fixture::new(major).await.unwrap();
        let admin = fixture.admin().await.unwrap();
        let cluster = shared(major).await.unwrap();
        let pgbaton: PathBuf = proof::fixture::executable().unwrap().parent().unwrap().to_owned();
        let found = std::env::var_os("PATH").unwrap_or_default();
        let folders = [pgbaton, cluster.binaries().folder().to_owned()];
        let path = std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&found))).unwrap();
        let owner_dsn = cluster.dsn(&fixture.database, "app_owner");
        Follower { fixture, admin, owner_dsn, path, exported: String::new(), replicas: Vec::new() }
    }

    /// One line of a shell, as the page has it.
    async fn runs(&mut self, line: &str) {
        if line.starts_with("pgbaton run ") {
            let mut command = self.shell(&format!("exec {line}"));
            command
                .env("PGBATON__NAME", "r1")
                .env("PGBATON__HTTP__LISTEN", "off")
                .env("PGBATON__LOG__LEVEL", "pgbaton=debug");
            self.replicas.push(Process::start("r1", self.fixture.folder(), command).unwrap());
            return;
        }
        let output = finish(&mut self.shell(line)).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{line}: {}\n{said}", String::from_utf8_lossy(&output.stdout));
    }

    /// The same, and what the page says to wait for. Gives how many rows were delivered by it.
    async fn follows(&mut self, line: &str) -> i64 {
        if line.starts_with("export ") {
            self.exported.push_str(line);
            self.exported.push('\n');
            return 0;
        }
        if line.starts_with("systemctl ") {
            // There is no service manager here: what it does to the process.
            for mut replica in std::mem::take(&mut self.replicas) {
                replica.terminate().unwrap();
                assert!(replica.wait(SOON).await.unwrap().success());
            }
            return 0;
        }
        let pending = if line.starts_with("pgbaton run ") { self.pending().await } else { 0 };
        self.runs(line).await;
        if pending > 0 {
            until("all rows are marked", async || self.pending().await == 0).await;
        }
        pending
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        let script = format!("{}{line}", self.exported);
        command.args(["-euo", "pipefail", "-c", &script]).current_dir(self.fixture.folder());
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        command.env("HOME", self.fixture.folder()).env("PATH", &self.path);
        command.env("OWNER_DSN", &self.owner_dsn).env("MIGRATE_DSN", self.fixture.migrate_dsn());
        command.env("DSN", self.fixture.admin_dsn()).env("RELAY_DSN", self.fixture.relay_dsn());
        command
    }

    async fn pending(&self) -> i64 {
        let sql = "select count(*) from app.outbox where published_at is null";
        self.admin.query_one(sql, &[]).await.unwrap().get(0)
    }
}

async fn every_step_of_the_guide_works(major: u32) {
    let mut follower = Follower::new(major).await;
    follower.admin.batch_execute(BEFORE).await.unwrap();
    let mut delivered = 0;
    for Block { language, text } in blocks() {
        match language.as_str() {
            "sql" if text.starts_with("select has_any_column_privilege(") => {
                let may: bool = follower.admin.query_one(&text, &[]).await.unwrap().get(0);
                assert!(!may, "the old relay cannot come back");
            }
            "sql" => {
                follower.admin.batch_execute(&text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
                if text.starts_with("create table app.outbox ") {
                    follower.admin.batch_execute(WORKED_ON).await.unwrap();
                }
            }
            "sh" => {
                for line in text.replace("\\\n", " ").lines() {
                    delivered += follower.follows(line.trim()).await;
                }
            }
            _ => {}
        }
    }
    assert_eq!(delivered, 50);
    let sink: Vec<PathBuf> = std::fs::read_dir(follower.fixture.folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    assert_eq!(sink.len(), 1, "{sink:?}");
    let mut ids = ids_in(&sink[0]);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 50);

    // Back at the old relay, which finds nothing that was delivered, and what came in since.
    follower
        .admin
        .batch_execute("insert into app.outbox (site_id, topic, payload) values ('a', 't', '{}')")
        .await
        .unwrap();
    follower.admin.batch_execute("set role old_relay").await.unwrap();
    assert_eq!(follower.pending().await, 1);
}

/// The table's owner is nobody else: neither a superuser nor the owner of pgbaton's schema.
const BEFORE: &str = "
    create role app_owner login; create role old_relay login;
    create schema app authorization app_owner; set role app_owner";

/// The old relay has delivered most of it.
const WORKED_ON: &str = "
    grant usage on schema app to old_relay; grant select, update on app.outbox to old_relay;
    insert into app.outbox (site_id, topic, payload, published_at)
      select 'site ' || n % 7, 'orders', '{}', case when n <= 300 then now() end from generate_series(1, 350) n";
