//! Trouble with the outbox's database and the way to it, each survived by the same processes: nothing lost, nothing twice,
//! order kept, no publish after the lease, and health and metrics as docs/metrics.md promises.
//!
//! A [`Stage`] has an outbox, replicas under a steady load, and an inbox on another server (or in another database, where the
//! server itself is not in trouble), so that only the outbox's side is.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use proof::fixture::{Fixture, PRODUCER, RELAY, connect, toml_text};
use proof::process::Process;
use tokio_postgres::Client;

use crate::daemon::ANYWHERE;
use crate::hand::{SOON, until};
use load::Load;
use watched::{Sample, Watched};

mod clock;
mod limits;
mod load;
mod network;
mod restart;
mod rolling;
mod truncation;
mod watched;

/// The lease of all replicas here, unless a test says otherwise.
pub const TTL: Duration = Duration::from_secs(2);

/// Customers from here on belong to [`Stage::normal`].
const PROBES: i32 = 100_000;

/// The relay's name.
const RELAY_NAME: &str = "orders";

/// An outbox, its replicas, and an inbox somewhere else.
pub struct Stage {
    pub fixture: Fixture,
    /// Where the inbox is.
    pub far: Fixture,
    pub inbox: Client,
    pub replicas: Vec<Watched>,
    probes: i32,
}

impl Stage {
    /// Without a replica yet. The inbox is on the server that all tests share.
    pub async fn new(fixture: Fixture, major: u32) -> Stage {
        load::prepare(&fixture.admin().await.unwrap(), PRODUCER).await;
        let far = Fixture::new(major).await.unwrap();
        far.inbox("app.inbox").await.unwrap();
        let inbox = far.admin().await.unwrap();
        // Who delivered it: no part of what pgbaton asks for.
        let sender = "alter table app.inbox add column sender text default current_setting('application_name')";
        inbox.batch_execute(sender).await.unwrap();
        Stage { fixture, far, inbox, replicas: Vec::new(), probes: PROBES }
    }

    /// With two replicas that share the lanes, directly at the server.
    pub async fn of_two(fixture: Fixture, major: u32) -> Stage {
        let mut stage = Stage::new(fixture, major).await;
        let dsn = stage.fixture.relay_dsn().to_owned();
        for name in ["r1", "r2"] {
            stage.start(name, &dsn, "").await;
        }
        stage.shared_out().await;
        stage
    }

    /// The configuration of a replica: `limits` are further keys of the relay.
    pub fn relays(&self, name: &str, limits: &str) -> String {
        let dsn = format!("{} application_name={name}", self.far.relay_dsn());
        format!(
            "{ANYWHERE}[lease]\nttl = \"{}s\"\n[relays.{RELAY_NAME}]\n{limits}\n\
             sink = {{ type = \"postgres\", dsn = {}, table = \"app.inbox\" }}\n",
            TTL.as_secs(),
            toml_text(&dsn)
        )
    }

    /// Starts a replica that reaches the outbox by this DSN.
    pub async fn start(&mut self, name: &str, dsn: &str, limits: &str) {
        let relays = self.relays(name, limits);
        let process = start(&self.fixture, name, dsn, &relays);
        self.replicas.push(Watched::new(process).await);
    }

    /// Returns when the replicas hold all lanes, each its share.
    pub async fn shared_out(&self) {
        let admin = self.fixture.admin().await.unwrap();
        let sql = "select count(*) filter (where owner is not null) = count(*) and count(distinct owner) = $1
                   from pgbaton.lane having count(*) > 0";
        let replicas = i64::try_from(self.replicas.len()).unwrap();
        until("the lanes are shared out", async || {
            let row = admin.query_opt(sql, &[&replicas]).await.unwrap();
            row.is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
        })
        .await;
        for replica in &self.replicas {
            replica.ready().await;
        }
    }

    /// Messages until they are told to stop, a few hundred a second.
    pub async fn load(&self) -> Load {
        let load = Load::start(self.fixture.producer_dsn(), 4, Duration::from_millis(5));
        until("messages come in", async || load.committed() > 100).await;
        load
    }

    /// How long it takes until messages of many keys, sent now, have all been delivered.
    pub async fn normal(&mut self, after: &str) -> Duration {
        const KEYS: i32 = 64;
        let began = Instant::now();
        let keys = self.probes..self.probes + KEYS;
        self.probes = keys.end;
        // The server may not take connections yet.
        until("messages are taken", async || {
            let Ok(client) = connect(self.fixture.producer_dsn()).await else { return false };
            let sql = "select shop.order(n) from generate_series($1::int, $2::int) n";
            client.execute(sql, &[&keys.start, &(keys.end - 1)]).await.is_ok()
        })
        .await;
        let sql = "select count(*) from app.inbox where key::int between $1 and $2";
        let delivered =
            async || -> i64 { self.inbox.query_one(sql, &[&keys.start, &(keys.end - 1)]).await.unwrap().get(0) };
        until("they are delivered", async || delivered().await == i64::from(KEYS)).await;
        let took = began.elapsed();
        println!("figure: back to normal after {after}: {} ms", took.as_millis());
        assert!(took < Duration::from_secs(30), "{took:?} after {after}");
        took
    }

    /// All samples of all replicas since then.
    pub fn samples(&self, since: Instant) -> Vec<Sample> {
        self.replicas.iter().flat_map(|replica| replica.samples(since)).collect()
    }

    /// Ends the load, waits for the rest, and judges: what the ledger says was committed has arrived, once and in order; the
    /// processes are those that were started.
    pub async fn finish(self, load: Load) -> Duration {
        let longest = load.end().await;
        self.judge().await;
        longest
    }

    async fn judge(self) {
        let admin = self.fixture.admin().await.unwrap();
        judge(&admin, &self.inbox, RELAY_NAME).await;
        for mut replica in self.replicas {
            replica.judge().await;
        }
    }
}

/// Starts a replica that reaches the outbox by this DSN.
fn start(fixture: &Fixture, name: &str, dsn: &str, relays: &str) -> Process {
    let mut command = fixture.command().unwrap();
    let file = fixture.configuration(name, relays).unwrap();
    command.arg("run").arg("--config").arg(file).env("PGBATON__DATABASE__DSN", dsn);
    Process::start(name, fixture.folder(), command).unwrap()
}

/// What was committed, as the ledger has it: the key and its count by message id.
async fn ledger(admin: &Client) -> HashMap<String, (i32, i64)> {
    let rows = admin.query("select message_id::text, customer, n from shop.ledger", &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// Waits until the inbox holds as many messages as the ledger, and compares.
async fn judge(admin: &Client, inbox: &Client, relay: &str) {
    let ledger = ledger(admin).await;
    let count = "select count(*) from app.inbox where relay = $1";
    let wanted = i64::try_from(ledger.len()).unwrap();
    until("everything arrives", async || inbox.query_one(count, &[&relay]).await.unwrap().get::<_, i64>(0) >= wanted)
        .await;
    let sql = "select message_id, key, convert_from(payload, 'UTF8') from app.inbox where relay = $1 order by seq";
    let rows = inbox.query(sql, &[&relay]).await.unwrap();
    let mut counts: BTreeMap<i32, i64> = BTreeMap::new();
    for row in &rows {
        let (id, key, n): (&str, &str, &str) = (row.get(0), row.get(1), row.get(2));
        let arrived: (i32, i64) = (key.parse().unwrap(), n.parse().unwrap());
        assert_eq!(ledger.get(id), Some(&arrived), "{id} was not committed so");
        let before = counts.insert(arrived.0, arrived.1).unwrap_or_default();
        assert_eq!(before + 1, arrived.1, "order of key {key}, or a gap in it");
    }
    assert_eq!(rows.len(), ledger.len(), "the inbox is unique by message id");
    println!("figure: {} messages, each once and in order", rows.len());
}

/// Every backend of the relay's role in this database.
async fn each_backend(admin: &Client, what: &str) -> i64 {
    let sql = format!(
        "select count({what}(pid)) from pg_stat_activity where datname = current_database() and usename = '{RELAY}'"
    );
    admin.query_one(&sql, &[]).await.unwrap().get(0)
}

/// Does something again and again for a while.
async fn for_a_while(length: Duration, pause: Duration, mut act: impl AsyncFnMut()) {
    let began = Instant::now();
    while began.elapsed() < length {
        act().await;
        tokio::time::sleep(pause).await;
    }
}

/// Waits out a length of time that a trouble is to last.
async fn lasts(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Finds out whether the replicas noticed, and fails with what they said if not.
fn some(samples: &[Sample], what: &str, holds: impl Fn(&Sample) -> bool) {
    assert!(samples.iter().any(holds), "never {what}: {samples:#?}");
}

/// The same for all of them.
fn all(samples: &[Sample], what: &str, holds: impl Fn(&Sample) -> bool) {
    assert!(!samples.is_empty(), "nothing was looked at");
    if let Some(bad) = samples.iter().find(|sample| !holds(sample)) {
        panic!("not {what}: {bad:#?}");
    }
}

/// Messages that a replica delivered: when, by the inbox's clock, which is this machine's.
async fn delivered_by(inbox: &Client, sender: &str) -> Vec<std::time::SystemTime> {
    let sql = "select received_at from app.inbox where sender = $1 order by seq";
    inbox.query(sql, &[&sender]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

/// Has segments emptied, as replicas do every few seconds.
async fn housekeep(fixture: &Fixture) {
    let database = pgbaton::Database::new(fixture.relay_dsn(), SOON).unwrap();
    pgbaton::housekeeping::empty(&database).await.unwrap();
}
