//! Segments are emptied while everything that could be in the way is: long readers, dumps, late and prepared transactions, relays
//! that come and go, lanes that are split, a replica that dies.

use std::collections::{BTreeMap, HashSet};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proof::fixture::{Fixture, connect};
use proof::on_each_version;
use proof::servers::Binaries;

use super::load::Load;
use super::{Stage, Watched, housekeep, start};
use crate::hand::{self, SOON, sql, until};
use crate::relays::ask;

on_each_version!(segments_are_emptied_whatever_else_goes_on);

/// How long all of it goes on at least, and until segments were emptied so often.
const LENGTH: Duration = Duration::from_secs(12);
const EMPTIED: usize = 3;

async fn segments_are_emptied_whatever_else_goes_on(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let set =
        ["segments", "set", "--count", "3", "--length", "1s", "--retention", "0s", "--dsn", fixture.migrate_dsn()];
    assert!(ask(&fixture, &set).await.status.success());
    let mut stage = Stage::new(fixture, major).await;
    let dsn = stage.fixture.relay_dsn().to_owned();
    for name in ["r1", "r2"] {
        stage.start(name, &dsn, "lanes = 4").await;
    }
    stage.shared_out().await;
    let load = stage.load().await;
    let victim = stage.replicas.remove(0);
    let (outbox, binaries) = (&stage.fixture, Binaries::find(major).unwrap());
    let stop = AtomicBool::new(false);
    let going = || !stop.load(Ordering::Relaxed);
    let chaos = async {
        tokio::join!(
            reading(outbox, going),
            dumping(outbox, &binaries, going),
            committing_late(outbox, going),
            preparing(outbox, going),
            coming_and_going(outbox, going),
            splitting(outbox),
            dying(victim),
        )
    };
    let counting = async {
        let emptied = emptied(outbox).await;
        stop.store(true, Ordering::Relaxed);
        emptied
    };
    let late = async {
        tokio::time::sleep(LENGTH / 3).await;
        register_late(&stage).await
    };
    let (emptied, (before, late), _) = tokio::join!(counting, late, chaos);
    println!("figure: segments were emptied {emptied} times");

    stage.start("r1", &dsn, "lanes = 4").await;
    let arrived_late = judge_late(&stage, load, before, late).await;
    println!("figure: {arrived_late} messages of a relay that was registered meanwhile");
    // What is left is emptied once nobody uses it.
    let admin = stage.fixture.admin().await.unwrap();
    let left = "select count(*) from pgbaton.outbox";
    until("all of it is emptied", async || {
        housekeep(&stage.fixture).await;
        // A lane that matched nothing writes its position now and then; a message for each does at once.
        admin.execute("select shop.order(n) from generate_series(200000, 200063) n", &[]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        admin.query_one(left, &[]).await.unwrap().get::<_, i64>(0) < 1_000
    })
    .await;
    stage.judge().await;
}

/// Tries again and again, without the look that replicas take first: each try may have to wait for the lock. Gives how often
/// segments were emptied, by this or by replicas.
async fn emptied(outbox: &Fixture) -> usize {
    let (admin, relay) = (outbox.admin().await.unwrap(), outbox.relay().await.unwrap());
    let (mut seen, mut reasons) = (HashSet::new(), BTreeMap::<String, usize>::new());
    let began = Instant::now();
    while began.elapsed() < LENGTH || seen.len() < EMPTIED {
        assert!(began.elapsed() < SOON, "emptied {} times in {SOON:?}: {reasons:?}", seen.len());
        for segment in 0..3_i16 {
            let row = relay.query_one(sql("empty_segment"), &[&segment]).await.unwrap();
            let why = row.get::<_, Option<String>>(0).unwrap_or_else(|| "emptied, or empty".into());
            *reasons.entry(why).or_default() += 1;
        }
        let by = "select emptied_by::text from pgbaton.segment where emptied_by is not null";
        let rows = admin.query(by, &[]).await.unwrap();
        seen.extend(rows.iter().map(|row| row.get::<_, String>(0)));
    }
    println!("figure: why segments were kept: {reasons:?}");
    seen.len()
}

/// A report: it keeps all segments locked for longer than one of them is written to.
async fn reading(outbox: &Fixture, going: impl Fn() -> bool) {
    let reader = outbox.admin().await.unwrap();
    while going() {
        reader.batch_execute("begin; select count(*) from pgbaton.outbox").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        reader.batch_execute("commit").await.unwrap();
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
}

async fn dumping(outbox: &Fixture, binaries: &Binaries, going: impl Fn() -> bool) {
    while going() {
        let mut command = Command::new(binaries.program("pg_dump"));
        command.args(["--schema", "pgbaton", "--dbname", outbox.admin_dsn()]).env("PGOPTIONS", "-c lock_timeout=0");
        let mut dump = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        until("the dump ends", async || dump.try_wait().unwrap().is_some()).await;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
}

/// Transactions that commit, or do not, long after they have inserted.
async fn committing_late(outbox: &Fixture, going: impl Fn() -> bool) {
    let client = connect(outbox.producer_dsn()).await.unwrap();
    for customer in 1_000_usize.. {
        client.batch_execute(&format!("begin; select shop.order({customer})")).await.unwrap();
        tokio::time::sleep(Duration::from_millis([300, 900, 2_500][customer % 3])).await;
        client.batch_execute(if customer % 5 == 0 { "rollback" } else { "commit" }).await.unwrap();
        if !going() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn preparing(outbox: &Fixture, going: impl Fn() -> bool) {
    let client = connect(outbox.producer_dsn()).await.unwrap();
    for customer in 2_000_usize.. {
        let name = format!("{} {customer}", outbox.database);
        client.batch_execute(&format!("begin; select shop.order({customer})")).await.unwrap();
        client.batch_execute(&format!("prepare transaction '{name}'")).await.unwrap();
        tokio::time::sleep(Duration::from_millis([200, 1_300][customer % 2])).await;
        client.batch_execute(&format!("commit prepared '{name}'")).await.unwrap();
        if !going() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
}

async fn register(outbox: &Fixture, name: &str, latest: bool) {
    let relay = outbox.relay().await.unwrap();
    // As a replica does it: the lock first, in a statement of its own.
    relay.batch_execute("begin isolation level read committed").await.unwrap();
    relay.query_typed(sql("register_lock"), &[]).await.unwrap();
    hand::register(&relay, name, 2, latest).await;
    relay.batch_execute("commit").await.unwrap();
}

/// Relays that nobody runs keep everything for as long as they are registered.
async fn coming_and_going(outbox: &Fixture, going: impl Fn() -> bool) {
    let mut latest = false;
    while going() {
        let name = if latest { "latest" } else { "earliest" };
        register(outbox, name, latest).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let drop = ["relays", "drop", name, "--yes", "--dsn", outbox.migrate_dsn()];
        let dropped = ask(outbox, &drop).await;
        assert!(dropped.status.success(), "{}", String::from_utf8_lossy(&dropped.stderr));
        latest = !latest;
        tokio::time::sleep(Duration::from_millis(1_500)).await;
    }
}

async fn splitting(outbox: &Fixture) {
    for _ in 0..2 {
        tokio::time::sleep(LENGTH / 4).await;
        let split = ask(outbox, &["lanes", "split", "orders", "--yes", "--dsn", outbox.relay_dsn()]).await;
        assert!(split.status.success(), "{}", String::from_utf8_lossy(&split.stderr));
    }
}

async fn dying(mut victim: Watched) {
    tokio::time::sleep(LENGTH / 2).await;
    victim.process.kill().unwrap();
}

/// A relay that begins with what commits from now on: what was committed before, and its process.
async fn register_late(stage: &Stage) -> (HashSet<String>, Watched) {
    register(&stage.fixture, "late", true).await;
    let before = super::ledger(&stage.fixture.admin().await.unwrap()).await.into_keys().collect();
    let relays = stage.relays("r3", "").replace("[relays.orders]", "[relays.late]");
    let process = start(&stage.fixture, "r3", stage.fixture.relay_dsn(), &relays);
    (before, Watched::new(process).await)
}

/// All that was committed since the relay was registered has to come, and in order.
async fn judge_late(stage: &Stage, load: Load, before: HashSet<String>, mut late: Watched) -> usize {
    let longest = load.end().await;
    println!("figure: no order took longer than {} ms", longest.as_millis());
    assert!(longest < Duration::from_secs(2), "a producer waited for {longest:?}");
    let mut wanted = super::ledger(&stage.fixture.admin().await.unwrap()).await;
    wanted.retain(|id, _| !before.contains(id));
    let sql = "select message_id from app.inbox where relay = 'late'";
    until("the late relay has everything", async || {
        let rows = stage.inbox.query(sql, &[]).await.unwrap();
        let arrived: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
        wanted.keys().all(|id| arrived.contains(id))
    })
    .await;
    late.judge().await;
    late.process.terminate().unwrap();
    assert!(late.process.wait(SOON).await.unwrap().success());
    let drop = ["relays", "drop", "late", "--yes", "--dsn", stage.fixture.migrate_dsn()];
    assert!(ask(&stage.fixture, &drop).await.status.success());
    wanted.len()
}
