//! Connections to the endpoint. Each is driven by whoever uses it and by no task of its own: once the call is dropped
//! nothing is left that could write.
//!
//! Every write to the socket, below TLS, is preceded by a look at the lane's deadline.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::RETRY_AFTER;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::address::is_public;
use super::answer::{Answer, retry_after};
use super::request::Post;
use crate::clock::{self, Deadline};
use crate::faults;
use crate::lease::BootInstant;
use crate::outcome::Fault;
use crate::outcome::codes::http as codes;

/// What is read of an answer beside its head; nobody looks at it.
const MOST_OF_AN_ANSWER: usize = 64 * 1024;
/// The most of an answer's head, and of what is buffered of it.
const MOST_OF_A_HEAD: usize = 64 * 1024;
/// What may be read of a connection for one request, below TLS: an endpoint may send as many preliminary answers as it
/// likes, and whoever takes them in does nothing else meanwhile.
const MOST_OF_AN_EXCHANGE: usize = 2 * (MOST_OF_AN_ANSWER + MOST_OF_A_HEAD);
/// A connection that was idle for longer is not used again: something in between may have forgotten it.
const IDLE: Duration = Duration::from_secs(30);

/// Until when a lane's connections may write. `None` before its first append: until then there is nothing to send.
#[derive(Clone, Default)]
pub(super) struct Until(Arc<Mutex<Option<Deadline>>>);

impl Until {
    pub(super) fn set(&self, deadline: &Deadline) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline.clone());
    }

    /// Called right before each write.
    fn check(&self) -> io::Result<()> {
        if let Some(deadline) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            deadline.check().map_err(|_| io::Error::other("the lease is over"))?;
            faults::point("sink.checked");
        }
        Ok(())
    }
}

/// How many bytes may still be read of a connection.
#[derive(Clone)]
struct Quota(Arc<AtomicUsize>);

impl Quota {
    fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(MOST_OF_AN_EXCHANGE)))
    }

    /// For the next request.
    fn renew(&self) {
        self.0.store(MOST_OF_AN_EXCHANGE, Ordering::Relaxed);
    }

    fn take(&self, bytes: usize) -> io::Result<()> {
        let left = self.0.load(Ordering::Relaxed).checked_sub(bytes);
        self.0.store(left.unwrap_or_default(), Ordering::Relaxed);
        left.map(drop).ok_or_else(|| io::Error::other("the endpoint sends without an end"))
    }
}

/// A socket that writes nothing once the lease is over, and reads no more than its quota.
struct Guarded {
    socket: TcpStream,
    until: Until,
    quota: Quota,
}

impl AsyncRead for Guarded {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) {
            this.quota.take(buf.filled().len() - before)?;
        }
        read
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.until.check()?;
        Pin::new(&mut this.socket).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.until.check()?;
        Pin::new(&mut this.socket).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// A socket, with TLS over it or without.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections.
pub(super) struct Dialer {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(super) allow_private: bool,
    /// Bounds all of it.
    pub(super) timeout: Duration,
}

impl Dialer {
    /// A new connection, and the address at its other end.
    ///
    /// The name is resolved once, and what is connected to is an address that was looked at.
    ///
    /// # Errors
    /// Why there is none. Nothing of a message was written.
    pub(super) async fn dial(&self, until: &Until) -> Result<(Link, SocketAddr), Fault> {
        let failed = |code, what: &str| Fault::new(code, &format!("{}: {what}", self.host));
        let dialled = tokio::time::timeout(self.timeout, async {
            let (socket, address) = self.connect().await?;
            let quota = Quota::new();
            let guarded = Guarded { socket, until: until.clone(), quota: quota.clone() };
            let stream: Box<dyn Stream> = match &self.tls {
                None => Box::new(guarded),
                Some((connector, name)) => {
                    let secured = connector.connect(name.clone(), guarded).await;
                    Box::new(secured.map_err(|error| failed(&codes::TLS, &format!("no TLS connection: {error}")))?)
                }
            };
            let link =
                Link::over(stream, quota).await.map_err(|error| failed(&codes::UNREACHABLE, &error.to_string()))?;
            Ok((link, address))
        });
        dialled
            .await
            .unwrap_or_else(|_| Err(failed(&codes::UNREACHABLE, &format!("no connection within {:?}", self.timeout))))
    }

    async fn connect(&self) -> Result<(TcpStream, SocketAddr), Fault> {
        let failed = |code, what: &str| Fault::new(code, &format!("{}: {what}", self.host));
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let found = found.map_err(|error| failed(&codes::UNRESOLVED, &format!("the name is not resolved: {error}")))?;
        let (allowed, refused): (Vec<SocketAddr>, Vec<SocketAddr>) =
            found.partition(|address| self.allow_private || is_public(address.ip()));
        if allowed.is_empty() {
            return Err(match refused.first() {
                Some(address) => failed(
                    &codes::PRIVATE_ADDRESS,
                    &format!("{} is no public address; `allow_private = true` allows all addresses", address.ip()),
                ),
                None => failed(&codes::UNRESOLVED, "the name has no address"),
            });
        }
        // One address that swallows everything leaves time for the others.
        let share = self.timeout / u32::try_from(allowed.len()).unwrap_or(u32::MAX);
        let mut problem = String::new();
        for address in allowed {
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(socket)) => {
                    // Requests are written whole; nothing is gained by waiting for more.
                    let _ = socket.set_nodelay(true);
                    return Ok((socket, address));
                }
                Ok(Err(error)) => problem = format!("{address}: {error}"),
                Err(_) => problem = format!("{address}: no connection within {share:?}"),
            }
        }
        Err(failed(&codes::UNREACHABLE, &problem))
    }
}

type Driver = http1::Connection<TokioIo<Box<dyn Stream>>, Full<Bytes>>;

/// A connection that waits for a request.
pub(super) struct Link {
    sender: SendRequest<Full<Bytes>>,
    driver: Box<Driver>,
    quota: Quota,
    /// When it was last given back, or made.
    since: BootInstant,
}

/// What came of sending a request.
pub(super) enum Exchange {
    /// The connection was closed, and not a byte of the request was written.
    NotSent(Post),
    /// An answer, and the connection if it can be used again.
    Answered(Answer, Option<Link>),
}

impl Link {
    async fn over(stream: Box<dyn Stream>, quota: Quota) -> hyper::Result<Self> {
        let (sender, driver) =
            http1::Builder::new().max_buf_size(MOST_OF_A_HEAD).handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, driver: Box::new(driver), quota, since: clock::now() })
    }

    /// Whether it can be used, as far as this side knows: the other one may be closing it just now.
    pub(super) fn is_usable(&mut self) -> bool {
        clock::now().since(self.since) < IDLE && (&mut self.driver).now_or_never().is_none()
    }

    /// Sends a request and reads its answer: both within `timeout`, and not more of the answer than is worth it.
    pub(super) async fn exchange(self, request: Post, timeout: Duration) -> Exchange {
        let Self { mut sender, driver, quota, .. } = self;
        quota.renew();
        let (mut driver, mut head) = (Some(driver), None);
        let reading = read(&mut sender, request, &mut head);
        let whole = match tokio::time::timeout(timeout, driven(reading, &mut driver)).await {
            Ok(Ok(whole)) => whole,
            Ok(Err(Unanswered::NotSent(request))) => return Exchange::NotSent(*request),
            Ok(Err(Unanswered::Lost(why))) => return Exchange::Answered(Answer::Lost(why), None),
            Err(_) => false,
        };
        let answer = match head {
            Some((status, after)) => Answer::Status(status, after),
            None => Answer::TimedOut(timeout),
        };
        let link = driver.filter(|_| whole).map(|driver| Self { sender, driver, quota, since: clock::now() });
        Exchange::Answered(answer, link)
    }
}

enum Unanswered {
    NotSent(Box<Post>),
    Lost(String),
}

/// Sends and reads. What the head says is in `head` as soon as it is there. True if the answer was read to its end.
async fn read(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Post,
    head: &mut Option<(StatusCode, Option<Duration>)>,
) -> Result<bool, Unanswered> {
    if sender.ready().await.is_err() {
        return Err(Unanswered::NotSent(Box::new(request)));
    }
    let response = sender.try_send_request(request).await.map_err(|mut error| match error.take_message() {
        Some(request) => Unanswered::NotSent(Box::new(request)),
        // Without its causes, which may quote what the endpoint sent.
        None => Unanswered::Lost(error.error().to_string()),
    })?;
    let after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    *head = Some((response.status(), after.and_then(|value| retry_after(value, SystemTime::now()))));
    Ok(to_its_end(response.into_body()).await)
}

/// Reads a body away. False if it is too long, or breaks off.
async fn to_its_end(mut body: Incoming) -> bool {
    let mut read = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        read += frame.data_ref().map_or(0, Bytes::len);
        if read > MOST_OF_AN_ANSWER {
            return false;
        }
    }
    true
}

/// Drives the connection while something waits for it. A connection that ended is dropped, which ends the waiting.
async fn driven<T>(waiting: impl Future<Output = T>, driver: &mut Option<Box<Driver>>) -> T {
    let mut waiting = pin!(waiting);
    loop {
        let driving = async {
            match driver.as_mut() {
                Some(driver) => drop(driver.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = &mut waiting => return done,
            () = driving => *driver = None,
        }
    }
}
