//! What a look reads while many rows that were marked lie in front, and what is said where it would read all of them.

use proof::fixture::RELAY;
use proof::on_each_version;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::stepwise::statements;
use super::{Adopted, SOURCE, end, index_in};
use crate::hand::SOON;
use pgbaton::sql::{READ_SETTINGS, SETTINGS};

on_each_version!(
    marked_rows_in_front_cost_nothing,
    a_snapshot_that_is_held_keeps_nothing_from_being_delivered,
    a_missing_index_is_told_and_can_be_made,
    an_index_that_was_there_is_enough,
    an_index_cannot_hold_the_time,
);

/// Rows that were marked long ago, in one go.
const MANY: i32 = 200_000;

/// Pages that a statement of the relay's reads with these arguments, in a transaction that begins as the relay's do.
async fn pages(relay: &Client, sql: &str, arguments: &str) -> u64 {
    relay.batch_execute(&format!("prepare verb as {sql}")).await.unwrap();
    let explain = format!(
        "begin isolation level repeatable read read only; {SETTINGS}; {READ_SETTINGS};
         explain (analyze, buffers, costs off, timing off, format json) execute verb{arguments}"
    );
    let answer = relay.simple_query(&explain).await.unwrap();
    relay.batch_execute("rollback; deallocate verb").await.unwrap();
    let text: String = answer
        .iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        })
        .collect();
    let plan: serde_json::Value = serde_json::from_str(&text).unwrap();
    let root = &plan[0]["Plan"];
    let pages = |key: &str| root[key].as_u64().unwrap();
    pages("Shared Hit Blocks") + pages("Shared Read Blocks")
}

/// Pages of a look and of what tells how far behind the relay is.
async fn pages_of_looks(adopted: &Adopted) -> [u64; 2] {
    let relay = adopted.fixture.relay().await.unwrap();
    let statements = statements(adopted).await;
    let text = |name: &str| statements.iter().find(|(found, _)| *found == name).unwrap().1.clone();
    [pages(&relay, &text("look"), "(1, '{}', 20000, null, true)").await, pages(&relay, &text("behind"), "").await]
}

async fn marked_rows(adopted: &Adopted, published_at: &str) {
    adopted
        .execute(&format!(
            r#"alter table app."Outbox" set (autovacuum_enabled = off);
               insert into app."Outbox" (site_id, topic, payload, published_at)
               select 'site ' || n % 7, 'orders', '{{}}', {published_at} from generate_series(1, {MANY}) n"#
        ))
        .await;
}

/// The index knows only what is pending.
async fn marked_rows_in_front_cost_nothing(major: u32) {
    let adopted = Adopted::new(major).await;
    marked_rows(&adopted, "now()").await;
    adopted.insert(10).await;
    for analysed in [false, true] {
        if analysed {
            adopted.execute(r#"analyze app."Outbox""#).await;
        }
        let [look, behind] = pages_of_looks(&adopted).await;
        println!("PostgreSQL {major}: {look} pages for a look, {behind} for what is behind");
        assert!(look < 50 && behind < 50, "{look} and {behind} pages, analysed: {analysed}");
    }
}

/// As long as somebody might still see them as pending, the index keeps them, and a look passes them. What is pending is
/// delivered all the same. Afterwards a look no longer visits the rows, and after a vacuum not even the index's pages.
async fn a_snapshot_that_is_held_keeps_nothing_from_being_delivered(major: u32) {
    let adopted = Adopted::new(major).await;
    marked_rows(&adopted, "null").await;
    let user = adopted.fixture.admin().await.unwrap();
    user.batch_execute(r#"begin isolation level repeatable read; select from app."Outbox" limit 1"#).await.unwrap();
    adopted.execute(r#"update app."Outbox" set published_at = now()"#).await;
    adopted.insert(100).await;
    let [held, _] = pages_of_looks(&adopted).await;

    let replica = adopted.run("r1");
    adopted.all_marked().await;
    for _ in 0..3 {
        adopted.insert(10).await;
        adopted.all_marked().await;
    }
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 130);

    user.batch_execute("commit").await.unwrap();
    // The first look notes in the index which of them are gone.
    pages_of_looks(&adopted).await;
    let [ended, _] = pages_of_looks(&adopted).await;
    adopted.execute(r#"vacuum app."Outbox""#).await;
    let [vacuumed, _] = pages_of_looks(&adopted).await;
    println!(
        "PostgreSQL {major}: {held} pages while the snapshot is held, {ended} after it, {vacuumed} after a vacuum"
    );
    assert!(
        ended < held && vacuumed < 50,
        "{held} pages while the snapshot is held, {ended} after it, {vacuumed} after a vacuum"
    );
}

/// Said once, with the statement, which is right as it stands; and no more once it was run.
async fn a_missing_index_is_told_and_can_be_made(major: u32) {
    // By the id alone, which its own index gives in order: that one holds what was marked as well.
    let by_id = SOURCE.replace("order = \"created_at\"\n", "");
    for (source, columns) in [(SOURCE, r#"("created_at", "id")"#), (&by_id, r#"("id")"#)] {
        let adopted = Adopted::new(major).await;
        adopted.execute(r#"drop index app."Outbox_created_at_id_idx""#).await;
        adopted.insert(10).await;
        let mut replica = adopted.run_source("r1", source);
        let line = replica.wait_for_line("no index gives just the pending rows", SOON).await.unwrap();
        adopted.all_marked().await;
        end(replica).await;
        let index = index_in(&line);
        let begins = format!(r#"create index concurrently on "app"."Outbox" {columns} where published_at is null"#);
        assert!(index.starts_with(&begins), "{index}");
        adopted.execute(index).await;
        adopted.insert(10).await;
        let replica = adopted.run_source("r2", source);
        adopted.all_marked().await;
        assert_eq!(replica.lines_with("no index gives"), [""; 0]);
        end(replica).await;
    }
}

/// Indexes as they are found: of less than the order, or by what the condition asks for.
async fn an_index_that_was_there_is_enough(major: u32) {
    let others = [
        r#"create index on app."Outbox" (created_at) where published_at is null"#,
        r#"create index on app."Outbox" (created_at, id, site_id) where published_at is null and topic <> ''"#,
    ];
    for index in others {
        let adopted = Adopted::new(major).await;
        adopted.execute(&format!(r#"drop index app."Outbox_created_at_id_idx"; {index}"#)).await;
        adopted.execute(&format!(r#"grant select on app."Outbox" to {RELAY}"#)).await;
        adopted.insert(10).await;
        let source = SOURCE.replace("is null --", "is null and topic <> '' --");
        let replica = adopted.run_source("r1", &source);
        adopted.all_marked().await;
        assert_eq!(replica.lines_with("no index gives"), [""; 0], "{index}");
        end(replica).await;
    }
}

/// A condition of the operator's may, and the statement that is printed says so.
async fn an_index_cannot_hold_the_time(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.execute(r#"drop index app."Outbox_created_at_id_idx""#).await;
    adopted.insert(10).await;
    let source = SOURCE.replace("is null --", "is null and created_at <= NOW() --");
    let mut replica = adopted.run_source("r1", &source);
    let line = replica.wait_for_line("no index gives just the pending rows", SOON).await.unwrap();
    assert!(line.contains("make one (but leave out of its condition what depends on the time"), "{line}");
    adopted.all_marked().await;
    end(replica).await;
    // As it says: the table's own index is of that kind.
    let adopted = Adopted::new(major).await;
    adopted.insert(10).await;
    let replica = adopted.run_source("r1", &source);
    adopted.all_marked().await;
    assert_eq!(replica.lines_with("no index gives"), [""; 0]);
    end(replica).await;
}
