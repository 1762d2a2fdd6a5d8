//! Databases that are not the ones their positions were written in: refused, and made right by one command.

use pgbaton::source::{Opaque, Opened};
use proof::fixture::{Fixture, MIGRATE, PRODUCER, RELAY, finish};
use proof::on_each_version;
use proof::servers::{Binaries, Cluster, Options};

use crate::hand::{Hand, Holder, SOON, insert, sorted, until};
use crate::relays::{ask, inbox};

on_each_version!(
    a_dump_restored_elsewhere_is_refused_and_rebased,
    a_sink_ahead_of_a_rebased_database_does_not_count,
    nothing_is_rebased_while_a_replica_runs,
    rebasing_again_repeats_nothing,
    rebasing_makes_good_what_was_broken_by_hand,
);

/// Its transaction ids are those of a server that had many more.
async fn a_dump_restored_elsewhere_is_refused_and_rebased(major: u32) {
    let binaries = Binaries::find(major).unwrap();
    let old = Cluster::start(&binaries, Options::default()).await.unwrap();
    let burn = "do $$ begin for i in 1..5000 loop perform pg_current_xact_id(); commit; end loop; end $$";
    old.admin("postgres").await.unwrap().batch_execute(burn).await.unwrap();
    let hand = Hand::on(Fixture::on(&old).await.unwrap(), 2).await;
    let keys = [hand.key(0).await, hand.key(1).await];
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.open(&hand, 1).await;
    for key in &keys {
        hand.insert("delivered", key, 3).await;
    }
    owner.deliver().await;
    hand.insert("due", &keys[0], 2).await;
    lane_1_goes_on_alone(&hand, &mut owner, &keys[1]).await;

    let new = Cluster::start(&binaries, Options::default()).await.unwrap();
    let target = restored(&hand.fixture, &new).await;
    is_refused(&target).await;
    // Applications do not wait for it: their transaction ids are far smaller than those of the dump.
    insert(&target.producer().await.unwrap(), "meanwhile", &keys[1], 1).await;
    let rebased = ask(&target, &["rebase", "--yes", "--dsn", target.migrate_dsn()]).await;
    let told = String::from_utf8_lossy(&rebased.stderr).into_owned();
    assert!(rebased.status.success() && told.contains("holds 11 messages; 3 of them"), "{told}");
    what_is_due_arrives(&target, &keys[0]).await;
}

/// It passes what lane 0 has not.
async fn lane_1_goes_on_alone(hand: &Hand, owner: &mut Holder, key: &str) {
    hand.insert("delivered later", key, 2).await;
    owner.room(0, false);
    until("lane 1 has got its own", async || {
        owner.read().await.unwrap();
        owner.got.len() == 8
    })
    .await;
    owner.acknowledge().await.unwrap();
}

async fn what_is_due_arrives(target: &Fixture, key: &str) {
    let mut replica = target.run("r1", &to_inbox(target)).unwrap();
    insert(&target.producer().await.unwrap(), "new", key, 1).await;
    let admin = target.admin().await.unwrap();
    until("what is due arrives", async || inbox(&admin, "orders").await.len() == 4).await;
    assert_eq!(sorted(inbox(&admin, "orders").await), ["due 1", "due 2", "meanwhile 1", "new 1"]);
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

fn to_inbox(fixture: &Fixture) -> String {
    format!("[relays.orders]\nlanes = 2\nsink = {}\n", fixture.inbox_sink("app.inbox"))
}

/// A dump of this database, restored on another server.
async fn restored(old: &Fixture, new: &Cluster) -> Fixture {
    let roles = format!("create role {MIGRATE} login; create role {RELAY} login; create role {PRODUCER} login");
    new.admin("postgres").await.unwrap().batch_execute(&roles).await.unwrap();
    let target = Fixture::elsewhere(new, old).await.unwrap();
    let path = target.folder().join("dump.sql");
    let mut dump = std::process::Command::new(new.binaries().program("pg_dump"));
    let dumped = finish(dump.arg(old.admin_dsn()).arg("--file").arg(&path)).await.unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    let mut restore = std::process::Command::new(new.binaries().program("psql"));
    restore.args(["-q", "-v", "ON_ERROR_STOP=1", target.admin_dsn(), "-f"]).arg(&path);
    let restored = finish(&mut restore).await.unwrap();
    assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
    target.inbox("app.inbox").await.unwrap();
    target
}

async fn is_refused(target: &Fixture) {
    let mut replica = target.run("refused", &to_inbox(target)).unwrap();
    assert_eq!(replica.wait(SOON).await.unwrap().code(), Some(1));
    let log = std::fs::read_to_string(replica.stderr()).unwrap();
    assert!(log.contains("not the one that the positions were written in") && log.contains("pgbaton rebase"), "{log}");
    let confirm = ask(target, &["confirm", "--dsn", target.migrate_dsn()]).await;
    assert!(String::from_utf8_lossy(&confirm.stderr).contains("`pgbaton rebase` is for"), "{confirm:?}");
    let unsure = ask(target, &["rebase", "--dsn", target.migrate_dsn()]).await;
    assert_eq!(unsure.status.code(), Some(2));
}

/// A volume snapshot looks like the same server: the sink's word would skip what is here.
async fn a_sink_ahead_of_a_rebased_database_does_not_count(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("m", "k", 3).await;
    owner.drain().await;
    let held = Opaque::new(owner.dealt(0).batch, &owner.dealt(0).next);
    hand.forget_replicas().await;
    let rebased = ask(&hand.fixture, &["rebase", "--yes", "--dsn", hand.fixture.migrate_dsn()]).await;
    assert!(rebased.status.success(), "{rebased:?}");
    let mut next = hand.holder().await;
    let opened = next.open_with(&hand, 0, Some(&held)).await.unwrap();
    assert!(matches!(opened, Opened::Announced { .. }), "{opened:?}");
    next.drain().await;
    assert_eq!(next.got.len(), 3);
}

async fn nothing_is_rebased_while_a_replica_runs(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let relays = "[lease]\nttl = \"1s\"\n[relays.orders]\nsink = { type = \"discard\" }\n";
    let mut replica = fixture.run("r1", relays).unwrap();
    replica.wait_for_line("joined", SOON).await.unwrap();
    let rebase = ["rebase", "--yes", "--dsn", fixture.migrate_dsn()];
    let refused = ask(&fixture, &rebase).await;
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Stop all replicas"), "{refused:?}");
    // One that died is no hindrance.
    replica.kill().unwrap();
    assert!(ask(&fixture, &rebase).await.status.success());
}

/// A second time nothing is due that was dealt with in between.
async fn rebasing_again_repeats_nothing(major: u32) {
    let hand = Hand::new(major, 2).await;
    let key = hand.key(0).await;
    for round in 0..3 {
        hand.insert("m", &key, 2).await;
        let mut owner = hand.holder().await;
        owner.open(&hand, 0).await;
        owner.open(&hand, 1).await;
        owner.deliver().await;
        assert_eq!(owner.got, ["m 1", "m 2"], "round {round}");
        hand.forget_replicas().await;
        let rebased = ask(&hand.fixture, &["rebase", "--yes", "--dsn", hand.fixture.migrate_dsn()]).await;
        assert!(String::from_utf8_lossy(&rebased.stderr).contains(" 0 of them"), "{rebased:?}");
    }
}

/// Lanes and positions that somebody deleted, and a sequence that was set back below what is stored.
async fn rebasing_makes_good_what_was_broken_by_hand(major: u32) {
    let hand = Hand::new(major, 4).await;
    hand.insert("m", "k", 10).await;
    hand.admin
        .batch_execute(
            "delete from pgbaton.lane where lane = 1; delete from pgbaton.position where lane in (1, 2);
             select setval('pgbaton.outbox_id_seq', 3)",
        )
        .await
        .unwrap();
    let rebased = ask(&hand.fixture, &["rebase", "--yes", "--dsn", hand.fixture.migrate_dsn()]).await;
    assert!(rebased.status.success(), "{rebased:?}");
    hand.insert("new", "k", 1).await;
    let mut owner = hand.holder().await;
    for lane in 0..4 {
        owner.open(&hand, lane).await;
    }
    owner.drain().await;
    assert_eq!(owner.got.len(), 11);
    assert_eq!(owner.got.last().unwrap(), "new 1");
}

/// Transaction ids go on, the identifier changes, and what the sink says of the old one still counts.
#[tokio::test]
async fn a_server_made_by_pg_upgrade_is_confirmed() {
    let old = Cluster::start(&Binaries::find(15).unwrap(), Options::default()).await.unwrap();
    let fixture = Fixture::on(&old).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    let relays = to_inbox(&fixture);
    let mut replica = fixture.run("before", &relays).unwrap();
    insert(&fixture.producer().await.unwrap(), "before", "k", 3).await;
    let admin = fixture.admin().await.unwrap();
    until("it delivers", async || inbox(&admin, "orders").await.len() == 3).await;
    drop(admin);
    // Killed: the sink may well be ahead of the database, and has to be believed.
    replica.kill().unwrap();

    let new = old.upgrade(&Binaries::find(18).unwrap()).await.unwrap();
    let fixture = fixture.moved_to(&new);
    let relays = to_inbox(&fixture);
    let mut replica = fixture.run("refused", &relays).unwrap();
    assert_eq!(replica.wait(SOON).await.unwrap().code(), Some(1));
    let log = std::fs::read_to_string(replica.stderr()).unwrap();
    assert!(log.contains("pgbaton confirm"), "{log}");
    let confirm = ["confirm", "--dsn", fixture.migrate_dsn()];
    let confirmed = ask(&fixture, &confirm).await;
    assert!(confirmed.status.success(), "{confirmed:?}");
    let again = ask(&fixture, &confirm).await;
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing to confirm"), "{again:?}");

    let mut replica = fixture.run("after", &relays).unwrap();
    insert(&fixture.producer().await.unwrap(), "after", "k", 3).await;
    let admin = fixture.admin().await.unwrap();
    until("it goes on", async || inbox(&admin, "orders").await.len() == 6).await;
    assert!(replica.lines_with("another life").is_empty(), "the sink's positions count");
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    assert!(replica.lines_with("repeated=").iter().all(|line| line.contains("repeated=0")), "nothing came twice");
}
