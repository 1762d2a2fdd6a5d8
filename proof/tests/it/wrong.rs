//! Each wrong relay of `proof/wrong` is caught by the checker of torture runs, and the right one, in the same scene, is not.
//!
//! A [`Scene`] is one database, one relay of some replicas, and messages whose commit order is known. Its replicas are the wrong
//! executable and its schema is the wrong one's, or both are those that all tests use.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use checker::history::{Event, Phase, Run};
use proof::fixture::{self, Fixture, connect, finish, toml_text};
use proof::process::Process;
use proof::servers::{Cluster, shared};
use proof::torture::book::{self, Book};
use tokio_postgres::Client;
use writer::Written;

use crate::hand::{SOON, until};
use crate::lines::ids_in;

mod classic;
mod clock;
mod failover;
mod leases;
mod reading;
mod segments;
mod writer;

/// How long the leases of replicas last here.
const TTL: Duration = Duration::from_secs(2);

/// What a wrong relay has not delivered so long after the last message it never will.
const PATIENCE: Duration = Duration::from_secs(3);

/// Two tests of each wrong relay: the checker's verdict names this check; for the right one it names none.
macro_rules! caught {
    ($($module:ident::$name:ident = $relay:literal by $check:literal),+ $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn is_caught() {
                let found = super::$module::$name(Some($relay)).await;
                assert!(found.contains(&$check.to_owned()), "expected {}, found {found:?}", $check);
            }
            #[tokio::test]
            async fn the_right_one_is_not() {
                let found = super::$module::$name(None).await;
                assert!(found.is_empty(), "{found:?}");
            }
        }
    )+ };
}

caught! {
    leases::renews_after_expiry = "renews-after-expiry" by "lease",
    leases::acknowledges_without_the_epoch = "acknowledges-without-the-epoch" by "repeats",
    reading::reads_by_id = "reads-by-id" by "lost",
    reading::orders_by_xid = "orders-by-xid" by "order",
    reading::takes_a_floor_too_new = "floor-too-new" by "lost",
    segments::empties_what_is_needed = "empties-what-is-needed" by "lost",
    failover::keeps_positions = "keeps-positions-over-a-failover" by "lost",
    classic::publishes_after_its_locks = "classic" by "repeats",
    clock::expires_by_the_servers_clock = "expires-by-the-servers-clock" by "exclusive",
}

/// Where messages go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sink {
    /// A file of each replica: nobody is refused, nothing is dropped.
    Files,
    /// One table, which refuses old epochs and drops repeats.
    Inbox,
}

struct Scene {
    fixture: Fixture,
    /// Of a superuser, where the outbox is now.
    dsn: String,
    admin: Client,
    wrong: Option<&'static str>,
    sink: Sink,
    /// Of the histories.
    folder: PathBuf,
    book: Book,
    /// Of books that are no replica's, besides the stage's.
    others: Vec<book::Count>,
    written: Written,
    replicas: BTreeMap<String, Process>,
}

impl Scene {
    /// On the server that all tests share.
    async fn new(wrong: Option<&'static str>, sink: Sink) -> Scene {
        Scene::on(shared(15).await.unwrap(), wrong, sink).await
    }

    async fn on(cluster: &Cluster, wrong: Option<&'static str>, sink: Sink) -> Scene {
        let (mut fixture, mut more) = (Fixture::unmigrated(cluster).await.unwrap(), "");
        if let Some(name) = wrong {
            fixture = fixture.with_executable(proof::wrong::executable().unwrap());
            let set = format!("alter database {} set pgbaton.wrong = '{name}'", fixture.database);
            fixture.admin().await.unwrap().batch_execute(&set).await.unwrap();
            // One of them writes that, in a statement that all of them have.
            more = "grant update (started_at) on pgbaton.replica to pgbaton_relay";
        }
        let mut migrate = fixture.command().unwrap();
        let migrated = finish(migrate.args(["migrate", "--dsn", fixture.migrate_dsn()])).await.unwrap();
        assert!(migrated.status.success(), "{migrated:?}");
        let admin = fixture.admin().await.unwrap();
        admin.batch_execute(&(fixture::grants() + more)).await.unwrap();
        if sink == Sink::Inbox {
            fixture.inbox("app.inbox").await.unwrap();
        }
        writer::prepare(&admin).await;
        let folder = fixture.folder().join("history");
        fs::create_dir(&folder).unwrap();
        let book = Book::open(&folder, "stage").unwrap();
        book.tell(Event::Run(Run {
            seed: 0,
            sink: if sink == Sink::Inbox { "postgres".into() } else { "file".into() },
            exactly_once: sink == Sink::Inbox,
            in_flight: 20,
            batch_messages: 5,
            ttl_ms: u64::try_from(TTL.as_millis()).unwrap(),
            drain_within_ms: u64::try_from(SOON.as_millis()).unwrap(),
        }));
        let (dsn, written, replicas) = (fixture.admin_dsn().to_owned(), Written::default(), BTreeMap::new());
        Scene { fixture, dsn, admin, wrong, sink, folder, book, others: Vec::new(), written, replicas }
    }

    /// The outbox is there from now on.
    async fn is_at(&mut self, dsn: String) {
        self.admin = connect(&dsn).await.unwrap();
        self.dsn = dsn;
    }

    /// Starts a replica with so many lanes and these fail points.
    async fn start(&mut self, name: &str, lanes: usize, faults: &str) {
        let sink = match self.sink {
            Sink::Inbox => self.fixture.inbox_sink("app.inbox"),
            Sink::Files => format!("{{ type = \"file\", path = {} }}", toml_text(&self.file(name).to_string_lossy())),
        };
        let relays = format!(
            "[lease]\nttl = \"{}ms\"\n[relays.orders]\nlanes = {lanes}\nin_flight = 20\nbatch_messages = 5\nsink = {sink}",
            TTL.as_millis()
        );
        let history = self.folder.join(format!("{name}.history"));
        let environment = [
            ("PGBATON_FAULT", OsStr::new(faults)),
            ("PGBATON_HISTORY", history.as_os_str()),
            ("PGBATON_WRONG", OsStr::new(self.wrong.unwrap_or_default())),
        ];
        let mut replica = self.fixture.run_with(name, &relays, &environment).unwrap();
        replica.wait_for_line("joined", SOON).await.unwrap();
        self.replicas.insert(name.to_owned(), replica);
    }

    fn replica(&mut self, name: &str) -> &mut Process {
        self.replicas.get_mut(name).unwrap()
    }

    /// Waits until it has said of so many lanes, all in all, that it claimed them.
    async fn claims(&mut self, name: &str, lanes: usize) {
        self.replica(name).wait_for_lines("claimed", lanes, SOON).await.unwrap();
    }

    /// Waits until a fail point has stopped this replica.
    async fn is_stopped(&mut self, name: &str) {
        until("the replica is stopped", async || self.replicas[name].is_stopped()).await;
        self.tell_of_fault(name, Phase::Begin);
    }

    /// Stops it.
    async fn freeze(&mut self, name: &str) {
        self.replica(name).pause().unwrap();
        self.tell_of_fault(name, Phase::Begin);
    }

    /// Lets it go on.
    async fn wakes_up(&mut self, name: &str) {
        self.replica(name).resume().unwrap();
        self.tell_of_fault(name, Phase::End);
    }

    /// Waits until it has found out that its lease was over.
    async fn starts_anew(&mut self, name: &str) {
        self.replica(name).wait_for_lines("joined", 2, SOON).await.unwrap();
    }

    fn tell_of_fault(&self, name: &str, phase: Phase) {
        let pid = Some(self.replicas[name].id());
        self.book.tell(Event::Fault { number: 1, kind: "stop".into(), target: name.to_owned(), pid, phase });
    }

    /// Ends it in good order.
    async fn stop(&mut self, name: &str) {
        let mut replica = self.replicas.remove(name).unwrap();
        replica.terminate().unwrap();
        assert!(replica.wait(SOON).await.unwrap().success());
    }

    fn file(&self, replica: &str) -> PathBuf {
        self.fixture.folder().join(format!("{replica}.jsonl"))
    }

    /// What has arrived, place by place.
    async fn arrived(&self) -> BTreeMap<String, Vec<String>> {
        if self.sink == Sink::Files {
            let file = |entry: fs::DirEntry| {
                let path = entry.path();
                let name = path.file_name()?.to_string_lossy().into_owned();
                name.ends_with(".jsonl").then(|| (name, ids_in(&path)))
            };
            return fs::read_dir(self.fixture.folder()).unwrap().filter_map(|entry| file(entry.unwrap())).collect();
        }
        let rows = self.admin.query("select message_id from app.inbox order by seq", &[]).await.unwrap();
        BTreeMap::from([("app.inbox".to_owned(), rows.iter().map(|row| row.get(0)).collect())])
    }

    /// How many of the committed messages have not arrived.
    async fn missing(&self) -> usize {
        let arrived: HashSet<String> = self.arrived().await.into_values().flatten().collect();
        self.written.expected(&writer::ledger(&self.admin).await).difference(&arrived).count()
    }

    async fn all_delivered(&self) {
        until("all is delivered", async || self.missing().await == 0).await;
    }

    /// Waits until all is delivered, or nothing more is.
    async fn wait_for_the_rest(&self) {
        let patience = if self.wrong.is_some() { PATIENCE } else { SOON };
        let mut last = (usize::MAX, Instant::now());
        until("all is delivered, or never", async || {
            let missing = self.missing().await;
            if missing != last.0 {
                last = (missing, Instant::now());
            }
            missing == 0 || last.1.elapsed() > patience
        })
        .await;
    }

    /// The end of the story. Gives the names of the checks that found something.
    async fn judged(mut self) -> Vec<String> {
        self.book.tell(Event::Calm);
        self.wait_for_the_rest().await;
        self.book.tell(Event::Drained);
        for name in self.replicas.keys().cloned().collect::<Vec<_>>() {
            self.stop(&name).await;
        }
        for (place, ids) in self.arrived().await {
            self.book.tell(Event::Arrived { place, ids });
        }
        self.book.tell(Event::Ledger { transactions: writer::ledger(&self.admin).await });
        self.book.tell(book::end(&self.book, &self.others));
        self.book.whole().unwrap();
        found(&self.folder)
    }
}

/// The names of the checks that the histories of this folder do not pass.
fn found(folder: &Path) -> Vec<String> {
    let verdict = checker::check(folder).unwrap();
    print!("{}", checker::table(&verdict));
    verdict.violated.keys().map(|check| check.name().to_owned()).collect()
}
