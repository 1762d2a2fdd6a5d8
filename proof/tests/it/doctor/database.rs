//! Ailments of the database, of its roles, and of who uses it.

use proof::fixture::{Fixture, RELAY};
use proof::on_each_version;
use proof::pooler::Pooler;
use proof::servers::{Binaries, Cluster, Options};

use super::{CHECKS, SECRET, doctor, fixture, server, with_secret};

on_each_version!(
    transactions_that_stay_open_are_told,
    a_slot_that_nobody_uses_is_told,
    a_role_that_lacks_a_grant_is_told,
    a_role_that_may_too_much_is_told,
    a_schema_that_is_missing_is_told,
    a_database_that_cannot_be_reached_is_told,
    one_host_of_two_that_is_down_is_told,
    an_outbox_that_is_not_as_it_was_is_told,
    a_pooler_is_noticed,
);

const STDOUT: &str = "[relays.orders]\nsink = { type = \"stdout\" }\n";

async fn transactions_that_stay_open_are_told(major: u32) {
    let fixture = fixture(major).await;
    let (relay, producer) = (fixture.relay().await.unwrap(), fixture.producer().await.unwrap());
    relay.batch_execute("set application_name = 'a report'; begin; select count(*) from pgbaton.outbox").await.unwrap();
    let prepare = "begin; select pgbaton.send('t', '\"a payload\"'::json); prepare transaction 'left''behind'";
    producer.batch_execute(prepare).await.unwrap();
    // Not for so long.
    let told = doctor(&fixture, STDOUT, &[]).await;
    assert_eq!((told.code, told.of("transactions")[0].0), (Some(0), "ok"), "{:#?}", told.findings);
    let told = doctor(&fixture, STDOUT, &["--long", "0s"]).await;
    let words = ["role pgbaton_relay", "a report", "idle in transaction", "uses the outbox", "pg_terminate_backend("];
    told.says("transactions", "warning", &words);
    told.says("transactions", "warning", &["left'behind", "role pgbaton_producer", "rollback prepared 'left''behind'"]);
    assert!(!told.findings.iter().any(|finding| finding.to_string().contains("payload")));
    relay.batch_execute("rollback").await.unwrap();
    producer.batch_execute("rollback prepared 'left''behind'").await.unwrap();
    // Of other roles' sessions this one may not see since when.
    producer.batch_execute("begin; select pgbaton.send('t', '1'::json)").await.unwrap();
    let told = doctor(&fixture, STDOUT, &["--long", "0s"]).await;
    told.says("transactions", "note", &["not known", "role pgbaton_producer", "pg_read_all_stats"]);
    assert_eq!(told.code, Some(0), "{:#?}", told.worse_than_notes());
}

async fn a_slot_that_nobody_uses_is_told(major: u32) {
    // As quick as it is unsafe, too.
    let settings = vec![("autovacuum".to_owned(), "off".to_owned())];
    let options = Options { settings, ..Options::default() };
    let server = Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap();
    let fixture = with_secret(Fixture::on(&server).await.unwrap());
    let admin = fixture.admin().await.unwrap();
    admin.batch_execute("select pg_create_physical_replication_slot('an_old_standby', true)").await.unwrap();
    admin.batch_execute("alter role pgbaton_producer set synchronous_commit = off").await.unwrap();
    let next = async || {
        let next = "select pg_snapshot_xmax(pg_current_snapshot())::text";
        admin.query_one(next, &[]).await.unwrap().get::<_, String>(0)
    };
    let before = next().await;
    let told = doctor(&fixture, STDOUT, &[]).await;
    assert_eq!(next().await, before, "it took no transaction id: it wrote nothing");
    let drop = "pg_drop_replication_slot('an_old_standby')";
    told.says("slots", "warning", &["an_old_standby", "used by nobody", "write-ahead log", drop]);
    told.says("settings", "problem", &["fsync is off"]);
    told.says("settings", "warning", &["autovacuum is off"]);
    told.says("settings", "note", &["role pgbaton_producer"]);
    admin.batch_execute(&format!("select {drop}")).await.unwrap();
    assert_eq!(doctor(&fixture, STDOUT, &[]).await.of("slots")[0].0, "ok");
}

async fn a_role_that_lacks_a_grant_is_told(major: u32) {
    let fixture = fixture(major).await;
    let admin = fixture.admin().await.unwrap();
    let revoke = format!(
        "revoke update (beat, relays) on pgbaton.replica from {RELAY};
         revoke execute on function pgbaton.needs(smallint) from {RELAY};
         revoke select on pgbaton.outbox_3 from {RELAY}; revoke select on sequence pgbaton.outbox_id_seq from {RELAY}"
    );
    admin.batch_execute(&revoke).await.unwrap();
    let told = doctor(&fixture, STDOUT, &[]).await;
    let lacking = ["update (beat) on pgbaton.replica", "function pgbaton.needs", "pgbaton.outbox_3", "outbox_id_seq"];
    told.says("role", "problem", &lacking);
    told.says("role", "problem", &["pgbaton grants --relay \"pgbaton_relay\""]);
    // What cannot be looked at is said, and what can is looked at.
    told.says("lanes", "warning", &["not known"]);
    told.says("home", "ok", &[]);
    admin.batch_execute(&format!("revoke usage on schema pgbaton from {RELAY}")).await.unwrap();
    let told = doctor(&fixture, STDOUT, &[]).await;
    told.says("role", "problem", &["usage on schema pgbaton"]);
    told.says("schema", "problem", &["permission denied", "pgbaton grants"]);
    told.says("segments", "warning", &["not known"]);
    told.says("sink", "ok", &["T5"]);
}

async fn a_role_that_may_too_much_is_told(major: u32) {
    let fixture = fixture(major).await;
    let admin = fixture.admin().await.unwrap();
    admin.batch_execute(&format!("grant insert (topic), delete on pgbaton.outbox to {RELAY}")).await.unwrap();
    let told = doctor(&fixture, STDOUT, &[]).await;
    told.says("role", "warning", &["delete on outbox", "insert on outbox"]);
    let (owner, superuser) = (fixture.migrate_dsn().to_owned(), fixture.admin_dsn().to_owned());
    let fixture = fixture.with_relay_dsn(format!("{owner} password={SECRET}"));
    doctor(&fixture, STDOUT, &[]).await.says("role", "warning", &["pgbaton_migrate", "owns"]);
    let fixture = fixture.with_relay_dsn(format!("{superuser} password={SECRET}"));
    doctor(&fixture, STDOUT, &[]).await.says("role", "warning", &["superuser"]);
}

async fn a_schema_that_is_missing_is_told(major: u32) {
    let empty = with_secret(Fixture::unmigrated(server(major).await).await.unwrap());
    let told = doctor(&empty, STDOUT, &[]).await;
    assert_eq!(told.code, Some(1));
    told.says("hosts", "ok", &["takes writes"]);
    told.says("schema", "problem", &["schema.mismatch", "pgbaton migrate"]);
    told.says("transactions", "ok", &[]);
    for check in ["home", "outbox", "segments", "replicas", "relays", "lanes", "set_aside", "source"] {
        told.says(check, "warning", &["not known", "See `schema`"]);
    }
    // A newer one is not this executable's, either.
    let fixture = fixture(major).await;
    fixture.admin().await.unwrap().batch_execute("insert into pgbaton.migration values (99, 'new')").await.unwrap();
    doctor(&fixture, STDOUT, &[]).await.says("schema", "problem", &["version 99", "newer version of pgbaton"]);
}

async fn a_database_that_cannot_be_reached_is_told(major: u32) {
    let fixture = fixture(major).await;
    let nowhere = format!("host=127.0.0.1 port=1 user=u dbname=d password={SECRET}");
    let told = doctor(&fixture.with_relay_dsn(nowhere), STDOUT, &[]).await;
    assert_eq!(told.code, Some(1));
    told.says("hosts", "problem", &["127.0.0.1:1", "refused"]);
    told.says("database", "problem", &["database.unavailable"]);
    let looked_at = ["configuration", "hosts", "database", "sink"];
    for check in CHECKS.iter().filter(|check| !looked_at.contains(check)) {
        told.says(check, "warning", &["not known", "the database cannot be used"]);
    }
    told.says("sink", "ok", &["T5"]);
}

async fn one_host_of_two_that_is_down_is_told(major: u32) {
    let fixture = fixture(major).await;
    let port = server(major).await.port();
    let dsn =
        format!("host=127.0.0.1,127.0.0.1 port=1,{port} user={RELAY} dbname={} password={SECRET}", fixture.database);
    let fixture = fixture.with_relay_dsn(dsn);
    let told = doctor(&fixture, STDOUT, &[]).await;
    told.says("hosts", "warning", &["127.0.0.1:1: "]);
    told.says("hosts", "ok", &[&format!("127.0.0.1:{port} takes writes")]);
    told.says("database", "ok", &[]);
    // A server that replicas do not write to.
    let read_only = format!("alter database {} set default_transaction_read_only = on", fixture.database);
    fixture.admin().await.unwrap().batch_execute(&read_only).await.unwrap();
    let told = doctor(&fixture, STDOUT, &[]).await;
    told.says("hosts", "problem", &["read-only", &port.to_string()]);
    told.says("database", "problem", &["read-only"]);
}

async fn an_outbox_that_is_not_as_it_was_is_told(major: u32) {
    let fixture = fixture(major).await;
    let admin = fixture.admin().await.unwrap();
    admin.batch_execute("alter table pgbaton.outbox_2 enable row level security").await.unwrap();
    let told = doctor(&fixture, STDOUT, &[]).await;
    told.says("row_security", "problem", &["outbox_2", "disable row level security"]);
    told.says("outbox", "problem", &["row-level security"]);
    admin.batch_execute("alter table pgbaton.outbox_2 disable row level security").await.unwrap();
    admin.batch_execute("alter sequence pgbaton.outbox_id_seq cache 10").await.unwrap();
    doctor(&fixture, STDOUT, &[]).await.says("outbox", "problem", &["was altered", "pgbaton migrate --print"]);
    // As after pg_upgrade.
    admin.batch_execute("update pgbaton.home set system_identifier = 1").await.unwrap();
    doctor(&fixture, STDOUT, &[]).await.says("home", "problem", &["this server is not the one", "pgbaton confirm"]);
    // As after a restore.
    admin.batch_execute("update pgbaton.home set outbox = 1").await.unwrap();
    doctor(&fixture, STDOUT, &[]).await.says("home", "problem", &["this database is not the one", "pgbaton rebase"]);
}

async fn a_pooler_is_noticed(major: u32) {
    let direct = fixture(major).await;
    assert_eq!(doctor(&direct, STDOUT, &[]).await.of("server")[0].0, "ok");
    let pooler = Pooler::start(server(major).await.port(), 4).await.unwrap();
    let dsn =
        format!("host=127.0.0.1 port={} user={RELAY} dbname={} password={SECRET}", pooler.port(), direct.database);
    let fixture = direct.with_relay_dsn(dsn);
    doctor(&fixture, STDOUT, &[]).await.says("server", "note", &["pooler"]);
    let waking = STDOUT.replace("sink", "wake = true\nsink");
    let told = doctor(&fixture, &waking, &[]).await;
    told.says("server", "warning", &["wake", "relay orders"]);
    told.says("outbox", "note", &["wake = true of orders", "pgbaton wake on"]);
    assert!(fixture.pgbaton(&["wake", "on", "--dsn", fixture.migrate_dsn()]).await.unwrap().status.success());
    assert_eq!(doctor(&fixture, &waking, &[]).await.of("outbox")[0].0, "ok");
    doctor(&fixture, STDOUT, &[]).await.says("outbox", "note", &["no relay of this configuration listens"]);
}
