//! Proposals for many shapes of outboxes; each is read back as the configuration that it is printed as.

use std::time::Duration;

use serde_json::{Value, json};

use super::facts::Facts;
use super::propose::propose;
use super::{Count, Proposal, Rows, names, relay_name, show};
use crate::config::Config;
use crate::connection::Database;
use crate::source::Behind;
use crate::source::SourceSpec;
use crate::source::table::TableName;

/// Columns as in `id uuid pk default gen_random_uuid()`, or with `not null`, and what else is known.
fn facts(columns: &[&str], more: Value) -> Facts {
    facts_of("app.outbox", columns, more)
}

fn facts_of(table: &str, columns: &[&str], mut more: Value) -> Facts {
    let mut key = Vec::new();
    let columns: Vec<Value> = columns
        .iter()
        .map(|text| {
            let (text, default) = text.split_once(" default ").map_or((*text, None), |(text, of)| (text, Some(of)));
            let mut words = text.split(' ');
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            let rest: Vec<&str> = words.collect();
            if rest == ["pk"] {
                key.push(name.to_owned());
            }
            json!({ "name": name, "type_name": kind, "kind": kind, "not_null": !rest.is_empty(), "generated": false,
                "computed": false, "default": default })
        })
        .collect();
    if more["primary_key"].is_null() {
        more["primary_key"] = json!(key);
    }
    let shape = json!({
        "oid": 1, "version": 180_000, "kind": "r", "persistence": "p", "row_security": false, "parts": 0, "is_part": false,
        "columns": columns, "unique": [more["primary_key"]], "rules": [], "rewritten": false, "referenced": [], "unpublished": false,
    });
    if more["replica_identity"].is_null() {
        more["replica_identity"] = json!("d");
    }
    let names = columns.iter().map(|column| column["name"].as_str().unwrap());
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    more["quoted"] = names
        .filter(|name| plain(name))
        .map(|name| (name.to_owned(), json!(name)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Facts::new(TableName::parse(table).unwrap(), &shape.to_string(), &more.to_string()).unwrap()
}

fn proposal(facts: Facts) -> Proposal {
    let draft = propose(&facts).unwrap_or_else(|error| panic!("{error}"));
    let rows = Rows {
        count: Ok(Count::About(200_315)),
        pending: Ok(Behind { messages: 10_000, oldest: Some(Duration::from_secs(3_725)) }),
        indexed: Ok(false),
    };
    Proposal { relay: relay_name(&facts.table.name).unwrap(), facts, draft, rows }
}

/// The configuration's lines without comments, after it was read back.
fn lines(facts: Facts) -> Vec<String> {
    let proposal = proposal(facts);
    let text = show::configuration(&proposal, Some("{ type = \"discard\" }"));
    let database = Database::new("host=localhost dbname=app", Duration::from_secs(1)).unwrap();
    let config = Config::of_database(&text, database).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let relays = config.into_replica().unwrap().relays;
    let SourceSpec::Table(spec) = &relays[0].source else { panic!("{text}") };
    assert_eq!(**spec, proposal.draft.spec, "{text}");
    assert!(text.lines().all(|line| line.chars().all(|c| !c.is_control())), "{text}");
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.skip_while(|line| !line.starts_with("table = ")).skip(1).map(str::to_owned).collect()
}

fn warnings(facts: Facts) -> String {
    let text = show::configuration(&proposal(facts), None);
    let words: Vec<&str> = text.lines().map(|line| line.trim_start_matches(['#', ' '])).collect();
    words.join(" ")
}

const COMMON: [&str; 5] = [
    "id uuid pk default gen_random_uuid()",
    "site_id text not null",
    "topic text not null",
    "payload jsonb not null",
    "created_at timestamptz not null default now()",
];

fn with(columns: &[&'static str]) -> Vec<&'static str> {
    COMMON.iter().chain(columns).copied().collect()
}

#[test]
fn a_moment_says_that_a_row_was_delivered() {
    let published = lines(facts(&with(&["published_at timestamptz"]), json!({})));
    assert_eq!(
        published,
        [
            "id = \"id\"",
            "order = \"created_at\"",
            "key = \"site_id\"",
            "topic = \"topic\"",
            "payload = \"payload\"",
            "created_at = \"created_at\"",
            "pending = \"published_at is null\"",
            "mark = { published_at = \"now()\" }",
        ]
    );
    for name in ["processed_at", "sent_at", "dispatched_at", "delivered_on", "processed_on_utc"] {
        let column = format!("{name} timestamptz");
        let columns: Vec<&str> = COMMON.iter().copied().chain([column.as_str()]).collect();
        let found = lines(facts(&columns, json!({})));
        assert_eq!(found[6..], [format!("pending = \"{name} is null\""), format!("mark = {{ {name} = \"now()\" }}")]);
    }
    // Names that need quotes, and a type without a zone.
    let found = lines(facts(
        &[
            "Id int8 pk",
            "Type text not null",
            "Content text",
            "OccurredOn timestamp default (now() AT TIME ZONE 'utc'::text)",
            "ProcessedOn timestamp",
        ],
        json!({}),
    ));
    assert_eq!(
        found,
        [
            "id = \"Id\"",
            "order = \"Id\"",
            "topic = \"Type\"",
            "payload = \"Content\"",
            "created_at = \"OccurredOn\"",
            "pending = '\"ProcessedOn\" is null'",
            "mark = { ProcessedOn = \"now() at time zone 'UTC'\" }",
        ]
    );
}

#[test]
fn a_flag_says_that_a_row_was_delivered() {
    let found = |columns: &[&'static str]| lines(facts(&with(columns), json!({})))[6..].join("; ");
    assert_eq!(
        found(&["processed bool not null default false"]),
        r#"pending = "not processed"; mark = { processed = "true" }"#
    );
    assert_eq!(
        found(&["is_published bool"]),
        r#"pending = "is_published is not true"; mark = { is_published = "true" }"#
    );
    assert_eq!(
        found(&["sent bool not null", "sent_at timestamptz"]),
        r#"pending = "not sent"; mark = { sent = "true", sent_at = "now()" }"#
    );
    assert_eq!(found(&["pending bool not null default true"]), r#"pending = "pending"; mark = { pending = "false" }"#);
}

#[test]
fn a_status_says_that_a_row_was_delivered() {
    let found = |columns: &[&'static str], more: Value| lines(facts(&with(columns), more))[6..].join("; ");
    let check = |values: &str| json!({ "constraints": [{ "name": "c", "columns": ["status"], "definition": format!("CHECK ((status = ANY (ARRAY[{values}])))") }] });
    assert_eq!(
        found(
            &["status text not null default 'PENDING'::text", "attempts int4 not null default 0"],
            check("'PENDING'::text, 'PROCESSING'::text, 'PUBLISHED'::text, 'FAILED'::text")
        ),
        r#"pending = "status = 'PENDING'"; mark = { status = "'PUBLISHED'" }"#
    );
    // Nothing says how a row that was sent is called: the same letters, and said to be a guess.
    assert_eq!(
        found(&["status text not null default 'New'::text"], json!({})),
        r#"pending = "status = 'New'"; mark = { status = "'Sent'" }"#
    );
    assert_eq!(
        found(
            &["status enum not null", "published_at timestamptz"],
            json!({ "labels": { "status": ["queued", "done"] } })
        ),
        r#"pending = "status = 'queued'"; mark = { published_at = "now()", status = "'done'" }"#
    );
    assert_eq!(
        found(&["state int2 not null default 0"], json!({})),
        r#"pending = "state = 0"; mark = { state = "1" }"#
    );
    assert_eq!(
        found(&["status text"], json!({ "common": { "status": ["it's", "unsent"] } })),
        r#"pending = "status = 'unsent'"; mark = { status = "'sent'" }"#
    );
    // A status of something else.
    assert_eq!(
        found(&["status text default 'active'::text", "published_at timestamptz"], json!({})),
        r#"pending = "published_at is null"; mark = { published_at = "now()" }"#
    );
    let text = warnings(facts(&with(&["status text not null"]), json!({})));
    assert!(text.contains("\"pending\" is a GUESS") && text.contains("\"sent\" is a GUESS"), "{text}");
    let text =
        warnings(facts(&with(&["status text default 'new'::text"]), check("'new', 'processing', 'sent', 'failed'")));
    assert!(
        text.contains("status is 'processing' are the old relay's")
            && text.contains("status is 'failed' are not pending"),
        "{text}"
    );
}

#[test]
fn debeziums_table_is_known() {
    for (aggregate, id) in [("aggregatetype", "aggregateid"), ("aggregate_type", "aggregate_id")] {
        let columns = [
            "id uuid pk",
            &format!("{aggregate} varchar not null"),
            &format!("{id} varchar not null"),
            "type varchar not null",
            "payload jsonb",
        ];
        assert_eq!(
            lines(facts(&columns, json!({}))),
            [
                "id = \"id\"".to_owned(),
                "order = \"id\"".to_owned(),
                format!("key = \"{id}\""),
                format!("topic = \"{aggregate}\""),
                "payload = \"payload\"".to_owned(),
                "header = { id = \"id\", type = \"type\" }".to_owned(),
                "pending = \"true\"".to_owned(),
                "mark = \"delete\"".to_owned(),
            ]
        );
        let text =
            warnings(facts(&columns, json!({ "publications": ["dbz"], "inserted": 100, "deleted": 100, "live": 0 })));
        for said in [
            "same transaction",
            "would be LOST",
            "100 rows were inserted",
            "published (dbz)",
            "outbox.event.",
            "Ids that are random",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
    // The same columns with a mark are no table of Debezium's.
    let columns = [
        "id uuid pk",
        "aggregate_type text",
        "aggregate_id text",
        "type text",
        "payload jsonb",
        "published_at timestamptz",
    ];
    assert!(!warnings(facts(&columns, json!({}))).contains("Debezium"));
}

#[test]
fn order_comes_from_what_grows() {
    let order = |columns: &[&str], more: Value| lines(facts(columns, more))[1].clone();
    let rest = ["topic text not null", "payload text", "published_at timestamptz"];
    let of = |first: &[&'static str]| -> Vec<&'static str> { first.iter().copied().chain(rest).collect() };
    assert_eq!(order(&of(&["id int8 pk", "created_at timestamptz not null"]), json!({})), "order = \"id\"");
    assert_eq!(
        order(&of(&["id uuid pk default uuidv7()", "created_at timestamptz not null"]), json!({})),
        "order = \"id\""
    );
    assert_eq!(
        order(&of(&["id uuid pk", "seq int8 not null"]), json!({ "sequences": { "seq": 1 } })),
        "order = \"seq\""
    );
    assert_eq!(order(&of(&["site_id text pk", "number int4 pk"]), json!({})), "order = [\"site_id\", \"number\"]");
    // As partitions by time have it.
    let columns = of(&["id uuid pk", "created_at timestamptz pk"]);
    assert_eq!(lines(facts(&columns, json!({})))[..2], ["id = [\"id\", \"created_at\"]", "order = \"created_at\""]);
    let text = warnings(facts(&of(&["id int8 pk"]), json!({ "sequences": { "id": 50 } })));
    assert!(text.contains("50 numbers at a time"), "{text}");
    for (default, said) in [
        ("default now()", "start of the transaction"),
        ("default CURRENT_TIMESTAMP", "start of the transaction"),
        ("default clock_timestamp()", "time of the insert"),
        ("", "set by the application"),
    ] {
        let created = format!("created_at timestamptz {default}");
        let columns = ["id uuid pk", created.trim_end(), "topic text not null", "published_at timestamptz"];
        let text = warnings(facts(&columns, json!({})));
        assert!(text.contains(said) && text.contains("may be null: such rows come last"), "{default}: {text}");
    }
}

#[test]
fn claims_of_other_relays_are_left_alone() {
    let text = warnings(facts(
        &with(&[
            "published_at timestamptz",
            "locked_by text",
            "locked_until timestamptz",
            "attempts int4",
            "available_at timestamptz",
            "failed_at timestamptz",
        ]),
        json!({ "slots": ["wal2json"] }),
    ));
    for said in [
        "left alone (claims of the relay before): locked_by, locked_until",
        "left alone (its attempts): attempts",
        "stop the old relay first",
        "available_at may say when a row is to be delivered",
        "failed_at may say that the relay before has given a row up",
        "logical replication slots in this database (wal2json)",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn what_marks_meet_is_told() {
    let trigger = |definer| json!({ "name": "audit", "function": "app.audit", "on_update": true, "on_delete": false, "definer": definer });
    let text = warnings(facts(
        &with(&["published_at timestamptz"]),
        json!({ "triggers": [trigger(false)], "partition_key": ["published_at"], "publications": ["all"], "replica_identity": "f" }),
    ));
    for said in [
        "The trigger audit (app.audit) runs with each mark, with the relay's role's rights",
        "fails with 40001",
        "replica identity is full",
        "A row's site_id decides its lane",
        "set back to pending",
        "create index concurrently on \"app\".\"outbox\" (\"created_at\", \"id\") where published_at is null;",
        "about 200315 by the statistics; 10000 or more pending, the oldest of them for 1h 2m",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    // Rows are deleted: the trigger on update does not run.
    let text = warnings(facts(&["id int8 pk", "topic text", "body text"], json!({ "triggers": [trigger(true)] })));
    assert!(
        !text.contains("audit) runs") && text.contains("topic may be null") && text.contains("Rows are deleted"),
        "{text}"
    );
    assert!(text.contains("no alert on their age is possible"), "{text}");
}

#[test]
fn what_names_no_row_is_refused() {
    for (columns, more) in [
        (&["id int8", "payload text"][..], json!({ "primary_key": [] })),
        (&["at bytea pk", "payload text"][..], json!({})),
    ] {
        let error = propose(&facts(columns, more)).err().unwrap().to_string();
        assert!(error.contains("nothing that names a row"), "{error}");
    }
    let mut view = facts(&["id int8 pk"], json!({}));
    view.shape.kind = 'v';
    assert!(propose(&view).err().unwrap().to_string().contains("is no table"));
}

/// Whatever columns are called, the text stays a configuration, and says no more than it should.
#[test]
fn names_cannot_break_out_of_the_text() {
    let evil = "app.\"out\"\"box\nmark = \"\"delete\"\"\"";
    let columns = [
        "id int8 pk",
        "topic\"'\n# text not null",
        "published_at\u{202e} timestamptz",
        "x\\y text default 'a\n[relays.b]'",
    ];
    let found = lines(facts_of(evil, &columns, json!({ "indexes": ["create index\n[relays.c]\r\nx"] })));
    assert_eq!(found.len(), 5, "{found:?}");
    let proposal = proposal(facts_of(evil, &columns, json!({})));
    assert_eq!(proposal.relay.as_str(), "out_box_mark____delete");
}

#[test]
fn relays_are_named_like_tables() {
    for (table, relay) in
        [("outbox", "outbox"), ("Outbox_Events", "outbox_events"), ("ö", "adopted"), (&"x".repeat(90), &"x".repeat(63))]
    {
        assert_eq!(relay_name(table).unwrap().as_str(), relay);
    }
    assert_eq!(names::plain("Published_At-UTC"), "publishedatutc");
}
