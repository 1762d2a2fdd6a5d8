//! Tables of all shapes: ids of each type and of several columns, parts, names that have to be quoted, rows that are deleted.

use std::collections::BTreeSet;

use proof::on_each_version;

use super::{Adopted, end, index_in};
use crate::hand::SOON;

on_each_version!(
    ids_of_each_type,
    ids_of_several_columns,
    a_table_with_parts_by_time,
    a_table_with_parts_by_hash,
    names_that_have_to_be_quoted,
    rows_that_are_deleted,
    random_ids_are_ordered_by_their_time,
);

/// A relay of this name that reads `app.NAME`, with what is said besides.
fn relay(adopted: &Adopted, name: &str, rest: &str) -> String {
    let file = adopted.fixture.folder().join(format!("{name}.jsonl"));
    format!(
        "[relays.{name}]\nlanes = 2\nsink = {{ type = \"file\", path = {} }}\n\
         [relays.{name}.source]\ntype = \"table\"\ntable = \"app.{name}\"\ntopic = {{ constant = \"t\" }}\n{rest}\n",
        proof::fixture::toml_text(&file.to_string_lossy())
    )
}

/// What came of each id: all of them once.
fn ids(adopted: &Adopted, name: &str) -> BTreeSet<String> {
    let all = adopted.arrived(&[name]);
    let ids: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(ids.len(), all.len(), "{name}");
    ids
}

async fn texts(adopted: &Adopted, sql: &str) -> BTreeSet<String> {
    adopted.admin.query(sql, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

const TYPES: [(&str, &str, &str); 12] = [
    ("small", "smallint", "n"),
    ("whole", "integer", "n"),
    ("long", "bigint", "n * 10000000000"),
    ("random", "uuid", "gen_random_uuid()"),
    ("words", "text", r#"'a "b", {c}\ ''' || n"#),
    ("short", "varchar(40)", "'n ' || n"),
    ("padded", "character(12)", "'c' || n"),
    ("exact", "numeric(12,3)", "n / 7.0"),
    ("colour", "app.hue", "('c' || n)::app.hue"),
    ("domain", "app.number", "n"),
    ("moment", "timestamptz", "'2024-03-31T00:00:00.000001Z'::timestamptz + n * interval '30 min'"),
    ("day", "date", "'2024-02-20'::date + n"),
];

/// Sessions with settings of their own change nothing of what an id is.
async fn ids_of_each_type(major: u32) {
    let mut ddl = "create domain app.number as bigint; create type app.hue as enum (".to_owned();
    ddl.push_str(&(1..=20).map(|n| format!("'c{n}'")).collect::<Vec<_>>().join(", "));
    ddl.push_str(");");
    for (name, of, value) in TYPES {
        ddl.push_str(&format!(
            "create table app.{name} (id {of} primary key, sent boolean not null default false);
             insert into app.{name} (id) select {value} from generate_series(1, 20) n;"
        ));
    }
    let adopted = Adopted::with(major, &ddl).await;
    let strange = format!(
        "alter role pgbaton_relay in database {0} set datestyle = 'SQL, DMY';
         alter role pgbaton_relay in database {0} set timezone = 'Europe/Zurich';
         alter role pgbaton_relay in database {0} set intervalstyle = 'sql_standard';
         alter role pgbaton_relay in database {0} set extra_float_digits = 0",
        adopted.fixture.database
    );
    adopted.execute(&strange).await;
    let source = "id = \"id\"\npending = \"not sent\"\nmark = { sent = \"true\" }";
    let relays: String = TYPES.iter().map(|(name, ..)| relay(&adopted, name, source)).collect();
    let replica = adopted.fixture.run("r1", &relays).unwrap();
    for (name, of, _) in TYPES {
        adopted.none_is_left(&format!("app.{name} where not sent")).await;
        let text = match of {
            "timestamptz" => r#"to_char(id at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"#,
            "date" => "to_char(id, 'YYYY-MM-DD')",
            _ => "id::text",
        };
        let wanted = texts(&adopted, &format!("select '{name}:' || {text} from app.{name}")).await;
        assert_eq!(ids(&adopted, name), wanted, "{of}");
    }
    end(replica).await;
}

/// No two of them are mistaken for one another, whatever stands in them.
async fn ids_of_several_columns(major: u32) {
    let adopted = Adopted::with(
        major,
        r#"create table app.pairs (tenant bigint, id uuid default gen_random_uuid(), sent boolean not null default false,
             primary key (id, tenant));
           insert into app.pairs (tenant) select n % 5 from generate_series(1, 60) n;
           insert into app.pairs (tenant, id) select t, '00000000-0000-0000-0000-000000000001' from generate_series(1, 4) t;
           create table app.texts (a text, b text, sent boolean not null default false, primary key (a, b));
           insert into app.texts values ('a,b', 'c'), ('a', 'b,c'), ('a', '"b",c'), ('', ''), ('', ','), (',', ''), ('{}', '{"a"}'),
             ('NULL', 'null'), (' a ', 'b'), ('a', ' b'), ('\', '\\'), ('é', 'e'), (repeat('long ', 60), 'x'), (repeat('long ', 60), 'y');
        "#,
    )
    .await;
    let mark = "pending = \"not sent\"\nmark = { sent = \"true\" }";
    let relays = relay(&adopted, "pairs", &format!("id = [\"tenant\", \"id\"]\n{mark}"))
        + &relay(&adopted, "texts", &format!("id = [\"a\", \"b\"]\nkey = \"a\"\n{mark}"));
    let replica = adopted.fixture.run("r1", &relays).unwrap();
    for (name, columns) in [("pairs", "tenant::text, id::text"), ("texts", "a, b")] {
        adopted.none_is_left(&format!("app.{name} where not sent")).await;
        let rows = texts(&adopted, &format!("select json_build_array({columns})::text from app.{name}")).await;
        let ids = ids(&adopted, name);
        assert_eq!(ids.len(), rows.len());
        assert!(ids.iter().all(|id| id.len() <= 200));
        let read = |json: &str| serde_json::from_str::<Vec<String>>(json).unwrap();
        let short: BTreeSet<Vec<String>> =
            rows.iter().map(|row| read(row)).filter(|id| id.iter().map(String::len).sum::<usize>() < 200).collect();
        let given: BTreeSet<Vec<String>> = ids
            .iter()
            .filter_map(|id| id.strip_prefix(&format!("{name}:[")))
            .map(|id| read(&format!("[{id}")))
            .collect();
        assert_eq!(given, short);
    }
    end(replica).await;
}

/// The time is part of the key that makes a row unique, as it has to be.
async fn a_table_with_parts_by_time(major: u32) {
    let adopted = Adopted::with(
        major,
        "create table app.events (id bigint generated always as identity, created_at timestamptz not null, k text,
             published_at timestamptz, primary key (id, created_at)) partition by range (created_at);
         create table app.events_1 partition of app.events for values from (minvalue) to ('2024-02-01Z');
         create table app.events_2 partition of app.events for values from ('2024-02-01Z') to ('2024-03-01Z');
         create table app.events_rest partition of app.events default;
         create index on app.events (created_at, id) where published_at is null;
         insert into app.events (created_at, k)
           select '2024-01-20T12:34:56.789012Z'::timestamptz + n * interval '1 day 7 us', 'k' || n % 3 from generate_series(1, 60) n",
    )
    .await;
    let source = "id = [\"id\", \"created_at\"]\norder = \"created_at\"\nkey = \"k\"\ncreated_at = \"created_at\"\n\
                  pending = \"published_at is null\"\nmark = { published_at = \"now()\" }";
    let mut replica = adopted.fixture.run("r1", &relay(&adopted, "events", source)).unwrap();
    adopted.none_is_left("app.events where published_at is null").await;
    // A row that its user moves to another part has another id from then on.
    adopted.execute("update app.events set published_at = null, created_at = '2025-01-01' where id = 1").await;
    adopted.none_is_left("app.events where published_at is null").await;
    assert_eq!(ids(&adopted, "events").len(), 61);
    let lines = adopted.lines("events");
    for key in ["k0", "k1", "k2"] {
        let times: Vec<&str> =
            lines.iter().filter(|line| line["key"] == key).map(|line| line["created_at"].as_str().unwrap()).collect();
        assert!(times.len() >= 20 && times.is_sorted(), "{key}: {times:?}");
    }
    assert_eq!(replica.lines_with("no index gives"), [""; 0]);
    replica.terminate().unwrap();
    assert!(replica.wait(SOON).await.unwrap().success());
}

async fn a_table_with_parts_by_hash(major: u32) {
    let adopted = Adopted::with(
        major,
        "create table app.events (id uuid primary key default gen_random_uuid(), k text, n int, sent boolean not null default false)
           partition by hash (id);
         create table app.events_0 partition of app.events for values with (modulus 2, remainder 0);
         create table app.events_1 partition of app.events for values with (modulus 2, remainder 1);
         insert into app.events (k, n) select 'k' || n % 3, n from generate_series(1, 60) n",
    )
    .await;
    let source = "id = \"id\"\norder = \"n\"\nkey = \"k\"\npayload = \"n\"\npending = \"not sent\"\nmark = \"delete\"";
    let mut replica = adopted.fixture.run("r1", &relay(&adopted, "events", source)).unwrap();
    adopted.none_is_left("app.events").await;
    assert_eq!(ids(&adopted, "events").len(), 60);
    let lines = adopted.lines("events");
    for key in ["k0", "k1", "k2"] {
        let of_key = lines.iter().filter(|line| line["key"] == key);
        let numbers: Vec<i32> = of_key.map(|line| line["text"].as_str().unwrap().parse().unwrap()).collect();
        assert!(numbers.len() == 20 && numbers.is_sorted(), "{key}: {numbers:?}");
    }
    // The index of a table with parts cannot be made concurrently.
    let line = replica.wait_for_line("no index gives", SOON).await.unwrap();
    let index = index_in(&line);
    assert!(index.starts_with("create index on "), "{index}");
    adopted.execute(index).await;
    end(replica).await;
    let mut replica = adopted.fixture.run("r2", &relay(&adopted, "events", source)).unwrap();
    replica.wait_for_line("claimed", SOON).await.unwrap();
    assert_eq!(replica.lines_with("no index gives"), [""; 0]);
    end(replica).await;
}

async fn names_that_have_to_be_quoted(major: u32) {
    let adopted = Adopted::with(
        major,
        r#"create schema "My.App"; grant usage on schema "My.App" to pgbaton_relay;
           create table "My.App"."Out ""Box""" ("Id" bigint primary key, "select" text not null, "from" text, "order" int, "user" json,
             "Sent At" timestamptz, "where" timestamptz default now(), "ünï" text default 'h', "a'b\c" text default 'quoted');
           grant select, update ("Sent At") on "My.App"."Out ""Box""" to pgbaton_relay;
           insert into "My.App"."Out ""Box""" ("Id", "select", "from", "order", "user")
             select n, 'topic', 'key', 100 - n, '{"table": 1}' from generate_series(1, 30) n;
           create table app."table" ("primary" int, "desc" text, "null" boolean default false, primary key ("primary", "desc"));
           insert into app."table" select n, 'd' from generate_series(1, 30) n"#,
    )
    .await;
    let file = adopted.fixture.folder().join("odd.jsonl");
    let odd = format!(
        r#"[relays.odd]
           lanes = 2
           sink = {{ type = "file", path = {} }}
           [relays.odd.source]
           type = "table"
           table = '"My.App"."Out ""Box"""'
           id = "Id"
           order = "order"
           key = "from"
           topic = "select"
           payload = "user"
           created_at = "where"
           header = {{ "ünï" = "ünï", "it's" = "a'b\\c", "a\\b" = {{ constant = "c'd\\e" }} }}
           pending = '"Sent At" is null'
           mark = {{ "Sent At" = "now()" }}
        "#,
        proof::fixture::toml_text(&file.to_string_lossy())
    );
    let keyword = "id = [\"primary\", \"desc\"]\npending = 'not \"null\"'\nmark = { null = \"true\" }";
    let replica = adopted.fixture.run("r1", &(odd + &relay(&adopted, "table", keyword))).unwrap();
    adopted.none_is_left(r#""My.App"."Out ""Box""" where "Sent At" is null"#).await;
    adopted.none_is_left(r#"app."table" where not "null""#).await;
    assert_eq!(ids(&adopted, "table").len(), 30);
    let lines = adopted.lines("odd");
    let last: Vec<String> = (1..=30).rev().map(|n| format!("odd:{n}")).collect();
    assert_eq!(lines.iter().map(|line| line["id"].as_str().unwrap()).collect::<Vec<_>>(), last);
    let headers = serde_json::json!({ "ünï": "h", "it's": "quoted", "a\\b": "c'd\\e" });
    assert!(lines.iter().all(|line| line["headers"] == headers && line["json"]["table"] == 1), "{:?}", lines[0]);
    end(replica).await;
}

/// Rows that others refer to go with what refers to them.
async fn rows_that_are_deleted(major: u32) {
    let adopted = Adopted::with(
        major,
        "create table app.events (id bigint generated always as identity primary key, k text, n int);
         create table app.note (event bigint references app.events on delete cascade);
         create index on app.note (event);
         insert into app.events (k, n) select 'k' || n % 5, n from generate_series(1, 2000) n;
         insert into app.note select id from app.events where id % 2 = 0",
    )
    .await;
    let source = "id = \"id\"\nkey = \"k\"\npayload = \"n\"\npending = \"true\"\nmark = \"delete\"";
    let replica = adopted.fixture.run("r1", &relay(&adopted, "events", source)).unwrap();
    adopted.none_is_left("app.events").await;
    adopted.execute("insert into app.events (k, n) select 'k', n from generate_series(1, 10) n").await;
    adopted.none_is_left("app.events").await;
    end(replica).await;
    assert_eq!(ids(&adopted, "events").len(), 2_010);
    assert_eq!(adopted.count("app.note").await, 0);
}

/// A later row has a smaller id as often as not.
async fn random_ids_are_ordered_by_their_time(major: u32) {
    let adopted = Adopted::new(major).await;
    for _ in 0..3 {
        adopted.insert(400).await;
    }
    let replica = adopted.run("r1");
    adopted.all_marked().await;
    end(replica).await;
    let lines = adopted.lines("r1");
    assert_eq!(lines.len(), 1_200);
    for site in 0..7 {
        let of_key = lines.iter().filter(|line| line["key"] == format!("site {site}"));
        let times: Vec<&str> = of_key.map(|line| line["created_at"].as_str().unwrap()).collect();
        assert!(times.len() > 100 && times.is_sorted(), "site {site}");
    }
}
