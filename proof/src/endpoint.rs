//! An HTTP endpoint on loopback that notes what it gets and answers as a script says: late, never, too long, or not at
//! all.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use futures_util::stream::{self, StreamExt};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::Error;

/// A request as it arrived, whole.
#[derive(Debug, Clone)]
pub struct Received {
    /// Path and query.
    pub uri: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// When its last byte had come.
    pub at: Instant,
    /// Which connection it came over, counted from 0.
    pub connection: u64,
}

impl Received {
    /// The value of a header; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// What a receiver drops repeats by.
    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }
}

/// How to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// With this status and an empty body.
    Status(u16),
    /// The same with one more header.
    With(u16, &'static str, String),
    /// With status 200 and a body that never ends.
    Endless,
    /// With status 200 and a body whose end never comes.
    Unfinished,
    /// Not at all: the connection is closed.
    Close,
}

type Content = UnsyncBoxBody<Bytes, Infallible>;
type Answering = Pin<Box<dyn Future<Output = Reply> + Send>>;
type Script = dyn Fn(Arc<Received>) -> Answering + Send + Sync;

struct Shared {
    script: Box<Script>,
    /// Whether requests are kept, and not only counted.
    keeps: bool,
    book: Mutex<Book>,
    connections: AtomicU64,
}

/// What was seen so far.
#[derive(Default)]
struct Book {
    received: Vec<Arc<Received>>,
    count: usize,
    under_way: usize,
    most_under_way: usize,
    by_key: HashMap<String, usize>,
    most_of_one_key: usize,
}

/// The endpoint. It and its connections are gone once it is dropped.
pub struct Endpoint {
    port: u16,
    scheme: &'static str,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Endpoint {
    /// Listens on a free port. The script is asked once a request has come whole, and may take its time.
    pub async fn start<F>(script: impl Fn(Arc<Received>) -> F + Send + Sync + 'static) -> Result<Endpoint, Error>
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Endpoint::listen(0, None, script).await
    }

    /// The same on this port (0: a free one) and with TLS, if there is an acceptor.
    pub async fn listen<F>(
        port: u16,
        tls: Option<TlsAcceptor>,
        script: impl Fn(Arc<Received>) -> F + Send + Sync + 'static,
    ) -> Result<Endpoint, Error>
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Endpoint::accepting(port, tls, true, Box::new(move |received| Box::pin(script(received)))).await
    }

    async fn accepting(
        port: u16,
        tls: Option<TlsAcceptor>,
        keeps: bool,
        script: Box<Script>,
    ) -> Result<Endpoint, Error> {
        let failed = |cause| Error::because("listening as an endpoint", &cause);
        let listener = TcpListener::bind(("127.0.0.1", port)).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let shared = Arc::new(Shared { script, keeps, book: Mutex::default(), connections: AtomicU64::new(0) });
        let scheme = if tls.is_some() { "https" } else { "http" };
        let accepting = tokio::spawn(accept(listener, tls, Arc::clone(&shared)));
        Ok(Endpoint { port, scheme, shared, accepting })
    }

    /// An endpoint that takes everything at once.
    pub async fn willing() -> Result<Endpoint, Error> {
        Endpoint::start(|_| async { Reply::Status(204) }).await
    }

    /// An endpoint that takes everything after this time, and only counts it.
    pub async fn counting(after: std::time::Duration) -> Result<Endpoint, Error> {
        let script = move |_| -> Answering {
            Box::pin(async move {
                tokio::time::sleep(after).await;
                Reply::Status(204)
            })
        };
        Endpoint::accepting(0, None, false, Box::new(script)).await
    }

    /// The same as [`Endpoint::start`], but requests are only counted.
    pub async fn forgetful<F>(script: impl Fn(Arc<Received>) -> F + Send + Sync + 'static) -> Result<Endpoint, Error>
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Endpoint::accepting(0, None, false, Box::new(move |received| Box::pin(script(received)))).await
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL with this path.
    pub fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}{path}", self.scheme, self.port)
    }

    /// All requests in the order in which they had come whole.
    pub fn received(&self) -> Vec<Arc<Received>> {
        self.with(|book| book.received.clone())
    }

    /// Their message ids.
    pub fn ids(&self) -> Vec<String> {
        self.with(|book| book.received.iter().map(|received| received.id().to_owned()).collect())
    }

    /// How many requests there were.
    pub fn count(&self) -> usize {
        self.with(|book| book.count)
    }

    /// The most requests that were between their arrival and their answer at one time.
    pub fn most_under_way(&self) -> usize {
        self.with(|book| book.most_under_way)
    }

    /// The same among those of one key.
    pub fn most_of_one_key(&self) -> usize {
        self.with(|book| book.most_of_one_key)
    }

    /// How many connections were made.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    fn with<T>(&self, f: impl FnOnce(&mut Book) -> T) -> T {
        self.shared.with(f)
    }
}

impl Shared {
    fn with<T>(&self, f: impl FnOnce(&mut Book) -> T) -> T {
        f(&mut self.book.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn arrived(&self, received: &Arc<Received>) {
        let key = received.headers.get("pgbaton-key").and_then(|key| key.to_str().ok()).map(str::to_owned);
        self.with(|book| {
            book.count += 1;
            if self.keeps {
                book.received.push(Arc::clone(received));
            }
            book.under_way += 1;
            book.most_under_way = book.most_under_way.max(book.under_way);
            if let Some(key) = key {
                let of_key = book.by_key.entry(key).or_default();
                *of_key += 1;
                book.most_of_one_key = book.most_of_one_key.max(*of_key);
            }
        });
    }

    fn answered(&self, received: &Received) {
        self.with(|book| {
            book.under_way -= 1;
            if let Some(of_key) = received.headers.get("pgbaton-key").and_then(|key| key.to_str().ok())
                && let Some(of_key) = book.by_key.get_mut(of_key)
            {
                *of_key -= 1;
            }
        });
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        connections.spawn(async move {
            let _ = socket.set_nodelay(true);
            match tls {
                None => serve(socket, shared).await,
                // A client that does not trust this endpoint goes away.
                Some(tls) => {
                    if let Ok(stream) = tls.accept(socket).await {
                        serve(stream, shared).await;
                    }
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, shared: Arc<Shared>) {
    let connection = shared.connections.fetch_add(1, Ordering::Relaxed);
    let service = service_fn(move |request| answer(Arc::clone(&shared), connection, request));
    // How it ended shows at the client.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// An error closes the connection.
async fn answer(shared: Arc<Shared>, connection: u64, request: Request<Incoming>) -> io::Result<Response<Content>> {
    let (parts, content) = request.into_parts();
    let content = content.collect().await.map_err(io::Error::other)?.to_bytes();
    let uri = parts.uri.to_string();
    let received = Received { uri, headers: parts.headers, body: content, at: Instant::now(), connection };
    let received = Arc::new(received);
    shared.arrived(&received);
    let under_way = UnderWay { shared: &shared, received: &received };
    let reply = (shared.script)(Arc::clone(&received)).await;
    drop(under_way);
    let status = match &reply {
        Reply::Status(status) | Reply::With(status, _, _) => *status,
        Reply::Endless | Reply::Unfinished => 200,
        Reply::Close => return Err(io::Error::other("the script says so")),
    };
    let mut response = Response::new(body(&reply));
    *response.status_mut() = hyper::StatusCode::from_u16(status).unwrap_or_default();
    if let Reply::With(_, name, value) = reply
        && let Ok(value) = value.try_into()
    {
        response.headers_mut().insert(name, value);
    }
    Ok(response)
}

/// Counted until it is answered, or its connection is gone.
struct UnderWay<'a> {
    shared: &'a Shared,
    received: &'a Received,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.shared.answered(self.received);
    }
}

fn body(reply: &Reply) -> Content {
    const PIECE: &[u8] = &[b'x'; 8 * 1024];
    let piece = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(PIECE)));
    match reply {
        Reply::Endless => StreamBody::new(stream::repeat_with(piece)).boxed_unsync(),
        Reply::Unfinished => StreamBody::new(stream::iter([piece()]).chain(stream::pending())).boxed_unsync(),
        Reply::Status(_) | Reply::With(..) | Reply::Close => Full::default().boxed_unsync(),
    }
}
