//! The server is out of connections, ends statements early, or has no room on its disk.

use std::time::{Duration, Instant};

use proof::disk::Disk;
use proof::fixture::{Fixture, RELAY, connect};
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};
use tokio_postgres::Client;

use super::load::Load;
use super::watched::Sample;
use super::{Stage, TTL, each_backend, lasts, some};
use crate::hand::until;

on_each_version!(limits_of_the_relays_role_do_not_matter);

fn options(settings: &[(&str, &str)]) -> Options {
    let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Options { settings, ..Options::default() }
}

/// The relay's connections are lost, and somebody else has taken their places.
#[tokio::test]
async fn the_server_is_out_of_connections() {
    let options = options(&[("max_connections", "30"), ("superuser_reserved_connections", "5")]);
    let cluster = Cluster::start(&Binaries::find(18).unwrap(), options).await.unwrap();
    let mut stage = Stage::of_two(Fixture::on(&cluster).await.unwrap(), 18).await;
    let load = stage.load().await;
    let admin = stage.fixture.admin().await.unwrap();
    let mut others: Vec<Client> = Vec::new();
    let began = Instant::now();
    let producer = stage.fixture.producer_dsn().to_owned();
    // Places are free for a moment after each kill, and the relay may be the first to take one: again, then.
    let without_lease = |sample: &Sample| !sample.ready && !sample.has_lease && sample.lease_left == 0.0;
    until("the leases are lost", async || {
        each_backend(&admin, "pg_terminate_backend").await;
        let refused = loop {
            match connect(&producer).await {
                Ok(client) => others.push(client),
                Err(refused) => break refused.to_string(),
            }
        };
        assert!(refused.contains("too many clients") || refused.contains("remaining connection slots"), "{refused}");
        began.elapsed() > TTL * 2 && stage.replicas.iter().all(|r| r.samples(began).iter().any(without_lease))
    })
    .await;
    some(&stage.samples(began), "told that the database is down", |sample| sample.database_up == 0.0);
    println!("figure: {} connections of others", others.len());
    drop(others);
    stage.normal("being out of connections for longer than the lease").await;
    stage.finish(load).await;
}

/// An administrator limits all roles, and forgets this one.
async fn limits_of_the_relays_role_do_not_matter(major: u32) {
    let mut stage = Stage::of_two(Fixture::new(major).await.unwrap(), major).await;
    let load = stage.load().await;
    let admin = stage.fixture.admin().await.unwrap();
    let mut settings =
        vec!["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout"];
    settings.extend((major >= 17).then_some("transaction_timeout"));
    for limit in ["100ms", "1ms"] {
        // A limit of 1 ms on idle sessions leaves none.
        for name in settings.iter().filter(|name| limit != "1ms" || **name != "idle_session_timeout") {
            let alter = format!("alter role {RELAY} in database {} set {name} = '{limit}'", stage.fixture.database);
            admin.batch_execute(&alter).await.unwrap();
        }
        each_backend(&admin, "pg_terminate_backend").await;
        lasts(TTL).await;
        stage.normal(&format!("limits of {limit}")).await;
        let began = Instant::now();
        lasts(TTL).await;
        some(&stage.samples(began), "ready", |sample| sample.ready && sample.database_up == 1.0);
    }
    stage.finish(load).await;
}

/// First no table can grow; then the log cannot, on which the server gives up, and has to be started again.
#[tokio::test]
async fn the_servers_disk_is_full() {
    let path = std::env::temp_dir().join(format!("pgbaton-disk-{}", std::process::id()));
    let disk = Disk::mount(&path, 176).unwrap();
    let settings = [("min_wal_size", "32MB"), ("max_wal_size", "32MB"), ("autovacuum", "off")];
    let options = Options { parent: disk.path().to_owned(), ..options(&settings) };
    let mut cluster = Cluster::start(&Binaries::find(15).unwrap(), options).await.unwrap();
    let mut stage = Stage::of_two(Fixture::on(&cluster).await.unwrap(), 15).await;
    let load = Load::sized(stage.fixture.producer_dsn(), 4, Duration::from_millis(5), 4_000);
    until("messages come in", async || load.committed() > 100).await;

    disk.fill().unwrap();
    until("nothing more can be written", async || load.failed() > 100).await;
    lasts(TTL).await;
    disk.free().unwrap();
    stage.normal("a disk that was full").await;

    disk.fill().unwrap();
    let stopped = Instant::now();
    // Each switch takes a new file of the log; a table grows no more.
    until("the server gives up", async || {
        let Ok(admin) = stage.fixture.admin().await else { return true };
        let write = "create table if not exists shop.x (); drop table shop.x; select pg_switch_wal()";
        admin.batch_execute(write).await.is_err() && admin.is_closed()
    })
    .await;
    lasts(TTL * 3 / 2).await;
    let samples = stage.samples(stopped);
    some(&samples, "without a lease", |sample| !sample.ready && sample.lease_left == 0.0);
    disk.free().unwrap();
    // It may have ended, or be at trying again by itself.
    until("the server is back", async || stage.fixture.admin().await.is_ok() || cluster.start_again().await.is_ok())
        .await;
    stage.normal("a disk that was too full for the server's log").await;
    stage.finish(load).await;
    drop(cluster);
}
