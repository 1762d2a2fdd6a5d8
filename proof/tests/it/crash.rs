//! The server crashes under writers that do not wait for the disk: nothing was published that recovery did not keep, and
//! nothing that is committed afterwards is skipped, although it may get the numbers and ids of what was lost.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proof::fixture::{Fixture, connect};
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};
use rustix::process::{Pid, Signal, kill_process};
use tokio_postgres::Client;

use crate::hand::{Hand, SOON, until};
use crate::lines::ids_in;

on_each_version!(what_was_read_is_kept_by_recovery);

/// A server whose log's writer sleeps, so that what nobody waits for is seldom on disk.
pub async fn forgetful_cluster(major: u32) -> Cluster {
    let settings = [("wal_writer_delay", "10s"), ("autovacuum", "off")];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let options = Options { fsync: true, settings, ..Options::default() };
    Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap()
}

/// From now on the log's writer does not even wake up by chance. It dies with its server.
pub async fn stop_the_logs_writer(admin: &Client) {
    let sql = "select pid from pg_stat_activity where backend_type = 'walwriter'";
    let pid = Pid::from_raw(admin.query_one(sql, &[]).await.unwrap().get(0)).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
}

/// Step by step: read, crash, look.
async fn what_was_read_is_kept_by_recovery(major: u32) {
    let mut cluster = forgetful_cluster(major).await;
    let hand = Hand::on(Fixture::on(&cluster).await.unwrap(), 1).await;
    hand.admin.batch_execute("checkpoint").await.unwrap();
    stop_the_logs_writer(&hand.admin).await;
    hand.producer.batch_execute("set synchronous_commit = off").await.unwrap();
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.drain().await;
    hand.insert("read", "k", 3).await;
    owner.drain().await;
    assert_eq!(owner.got.len(), 3);
    hand.insert("not read", "k", 3).await;

    cluster.stop_immediate().await.unwrap();
    cluster.start_again().await.unwrap();
    let admin = hand.fixture.admin().await.unwrap();
    let rows = admin.query("select topic from pgbaton.outbox order by id", &[]).await.unwrap();
    let kept: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(owner.got.iter().all(|topic| kept.contains(topic)), "{:?} was read, {kept:?} was kept", owner.got);
}

/// Several crashes under load, with the real executable, which survives them.
#[tokio::test]
async fn a_relay_survives_crashes_of_the_server_and_skips_nothing() {
    let mut cluster = forgetful_cluster(15).await;
    let fixture = Fixture::on(&cluster).await.unwrap();
    let relays = format!("[lease]\nttl = \"2s\"\n[relays.orders]\nsink = {}", fixture.file_sink());
    let mut replica = fixture.run("r1", &relays).unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();

    let (stop, committed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..4)
        .map(|_| tokio::spawn(write(fixture.producer_dsn().to_owned(), Arc::clone(&stop), Arc::clone(&committed))))
        .collect();
    for _ in 0..3 {
        let before = committed.load(Ordering::Relaxed);
        until("there is something to lose", || async { committed.load(Ordering::Relaxed) > before + 500 }).await;
        cluster.stop_immediate().await.unwrap();
        cluster.start_again().await.unwrap();
    }
    let before = committed.load(Ordering::Relaxed);
    until("writing goes on", || async { committed.load(Ordering::Relaxed) > before + 500 }).await;
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }

    let admin = fixture.admin().await.unwrap();
    let rows = admin.query("select message_id::text from pgbaton.outbox", &[]).await.unwrap();
    let kept: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
    let published = || ids_in(&fixture.file()).into_iter().collect::<HashSet<String>>();
    until("everything that was kept is published", || async { kept.is_subset(&published()) }).await;
    let lost: Vec<String> = published().difference(&kept).cloned().collect();
    assert!(lost.is_empty(), "published, and then lost by the server: {lost:?}");
    assert!(kept.len() < usize::try_from(committed.load(Ordering::Relaxed)).unwrap(), "the crashes lost nothing");

    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

/// Writes one message after the other without waiting for the disk, and connects again after a crash.
async fn write(dsn: String, stop: Arc<AtomicBool>, committed: Arc<AtomicU64>) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(client) = connect(&dsn).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if client.batch_execute("set synchronous_commit = off").await.is_err() {
            continue;
        }
        let insert = "insert into pgbaton.outbox (topic, key) values ('orders', (random() * 50)::integer::text)";
        while !stop.load(Ordering::Relaxed) && client.batch_execute(insert).await.is_ok() {
            committed.fetch_add(1, Ordering::Relaxed);
        }
    }
}
