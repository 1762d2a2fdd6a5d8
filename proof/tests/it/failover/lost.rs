//! A fail-over that loses commits, and the old primary that wakes up afterwards.

use std::collections::HashSet;
use std::time::SystemTime;

use proof::fixture::RELAY;
use proof::on_each_version;
use proof::process::Process;
use proof::writers::{Verdict, Written};

use super::load::{self, Load, books, inbox};
use super::{LANES, Pair, TTL, all_can_work, all_live, none_can_work};
use crate::daemon::{address_of, get_until};
use crate::hand::{SOON, until};
use crate::lines::ids_in;

on_each_version!(nothing_on_the_new_primary_is_skipped_and_the_old_one_is_not_followed);

const NAMES: [&str; 3] = ["r1", "r2", "r3"];

async fn nothing_on_the_new_primary_is_skipped_and_the_old_one_is_not_followed(major: u32) {
    let mut pair = Pair::start(major).await;
    let (replicas, addresses) = fail_over_with_losses(&mut pair, major).await;
    the_old_one_wakes_up(&mut pair, replicas, &addresses).await;
    a_replica_of_the_old_one_alone(pair).await;
}

/// Messages are committed and delivered that the standby never gets, and a replica that it never gets to know takes lanes.
async fn fail_over_with_losses(pair: &mut Pair, major: u32) -> (Vec<Process>, Vec<String>) {
    let mut replicas = vec![pair.run("r1"), pair.run("r2")];
    let load = pair.load();
    load.goes_on(200).await;
    for replica in &mut replicas {
        replica.wait_for_lines("claimed", LANES, SOON).await.unwrap();
    }
    pair.standby.cut_off().await.unwrap();
    replicas.push(pair.run("r3"));
    replicas[2].wait_for_lines("claimed", 2, SOON).await.unwrap();
    let mut addresses = Vec::new();
    for replica in &mut replicas {
        addresses.push(address_of(replica).await);
    }
    load.goes_on(300).await;
    let known = books(&pair.standby, &pair.fixture.database).await;
    let before = books(&pair.primary, &pair.fixture.database).await;
    let delivered_and_lost = async || {
        let known = ids_of(&known);
        inbox(&pair.destination).await.iter().filter(|arrival| !known.contains(&arrival.message_id)).count()
    };
    until("what will be lost is delivered", async || delivered_and_lost().await > 200).await;

    let killed = SystemTime::now();
    pair.primary.stop_immediate().await.unwrap();
    pair.standby.promote().await.unwrap();
    all_live(&addresses).await;
    load.goes_on(800).await;
    load.stop().await;
    all_can_work(&addresses).await;

    let lost = only_the_lost_is_missing(pair, &before, &replicas).await;
    let normal = load::time_to_normal(&pair.destination, killed).await;
    println!(
        "figure: fail-over to an asynchronous standby on {major}, ttl {TTL}, {lost} commits lost: normal {:.1} s after the \
         end of the old primary",
        normal.as_secs_f64()
    );
    (replicas, addresses)
}

/// How many commits of the old primary the new one lacks; all that it has is delivered, once and in order.
async fn only_the_lost_is_missing(pair: &Pair, before: &Written, replicas: &[Process]) -> usize {
    let written = pair.all_there(&pair.standby, &NAMES).await;
    let lost: Vec<_> = {
        let kept = ids_of(&written);
        before.sent.iter().filter(|sent| !kept.contains(&sent.message_id)).collect()
    };
    let numbers: HashSet<i64> = written.sent.iter().map(|sent| sent.id).collect();
    let again = lost.iter().filter(|sent| numbers.contains(&sent.id)).count();
    assert!(lost.len() > 200 && again > 100, "{} were lost, {again} numbers were given out again", lost.len());
    let verdict = Verdict::of(&written, &inbox(&pair.destination).await);
    assert_eq!((verdict.lost, verdict.duplicates, verdict.out_of_order), (0, 0, 0), "{verdict:?}");
    assert!(verdict.unexpected > 200, "what was lost had been delivered: {verdict:?}");
    let told = |text: &str| replicas.iter().map(|replica| replica.lines_with(text).len()).sum::<usize>();
    assert!(told("the sink knew this epoch: raised above it") > 0, "claims were lost");
    assert!(told("the sink's position is of another life of the database") > 0);
    lost.len()
}

fn ids_of(written: &Written) -> HashSet<String> {
    written.sent.iter().map(|sent| sent.message_id.clone()).collect()
}

/// Both take writes now, at both places of the DSN.
async fn the_old_one_wakes_up(pair: &mut Pair, mut replicas: Vec<Process>, addresses: &[String]) {
    pair.primary.start_again().await.unwrap();
    let database = pair.fixture.database.clone();
    let asleep = ids_of(&books(&pair.primary, &database).await);
    let old = Load::start(pair.fixture.admin_dsn());
    let new = Load::start(&pair.standby.dsn(&database, "postgres"));
    for _ in 0..5 {
        new.goes_on(40).await;
        let cut = format!("select pg_terminate_backend(pid) from pg_stat_activity where usename = '{RELAY}'");
        pair.standby.admin("postgres").await.unwrap().batch_execute(&cut).await.unwrap();
    }
    pair.all_there(&pair.standby, &NAMES).await;

    // Now the old one is the only one that answers.
    pair.standby.stop_immediate().await.unwrap();
    none_can_work(addresses).await;
    old.goes_on(100).await;
    for replica in &mut replicas {
        replica.wait_for_line("an old primary", SOON).await.unwrap();
    }
    let started = SystemTime::now();
    pair.standby.start_again().await.unwrap();
    all_can_work(addresses).await;
    new.goes_on(200).await;
    old.stop().await;
    new.stop().await;
    pair.all_there(&pair.standby, &NAMES).await;
    let normal = load::time_to_normal(&pair.destination, started).await;
    println!(
        "figure: the new primary comes back while the old one answers: normal {:.1} s later",
        normal.as_secs_f64()
    );

    nothing_of_the_old_one_arrived(pair, &asleep).await;
    end(replicas).await;
}

/// Nothing that was committed there after it woke up.
async fn nothing_of_the_old_one_arrived(pair: &Pair, asleep: &HashSet<String>) {
    let awake = ids_of(&books(&pair.primary, &pair.fixture.database).await);
    let since: HashSet<String> = awake.difference(asleep).cloned().collect();
    assert!(since.len() > 100);
    assert!(arrived(pair, &NAMES).await.is_disjoint(&since), "the old primary's messages were delivered");
}

/// None had to be started again.
async fn end(replicas: Vec<Process>) {
    for mut replica in replicas {
        assert!(replica.exit_status().unwrap().is_none());
        replica.terminate().unwrap();
        assert!(replica.wait(SOON).await.unwrap().success());
    }
}

/// Ids at either sink.
async fn arrived(pair: &Pair, names: &[&str]) -> HashSet<String> {
    let in_files = pair.files(names).iter().flat_map(|file| ids_in(file)).collect::<Vec<_>>();
    inbox(&pair.destination).await.into_iter().map(|arrival| arrival.message_id).chain(in_files).collect()
}

/// A sink that keeps positions shows that the server is the old primary: its lanes are held, and an operator is told. One
/// that keeps none cannot, and is given what this server has, as `docs/operate.md` says.
async fn a_replica_of_the_old_one_alone(mut pair: Pair) {
    let (old, relays) = (pair.primary.dsn(&pair.fixture.database, RELAY), pair.relays());
    pair.fixture = pair.fixture.with_relay_dsn(old);
    let before = inbox(&pair.destination).await.len();
    let written = ids_of(&books(&pair.primary, &pair.fixture.database).await);
    // A lane without a key of this test has never written anything.
    let sql = "select count(*) from app.inbox_fence where relay = 'orders' and position is not null";
    let used: i64 = pair.destination.admin().await.unwrap().query_one(sql, &[]).await.unwrap().get(0);
    let mut alone = pair.fixture.run("alone", &relays).unwrap();
    let told = alone.wait_for_lines("the lane is held and not published", LANES / 2, SOON).await.unwrap();
    assert!(
        told.iter().all(|line| line.contains("it is the old primary") && line.contains("grant=lane orders")),
        "{told:?}"
    );
    let address = address_of(&mut alone).await;
    get_until(&address, "/metrics", "its lanes are refused", |answer| {
        answer.body.contains(&format!("pgbaton_lanes_refused{{relay=\"orders\"}} {used}\n"))
    })
    .await;
    let file = pair.files(&["alone"]).remove(0);
    until("the file gets what this server has", async || ids_in(&file).into_iter().collect::<HashSet<_>>().len() > 100)
        .await;
    assert!(written.is_superset(&ids_in(&file).into_iter().collect()));
    assert_eq!(inbox(&pair.destination).await.len(), before);
    alone.terminate().unwrap();
    assert!(alone.wait(SOON).await.unwrap().success());
}
