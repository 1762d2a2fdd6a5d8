//! The server's clock steps by hours, forward and back: segments, ages and what is emptied follow it, and nothing is lost.

use std::time::Instant;

use proof::clock::Clock;
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};

use super::{Stage, TTL, all, judge, lasts, start};
use crate::daemon::get;
use crate::hand::{self, SOON, until};

on_each_version!(the_servers_clock_steps_by_hours);

async fn the_servers_clock_steps_by_hours(major: u32) {
    let file = format!("pgbaton-clock-{}-{major}", std::process::id());
    let clock = Clock::new(&std::env::temp_dir().join(file)).unwrap();
    let options = Options { environment: clock.environment(false), ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap();
    let mut stage = Stage::of_two(Fixture::on(&cluster).await.unwrap(), major).await;
    // Nobody runs this one until the end: all of its messages have to stay.
    hand::register(&stage.fixture.relay().await.unwrap(), "late", 16, false).await;
    let load = stage.load().await;
    let admin = stage.fixture.admin().await.unwrap();
    let now = "select extract(epoch from clock_timestamp())::float8, pgbaton.segment_at(now())::int";
    let began = Instant::now();
    let (mut before, mut used) = (admin.query_one(now, &[]).await.unwrap(), Vec::new());
    // More than a whole ring forward, and back behind the beginning.
    for (offset, hours) in [("+3h", 3.0), ("+11h", 8.0), ("-2h", -13.0), ("+0", 2.0)] {
        clock.set(offset).unwrap();
        let after = admin.query_one(now, &[]).await.unwrap();
        let stepped = (after.get::<_, f64>(0) - before.get::<_, f64>(0)) / 3600.0;
        assert!((stepped - hours).abs() < 0.2, "the clock stepped by {stepped} hours to {offset}");
        used.push(after.get::<_, i32>(1));
        before = after;
        lasts(TTL).await;
        stage.normal(&format!("a step of the clock by {hours} hours")).await;
        emptied_none(&stage.fixture).await;
    }
    assert!(used.iter().any(|segment| *segment != used[0]), "{used:?}");
    all(&stage.samples(began), "ready", |sample| sample.ready && sample.database_up == 1.0);

    let relays = stage.relays("r3", "").replace("[relays.orders]", "[relays.late]");
    let mut late = start(&stage.fixture, "r3", stage.fixture.relay_dsn(), &relays);
    late.wait_for_line("joined", SOON).await.unwrap();
    let address = crate::daemon::address_of(&mut late).await;
    load.end().await;
    judge(&admin, &stage.inbox, "late").await;
    let metrics = get(&address, "/metrics").await.body;
    assert!(metrics.lines().all(|line| line.starts_with('#') || !line.contains(" -")), "{metrics}");
    // Nobody needs anything any more, and ages come to an end.
    until("no message is old", async || {
        get(&address, "/metrics").await.body.contains("pgbaton_oldest_undelivered_age_seconds{relay=\"late\"} 0.0\n")
    })
    .await;
    stage.judge().await;
}

/// What the relay that nobody runs has not had yet is all there.
async fn emptied_none(fixture: &Fixture) {
    super::housekeep(fixture).await;
    let sql = "select count(*) from shop.ledger l where not exists (
                 select from pgbaton.outbox o where o.message_id = l.message_id)";
    assert_eq!(fixture.admin().await.unwrap().query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
}
