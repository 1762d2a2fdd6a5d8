//! Three roles, each of which can do its work and nothing that reading without gaps rests on.

use proof::fixture::{Fixture, connect};
use proof::on_each_version;
use proof::servers::shared;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

on_each_version!(
    a_producer_inserts_in_every_way,
    a_producer_sends_in_every_way,
    a_producer_copies,
    a_producer_chooses_nothing_that_order_rests_on,
    a_producer_neither_reads_nor_changes_messages,
    a_relay_reads_messages_and_changes_none,
    the_public_may_do_nothing,
);

async fn a_producer_inserts_in_every_way(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    let insert = "insert into pgbaton.outbox (topic, key, headers, payload_json)
                  values ('orders', 'a', '{\"x\": 1}', '[1]'), ('orders', null, null, null) returning id, message_id::text";
    let rows = producer.query(insert, &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(), [1, 2]);
    assert_ne!(rows[0].get::<_, &str>(1), rows[1].get::<_, &str>(1));
    let chosen = "00000000-0000-0000-0000-0000000000aa";
    let insert = format!(
        "insert into pgbaton.outbox (topic, payload, message_id) values ('a', '\\x00ff', '{chosen}')
         returning message_id::text"
    );
    assert_eq!(producer.query_one(&insert, &[]).await.unwrap().get::<_, &str>(0), chosen);
    let select = "insert into pgbaton.outbox (topic, key) select 'bulk', n::text from generate_series(1, 100) n";
    assert_eq!(producer.execute(select, &[]).await.unwrap(), 100);
    let all = outbox.admin().await.unwrap();
    let row = all.query_one("select count(*), max(id), count(distinct xid) from pgbaton.outbox", &[]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1), row.get::<_, i64>(2)), (103, 103, 3));
}

async fn a_producer_sends_in_every_way(major: u32) {
    /// The call, and what it stores: JSON, or bytes in hexadecimal, key and headers.
    const CALLS: &[(&str, [Option<&str>; 4])] = &[
        ("'t', '{\"a\" :1}'::json", [Some("{\"a\" :1}"), None, None, None]),
        ("'t', '{\"a\" :1}'::jsonb", [Some("{\"a\": 1}"), None, None, None]),
        ("'t', 'ä'::text", [None, Some("c3a4"), None, None]),
        // A bare literal is a text.
        ("'t', '{}'", [None, Some("7b7d"), None, None]),
        ("'t', '\\x00ff'::bytea", [None, Some("00ff"), None, None]),
        ("'t', null::json", [None, None, None, None]),
        ("'t', '1'::json, 'k'", [Some("1"), None, Some("k"), None]),
        ("'t', '1'::json, 'k', '{\"h\": 1}'", [Some("1"), None, Some("k"), Some("{\"h\": 1}")]),
        ("'t', '1'::jsonb, key => ''", [Some("1"), None, Some(""), None]),
        ("topic => 't', payload => 'x'::text, headers => '{}'", [None, Some("78"), None, Some("{}")]),
        ("payload => '\\x01'::bytea, topic => 't', key => 'k'", [None, Some("01"), Some("k"), None]),
    ];
    let outbox = Fixture::new(major).await.unwrap();
    let (producer, admin) = (outbox.producer().await.unwrap(), outbox.admin().await.unwrap());
    for (arguments, stored) in CALLS {
        let id: i64 = producer.query_one(&format!("select pgbaton.send({arguments})"), &[]).await.unwrap().get(0);
        let look =
            "select payload_json::text, encode(payload, 'hex'), key, headers::text from pgbaton.outbox where id = $1";
        let row = admin.query_one(look, &[&id]).await.unwrap();
        assert_eq!([0, 1, 2, 3].map(|n| row.get::<_, Option<&str>>(n)), *stored, "{arguments}");
    }
    let chosen = "00000000-0000-0000-0000-0000000000bb";
    for payload in ["'1'::json", "'1'::jsonb", "'1'::text", "'\\x31'::bytea"] {
        let call = format!("select pgbaton.send('t', {payload}, 'k', null, '{chosen}')");
        producer.batch_execute(&call).await.unwrap();
    }
    let count = format!("select count(*) from pgbaton.outbox where message_id = '{chosen}'");
    assert_eq!(admin.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 4);
}

async fn a_producer_copies(major: u32) {
    use futures_util::SinkExt;
    let outbox = Fixture::new(major).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    let copy = "copy pgbaton.outbox (topic, key, payload_json) from stdin";
    let mut lines = Box::pin(producer.copy_in::<_, &[u8]>(copy).await.unwrap());
    lines.send(&b"a\tk\t{}\nb\t\\N\t\\N\n"[..]).await.unwrap();
    assert_eq!(lines.as_mut().finish().await.unwrap(), 2);
    // Without a list it would bring xid and id along.
    let everything = producer.copy_in::<_, &[u8]>("copy pgbaton.outbox from stdin").await;
    assert_eq!(everything.err().unwrap().code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE));
}

async fn a_producer_chooses_nothing_that_order_rests_on(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    for (column, value) in
        [("xid", "'3'"), ("id", "7"), ("segment", "1"), ("created_at", "'infinity'"), ("hash", "1"), ("size", "1")]
    {
        for overriding in ["", "overriding system value"] {
            for value in [value, "default"] {
                let insert = format!("insert into pgbaton.outbox (topic, {column}) {overriding} values ('t', {value})");
                let error = producer.batch_execute(&insert).await.unwrap_err();
                let generated = [SqlState::GENERATED_ALWAYS, SqlState::INSUFFICIENT_PRIVILEGE];
                assert!(error.code().is_some_and(|code| generated.contains(code)), "{insert}: {error:?}");
            }
        }
    }
    for statement in [
        "insert into pgbaton.outbox_0 (topic) values ('t')",
        "select nextval('pgbaton.outbox_id_seq')",
        "select setval('pgbaton.outbox_id_seq', 1)",
        "alter table pgbaton.outbox alter id set cache 10",
        "create trigger t before insert on pgbaton.outbox for each row execute function pgbaton.wake()",
        "create rule r as on insert to pgbaton.outbox do instead nothing",
        "create table pgbaton.mine ()",
    ] {
        denied(&producer, statement).await;
    }
}

async fn a_producer_neither_reads_nor_changes_messages(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    producer.batch_execute("select pgbaton.send('secret topic', '{}'::json)").await.unwrap();
    producer.query("select id, message_id from pgbaton.outbox", &[]).await.unwrap();
    for column in ["*", "payload", "payload_json", "topic", "key", "headers", "created_at", "xid", "hash", "size"] {
        denied(&producer, &format!("select {column} from pgbaton.outbox")).await;
        if column != "*" {
            denied(&producer, &format!("insert into pgbaton.outbox (topic) values ('t') returning {column}")).await;
        }
    }
    for statement in [
        "update pgbaton.outbox set topic = 't'",
        "update pgbaton.outbox set message_id = gen_random_uuid()",
        "delete from pgbaton.outbox",
        "truncate pgbaton.outbox",
        "select id from pgbaton.outbox for update",
        "do $$ begin lock table pgbaton.outbox in access exclusive mode; end $$",
        "copy pgbaton.outbox to stdout",
        "select * from pgbaton.outbox_0",
        "select * from pgbaton.position",
        "select * from pgbaton.lane",
        "select pgbaton.incarnation()",
        "select pgbaton.lane_lock('orders', 1)",
        "select last_value from pgbaton.outbox_id_seq",
    ] {
        denied(&producer, statement).await;
    }
}

async fn a_relay_reads_messages_and_changes_none(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.producer().await.unwrap().batch_execute("select pgbaton.send('t', '{}'::json)").await.unwrap();
    let relay = outbox.relay().await.unwrap();
    assert_eq!(relay.query("select * from pgbaton.outbox", &[]).await.unwrap().len(), 1);
    for statement in [
        "insert into pgbaton.outbox (topic) values ('t')",
        "select pgbaton.send('t', '{}'::json)",
        "update pgbaton.outbox set topic = 'u'",
        "delete from pgbaton.outbox",
        "truncate pgbaton.outbox",
        "truncate pgbaton.outbox_0",
        "select setval('pgbaton.outbox_id_seq', 1)",
        "update pgbaton.position set last = 7",
        "delete from pgbaton.position",
        "update pgbaton.lane set lane = 1",
        "select pgbaton.rebase(0)",
        "select pgbaton.confirm()",
        "select pgbaton.set_ring(8, 60, '0')",
        "truncate pgbaton.outbox_3",
        "update pgbaton.relay set registration = gen_random_uuid()",
        "delete from pgbaton.lane",
        "delete from pgbaton.relay",
        "update pgbaton.home set system_identifier = 1",
        "insert into pgbaton.migration (version, name) values (2, '')",
        "create table pgbaton.mine ()",
        "alter table pgbaton.outbox add mine int",
        "drop table pgbaton.outbox",
        "create index on pgbaton.outbox (topic)",
        "create trigger t before insert on pgbaton.outbox for each row execute function pgbaton.wake()",
        "drop schema pgbaton cascade",
    ] {
        denied(&relay, statement).await;
    }
}

async fn the_public_may_do_nothing(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let admin = outbox.admin().await.unwrap();
    let stranger = format!("stranger_{}", outbox.database);
    admin.batch_execute(&format!("create role {stranger} login")).await.unwrap();
    let client = connect(&shared(major).await.unwrap().dsn(&outbox.database, &stranger)).await.unwrap();
    denied(&client, "select pgbaton.send('t', '{}'::json)").await;
    denied(&client, "select id from pgbaton.outbox").await;
    // Each thing by itself, too, should somebody let the public use the schema.
    let left = format!(
        "select c.oid::regclass::text from pg_class c where c.relnamespace = 'pgbaton'::regnamespace
           and c.relkind in ('r', 'p') and (has_any_column_privilege('{stranger}', c.oid, 'select, insert, update, references')
             or has_table_privilege('{stranger}', c.oid, 'select, insert, update, delete, truncate, trigger'))
         union all
         select c.oid::regclass::text from pg_class c where c.relnamespace = 'pgbaton'::regnamespace
           and case when c.relkind = 'S' then has_sequence_privilege('{stranger}', c.oid, 'usage, select, update') end
         union all
         select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'pgbaton'::regnamespace
           and has_function_privilege('{stranger}', p.oid, 'execute')
         union all
         select 'schema' where has_schema_privilege('{stranger}', 'pgbaton', 'usage, create')"
    );
    let left: Vec<String> = admin.query(&left, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(left.is_empty(), "the public may use {left:?}");
    // Roles outlive the database of this test.
    drop(client);
    admin.batch_execute(&format!("drop role {stranger}")).await.unwrap();
}

/// The server refuses a statement for want of a grant, and for no other reason.
async fn denied(client: &Client, statement: &str) {
    let error = match client.batch_execute(statement).await {
        Ok(()) => panic!("was let through: {statement}"),
        Err(error) => error,
    };
    assert_eq!(error.code(), Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{statement}: {error:?}");
}
