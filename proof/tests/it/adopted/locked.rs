//! Locks: the relay takes none that a reader would not, until it marks; and what others lock holds only its own lane.

use proof::on_each_version;

use super::{Adopted, SOURCE, end, pending_beside};
use crate::hand::{SOON, until};

on_each_version!(
    nothing_is_locked_while_it_is_published,
    a_locked_row_holds_its_lane_as_long_as_it_is_locked,
    other_lanes_are_handed_over_while_a_row_is_locked,
);

/// The process stands still with a batch that the sink is about to write.
async fn nothing_is_locked_while_it_is_published(major: u32) {
    let adopted = Adopted::new(major).await;
    // Its own locks would count.
    adopted.execute(r#"alter table app."Outbox" set (autovacuum_enabled = off)"#).await;
    adopted.insert(500).await;
    // One, so that no other one is a moment ahead.
    let source = adopted.to_files(SOURCE).replace("lanes = 4", "lanes = 1");
    let mut replica = adopted.fixture.run_with_faults("r1", &source, "sink.checked:stop:1").unwrap();
    until("a batch is about to be written", async || replica.is_stopped()).await;
    assert!(adopted.lines("r1").is_empty() && adopted.pending().await == 500);
    let of_table = r#"pg_locks where relation = 'app."Outbox"'::regclass and mode <> 'AccessShareLock'"#;
    assert_eq!(adopted.count(of_table).await, 0);
    // Each row can be changed, and the table be locked as `vacuum` and indexes do.
    adopted
        .execute(
            r#"begin; set local lock_timeout = '1ms'; lock table app."Outbox" in share update exclusive mode nowait;
               update app."Outbox" set site_id = site_id; rollback;
               begin; lock table app."Outbox" in exclusive mode nowait; rollback"#,
        )
        .await;
    replica.resume().unwrap();
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 500);
}

/// It is sent, as reading asks for no lock; only its mark has to wait.
async fn a_locked_row_holds_its_lane_as_long_as_it_is_locked(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(140).await;
    let user = adopted.fixture.admin().await.unwrap();
    let lock = r#"begin; select from app."Outbox" where site_id = 'site 3' order by created_at limit 1 for update"#;
    user.batch_execute(lock).await.unwrap();
    let mut replica = adopted.run("r1");
    let of_others = pending_beside("site 3");
    adopted.none_is_left(&of_others).await;
    replica.wait_for_line("cannot be marked yet", SOON).await.unwrap();
    // The others go on, again and again.
    for _ in 0..3 {
        adopted.insert(70).await;
        adopted.none_is_left(&of_others).await;
    }
    assert!(adopted.pending().await >= 20);
    user.batch_execute("commit").await.unwrap();
    adopted.all_marked().await;
    end(replica).await;
    let mut ids = adopted.arrived(&["r1"]);
    assert_eq!(ids.len(), 350);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 350, "nothing is sent twice for that");
}

async fn other_lanes_are_handed_over_while_a_row_is_locked(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(70).await;
    let user = adopted.fixture.admin().await.unwrap();
    user.batch_execute(r#"begin; select from app."Outbox" where site_id = 'site 3' limit 1 for update"#).await.unwrap();
    let mut first = adopted.run("r1");
    first.wait_for_line("cannot be marked yet", SOON).await.unwrap();
    let second = adopted.run("r2");
    let owners = r#"(select distinct owner from pgbaton.lane where owner is not null) o"#;
    until("lanes are handed over", async || adopted.count(owners).await == 2).await;
    user.batch_execute("commit").await.unwrap();
    adopted.all_marked().await;
    end(first).await;
    end(second).await;
    assert_eq!(adopted.arrived(&["r1", "r2"]).len(), 70);
}
