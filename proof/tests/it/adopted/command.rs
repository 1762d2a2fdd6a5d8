//! `pgbaton adopt`: what it proposes is a configuration that runs, and what it tries it tries without writing.

use std::process::Output;

use proof::fixture::{Fixture, finish, toml_text};
use proof::on_each_version;
use proof::servers::shared;
use serde_json::Value;

use super::{Adopted, SOURCE, end};

on_each_version!(
    a_proposal_is_a_configuration_that_runs,
    a_proposal_needs_nothing_of_pgbatons,
    a_check_writes_nothing,
    a_check_finds_what_is_wrong,
    a_check_knows_whose_the_table_is,
    a_check_finds_rows_that_the_server_cannot_read,
    a_check_is_of_what_is_configured,
    what_cannot_be_adopted_is_said,
);

/// What it printed, if it ended with this code.
fn printed(output: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
    if code == 0 { text(&output.stdout) } else { text(&output.stdout) + &text(&output.stderr) }
}

impl Adopted {
    async fn adopt(&self, rest: &[&str]) -> Output {
        self.fixture.pgbaton(&[&["adopt", "app.Outbox"][..], rest].concat()).await.unwrap()
    }

    async fn checked(&self, rest: &[&str], code: i32) -> String {
        printed(&self.adopt(&[&["--check"], rest].concat()).await, code)
    }
}

async fn a_proposal_is_a_configuration_that_runs(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(20).await;
    adopted
        .admin
        .batch_execute("update app.\"Outbox\" set published_at = now() where site_id = 'site 1'")
        .await
        .unwrap();
    let (dsn, pending) = (adopted.fixture.relay_dsn(), adopted.pending().await);
    let proposal = printed(&adopted.adopt(&["--dsn", dsn]).await, 0);
    for said in [
        &format!("rows: 20; {pending} pending, the oldest of them for "),
        "index: CREATE INDEX \"Outbox_created_at_id_idx\"",
        "constraint: Outbox_pkey PRIMARY KEY (id)",
        "# sink = { type = \"http\"",
        "mark = { published_at = \"now()\" }",
    ] {
        assert!(proposal.contains(said), "{said}: {proposal}");
    }
    assert!(!proposal.contains("create index concurrently"), "{proposal}");
    // Only the sink is missing, and only a person knows it.
    let given = [("PGBATON__DATABASE__DSN", dsn)];
    let file = adopted.fixture.write("proposed.toml", &proposal).unwrap();
    let check_config = ["check-config", "--config", file.to_str().unwrap()];
    let mut command = adopted.fixture.command().unwrap();
    let refused = finish(command.args(check_config).envs(given)).await.unwrap();
    assert!(printed(&refused, 2).contains("1 problem(s):\n  relays.outbox.sink.type: is missing"));

    let sink = format!("{{ type = \"file\", path = {} }}", toml_text(&adopted.fixture.file().to_string_lossy()));
    let proposal = printed(&adopted.adopt(&["--dsn", dsn, "--relay", "orders", "--sink", &sink]).await, 0);
    adopted.fixture.write("proposed.toml", &proposal).unwrap();
    let mut command = adopted.fixture.command().unwrap();
    printed(&finish(command.args(check_config).envs(given)).await.unwrap(), 0);
    // Without a time of insertion.
    adopted.fixture.write("ageless.toml", &proposal.replace("\ncreated_at = ", "\n# created_at = ")).unwrap();
    let ageless = adopted.fixture.folder().join("ageless.toml");
    let mut command = adopted.fixture.command().unwrap();
    let command = command.args(["check-config", "--config"]).arg(ageless).envs(given);
    let output = finish(command).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("relay orders: without `created_at`"), "{said}");
    let relays = &proposal[proposal.find("\n[relays.").unwrap()..];
    let replica = adopted.fixture.run("r1", relays).unwrap();
    adopted.all_marked().await;
    end(replica).await;
    assert_eq!(i64::try_from(crate::lines::ids_in(&adopted.fixture.file()).len()), Ok(pending));

    let wrong = adopted.adopt(&["--dsn", dsn, "--sink", "{ type = \"pigeon\" }"]).await;
    assert!(printed(&wrong, 2).contains("sink.type"));
}

/// A team looks before it decides: there is no schema `pgbaton` yet, and the role may not read the table.
async fn a_proposal_needs_nothing_of_pgbatons(major: u32) {
    let fixture = Fixture::unmigrated(shared(major).await.unwrap()).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let ddl = "create type state as enum ('NEW', 'SENDING', 'SENT');
               create table events (id bigserial primary key, aggregate_id text, event_type text not null, payload jsonb,
                 status state not null default 'NEW', locked_by text, sent_at timestamptz);
               insert into events (event_type, status) select 't', 'SENT' from generate_series(1, 100);
               insert into events (event_type) values ('t')";
    admin.batch_execute(ddl).await.unwrap();
    let adopt = async |dsn| printed(&fixture.pgbaton(&["adopt", "events", "--dsn", dsn]).await.unwrap(), 0);
    let seen = adopt(fixture.admin_dsn()).await;
    for said in [
        "rows: 101; 1 pending\n",
        "left alone (claims of the relay before): locked_by",
        "Rows whose status is 'SENDING' are the old relay's",
        "pending = \"status = 'NEW'\"",
        "mark = { sent_at = \"now()\", status = \"'SENT'\" }",
        "create index concurrently on \"public\".\"events\" (\"id\") where status = 'NEW';",
    ] {
        assert!(seen.contains(said), "{said}: {seen}");
    }
    let unseen = adopt(fixture.relay_dsn()).await;
    assert!(unseen.contains("permission denied") && unseen.contains("pending = \"status = 'NEW'\""), "{unseen}");
}

async fn a_check_writes_nothing(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(300).await;
    let file = adopted.fixture.configuration("c", &adopted.to_files(SOURCE)).unwrap();
    let config = file.to_str().unwrap();
    let (files, before) = (files_of(&adopted), state_of(&adopted).await);
    let said = adopted.checked(&["--config", config], 0).await;
    for line in [
        "relay orders on \"app\".\"Outbox\"\n",
        "good    table ",
        "good    relay  not registered yet",
        "good    index ",
        "good    rows   each of the first 200 pending rows can become a message",
        "good    sink   the file is not there yet",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    adopted.fixture.inbox("app.inbox").await.unwrap();
    let sink = adopted.fixture.inbox_sink("app.inbox");
    let answer = adopted.checked(&["--dsn", adopted.fixture.relay_dsn(), "--sink", &sink, "--json"], 0).await;
    let report: Value = serde_json::from_str(&answer).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["verdict"] == "good"), "{answer}");
    assert!(findings.iter().any(|finding| finding["text"] == "it answers: T1 (exactly once)"), "{answer}");
    assert_eq!((files_of(&adopted), state_of(&adopted).await), (files, before));
}

/// The files in its folder.
fn files_of(adopted: &Adopted) -> Vec<std::ffi::OsString> {
    let mut files: Vec<_> =
        std::fs::read_dir(adopted.fixture.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    files
}

/// Who last wrote which row, of the table and of all that pgbaton keeps.
async fn state_of(adopted: &Adopted) -> String {
    let sql = r#"select concat_ws(' ',
        (select string_agg(xmin || '/' || ctid, ' ' order by ctid) from app."Outbox"),
        (select count(*) from pgbaton.relay), (select count(*) from pgbaton.lane), (select count(*) from pgbaton.replica),
        (select count(*) from pgbaton.position), (select string_agg(xmin::text, ' ') from pgbaton.home))"#;
    adopted.admin.query_one(sql, &[]).await.unwrap().get(0)
}

async fn a_check_finds_what_is_wrong(major: u32) {
    let adopted = Adopted::new(major).await;
    let file = adopted.fixture.configuration("c", &adopted.to_files(SOURCE)).unwrap();
    let config = file.to_str().unwrap();
    assert!(adopted.checked(&["--config", config], 0).await.contains("advice  rows   none is pending"));
    adopted
        .admin
        .batch_execute(
            r#"alter table app."Outbox" alter topic drop not null;
               insert into app."Outbox" (site_id, topic, payload) values ('a', 't', '1'), ('b', null, '2');
               insert into app."Outbox" (site_id, topic, payload) select 'c', '', to_jsonb(repeat('secret', 10000));
               drop index app."Outbox_created_at_id_idx""#,
        )
        .await
        .unwrap();
    let said = adopted.checked(&["--config", config], 1).await;
    for line in
        ["its topic is null", "its topic is empty", "advice  index  no index gives just", "WRONG   rows   row orders:"]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("secret"), "{said}");

    let other = SOURCE.replace("now()", "null");
    adopted.fixture.configuration("c", &adopted.to_files(&other)).unwrap();
    let said = adopted.checked(&["--config", config], 1).await;
    assert!(said.contains("WRONG   table") && said.contains("still be pending after its mark"), "{said}");

    // A sink that is not there, and one that is missing.
    let nowhere = "{ type = \"http\", url = \"http://127.0.0.1:1/\", allow_private = true }";
    let dsn = adopted.fixture.relay_dsn();
    let said = adopted.checked(&["--dsn", dsn, "--sink", nowhere], 1).await;
    assert!(said.contains("WRONG   sink   the sink is down"), "{said}");
    adopted.admin.batch_execute("delete from app.\"Outbox\" where topic is null or topic = ''").await.unwrap();
    let said = adopted.checked(&["--dsn", dsn], 0).await;
    assert!(said.contains("advice  sink   not looked at"), "{said}");
}

async fn a_check_knows_whose_the_table_is(major: u32) {
    let adopted = Adopted::new(major).await;
    let (dsn, file) =
        (adopted.fixture.relay_dsn(), adopted.fixture.configuration("c", &adopted.to_files(SOURCE)).unwrap());
    let config = file.to_str().unwrap();
    adopted.insert(5).await;
    let replica = adopted.run("r1");
    adopted.all_marked().await;
    end(replica).await;
    let said = adopted.checked(&["--dsn", dsn, "--relay", "audit"], 1).await;
    assert!(said.contains("adopted by relay orders"), "{said}");
    // Whose condition it is, letter by letter, does not matter; another key would share rows out otherwise.
    let said = adopted.checked(&["--dsn", dsn, "--relay", "orders"], 0).await;
    assert!(said.contains("registered for this source"), "{said}");
    let other = SOURCE.replace("key = \"site_id\"", "key = \"topic\"");
    adopted.fixture.configuration("c", &adopted.to_files(&other)).unwrap();
    let said = adopted.checked(&["--config", config], 1).await;
    assert!(said.contains("registered for another source"), "{said}");
    adopted.fixture.configuration("c", &adopted.to_files(SOURCE)).unwrap();
    assert!(adopted.checked(&["--config", config], 0).await.contains("registered for this source"));
}

/// As the source says it to.
async fn a_check_finds_rows_that_the_server_cannot_read(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(3).await;
    let path = "payload = { column = \"payload\", path = \"strict $.secret\" }";
    let other = SOURCE.replace("payload = \"payload\"", path);
    let file = adopted.fixture.configuration("c", &adopted.to_files(&other)).unwrap();
    let said = adopted.checked(&["--config", file.to_str().unwrap()], 1).await;
    assert!(said.contains("its \"payload\" cannot be read as it is configured to be (2203A)"), "{said}");
}

/// And not of a proposal, where the configuration has relays, and none for this table.
async fn a_check_is_of_what_is_configured(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(3).await;
    let mistyped = adopted.to_files(&SOURCE.replace("app.Outbox", "app.outbox"));
    let file = adopted.fixture.configuration("c", &mistyped).unwrap();
    let said = adopted.checked(&["--config", file.to_str().unwrap()], 2).await;
    assert!(said.contains("no relay of the configuration adopts \"app\".\"Outbox\""), "{said}");
    let elsewhere = SOURCE.replace("payload = \"payload\"", "payload = { column = \"payload\", path = \"$.nowhere\" }");
    let file = adopted.fixture.configuration("c", &adopted.to_files(&elsewhere)).unwrap();
    let said = adopted.checked(&["--config", file.to_str().unwrap()], 0).await;
    assert!(said.contains("advice  rows   3 of the first 3 pending rows have no payload"), "{said}");
}

async fn what_cannot_be_adopted_is_said(major: u32) {
    let adopted = Adopted::new(major).await;
    let dsn = adopted.fixture.relay_dsn();
    let asked = async |table: &str, rest: &[&str], code| {
        printed(&adopted.fixture.pgbaton(&[&["adopt", table][..], rest].concat()).await.unwrap(), code)
    };
    assert!(asked("app.outbox", &["--dsn", dsn], 1).await.contains("upper case is not turned to lower case"));
    assert!(asked("a.b.c", &["--dsn", dsn], 2).await.contains("app.outbox"));
    assert!(asked("app.Outbox", &["--dsn", dsn, "--relay", "No Name"], 2).await.contains("names no relay"));
    for sink in ["file", "{ type = \"file\"", "{}\nx = 1"] {
        let said = asked("app.Outbox", &["--dsn", dsn, "--sink", sink], 2).await;
        assert!(said.contains("the sink is no inline table"), "{said}");
    }
    let ddl = r#"create view app.seen as select * from app."Outbox"; alter table app."Outbox" set unlogged"#;
    adopted.admin.batch_execute(ddl).await.unwrap();
    assert!(asked("app.seen", &["--dsn", dsn], 1).await.contains("is no table"));
    let said = asked("app.Outbox", &["--dsn", dsn], 1).await;
    assert!(
        said.contains("# - REFUSED, no relay starts on this table as it is: it is unlogged")
            && said.contains("\nmark = "),
        "{said}"
    );
    // A configuration whose relay of this name reads the outbox.
    let file = adopted.fixture.configuration("c", "[relays.orders]\nsink = { type = \"discard\" }\n").unwrap();
    let said = asked("app.Outbox", &["--check", "--relay", "orders", "--config", file.to_str().unwrap()], 2).await;
    assert!(said.contains("does not adopt"), "{said}");
}
