//! Several hosts in a DSN: the one that takes writes is found within one patience, whichever are dead.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pgbaton::{Database, control};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options, shared};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

/// A third of the default lease: what a renewal has for one try.
const PATIENCE: Duration = Duration::from_millis(1_667);
const SOON: Duration = Duration::from_secs(60);

on_each_version!(
    the_writable_host_is_found_within_one_patience,
    the_new_primary_is_found_after_a_fail_over,
    errors_tell_of_each_host,
);

/// A port that takes connections and never answers, as a frozen machine does.
struct Silent {
    port: u16,
    taken: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Silent {
    fn start() -> Silent {
        let (port, listener) = listen(64);
        let taken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&taken);
        let accepting = tokio::spawn(async move {
            let mut kept = Vec::new();
            loop {
                kept.push(listener.accept().await.unwrap());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Silent { port, taken, accepting }
    }

    fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A port that drops what would open a connection, as a machine without power does: its queue is full.
struct Dark {
    port: u16,
    _listener: tokio::net::TcpListener,
    _queue: Vec<TcpStream>,
}

impl Dark {
    async fn start() -> Dark {
        let (port, listener) = listen(1);
        let mut queue = Vec::new();
        while let Ok(stream) = timeout(Duration::from_millis(200), TcpStream::connect(("127.0.0.1", port))).await {
            queue.push(stream.unwrap());
            assert!(queue.len() < 100, "the queue has no end");
        }
        Dark { port, _listener: listener, _queue: queue }
    }
}

fn listen(backlog: u32) -> (u16, tokio::net::TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(backlog).unwrap();
    (listener.local_addr().unwrap().port(), listener)
}

/// A superuser's DSN with these ports of 127.0.0.1 as its hosts.
fn dsn(database: &str, ports: &[u16]) -> String {
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    format!("host={hosts} port={} user=postgres dbname={database}", ports.join(","))
}

/// A server of its own with a database of this name, without the schema.
async fn other(major: u32, database: &str, settings: &[(&str, &str)]) -> Cluster {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let options = Options { settings, ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap();
    let admin = cluster.admin("postgres").await.unwrap();
    admin.batch_execute("set default_transaction_read_only = off").await.unwrap();
    admin.batch_execute(&format!("create database {database}")).await.unwrap();
    cluster
}

async fn the_writable_host_is_found_within_one_patience(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let primary = shared(major).await.unwrap().port();
    let standby = other(major, &outbox.database, &[("default_transaction_read_only", "on")]).await;
    let (silent, dark) = (Silent::start(), Dark::start().await);
    let text = dsn(&outbox.database, &[silent.port, dark.port, standby.port(), primary]);
    let database = Database::new(&text, PATIENCE).unwrap();
    let begun = Instant::now();
    control::status(&database).await.unwrap();
    assert!(begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
    assert_eq!(silent.taken(), 1);
    // Where it was found is where others look first. A busy machine may be late now and then, not each time.
    for _ in 0..10 {
        control::status(&database.clone()).await.unwrap();
    }
    assert!(silent.taken() < 5, "{}", silent.taken());
    // In another order each time.
    let database = Database::new(&format!("{text} load_balance_hosts=random"), PATIENCE).unwrap();
    for _ in 0..4 {
        control::status(&database).await.unwrap();
    }
}

async fn the_new_primary_is_found_after_a_fail_over(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let first = shared(major).await.unwrap().port();
    let mut second = other(major, &outbox.database, &[]).await;
    second.stop_fast().await.unwrap();
    // A server that has this file is in recovery until it is promoted.
    let signal = second.data_directory().join("standby.signal");
    std::fs::write(&signal, "").unwrap();
    second.start_again().await.unwrap();
    let database = Database::new(&dsn(&outbox.database, &[second.port(), first]), PATIENCE).unwrap();
    control::status(&database).await.unwrap();
    // From here on the second one alone is there, first as a standby.
    let gate = super::gate::Gate::start(first).await;
    let text = format!("{} sslmode=disable", dsn(&outbox.database, &[gate.port(), second.port()]));
    let database = Database::new(&text, PATIENCE).unwrap();
    control::status(&database).await.unwrap();
    gate.freeze(true);
    let error = control::status(&database).await.unwrap_err();
    assert_eq!(error.code(), "database.unavailable", "{error}");
    assert!(error.to_string().contains("in recovery") && error.to_string().contains("no answer within"), "{error}");
    second.admin("postgres").await.unwrap().batch_execute("select pg_promote()").await.unwrap();
    // The second has no schema, and says so: the one that was promoted is the one that answers.
    let error = control::status(&database).await.unwrap_err();
    assert_eq!(error.code(), "schema.mismatch", "{error}");
}

async fn errors_tell_of_each_host(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let primary = shared(major).await.unwrap().port();
    let standby = other(major, &outbox.database, &[("default_transaction_read_only", "on")]).await;
    let (silent, standby) = (Silent::start(), standby.port());
    let told = async |rest: &str, ports: &[u16]| {
        let database = Database::new(&format!("{} {rest}", dsn(&outbox.database, ports)), PATIENCE).unwrap();
        let begun = Instant::now();
        let error = control::status(&database).await.unwrap_err();
        assert!(begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
        error
    };
    let error = told("", &[silent.port, 1, standby]).await;
    assert_eq!(error.code(), "database.unavailable");
    for text in [
        format!("127.0.0.1:{}: no answer within 1.", silent.port),
        "127.0.0.1:1: no answer from the database: error connecting to server: Connection refused".into(),
        format!("127.0.0.1:{standby}: the server is read-only"),
    ] {
        assert!(error.to_string().contains(&text), "{text} is missing in {error}");
    }
    assert_eq!(told("", &[standby, standby]).await.code(), "database.not_writable");
    assert_eq!(told("", &[standby]).await.code(), "database.not_writable");
    let error = told("user=nobody_at_all", &[primary, standby]).await;
    assert_eq!(error.code(), "refused", "{error}");
    // What is read-only by default is a primary still, and anything is anything: both lack the schema.
    for rest in ["target_session_attrs=primary", "target_session_attrs=any"] {
        assert_eq!(told(rest, &[standby]).await.code(), "schema.mismatch", "{rest}");
    }
    // A name with a dead address among several is not there to be had on every machine; `localhost` always is.
    let named = format!("host=localhost port={primary} user=postgres dbname={}", outbox.database);
    control::status(&Database::new(&named, SOON).unwrap()).await.unwrap();
}
