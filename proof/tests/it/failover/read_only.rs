//! A server that is made read-only for a while: leases cannot be renewed, so nothing is published once they are over, and
//! all goes on by itself afterwards.

use std::time::{Duration, SystemTime};

use proof::fixture::Fixture;
use proof::servers::{Binaries, Cluster, Options};
use proof::writers::Verdict;

use super::load::{self, Load, books, inbox};
use super::{LANES, TTL, all_can_work, none_can_work};
use crate::daemon::{ANYWHERE, address_of};
use crate::hand::{SOON, until, until_none};

/// Each append takes this long, so that what was read ahead lasts for longer than any lease.
pub const SLOW: &str = "
    create or replace function app.slow() returns trigger language plpgsql as
      $$ begin perform pg_sleep(0.05); return null; end $$;
    create trigger slow before insert on app.inbox for each statement execute function app.slow();";

/// One message at a time, into the slow inbox.
pub fn slow_relay(destination: &Fixture) -> String {
    format!(
        "{ANYWHERE}[lease]\nttl = \"{TTL}\"\n[relays.orders]\nlanes = {LANES}\nbatch_messages = 1\nsink = {}\n",
        destination.inbox_sink("app.inbox")
    )
}

/// Makes the inbox take its time, or no longer.
pub async fn slow(destination: &Fixture, slow: bool) {
    let sql = if slow { SLOW } else { "drop trigger slow on app.inbox" };
    destination.admin().await.unwrap().batch_execute(sql).await.unwrap();
}

/// Commits more than the slow inbox takes within some leases.
pub async fn backlog(server: &Cluster, fixture: &Fixture) {
    let sql = format!("select load.place(n % {}) from generate_series(1, 1200) n", load::KEYS);
    server.admin(&fixture.database).await.unwrap().batch_execute(&sql).await.unwrap();
}

/// Sets a scene up again until it shows what it is to show: a machine that stands still for a ttl shows nothing, and proves
/// nothing. Gives when the scene's trouble was over.
pub async fn until_shown(mut scene: impl AsyncFnMut() -> (bool, SystemTime)) -> SystemTime {
    const TRIES: usize = 3;
    for _ in 0..TRIES {
        let (shown, over) = scene().await;
        if shown {
            return over;
        }
    }
    panic!("the machine stood still each time: this shows nothing");
}

/// That no message arrived more than a ttl after `from`: the last renewal was sent before. Gives whether some did before
/// that, without which it shows nothing.
pub async fn lease_was_honoured(destination: &Fixture, from: SystemTime, until: SystemTime) -> bool {
    let admin = destination.admin().await.unwrap();
    let ttl: Duration = Duration::from_secs(TTL.trim_end_matches('s').parse().unwrap());
    let sql = "select count(*) filter (where received_at <= $2), count(*) filter (where received_at > $2)
               from app.inbox where received_at > $1 and received_at <= $3";
    let row = admin.query_one(sql, &[&from, &(from + ttl), &until]).await.unwrap();
    let (within, after): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!(after, 0, "published after the lease");
    println!("{within} messages within a lease that was not renewed");
    until > from + ttl && within > 5
}

/// Waits until the replicas are at the backlog, on all lanes.
pub async fn all_deliver(destination: &Fixture) {
    let before = inbox(destination).await.len();
    until("all lanes deliver", async || inbox(destination).await.len() > before + 100).await;
}

#[tokio::test]
async fn leases_end_and_work_goes_on_afterwards() {
    let server = Cluster::start(&Binaries::find(15).unwrap(), Options::default()).await.unwrap();
    let fixture = Fixture::on(&server).await.unwrap();
    load::prepare(&fixture.admin().await.unwrap()).await;
    let destination = Fixture::new(15).await.unwrap();
    destination.inbox("app.inbox").await.unwrap();
    let mut replicas = [("r1"), ("r2")].map(|name| fixture.run(name, &slow_relay(&destination)).unwrap());
    let mut addresses = Vec::new();
    for replica in &mut replicas {
        replica.wait_for_lines("claimed", LANES / 2, SOON).await.unwrap();
        addresses.push(address_of(replica).await);
    }
    let mut tries = 0;
    let writable = until_shown(async || {
        let shown = read_only_for_a_while(&server, &fixture, &destination, &addresses).await;
        tries += 1;
        for replica in &mut replicas {
            replica.wait_for_lines("database.not_writable", tries, SOON).await.unwrap();
        }
        all_can_work(&addresses).await;
        shown
    })
    .await;
    let load = Load::start(fixture.admin_dsn());
    load.goes_on(200).await;
    load.stop().await;
    let written = books(&server, &fixture.database).await;
    until_none("messages arrive", async || Verdict::of(&written, &inbox(&destination).await).lost).await;
    let verdict = Verdict::of(&written, &inbox(&destination).await);
    assert!(verdict.is_flawless(), "{verdict:?}");
    let normal = load::time_to_normal(&destination, writable).await;
    println!(
        "figure: a server was read-only for longer than a lease, ttl {TTL}: normal {:.1} s later",
        normal.as_secs_f64()
    );
    for replica in &mut replicas {
        assert!(replica.exit_status().unwrap().is_none(), "it had to be started again");
    }
}

/// Gives whether the leases were seen to end, and when it was writable again.
async fn read_only_for_a_while(
    server: &Cluster,
    fixture: &Fixture,
    destination: &Fixture,
    addresses: &[String],
) -> (bool, SystemTime) {
    slow(destination, true).await;
    backlog(server, fixture).await;
    all_deliver(destination).await;
    server.alter_system("default_transaction_read_only = on").await.unwrap();
    // Backends read the setting before their next statement; the server's first process tells them a moment later.
    let admin = server.admin("postgres").await.unwrap();
    until("the server is read-only", async || {
        admin.query_one("show default_transaction_read_only", &[]).await.unwrap().get::<_, &str>(0) == "on"
    })
    .await;
    let read_only = SystemTime::now();
    none_can_work(addresses).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let shown = lease_was_honoured(destination, read_only, SystemTime::now()).await;
    slow(destination, false).await;
    let writable = SystemTime::now();
    admin.batch_execute("set default_transaction_read_only = off").await.unwrap();
    admin.batch_execute("alter system reset default_transaction_read_only").await.unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    (shown, writable)
}
