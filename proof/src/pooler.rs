//! PgBouncer in transaction mode in front of a test server: paused, pointed elsewhere, killed and frozen by tests.
//!
//! ```no_run
//! # async fn example(cluster: &proof::servers::Cluster, standby: &proof::servers::Cluster) -> Result<(), proof::Error> {
//! use proof::pooler::Pooler;
//!
//! let mut pooler = Pooler::start(cluster.port(), 4).await?;
//! let behind_it = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", pooler.port());
//! pooler.command("pause").await?; // clients wait, and stay connected
//! standby.promote().await?;
//! pooler.point_at(standby.port()).await?;
//! pooler.command("resume").await?;
//! # Ok(())
//! # }
//! ```
//!
//! It trusts everybody on 127.0.0.1, as the servers do. As root it runs as another account, which it insists on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::{Client, NoTls, SimpleQueryMessage, SimpleQueryRow};

use crate::Error;
use crate::fixture::{MIGRATE, PRODUCER, RELAY};
use crate::process::{POLL, Process};
use crate::servers::account::Account;
use crate::servers::{home::Home, ports};

/// Names the executable; else Debian's place and the PATH are looked at.
const VARIABLE: &str = "PGBATON_TEST_PGBOUNCER";

/// Generous: it starts in a few hundredths of a second.
const SOON: Duration = Duration::from_secs(60);

/// A PgBouncer; gone when this is dropped.
#[derive(Debug)]
pub struct Pooler {
    /// `None` while it is killed. Before the folder that it uses.
    process: Option<Process>,
    port: u16,
    server: u16,
    pool: u16,
    account: Account,
    home: Home,
}

impl Pooler {
    /// Starts one in front of the server at this port, with at most `pool` connections to it for each database and user.
    pub async fn start(server: u16, pool: u16) -> Result<Pooler, Error> {
        let account = Account::choose()?;
        let home = Home::create(&std::env::temp_dir(), "pooler", account)?;
        let mut pooler = Pooler { process: None, port: ports::free()?, server, pool, account, home };
        pooler.start_again().await?;
        Ok(pooler)
    }

    /// Starts it on the port it had. When this returns, it accepts connections.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        let mut tries = 10;
        loop {
            self.configure()?;
            let program = program()?;
            let mut command = self.account.command(&program, self.home.path());
            command.arg(self.configuration());
            self.process = Some(Process::start("pooler", self.home.path(), command)?);
            match self.wait_until_ready().await {
                Err(_) if tries > 0 && self.process.as_mut().is_some_and(has_ended) => {
                    // Somebody took the port between the look at it and the start.
                    self.port = ports::free()?;
                    tries -= 1;
                }
                result => return result,
            }
        }
    }

    /// The port on 127.0.0.1, the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process, to be paused and resumed. An error while it is killed.
    pub fn process(&mut self) -> Result<&mut Process, Error> {
        self.process.as_mut().ok_or_else(|| Error::new("the pooler is killed"))
    }

    /// Kills it: all connections through it end at once.
    pub fn kill(&mut self) -> Result<(), Error> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// Has it open further connections at the server at this port. Connections to the one before are closed as soon as
    /// no transaction is open on them; those of clients stay.
    pub async fn point_at(&mut self, server: u16) -> Result<(), Error> {
        self.server = server;
        self.configure()?;
        self.command("reload").await?;
        Ok(())
    }

    /// Runs a command of its administration, such as `pause` or `show clients`.
    pub async fn command(&self, command: &str) -> Result<Vec<SimpleQueryRow>, Error> {
        let failed = |cause| Error::because(format!("telling the pooler to {command}"), &cause);
        let rows = self.admin().await?.simple_query(command).await.map_err(failed)?;
        let row = |message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    async fn admin(&self) -> Result<Client, Error> {
        let dsn = format!("host=127.0.0.1 port={} user=postgres dbname=pgbouncer", self.port);
        crate::fixture::connect(&dsn).await
    }

    async fn wait_until_ready(&mut self) -> Result<(), Error> {
        let deadline = std::time::Instant::now() + SOON;
        let dsn = format!("host=127.0.0.1 port={} user=postgres dbname=pgbouncer connect_timeout=1", self.port);
        loop {
            match tokio_postgres::connect(&dsn, NoTls).await {
                Ok(_) => return Ok(()),
                Err(cause) if std::time::Instant::now() >= deadline || self.process.as_mut().is_some_and(has_ended) => {
                    return Err(Error::because("starting the pooler", &cause));
                }
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    fn configuration(&self) -> PathBuf {
        self.home.path().join("pgbouncer.ini")
    }

    fn configure(&self) -> Result<(), Error> {
        let users: String =
            ["postgres", MIGRATE, RELAY, PRODUCER].iter().map(|user| format!("\"{user}\" \"\"\n")).collect();
        let users_file = self.home.path().join("users.txt");
        write(&users_file, &users)?;
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\nadmin_users = postgres\npool_mode = transaction\n\
             default_pool_size = {}\nmax_client_conn = 500\nserver_login_retry = 1\n",
            self.server,
            self.port,
            users_file.display(),
            self.pool
        );
        write(&self.configuration(), &text)
    }
}

fn has_ended(process: &mut Process) -> bool {
    !matches!(process.exit_status(), Ok(None))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|cause| Error::because(format!("writing {}", path.display()), &cause))
}

/// Where the executable is. A variable that is set and does not fit is an error: a test must not skip in silence.
fn program() -> Result<PathBuf, Error> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    places.map(|folder| folder.join("pgbouncer")).find(|path| path.is_file()).ok_or_else(|| {
        Error::new(format!("no pgbouncer found: ./dev test installs it; or set {VARIABLE} to the executable"))
    })
}
