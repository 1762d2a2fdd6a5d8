//! Where the primary is, for those who follow it through restarts and fail-overs.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_postgres::Client;

use crate::Error;
use crate::fixture::{MIGRATE, PRODUCER, RELAY, connect};
use crate::servers::Cluster;

/// A server that takes longer to answer stands still.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);
/// How long the end of a fault, and what is asked when all is calm, is tried.
pub(super) const UNDO_WITHIN: Duration = Duration::from_secs(90);
/// The superuser.
pub(super) const ADMIN: &str = "postgres";

/// The outbox's database, on whichever server is the primary now.
#[derive(Clone, Debug)]
pub(super) struct Primary {
    pub(super) database: String,
    pub(super) port: watch::Receiver<u16>,
}

impl Primary {
    /// For one of the roles.
    pub(super) fn dsn(&self, user: &str) -> String {
        format!("host=127.0.0.1 port={} user={user} dbname={}", *self.port.borrow(), self.database)
    }

    pub(super) async fn admin(&self) -> Result<Client, Error> {
        self.client(ADMIN).await
    }

    pub(super) async fn producer(&self) -> Result<Client, Error> {
        self.client(PRODUCER).await
    }

    /// As the schema's owner, for what operators do.
    pub(super) fn operator(&self, patience: Duration) -> Result<pgbaton::Database, Error> {
        pgbaton::Database::new(&self.dsn(MIGRATE), patience).map_err(|cause| Error::because("the owner's DSN", &cause))
    }

    /// Does something once to each backend of the relay's role, or of all applications; gives their number.
    pub(super) async fn to_backends(&self, what: &str, all: bool) -> Result<i64, Error> {
        let roles = if all { format!("'{RELAY}', '{PRODUCER}'") } else { format!("'{RELAY}'") };
        let sql = format!(
            "select count({what}(pid)) from pg_stat_activity where datname = current_database() and usename in ({roles})"
        );
        let admin = self.admin().await?;
        let row = within(admin.query_one(&sql, &[])).await?;
        row.try_get(0).map_err(|cause| Error::because("counting backends", &cause))
    }

    async fn client(&self, user: &str) -> Result<Client, Error> {
        match timeout(PATIENCE, connect(&self.dsn(user))).await {
            Ok(connected) => connected,
            Err(_) => Err(Error::new("the primary does not answer")),
        }
    }
}

/// Starts a server again if it has ended.
pub(super) async fn see_that_it_runs(server: &mut Cluster) -> Result<(), Error> {
    let deadline = Instant::now() + UNDO_WITHIN;
    loop {
        let asked = async {
            let admin = server.admin(ADMIN).await?;
            within(admin.simple_query("select 1")).await
        };
        if timeout(PATIENCE, asked).await.is_ok_and(|answer| answer.is_ok()) {
            return Ok(());
        }
        // It may be at recovering by itself.
        let again = server.start_again().await;
        if again.is_ok() || Instant::now() >= deadline {
            return again;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Tries until it succeeds; after this time it gives the last error. Each try ends within the patience, too.
pub(super) async fn again<T, Try>(patience: Duration, mut attempt: impl FnMut() -> Try) -> Result<T, Error>
where
    Try: Future<Output = Result<T, Error>>,
{
    let deadline = Instant::now() + patience;
    loop {
        let tried = timeout(patience, attempt()).await;
        let tried = tried.unwrap_or_else(|_| Err(Error::new(format!("no answer within {patience:?}"))));
        if tried.is_ok() || Instant::now() >= deadline {
            return tried;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// An answer, but not after minutes.
pub(super) async fn within<T>(answer: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Error> {
    match timeout(Duration::from_secs(60), answer).await {
        Ok(answer) => answer.map_err(|cause| Error::because("asking a server", &cause)),
        Err(_) => Err(Error::new("a server does not answer within a minute")),
    }
}
