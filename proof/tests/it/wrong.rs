//! Each wrong relay of `proof/wrong` is caught by the checker of torture runs, and the right one, in the same scene, is not.
//!
//! A [`Scene`] is one database, one relay of some replicas, and messages whose commit order is known. Executable and schema are
//! those that are all wrong relays; without the name of one they are the right one, so that nothing else differs.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use checker::Verdict;
use checker::history::{Event, Phase, Run};
use proof::fixture::{self, Fixture, connect, finish, toml_text};
use proof::process::Process;
use proof::servers::{Cluster, shared};
use proof::torture::book::{self, Book};
use tokio_postgres::Client;
use writer::Written;

use crate::hand::{SOON, until};
use crate::lines::ids_in;

mod adopted;
mod classic;
mod clock;
mod failover;
mod leases;
mod reading;
mod segments;
mod writer;

/// How long the leases of replicas last here.
const TTL: Duration = Duration::from_secs(2);

/// A sentinel that has not arrived by then may be lost itself: another one is sent.
const PATIENCE: Duration = Duration::from_secs(3);

/// The first key of sentinels.
const SENTINELS: u32 = 1_000;

/// Two tests of each wrong relay: of each of these checks the verdict lists a violation that says this, and of no other ones
/// than those `beside`; for the right one it lists none.
macro_rules! caught {
    ($($module:ident::$name:ident = $relay:literal by [$($by:expr),+] beside [$($beside:literal),*]),+ $(,)?) => { $(
        mod $name {
            #[tokio::test]
            async fn is_caught() {
                super::is_caught(&super::$module::$name(Some($relay)).await, &[$($by),+], &[$($beside),*]);
            }
            #[tokio::test]
            async fn the_right_one_is_not() {
                let verdict = super::$module::$name(None).await;
                assert!(verdict.passed, "{:?}", verdict.violated);
            }
        }
    )+ };
}

fn is_caught(verdict: &Verdict, by: &[(&str, &str)], beside: &[&str]) {
    for (check, says) in by {
        let mut listed = verdict.violations.iter().filter(|violation| violation.check.name() == *check);
        assert!(listed.any(|violation| violation.text.contains(says)), "no violation of {check} says: {says}");
    }
    let expected = |check: &&str| by.iter().any(|(name, _)| name == check) || beside.contains(check);
    let others: Vec<&str> =
        verdict.violated.keys().map(|check| check.name()).filter(|check| !expected(check)).collect();
    assert!(others.is_empty(), "{others:?} found something, too");
}

caught! {
    // By then the lane is another one's, which has delivered the same.
    leases::renews_after_expiry = "renews-after-expiry" by [("lease", "after its lease")] beside ["exclusive", "repeats"],
    leases::acknowledges_without_the_epoch = "acknowledges-without-the-epoch"
        by [("positions", " fell: batch "), ("repeats", "after a position that covers it was confirmed")] beside [],
    reading::reads_by_id = "reads-by-id" by [("lost", "and was never published")] beside [],
    reading::orders_by_xid = "orders-by-xid" by [("order", "which was committed after it")] beside [],
    reading::takes_a_floor_too_new = "floor-too-new" by [("lost", "and was never published")] beside [],
    segments::empties_what_is_needed = "empties-what-is-needed" by [("lost", "was emptied after it was written")] beside [],
    failover::keeps_positions = "keeps-positions-over-a-failover" by [("lost", "and was never published")] beside [],
    classic::publishes_after_its_locks = "classic" by [("repeats", "arrived 2 times")]
        // It has no lanes and no leases: both replicas tell of one lane, which none was given.
        beside ["in_flight", "exclusive", "lease"],
    adopted::marks_before_it_delivers = "marks-before-it-delivers" by [("lost", "though it was handed to the sink; a position passed it")]
        beside [],
    adopted::looks_from_the_last_row = "looks-from-the-last-row" by [("lost", "and was never published")] beside [],
    adopted::forgets_no_mark = "forgets-no-mark" by [("meddled", "and was not sent again")] beside [],
    clock::expires_by_the_servers_clock = "expires-by-the-servers-clock" by [("exclusive", "was taken")] beside [],
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
    ttl: Duration,
    /// More of the relay's configuration.
    more: &'static str,
    /// Messages are rows of a table that the relay adopts.
    adopted: bool,
    /// How many its replicas have started with; none for the classic relay.
    lanes: usize,
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
        Scene::on(shared(15).await.unwrap(), wrong, sink, TTL).await
    }

    async fn on(cluster: &Cluster, wrong: Option<&'static str>, sink: Sink, ttl: Duration) -> Scene {
        // One of the wrong relays writes that, in a statement that all of them have.
        const MORE: &str = "grant update (started_at) on pgbaton.replica to pgbaton_relay";
        let fixture = Fixture::unmigrated(cluster).await.unwrap();
        let fixture = fixture.with_executable(proof::wrong::executable().unwrap());
        if let Some(name) = wrong {
            let set = format!("alter database {} set pgbaton.wrong = '{name}'", fixture.database);
            fixture.admin().await.unwrap().batch_execute(&set).await.unwrap();
        }
        let mut migrate = fixture.command().unwrap();
        let migrated = finish(migrate.args(["migrate", "--dsn", fixture.migrate_dsn()])).await.unwrap();
        assert!(migrated.status.success(), "{migrated:?}");
        let admin = fixture.admin().await.unwrap();
        admin.batch_execute(&(fixture::grants() + MORE)).await.unwrap();
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
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap(),
            drain_within_ms: u64::try_from(SOON.as_millis()).unwrap(),
            drain_ms: 5_000,
        }));
        let (dsn, written, replicas) = (fixture.admin_dsn().to_owned(), Written::default(), BTreeMap::new());
        Scene {
            fixture,
            dsn,
            admin,
            wrong,
            sink,
            ttl,
            more: "",
            adopted: false,
            lanes: 0,
            folder,
            book,
            others: Vec::new(),
            written,
            replicas,
        }
    }

    /// The outbox is there from now on.
    async fn is_at(&mut self, dsn: String) {
        self.admin = connect(&dsn).await.unwrap();
        self.dsn = dsn;
    }

    /// Starts a replica with so many lanes and these fail points.
    async fn start(&mut self, name: &str, lanes: usize, faults: &str) {
        self.lanes = lanes;
        let sink = match self.sink {
            Sink::Inbox => self.fixture.inbox_sink("app.inbox"),
            Sink::Files => format!("{{ type = \"file\", path = {} }}", toml_text(&self.file(name).to_string_lossy())),
        };
        let relays = format!(
            "[lease]\nttl = \"{}ms\"\n[relays.orders]\nlanes = {lanes}\nin_flight = 20\nbatch_messages = 5\n{}\nsink = {sink}",
            self.ttl.as_millis(),
            self.more
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
        self.tell_of("stop", name, phase);
    }

    fn tell_of(&self, kind: &str, name: &str, phase: Phase) {
        let pid = Some(self.replicas[name].id());
        self.book.tell(Event::Fault { number: 1, kind: kind.into(), target: name.to_owned(), pid, phase });
    }

    /// Ends it in good order.
    async fn stop(&mut self, name: &str) {
        let mut replica = self.replicas.remove(name).unwrap();
        replica.terminate().unwrap();
        assert!(replica.wait(SOON).await.unwrap().success());
    }

    /// How many events of this kind a process has told of.
    fn told(&self, name: &str, event: &str) -> usize {
        let told = fs::read_to_string(self.folder.join(format!("{name}.history"))).unwrap();
        told.matches(&format!("\"event\":\"{event}\"")).count()
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

    /// The first key from this one on of each lane.
    async fn key_of_each_lane(&self, from: u32) -> BTreeSet<u32> {
        let sql = "select hashtextextended($1 collate \"C\", 0) & ($2::bigint - 1)";
        let lanes = i64::try_from(self.lanes).unwrap();
        let (mut keys, mut key) = (BTreeMap::new(), from);
        while keys.len() < self.lanes {
            let lane: i64 = self.admin.query_one(sql, &[&writer::name(key), &lanes]).await.unwrap().get(0);
            keys.entry(lane).or_insert(key);
            key += 1;
        }
        keys.into_values().collect()
    }

    /// How many of the committed messages have not arrived.
    async fn missing(&self) -> usize {
        let arrived: HashSet<String> = self.arrived().await.into_values().flatten().collect();
        self.written.expected(&writer::ledger(&self.admin).await).difference(&arrived).count()
    }

    async fn all_delivered(&self) {
        until("all is delivered", async || self.missing().await == 0).await;
    }

    /// Sends a last message through each lane and waits for it: what has not arrived by then was passed over, and not just slow.
    /// A wrong relay may lose that one, too, and then gets another.
    async fn sentinels_arrive(&mut self) {
        let mut waiting: BTreeMap<u32, (Vec<String>, Instant)> = BTreeMap::new();
        for key in self.key_of_each_lane(SENTINELS).await {
            waiting.insert(key, (self.write(key, 1).await, Instant::now()));
        }
        until("a last message of each lane has arrived", async || {
            let arrived: HashSet<String> = self.arrived().await.into_values().flatten().collect();
            waiting.retain(|_, (ids, _)| !ids.iter().all(|id| arrived.contains(id)));
            for (key, (ids, sent)) in &mut waiting {
                if sent.elapsed() > PATIENCE {
                    (*ids, *sent) = (self.write(*key, 1).await, Instant::now());
                }
            }
            waiting.is_empty()
        })
        .await;
    }

    /// The end of the story, and the verdict on it.
    async fn judged(mut self) -> Verdict {
        self.sentinels_arrive().await;
        self.book.tell(Event::Calm);
        self.book.tell(Event::Drained);
        for name in self.replicas.keys().cloned().collect::<Vec<_>>() {
            self.stop(&name).await;
        }
        for (place, ids) in self.arrived().await {
            self.book.tell(Event::Arrived { place, ids, contents: Vec::new() });
        }
        self.book.tell(Event::Ledger { transactions: writer::ledger(&self.admin).await });
        self.book.tell(book::end(&self.book, &self.others));
        self.book.whole().unwrap();
        let verdict = checker::check(&self.folder).unwrap();
        print!("{}", checker::table(&verdict));
        verdict
    }
}
