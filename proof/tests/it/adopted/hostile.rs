//! What others in the database have made: functions and operators that pass for the server's, triggers that speak in its name,
//! policies on other tables, rights that come and go.

use std::time::Duration;

use proof::fixture::RELAY;
use proof::on_each_version;

use super::{Adopted, SOURCE, end, pending_beside};
use crate::hand::{SOON, until};
use crate::relays::inbox;
use crate::segments::{aside, insert_into};

on_each_version!(
    what_others_have_made_is_not_run,
    others_that_may_make_it_are_told_of,
    a_trigger_that_speaks_for_the_server_holds_its_lane_alone,
    a_trigger_sees_tables_with_policies,
    rights_that_come_and_go_are_told_once,
    large_rows_hold_nobody_else,
);

/// By the exact types, so that they fit better than the server's own, which take any. Each of them fails.
const IMPOSTORS: &str = r#"
    create function public.impostor() returns text language plpgsql as $$ begin raise 'an impostor was run'; end $$;
    create function public.unnest(text[]) returns setof text language sql as 'select public.impostor()';
    create function public.unnest(integer[]) returns setof integer language sql as 'select public.impostor()::integer';
    create function public.unnest(bigint[]) returns setof bigint language sql as 'select public.impostor()::bigint';
    create function public.unnest(bytea[]) returns setof bytea language sql as 'select public.impostor()::bytea';
    create function public.unnest(uuid[]) returns setof uuid language sql as 'select public.impostor()::uuid';
    create function public.unnest(xid8[]) returns setof xid8 language sql as 'select public.impostor()::xid8';
    create function public.op(varchar, varchar) returns boolean language sql as 'select public.impostor()::boolean';
    create operator public.= (leftarg = varchar, rightarg = varchar, function = public.op);
    create function public.op(integer[], integer[]) returns boolean language sql as 'select public.impostor()::boolean';
    create operator public.= (leftarg = integer[], rightarg = integer[], function = public.op);
    create function public.op(bigint, integer) returns bigint language sql as 'select public.impostor()::bigint';
    create operator public.& (leftarg = bigint, rightarg = integer, function = public.op);
    create operator public.+ (leftarg = bigint, rightarg = integer, function = public.op);
    create function public.op(smallint, integer) returns integer language sql as 'select public.impostor()::integer';
    create operator public.& (leftarg = smallint, rightarg = integer, function = public.op);
    create function public.op(jsonb, text) returns text language sql as 'select public.impostor()';
    create operator public.#>> (leftarg = jsonb, rightarg = text, function = public.op);
    create function public.op(bigint, interval) returns interval language sql as 'select public.impostor()::interval';
    create operator public.* (leftarg = bigint, rightarg = interval, function = public.op);
    create function public.op(varchar, text) returns boolean language sql as 'select public.impostor()::boolean';
    create operator public.= (leftarg = varchar, rightarg = text, function = public.op);
"#;

/// A schema on the role's search path is enough to make them.
async fn what_others_have_made_is_not_run(major: u32) {
    let table = r#"
        create table app."Outbox" (
          id varchar(40) primary key default gen_random_uuid(), site jsonb not null, topic text not null, payload jsonb not null,
          created_at timestamptz not null default clock_timestamp(), published_at timestamptz);
        create index on app."Outbox" (created_at, id) where published_at is null"#;
    let adopted = Adopted::with(major, table).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    adopted.execute(&format!("{IMPOSTORS} grant usage on schema public to {RELAY}")).await;
    let (segment, _) = aside(&adopted.admin).await;
    insert_into(&adopted.admin, segment, "m", "k", 5).await;
    let rows = r#"insert into app."Outbox" (site, topic, payload)
                  select jsonb_build_object('id', n % 3), 'orders', '{}' from generate_series(1, 50) n"#;
    adopted.execute(rows).await;
    let key = r#"key = { column = "site", path = "$.id" }
    header = { site = { column = "site", path = "$.id" } }"#;
    let (source, sink) = (SOURCE.replace("key = \"site_id\"", key), adopted.fixture.inbox_sink("app.inbox"));
    let relays =
        format!("[relays.orders]\nlanes = 2\nsink = {sink}\n{source}\n[relays.native]\nlanes = 2\nsink = {sink}\n");
    let replica = adopted.fixture.run("r1", &relays).unwrap();
    adopted.all_marked().await;
    until("all have arrived", async || {
        inbox(&adopted.admin, "orders").await.len() == 50 && inbox(&adopted.admin, "native").await.len() == 5
    })
    .await;
    assert!(replica.lines_with("impostor").is_empty());
    end(replica).await;
    let file = adopted.fixture.configuration("c", &relays).unwrap();
    let checked =
        adopted.fixture.pgbaton(&["adopt", "app.Outbox", "--check", "--config", file.to_str().unwrap()]).await.unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let looked = adopted.fixture.pgbaton(&["adopt", "app.Outbox", "--dsn", adopted.fixture.admin_dsn()]).await.unwrap();
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stderr));
}

/// Names in the operator's own SQL are looked up by the role's search path all the same.
async fn others_that_may_make_it_are_told_of(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(1).await;
    let file = adopted.fixture.configuration("c", &adopted.to_files(SOURCE)).unwrap();
    let checked = async || {
        let all = ["adopt", "app.Outbox", "--check", "--config", file.to_str().unwrap()];
        String::from_utf8(adopted.fixture.pgbaton(&all).await.unwrap().stdout).unwrap()
    };
    let said = checked().await;
    assert!(!said.contains("others may make"), "{said}");
    adopted.execute("grant create on schema public to public").await;
    let said = checked().await;
    assert!(said.contains("advice  role   others may make functions and operators in public, where"), "{said}");
    adopted.execute("revoke create on schema public from public").await;
    let database = &adopted.fixture.database;
    adopted.execute(&format!("grant create on database {database} to public")).await;
    let said = checked().await;
    assert!(said.contains(&format!("operators in {RELAY}, where")), "{said}");
}

/// As one does that calls another server, which is down. The server itself goes on, and so do the other lanes.
async fn a_trigger_that_speaks_for_the_server_holds_its_lane_alone(major: u32) {
    for state in ["08001", "57P03", "58030"] {
        let adopted = Adopted::new(major).await;
        adopted
            .execute(&format!(
                r#"create function app.fails() returns trigger language plpgsql as $$ begin
                     raise 'the other server is down' using errcode = '{state}'; end $$;
                   create trigger t after update on app."Outbox" for each row when (old.site_id = 'site 3')
                     execute function app.fails()"#
            ))
            .await;
        let mut replica = adopted.run("r1");
        for _ in 0..3 {
            adopted.insert(70).await;
            adopted.none_is_left(&pending_beside("site 3")).await;
        }
        replica.wait_for_line("cannot be marked yet", SOON).await.unwrap();
        adopted.execute(r#"drop trigger t on app."Outbox""#).await;
        adopted.all_marked().await;
        end(replica).await;
        let mut ids = adopted.arrived(&["r1"]);
        assert_eq!(ids.len(), 210, "{state}");
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 210, "{state}: nothing is sent twice for that");
    }
}

/// As it did under the relay before.
async fn a_trigger_sees_tables_with_policies(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted
        .execute(&format!(
            r#"create table app.site (id text, sent integer); alter table app.site enable row level security;
               create policy p on app.site to {RELAY} using (true); grant select, update on app.site to {RELAY};
               insert into app.site values ('site 3', 0);
               create function app.counts() returns trigger language plpgsql as $$ begin
                 update app.site set sent = sent + 1 where id = new.site_id; return null; end $$;
               create trigger t after update on app."Outbox" for each row execute function app.counts()"#
        ))
        .await;
    adopted.insert(70).await;
    let replica = adopted.run("r1");
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.count("app.site where sent = 10").await, 1);
}

/// And reading goes on by itself.
async fn rights_that_come_and_go_are_told_once(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(10).await;
    let mut replica = adopted.run("r1");
    adopted.all_marked().await;
    adopted
        .execute(&format!(r#"revoke select on app."Outbox" from {RELAY}; grant insert on app."Outbox" to {RELAY}"#))
        .await;
    adopted.insert(10).await;
    let said = replica.wait_for_line("reading is refused", SOON).await.unwrap();
    assert!(
        said.contains("adopted table") && said.contains("permission denied") && !said.contains("producer"),
        "{said}"
    );
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(replica.lines_with("reading is refused").len(), 1);
    assert!(replica.lines_with("reading goes on").is_empty());
    adopted.execute(&format!(r#"grant select on app."Outbox" to {RELAY}"#)).await;
    adopted.all_marked().await;
    replica.wait_for_line("reading goes on", SOON).await.unwrap();
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 20);
}

/// They come as many at a time as fit, and the rows of other keys with them.
async fn large_rows_hold_nobody_else(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted
        .execute(
            r#"insert into app."Outbox" (site_id, topic, payload)
               select 'site ' || n % 7, 'orders', to_jsonb(repeat(md5(n::text), 700 * (1 + n % 3))) from generate_series(1, 300) n;
               insert into app."Outbox" (site_id, topic, payload) values ('site 9', 'orders', to_jsonb(repeat('x', 20000000)))"#,
        )
        .await;
    adopted.insert(100).await;
    let replica = adopted.run("r1");
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(adopted.arrived(&["r1"]).len(), 401);
}
