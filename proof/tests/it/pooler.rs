//! PgBouncer in transaction mode between replicas and their servers: all of the hot path works through it, nothing stays
//! behind on its connections, a fail-over behind it is noticed although no connection breaks, and a dead one costs time.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use proof::fixture::{Fixture, PRODUCER, RELAY, connect};
use proof::on_each_version;
use proof::pooler::Pooler;
use proof::servers::{Binaries, Cluster, Options};
use proof::writers::Verdict;
use tokio_postgres::SimpleQueryMessage;

use crate::daemon::{ANYWHERE, address_of};
use crate::failover::load::{self, Load, books, inbox};
use crate::failover::read_only::{all_deliver, backlog, lease_was_honoured, slow, slow_relay, until_shown};
use crate::failover::{all_can_work, none_can_work};
use crate::hand::{SOON, until, until_none};

on_each_version!(the_whole_life_goes_through_it_and_leaves_nothing_behind);

/// Server connections for each user: fewer than replicas have, so that they share them.
const POOL: u16 = 4;
const LANES: usize = 8;

/// A server with an outbox and an inbox, and a pooler that the relay's role goes through.
struct Behind {
    server: Cluster,
    pooler: Pooler,
    fixture: Fixture,
}

impl Behind {
    async fn start(major: u32) -> Behind {
        let server = Cluster::start(&Binaries::find(major).unwrap(), Options::default()).await.unwrap();
        let fixture = Fixture::on(&server).await.unwrap();
        load::prepare(&fixture.admin().await.unwrap()).await;
        let pooler = Pooler::start(server.port(), POOL).await.unwrap();
        let dsn = through(&pooler, &fixture, RELAY);
        Behind { server, pooler, fixture: fixture.with_relay_dsn(dsn) }
    }
}

fn through(pooler: &Pooler, fixture: &Fixture, user: &str) -> String {
    format!("host=127.0.0.1 port={} user={user} dbname={}", pooler.port(), fixture.database)
}

async fn the_whole_life_goes_through_it_and_leaves_nothing_behind(major: u32) {
    let Behind { server, pooler, fixture } = Behind::start(major).await;
    fixture.inbox("app.inbox").await.unwrap();
    let relays = format!(
        "{ANYWHERE}[lease]\nttl = \"10s\"\n[relays.orders]\nlanes = {LANES}\nsink = {}\n\
         [relays.audit]\nlanes = {LANES}\nsink = {}\n",
        fixture.inbox_sink("app.inbox"),
        fixture.file_sink().replace("sink.jsonl", "{name}.jsonl"),
    );
    let mut replicas = [fixture.run("r1", &relays).unwrap(), fixture.run("r2", &relays).unwrap()];
    let load = Load::start(&through(&pooler, &fixture, "postgres"));
    load.goes_on(400).await;
    for replica in &mut replicas {
        replica.wait_for_lines("claimed", LANES, SOON).await.unwrap();
        all_can_work(&[address_of(replica).await]).await;
    }
    let producer = through(&pooler, &fixture, PRODUCER);
    for command in [
        &["status", "--dsn", fixture.relay_dsn()][..],
        &["lanes", "--dsn", fixture.relay_dsn()],
        &["relays", "list", "--dsn", fixture.relay_dsn()],
        &["segments", "--dsn", fixture.relay_dsn()],
        &["send", "--dsn", &producer, "by.hand", "--json", "{}"],
        &["lanes", "split", "audit", "--yes", "--dsn", fixture.relay_dsn()],
    ] {
        let output = fixture.pgbaton(command).await.unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    load.goes_on(200).await;
    load.stop().await;
    let written = books(&server, &fixture.database).await;
    until_none("messages arrive", async || Verdict::of(&written, &inbox(&fixture).await).lost).await;
    let verdict = Verdict::of(&written, &inbox(&fixture).await);
    let by_hand = verdict.unexpected;
    assert!((verdict.duplicates, verdict.out_of_order) == (0, 0) && by_hand <= 1, "{verdict:?}");
    // While they run, too: whatever is set belongs to a transaction.
    nothing_was_left(&pooler, &fixture).await;
    // One goes in order, the other one in the middle of things.
    let [mut first, mut second] = replicas;
    first.terminate().unwrap();
    assert!(first.wait(SOON).await.unwrap().success());
    second.kill().unwrap();
    nothing_was_left(&pooler, &fixture).await;
}

/// Takes all server connections of the relay's role at once, and looks at what earlier clients left on them.
async fn nothing_was_left(pooler: &Pooler, fixture: &Fixture) {
    // What the pooler itself keeps in step with its clients.
    const KEPT_IN_STEP: [&str; 6] = [
        "DateStyle",
        "TimeZone",
        "application_name",
        "client_encoding",
        "standard_conforming_strings",
        "IntervalStyle",
    ];
    let look = "begin; select pg_backend_pid()::text,
        (select count(*) from pg_prepared_statements)::text,
        (select count(*) from pg_listening_channels())::text,
        (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())::text,
        (select count(*) from pg_cursors where not name = '')::text,
        coalesce((select string_agg(name, ' ') from pg_settings where source = 'session'), '')";
    let dsn = through(pooler, fixture, RELAY);
    let mut open = Vec::new();
    let mut backends = BTreeSet::new();
    for _ in 0..POOL {
        let client = connect(&dsn).await.unwrap();
        let answer = client.simple_query(look).await.unwrap();
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.unwrap();
        backends.insert(row.get(0).unwrap().to_owned());
        for (column, what) in [(1, "prepared statements"), (2, "channels"), (3, "advisory locks"), (4, "cursors")] {
            assert_eq!(row.get(column), Some("0"), "{what} were left");
        }
        let set = row.get(5).unwrap().split_whitespace().filter(|name| !KEPT_IN_STEP.contains(name));
        assert_eq!(set.collect::<Vec<_>>(), Vec::<&str>::new(), "settings were left");
        open.push(client);
    }
    assert_eq!(backends.len(), usize::from(POOL));
}

/// The design's case: the server behind the pooler is another one, which lacks commits, and every client's connection
/// holds. Only the incarnation in each answer tells.
#[tokio::test]
async fn a_fail_over_that_no_connection_notices_is_noticed() {
    let Behind { mut server, mut pooler, fixture } = Behind::start(15).await;
    let standby = server.standby().await.unwrap();
    let destination = Fixture::new(15).await.unwrap();
    destination.inbox("app.inbox").await.unwrap();
    // No renewal and no read runs into the time that the switch takes.
    let relays = format!(
        "{ANYWHERE}[lease]\nttl = \"60s\"\n[relays.orders]\nlanes = {LANES}\nsink = {}\n",
        destination.inbox_sink("app.inbox")
    );
    let mut replicas = [fixture.run("r1", &relays).unwrap(), fixture.run("r2", &relays).unwrap()];
    let load = Load::start(&through(&pooler, &fixture, "postgres"));
    load.goes_on(200).await;
    let mut addresses = Vec::new();
    for replica in &mut replicas {
        replica.wait_for_lines("claimed", LANES / 2, SOON).await.unwrap();
        addresses.push(address_of(replica).await);
    }
    standby.cut_off().await.unwrap();
    load.goes_on(300).await;
    let before = books(&server, &fixture.database).await;
    until("what will be lost is delivered", || async { Verdict::of(&before, &inbox(&destination).await).lost == 0 })
        .await;

    let clients = clients_of(&pooler, RELAY).await;
    let begun = SystemTime::now();
    pooler.command("pause").await.unwrap();
    server.stop_immediate().await.unwrap();
    standby.promote().await.unwrap();
    pooler.point_at(standby.port()).await.unwrap();
    let still = clients_of(&pooler, RELAY).await;
    assert!(clients.len() > 4 && still.is_superset(&clients), "a client noticed: {clients:?}, {still:?}");
    pooler.command("resume").await.unwrap();
    load.goes_on(600).await;
    load.stop().await;
    // Whoever learnt that the server is another one may close its connection; the pooler has closed none.
    let closed = pooler.process().unwrap().lines_with("C-0x");
    let closed = closed.iter().filter(|line| line.contains("closing because:"));
    assert!(closed.clone().all(|line| line.contains("closing because: client ")), "{:?}", closed.collect::<Vec<_>>());

    let written = books(&standby, &fixture.database).await;
    until_none("messages arrive", async || Verdict::of(&written, &inbox(&destination).await).lost).await;
    let verdict = Verdict::of(&written, &inbox(&destination).await);
    assert_eq!((verdict.lost, verdict.duplicates, verdict.out_of_order), (0, 0, 0), "{verdict:?}");
    assert!(verdict.unexpected > 100, "what was lost had been delivered: {verdict:?}");
    for replica in &mut replicas {
        replica.wait_for_line("the database was failed over", SOON).await.unwrap();
        assert!(replica.lines_with("this replica's lease is over").is_empty(), "the lease ran on");
    }
    all_can_work(&addresses).await;
    let normal = load::time_to_normal(&destination, begun).await;
    println!("figure: a fail-over behind a pooler, ttl 60 s, lanes kept: normal {:.1} s later", normal.as_secs_f64());
}

/// The addresses of a user's clients.
async fn clients_of(pooler: &Pooler, user: &str) -> BTreeSet<String> {
    let rows = pooler.command("show clients").await.unwrap();
    let mine = rows.iter().filter(|row| row.get("user") == Some(user));
    mine.map(|row| format!("{}:{}", row.get("addr").unwrap(), row.get("port").unwrap())).collect()
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Death {
    /// Connections end at once, and new ones are refused.
    Killed,
    /// Nothing answers, and nothing ends.
    Frozen,
}

#[tokio::test]
async fn a_killed_one_is_survived() {
    dead(Death::Killed).await;
}

#[tokio::test]
async fn a_frozen_one_is_survived() {
    dead(Death::Frozen).await;
}

async fn dead(death: Death) {
    let Behind { server, mut pooler, fixture } = Behind::start(15).await;
    let destination = Fixture::new(15).await.unwrap();
    destination.inbox("app.inbox").await.unwrap();
    let mut replicas = ["r1", "r2"].map(|name| fixture.run(name, &slow_relay(&destination)).unwrap());
    let mut addresses = Vec::new();
    for replica in &mut replicas {
        replica.wait_for_lines("claimed", LANES / 2, SOON).await.unwrap();
        addresses.push(address_of(replica).await);
    }
    let back = until_shown(async || {
        slow(&destination, true).await;
        backlog(&server, &fixture).await;
        all_deliver(&destination).await;
        let died = SystemTime::now();
        match death {
            Death::Killed => pooler.kill().unwrap(),
            Death::Frozen => pooler.process().unwrap().pause().unwrap(),
        }
        none_can_work(&addresses).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let shown = lease_was_honoured(&destination, died, SystemTime::now()).await;
        slow(&destination, false).await;
        let back = SystemTime::now();
        match death {
            Death::Killed => pooler.start_again().await.unwrap(),
            Death::Frozen => pooler.process().unwrap().resume().unwrap(),
        }
        all_can_work(&addresses).await;
        (shown, back)
    })
    .await;
    all_goes_on(&server, &fixture, &destination).await;
    let normal = load::time_to_normal(&destination, back).await;
    println!("figure: a pooler that was {death:?} for longer than a lease: normal {:.1} s later", normal.as_secs_f64());
    for replica in &mut replicas {
        assert!(replica.exit_status().unwrap().is_none(), "it had to be started again");
    }
}

async fn all_goes_on(server: &Cluster, fixture: &Fixture, destination: &Fixture) {
    let load = Load::start(fixture.admin_dsn());
    load.goes_on(200).await;
    load.stop().await;
    let written = books(server, &fixture.database).await;
    until_none("messages arrive", async || Verdict::of(&written, &inbox(destination).await).lost).await;
    let verdict = Verdict::of(&written, &inbox(destination).await);
    assert!(verdict.is_flawless(), "{verdict:?}");
}

/// LISTEN ends with the transaction there, so `wake` does nothing: that is found out, and said.
#[tokio::test]
async fn wake_that_cannot_work_is_told() {
    let Behind { pooler: _pooler, fixture, server } = Behind::start(15).await;
    let relays = format!("[relays.orders]\nwake = true\nsink = {}\n", fixture.file_sink());
    let mut behind = fixture.run("behind", &relays).unwrap();
    let told = behind.wait_for_line("wake", SOON).await.unwrap();
    assert!(told.contains("WARN") && told.contains("pooler") && told.contains("relay=orders"), "{told}");
    // Polling delivers all the same.
    fixture.admin().await.unwrap().batch_execute("select load.place(1)").await.unwrap();
    until("it delivers", async || crate::lines::ids_in(&fixture.file()).len() == 1).await;
    behind.terminate().unwrap();
    assert!(behind.wait(SOON).await.unwrap().success());

    let direct = server.dsn(&fixture.database, RELAY);
    let fixture = fixture.with_relay_dsn(direct);
    let mut direct = fixture.run("direct", &relays).unwrap();
    direct.wait_for_line("listening", SOON).await.unwrap();
    assert_eq!(direct.lines_with("WARN").len(), 0, "{:?}", direct.lines_with("WARN"));
}
