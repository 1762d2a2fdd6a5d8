//! The schema: made once by however many, the same however it was made, and refused by `pgbaton run` when it is not the
//! one that reading without gaps rests on.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use proof::fixture::{Fixture, MIGRATE, RELAY, finish, grants};
use proof::on_each_version;
use proof::servers::shared;
use tokio_postgres::Client;

/// Nothing waits this long unless it fails.
const SOON: Duration = Duration::from_secs(30);

/// A relay that needs nothing but its outbox.
const DISCARD: &str = "[relays.orders]\nsink = { type = \"discard\" }\n";

on_each_version!(
    twelve_migrations_at_once_all_succeed_and_one_applies,
    printed_migrations_make_the_same_schema,
    a_role_that_may_not_create_the_schema_is_told_so,
    a_schema_of_another_version_is_refused_with_what_to_do,
    running_needs_no_ddl,
    an_altered_outbox_is_refused,
    a_copy_of_the_database_is_refused,
    a_database_without_an_encoding_is_refused,
    another_number_of_lanes_is_told_and_does_not_count,
);

async fn twelve_migrations_at_once_all_succeed_and_one_applies(major: u32) {
    let cluster = shared(major).await.unwrap();
    let outbox = Fixture::unmigrated(cluster).await.unwrap();
    let migrations = (0..12).map(|_| {
        let mut command = outbox.command().unwrap();
        command.args(["migrate", "--dsn", outbox.migrate_dsn()]);
        tokio::spawn(async move { finish(&mut command).await })
    });
    let mut told = Vec::new();
    for migration in migrations.collect::<Vec<_>>() {
        let output = migration.await.unwrap().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        told.push(stderr);
    }
    let applied = told.iter().filter(|text| text.contains("is at version 1 now")).count();
    let found = told.iter().filter(|text| text.contains("already")).count();
    assert_eq!((applied, found), (1, 11), "{told:?}");

    let before = catalogue(&outbox.admin().await.unwrap()).await;
    let again = outbox.pgbaton(&["migrate", "--dsn", outbox.migrate_dsn()]).await.unwrap();
    assert!(again.status.success() && String::from_utf8_lossy(&again.stderr).contains("already"));
    let admin = outbox.admin().await.unwrap();
    assert_eq!(catalogue(&admin).await, before);
    let rows = admin.query_one("select count(*), max(version) from pgbaton.migration", &[]).await.unwrap();
    assert_eq!((rows.get::<_, i64>(0), rows.get::<_, i32>(1)), (1, pgbaton::migrate::version()));
}

async fn printed_migrations_make_the_same_schema(major: u32) {
    let cluster = shared(major).await.unwrap();
    let migrated = Fixture::new(major).await.unwrap();
    let by_hand = Fixture::unmigrated(cluster).await.unwrap();
    let printed = by_hand.pgbaton(&["migrate", "--print"]).await.unwrap();
    assert!(printed.status.success());
    let sql = String::from_utf8(printed.stdout).unwrap();
    by_hand.migrator().await.unwrap().batch_execute(&sql).await.unwrap();
    let admin = by_hand.admin().await.unwrap();
    admin.batch_execute(&grants()).await.unwrap();
    let expected = catalogue(&migrated.admin().await.unwrap()).await;
    assert!(expected.lines().count() > 100, "the catalogues show too little: {expected}");
    assert_eq!(catalogue(&admin).await, expected);
}

async fn a_role_that_may_not_create_the_schema_is_told_so(major: u32) {
    let cluster = shared(major).await.unwrap();
    let outbox = Fixture::unmigrated(cluster).await.unwrap();
    outbox.admin().await.unwrap().batch_execute("drop schema pgbaton").await.unwrap();
    for dsn in [outbox.relay_dsn(), outbox.migrate_dsn()] {
        let output = outbox.pgbaton(&["migrate", "--dsn", dsn]).await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        for word in ["preparing the schema", "permission denied for database", "`pgbaton grants`"] {
            assert!(stderr.contains(word), "{word} is missing in: {stderr}");
        }
    }
}

async fn a_schema_of_another_version_is_refused_with_what_to_do(major: u32) {
    let cluster = shared(major).await.unwrap();
    let none = Fixture::unmigrated(cluster).await.unwrap();
    none.admin().await.unwrap().batch_execute("drop schema pgbaton").await.unwrap();
    refuses(&none, DISCARD, &["pgbaton.migration", "Run `pgbaton migrate`"]).await;

    let older = Fixture::new(major).await.unwrap();
    older.admin().await.unwrap().batch_execute("delete from pgbaton.migration").await.unwrap();
    refuses(&older, DISCARD, &["version 0", "needs 1", "Run `pgbaton migrate`"]).await;

    let newer = Fixture::new(major).await.unwrap();
    let insert = "insert into pgbaton.migration (version, name) values (999, 'later')";
    newer.admin().await.unwrap().batch_execute(insert).await.unwrap();
    refuses(&newer, DISCARD, &["version 999", "knows 1 at most", "Run a newer version of pgbaton"]).await;
    for command in ["migrate", "status", "lanes"] {
        let dsn = if command == "migrate" { newer.migrate_dsn() } else { newer.relay_dsn() };
        let output = newer.pgbaton(&[command, "--dsn", dsn]).await.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("Run a newer version of pgbaton"), "{command}: {stderr}");
    }
}

/// Every kind of DDL that event triggers see is an error while a replica joins, claims, delivers and leaves.
async fn running_needs_no_ddl(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let admin = outbox.admin().await.unwrap();
    admin
        .batch_execute(
            "create function public.no_ddl() returns event_trigger language plpgsql
               as $$ begin raise 'DDL: %', tg_tag; end $$;
             create event trigger no_ddl on ddl_command_start execute function public.no_ddl()",
        )
        .await
        .unwrap();
    assert!(admin.batch_execute("create table public.t ()").await.is_err());
    let before = catalogue(&admin).await;
    let mut replica = outbox.run("r1", &format!("[relays.orders]\nsink = {}", outbox.file_sink())).unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    outbox.producer().await.unwrap().execute("select pgbaton.send('a', 'b'::text)", &[]).await.unwrap();
    until("a line in the file", || async { std::fs::read_to_string(outbox.file()).is_ok_and(|t| t.contains('\n')) })
        .await;
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    assert!(replica.lines_with("DDL").is_empty());
    assert_eq!(catalogue(&admin).await, before);
}

async fn an_altered_outbox_is_refused(major: u32) {
    const CASES: &[(&str, &str)] = &[
        ("alter table pgbaton.outbox alter id set generated by default", "generated always"),
        ("alter table pgbaton.outbox alter id drop identity", "outbox_id_seq"),
        ("alter table pgbaton.outbox alter id set cache 50", "cache"),
        ("alter table pgbaton.outbox alter id set increment 2", "cache"),
        ("alter table pgbaton.outbox alter id set cycle", "cycle"),
        (
            "alter table pgbaton.outbox drop xid;
             alter table pgbaton.outbox add xid xid8 not null default pg_current_xact_id()",
            "its id stands before its xid",
        ),
        ("alter table pgbaton.outbox alter xid drop default", "does not default to pg_current_xact_id()"),
        ("alter table pgbaton.outbox alter xid set default '3'", "does not default to pg_current_xact_id()"),
        ("alter table pgbaton.outbox enable row level security", "row-level security"),
        ("alter table pgbaton.outbox_3 enable row level security", "row-level security"),
        ("create table pgbaton.outbox_8 partition of pgbaton.outbox for values in (8)", "partitions"),
        ("alter table pgbaton.outbox detach partition pgbaton.outbox_7", "partitions"),
        ("drop index pgbaton.outbox_xid_id", "indexes"),
    ];
    for (alter, word) in CASES {
        let outbox = Fixture::new(major).await.unwrap();
        outbox.migrator().await.unwrap().batch_execute(alter).await.unwrap();
        refuses(&outbox, DISCARD, &["pgbaton.outbox", word]).await;
    }
}

/// Positions hold transaction ids, which another database or server has given to other transactions.
async fn a_copy_of_the_database_is_refused(major: u32) {
    let cases = [
        ("system_identifier = system_identifier + 1", "this server is not the one"),
        ("database = 1", "this database is not the one"),
        ("outbox = 1", "this database is not the one"),
    ];
    for (other, words) in cases {
        let outbox = Fixture::new(major).await.unwrap();
        let update = format!("update pgbaton.home set {other}");
        outbox.admin().await.unwrap().batch_execute(&update).await.unwrap();
        refuses(&outbox, DISCARD, &[words, "pgbaton rebase"]).await;
    }
}

async fn a_database_without_an_encoding_is_refused(major: u32) {
    let cluster = shared(major).await.unwrap();
    let outbox = Fixture::new(major).await.unwrap();
    let name = format!("{}_ascii", outbox.database);
    let create = format!("create database {name} template template0 encoding 'SQL_ASCII' locale 'C'");
    outbox.admin().await.unwrap().batch_execute(&create).await.unwrap();
    let inside = cluster.admin(&name).await.unwrap();
    inside.batch_execute(&format!("create schema pgbaton authorization {MIGRATE}")).await.unwrap();
    let migrated = outbox.pgbaton(&["migrate", "--dsn", &cluster.dsn(&name, MIGRATE)]).await.unwrap();
    assert!(migrated.status.success(), "{}", String::from_utf8_lossy(&migrated.stderr));
    inside.batch_execute(&grants()).await.unwrap();
    let text = format!("[database]\ndsn = \"{}\"\n[http]\nlisten = \"off\"\n{DISCARD}", cluster.dsn(&name, RELAY));
    let path = outbox.write("ascii.toml", &text).unwrap();
    refuses_with(&outbox, &path, &["SQL_ASCII", "UTF8"]).await;
}

async fn another_number_of_lanes_is_told_and_does_not_count(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let mut replica = outbox.run("r1", DISCARD).unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
    let mut eight = outbox.run("r2", &DISCARD.replace("sink", "lanes = 8\nsink")).unwrap();
    let told = eight.wait_for_line("another number of lanes", SOON).await.unwrap();
    assert!(told.contains("lanes=16 configured=8"), "{told}");
    eight.wait_for_lines("claimed", 16, SOON).await.unwrap();
}

/// The schema as `pg_dump` shows it, kept where a reader finds it. `PGBATON_BLESS=1` writes it anew.
#[tokio::test]
async fn the_golden_schema_is_up_to_date() {
    let outbox = Fixture::new(15).await.unwrap();
    let cluster = shared(15).await.unwrap();
    let mut command = Command::new(cluster.binaries().program("pg_dump"));
    // One leaf shows what the others are like.
    command.args(["--schema-only", "--schema=pgbaton", "--no-owner", "--no-privileges"]);
    command.args(["--exclude-table=pgbaton.outbox_[1-9]*", "--exclude-table=pgbaton.position_[1-9]*"]);
    let output = finish(command.arg(outbox.admin_dsn())).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found = without_noise(&String::from_utf8(output.stdout).unwrap());
    let leaves = "select c.oid::regclass || ' ' || pg_get_expr(c.relpartbound, c.oid) from pg_class c \
                  where c.relispartition and c.relkind = 'r' order by c.oid";
    for row in outbox.admin().await.unwrap().query(leaves, &[]).await.unwrap() {
        let _ = writeln!(found, "-- leaf {}", row.get::<_, &str>(0));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/pgbaton/schema.sql");
    if std::env::var_os("PGBATON_BLESS").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == found, "the schema changed: PGBATON_BLESS=1 writes {} anew", path.display());
}

/// What `pg_dump` says of itself and of the session is not the schema.
fn without_noise(dump: &str) -> String {
    let mut text = "-- The schema after all migrations, as pg_dump shows it, with one leaf of each table for all.\n\
                    -- Written by a test: PGBATON_BLESS=1.\n"
        .to_owned();
    let noise =
        |line: &str| ["--", "\\", "SET ", "SELECT pg_catalog.set_config"].iter().any(|start| line.starts_with(start));
    let mut empty = false;
    for line in dump.lines().filter(|line| !noise(line)) {
        if !(line.is_empty() && empty) {
            let _ = writeln!(text, "{line}");
        }
        empty = line.is_empty();
    }
    text
}

/// Everything in the schema that could differ, one line each.
async fn catalogue(client: &Client) -> String {
    const ALL: &str = "
        select 'relation ' || c.oid::regclass || ' ' || c.relkind::text || ' ' || coalesce(c.reloptions::text, '')
               || ' ' || coalesce(pg_get_expr(c.relpartbound, c.oid), '') || ' ' || coalesce(c.relacl::text, '')
        from pg_class c where c.relnamespace = 'pgbaton'::regnamespace
        union all
        select 'column ' || a.attrelid::regclass || ' ' || a.attnum || ' ' || a.attname || ' '
               || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || a.attidentity::text || a.attgenerated::text
               || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || coalesce(a.attacl::text, '')
        from pg_attribute a join pg_class c on c.oid = a.attrelid
          left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
        where c.relnamespace = 'pgbaton'::regnamespace and a.attnum > 0
        union all
        select 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
        from pg_constraint where connamespace = 'pgbaton'::regnamespace
        union all
        select 'index ' || pg_get_indexdef(indexrelid) || ' ' || indisunique
        from pg_index join pg_class c on c.oid = indexrelid where c.relnamespace = 'pgbaton'::regnamespace
        union all
        select 'sequence ' || seqrelid::regclass || ' ' || seqstart || ' ' || seqincrement || ' ' || seqcache || seqcycle
        from pg_sequence join pg_class c on c.oid = seqrelid where c.relnamespace = 'pgbaton'::regnamespace
        union all
        select 'function ' || oid::regprocedure || ' ' || pg_get_functiondef(oid) || ' ' || coalesce(proacl::text, '')
        from pg_proc where pronamespace = 'pgbaton'::regnamespace
        union all
        select 'trigger ' || tgrelid::regclass || ' ' || pg_get_triggerdef(t.oid)
        from pg_trigger t join pg_class c on c.oid = tgrelid
        where c.relnamespace = 'pgbaton'::regnamespace and not tgisinternal
        order by 1";
    let rows = client.query(ALL, &[]).await.unwrap();
    rows.iter().map(|row| row.get::<_, String>(0) + "\n").collect()
}

/// `pgbaton run` ends by itself with exit code 1, and says all of these words.
async fn refuses(outbox: &Fixture, rest: &str, words: &[&str]) {
    let path = outbox.configuration("refused", rest).unwrap();
    refuses_with(outbox, &path, words).await;
}

async fn refuses_with(outbox: &Fixture, configuration: &Path, words: &[&str]) {
    let mut command = outbox.command().unwrap();
    command.arg("run").arg("--config").arg(configuration);
    let mut replica = proof::process::Process::start("refused", outbox.folder(), command).unwrap();
    let status = replica.wait(SOON).await.unwrap();
    let log = std::fs::read_to_string(replica.stderr()).unwrap();
    assert_eq!(status.code(), Some(1), "{log}");
    let last = log.lines().rfind(|line| line.contains("ERROR")).unwrap_or_default();
    for word in words {
        assert!(last.contains(word), "{word:?} is missing in: {log}");
    }
}

/// Waits until a condition holds.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not within {SOON:?}: {what}");
        tokio::time::sleep(proof::process::POLL).await;
    }
}
