//! A fresh database with the outbox for each test, its three roles, and the real executable against it.
//!
//! ```no_run
//! # async fn example() -> Result<(), proof::Error> {
//! use proof::fixture::Fixture;
//! use std::time::Duration;
//!
//! let outbox = Fixture::new(15).await?; // on the server that all tests share
//! outbox.inbox("app.inbox").await?; // the tables of a `postgres` sink, in the same database
//! let producer = outbox.producer().await?;
//! producer.batch_execute("select pgbaton.send('orders', '{}'::json, key => 'a')").await.ok();
//!
//! let relays = format!("[relays.orders]\nsink = {}", outbox.inbox_sink("app.inbox"));
//! let mut replica = outbox.run("r1", &relays)?; // `pgbaton run`, as the relay's role
//! replica.wait_for_line("claimed", Duration::from_secs(10)).await?;
//! let lanes = outbox.pgbaton(&["lanes", "--json", "--dsn", outbox.relay_dsn()]).await?;
//! assert!(lanes.status.success());
//! # Ok(())
//! # }
//! ```
//!
//! A test that stops its server starts one of its own and uses [`Fixture::on`]. The databases stay until the server
//! goes; the folder with configurations, logs and the file of [`Fixture::file_sink`] goes with the [`Fixture`].

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pgbaton::Database;
use pgbaton::migrate::{self, Roles};
use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};

use crate::Error;
use crate::process::{self, Process};
use crate::servers::{Cluster, shared};

/// The role that runs `pgbaton migrate` and owns the schema.
pub const MIGRATE: &str = "pgbaton_migrate";
/// The role of `pgbaton run`.
pub const RELAY: &str = "pgbaton_relay";
/// The role of applications that insert messages.
pub const PRODUCER: &str = "pgbaton_producer";

/// Migrated and granted once for each server, then copied.
const TEMPLATE: &str = "pgbaton_template";
/// How long migrating waits for an answer: long, since the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Held while a template is made, so that whoever comes second finds it whole.
static MAKING: Mutex<()> = Mutex::const_new(());
/// Tells the databases and folders of this process apart.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// One migrated database without a message, relay or replica, and a folder of its own.
#[derive(Debug)]
pub struct Fixture {
    /// The database's name.
    pub database: String,
    admin: String,
    migrate: String,
    relay: String,
    producer: String,
    folder: PathBuf,
    /// Instead of the one that the tests have built.
    executable: Option<PathBuf>,
}

impl Fixture {
    /// A database on the server of this major version that all tests share.
    pub async fn new(major: u32) -> Result<Fixture, Error> {
        Fixture::on(shared(major).await?).await
    }

    /// A database on this server. The fixture does not borrow the server, which may be stopped and started meanwhile.
    pub async fn on(cluster: &Cluster) -> Result<Fixture, Error> {
        make_template(cluster).await?;
        let fixture = Fixture::of(cluster, "t")?;
        cluster.create_database(&fixture.database, Some(TEMPLATE)).await?;
        // A copy has another oid; the relay would refuse it, as it should.
        let settle = "update pgbaton.home set database = \
                      (select oid from pg_database where datname = current_database())";
        execute(&fixture.admin().await?, settle).await?;
        Ok(fixture)
    }

    /// A database without the schema, but with what `pgbaton grants` asks for before `pgbaton migrate`: its schema
    /// `pgbaton`, empty, owned by the role that migrates.
    pub async fn unmigrated(cluster: &Cluster) -> Result<Fixture, Error> {
        make_template(cluster).await?; // which makes the roles
        let fixture = Fixture::of(cluster, "e")?;
        cluster.create_database(&fixture.database, None).await?;
        execute(&fixture.admin().await?, before_migrating(&grants())).await?;
        Ok(fixture)
    }

    /// An empty database on another server that has the roles already, with the name of this one's.
    pub async fn elsewhere(cluster: &Cluster, like: &Fixture) -> Result<Fixture, Error> {
        let mut fixture = Fixture::of(cluster, "r")?;
        fixture.database.clone_from(&like.database);
        let fixture = fixture.moved_to(cluster);
        cluster.create_database(&fixture.database, None).await?;
        Ok(fixture)
    }

    /// The same database where it is now.
    #[must_use]
    pub fn moved_to(mut self, cluster: &Cluster) -> Fixture {
        for (dsn, user) in [
            (&mut self.admin, "postgres"),
            (&mut self.migrate, MIGRATE),
            (&mut self.relay, RELAY),
            (&mut self.producer, PRODUCER),
        ] {
            *dsn = cluster.dsn(&self.database, user);
        }
        self
    }

    /// The same with this DSN for the relay's role: one that names several hosts, or a pooler.
    #[must_use]
    pub fn with_relay_dsn(mut self, dsn: String) -> Fixture {
        self.relay = dsn;
        self
    }

    /// The same with another executable.
    #[must_use]
    pub fn with_executable(mut self, path: PathBuf) -> Fixture {
        self.executable = Some(path);
        self
    }

    fn of(cluster: &Cluster, kind: &str) -> Result<Fixture, Error> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("pgbaton-fixture-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)
            .map_err(|cause| Error::because(format!("creating {}", folder.display()), &cause))?;
        let database = format!("{kind}{number}");
        let dsn = |user| cluster.dsn(&database, user);
        Ok(Fixture {
            admin: dsn("postgres"),
            migrate: dsn(MIGRATE),
            relay: dsn(RELAY),
            producer: dsn(PRODUCER),
            database,
            folder,
            executable: None,
        })
    }

    /// For a superuser.
    pub fn admin_dsn(&self) -> &str {
        &self.admin
    }

    /// For the role that migrates.
    pub fn migrate_dsn(&self) -> &str {
        &self.migrate
    }

    /// For the relay's role.
    pub fn relay_dsn(&self) -> &str {
        &self.relay
    }

    /// For the producers' role.
    pub fn producer_dsn(&self) -> &str {
        &self.producer
    }

    /// A connection as superuser.
    pub async fn admin(&self) -> Result<Client, Error> {
        connect(&self.admin).await
    }

    /// A connection as the role that owns the schema.
    pub async fn migrator(&self) -> Result<Client, Error> {
        connect(&self.migrate).await
    }

    /// A connection as the relay's role.
    pub async fn relay(&self) -> Result<Client, Error> {
        connect(&self.relay).await
    }

    /// A connection as an application has it.
    pub async fn producer(&self) -> Result<Client, Error> {
        connect(&self.producer).await
    }

    /// Makes the inbox `schema.table` of a `postgres` sink in this database, with the relay's role as the sink's.
    pub async fn inbox(&self, table: &str) -> Result<(), Error> {
        let ddl = pgbaton::sink::postgres::inbox_ddl(table, RELAY).map_err(|cause| Error::because(table, &cause))?;
        execute(&self.admin().await?, &ddl).await
    }

    /// The value of `sink` in a relay's section, for an inbox in this database.
    pub fn inbox_sink(&self, table: &str) -> String {
        format!("{{ type = \"postgres\", dsn = {}, table = {} }}", toml_text(&self.relay), toml_text(table))
    }

    /// The value of `sink` in a relay's section, for the file [`Fixture::file`].
    pub fn file_sink(&self) -> String {
        format!("{{ type = \"file\", path = {} }}", toml_text(&self.file().to_string_lossy()))
    }

    /// Where [`Fixture::file_sink`] writes to.
    pub fn file(&self) -> PathBuf {
        self.folder.join("sink.jsonl")
    }

    /// The folder of this fixture's files; gone when it is dropped.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a configuration and returns its path: the replica's name, this database as the relay's role, logs at
    /// `debug`, no HTTP unless `rest` has a section `[http]`, and then `rest`. A section of `rest` may not repeat `[database]` or
    /// `[log]`; top-level keys such as `drain` go before its first section.
    pub fn configuration(&self, name: &str, rest: &str) -> Result<PathBuf, Error> {
        let (top, sections) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
        let http = if sections.contains("[http]") { "" } else { "[http]\nlisten = \"off\"\n" };
        let text = format!(
            "name = {}\n{top}\n[database]\ndsn = {}\n[log]\nlevel = \"pgbaton=debug\"\n{http}{sections}\n",
            toml_text(name),
            toml_text(&self.relay)
        );
        self.write(&format!("{name}.toml"), &text)
    }

    /// Writes a file into the folder and returns its path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).map_err(|cause| Error::because(format!("writing {}", path.display()), &cause))?;
        Ok(path)
    }

    /// Starts `pgbaton run` with [`Fixture::configuration`]. Its log is read with [`Process::wait_for_line`]: it says
    /// `joined`, then `claimed` for each lane.
    pub fn run(&self, name: &str, rest: &str) -> Result<Process, Error> {
        self.run_with_faults(name, rest, "")
    }

    /// The same, with fail points: `PGBATON_FAULT` as the library's `faults` describes it.
    pub fn run_with_faults(&self, name: &str, rest: &str, faults: &str) -> Result<Process, Error> {
        self.run_with(name, rest, &[("PGBATON_FAULT", OsStr::new(faults))])
    }

    /// The same, with this in its environment.
    pub fn run_with(&self, name: &str, rest: &str, environment: &[(&str, &OsStr)]) -> Result<Process, Error> {
        let mut command = self.command()?;
        command.arg("run").arg("--config").arg(self.configuration(name, rest)?);
        command.envs(environment.iter().copied());
        Process::start(name, &self.folder, command)
    }

    /// Runs a command of `pgbaton` to its end, and returns what it wrote.
    pub async fn pgbaton(&self, arguments: &[&str]) -> Result<Output, Error> {
        let mut command = self.command()?;
        finish(command.args(arguments)).await
    }

    /// The executable, without arguments, in this folder, and without this process's own settings for it.
    pub fn command(&self) -> Result<Command, Error> {
        let path = self.executable.clone().map_or_else(executable, Ok)?;
        let mut command = Command::new(path);
        command.current_dir(&self.folder).env_remove("RUST_LOG").env("HOME", &self.folder);
        // PGBATON_DSN and its like, and what libpq reads.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")) {
            command.env_remove(name);
        }
        Ok(command)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // If this fails the folder stays, in a place that is there to be cleared.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Runs a command to its end without holding up other tasks.
pub async fn finish(command: &mut Command) -> Result<Output, Error> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|cause| Error::because("starting a command", &cause))?;
    tokio::task::spawn_blocking(move || child.wait_with_output())
        .await
        .map_err(|cause| Error::because("waiting for a command", &cause))?
        .map_err(|cause| Error::because("running a command", &cause))
}

/// The real executable, built with its fail points: `PGBATON_BIN`, else the one beside this test binary.
pub fn executable() -> Result<PathBuf, Error> {
    match std::env::var_os("PGBATON_BIN") {
        Some(path) if !path.is_empty() => Ok(path.into()),
        _ => process::executable("pgbaton"),
    }
}

/// The grants of the three roles.
pub fn grants() -> String {
    migrate::grants(&Roles { migrate: MIGRATE.to_owned(), relay: RELAY.to_owned(), producer: PRODUCER.to_owned() })
}

/// A connection, driven by a task of the current runtime until the client is dropped.
pub async fn connect(dsn: &str) -> Result<Client, Error> {
    let (client, connection) = tokio_postgres::connect(dsn, NoTls)
        .await
        .map_err(|cause| Error::because(format!("connecting to {dsn}"), &cause))?;
    // How a connection ended shows in the client's next call, too.
    tokio::spawn(async move { drop(connection.await) });
    Ok(client)
}

/// What of the grants comes before the migration; afterwards all of it is run.
pub fn before_migrating(grants: &str) -> &str {
    grants.split("\n-- 2.").next().unwrap_or(grants)
}

/// Makes the roles and the template, unless an earlier caller has.
async fn make_template(cluster: &Cluster) -> Result<(), Error> {
    let _making = MAKING.lock().await;
    let admin = cluster.admin("postgres").await?;
    let found = admin
        .query("select from pg_database where datname = $1", &[&TEMPLATE])
        .await
        .map_err(|cause| Error::because("looking for the template", &cause))?;
    if !found.is_empty() {
        return Ok(());
    }
    execute(&admin, &format!("create role {MIGRATE} login; create role {RELAY} login; create role {PRODUCER} login"))
        .await?;
    // Under its last name it must never be seen half made: another process may use this server, too.
    const UNFINISHED: &str = "pgbaton_template_unfinished";
    cluster.create_database(UNFINISHED, None).await?;
    let inside = cluster.admin(UNFINISHED).await?;
    execute(&inside, before_migrating(&grants())).await?;
    let database = Database::new(&cluster.dsn(UNFINISHED, MIGRATE), PATIENCE)
        .map_err(|cause| Error::because("the template's DSN", &cause))?;
    migrate::run(&database).await.map_err(|cause| Error::because("migrating the template", &cause))?;
    execute(&inside, &grants()).await?;
    drop(inside);
    rename(&admin, UNFINISHED, TEMPLATE).await
}

/// The connections to it end a moment after they were dropped here.
async fn rename(admin: &Client, from: &str, to: &str) -> Result<(), Error> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match execute(admin, &format!("alter database {from} rename to {to}")).await {
            Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(process::POLL).await,
            result => return result,
        }
    }
}

async fn execute(client: &Client, sql: &str) -> Result<(), Error> {
    client.batch_execute(sql).await.map_err(|cause| {
        let head: String = sql.chars().take(200).collect();
        Error::because(format!("running {head:?}"), &cause)
    })
}

/// A quoted text of a configuration.
pub fn toml_text(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Makes of each `async fn name(major: u32)` two tests, `name::on_15` and `name::on_18`.
#[macro_export]
macro_rules! on_each_version {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn on_15() {
                super::$name(15).await;
            }
            #[tokio::test]
            async fn on_18() {
                super::$name(18).await;
            }
        }
    )+ };
}
