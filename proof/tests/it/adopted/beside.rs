//! An adopted relay beside one of the outbox: it keeps no segment, and every command knows both.

use proof::fixture::RELAY;
use proof::on_each_version;
use proof::process::Process;
use serde_json::Value;

use super::{Adopted, SOURCE, end};
use crate::hand::{SOON, until};
use crate::relays::{ask, inbox};
use crate::segments::{aside, count, insert_into, why};

on_each_version!(
    an_adopted_relay_keeps_no_segment,
    an_adopted_relay_alone_empties_none,
    both_are_shown,
    it_is_dropped,
    both_are_rebased,
    a_table_that_was_made_anew_is_refused,
    a_table_that_is_made_anew_under_a_replica_is_noticed,
);

impl Adopted {
    fn relays(&self, names: &[&str]) -> String {
        let sink = self.fixture.inbox_sink("app.inbox");
        let one = |name: &&str| {
            let source = if *name == "orders" { SOURCE } else { "" };
            format!("[relays.{name}]\nlanes = 2\nsink = {sink}\n{source}\n")
        };
        names.iter().map(one).collect()
    }

    /// Runs these relays until they have opened their lanes.
    async fn run_relays(&self, name: &str, relays: &[&str]) -> Process {
        let mut replica = self.fixture.run(name, &self.relays(relays)).unwrap();
        replica.wait_for_lines("lane opened", 2 * relays.len(), SOON).await.unwrap();
        replica
    }

    async fn arrived_in_inbox(&self, relay: &str, count: usize) {
        until(&format!("{count} of {relay} arrive"), async || inbox(&self.admin, relay).await.len() == count).await;
    }
}

async fn with_inbox(major: u32) -> Adopted {
    let adopted = Adopted::new(major).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    adopted
}

/// Its rows are pending, nobody runs it, and the outbox is emptied all the same.
async fn an_adopted_relay_keeps_no_segment(major: u32) {
    let adopted = with_inbox(major).await;
    end(adopted.run_relays("r1", &["orders", "native"]).await).await;
    adopted.insert(10).await;
    let (segment, _) = aside(&adopted.admin).await;
    insert_into(&adopted.admin, segment, "m", "k", 3).await;
    let relay = adopted.fixture.relay().await.unwrap();
    let kept = why(&relay, segment).await.unwrap();
    assert!(kept.starts_with("relay native, lane"), "{kept}");
    let native = adopted.run_relays("r2", &["native"]).await;
    adopted.arrived_in_inbox("native", 3).await;
    until("nobody needs it", async || why(&relay, segment).await.is_none()).await;
    assert_eq!(count(&adopted.admin, segment).await, 0);
    assert_eq!(adopted.pending().await, 10);
    end(native).await;
}

/// No relay of the outbox is registered: what is in it waits for one.
async fn an_adopted_relay_alone_empties_none(major: u32) {
    let adopted = with_inbox(major).await;
    adopted.insert(10).await;
    let replica = adopted.run_relays("r1", &["orders"]).await;
    adopted.all_marked().await;
    let (segment, _) = aside(&adopted.admin).await;
    insert_into(&adopted.admin, segment, "m", "k", 3).await;
    let relay = adopted.fixture.relay().await.unwrap();
    assert_eq!(why(&relay, segment).await.as_deref(), Some("no relay that reads the outbox is registered"));
    assert_eq!(count(&adopted.admin, segment).await, 3);
    end(replica).await;
}

async fn both_are_shown(major: u32) {
    let adopted = with_inbox(major).await;
    adopted.insert(10).await;
    let replica = adopted.run_relays("r1", &["orders", "native"]).await;
    adopted.all_marked().await;
    let shown = async |command: &[&str]| -> Value {
        let answer =
            ask(&adopted.fixture, &[command, &["--json", "--dsn", adopted.fixture.relay_dsn()]].concat()).await;
        assert!(answer.status.success(), "{command:?}: {answer:?}");
        serde_json::from_slice(&answer.stdout).unwrap()
    };
    let relays = shown(&["relays", "list"]).await;
    let (native, orders) = (&relays["relays"][0], &relays["relays"][1]);
    assert_eq!((&native["name"], &native["owned"]), (&"native".into(), &2.into()));
    assert_eq!((&orders["name"], &orders["owned"]), (&"orders".into(), &2.into()));
    for command in ["status", "lanes"] {
        let lanes = shown(&[command]).await;
        let of_orders = lanes["lanes"].as_array().unwrap().iter().filter(|lane| lane["relay"] == "orders");
        assert!(of_orders.clone().count() == 2 && of_orders.clone().all(|lane| !lane["replica"].is_null()), "{lanes}");
        assert!(of_orders.clone().any(|lane| lane["batch"].as_i64() > Some(0)), "{lanes}");
    }
    for command in [&["status"][..], &["lanes"], &["relays", "list"], &["segments"]] {
        let plain = ask(&adopted.fixture, &[command, &["--dsn", adopted.fixture.relay_dsn()]].concat()).await;
        assert!(plain.status.success(), "{command:?}: {plain:?}");
    }
    end(replica).await;
}

/// It loses nothing, and repeats nothing: the rows say what is pending. The table is free for another relay as well.
async fn it_is_dropped(major: u32) {
    let adopted = with_inbox(major).await;
    adopted.insert(10).await;
    let replica = adopted.run_relays("r1", &["orders"]).await;
    adopted.all_marked().await;
    end(replica).await;
    let drop = ["relays", "drop", "orders", "--yes", "--dsn", adopted.fixture.migrate_dsn()];
    let dropped = ask(&adopted.fixture, &drop).await;
    assert!(dropped.status.success(), "{dropped:?}");
    assert_eq!(adopted.count("pgbaton.lane where relay = 'orders'").await, 0);
    adopted.insert(5).await;
    let other = adopted.relays(&["orders"]).replace("orders]", "audit]").replace("orders.source", "audit.source");
    let replica = adopted.fixture.run("r2", &other).unwrap();
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!((inbox(&adopted.admin, "orders").await.len(), inbox(&adopted.admin, "audit").await.len()), (10, 5));
}

/// Whose positions in the outbox are taken back, and whose batches are numbered anew.
async fn both_are_rebased(major: u32) {
    let adopted = with_inbox(major).await;
    adopted.insert(10).await;
    let replica = adopted.run_relays("r1", &["orders", "native"]).await;
    adopted.all_marked().await;
    let (segment, _) = aside(&adopted.admin).await;
    insert_into(&adopted.admin, segment, "m", "k", 3).await;
    adopted.arrived_in_inbox("native", 3).await;
    end(replica).await;
    adopted.insert(5).await;
    let rebased = ask(&adopted.fixture, &["rebase", "--yes", "--dsn", adopted.fixture.migrate_dsn()]).await;
    assert!(rebased.status.success(), "{rebased:?}");
    insert_into(&adopted.admin, segment, "n", "k", 1).await;
    let replica = adopted.run_relays("r2", &["orders", "native"]).await;
    adopted.all_marked().await;
    adopted.arrived_in_inbox("native", 4).await;
    adopted.arrived_in_inbox("orders", 15).await;
    end(replica).await;
}

/// Ids are given out again, which a receiver would take for repeats.
async fn a_table_that_is_made_anew_under_a_replica_is_noticed(major: u32) {
    let adopted = with_inbox(major).await;
    adopted.insert(10).await;
    let mut replica = adopted.run_relays("r1", &["orders"]).await;
    adopted.all_marked().await;
    let anew = format!(
        r#"drop table app."Outbox"; {} grant select, update (published_at) on app."Outbox" to {RELAY};
           insert into app."Outbox" (site_id, topic, payload) select 'site ' || n, 'orders', '1' from generate_series(1, 5) n"#,
        super::TABLE
    );
    adopted.execute(&format!("begin; {anew}; commit")).await;
    let refused = replica.wait_for_line("is another table than the one it was registered for", SOON).await.unwrap();
    assert!(refused.contains("Stop the relay's replicas"), "{refused}");
    assert_eq!(adopted.pending().await, 5);
    replica.terminate().unwrap();
    replica.wait(SOON).await.unwrap();
    adopted.arrived_in_inbox("orders", 10).await;
}

/// By the same name: which rows were delivered nobody knows.
async fn a_table_that_was_made_anew_is_refused(major: u32) {
    let adopted = with_inbox(major).await;
    adopted.insert(10).await;
    let replica = adopted.run_relays("r1", &["orders"]).await;
    adopted.all_marked().await;
    end(replica).await;
    adopted.execute(&format!(r#"drop table app."Outbox"; {}"#, super::TABLE)).await;
    adopted.execute(&format!(r#"grant select, update (published_at) on app."Outbox" to {RELAY}"#)).await;
    adopted.insert(5).await;
    let mut replica = adopted.fixture.run("r2", &adopted.relays(&["orders"])).unwrap();
    let refused = replica.wait_for_line("is another table than the one it was registered for", SOON).await.unwrap();
    assert!(refused.contains("relays drop"), "{refused}");
    assert_eq!(adopted.pending().await, 5);
    replica.terminate().unwrap();
    replica.wait(SOON).await.unwrap();
}
