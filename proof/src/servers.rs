//! Throwaway PostgreSQL servers for tests, the demo and the benches.
//!
//! A test that needs a database takes the shared server and makes one:
//!
//! ```no_run
//! # async fn example() -> Result<(), proof::Error> {
//! let server = proof::servers::shared(15).await?;
//! server.create_database("ordering", None).await?;
//! let client = server.admin("ordering").await?;
//! let dsn = server.dsn("ordering", "postgres"); // for the relay under test
//! # Ok(())
//! # }
//! ```
//!
//! A test that stops the server, or needs other settings, starts its own:
//!
//! ```no_run
//! # async fn example() -> Result<(), proof::Error> {
//! use proof::servers::{Binaries, Cluster, Options};
//!
//! let options = Options { settings: vec![("wal_level".into(), "logical".into())], ..Options::default() };
//! let mut server = Cluster::start(&Binaries::find(18)?, options).await?;
//! server.stop_immediate().await?; // as if it had crashed
//! server.start_again().await?; // recovers; the port is the same
//! # Ok(())
//! # }
//! ```
//!
//! Where the programs come from says [`Binaries`]. As root, a server runs as `postgres` or `nobody`.
//! It listens on 127.0.0.1 and trusts everybody there. Dropping a [`Cluster`] stops its server and removes
//! its folder; when this process ends in any other way, SIGKILL included, a
//! [`Guard`](crate::process::Guard) does both.

pub(crate) mod account;
mod binaries;
pub(crate) mod home;
pub(crate) mod ports;
mod shared;
mod standby;
mod upgrade;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::{Client, NoTls};

use crate::Error;
use crate::process::{POLL, last_lines};
use account::Account;
pub use binaries::Binaries;
use home::Home;
pub use shared::shared;

/// Long enough for crash recovery after a bench; a start of an idle cluster takes a tenth of a second.
const START_WITHIN: Duration = Duration::from_secs(60);
/// A fast stop writes a checkpoint, which may take a while with `fsync` on.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// On drop nobody waits for a checkpoint. PostgreSQL kills its own stragglers after 5 s.
const DROP_WITHIN: Duration = Duration::from_secs(10);
/// One try to connect: a server that is starting up answers or refuses at once.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
/// Others may take a port between the look at it and the server's start; so often is unlikely.
const PORT_TRIES: u32 = 10;
/// What the server says when somebody else has its port.
const PORT_TAKEN: &str = "could not create any TCP/IP sockets";
/// The superuser of each cluster.
const SUPERUSER: &str = "postgres";

/// How a cluster is set up. The defaults suit tests: quick, and safe against a crash of the server,
/// though not against one of the machine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether commits reach the disk. Off by default; benches that measure commits turn it on.
    pub fsync: bool,
    /// The setting `shared_buffers`, with its unit. By default "64MB".
    pub shared_buffers: String,
    /// Further settings (name, value); they win over those that a cluster has anyway.
    pub settings: Vec<(String, String)>,
    /// The folder below which the cluster's own is made; by default the one for temporary files.
    /// Every account must be able to enter it, and its path be shorter than about 60 characters.
    pub parent: PathBuf,
    /// Variables for the server and its processes, besides what they need anyway.
    pub environment: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fsync: false,
            shared_buffers: "64MB".to_owned(),
            settings: Vec::new(),
            parent: std::env::temp_dir(),
            environment: Vec::new(),
        }
    }
}

/// A PostgreSQL server with its data, both gone when this is dropped.
///
/// It is tied to no runtime: a static may hold it, and tests of different runtimes may use it at once.
#[derive(Debug)]
pub struct Cluster {
    /// `None` while it is stopped.
    server: Option<Child>,
    port: u16,
    binaries: Binaries,
    account: Account,
    environment: Vec<(String, String)>,
    /// Last, since a field is dropped after those before it.
    home: Home,
}

impl Cluster {
    /// Makes a new cluster and starts it; about a second. When this returns, it accepts connections.
    ///
    /// If the future is dropped before its end, the server is stopped and its files are removed.
    pub async fn start(binaries: &Binaries, options: Options) -> Result<Cluster, Error> {
        let account = Account::choose()?;
        let label = format!("pg{}", binaries.major());
        let home = Home::create(&options.parent, &label, account)?;
        let (binaries, environment) = (binaries.clone(), options.environment.clone());
        let mut cluster = Cluster { server: None, port: 0, binaries, account, environment, home };
        cluster.initialise(&options)?;
        cluster.launch_on_a_free_port().await?;
        Ok(cluster)
    }

    /// Starts a cluster that was stopped, or has ended by itself, on the port it had, and waits until it has recovered and
    /// accepts connections.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        self.reap()?;
        if self.server.is_some() {
            return Err(Error::new("the cluster runs already"));
        }
        self.launch().await
    }

    /// Stops the server in order (SIGINT): open transactions are rolled back, everything is written.
    /// A stopped cluster stays stopped.
    pub async fn stop_fast(&mut self) -> Result<(), Error> {
        self.stop(Signal::INT).await
    }

    /// Stops the server as a crash would (SIGQUIT): the next start has to recover.
    pub async fn stop_immediate(&mut self) -> Result<(), Error> {
        self.stop(Signal::QUIT).await
    }

    /// The process id of the server's first process; `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.server.as_ref().map(Child::id)
    }

    /// The port on 127.0.0.1, the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The programs it runs.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// PostgreSQL's data directory.
    pub fn data_directory(&self) -> PathBuf {
        self.home.data()
    }

    /// The server's log, over all its restarts.
    pub fn log(&self) -> PathBuf {
        self.home.log()
    }

    /// What tokio-postgres and the relay take to connect by TCP.
    pub fn dsn(&self, database: &str, user: &str) -> String {
        format!("host=127.0.0.1 port={} user={} dbname={}", self.port, dsn_value(user), dsn_value(database))
    }

    /// A connection as superuser. A task of the current runtime drives it until the client is dropped
    /// or the server goes away.
    pub async fn admin(&self, database: &str) -> Result<Client, Error> {
        let dsn = self.dsn(database, SUPERUSER);
        let (client, connection) = tokio_postgres::connect(&dsn, NoTls)
            .await
            .map_err(|cause| Error::because(format!("connecting to {dsn}"), &cause))?;
        // How a connection ended shows in the client's next call, too.
        tokio::spawn(async move { drop(connection.await) });
        Ok(client)
    }

    /// Makes a database, empty or as a copy of `template`, to which nobody may be connected then.
    pub async fn create_database(&self, name: &str, template: Option<&str>) -> Result<(), Error> {
        let template = template.unwrap_or("template1");
        let statement = format!("create database {} template {}", identifier(name), identifier(template));
        self.admin("postgres")
            .await?
            .batch_execute(&statement)
            .await
            .map_err(|cause| Error::because(format!("creating database {name}"), &cause))
    }

    /// Runs initdb and writes the settings.
    fn initialise(&self, options: &Options) -> Result<(), Error> {
        // Not every system has C.UTF-8, and initdb knows best; it removes what a failed try left.
        self.run_initdb("C.UTF-8").or_else(|_| self.run_initdb("C"))?;
        let fixed = [
            ("listen_addresses", "127.0.0.1"),
            ("fsync", if options.fsync { "on" } else { "off" }),
            ("shared_buffers", options.shared_buffers.as_str()),
            ("max_connections", "200"),
            ("max_prepared_transactions", "50"),
            ("log_line_prefix", "%m [%p] %q%a@%d "),
        ];
        let further = options.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        self.home.add_settings(fixed.into_iter().chain(further))
    }

    fn run_initdb(&self, locale: &str) -> Result<(), Error> {
        let program = self.binaries.program("initdb");
        let mut command = self.command(&program);
        command
            .arg("--pgdata")
            .arg(self.home.data())
            .args(["--username", SUPERUSER, "--auth", "trust", "--no-sync", "--encoding=UTF8"])
            // The default since version 18, and pg_upgrade takes no mixture.
            .args((self.binaries.major() >= 18).then_some("--no-data-checksums"))
            .arg(format!("--locale={locale}"));
        let output = command.output().map_err(|cause| self.cannot_run(&program, &cause))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::new(format!("initdb failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
    }

    async fn launch_on_a_free_port(&mut self) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            self.port = ports::free()?;
            let Err(error) = self.launch().await else { return Ok(()) };
            if tries == PORT_TRIES || !error.to_string().contains(PORT_TAKEN) {
                return Err(error);
            }
            tries += 1;
        }
    }

    async fn launch(&mut self) -> Result<(), Error> {
        let program = self.binaries.program("postgres");
        let log = self.home.open_log()?;
        let mut command = self.command(&program);
        command
            .arg("-D")
            .arg(self.home.data())
            .arg("-k")
            .arg(self.home.path())
            .args(["-p", &self.port.to_string()])
            // Ctrl-C at the terminal is for this process, which then ends its servers.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let server = command.spawn().map_err(|cause| self.cannot_run(&program, &cause))?;
        self.server = Some(server);
        self.wait_until_ready().await
    }

    /// Waits for an answer on the socket in the cluster's own folder: behind the port there could be
    /// somebody else's server.
    async fn wait_until_ready(&mut self) -> Result<(), Error> {
        let mut socket = tokio_postgres::Config::new();
        socket.host_path(self.home.path()).port(self.port).user(SUPERUSER).dbname("postgres");
        let deadline = Instant::now() + START_WITHIN;
        loop {
            if let Some(status) = self.reap()? {
                return Err(self.complaint(&format!("ended while starting ({status})")));
            }
            if let Ok(Ok(_)) = tokio::time::timeout(CONNECT_WITHIN, socket.connect(NoTls)).await {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.complaint(&format!("accepts no connection after {START_WITHIN:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn stop(&mut self, signal: Signal) -> Result<(), Error> {
        let Some(server) = &self.server else {
            return Err(Error::new("the cluster is stopped already"));
        };
        kill_process(Pid::from_child(server), signal)
            .map_err(|cause| Error::because("signalling the server", &cause))?;
        let deadline = Instant::now() + STOP_WITHIN;
        while self.reap()?.is_none() {
            if Instant::now() >= deadline {
                return Err(self.complaint(&format!("still runs {STOP_WITHIN:?} after {signal:?}")));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// The server's exit status if it has ended; from then on the cluster counts as stopped.
    fn reap(&mut self) -> Result<Option<ExitStatus>, Error> {
        let Some(server) = &mut self.server else { return Ok(None) };
        let status = server.try_wait().map_err(|cause| Error::because("waiting for the server", &cause))?;
        if status.is_some() {
            self.server = None;
        }
        Ok(status)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = self.account.command(program, self.home.path());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    fn cannot_run(&self, program: &Path, cause: &std::io::Error) -> Error {
        let hint = "as root, servers run as another account, which must be able to reach this file";
        Error::because(format!("running {} ({hint})", program.display()), cause)
    }

    fn complaint(&self, what: &str) -> Error {
        let version = self.binaries.version();
        Error::new(format!("PostgreSQL {version} {what}; the end of its log:\n{}", last_lines(&self.log())))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(server) = &mut self.server else { return };
        // SIGQUIT rather than SIGKILL: on it the server ends its children and frees its shared memory.
        let _ = kill_process(Pid::from_child(server), Signal::QUIT);
        let deadline = Instant::now() + DROP_WITHIN;
        while matches!(server.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                let _ = server.kill();
                let _ = server.wait();
                return;
            }
            std::thread::sleep(POLL);
        }
    }
}

/// A value of a keyword=value connection string, always quoted.
fn dsn_value(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A quoted SQL identifier.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::{dsn_value, identifier};

    #[test]
    fn quotes_what_could_end_the_quote() {
        assert_eq!(dsn_value(r"o'b\x"), r"'o\'b\\x'");
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
    }
}
