//! Tables and marks that would lose rows, repeat them for ever or hide them are refused, with the reason.

use proof::on_each_version;

use super::{Adopted, SOURCE, end, pending_beside};
use crate::hand::{SOON, until};

on_each_version!(
    tables_that_cannot_be_adopted,
    sources_that_cannot_be_meant,
    rows_that_others_keep_are_not_deleted,
    a_mark_that_does_not_end_the_condition,
    marks_that_the_table_completes,
    marks_that_could_not_be_tried,
    marks_that_triggers_take_back,
    what_cannot_be_marked_is_not_sent_again,
    one_relay_reads_a_table,
);

/// What is done to the table, and what is said of it.
const WRONG: [(&str, &str); 17] = [
    (r#"alter table app."Outbox" drop column topic"#, "it has no column \"topic\""),
    (r#"alter table app."Outbox" drop constraint "Outbox_pkey""#, "no unique index has just the columns of the id"),
    (
        r#"alter table app."Outbox" drop constraint "Outbox_pkey"; alter table app."Outbox" alter id type text using id::text;
           create unique index on app."Outbox" (id collate "C")"#,
        "no unique index has just the columns of the id",
    ),
    (r#"alter table app."Outbox" enable row level security"#, "row-level security"),
    (r#"create rule r as on update to app."Outbox" do also select 1"#, "rules on update or delete"),
    (r#"alter table app."Outbox" set unlogged"#, "it is unlogged"),
    (r#"create table app.child () inherits (app."Outbox")"#, "other tables inherit from it"),
    (
        r#"alter table app."Outbox" alter site_id type bytea using convert_to(site_id, 'UTF8')"#,
        "depends on a session's settings",
    ),
    (
        r#"alter table app."Outbox" rename to "Old"; create view app."Outbox" as select * from app."Old""#,
        "it is a view",
    ),
    (
        r#"alter table app."Outbox" rename to "Old"; create materialized view app."Outbox" as select * from app."Old""#,
        "it is a view",
    ),
    (
        r#"drop table app."Outbox"; create foreign data wrapper elsewhere; create server s foreign data wrapper elsewhere;
           create foreign table app."Outbox" (id uuid) server s"#,
        "it is a foreign table",
    ),
    (
        r#"create table app.parent (like app."Outbox" including all); alter table app."Outbox" inherit app.parent"#,
        "it is a part of another table",
    ),
    (
        r#"alter table app."Outbox" drop column published_at;
           alter table app."Outbox" add published_at timestamptz generated always as (created_at) stored"#,
        "\"published_at\" is generated",
    ),
    (
        r#"alter table app."Outbox" drop constraint "Outbox_pkey"; alter table app."Outbox" alter id drop not null;
           create unique index on app."Outbox" (id)"#,
        "of the id may be null",
    ),
    (
        r#"alter table app."Outbox" drop constraint "Outbox_pkey"; create unique index on app."Outbox" (id) where topic <> ''"#,
        "no unique index has just the columns of the id",
    ),
    (
        r#"alter table app."Outbox" drop constraint "Outbox_pkey"; create unique index i on app."Outbox" (id);
           create publication p for table app."Outbox""#,
        "published without a replica identity",
    ),
    (r#"drop table app."Outbox""#, "there is no table"),
];

async fn tables_that_cannot_be_adopted(major: u32) {
    for (change, said) in WRONG {
        let adopted = Adopted::new(major).await;
        adopted.admin.batch_execute(change).await.unwrap_or_else(|error| panic!("{change}: {error:?}"));
        let mut replica = adopted.run("r1");
        assert!(!replica.wait(SOON).await.unwrap().success(), "{change}");
        assert!(
            !replica.lines_with(said).is_empty(),
            "{change}: {}",
            std::fs::read_to_string(replica.stderr()).unwrap()
        );
    }
}

/// What is configured, and what is said of it.
const MISTAKEN: [(&str, &str, &str); 5] = [
    ("published_at is null --", "published_at = null --", "is true for no row there could be"),
    ("published_at is null --", "published_at is nul --", "syntax error at or near \"nul\""),
    ("published_at is null --", "publishd_at is null --", "column \"publishd_at\" does not exist"),
    ("mark = {", "mark = { site_id = \"'x'\",", "`mark` sets column \"site_id\""),
    ("mark = {", "mark = { id = \"gen_random_uuid()\",", "`mark` sets column \"id\""),
];

async fn sources_that_cannot_be_meant(major: u32) {
    let adopted = Adopted::new(major).await;
    for (right, wrong, said) in MISTAKEN {
        let mut replica = adopted.run_source("r1", &SOURCE.replace(right, wrong));
        assert!(!replica.wait(SOON).await.unwrap().success(), "{wrong}");
        let log = std::fs::read_to_string(replica.stderr()).unwrap();
        assert!(log.contains(said) && !log.contains("pgbaton migrate"), "{wrong}: {log}");
    }
}

/// What refers to a row goes with it, or keeps it.
async fn rows_that_others_keep_are_not_deleted(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.execute(r#"create table app.note (outbox uuid references app."Outbox")"#).await;
    adopted.execute(r#"grant delete on app."Outbox" to pgbaton_relay"#).await;
    let source = SOURCE.replace(r#"{ published_at = "now()" }"#, r#""delete""#);
    let mut replica = adopted.run_source("r1", &source);
    assert!(!replica.wait(SOON).await.unwrap().success());
    assert!(!replica.lines_with("keep it from being deleted from").is_empty());
}

async fn a_mark_that_does_not_end_the_condition(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(5).await;
    adopted.execute(r#"drop index app."Outbox_created_at_id_idx""#).await;
    let source = SOURCE.replace("now()", "null");
    let mut replica = adopted.fixture.run("r1", &adopted.to_files(&source)).unwrap();
    assert!(!replica.wait(SOON).await.unwrap().success());
    assert!(
        !replica.lines_with("would still be pending after its mark").is_empty(),
        "{}",
        std::fs::read_to_string(replica.stderr()).unwrap()
    );
    assert_eq!(adopted.arrived(&["r1"]), [""; 0]);
    // Trying it may take its time without an index, so that this is told before.
    assert!(!replica.lines_with("no index gives just the pending rows").is_empty());
}

/// No row was there to try it on. No trigger has a say in it: the row itself tells that it is pending after its mark.
async fn marks_that_could_not_be_tried(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut replica = adopted.run_source("r1", &SOURCE.replace("now()", "null"));
    replica.wait_for_line("lanes taken over", SOON).await.unwrap();
    adopted.insert(5).await;
    replica.wait_for_line("cannot be marked", SOON).await.unwrap();
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    assert_eq!(adopted.pending().await, 5);
    assert!(adopted.arrived(&["r1"]).len() <= 5);
}

/// The mark sets one column, and another one ends the condition by itself. That cannot be tried without writing.
async fn marks_that_the_table_completes(major: u32) {
    let completed = [
        (
            r#"create function app.complete() returns trigger language plpgsql as $$ begin
                 new.published_at := now(); return new; end $$;
               create trigger t before update on app."Outbox" for each row execute function app.complete()"#,
            SOURCE.replace("published_at = \"now()\"", "topic = \"topic\""),
        ),
        (
            r#"alter table app."Outbox" add done boolean generated always as (published_at is not null) stored"#,
            SOURCE.replace("published_at is null --", "not done --"),
        ),
    ];
    for (change, source) in completed {
        let adopted = Adopted::with(major, &format!("{}; {change}", super::TABLE)).await;
        adopted.insert(5).await;
        let replica = adopted.run_source("r1", &source);
        adopted.all_marked().await;
        end(replica).await;
    }
}

const RESET: &str = "create function app.reset() returns trigger language plpgsql as $$ begin
    update app.\"Outbox\" set published_at = null where id = new.id and published_at is not null; return null; end $$;
    alter function app.reset() security definer;";

/// Each lane hands over one batch, finds that it cannot be marked, and is held.
async fn marks_that_triggers_take_back(major: u32) {
    let triggers = [
        "create function app.swallow() returns trigger language plpgsql as $$ begin return null; end $$;
         create trigger t before update on app.\"Outbox\" for each row execute function app.swallow()"
            .to_owned(),
        format!(
            "{RESET} create trigger t after update on app.\"Outbox\" for each row when (new.published_at is not null)
                 execute function app.reset()"
        ),
        format!(
            "{RESET} create constraint trigger t after update on app.\"Outbox\" deferrable initially deferred
                 for each row when (new.published_at is not null) execute function app.reset()"
        ),
    ];
    for trigger in triggers {
        let adopted = Adopted::new(major).await;
        adopted.admin.batch_execute(&trigger).await.unwrap_or_else(|error| panic!("{trigger}: {error:?}"));
        adopted.insert(5).await;
        let mut replica = adopted.run("r1");
        let held = replica.wait_for_line("cannot be marked", SOON).await.unwrap();
        assert!(held.contains("orders") && !held.contains("site"), "{held}");
        replica.terminate().unwrap();
        assert!(replica.wait(SOON).await.unwrap().success());
        assert_eq!(adopted.pending().await, 5);
        assert!(adopted.arrived(&["r1"]).len() <= 5, "{trigger}");
    }
}

/// Until a person has mended it, its lane is neither published nor handed over. Others are.
async fn what_cannot_be_marked_is_not_sent_again(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted
        .execute(
            r#"create sequence app.tries;
               create function app.swallow() returns trigger language plpgsql security definer
                 as $$ begin perform nextval('app.tries'); return null; end $$;
               create trigger t before update on app."Outbox" for each row when (old.site_id = 'site 1')
                 execute function app.swallow()"#,
        )
        .await;
    adopted.insert(70).await;
    let mut first = adopted.run("r1");
    first.wait_for_line("cannot be acknowledged", SOON).await.unwrap();
    let second = adopted.run("r2");
    until("the other replica owns lanes", async || adopted.owners().await == 2).await;
    // More for it, and for the others.
    adopted.insert(70).await;
    adopted.none_is_left(&pending_beside("site 1")).await;
    let tried = adopted.tries().await;
    until("it is tried again", async || adopted.tries().await > tried).await;
    let of_it = adopted.lines("r1").iter().filter(|line| line["key"] == "site 1").count();
    assert_eq!((of_it, adopted.pending().await >= 20), (10, true), "nor what came after it");
    adopted.execute(r#"drop trigger t on app."Outbox""#).await;
    adopted.all_marked().await;
    first.wait_for_line("the lane goes on", SOON).await.unwrap();
    end(first).await;
    end(second).await;
    let mut ids = adopted.arrived(&["r1", "r2"]);
    assert_eq!(ids.len(), 140);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 140, "nothing is sent twice for that");
}

impl Adopted {
    /// How many replicas own lanes.
    async fn owners(&self) -> i64 {
        self.admin.query_one("select count(distinct owner) from pgbaton.lane", &[]).await.unwrap().get(0)
    }

    async fn tries(&self) -> i64 {
        self.admin.query_one("select last_value from app.tries", &[]).await.unwrap().get(0)
    }
}

async fn one_relay_reads_a_table(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(5).await;
    let first = adopted.run("r1");
    adopted.all_marked().await;
    let second = adopted.to_files(SOURCE).replace("orders", "audit");
    let mut replica = adopted.fixture.run("r2", &second).unwrap();
    assert!(!replica.wait(SOON).await.unwrap().success());
    assert!(
        !replica.lines_with("its table is adopted by another relay").is_empty(),
        "{}",
        std::fs::read_to_string(replica.stderr()).unwrap()
    );

    let other_key = SOURCE.replace("key = \"site_id\"", "key = \"topic\"");
    let mut replica = adopted.fixture.run("r3", &adopted.to_files(&other_key)).unwrap();
    assert!(!replica.wait(SOON).await.unwrap().success());
    assert!(
        !replica.lines_with("was registered for another source").is_empty(),
        "{}",
        std::fs::read_to_string(replica.stderr()).unwrap()
    );
    // Which rows are pending, and their order, may change, also while a replica runs that has it otherwise.
    let other_rows =
        SOURCE.replace("is null --", "is null and topic <> 'old' --").replace("order = \"created_at\"\n", "");
    let fourth = adopted.run_source("r4", &other_rows);
    end(first).await;
    adopted.insert(5).await;
    adopted.all_marked().await;
    end(fourth).await;
}
