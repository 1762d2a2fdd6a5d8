//! The server is restarted, backends are killed, statements are cancelled.

use std::time::{Duration, Instant};

use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};

use super::{Stage, all, each_backend, for_a_while, lasts, some};

on_each_version!(the_server_is_restarted, every_backend_is_killed_again_and_again);

async fn the_server_is_restarted(major: u32) {
    let mut cluster = Cluster::start(&Binaries::find(major).unwrap(), Options::default()).await.unwrap();
    let mut stage = Stage::of_two(Fixture::on(&cluster).await.unwrap(), major).await;
    let load = stage.load().await;
    // In order, and back at once.
    cluster.stop_fast().await.unwrap();
    cluster.start_again().await.unwrap();
    stage.normal("a fast restart of the server").await;
    // As a crash would have it, and away for longer than the lease.
    let stopped = Instant::now();
    cluster.stop_immediate().await.unwrap();
    lasts(super::TTL + Duration::from_secs(1)).await;
    let samples = stage.samples(stopped + super::TTL);
    all(&samples, "without a lease", |sample| !sample.ready && !sample.has_lease && sample.lease_left == 0.0);
    some(&samples, "told that the database is down", |sample| !sample.database_answers && sample.database_up == 0.0);
    cluster.start_again().await.unwrap();
    stage.normal("an immediate restart of the server, away for longer than the lease").await;
    // A crash of one process makes the server restart all of them by itself.
    let admin = stage.fixture.admin().await.unwrap();
    let victim: i32 = admin.query_one("select pg_backend_pid()", &[]).await.unwrap().get(0);
    let victim = rustix::process::Pid::from_raw(victim).unwrap();
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    stage.normal("a crash of a backend").await;
    stage.finish(load).await;
}

async fn every_backend_is_killed_again_and_again(major: u32) {
    let mut stage = Stage::of_two(Fixture::new(major).await.unwrap(), major).await;
    let load = stage.load().await;
    let admin = stage.fixture.admin().await.unwrap();
    for (what, pause) in [("pg_terminate_backend", 200), ("pg_cancel_backend", 20)] {
        let mut hit = 0;
        let act = async || hit += each_backend(&admin, what).await;
        for_a_while(Duration::from_secs(4), Duration::from_millis(pause), act).await;
        println!("figure: {hit} times {what}");
        assert!(hit > 50, "{hit}");
        stage.normal(&format!("{what} of everything, again and again")).await;
    }
    stage.finish(load).await;
}
