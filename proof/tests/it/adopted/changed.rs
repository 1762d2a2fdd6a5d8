//! Rows that were changed after they had been read: what was sent is their former content, so they are marked, and counted.

use proof::on_each_version;

use super::stepwise::Steps;
use super::{Adopted, end};
use crate::daemon::{ANYWHERE, address_of, get};
use crate::hand::{SOON, until};

on_each_version!(
    what_was_changed_is_marked_and_counted,
    what_changes_while_the_mark_waits_is_counted,
    what_was_not_changed_is_not_counted,
    what_is_gone_is_counted,
    a_change_is_told,
);

/// Rows are read, something happens to the table, and they are marked.
async fn read_and_marked<'a>(adopted: &'a Adopted, what: &str) -> Steps<'a> {
    let mut steps = Steps::new(adopted, 1).await;
    adopted.insert(20).await;
    steps.open(0, None).await;
    steps.read_until(20).await;
    adopted.execute(what).await;
    steps.acknowledge(0).await;
    steps
}

/// So many of them are counted as changed, and so many are pending.
async fn counted(major: u32, what: &str) -> (u64, i64) {
    let adopted = Adopted::new(major).await;
    let steps = read_and_marked(&adopted, what).await;
    (steps.metrics.counts().changed, adopted.pending().await)
}

async fn what_was_changed_is_marked_and_counted(major: u32) {
    let changes = [
        (r#"update app."Outbox" set payload = '{}' where site_id = 'site 3'"#, 3),
        // Twice, and to what it was.
        (
            r#"update app."Outbox" set topic = 'x' where site_id = 'site 3';
               update app."Outbox" set topic = 'orders' where site_id = 'site 3'"#,
            3,
        ),
        // Its key, and so perhaps its lane: it was sent under the former one.
        (r#"update app."Outbox" set site_id = 'other' where site_id = 'site 3'"#, 3),
        // Taken out and put in again by the same id.
        (
            r#"create table app.aside as select * from app."Outbox" where site_id = 'site 3';
               delete from app."Outbox" where site_id = 'site 3'; insert into app."Outbox" select * from app.aside"#,
            3,
        ),
        (r#"update app."Outbox" set payload = '{}'"#, 20),
    ];
    for (change, rows) in changes {
        assert_eq!(counted(major, change).await, (rows, 0), "{change}");
    }
}

/// Locks, vacuum and changes that were taken back are none; what is no longer pending is left alone.
async fn what_was_not_changed_is_not_counted(major: u32) {
    let changes = [
        "select 1",
        r#"begin; select * from app."Outbox" for key share; commit"#,
        r#"begin; select * from app."Outbox" for update; commit"#,
        r#"create table app.item (outbox uuid references app."Outbox"); insert into app.item select id from app."Outbox""#,
        r#"vacuum (freeze) app."Outbox""#,
        r#"vacuum (full) app."Outbox""#,
        r#"begin; update app."Outbox" set payload = '{}'; rollback"#,
        r#"update app."Outbox" set published_at = now(), payload = '{}' where site_id = 'site 3'"#,
    ];
    for change in changes {
        assert_eq!(counted(major, change).await, (0, 0), "{change}");
    }
}

/// Another relay marks rows, or an application deletes them, while they are delivered here. Our own marks count for nothing.
async fn what_is_gone_is_counted(major: u32) {
    for (what, rows) in [
        (r#"update app."Outbox" set published_at = now() where site_id = 'site 3'"#, 3),
        (r#"delete from app."Outbox" where site_id = 'site 3'"#, 3),
        (r#"delete from app."Outbox""#, 20),
        (r#"update app."Outbox" set payload = '{}' where site_id = 'site 3'"#, 0),
        (
            "create function app.nothing() returns trigger language plpgsql as $$ begin return null; end $$;
          create trigger t after update on app.\"Outbox\" for each row execute function app.nothing()",
            0,
        ),
        ("select 1", 0),
    ] {
        let adopted = Adopted::new(major).await;
        let steps = read_and_marked(&adopted, what).await;
        assert_eq!(steps.metrics.counts().gone, rows, "{what}");
        // The answer was lost, and it is said again.
        steps.acknowledge(0).await;
        assert_eq!(steps.metrics.counts().gone, rows, "{what}");
    }
}

/// The mark's statement has begun before the change is committed, and sees the former version of the row.
async fn what_changes_while_the_mark_waits_is_counted(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = Steps::new(&adopted, 1).await;
    adopted.insert(20).await;
    steps.open(0, None).await;
    steps.read_until(20).await;
    let user = adopted.fixture.admin().await.unwrap();
    user.batch_execute(r#"begin; update app."Outbox" set payload = '{}' where site_id = 'site 3'"#).await.unwrap();
    let commit = async {
        until("the mark waits for the row", async || {
            let waiting = "pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
                             and wait_event = 'transactionid'";
            adopted.count(waiting).await > 0
        })
        .await;
        user.batch_execute("commit").await.unwrap();
    };
    let marked = async {
        // It waits only for a moment, and may have given up before.
        until("all are marked", async || {
            steps.acknowledge(0).await;
            adopted.pending().await == 0
        })
        .await;
    };
    tokio::join!(marked, commit);
    assert_eq!(steps.metrics.counts().changed, 3);
}

/// By the real executable: a metric, and a line of the log that names a row and not what it says.
async fn a_change_is_told(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    adopted.insert(1).await;
    let relays = format!(
        "{ANYWHERE}[relays.orders]\nlanes = 1\nsink = {}\n{}",
        adopted.fixture.inbox_sink("app.inbox"),
        super::SOURCE
    );
    let mut replica = adopted.fixture.run_with_faults("r1", &relays, "acknowledge.locked:stop:1").unwrap();
    until("the mark is about to be made", async || replica.is_stopped()).await;
    adopted.execute(r#"update app."Outbox" set payload = '{"secret": 1}'"#).await;
    replica.resume().unwrap();
    adopted.all_marked().await;
    let line = replica.wait_for_line("were changed after they had been read", SOON).await.unwrap();
    let id: String = adopted.admin.query_one(r#"select id::text from app."Outbox""#, &[]).await.unwrap().get(0);
    assert!(line.contains(&id) && !line.contains("secret"), "{line}");
    let address = address_of(&mut replica).await;
    let metrics = get(&address, "/metrics").await.body;
    assert!(metrics.contains("pgbaton_rows_changed_total{relay=\"orders\"} 1"), "{metrics}");
    let sent: i64 = adopted
        .admin
        .query_one("select count(*) from app.inbox where payload_json::jsonb ? 'n'", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(sent, 1, "the former content");
    end(replica).await;
}
