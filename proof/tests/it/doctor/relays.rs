//! Replicas, relays, lanes and both their ends: all well, and not.

use proof::endpoint::{Endpoint, Reply};
use proof::fixture::{Fixture, toml_text};
use proof::on_each_version;
use proof::process::Process;

use super::{doctor, fixture, with_secret};
use crate::adopted::{Adopted, SOURCE};
use crate::hand::{SOON, until};

on_each_version!(
    a_healthy_deployment_is_told_so,
    a_quiet_outbox_is_well,
    a_replica_that_is_dead_is_told,
    a_relay_that_nobody_runs_is_told,
    a_lane_that_stands_still_is_told,
    sinks_that_cannot_be_used_are_told,
    a_lane_without_an_owner_is_told,
    what_is_dead_is_told,
    a_ring_that_is_full_is_told,
    an_adopted_table_is_looked_at,
    a_configuration_that_smells_is_told,
);

const TTL: &str = "[lease]\nttl = \"2s\"\n";

/// A relay of four lanes into an inbox in the same database.
fn to_inbox(fixture: &Fixture) -> String {
    format!("{TTL}[relays.orders]\nlanes = 4\nsink = {}\n", fixture.inbox_sink("app.inbox"))
}

/// Replicas that hold all lanes between them.
async fn running(fixture: &Fixture, relays: &str, names: &[&str]) -> Vec<Process> {
    let replicas = names.iter().map(|name| fixture.run(name, relays).unwrap()).collect();
    let admin = fixture.admin().await.unwrap();
    until("each has its share", async || {
        let shares = "select count(*) filter (where owner is not null), count(distinct owner) from pgbaton.lane";
        let row = admin.query_one(shares, &[]).await.unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1)) == (4, i64::try_from(names.len()).unwrap())
    })
    .await;
    replicas
}

async fn a_healthy_deployment_is_told_so(major: u32) {
    let fixture = fixture(major).await;
    fixture.inbox("app.inbox").await.unwrap();
    let relays = to_inbox(&fixture);
    // Before anything runs nothing is wrong, either.
    let told = doctor(&fixture, &relays, &[]).await;
    assert_eq!(told.code, Some(0), "{:#?}", told.worse_than_notes());
    told.says("replicas", "note", &["no replica runs", "pgbaton run"]);
    told.says("relays", "note", &["relay orders", "not registered"]);
    let _replicas = running(&fixture, &relays, &["r1", "r2"]).await;
    let admin = fixture.admin().await.unwrap();
    admin.batch_execute("select pgbaton.send('t', '1'::json, n::text) from generate_series(1, 50) n").await.unwrap();
    until("all arrived", async || {
        admin.query_one("select count(*) from app.inbox", &[]).await.unwrap().get::<_, i64>(0) == 50
    })
    .await;
    let told = doctor(&fixture, &relays, &[]).await;
    assert_eq!(told.code, Some(0), "{:#?}", told.worse_than_notes());
    // What other roles' sessions do at that moment is all that may be worth a note.
    let noted = told.findings.iter().filter(|finding| finding["level"] == "note");
    assert!(noted.into_iter().all(|finding| finding["check"] == "transactions"), "{:#?}", told.findings);
    told.says("sink", "ok", &["relay orders", "T1 (exactly once)"]);
    told.says("replicas", "ok", &["2 run", "r1", "r2"]);
    told.says("segments", "ok", &["1 of 8 segments"]);
}

/// All was delivered, and nothing has come since: that is no lane that stands still, however old its position is.
async fn a_quiet_outbox_is_well(major: u32) {
    let fixture = fixture(major).await;
    fixture.inbox("app.inbox").await.unwrap();
    let relays = to_inbox(&fixture).replace("lanes = 4", "lanes = 4\nacknowledge_idle = \"100ms\"");
    let _replicas = running(&fixture, &relays, &["r1"]).await;
    let admin = fixture.admin().await.unwrap();
    admin.batch_execute("select pgbaton.send('t', '1'::json, n::text) from generate_series(1, 50) n").await.unwrap();
    let oldest =
        "select extract(epoch from min(clock_timestamp() - n.written_at))::float8, (select count(*) from app.inbox)
                  from pgbaton.newest n";
    let (began, mut quiet) = (std::time::Instant::now(), 0.0);
    // Three ttls, after which one that stood still would be told of; or as long as positions are written all the same.
    while quiet < 7.0 && began.elapsed() < 2 * std::time::Duration::from_secs(7) {
        let row = admin.query_one(oldest, &[]).await.unwrap();
        quiet = if row.get::<_, i64>(1) == 50 { row.get(0) } else { 0.0 };
        tokio::time::sleep(proof::process::POLL).await;
    }
    let told = doctor(&fixture, &relays, &[]).await;
    told.says("lanes", "ok", &[]);
    assert_eq!(told.code, Some(0), "{:#?}", told.worse_than_notes());
}

async fn a_replica_that_is_dead_is_told(major: u32) {
    let fixture = fixture(major).await;
    fixture.inbox("app.inbox").await.unwrap();
    let relays = to_inbox(&fixture);
    let mut replicas = running(&fixture, &relays, &["r1"]).await;
    doctor(&fixture, &relays, &[]).await.says("replicas", "note", &["one replica runs", "r1"]);
    // Other versions and other leases than the configuration's.
    let other = relays.replace("2s", "3s");
    doctor(&fixture, &other, &[]).await.says("replicas", "warning", &["r1", "2000 ms", "3000 ms"]);
    replicas[0].kill().unwrap();
    let told = doctor(&fixture, &relays, &[]).await;
    told.says("replicas", "warning", &["replica r1", "has not renewed", "holds 4 lane(s)"]);
    told.says("relays", "warning", &["nobody runs relay orders", "Start a replica"]);
    assert_eq!(told.code, Some(1));
}

async fn a_relay_that_nobody_runs_is_told(major: u32) {
    let fixture = fixture(major).await;
    fixture.inbox("app.inbox").await.unwrap();
    let mut replicas = running(&fixture, &to_inbox(&fixture), &["r1"]).await;
    replicas[0].terminate().unwrap();
    replicas[0].wait(SOON).await.unwrap();
    fixture.admin().await.unwrap().batch_execute("select pgbaton.send('t', '1'::json)").await.unwrap();
    let other = to_inbox(&fixture).replace("relays.orders", "relays.others").replace("lanes = 4", "lanes = 1");
    let told = doctor(&fixture, &other, &[]).await;
    told.says("relays", "warning", &["nobody runs relay orders", "pgbaton relays drop orders --yes"]);
    told.says("relays", "note", &["relay others", "not registered"]);
    told.says("configuration", "note", &["relay others has one lane"]);
    let more = to_inbox(&fixture).replace("lanes = 4", "lanes = 8");
    doctor(&fixture, &more, &[]).await.says("relays", "note", &["relay orders has 4 lanes", "lanes = 4"]);
}

async fn a_lane_that_stands_still_is_told(major: u32) {
    let fixture = fixture(major).await;
    // A gateway that has nobody behind it says nothing of the message, which is therefore waited with.
    let endpoint = Endpoint::start(|_| async { Reply::Status(503) }).await.unwrap();
    let sink = format!("{{ type = \"http\", url = \"{}\", allow_private = true }}", endpoint.url("/"));
    let relays = format!(
        "[lease]\nttl = \"1s\"\n[relays.orders]\nlanes = 4\ntopics = [\"t\"]\nacknowledge_idle = \"100ms\"\nretry_cap = \"1s\"\nsink = {sink}\n"
    );
    let replicas = running(&fixture, &relays, &["r1"]).await;
    let admin = fixture.admin().await.unwrap();
    // A transaction that was open while positions got on: its number lies below what its lane has passed by numbers.
    admin.batch_execute("begin; select pgbaton.send('t', '1'::json, 'a key')").await.unwrap();
    let other = fixture.producer().await.unwrap();
    until("positions are beyond it", async || {
        other.batch_execute("select pgbaton.send('passed over', '1'::json)").await.unwrap();
        let passed = "select coalesce(min(greatest(floor, last)), 0) from pgbaton.newest";
        admin.query_one(passed, &[]).await.unwrap().get::<_, i64>(0) > 1
    })
    .await;
    admin.batch_execute("commit").await.unwrap();
    let lane: i64 = admin.query_one("select hash & 3 from pgbaton.outbox where topic = 't'", &[]).await.unwrap().get(0);
    let began = std::time::Instant::now();
    let told = loop {
        let told = doctor(&fixture, &relays, &[]).await;
        if told.of("lanes").iter().any(|(level, _)| *level == "problem") {
            break told;
        }
        let log = std::fs::read_to_string(replicas[0].stderr()).unwrap();
        assert!(began.elapsed() < SOON, "{:#?}{log}", told.findings);
    };
    told.says("lanes", "problem", &[&format!("lane(s) {lane} of relay orders stand still"), "owned by r1"]);
    told.says("configuration", "warning", &["lease.ttl is 1s"]);
    // The sink itself is reached.
    told.says("sink", "ok", &["relay orders"]);
}

async fn a_lane_without_an_owner_is_told(major: u32) {
    let fixture = fixture(major).await;
    fixture.inbox("app.inbox").await.unwrap();
    let relays = to_inbox(&fixture);
    let mut replicas = running(&fixture, &relays, &["r1"]).await;
    replicas[0].terminate().unwrap();
    replicas[0].wait(SOON).await.unwrap();
    // Whoever holds a lane's lock lets nobody claim it, and nobody waits for it.
    let admin = fixture.admin().await.unwrap();
    admin.batch_execute("begin; select pg_advisory_xact_lock(pgbaton.lane_lock('orders', 2))").await.unwrap();
    let _replica = fixture.run("r1", &relays).unwrap();
    until("it holds the others", async || {
        let held = "select count(*) from pgbaton.lane where owner is not null";
        admin.query_one(held, &[]).await.unwrap().get::<_, i64>(0) == 3
    })
    .await;
    let told = doctor(&fixture, &relays, &[]).await;
    told.says("lanes", "problem", &["no replica has taken lane(s) 2 of relay orders", "r1"]);
    admin.batch_execute("commit").await.unwrap();
    // It is waited for, while nobody knows better.
    assert_eq!(doctor(&fixture, &relays, &[]).await.of("lanes")[0].0, "ok");
}

async fn sinks_that_cannot_be_used_are_told(major: u32) {
    let fixture = fixture(major).await;
    let (nowhere, there) = (fixture.folder().join("no/such/file"), fixture.folder().join("a.jsonl"));
    let file = |path: &std::path::Path| toml_text(&path.to_string_lossy());
    let relays = format!(
        "[relays.away]\nsink = {{ type = \"http\", url = \"http://127.0.0.1:1/{SECRET}\", allow_private = true }}\n\
         [relays.inbox]\nsink = {}\n\
         [relays.nowhere]\nsink = {{ type = \"file\", path = {} }}\n\
         [relays.there]\nsink = {{ type = \"file\", path = {} }}\n",
        fixture.inbox_sink("app.inbox"),
        file(&nowhere),
        file(&there),
        SECRET = super::SECRET,
    );
    let told = doctor(&fixture, &relays, &[]).await;
    assert_eq!(told.code, Some(1));
    told.says("sink", "problem", &["relay away", "the sink is down"]);
    told.says("sink", "problem", &["relay inbox", "pgbaton inbox"]);
    told.says("sink", "problem", &["relay nowhere", "cannot be written"]);
    told.says("sink", "ok", &["relay there", "T5"]);
    assert!(!there.exists(), "it was made");
}

async fn what_is_dead_is_told(major: u32) {
    let fixture = fixture(major).await;
    let admin = fixture.admin().await.unwrap();
    let aside = "insert into pgbaton.relay (name, lanes) values ('orders', 4);
        insert into pgbaton.parked (relay, id, hash, xid, log_id, topic, size, created_at, code, dead_at, next_at)
        select 'orders', 'a' || n, n, '7', n, 't', 1, now(), 'http.rejected', case when n < 3 then now() - n * interval '1 day' end,
               case when n = 3 then now() + interval '1 hour' end
        from generate_series(1, 3) n";
    admin.batch_execute(aside).await.unwrap();
    let told = doctor(&fixture, "[relays.orders]\nlanes = 4\nsink = { type = \"stdout\" }\n", &[]).await;
    let words = ["relay orders has 2 dead message(s), the oldest for 2 days", "pgbaton dead list --relay orders"];
    told.says("set_aside", "warning", &words);
    told.says("set_aside", "note", &["has set 1 message(s) aside", "pgbaton messages list"]);
}

async fn a_ring_that_is_full_is_told(major: u32) {
    let fixture = fixture(major).await;
    let admin = fixture.admin().await.unwrap();
    let fill = "insert into pgbaton.relay (name, lanes) values ('orders', 4);
                insert into pgbaton.outbox (segment, topic) select n, 't' from generate_series(0, 7) n";
    admin.batch_execute(fill).await.unwrap();
    let told = doctor(&fixture, "[relays.orders]\nlanes = 4\nsink = { type = \"stdout\" }\n", &[]).await;
    told.says("segments", "warning", &["8 of 8 segments", "the ring is full", "relay orders", "pgbaton segments"]);
}

async fn an_adopted_table_is_looked_at(major: u32) {
    let plain = Adopted::new(major).await;
    let Adopted { fixture, admin } = plain;
    let fixture = with_secret(fixture);
    let relays = format!("[relays.orders]\nlanes = 4\nsink = {{ type = \"stdout\" }}\n{SOURCE}");
    let told = doctor(&fixture, &relays, &[]).await;
    told.says("source", "ok", &["relay orders", "can be adopted like that"]);
    assert!(told.of("source").iter().all(|(level, _)| matches!(*level, "ok" | "note")), "{:#?}", told.of("source"));
    admin.batch_execute(r#"drop index app."Outbox_created_at_id_idx""#).await.unwrap();
    doctor(&fixture, &relays, &[]).await.says("source", "warning", &["no index", "create index"]);
    admin.batch_execute(r#"alter table app."Outbox" drop column topic"#).await.unwrap();
    doctor(&fixture, &relays, &[]).await.says("source", "problem", &["relay orders", "topic"]);
}

async fn a_configuration_that_smells_is_told(major: u32) {
    use std::os::unix::fs::PermissionsExt;
    let fixture = fixture(major).await;
    let key = fixture.write("signing.key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let relays = format!(
        "[http]\nlisten = \"0.0.0.0:9478\"\n[relays.orders]\nsink = {{ type = \"http\", url = \"http://shop.invalid/\", secret_file = {} }}\n",
        toml_text(&key.to_string_lossy())
    );
    let told = doctor(&fixture, &relays, &[]).await;
    told.says("configuration", "warning", &["shop.invalid", "without TLS"]);
    told.says("configuration", "warning", &["signing.key", "chmod"]);
    told.says("configuration", "note", &["0.0.0.0:9478"]);
    assert!(!told.findings.iter().any(|finding| finding.to_string().contains("whsec")));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    let told = doctor(&fixture, &relays, &[]).await;
    assert!(!told.of("configuration").iter().any(|(_, text)| text.contains("chmod")), "{:#?}", told.findings);
    // One that cannot be used at all is refused as ever.
    let bad = fixture.configuration("bad", "nonsense = 1\n").unwrap();
    let output = fixture.pgbaton(&["doctor", "-c", bad.to_str().unwrap()]).await.unwrap();
    assert_eq!(output.status.code(), Some(2));
}
