//! Where a bench takes place: a server of its own with one migrated database, and replicas of the executable as it
//! ships, on it.
//!
//! No checkpoint and no autovacuum comes by itself: neither has to do with what is measured, and each would hit one
//! of the runs that are compared.

use tokio_postgres::Client;

use super::Args;
use crate::Error;
use crate::fixture::{Fixture, toml_text};
use crate::process::{self, Process};
use crate::servers::{Binaries, Cluster, Options};

/// What no bench wants to be disturbed by.
const SETTINGS: [(&str, &str); 4] =
    [("autovacuum", "off"), ("checkpoint_timeout", "1d"), ("max_wal_size", "100GB"), ("track_commit_timestamp", "on")];

pub(super) struct Site {
    pub(super) fixture: Fixture,
    /// As superuser.
    pub(super) admin: Client,
    /// Stopped last.
    cluster: Cluster,
}

impl Site {
    pub(super) async fn open(args: &Args) -> Result<Site, Error> {
        let settings = SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let options = Options {
            fsync: !args.no_fsync,
            shared_buffers: args.shared_buffers.clone(),
            settings,
            ..Options::default()
        };
        let cluster = Cluster::start(&Binaries::any()?, options).await?;
        let fixture = Fixture::on(&cluster).await?;
        let admin = fixture.admin().await?;
        Ok(Site { fixture, admin, cluster })
    }

    /// Starts a replica of `relay` with default settings. `sink` is a TOML value, `more` further keys of the relay.
    pub(super) fn start(&self, replica: &str, relay: &str, sink: &str, more: &str) -> Result<Process, Error> {
        let dsn = toml_text(self.fixture.relay_dsn());
        let text = format!(
            "name = {}\n[database]\ndsn = {dsn}\n[log]\nlevel = \"info\"\n[http]\nlisten = \"off\"\n[relays.{relay}]\nsink = {sink}\n{more}\n",
            toml_text(replica)
        );
        let config = self.fixture.write(&format!("{replica}.toml"), &text)?;
        let mut command = self.fixture.command()?;
        command.arg("run").arg("--config").arg(config);
        Process::start(replica, self.fixture.folder(), command)
    }

    /// Runs SQL as superuser.
    pub(super) async fn execute(&self, sql: &str) -> Result<(), Error> {
        self.admin.batch_execute(sql).await.map_err(|cause| Error::because(format!("running {sql:?}"), &cause))
    }

    /// One value of one row, as superuser.
    pub(super) async fn value<T>(&self, sql: &str) -> Result<T, Error>
    where
        T: for<'a> tokio_postgres::types::FromSql<'a>,
    {
        let row = self.admin.query_one(sql, &[]).await;
        row.and_then(|row| row.try_get(0)).map_err(|cause| Error::because(format!("running {sql:?}"), &cause))
    }

    /// What the server has said so far.
    pub(super) fn server_log(&self) -> std::path::PathBuf {
        self.cluster.log()
    }

    /// Bytes of WAL so far.
    pub(super) async fn wal(&self) -> Result<f64, Error> {
        self.value("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8").await
    }
}

/// Polls until this many replicas have joined with this relay.
pub(super) async fn joined(site: &Site, relay: &str, replicas: usize) -> Result<(), Error> {
    let sql = format!("select count(*) from pgbaton.replica where '{relay}' = any(relays)");
    poll(|| async { Ok(usize::try_from(site.value::<i64>(&sql).await?).is_ok_and(|found| found >= replicas)) }).await
}

/// Polls until every lane of this relay has an owner, and every live replica its share.
pub(super) async fn shared_out(site: &Site, relay: &str, replicas: usize) -> Result<(), Error> {
    let sql = format!(
        "select (count(*) filter (where owner is null) = 0 and count(distinct owner) = {replicas} and count(*) > 0
                 and (select max(n) - min(n) <= 1 from (
                        select count(*) as n from pgbaton.lane where relay = '{relay}' group by owner) s))
         from pgbaton.lane where relay = '{relay}'"
    );
    poll(|| async { site.value::<bool>(&sql).await }).await
}

/// Looks again until it is so.
pub(super) async fn poll(so: impl AsyncFnMut() -> Result<bool, Error>) -> Result<(), Error> {
    poll_every(process::POLL, so).await
}

/// The same with another pause between the looks.
pub(super) async fn poll_every(
    pause: std::time::Duration,
    mut so: impl AsyncFnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(300);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !so().await? {
        if tokio::time::Instant::now() >= deadline {
            return Err(Error::new(format!("a condition of the bench was not met within {PATIENCE:?}")));
        }
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Ends a replica as an operator does.
pub(super) async fn end(mut replica: Process) -> Result<(), Error> {
    replica.terminate()?;
    let status = replica.wait(std::time::Duration::from_secs(30)).await?;
    if status.success() { Ok(()) } else { Err(Error::new(format!("a replica ended with {status}"))) }
}
