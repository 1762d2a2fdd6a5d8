//! Where a message is and why: `pgbaton trace`, as the relay's role.

use std::sync::Arc;

use proof::endpoint::{Endpoint, Received, Reply};
use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::Process;
use serde_json::Value;
use tokio_postgres::Client;

use crate::hand::{Hand, until};
use crate::segments::{aside, empty, insert_into};

mod adopted;

on_each_version!(
    a_delivered_message_is_dealt_with,
    a_message_waits_while_no_replica_runs,
    a_message_waits_for_an_owner_that_renews_nothing,
    an_open_transactions_message_may_be_of_that_transaction,
    a_message_that_committed_late_is_not_passed,
    a_rolled_back_message_never_was,
    a_message_that_is_set_aside_says_what_it_waits_for,
    what_was_in_an_emptied_segment_is_told_where_it_is_set_aside,
    an_id_of_nothing_is_not_found,
    a_search_that_is_cut_off_says_so,
    a_relay_that_began_behind_a_message_says_so,
    after_a_rebase_nothing_is_said_never_to_have_been,
    positions_of_another_database_are_not_believed,
);

/// What the command tells as the relay's role: its exit code, and its one JSON object.
async fn traced(fixture: &Fixture, arguments: &[&str]) -> (Option<i32>, Value) {
    traced_as(fixture, fixture.relay_dsn(), arguments).await
}

async fn traced_as(fixture: &Fixture, dsn: &str, arguments: &[&str]) -> (Option<i32>, Value) {
    let output = fixture.pgbaton(&[&["trace"], arguments, &["--json", "--dsn", dsn]].concat()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"));
    (output.status.code(), told)
}

/// The same of a message that is found: what its one relay makes of it.
async fn found(fixture: &Fixture, id: &str) -> (Value, Value) {
    let (code, told) = traced(fixture, &[id]).await;
    assert_eq!((code, &told["found"]), (Some(0), &Value::Bool(true)), "{told}");
    assert_eq!(told["relays"].as_array().map(Vec::len), Some(1), "{told}");
    (told["relays"][0].clone(), told)
}

/// The same with a configuration at hand, of which this is the part about relays.
async fn traced_with(fixture: &Fixture, relays: &str, id: &str) -> Value {
    let config = fixture.configuration("asks", relays).unwrap();
    let output = fixture.pgbaton(&["trace", id, "--json", "--config", config.to_str().unwrap()]).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All sentences in one text.
fn words(told: &Value) -> String {
    let sentences = told["words"].as_array().into_iter().flatten();
    sentences.filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
}

async fn message_id(admin: &Client, number: i64) -> String {
    let sql = "select message_id::text from pgbaton.outbox where id = $1";
    admin.query_one(sql, &[&number]).await.unwrap().get(0)
}

async fn last_number(admin: &Client) -> i64 {
    admin.query_one("select last_value from pgbaton.outbox_id_seq", &[]).await.unwrap().get(0)
}

async fn a_delivered_message_is_dealt_with(major: u32) {
    let fixture = Fixture::new(major).await.unwrap();
    let admin = fixture.admin().await.unwrap();
    let sql = "select pgbaton.send('orders.paid', 'a secret'::text, key => 'k')";
    let number: i64 = fixture.producer().await.unwrap().query_one(sql, &[]).await.unwrap().get(0);
    let relay = "[relays.orders]\nlanes = 4\nsink = { type = \"discard\" }\n";
    let replica = fixture.run("r1", relay).unwrap();
    let (id, number) = (message_id(&admin, number).await, number.to_string());
    until("it is dealt with", async || traced(&fixture, &[&number]).await.1["relays"][0]["state"] == "dealt_with")
        .await;
    for asked in [&id, &number] {
        let (relay, told) = found(&fixture, asked).await;
        let message = &told["message"];
        assert_eq!((&message["topic"], &message["key"]), (&"orders.paid".into(), &"k".into()), "{told}");
        assert_eq!(
            (message["message_id"].as_str(), message["bytes"].as_i64()),
            (Some(id.as_str()), Some(20)),
            "{told}"
        );
        assert!(words(&told).contains("is committed") && words(&relay).contains("Dealt with"), "{told}");
        // What the database does not know is said.
        assert!(words(&relay).contains("which is not known here"), "{told}");
        assert_eq!((&relay["lane"]["replica_name"], &relay["takes_topic"]), (&"r1".into(), &Value::Null), "{told}");
        assert!(!told.to_string().contains("secret"), "{told}");
    }
    let lane: i32 = admin.query_one("select (hash & 3)::integer from pgbaton.outbox", &[]).await.unwrap().get(0);
    assert_eq!(found(&fixture, &id).await.0["lane"]["lane"], lane);
    // A configuration knows which topics are taken.
    for (topics, state) in [("orders.*", "dealt_with"), ("bills.*", "passed_over")] {
        let more = format!("[relays.orders]\ntopics = [\"{topics}\"]\nsink = {{ type = \"discard\" }}\n");
        let told = traced_with(&fixture, &more, &id).await;
        assert_eq!(told["relays"][0]["state"], state, "{told}");
    }
    let output = fixture.pgbaton(&["trace", &id, "--dsn", fixture.relay_dsn()]).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("Message ") && text.contains("relay orders") && text.contains("owner        r1"),
        "{text}"
    );
    assert!(!text.contains("secret"), "{text}");
    drop(replica);
}

async fn a_message_waits_while_no_replica_runs(major: u32) {
    let hand = Hand::new(major, 2).await;
    let [here, there] = [hand.key(0).await, hand.key(1).await];
    hand.insert("a", &here, 2).await;
    hand.insert("b", &there, 5).await;
    hand.insert("c", &here, 1).await;
    let (relay, _) = found(&hand.fixture, "8").await;
    assert_eq!((&relay["state"], &relay["ahead"]["messages"]), (&"waits".into(), &2.into()), "{relay}");
    assert_eq!((&relay["lane"]["lane"], &relay["lane"]["replica"]), (&0.into(), &Value::Null), "{relay}");
    let said = words(&relay);
    assert!(
        said.contains("nobody runs relay orders") && said.contains("2 message(s) of its lane stand before it"),
        "{said}"
    );
    // Of each relay that is registered, or of the one that is named.
    hand.register("bills", false).await;
    let (_, all) = traced(&hand.fixture, &["8"]).await;
    let (_, one) = traced(&hand.fixture, &["8", "--relay", "bills"]).await;
    assert_eq!((all["relays"].as_array().unwrap().len(), one["relays"].as_array().unwrap().len()), (2, 1));
    assert_eq!(one["relays"][0]["relay"], "bills");
}

async fn a_message_waits_for_an_owner_that_renews_nothing(major: u32) {
    let hand = Hand::new(major, 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    hand.insert("a", "k", 1).await;
    let (relay, _) = found(&hand.fixture, "1").await;
    assert_eq!((&relay["state"], &relay["lane"]["beat_moved"]), (&"waits".into(), &false.into()), "{relay}");
    assert!(
        words(&relay).contains("replica by hand holds lane 0 of 1 under epoch 1, and was not seen to renew"),
        "{relay}"
    );
    owner.deliver().await;
    assert_eq!(found(&hand.fixture, "1").await.0["state"], "dealt_with");
}

async fn an_open_transactions_message_may_be_of_that_transaction(major: u32) {
    let hand = Hand::new(major, 1).await;
    let open = hand.open_transaction("a", "k", 1).await;
    let row = open.query_one("select pg_backend_pid(), pg_current_xact_id()::text", &[]).await.unwrap();
    let (pid, xid): (i32, String) = (row.get(0), row.get(1));
    let (code, told) = traced(&hand.fixture, &["1"]).await;
    assert_eq!((code, &told["found"], &told["message"]), (Some(1), &false.into(), &Value::Null), "{told}");
    let writer = &told["writers"][0];
    assert_eq!((&writer["pid"], writer["xid"].as_str()), (&pid.into(), Some(xid.as_str())), "{told}");
    // The relay's role does not see when another role's transaction began, and says so.
    assert_eq!(writer["since"], Value::Null, "{told}");
    assert!(words(&told).contains(&format!("transaction {xid} of server process {pid}")), "{told}");
    assert!(words(&told).contains("since when is not known"), "{told}");
    let (_, told) = traced_as(&hand.fixture, hand.fixture.admin_dsn(), &["1"]).await;
    assert!(told["writers"][0]["since"].is_string(), "{told}");
    // Nobody else sees its message id, either.
    let id: String = open.query_one("select message_id::text from pgbaton.outbox", &[]).await.unwrap().get(0);
    let (code, told) = traced(&hand.fixture, &[&id]).await;
    assert_eq!((code, told["writers"].as_array().unwrap().len()), (Some(1), 1), "{told}");
    open.batch_execute("prepare transaction 'kept'").await.unwrap();
    let (_, told) = traced(&hand.fixture, &["1"]).await;
    let writer = &told["writers"][0];
    assert_eq!(
        (&writer["prepared"], &writer["pid"], writer["xid"].as_str()),
        (&"kept".into(), &Value::Null, Some(xid.as_str()))
    );
    assert!(writer["since"].is_string(), "{told}");
    open.batch_execute("commit prepared 'kept'").await.unwrap();
    let (_, told) = found(&hand.fixture, &id).await;
    assert_eq!(
        (&told["message"]["number"], told["message"]["xid"].as_str()),
        (&1.into(), Some(xid.as_str())),
        "{told}"
    );
}

/// Positions have gone past its number by then.
async fn a_message_that_committed_late_is_not_passed(major: u32) {
    let hand = Hand::new(major, 1).await;
    let late = hand.open_transaction("late", "k", 1).await;
    hand.insert("a", "k", 3).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    late.batch_execute("commit").await.unwrap();
    let (relay, _) = found(&hand.fixture, "1").await;
    assert!(relay["lane"]["position"]["last"].as_i64() >= Some(4), "{relay}");
    let standing = &relay["standing"];
    assert_eq!((&relay["state"], &standing["is"]), (&"waits".into(), &"not_sighted".into()), "{relay}");
    assert!(standing["late"] == true && words(&relay).contains("was still open when"), "{relay}");
    assert_eq!(found(&hand.fixture, "4").await.0["standing"]["is"], "consumed");
    owner.deliver().await;
    assert_eq!(found(&hand.fixture, "1").await.0["state"], "dealt_with");
    assert_eq!(owner.got.len(), 4);
}

async fn a_rolled_back_message_never_was(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.open_transaction("a", "k", 1).await.batch_execute("rollback").await.unwrap();
    let (code, told) = traced(&hand.fixture, &["1"]).await;
    assert_eq!((code, &told["found"]), (Some(1), &false.into()), "{told}");
    assert!(words(&told).contains("there never was a message. (No open transaction can hold it"), "{told}");
    // Who begins to write when larger numbers are given out cannot have written it. Before a position tells, anybody might.
    hand.insert("b", "k", 1).await;
    let open = hand.open_transaction("c", "k", 1).await;
    let (_, told) = traced(&hand.fixture, &["1"]).await;
    assert_eq!(told["writers"].as_array().unwrap().len(), 1, "{told}");
    open.batch_execute("commit").await.unwrap();
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    let _open = hand.open_transaction("d", "k", 1).await;
    let (_, told) = traced(&hand.fixture, &["1"]).await;
    assert_eq!(told["writers"].as_array().unwrap().len(), 0, "{told}");
    let (_, told) = traced(&hand.fixture, &[&last_number(&hand.admin).await.to_string()]).await;
    assert_eq!(told["writers"].as_array().unwrap().len(), 1, "{told}");
}

/// A replica whose sink refuses the second message of a key for good, and fails with the first one of another.
async fn failing(major: u32) -> (Fixture, Client, Endpoint, Process) {
    let fixture = Fixture::new(major).await.unwrap();
    let endpoint = Endpoint::start(|received: Arc<Received>| {
        let status = match received.header("pgbaton-topic") {
            "bad/2" => 400,
            "a/1" => 500,
            _ => 204,
        };
        async move { Reply::Status(status) }
    })
    .await
    .unwrap();
    let sink = format!("{{ type = \"http\", url = \"{}\", allow_private = true }}", endpoint.url("/"));
    let more =
        format!("[relays.orders]\nlanes = 4\nsink = {sink}\n[relays.orders.retry]\nfirst = \"1h\"\ncap = \"1h\"\n");
    let replica = fixture.run("r1", &more).unwrap();
    let admin = fixture.admin().await.unwrap();
    (fixture, admin, endpoint, replica)
}

const FAILING: &str = "select k || '/' || n, k, 'a secret'::bytea
                       from generate_series(1, 3) n, unnest('{bad,a,b,c,d,e,f,g}'::text[]) k order by n";

async fn five_are_set_aside(admin: &Client) {
    let count = async || admin.query_one("select count(*) from pgbaton.parked", &[]).await.unwrap().get::<_, i64>(0);
    until("two keys wait", async || count().await == 5).await;
}

/// The message id of this topic, of those that are set aside.
async fn aside_of(admin: &Client, topic: &str) -> String {
    admin.query_one("select id from pgbaton.parked where topic = $1", &[&topic]).await.unwrap().get(0)
}

async fn a_message_that_is_set_aside_says_what_it_waits_for(major: u32) {
    let (fixture, admin, _endpoint, _replica) = failing(major).await;
    admin.batch_execute(&format!("insert into pgbaton.outbox (topic, key, payload) {FAILING}")).await.unwrap();
    five_are_set_aside(&admin).await;
    let (failed, behind, dead) =
        (aside_of(&admin, "a/1").await, aside_of(&admin, "a/2").await, aside_of(&admin, "bad/2").await);
    let (relay, told) = found(&fixture, &failed).await;
    assert_eq!((&relay["state"], &relay["parked"]["attempts"]), (&"set_aside".into(), &1.into()), "{told}");
    let faults = relay["parked"]["faults"].as_array().unwrap();
    assert!(!faults.is_empty() && faults[0]["code"] == "http.failed", "{told}");
    assert!(
        words(&relay).contains("waits for its next attempt, at ") && words(&relay).contains("renews its lease"),
        "{told}"
    );
    let (relay, told) = found(&fixture, &behind).await;
    assert_eq!(relay["parked"]["behind"].as_str(), Some(failed.as_str()), "{told}");
    assert!(words(&relay).contains(&format!("waits behind {failed}")), "{told}");
    let (relay, told) = found(&fixture, &dead).await;
    assert_eq!(relay["state"], "dead", "{told}");
    assert!(words(&relay).contains("Later messages of its key wait for it"), "{told}");
    assert!(words(&relay).contains(&format!("pgbaton dead retry orders --id {dead} --yes")), "{told}");
    // The same by its number, and what went past is delivered.
    let number = told["message"]["number"].to_string();
    assert_eq!(found(&fixture, &number).await.0["state"], "dead");
    assert_eq!(found(&fixture, "1").await.0["state"], "dealt_with");
    let output = fixture.pgbaton(&["trace", &dead, "--dsn", fixture.relay_dsn()]).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("http.rejected") && !text.contains("secret"), "{text}");
}

async fn what_was_in_an_emptied_segment_is_told_where_it_is_set_aside(major: u32) {
    let (fixture, admin, _endpoint, replica) = failing(major).await;
    let (segment, _) = aside(&admin).await;
    let sql =
        format!("insert into pgbaton.outbox (segment, topic, key, payload) select {segment}, m.* from ({FAILING}) m");
    admin.batch_execute(&sql).await.unwrap();
    let delivered = message_id(&admin, 1).await;
    five_are_set_aside(&admin).await;
    until("the segment is emptied", async || {
        let why = admin.query_one("select pgbaton.empty_segment($1)", &[&segment]).await.unwrap();
        let left = admin.query_one("select count(*) from pgbaton.outbox", &[]).await.unwrap();
        why.get::<_, Option<&str>>(0).is_none() && left.get::<_, i64>(0) == 0
    })
    .await;
    let dead = aside_of(&admin, "bad/2").await;
    let (relay, told) = found(&fixture, &dead).await;
    assert_eq!((&relay["state"], &told["message"]["segment"]), (&"dead".into(), &Value::Null), "{told}");
    assert!(words(&told).contains("Its segment was emptied"), "{told}");
    let number = told["message"]["number"].to_string();
    assert_eq!(found(&fixture, &number).await.1["message"]["message_id"].as_str(), Some(dead.as_str()));
    // All else is gone with it.
    for id in [delivered.as_str(), "1"] {
        let (code, told) = traced(&fixture, &[id]).await;
        assert_eq!(code, Some(1), "{told}");
        assert!(
            words(&told).contains("It may have been in a segment that was emptied: then every relay had dealt with it"),
            "{told}"
        );
    }
    drop(replica);
}

async fn an_id_of_nothing_is_not_found(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.insert("a", "k", 1).await;
    let (code, told) = traced(&hand.fixture, &["00000000-0000-0000-0000-0000000000aa"]).await;
    assert_eq!((code, &told["cut_off"]), (Some(1), &false.into()), "{told}");
    assert!(words(&told).contains("No message of this id is in the segments that are stored"), "{told}");
    let (code, told) = traced(&hand.fixture, &["2"]).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(words(&told).contains("There is no message 2 yet: the last number that was given out is 1"), "{told}");
    for (arguments, said) in
        [(&["neither"][..], "is no id of a message"), (&["1", "--relay", "other"], "there is no relay other")]
    {
        let output =
            hand.fixture.pgbaton(&[&["trace"], arguments, &["--dsn", hand.fixture.relay_dsn()]].concat()).await;
        let output = output.unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}

async fn a_search_that_is_cut_off_says_so(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.insert("a", "k", 100_000).await;
    let first = message_id(&hand.admin, 1).await;
    assert_eq!(found(&hand.fixture, &first).await.1["message"]["number"], 1);
    for within in ["0s", "1ms"] {
        let nobody = "00000000-0000-0000-0000-0000000000aa";
        let (code, told) = traced(&hand.fixture, &[nobody, "--within", within]).await;
        assert_eq!((code, &told["cut_off"]), (Some(1), &true.into()), "{told}");
        assert!(words(&told).contains("the search was cut off") && words(&told).contains("--within"), "{told}");
    }
    // A number is found at once.
    let (code, _) = traced(&hand.fixture, &["1", "--within", "0s"]).await;
    assert_eq!(code, Some(0));
}

async fn a_relay_that_began_behind_a_message_says_so(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.insert("a", "k", 1).await;
    hand.register("later", true).await;
    let (_, told) = traced(&hand.fixture, &["1", "--relay", "later"]).await;
    assert_eq!(told["relays"][0]["state"], "dealt_with", "{told}");
    assert!(words(&told["relays"][0]).contains("the relay began behind it, with `start = \"latest\"`"), "{told}");
    // Segments that are emptied do not hide what another relay still needs.
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "b", "k", 1).await;
    empty(&hand).await;
    assert_eq!(traced(&hand.fixture, &["2"]).await.0, Some(0));
}

/// Nobody knows any more what was in segments before.
async fn after_a_rebase_nothing_is_said_never_to_have_been(major: u32) {
    let hand = Hand::new(major, 1).await;
    let (segment, _) = aside(&hand.admin).await;
    insert_into(&hand.admin, segment, "a", "k", 1).await;
    let mut owner = hand.holder().await;
    owner.open(&hand, 0).await;
    owner.deliver().await;
    empty(&hand).await;
    hand.insert("b", "k", 1).await;
    hand.forget_replicas().await;
    let rebase = ["rebase", "--yes", "--dsn", hand.fixture.migrate_dsn()];
    assert!(hand.fixture.pgbaton(&rebase).await.unwrap().status.success());
    let (code, told) = traced(&hand.fixture, &["1"]).await;
    assert_eq!(code, Some(1), "{told}");
    assert!(words(&told).contains("It may have been in a segment that was emptied"), "{told}");
    assert_eq!(found(&hand.fixture, "2").await.0["state"], "waits");
}

async fn positions_of_another_database_are_not_believed(major: u32) {
    let hand = Hand::new(major, 1).await;
    hand.insert("a", "k", 1).await;
    hand.admin.batch_execute("update pgbaton.home set database = 1").await.unwrap();
    let output = hand.fixture.pgbaton(&["trace", "1", "--json", "--dsn", hand.fixture.relay_dsn()]).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{stderr}");
    assert!(stderr.contains("pgbaton rebase"), "{stderr}");
}
