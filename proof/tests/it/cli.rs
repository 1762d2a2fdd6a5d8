//! The executable as an operator meets it: commands, their answers and exit codes, signals, logs.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use proof::fixture::{Fixture, PRODUCER, finish, toml_text};
use proof::on_each_version;
use proof::process::{POLL, Process};
use proof::servers::shared;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(60);

const DISCARD: &str = "[relays.orders]\nsink = { type = \"discard\" }\n";

on_each_version!(
    commands_answer_with_exit_codes,
    status_and_lanes_answer_in_json,
    send_takes_every_form,
    sigterm_drains_and_gives_lanes_back,
    a_sink_that_hangs_does_not_hold_up_the_end,
    a_second_signal_ends_it_at_once,
    logs_are_lines_of_json_without_payloads_or_secrets,
    standard_output_is_for_data,
    an_inbox_that_may_not_be_written_is_refused_at_start,
    a_log_that_cannot_be_written_ends_nothing,
    messages_are_not_sent_to_the_null_device,
);

/// A full disk under an answer; a reader that has seen enough.
#[tokio::test]
async fn an_answer_that_is_lost_is_an_error() {
    let outbox = Fixture::new(15).await.unwrap();
    for arguments in [&["grants"][..], &["migrate", "--print"], &["status", "--json", "--dsn", outbox.relay_dsn()]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = outbox.command().unwrap();
        let child = command.args(arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap();
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && error.contains("standard output"), "{arguments:?}: {error}");
    }
    let mut child = outbox.command().unwrap().arg("grants").stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap().success());
}

/// What a command did.
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn ask(outbox: &Fixture, arguments: &[&str]) -> Answer {
    let output = outbox.pgbaton(arguments).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

async fn commands_answer_with_exit_codes(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let good = outbox.configuration("good", DISCARD).unwrap();
    let bad = outbox
        .write(
            "bad.toml",
            "nmae = \"x\"\n[database]\ndsn = \"host=x password=hunter2 hunter2=1\"\n[lease]\nttl = \"1ms\"\n\
             [relays.Orders]\nlanes = 12\npoll_idle = 5\nmemory = \"lots\"\nsink = { type = \"pigeon\" }\n",
        )
        .unwrap();
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());
    let nowhere = "host=127.0.0.1 port=1 user=u dbname=d";
    for (arguments, code, words) in [
        (vec!["check-config", "--config", good], 0, vec!["is valid"]),
        (
            vec!["check-config", "--config", bad],
            2,
            vec!["nmae", "database.dsn", "lease.ttl", "relays.Orders", "lanes", "poll_idle", "memory", "sink.type"],
        ),
        (vec!["run", "--config", bad], 2, vec!["nmae", "sink.type"]),
        (vec!["run", "--config", "missing.toml"], 2, vec!["missing.toml"]),
        (vec!["run"], 2, vec!["--config"]),
        (vec!["fly"], 2, vec!["fly"]),
        (vec!["status"], 2, vec!["--dsn", "PGBATON_DSN", "--config"]),
        (vec!["status", "--dsn", nowhere], 1, vec!["database"]),
        (vec!["status", "--config", good], 0, vec![]),
        (vec!["lanes", "--dsn", outbox.relay_dsn()], 0, vec![]),
        (vec!["send", "--dsn", outbox.relay_dsn(), "t"], 1, vec!["permission denied", "pgbaton grants"]),
        (vec!["inbox", "no schema"], 2, vec!["schema.table"]),
    ] {
        let answer = ask(&outbox, &arguments).await;
        assert_eq!(answer.code, Some(code), "{arguments:?}: {}", answer.stderr);
        for word in words {
            assert!(answer.stderr.contains(word), "{arguments:?}: {word} is missing in {}", answer.stderr);
        }
        assert!(!answer.stderr.contains("hunter2"), "{}", answer.stderr);
        assert!(!answer.stderr.contains("panicked"), "{}", answer.stderr);
    }
    // The environment counts where the command line names nothing.
    for (arguments, variable, code) in [
        (&["status"][..], outbox.relay_dsn(), 0),
        (&["status"], nowhere, 1),
        (&["status", "--config", good], nowhere, 0),
    ] {
        let mut command = outbox.command().unwrap();
        let output = finish(command.args(arguments).env("PGBATON_DSN", variable)).await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} with PGBATON_DSN={variable}");
    }
    let help = ask(&outbox, &["--help"]).await;
    assert!(help.stdout.contains("Exit codes"), "{}", help.stdout);
    let grants = ask(&outbox, &["grants", "--producer", "the \"app\""]).await;
    assert!(grants.stdout.contains("to \"the \"\"app\"\"\""), "{}", grants.stdout);
}

async fn status_and_lanes_answer_in_json(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let mut replica = outbox.run("first", &DISCARD.replace("sink", "lanes = 4\nsink")).unwrap();
    replica.wait_for_lines("claimed", 4, SOON).await.unwrap();
    outbox.producer().await.unwrap().batch_execute("select pgbaton.send('t', 'x'::text)").await.unwrap();
    let status = ask(&outbox, &["status", "--json", "--dsn", outbox.relay_dsn()]).await;
    let status: Value = serde_json::from_str(one_line(&status.stdout)).unwrap();
    assert_eq!(status["replicas"].as_array().unwrap().len(), 1);
    assert_eq!(status["replicas"][0]["name"], "first");
    assert_eq!(status["replicas"][0]["relays"], serde_json::json!(["orders"]));
    assert_eq!((status["lanes"].as_array().unwrap().len(), &status["last_number"]), (4, &Value::from(1)));
    let lanes = ask(&outbox, &["lanes", "--json", "--dsn", outbox.relay_dsn()]).await;
    let lanes: Value = serde_json::from_str(one_line(&lanes.stdout)).unwrap();
    for (number, lane) in lanes["lanes"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&lane["relay"], &lane["lane"], &lane["lanes"]), (&"orders".into(), &number.into(), &4.into()));
        assert_eq!((&lane["epoch"], &lane["replica_name"]), (&Value::from(1), &Value::from("first")));
        assert_eq!(lane["replica"], status["replicas"][0]["id"]);
    }
    let words = ask(&outbox, &["lanes", "--dsn", outbox.relay_dsn()]).await.stdout;
    assert_eq!(words.lines().filter(|line| line.contains("first")).count(), 4, "{words}");
}

async fn send_takes_every_form(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let admin = outbox.admin().await.unwrap();
    let dsn = outbox.producer_dsn();
    /// The arguments, standard input, and what it stores: JSON, bytes in hexadecimal, key, headers.
    type Form<'a> = (&'a [&'a str], &'a [u8], [Option<&'a str>; 4]);
    let forms: &[Form<'_>] = &[
        (&["t"], b"", [None, None, None, None]),
        (&["t", "--json", "{\"a\" :1}"], b"", [Some("{\"a\" :1}"), None, None, None]),
        (&["t", "--payload", "ä", "--key", ""], b"", [None, Some("c3a4"), Some(""), None]),
        (&["t", "--stdin", "--headers", "{ }"], b"a\0\xff\n", [None, Some("6100ff0a"), None, Some("{ }")]),
        (&["t", "--stdin", "--key", "k"], b"", [None, Some(""), Some("k"), None]),
    ];
    for (arguments, stdin, stored) in forms {
        let mut command = outbox.command().unwrap();
        // By the environment, as a container has it.
        command.arg("send").args(*arguments).env("PGBATON_DSN", dsn);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin).unwrap();
        let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let sent: Value = serde_json::from_str(one_line(std::str::from_utf8(&output.stdout).unwrap())).unwrap();
        let look = "select payload_json::text, encode(payload, 'hex'), key, headers::text from pgbaton.outbox
                    where id = $1 and message_id::text = $2";
        let (id, message_id) = (sent["id"].as_i64().unwrap(), sent["message_id"].as_str().unwrap());
        let row = admin.query_one(look, &[&id, &message_id]).await.unwrap();
        assert_eq!([0, 1, 2, 3].map(|n| row.get::<_, Option<&str>>(n)), *stored, "{arguments:?}");
    }
    for (arguments, code, word) in [
        (["t", "--json", "{secret"], 2, "not JSON"),
        (["t", "--headers", "[]"], 1, "outbox_headers_are_not_an_object"),
        (["", "--key", "k"], 1, "outbox_topic_is_empty"),
        (["t", "--json", "1"].map(|word| if word == "1" { "--stdin" } else { word }), 2, "--json"),
    ] {
        let answer = ask(&outbox, &[&["send", "--dsn", dsn][..], &arguments].concat()).await;
        assert_eq!(answer.code, Some(code), "{arguments:?}: {}", answer.stderr);
        assert!(answer.stderr.contains(word), "{arguments:?}: {}", answer.stderr);
        assert!(answer.stdout.is_empty() && !answer.stderr.contains("secret"), "{}", answer.stderr);
    }
}

async fn sigterm_drains_and_gives_lanes_back(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let mut replica = outbox.run("r1", &format!("[relays.orders]\nsink = {}", outbox.file_sink())).unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    let load = "insert into pgbaton.outbox (topic, key) select 't', n::text from generate_series(1, 20000) n";
    outbox.producer().await.unwrap().batch_execute(load).await.unwrap();
    while std::fs::metadata(outbox.file()).map_or(0, |file| file.len()) == 0 {
        tokio::time::sleep(POLL).await;
    }
    let asked = Instant::now();
    replica.terminate().unwrap();
    let status = replica.wait(SOON).await.unwrap();
    let took = asked.elapsed();
    assert_eq!(status.code(), Some(0));
    // Half a second is promised for a machine that has nothing else to do.
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert_eq!(owned(&outbox).await, (0, 0), "replicas and owned lanes");
    // What was written to the file is covered by positions: the next replica goes on without a repeat.
    let mut next = outbox.run("r2", &format!("[relays.orders]\nsink = {}", outbox.file_sink())).unwrap();
    next.wait_for_lines("claimed", 16, SOON).await.unwrap();
    let ids = || {
        let text = std::fs::read_to_string(outbox.file()).unwrap();
        let mut ids: Vec<String> = text.lines().map(|line| line[..45.min(line.len())].to_owned()).collect();
        ids.sort();
        ids
    };
    let deadline = Instant::now() + SOON;
    while ids().len() < 20_000 && Instant::now() < deadline {
        tokio::time::sleep(POLL * 10).await;
    }
    let mut all = ids();
    assert_eq!(all.len(), 20_000);
    all.dedup();
    assert_eq!(all.len(), 20_000, "repeats after a clean stop");
}

async fn a_sink_that_hangs_does_not_hold_up_the_end(major: u32) {
    let (outbox, mut replica, lock) = hanging(major, "drain = \"1s\"").await;
    let asked = Instant::now();
    replica.terminate().unwrap();
    let status = replica.wait(SOON).await.unwrap();
    assert_eq!(status.code(), Some(0));
    assert!(asked.elapsed() < Duration::from_secs(6), "{:?}", asked.elapsed());
    assert_eq!(owned(&outbox).await, (0, 0), "replicas and owned lanes");
    drop(lock);
}

async fn a_second_signal_ends_it_at_once(major: u32) {
    let (_outbox, mut replica, lock) = hanging(major, "drain = \"60s\"").await;
    replica.terminate().unwrap();
    replica.wait_for_line("draining", SOON).await.unwrap();
    let asked = Instant::now();
    replica.terminate().unwrap();
    let status = replica.wait(SOON).await.unwrap();
    assert_eq!(status.code(), Some(1));
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    drop(lock);
}

/// A replica with a message in flight to an inbox that somebody has locked.
async fn hanging(major: u32, top: &str) -> (Fixture, Process, tokio_postgres::Client) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let sink = outbox.inbox_sink("app.inbox");
    let mut replica = outbox.run("r1", &format!("{top}\n[relays.orders]\nsink = {sink}")).unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    let lock = outbox.admin().await.unwrap();
    let admin = outbox.admin().await.unwrap();
    until_true(&admin, "select count(*) = 16 from app.inbox_fence").await;
    lock.batch_execute("begin; lock table app.inbox in access exclusive mode").await.unwrap();
    outbox.producer().await.unwrap().batch_execute("select pgbaton.send('t', 'x'::text)").await.unwrap();
    until_true(&admin, "select exists (select from pg_locks where not granted and relation = 'app.inbox'::regclass)")
        .await;
    (outbox, replica, lock)
}

async fn until_true(client: &tokio_postgres::Client, sql: &str) {
    let deadline = Instant::now() + SOON;
    while !client.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
        assert!(Instant::now() < deadline, "never: {sql}");
        tokio::time::sleep(POLL).await;
    }
}

/// Replicas, and lanes with an owner.
async fn owned(outbox: &Fixture) -> (i64, i64) {
    let sql =
        "select (select count(*) from pgbaton.replica), (select count(*) from pgbaton.lane where owner is not null)";
    let row = outbox.admin().await.unwrap().query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// At `trace`, from every crate; with an inbox that refuses some messages in words that quote them.
async fn logs_are_lines_of_json_without_payloads_or_secrets(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let strict = "alter table app.inbox add n int generated always as ((payload_json->>'n')::int) stored;
                  alter table app.inbox add check (payload_json->>'w' <> 'swordfish');
                  create function app.chat() returns trigger language plpgsql as $$
                    begin raise warning 'got %', new.payload_json; return new; end $$;
                  create trigger chat before insert on app.inbox for each row execute function app.chat()";
    outbox.admin().await.unwrap().batch_execute(strict).await.unwrap();
    let dsn = format!("{} password='hunter2'", outbox.relay_dsn());
    let text = format!(
        "[database]\ndsn = {0}\n[log]\nformat = \"json\"\nlevel = \"trace\"\n[http]\nlisten = \"127.0.0.1:0\"\n[relays.inbox]\n\
         sink = {{ type = \"postgres\", dsn = {0}, table = \"app.inbox\" }}\n[relays.file]\nsink = {1}\n",
        toml_text(&dsn),
        outbox.file_sink()
    );
    let mut command = outbox.command().unwrap();
    command.arg("run").arg("--config").arg(outbox.write("secret.toml", &text).unwrap());
    let mut replica = Process::start("secret", outbox.folder(), command).unwrap();
    replica.wait_for_lines("claimed", 32, SOON).await.unwrap();
    let producer = outbox.producer().await.unwrap();
    // Lanes of their own: a refused message holds the ones behind it.
    for (key, payload) in [
        ("one", r#"{"n": 1, "w": "hereitcomes"}"#),
        ("two", r#"{"n": "swordfish"}"#),
        ("three", r#"{"n": 2, "w": "swordfish"}"#),
    ] {
        let send = format!("select pgbaton.send('t', '{payload}'::json, '{key}', '{{\"token\": \"opensesame\"}}')");
        producer.batch_execute(&send).await.unwrap();
    }
    let lanes = "select count(distinct hash & 15) from pgbaton.outbox";
    assert_eq!(outbox.admin().await.unwrap().query_one(lanes, &[]).await.unwrap().get::<_, i64>(0), 3);
    let delivered = || std::fs::read_to_string(outbox.file()).is_ok_and(|text| text.lines().count() >= 3);
    let deadline = Instant::now() + SOON;
    // Both refusals, of the value and of the constraint, have been told.
    while !(delivered() && !replica.lines_with("23514").is_empty() && !replica.lines_with("22P02").is_empty()) {
        assert!(Instant::now() < deadline, "delivered: {}, {:#?}", delivered(), replica.lines_with("ERROR"));
        tokio::time::sleep(POLL).await;
    }
    replica.terminate().unwrap();
    replica.wait(SOON).await.unwrap();
    let log = std::fs::read_to_string(replica.stderr()).unwrap();
    for line in log.lines() {
        let parsed: Result<serde_json::Map<String, Value>, _> = serde_json::from_str(line);
        assert!(parsed.is_ok_and(|line| line.contains_key("level")), "{line}");
    }
    for secret in ["hunter2", "swordfish", "hereitcomes", "opensesame"] {
        let leak = log.lines().find(|line| line.contains(secret));
        assert_eq!(leak, None, "{secret}");
    }
}

async fn standard_output_is_for_data(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let mut replica = outbox.run("r1", "[relays.orders]\nsink = { type = \"stdout\" }").unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    let send = "select pgbaton.send('t', '{\"a\": 1}'::json, 'k')";
    outbox.producer().await.unwrap().batch_execute(send).await.unwrap();
    replica.wait_for_line("\"topic\"", SOON).await.unwrap();
    replica.terminate().unwrap();
    replica.wait(SOON).await.unwrap();
    let out = std::fs::read_to_string(replica.stdout()).unwrap();
    let message: Value = serde_json::from_str(one_line(&out)).unwrap();
    assert_eq!(
        (&message["topic"], &message["key"], &message["json"]),
        (&"t".into(), &"k".into(), &serde_json::json!({"a": 1}))
    );
    // The other way round: whoever may only insert cannot run a relay, and is told so.
    let cluster = shared(major).await.unwrap();
    let text = format!(
        "[database]\ndsn = {}\n[http]\nlisten = \"off\"\n{DISCARD}",
        toml_text(&cluster.dsn(&outbox.database, PRODUCER))
    );
    let path = outbox.write("producer.toml", &text).unwrap();
    let answer = ask(&outbox, &["run", "--config", path.to_str().unwrap()]).await;
    assert_eq!(answer.code, Some(1));
    assert!(answer.stderr.contains("pgbaton grants") && answer.stdout.is_empty(), "{}", answer.stderr);
}

fn one_line(text: &str) -> &str {
    assert_eq!(text.matches('\n').count(), 1, "{text}");
    text
}

async fn an_inbox_that_may_not_be_written_is_refused_at_start(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let admin = outbox.admin().await.unwrap();
    let sink = outbox.inbox_sink("app.inbox");
    for (right, table) in [("insert", "app.inbox"), ("update", "app.inbox_fence"), ("insert", "app.inbox_fence")] {
        admin.batch_execute(&format!("revoke {right} on {table} from pgbaton_relay")).await.unwrap();
        let mut replica = outbox.run("r1", &format!("[relays.orders]\nsink = {sink}")).unwrap();
        let status = replica.wait(SOON).await.unwrap();
        let error = std::fs::read_to_string(replica.stderr()).unwrap();
        assert!(
            !status.success() && error.contains(&format!("{right} on {table}")) && error.contains("relay orders"),
            "{right}: {error}"
        );
        admin.batch_execute(&format!("grant {right} on {table} to pgbaton_relay")).await.unwrap();
    }
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A full disk under the log, or a collector that died.
async fn a_log_that_cannot_be_written_ends_nothing(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let sink = outbox.file_sink();
    let configuration = outbox.configuration("mute", &format!("[relays.orders]\nsink = {sink}")).unwrap();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = outbox.command().unwrap();
    command.arg("run").arg("--config").arg(configuration).stderr(full);
    let mut child = Killed(command.spawn().unwrap());
    let admin = outbox.admin().await.unwrap();
    until_true(&admin, "select count(*) = 16 from pgbaton.lane where owner is not null").await;
    outbox.producer().await.unwrap().batch_execute("select pgbaton.send('t', '{}'::json)").await.unwrap();
    let deadline = Instant::now() + SOON;
    while std::fs::read_to_string(outbox.file()).map_or(0, |text| text.lines().count()) < 1 {
        assert!(child.0.try_wait().unwrap().is_none(), "it ended");
        assert!(Instant::now() < deadline, "nothing was delivered");
        tokio::time::sleep(POLL).await;
    }
}

/// A closed standard output looks like that.
async fn messages_are_not_sent_to_the_null_device(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let configuration = outbox.configuration("lost", "[relays.orders]\nsink = { type = \"stdout\" }").unwrap();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec \"$0\" run --config \"$1\" >&-"]).arg(outbox.command().unwrap().get_program());
    let output = finish(command.arg(configuration)).await.unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("null device"), "{error}");
}
