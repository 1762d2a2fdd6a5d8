//! A gate between a client and the server: holds, rewrites and delays single messages of the protocol, so that a test
//! decides what happens between two statements instead of hoping for it.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pgbaton::clock;
use pgbaton::lease::BootInstant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Which messages of a client a rule is about. Only those that carry SQL are looked at.
#[derive(Clone)]
pub enum Match {
    /// SQL that contains one of these texts.
    Contains(Vec<String>),
    /// SQL that is this text.
    Is(&'static str),
}

impl Match {
    /// The statement of this file of `sql/`.
    pub fn verb(name: &str) -> Match {
        Match::Contains(vec![super::hand::sql(name).to_owned()])
    }

    fn fits(&self, sql: &str) -> bool {
        match self {
            Match::Contains(texts) => texts.iter().any(|text| sql.contains(text.as_str())),
            Match::Is(text) => sql == *text,
        }
    }
}

enum Action {
    Hold(Arc<Hold>),
    /// Puts this behind the SQL of a simple query.
    Append(String),
    /// The answer is passed on so much later.
    Delay(Duration),
    /// Every time.
    Note(Arc<Mutex<Vec<BootInstant>>>),
}

struct Rule {
    fits: Match,
    /// How many fitting messages to let pass first.
    skip: usize,
    action: Action,
}

#[derive(Default)]
struct Hold {
    reached: Notify,
    released: Notify,
}

/// A message that is held, or will be.
pub struct Held(Arc<Hold>);

impl Held {
    /// Returns when the message has come.
    pub async fn reached(&self) {
        self.0.reached.notified().await;
    }

    /// Lets it go on.
    pub fn release(self) {
        self.0.released.notify_one();
    }
}

struct Shared {
    server: u16,
    rules: Mutex<Vec<Rule>>,
    frozen: watch::Sender<bool>,
    /// Until when the answers of a connection are kept back.
    delays: Mutex<HashMap<u64, Instant>>,
    next: AtomicU64,
}

/// The gate. Connections through it live as long as it does.
pub struct Gate {
    port: u16,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Gate {
    /// A gate in front of the server on this port.
    pub async fn start(server: u16) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server,
            rules: Mutex::default(),
            frozen: watch::Sender::new(false),
            delays: Mutex::default(),
            next: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Gate { port, shared, accepting }
    }

    /// The port that it listens on. It understands no question for TLS, so DSNs need `sslmode=disable`.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The DSN that goes through this gate.
    pub fn dsn(&self, dsn: &str) -> String {
        let direct = format!("port={}", self.shared.server);
        assert!(dsn.contains(&direct), "{dsn}");
        dsn.replace(&direct, &format!("sslmode=disable port={}", self.port))
    }

    /// Holds the next fitting message.
    pub fn hold(&self, fits: Match) -> Held {
        self.hold_after(0, fits)
    }

    /// Holds the fitting message that comes after so many others.
    pub fn hold_after(&self, skip: usize, fits: Match) -> Held {
        let hold = Arc::new(Hold::default());
        self.rule(skip, fits, Action::Hold(Arc::clone(&hold)));
        Held(hold)
    }

    /// Puts a statement behind those of the next fitting simple query.
    pub fn append(&self, fits: Match, statement: &str) {
        self.rule(0, fits, Action::Append(format!("; {statement}")));
    }

    /// Keeps back the answer to the next fitting message.
    pub fn delay_answer(&self, fits: Match, by: Duration) {
        self.rule(0, fits, Action::Delay(by));
    }

    /// Notes when fitting messages come by, before they are passed on.
    pub fn note(&self, fits: Match) -> Arc<Mutex<Vec<BootInstant>>> {
        let times = Arc::default();
        self.rule(0, fits, Action::Note(Arc::clone(&times)));
        times
    }

    /// While frozen nothing passes in either direction, on old and new connections.
    pub fn freeze(&self, frozen: bool) {
        self.shared.frozen.send_replace(frozen);
    }

    fn rule(&self, skip: usize, fits: Match, action: Action) {
        self.shared.rules.lock().unwrap().push(Rule { fits, skip, action });
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            // A server that is down refuses, and so does the gate then.
            let Ok(server) = TcpStream::connect(("127.0.0.1", shared.server)).await else { return };
            // As the driver does it: a message is not to wait for the acknowledgement of the one before.
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
            // Whichever side ends first ends both.
            let _ = tokio::select! {
                ended = forth(from_client, to_server, &shared, number) => ended,
                ended = back(from_server, to_client, &shared, number) => ended,
            };
        });
    }
}

async fn forth(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, number: u64) -> io::Result<()> {
    let mut first = true;
    loop {
        let message = read_message(&mut from, first).await?;
        first = false;
        let message = meet(message, shared, number).await;
        thawed(shared).await;
        to.write_all(&message).await?;
    }
}

/// The first message of a connection has no type.
async fn read_message(from: &mut OwnedReadHalf, first: bool) -> io::Result<Vec<u8>> {
    let head = if first { 4 } else { 5 };
    let mut message = vec![0; head];
    from.read_exact(&mut message).await?;
    let length = usize::try_from(u32::from_be_bytes(message[head - 4..].try_into().unwrap())).unwrap();
    message.resize(head + length - 4, 0);
    from.read_exact(&mut message[head..]).await?;
    Ok(message)
}

/// The SQL of a simple query or of a statement to be parsed, which has no name here.
fn sql(message: &[u8]) -> Option<&str> {
    let start = match message.first()? {
        b'Q' => 5,
        b'P' => 6,
        _ => return None,
    };
    let text = message.get(start..)?;
    std::str::from_utf8(&text[..text.iter().position(|byte| *byte == 0)?]).ok()
}

async fn meet(mut message: Vec<u8>, shared: &Shared, number: u64) -> Vec<u8> {
    let Some(text) = sql(&message) else { return message };
    let mut hold = None;
    let mut addition = None;
    shared.rules.lock().unwrap().retain_mut(|rule| {
        if !rule.fits.fits(text) {
            return true;
        }
        if rule.skip > 0 {
            rule.skip -= 1;
            return true;
        }
        match &rule.action {
            Action::Note(times) => {
                times.lock().unwrap().push(clock::now());
                return true;
            }
            Action::Hold(held) => hold = Some(Arc::clone(held)),
            Action::Append(statement) => addition = Some(statement.clone()),
            Action::Delay(by) => {
                shared.delays.lock().unwrap().insert(number, Instant::now() + *by);
            }
        }
        false
    });
    if let Some(statement) = addition {
        assert_eq!(message[0], b'Q');
        message.pop();
        message.extend(statement.as_bytes());
        message.push(0);
        let length = u32::try_from(message.len() - 1).unwrap();
        message[1..5].copy_from_slice(&length.to_be_bytes());
    }
    if let Some(hold) = hold {
        hold.reached.notify_one();
        hold.released.notified().await;
    }
    message
}

async fn back(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, number: u64) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let until = shared.delays.lock().unwrap().get(&number).copied();
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
        thawed(shared).await;
        to.write_all(&buffer[..read]).await?;
    }
}

async fn thawed(shared: &Shared) {
    // The sender lives as long as `shared` does.
    let _ = shared.frozen.subscribe().wait_for(|frozen| !frozen).await;
}
