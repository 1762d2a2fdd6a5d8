//! What a supervisor, a load balancer and Prometheus ask, over HTTP: answered from memory, never from the database.
//!
//! A server that is in nobody's way: connections are few, short and bounded, and an address that is taken is waited for.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use pgbaton::clock;
use pgbaton::config::Http;
use pgbaton::message::Timestamp;
use pgbaton::metrics::{AllMetrics, Counts};
use pgbaton::vitals::Vitals;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::exposition;

/// An address that is taken is tried again after this: another replica on this machine may have it.
const LISTEN_AGAIN: Duration = Duration::from_secs(10);
/// Connections at once; more wait to be accepted.
const CONNECTIONS: usize = 64;
/// How long a request's head may take to arrive.
const HEAD_WITHIN: Duration = Duration::from_secs(2);
/// How long a connection may take from its first byte to its last.
const DONE_WITHIN: Duration = Duration::from_secs(10);
/// More than the head of any request that is meant for this.
const HEAD_BYTES: usize = 16 * 1024;

/// What is answered from.
pub(crate) struct Answers {
    pub(crate) metrics: Arc<AllMetrics>,
    pub(crate) vitals: Vitals,
    reload_refused: AtomicBool,
}

impl Answers {
    pub(crate) fn new(metrics: Arc<AllMetrics>, vitals: Vitals) -> Self {
        Self { metrics, vitals, reload_refused: AtomicBool::new(false) }
    }

    /// Whether the configuration was refused when it was last read again.
    pub(crate) fn reload_refused(&self, refused: bool) {
        self.reload_refused.store(refused, Ordering::Relaxed);
    }

    pub(crate) fn is_reload_refused(&self) -> bool {
        self.reload_refused.load(Ordering::Relaxed)
    }
}

/// A server that stops listening when it is dropped.
pub(crate) struct Server(Option<JoinHandle<()>>);

impl Server {
    /// Listens where the configuration says, as soon as the address can be had.
    pub(crate) fn start(http: Http, answers: &Arc<Answers>) -> Self {
        Self(http.listen.map(|address| tokio::spawn(serve(address, router(Arc::clone(answers))))))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

async fn serve(address: SocketAddr, router: Router) {
    let listener = listen(address).await;
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    answer(stream, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn listen(address: SocketAddr) -> TcpListener {
    let mut told = false;
    loop {
        let bound = TcpListener::bind(address).await;
        match bound.and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                tracing::info!(%address, "listening for /healthz, /readyz and /metrics");
                return listener;
            }
            Err(error) if told => tracing::debug!(%address, %error, "still cannot be listened at"),
            Err(error) => {
                told = true;
                tracing::warn!(
                    %address, %error, again = ?LISTEN_AGAIN,
                    "cannot be listened at, trying again until it can: messages are delivered all the same"
                );
            }
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}

/// One request and its answer.
async fn answer(stream: TcpStream, router: Router) {
    let mut connection = http1::Builder::new();
    connection
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(HEAD_BYTES)
        // Whoever asks every few seconds can connect each time; one that lingers would take a place.
        .keep_alive(false);
    let connection = connection.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match tokio::time::timeout(DONE_WITHIN, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection ended early"),
        Err(_) => tracing::debug!("a connection took too long and was cut"),
    }
}

fn router(answers: Arc<Answers>) -> Router {
    Router::new()
        .route("/", get(|| async { "/healthz\n/readyz\n/metrics\n" }))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .with_state(answers)
}

async fn healthz(State(answers): State<Arc<Answers>>) -> Response {
    if answers.vitals.read().lives() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the supervisor makes no progress\n").into_response()
    }
}

async fn readyz(State(answers): State<Arc<Answers>>) -> Response {
    let reading = answers.vitals.read();
    let ready = reading.ready();
    let relays = reading.relays.iter().map(|name| {
        let counts = answers.metrics.relay(name).counts();
        (name.to_string(), relay(&counts))
    });
    let body = json!({
        "ready": ready,
        "name": reading.name,
        "replica": reading.lease.map(|(id, _)| id.to_string()),
        "lease_left_seconds": reading.lease.map(|(_, left)| left.as_secs_f64()),
        "database": {
            "answers": reading.answers,
            "answered_seconds_ago": reading.database.map(|ago| ago.as_secs_f64()),
        },
        "relays": relays.collect::<serde_json::Map<_, _>>(),
    });
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

fn relay(counts: &Counts) -> Value {
    let down = counts.sink_down.map(|down| {
        let lasts = clock::now().since(down.since);
        let since = SystemTime::now().checked_sub(lasts).and_then(|since| since.duration_since(UNIX_EPOCH).ok());
        let since = since.and_then(|since| i64::try_from(since.as_micros()).ok()).map(Timestamp);
        json!({
            "since": since.map(|since| since.to_string()),
            "seconds": lasts.as_secs_f64(),
            "fault": down.fault,
        })
    });
    json!({
        "lanes_owned": counts.lanes,
        "lanes_held": counts.held,
        "lanes_refused": counts.refused,
        "sink_tier": counts.tier.map(pgbaton::sink::Tier::name),
        "sink_down": down,
    })
}

async fn metrics(State(answers): State<Arc<Answers>>) -> Response {
    match exposition::encode(&answers) {
        Ok(text) => ([(header::CONTENT_TYPE, exposition::CONTENT_TYPE)], text).into_response(),
        // Writing to a text does not fail.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
