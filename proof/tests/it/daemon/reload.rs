//! SIGHUP: what is read again is followed if it can be used, and nothing is lost, repeated or counted twice on the way.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use proof::fixture::{Fixture, toml_text};
use proof::on_each_version;
use proof::process::{POLL, Process};
use tokio::task::JoinHandle;

use super::{SOON, address_of, get};
use crate::lines::ids_in;

on_each_version!(a_live_replica_follows_its_configuration, a_stop_during_a_reload_is_a_stop);

/// What the tests change in their configuration.
#[derive(Clone)]
struct Setting {
    level: &'static str,
    listen: &'static str,
    in_flight: u32,
    more: &'static str,
}

const FIRST: Setting = Setting { level: "pgbaton=debug", listen: "127.0.0.1:0", in_flight: 5_000, more: "" };

impl Setting {
    fn write(&self, outbox: &Fixture) {
        let secret = outbox.folder().join("dsn");
        let text = format!(
            "name = \"r1\"\n[database]\ndsn_file = {}\n[log]\nlevel = \"{}\"\n[http]\nlisten = \"{}\"\n\
             [relays.orders]\nin_flight = {}\nsink = {}\n{}",
            toml_text(&secret.to_string_lossy()),
            self.level,
            self.listen,
            self.in_flight,
            outbox.file_sink(),
            self.more
        );
        outbox.write("r1.toml", &text).unwrap();
    }
}

fn start(outbox: &Fixture, setting: &Setting) -> Process {
    outbox.write("dsn", outbox.relay_dsn()).unwrap();
    setting.write(outbox);
    let mut command = outbox.command().unwrap();
    command.args(["run", "--config", "r1.toml"]);
    Process::start("r1", outbox.folder(), command).unwrap()
}

/// Sends a few messages at a time until it is told the last one's number.
fn load(outbox: &Fixture) -> (tokio::sync::watch::Sender<bool>, JoinHandle<usize>) {
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let dsn = outbox.producer_dsn().to_owned();
    let task = tokio::spawn(async move {
        let producer = proof::fixture::connect(&dsn).await.unwrap();
        let mut sent = 0;
        while !*stopped.borrow() {
            let send = "insert into pgbaton.outbox (topic, key) select 't', n::text from generate_series(1, 20) n";
            producer.batch_execute(send).await.unwrap();
            sent += 20;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        sent
    });
    (stop, task)
}

async fn until_more(file: &Path) {
    let before = ids_in(file).len();
    let deadline = Instant::now() + SOON;
    while ids_in(file).len() <= before {
        assert!(Instant::now() < deadline, "nothing more is delivered");
        tokio::time::sleep(POLL).await;
    }
}

/// What the relay has counted.
async fn delivered(address: &str) -> u64 {
    let text = get(address, "/metrics").await.body;
    let sample = "pgbaton_messages_delivered_total{relay=\"orders\"} ";
    text.lines().find_map(|line| line.strip_prefix(sample)).unwrap().parse().unwrap()
}

async fn a_live_replica_follows_its_configuration(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let mut replica = start(&outbox, &FIRST);
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    let (stop, sending) = load(&outbox);
    until_more(&outbox.file()).await;
    let address = address_of(&mut replica).await;

    replica.hang_up().unwrap();
    replica.wait_for_line("has not changed", SOON).await.unwrap();

    what_is_wrong_changes_nothing(&outbox, &mut replica, &address).await;

    // The log and the address, without the replica noticing.
    Setting { level: "pgbaton=trace", listen: "127.0.0.2:0", ..FIRST }.write(&outbox);
    replica.hang_up().unwrap();
    replica.wait_for_lines("listening for", 2, SOON).await.unwrap();
    replica.wait_for_line("TRACE", SOON).await.unwrap();
    let address = address_of(&mut replica).await;
    assert!(address.starts_with("127.0.0.2:"), "{address}");
    assert!(get(&address, "/metrics").await.body.contains("pgbaton_reload_refused 0\n"));
    assert_eq!(replica.lines_with("joined").len(), 1);

    a_rotated_secret_is_a_change(&outbox, &mut replica, &address).await;

    // What the replica does, twice in a row: the second one while it drains.
    Setting { listen: "127.0.0.2:0", in_flight: 100, ..FIRST }.write(&outbox);
    replica.hang_up().unwrap();
    let more = "[relays.second]\nsink = { type = \"discard\" }\n";
    Setting { listen: "127.0.0.2:0", in_flight: 200, more, ..FIRST }.write(&outbox);
    replica.hang_up().unwrap();
    replica.wait_for_line("the sink can be used relay=second", SOON).await.unwrap();
    until_more(&outbox.file()).await;

    stop.send_replace(true);
    let sent = sending.await.unwrap();
    let deadline = Instant::now() + SOON;
    while ids_in(&outbox.file()).len() < sent && Instant::now() < deadline {
        tokio::time::sleep(POLL).await;
    }
    let all = ids_in(&outbox.file());
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (sent, sent), "lost or repeated");
    assert_eq!(delivered(&address).await, u64::try_from(sent).unwrap());
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

async fn what_is_wrong_changes_nothing(outbox: &Fixture, replica: &mut Process, address: &str) {
    outbox.write("r1.toml", "nmae = 1\n[database]\ndsn = \"password=hunter2 oops\"\n").unwrap();
    replica.hang_up().unwrap();
    let refused = replica.wait_for_line("the old one stays", SOON).await.unwrap();
    for word in ["ERROR", "nmae", "database.dsn", "relays"] {
        assert!(refused.contains(word), "{refused}");
    }
    assert!(!refused.contains("hunter2"), "{refused}");
    assert!(get(address, "/metrics").await.body.contains("pgbaton_reload_refused 1\n"));
    until_more(&outbox.file()).await;
}

async fn a_rotated_secret_is_a_change(outbox: &Fixture, replica: &mut Process, address: &str) {
    let before = delivered(address).await;
    outbox.write("dsn", &format!("{} application_name=rotated\n", outbox.relay_dsn())).unwrap();
    replica.hang_up().unwrap();
    replica.wait_for_lines("joined", 2, SOON).await.unwrap();
    until_more(&outbox.file()).await;
    let rotated = "select count(*) from pg_stat_activity where application_name = 'rotated'
                   and datname = current_database()";
    assert!(outbox.admin().await.unwrap().query_one(rotated, &[]).await.unwrap().get::<_, i64>(0) > 0);
    assert!(delivered(address).await >= before);
}

/// A sink that hangs makes the drain last.
async fn a_stop_during_a_reload_is_a_stop(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let relays =
        |drain: &str| format!("drain = \"{drain}\"\n[relays.orders]\nsink = {}", outbox.inbox_sink("app.inbox"));
    let mut replica = outbox.run("r1", &relays("3s")).unwrap();
    replica.wait_for_lines("lane opened", 16, SOON).await.unwrap();
    let lock = outbox.admin().await.unwrap();
    lock.batch_execute("begin; lock table app.inbox in access exclusive mode").await.unwrap();
    outbox.producer().await.unwrap().batch_execute("select pgbaton.send('t', 'x'::text)").await.unwrap();
    let admin = outbox.admin().await.unwrap();
    let waits = "select exists (select from pg_locks where not granted and relation = 'app.inbox'::regclass)";
    let deadline = Instant::now() + SOON;
    while !admin.query_one(waits, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(Instant::now() < deadline, "nothing waits for the inbox");
        tokio::time::sleep(POLL).await;
    }
    outbox.configuration("r1", &relays("4s")).unwrap();
    replica.hang_up().unwrap();
    replica.wait_for_line("starts again", SOON).await.unwrap();
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    assert_eq!(replica.lines_with("joined").len(), 1);
    drop(lock);
}
