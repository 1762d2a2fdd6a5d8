//! One connection to PostgreSQL and the shape of its transactions.
//!
//! Nothing here relies on a session: behind a transaction pooler each transaction may meet another one. So statements
//! are unnamed, every transaction names its isolation level, and its settings are local. Every wait has an end; a
//! connection whose answer did not come in time is thrown away, since its next answer would belong to the last question.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt, TryStreamExt, pin_mut};
use tokio::task::JoinHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Row};

use crate::dsn::{Dsn, Environment};
use crate::error::{Error, Kind};
use crate::position::Incarnation;
use crate::sql::{READ_SETTINGS, SETTINGS, Verb};

pub(crate) mod hosts;

use hosts::{Driver, Hosts};

/// A parameter with its type: unnamed statements are planned with their values in one round trip.
pub(crate) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Where the database is and how long to wait for it. Clones share what they have found out about its hosts.
#[derive(Clone)]
pub struct Database {
    hosts: Arc<Hosts>,
    /// For an answer, and for a connection, over all hosts.
    patience: Duration,
}

/// Without the DSN, which holds secrets.
impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Database {
    /// Takes a connection string as libpq does, with what the environment (`PG*`), `.pgpass` and `~/.postgresql` add:
    /// all of these are read here, once. `patience` bounds every wait for an answer, and is a third of the lease where
    /// a lease is at stake.
    ///
    /// # Errors
    /// A connection string that cannot be read or honoured, a file that it names and that cannot be used.
    pub fn new(dsn: &str, patience: Duration) -> Result<Self, Error> {
        let dsn = Dsn::read(dsn, &Environment::of_this_process())?;
        Ok(Self { hosts: Arc::new(Hosts::new(dsn, patience)?), patience })
    }

    /// What whoever wrote the DSN should know: that a server is not verified, that a password file is not used. They are
    /// logged once, when the first connection is made; this is for programs without a log.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        self.hosts.warnings()
    }

    /// The same database with another bound on every wait. When a silent peer counts as dead stays as it was.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Each host of the DSN by itself, as errors call it: also those that are in recovery or read-only.
    pub(crate) fn each_host(&self) -> Vec<(String, Self)> {
        let patience = self.patience;
        self.hosts.each().into_iter().map(|(at, hosts)| (at, Self { hosts: Arc::new(hosts), patience })).collect()
    }

    /// Whether a server in recovery will do, and one that is read-only by default.
    pub(crate) fn takes(&self) -> (bool, bool) {
        self.hosts.takes()
    }

    /// How long to wait for an answer.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Connection, Error> {
        let (client, driver) = self.hosts.connect(self.patience).await?;
        let version = version(&driver);
        let driver = tokio::spawn(drive(driver));
        let obeys = self.hosts.obeys_read_only();
        Ok(Connection { client, driver, version, patience: self.patience, idle: self.patience, obeys })
    }

    /// The outbox was found in this life. No server that is still in an earlier one is connected to from now on: it is an
    /// old primary, and a DSN may well name both.
    pub(crate) fn lives(&self, here: &Incarnation) {
        self.hosts.lives(here);
    }
}

impl Database {
    /// Listens on a channel until the connection is lost. Calls `listening` once it does, and `heard` for each word.
    pub(crate) async fn listen(
        &self,
        channel: &str,
        mut heard: impl FnMut(),
        listening: impl FnOnce(),
    ) -> Result<std::convert::Infallible, Error> {
        let (client, mut driver) = self.hosts.connect(self.patience).await?;
        let listen = format!("listen {channel}");
        let mut told = futures_util::stream::poll_fn(move |context| driver.poll_message(context));
        let subscribe = async { client.batch_execute(&listen).await.map_err(Error::from) };
        let mut subscribed = std::pin::pin!(within(self.patience, subscribe));
        let mut listening = Some(listening);
        loop {
            tokio::select! {
                done = &mut subscribed, if listening.is_some() => {
                    done?;
                    if let Some(listening) = listening.take() { listening() }
                }
                message = told.next() => match message {
                    Some(Ok(AsyncMessage::Notification(_))) => heard(),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(error.into()),
                    None => return Err(Error::new(Kind::Database, "the connection that listens was closed")),
                },
            }
        }
    }
}

/// Waits for an answer, but not for ever.
pub(crate) async fn within<T>(patience: Duration, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(patience, answer).await {
        Ok(result) => result,
        Err(_) => Err(Error::new(Kind::Database, format!("no answer from the database within {patience:?}"))),
    }
}

/// Moves what is sent and received until the connection ends. Notices are dropped: a trigger's may quote a message, and
/// left to itself the driver logs them.
async fn drive(mut driver: Driver) {
    let mut received = futures_util::stream::poll_fn(move |context| driver.poll_message(context));
    while let Some(message) = received.next().await {
        if let Err(error) = message {
            tracing::debug!(%error, "a database connection ended");
            return;
        }
    }
}

/// What a transaction may do, which decides its isolation level and settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Several statements that must see the same rows, all of them planned the one way that was tested.
    Read,
    /// One statement after the other, each seeing what committed before it.
    Look,
    /// The same, and what it writes is on disk when it has committed.
    Write,
    /// `Read`, for statements with SQL of the operator's in them: names in it mean what they mean to this role.
    ReadTheirs,
    /// `Write`, where triggers of others fire, or with SQL of the operator's: the same of names.
    WriteTheirs,
}

/// An open connection. Dropping it closes it.
pub(crate) struct Connection {
    client: Client,
    driver: JoinHandle<()>,
    /// The server's major version.
    version: u32,
    patience: Duration,
    /// How long a client that falls silent in the middle keeps its transaction, and the locks in it. Below the lease, however
    /// long an answer may take.
    idle: Duration,
    /// Whether a server that is made read-only by default keeps its writes out, too.
    obeys: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// The same connection, where every answer is waited for so long, until it is put back into its slot.
    pub(crate) fn waiting(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Whether the other side has closed it.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Takes back a transaction of which a statement failed. After this the connection can be used again.
    pub(crate) async fn roll_back(&self) -> Result<(), Error> {
        within(self.patience, async { Ok(self.client.batch_execute("rollback").await?) }).await
    }

    /// Runs statements that do not depend on each other's answers, in one transaction and one round trip.
    pub(crate) async fn pipeline<const N: usize>(
        &self,
        access: Access,
        statements: [(Verb<'_>, &[Parameter<'_>]); N],
    ) -> Result<[Vec<Row>; N], Error> {
        self.pipeline_within(self.patience, access, statements).await
    }

    /// The same with another bound on the wait for the answer.
    pub(crate) async fn pipeline_within<const N: usize>(
        &self,
        patience: Duration,
        access: Access,
        statements: [(Verb<'_>, &[Parameter<'_>]); N],
    ) -> Result<[Vec<Row>; N], Error> {
        within(patience, async {
            let statements = futures_util::future::try_join_all(
                statements.iter().map(|(verb, parameters)| self.rows(*verb, parameters)),
            );
            let (begun, rows, ended) = tokio::join!(
                biased;
                self.begin_within(patience, access),
                statements,
                self.end(),
            );
            begun?;
            let rows = rows?;
            ended?;
            rows.try_into().map_err(|_| Error::new(Kind::Internal, "an answer is missing"))
        })
        .await
    }

    /// Opens a transaction and takes its first statement's answer: the locks that a later statement relies on.
    ///
    /// The later statement sees what committed before the locks were granted, because it is a new statement.
    pub(crate) async fn lock(&self, verb: Verb<'_>, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.lock_for(Access::Write, verb, parameters).await
    }

    /// The same, for this access.
    pub(crate) async fn lock_for(
        &self,
        access: Access,
        verb: Verb<'_>,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        within(self.patience, async {
            let (begun, rows) = tokio::join!(biased; self.begin(access), self.rows(verb, parameters));
            begun?;
            rows
        })
        .await
    }

    /// Opens a transaction.
    pub(crate) async fn open(&self, access: Access) -> Result<(), Error> {
        within(self.patience, self.begin(access)).await
    }

    /// Runs one more statement of an open transaction.
    pub(crate) async fn then(&self, verb: Verb<'_>, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        within(self.patience, self.rows(verb, parameters)).await
    }

    /// Runs further statements of an open transaction in one round trip. After one that fails, none is run.
    pub(crate) async fn then_all<const N: usize>(
        &self,
        statements: [(Verb<'_>, &[Parameter<'_>]); N],
    ) -> Result<[Vec<Row>; N], Error> {
        let all = statements.iter().map(|(verb, parameters)| self.rows(*verb, parameters));
        let rows = within(self.patience, futures_util::future::try_join_all(all)).await?;
        rows.try_into().map_err(|_| Error::new(Kind::Internal, "an answer is missing"))
    }

    /// Runs the last statement of an open transaction and commits.
    pub(crate) async fn commit(&self, verb: Verb<'_>, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        within(self.patience, async {
            let (rows, ended) = tokio::join!(biased; self.rows(verb, parameters), self.end());
            let rows = rows?;
            ended?;
            Ok(rows)
        })
        .await
    }

    /// Reads messages: all statements of one snapshot, the last one's rows handed over as they arrive.
    pub(crate) async fn stream<T>(
        &self,
        access: Access,
        small: (Verb<'_>, &[Parameter<'_>]),
        end: Option<(Verb<'_>, &[Parameter<'_>])>,
        rows: (Verb<'_>, &[Parameter<'_>]),
        mut take: impl FnMut(&Row) -> Result<T, Error>,
    ) -> Result<(Vec<Row>, Option<Vec<Row>>), Error> {
        within(self.patience, async {
            let end = async {
                match end {
                    Some((verb, parameters)) => self.rows(verb, parameters).await.map(Some),
                    None => Ok(None),
                }
            };
            let streamed = async {
                let (verb, parameters) = rows;
                let parameters = parameters.iter().map(|(value, type_)| (*value, type_.clone()));
                let failed = |error: tokio_postgres::Error| Error::from(error).doing(verb.name);
                let stream = self.client.query_typed_raw(verb.sql, parameters).await.map_err(failed)?;
                drain(stream.map_err(failed), &mut take).await
            };
            let (begun, small, end, streamed, ended) = tokio::join!(
                biased;
                self.begin(access),
                self.rows(small.0, small.1),
                end,
                streamed,
                self.end(),
            );
            begun?;
            let answers = (small?, end?);
            streamed?;
            ended?;
            Ok(answers)
        })
        .await
    }

    /// Runs statements that belong to no verb: migrations, locks and truncates.
    pub(crate) async fn script(&self, sql: &str) -> Result<(), Error> {
        within(self.patience, async { Ok(self.client.batch_execute(sql).await?) }).await
    }

    async fn rows(&self, verb: Verb<'_>, parameters: &[Parameter<'_>]) -> Result<Vec<Row>, Error> {
        self.client.query_typed(verb.sql, parameters).await.map_err(|error| Error::from(error).doing(verb.name))
    }

    async fn begin(&self, access: Access) -> Result<(), Error> {
        self.begin_within(self.patience, access).await
    }

    /// Two simple queries in one round trip. The first one lifts a role's own limits, that on statements counts for it alone:
    /// all settings at once may take longer than a low one. What follows a first one that failed makes no setting outside a
    /// transaction, and its answers are thrown away.
    async fn begin_within(&self, patience: Duration, access: Access) -> Result<(), Error> {
        let (patience, idle) = (patience.as_millis().max(1), self.idle.as_millis().max(1));
        // No function or operator that others have made is taken for one of the server's.
        let path = match access {
            Access::Read | Access::Look | Access::Write => "set local search_path = pg_catalog, pg_temp; ",
            Access::ReadTheirs | Access::WriteTheirs => "",
        };
        let limits = format!(
            "{path}set local lock_timeout = {patience}; set local idle_in_transaction_session_timeout = {idle}; {SETTINGS}"
        );
        let (begin, settings) = match access {
            Access::Read | Access::ReadTheirs => {
                ("begin isolation level repeatable read read only;", format!("{limits}; {READ_SETTINGS}"))
            }
            Access::Look => ("begin isolation level read committed read only;", limits),
            Access::Write | Access::WriteTheirs => (
                // Said aloud, it would override `default_transaction_read_only`.
                if self.obeys {
                    "begin isolation level read committed;"
                } else {
                    "begin isolation level read committed read write;"
                },
                format!("{limits}; set local synchronous_commit = on"),
            ),
        };
        let whole = no_limit_on_transactions(self.version);
        let begin = format!("{begin} set local statement_timeout = {patience}{whole}");
        let (begun, set) =
            tokio::join!(biased; self.client.batch_execute(&begin), self.client.batch_execute(&settings));
        begun?;
        Ok(set?)
    }

    async fn end(&self) -> Result<(), Error> {
        Ok(self.client.batch_execute("commit").await?)
    }
}

/// Further settings of a transaction: a role's own limit would end a read that takes its time. It came with PostgreSQL 17.
fn no_limit_on_transactions(version: u32) -> &'static str {
    if version >= 17 { "; set local transaction_timeout = 0" } else { "" }
}

/// The server's major version.
fn version(driver: &Driver) -> u32 {
    driver.parameter("server_version").map(major).unwrap_or_default()
}

/// The major version in `18.1 (Debian …)` or `19beta1`; 0 if there is none.
fn major(version: &str) -> u32 {
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    version.get(..digits).and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

async fn drain<T>(
    stream: impl Stream<Item = Result<Row, Error>>,
    take: &mut impl FnMut(&Row) -> Result<T, Error>,
) -> Result<(), Error> {
    pin_mut!(stream);
    while let Some(row) = stream.next().await {
        take(&row?)?;
    }
    Ok(())
}

/// The incarnation in the first row of an answer; a server in recovery has none.
pub(crate) fn incarnation(rows: &[Row]) -> Result<Incarnation, Error> {
    let text: Option<&str> = match rows.first() {
        Some(row) => row.try_get("incarnation")?,
        None => None,
    };
    let Some(text) = text else {
        return Err(Error::new(Kind::NotWritable, "the server is in recovery"));
    };
    text.parse().map_err(|error| Error::new(Kind::Internal, format!("incarnation {text}")).because(error))
}

/// A connection that is kept between uses. Taken out for each use, so that one whose use failed or was cancelled is
/// thrown away: a transaction may be open on it, or an answer on its way.
pub(crate) struct Slot {
    database: Database,
    connection: Option<Connection>,
}

impl Slot {
    pub(crate) fn new(database: Database) -> Self {
        Self { database, connection: None }
    }

    /// The kept connection, or a new one. Give it back with [`Slot::put`] after a success.
    pub(crate) async fn take(&mut self) -> Result<Connection, Error> {
        match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => Ok(connection),
            None => self.database.connect().await,
        }
    }

    pub(crate) fn put(&mut self, connection: Connection) {
        self.connection = Some(connection.waiting(self.database.patience()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_versions_are_read_from_all_their_forms() {
        for (text, version) in [("15.18 (Debian 15.18-0+deb12u1)", 15), ("18.1", 18), ("19beta1", 19), ("devel", 0)] {
            assert_eq!(major(text), version, "{text}");
        }
    }
}
