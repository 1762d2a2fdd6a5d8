//! Finds the server that is meant among those that the DSN names, within one patience.
//!
//! The host that served last is tried first. The next one is tried as soon as the one before has failed, or has not
//! answered for a head start; whichever suits first is taken. So a dead host costs a head start and not the patience,
//! and each host has at least a half of it, each of a name's addresses a quarter.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rand::seq::SliceRandom;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::config::{SslMode, SslNegotiation};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, SimpleQueryMessage, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::dsn::{Dsn, Host, Place, Target};
use crate::error::{Error, Kind};
use crate::position::Incarnation;
use crate::sql::{INCARNATION, WRITABLE};
use crate::tls::{self, Mode};

/// How long a host may keep the next one waiting, at most.
const HEAD_START: Duration = Duration::from_millis(250);

/// What moves a connection's bytes.
pub(super) type Driver = tokio_postgres::Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A DSN's servers and how to talk to them. Shared by all that use the database.
pub(super) struct Hosts {
    dsn: Dsn,
    tls: MakeRustlsConnect,
    /// When the kernel takes a silent peer for dead.
    silence: Duration,
    /// Which host served last, and at which of its addresses.
    last: Mutex<Option<(usize, Option<IpAddr>)>>,
    /// The newest life of the database that was seen, if it is the outbox's.
    newest: Mutex<Option<Incarnation>>,
    /// Whether the DSN's warnings have been logged: when it was read, there may have been no log yet.
    warned: AtomicBool,
}

/// An attempt that has not begun.
type Attempt<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// An attempt that succeeded.
struct Found {
    client: Client,
    driver: Driver,
    address: Option<IpAddr>,
}

/// An attempt that failed, at a server as errors call it.
struct Failure {
    at: String,
    error: Error,
}

impl Hosts {
    pub(super) fn new(dsn: Dsn, silence: Duration) -> Result<Self, Error> {
        let tls = MakeRustlsConnect::new(dsn.tls.client_config()?);
        Ok(Self { dsn, tls, silence, last: Mutex::new(None), newest: Mutex::new(None), warned: AtomicBool::new(false) })
    }

    pub(super) fn warnings(&self) -> &[String] {
        &self.dsn.warnings
    }

    /// Each host by itself, as errors call it, whether it suits or not.
    pub(super) fn each(&self) -> Vec<(String, Self)> {
        let alone = |host: &Host| {
            let dsn = Dsn { hosts: vec![host.clone()], target: Target::Any, ..self.dsn.clone() };
            let (last, newest) = (Mutex::new(None), Mutex::new(None));
            // Its warnings are those of the whole DSN.
            let warned = AtomicBool::new(true);
            (host.to_string(), Self { dsn, tls: self.tls.clone(), silence: self.silence, last, newest, warned })
        };
        self.dsn.hosts.iter().map(alone).collect()
    }

    /// Whether a server that is read-only by default is none to write to.
    pub(super) fn obeys_read_only(&self) -> bool {
        self.dsn.target == Target::ReadWrite
    }

    /// Whether a server in recovery suits, and one that is read-only by default.
    pub(super) fn takes(&self) -> (bool, bool) {
        (self.dsn.target == Target::Any, self.dsn.target != Target::ReadWrite)
    }

    /// From now on a server in an earlier life of this database does not suit.
    pub(super) fn lives(&self, here: &Incarnation) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if !newest.as_ref().is_some_and(|newest| here.is_before(newest)) {
            *newest = Some(here.clone());
        }
    }

    /// Connects to a server that suits.
    pub(super) async fn connect(&self, patience: Duration) -> Result<(Client, Driver), Error> {
        if !self.warned.swap(true, Ordering::Relaxed) {
            for warning in &self.dsn.warnings {
                tracing::warn!("{warning}");
            }
        }
        let (deadline, last) = (Instant::now() + patience, self.last());
        let order = self.order(last);
        let head_start = head_start(patience / 2, order.len());
        let mut attempts: VecDeque<Attempt<'_, _, Vec<Failure>>> = VecDeque::new();
        for index in order {
            // Where it served last is the address to begin with.
            let begin = last.filter(|last| last.0 == index).and_then(|last| last.1);
            let attempt = self.at_host(index, begin, patience, deadline);
            attempts.push_back(Box::pin(async move { Ok((index, attempt.await?)) }));
        }
        match race(attempts, head_start).await {
            Ok((index, found)) => {
                *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((index, found.address));
                Ok((found.client, found.driver))
            }
            Err(failures) => Err(all_failed(failures.into_iter().flatten().collect())),
        }
    }

    fn last(&self) -> Option<(usize, Option<IpAddr>)> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hosts' numbers, in the order they are tried.
    fn order(&self, last: Option<(usize, Option<IpAddr>)>) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.dsn.hosts.len()).collect();
        if self.dsn.shuffled {
            order.shuffle(&mut rand::rng());
        } else if let Some((last, _)) = last {
            order.sort_by_key(|index| *index != last);
        }
        order
    }

    /// Tries all addresses of a host.
    async fn at_host(
        &self,
        index: usize,
        begin: Option<IpAddr>,
        patience: Duration,
        deadline: Instant,
    ) -> Result<Found, Vec<Failure>> {
        let Some(host) = self.dsn.hosts.get(index) else { return Err(Vec::new()) };
        let failed = |error| vec![Failure { at: host.to_string(), error }];
        let mut addresses = addresses(host, deadline).await.map_err(failed)?;
        if self.dsn.shuffled {
            addresses.shuffle(&mut rand::rng());
        } else if begin.is_some() {
            addresses.sort_by_key(|address| *address != begin);
        }
        let several = addresses.len() > 1;
        let head_start = head_start(patience / 4, addresses.len());
        let mut attempts: VecDeque<Attempt<'_, _, _>> = VecDeque::new();
        for address in addresses {
            attempts.push_back(Box::pin(async move {
                let started = Instant::now();
                let error = match timeout_at(deadline, self.at_address(host, address)).await {
                    Ok(Ok(found)) => return Ok(found),
                    Ok(Err(error)) => error,
                    Err(_) => Error::new(Kind::Database, format!("no answer within {:.1?}", started.elapsed())),
                };
                let at = match address {
                    Some(address) if several => format!("{host} ({address})"),
                    _ => host.to_string(),
                };
                Err(Failure { at, error })
            }));
        }
        race(attempts, head_start).await
    }

    async fn at_address(&self, host: &Host, address: Option<IpAddr>) -> Result<Found, Error> {
        let mut config = self.config(host, address);
        let (client, mut driver) = match config.connect(self.tls.clone()).await {
            // What `prefer` means: rather without TLS than not at all. If that fails, too, the first answer says more.
            Err(error) if config.get_ssl_mode() == SslMode::Prefer && self.tls_is_at_fault(&error) => {
                config.ssl_mode(SslMode::Disable).connect(self.tls.clone()).await.map_err(|_| error)?
            }
            answer => answer?,
        };
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if self.dsn.target != Target::Any || newest.is_some() {
            suits(self.dsn.target, newest.as_ref(), &client, &mut driver).await?;
        }
        Ok(Found { client, driver, address })
    }

    /// Whether `prefer` tries again without TLS. Not where there is a root: then a wrong certificate is a wrong server.
    fn tls_is_at_fault(&self, error: &tokio_postgres::Error) -> bool {
        let handshake = error.to_string() == TLS_FAILED;
        let unwanted = error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
        unwanted || handshake && !(self.dsn.tls.root.is_some() && tls::is_disagreement(error))
    }

    /// What the driver is told. Its own list of hosts has one entry: we know better how long to wait for each.
    fn config(&self, host: &Host, address: Option<IpAddr>) -> tokio_postgres::Config {
        let mut config = tokio_postgres::Config::new();
        config
            .user(&self.dsn.user)
            .dbname(&self.dsn.database)
            .application_name(&self.dsn.application_name)
            .channel_binding(self.dsn.channel_binding)
            .port(host.port);
        if let Some(options) = &self.dsn.options {
            config.options(options);
        }
        if let Some(password) = &host.password {
            config.password(password);
        }
        if self.dsn.tls.direct {
            config.ssl_negotiation(SslNegotiation::Direct);
        }
        config.ssl_mode(match self.dsn.tls.mode {
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        match (&host.place, address) {
            (Place::Tcp { name, .. }, Some(address)) => {
                // The name is what a certificate is compared with. One that no certificate can have is not compared.
                let fits = rustls::pki_types::ServerName::try_from(name.as_str()).is_ok();
                config.host(if fits { name.clone() } else { address.to_string() }).hostaddr(address);
            }
            (Place::Tcp { name, .. }, None) => {
                config.host(name);
            }
            (Place::Socket(folder), _) => {
                config.host_path(folder).ssl_mode(SslMode::Disable).ssl_negotiation(SslNegotiation::Postgres);
            }
        }
        // The kernel counts keepalives in whole seconds, and refuses none: no connection would be made.
        let (silence, least) = (self.silence, Duration::from_secs(1));
        config
            .connect_timeout(silence)
            .tcp_user_timeout(silence)
            .keepalives_idle(silence.max(least))
            .keepalives_interval((silence / 2).max(least))
            .keepalives_retries(2);
        config
    }
}

/// The driver's words for a handshake that failed.
pub(crate) const TLS_FAILED: &str = "error performing TLS handshake";

/// A host's addresses; a socket has one that is no IP address.
async fn addresses(host: &Host, deadline: Instant) -> Result<Vec<Option<IpAddr>>, Error> {
    let name = match &host.place {
        Place::Socket(_) => return Ok(vec![None]),
        Place::Tcp { address: Some(address), .. } => return Ok(vec![Some(*address)]),
        Place::Tcp { name, address: None } => name,
    };
    let unknown = || Error::new(Kind::Database, "the name cannot be resolved");
    let found = timeout_at(deadline, tokio::net::lookup_host((name.as_str(), host.port)));
    let found = found.await.map_err(|_| unknown())?.map_err(|error| unknown().because(error))?;
    let mut addresses: Vec<Option<IpAddr>> = Vec::new();
    for address in found.map(|address| Some(address.ip())) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(unknown()) } else { Ok(addresses) }
}

/// Whether the server is the one that is meant. A statement rather than what the server told at the beginning: a pooler
/// repeats what another server told it, before a fail-over. In a transaction of its own, without the role's own limits: a low
/// one would end each first look.
async fn suits(
    target: Target,
    newest: Option<&Incarnation>,
    client: &Client,
    driver: &mut Driver,
) -> Result<(), Error> {
    let begin = format!(
        "begin isolation level read committed; set local statement_timeout = 0{}",
        super::no_limit_on_transactions(super::version(driver))
    );
    let question = format!("{}; {}", WRITABLE.sql, if newest.is_some() { INCARNATION.sql } else { "" });
    let mut told = futures_util::stream::poll_fn(|context| driver.poll_message(context));
    let asked = async {
        tokio::join!(
            biased;
            client.batch_execute(&begin),
            client.simple_query(&question),
            client.batch_execute("commit"),
        )
    };
    let mut asked = std::pin::pin!(asked);
    let answer = loop {
        tokio::select! {
            biased;
            (begun, answer, ended) = &mut asked => {
                begun?;
                ended?;
                break answer?;
            }
            message = told.next() => match message {
                Some(message) => drop(message?),
                None => return Err(Error::new(Kind::Database, "the server closed the connection")),
            },
        }
    };
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    match rows.next().map(|row| (row.get("in_recovery"), row.get("read_only"))) {
        Some((Some("t"), _)) if target != Target::Any => {
            return Err(Error::new(Kind::NotWritable, "the server is in recovery"));
        }
        Some((_, Some("on"))) if target == Target::ReadWrite => {
            return Err(Error::new(Kind::NotWritable, "the server is read-only: default_transaction_read_only is on"));
        }
        Some(_) => {}
        None => return Err(Error::new(Kind::Internal, "the server did not say whether it takes writes")),
    }
    let found: Option<Incarnation> = rows.next().and_then(|row| row.get("incarnation")?.parse().ok());
    match (found, newest) {
        (Some(found), Some(newest)) if found.is_before(newest) => {
            Err(Error::new(Kind::NotWritable, format!("an old primary: it is {found}, and the database is {newest}")))
        }
        _ => Ok(()),
    }
}

/// How long each of several attempts keeps the next one waiting, so that all have begun before the time is over.
fn head_start(time: Duration, attempts: usize) -> Duration {
    HEAD_START.min(time / u32::try_from(attempts.max(1)).unwrap_or(u32::MAX))
}

/// Begins one attempt after the other, each when the one before has failed or has had its head start. The first success
/// ends the others. Failures come in the order of the attempts.
async fn race<T, E>(mut waiting: VecDeque<Attempt<'_, T, E>>, head_start: Duration) -> Result<T, Vec<E>> {
    let mut running = FuturesUnordered::new();
    let mut failures = Vec::new();
    let mut begun = 0;
    loop {
        if let Some(attempt) = waiting.pop_front() {
            let number = begun;
            running.push(async move { (number, attempt.await) });
            begun += 1;
        } else if running.is_empty() {
            break;
        }
        tokio::select! {
            biased;
            Some((number, answer)) = running.next() => match answer {
                Ok(found) => return Ok(found),
                Err(failure) => failures.push((number, failure)),
            },
            () = tokio::time::sleep(head_start), if !waiting.is_empty() => {}
        }
    }
    failures.sort_by_key(|(number, _)| *number);
    Err(failures.into_iter().map(|(_, failure)| failure).collect())
}

/// One error of all hosts' errors. It can be tried again if one of them can: that one may be the server that is meant.
fn all_failed(mut failures: Vec<Failure>) -> Error {
    let deciding = failures
        .iter()
        .position(|failure| *failure.error.kind() == Kind::Database)
        .or_else(|| failures.iter().position(|failure| failure.error.is_transient()))
        .unwrap_or(0);
    if failures.is_empty() {
        return Error::new(Kind::Internal, "no host was tried");
    }
    let all: Vec<String> =
        failures.iter().map(|failure| format!("{}: {}", failure.at, failure.error.in_words())).collect();
    let Failure { at, error } = failures.swap_remove(deciding);
    if failures.is_empty() {
        return error.doing(&at);
    }
    error.instead(format!("no host of the DSN can be used: {}", all.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(answer: Result<u32, u32>, after_ms: u64) -> Attempt<'static, u32, u32> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(after_ms)).await;
            answer
        })
    }

    #[tokio::test]
    async fn a_silent_attempt_costs_a_head_start() {
        let begun = Instant::now();
        let silent = || attempt(Ok(0), 60_000);
        let attempts = VecDeque::from([silent(), silent(), attempt(Ok(3), 0)]);
        assert_eq!(race(attempts, Duration::from_millis(50)).await, Ok(3));
        assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn a_failure_lets_the_next_one_begin_at_once() {
        let attempts = VecDeque::from([attempt(Err(1), 20), attempt(Err(2), 0), attempt(Ok(3), 0)]);
        assert_eq!(race(attempts, Duration::from_secs(60)).await, Ok(3));
        let attempts = VecDeque::from([attempt(Err(1), 40), attempt(Err(2), 0), attempt(Err(3), 0)]);
        assert_eq!(race(attempts, Duration::from_millis(1)).await, Err(vec![1, 2, 3]));
        assert_eq!(race::<u32, u32>(VecDeque::new(), Duration::ZERO).await, Err(vec![]));
    }

    #[tokio::test]
    async fn an_early_attempt_may_still_win() {
        let attempts = VecDeque::from([attempt(Ok(1), 100), attempt(Ok(2), 60_000)]);
        assert_eq!(race(attempts, Duration::from_millis(10)).await, Ok(1));
    }

    #[test]
    fn every_attempt_has_begun_in_time() {
        let second = Duration::from_secs(1);
        assert_eq!(head_start(second, 2), HEAD_START);
        assert_eq!(head_start(second, 10), second / 10);
        assert_eq!(head_start(second, 0), HEAD_START);
    }

    #[test]
    fn one_error_tells_of_all_hosts() {
        let failure = |at: &str, kind, text: &str| Failure { at: at.into(), error: Error::new(kind, text) };
        let down = || failure("a:1", Kind::Database, "no answer within 0.5s");
        let read_only = || failure("b:2", Kind::NotWritable, "the server is read-only");
        let refused = || failure("c:3", Kind::Refused, "wrong password");
        for (failures, code, text) in [
            (vec![down()], "database.unavailable", "a:1: no answer within 0.5s"),
            (vec![read_only(), refused(), down()], "database.unavailable", "b:2: the server is read-only; c:3: wrong"),
            (
                vec![refused(), read_only()],
                "database.not_writable",
                "c:3: wrong password; b:2: the server is read-only",
            ),
            (vec![refused()], "refused", "c:3: wrong password"),
        ] {
            let error = all_failed(failures);
            assert_eq!(error.code(), code);
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
