//! The server's clock steps by hours, forward and back: segments, ages and what is emptied follow it, and nothing is lost.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use proof::fixture::Fixture;
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};
use tokio_postgres::types::{ToSql, Type};

use super::{Stage, TTL, all, judge, lasts, start};
use crate::daemon::get;
use crate::hand::{SOON, sql, until};

on_each_version!(the_servers_clock_steps_by_hours);

/// A clock for one server that is set by a file.
struct Clock {
    file: PathBuf,
}

impl Clock {
    fn new(major: u32) -> Clock {
        let name = format!("pgbaton-clock-{}-{major}", std::process::id());
        let clock = Clock { file: std::env::temp_dir().join(name) };
        clock.set("+0");
        clock
    }

    /// An offset, such as `+3h`. The next look at the time sees it.
    fn set(&self, offset: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, offset).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }

    fn environment(&self) -> Vec<(String, String)> {
        let library = Command::new("faketime").args(["-f", "+0", "printenv", "LD_PRELOAD"]).output();
        let library = library.expect("`faketime` is missing: ./dev test installs it").stdout;
        let file = self.file.to_string_lossy().into_owned();
        [
            ("LD_PRELOAD", String::from_utf8(library).unwrap().trim()),
            ("FAKETIME_TIMESTAMP_FILE", &file),
            ("FAKETIME_NO_CACHE", "1"),
            // Durations are not to step.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

async fn the_servers_clock_steps_by_hours(major: u32) {
    let clock = Clock::new(major);
    let options = Options { environment: clock.environment(), ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap();
    let mut stage = Stage::of_two(Fixture::on(&cluster).await.unwrap(), major).await;
    // Nobody runs this one until the end: all of its messages have to stay.
    let parameters: [(&(dyn ToSql + Sync), Type); 3] = [(&"late", Type::TEXT), (&16, Type::INT4), (&false, Type::BOOL)];
    stage.fixture.relay().await.unwrap().query_typed(sql("register"), &parameters).await.unwrap();
    let load = stage.load().await;
    let admin = stage.fixture.admin().await.unwrap();
    let now = "select extract(epoch from clock_timestamp())::float8, pgbaton.segment_at(now())::int";
    let began = Instant::now();
    let (mut before, mut used) = (admin.query_one(now, &[]).await.unwrap(), Vec::new());
    // More than a whole ring forward, and back behind the beginning.
    for (offset, hours) in [("+3h", 3.0), ("+11h", 8.0), ("-2h", -13.0), ("+0", 2.0)] {
        clock.set(offset);
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
