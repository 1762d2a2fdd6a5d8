//! The way to the database is cut, swallowed by a black hole, stalled half-way or refused, while the sink can still be
//! reached: whoever cannot renew its lease must stop by itself.

use std::time::{Duration, Instant, SystemTime};

use proof::fixture::Fixture;
use proof::proxy::{End, Proxy, Way};
use proof::servers::shared;
use tokio_postgres::Client;

use super::load::Load;
use super::{Stage, TTL, all, delivered_by, for_a_while, lasts, some};
use crate::hand::until;

/// Makes the sink so slow, and calls so small, that replicas have messages in memory for longer than their lease.
const SLOWLY: &str = "create function app.slowly() returns trigger language plpgsql as
                      'begin perform pg_sleep(0.05); return null; end';
                      create trigger slowly before insert on app.inbox execute function app.slowly()";
const SMALL_CALLS: &str = "batch_messages = 2";
const BACKLOG: i32 = 4_000;

async fn stage(major: u32) -> Stage {
    Stage::new(Fixture::new(major).await.unwrap(), major).await
}

async fn proxy(major: u32) -> Proxy {
    Proxy::start(shared(major).await.unwrap().port()).await.unwrap()
}

#[tokio::test]
async fn connections_are_cut_stalled_and_refused() {
    let (mut stage, proxy) = (stage(15).await, proxy(15).await);
    let dsn = proxy.dsn(stage.fixture.relay_dsn()).unwrap();
    for name in ["r1", "r2"] {
        stage.start(name, &dsn, "").await;
    }
    stage.shared_out().await;
    let load = stage.load().await;
    let mut ends = [End::Reset, End::Close].into_iter().cycle();
    let cut = async || proxy.cut(ends.next().unwrap());
    for_a_while(Duration::from_secs(3), Duration::from_millis(150), cut).await;
    stage.normal("connections cut again and again").await;

    for way in [Way::ToClient, Way::ToServer] {
        let began = Instant::now();
        proxy.stall(way);
        lasts(TTL * 3 / 2).await;
        let samples = stage.samples(began + TTL);
        all(&samples, "without a lease", |sample| !sample.ready && !sample.has_lease && sample.lease_left == 0.0);
        proxy.heal().await.unwrap();
        stage.normal(&format!("nothing came {way:?} for longer than the lease")).await;
    }

    let began = Instant::now();
    proxy.refuse().await.unwrap();
    proxy.cut(End::Reset);
    lasts(TTL * 3 / 2).await;
    let samples = stage.samples(began + TTL);
    all(&samples, "without a lease", |sample| !sample.ready && !sample.has_lease);
    some(&samples, "told that the database is down", |sample| sample.database_up == 0.0);
    proxy.heal().await.unwrap();
    stage.normal("connections refused for longer than the lease").await;
    stage.finish(load).await;
}

/// Waits are bounded by a third of the lease, so there is time to find out and to renew on a new connection.
#[tokio::test]
async fn a_black_hole_shorter_than_the_lease_costs_no_lease() {
    let (mut stage, proxy) = (stage(18).await, proxy(18).await);
    let dsn = proxy.dsn(stage.fixture.relay_dsn()).unwrap();
    for name in ["r1", "r2"] {
        stage.start(name, &dsn, "").await;
    }
    stage.shared_out().await;
    let load = stage.load().await;
    let began = Instant::now();
    for _ in 0..3 {
        proxy.black_hole();
        lasts(Duration::from_millis(300)).await;
        proxy.heal().await.unwrap();
        let took = stage.normal("a short black hole").await;
        assert!(took < Duration::from_secs(15), "something waited for what was swallowed: {took:?}");
        lasts(TTL / 2).await;
    }
    all(&stage.samples(began), "ready", |sample| sample.ready && sample.has_lease && sample.lease_left > 0.0);
    assert!(stage.replicas.iter().all(|replica| replica.lives() == 1), "a lease was lost");
    stage.finish(load).await;
}

/// A backlog that takes long to deliver, so that there is something to stop.
async fn slow_backlog(stage: &Stage) {
    stage.inbox.batch_execute(SLOWLY).await.unwrap();
    let producer = stage.fixture.producer().await.unwrap();
    let order = "select shop.order(500 + n % 200) from generate_series(1, $1) n";
    producer.execute(order, &[&BACKLOG]).await.unwrap();
}

async fn delivered(inbox: &Client) -> i64 {
    inbox.query_one("select count(*) from app.inbox", &[]).await.unwrap().get(0)
}

/// What a replica delivered after this moment: how much, and for how long.
async fn after(stage: &Stage, sender: &str, moment: SystemTime) -> (usize, Duration) {
    let delivered = delivered_by(&stage.inbox, sender).await;
    let later: Vec<_> = delivered.iter().filter_map(|at| at.duration_since(moment).ok()).collect();
    (later.len(), later.into_iter().max().unwrap_or_default())
}

/// Nobody can take lanes over, so no fence hides what is published too late.
#[tokio::test]
async fn nothing_is_published_after_the_lease() {
    let (mut stage, proxy) = (stage(15).await, proxy(15).await);
    slow_backlog(&stage).await;
    let dsn = proxy.dsn(stage.fixture.relay_dsn()).unwrap();
    for name in ["r1", "r2"] {
        stage.start(name, &dsn, SMALL_CALLS).await;
    }
    stage.shared_out().await;
    let delivers = async |sender| !delivered_by(&stage.inbox, sender).await.is_empty();
    until("both deliver", async || delivers("r1").await && delivers("r2").await).await;
    let (began, moment) = (Instant::now(), SystemTime::now());
    proxy.black_hole();
    // Whatever was renewed last was sent before.
    lasts(TTL * 2).await;
    all(&stage.samples(began + TTL), "without a lease", |sample| !sample.ready && sample.lease_left == 0.0);
    for sender in ["r1", "r2"] {
        let (count, longest) = after(&stage, sender, moment).await;
        println!("figure: {sender} delivered {count} for {longest:?} of its lease, {TTL:?}");
        assert!(count > 20, "{sender} had nothing to deliver");
        assert!(longest < TTL, "{sender} published after its lease");
    }
    assert!(delivered(&stage.inbox).await < i64::from(BACKLOG), "there was nothing left to hold back");
    let load = Load::start(stage.fixture.producer_dsn(), 2, Duration::from_millis(20));
    stage.inbox.batch_execute("drop trigger slowly on app.inbox").await.unwrap();
    proxy.heal().await.unwrap();
    stage.normal("a black hole longer than the lease").await;
    stage.finish(load).await;
}

/// It has a direct way to the sink, and another one takes its lanes.
#[tokio::test]
async fn a_black_hole_of_one_replica_is_anothers_take_over() {
    let (mut stage, proxy) = (stage(18).await, proxy(18).await);
    slow_backlog(&stage).await;
    let dsn = proxy.dsn(stage.fixture.relay_dsn()).unwrap();
    stage.start("r1", &dsn, SMALL_CALLS).await;
    let direct = stage.fixture.relay_dsn().to_owned();
    stage.start("r2", &direct, SMALL_CALLS).await;
    stage.shared_out().await;
    let before = delivered(&stage.inbox).await;
    until("it is delivered", async || delivered(&stage.inbox).await > before + 100).await;
    let (began, moment) = (Instant::now(), SystemTime::now());
    proxy.black_hole();
    until("the other one has all lanes", async || {
        stage.replicas[1].samples(began).iter().any(|sample| sample.lanes_owned == 16.0)
    })
    .await;
    println!("figure: taken over after {:?}, with a lease of {TTL:?}", began.elapsed());
    assert!(began.elapsed() > TTL * 9 / 10 - TTL / 3, "taken over before the lease can have been over");
    assert!(began.elapsed() < TTL * 3, "{:?}", began.elapsed());
    lasts(TTL).await;
    all(&stage.replicas[1].samples(began), "ready", |sample| sample.ready);
    all(&stage.replicas[0].samples(began + TTL), "without a lease", |sample| !sample.has_lease && !sample.ready);
    let (count, longest) = after(&stage, "r1", moment).await;
    println!("figure: r1 delivered {count} for {longest:?} of its lease, {TTL:?}");
    assert!(count > 20 && longest < TTL, "{count} for {longest:?}");
    assert!(after(&stage, "r2", moment + TTL).await.0 > 20, "the other one does not go on");

    let load = Load::start(stage.fixture.producer_dsn(), 2, Duration::from_millis(20));
    stage.inbox.batch_execute("drop trigger slowly on app.inbox").await.unwrap();
    proxy.heal().await.unwrap();
    stage.normal("a black hole of one replica").await;
    stage.shared_out().await;
    stage.finish(load).await;
}
