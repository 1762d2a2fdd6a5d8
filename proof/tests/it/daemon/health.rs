//! `/healthz` and `/readyz` while things go wrong.

use std::process::Stdio;
use std::time::{Duration, Instant};

use proof::fixture::{Fixture, toml_text};
use proof::on_each_version;
use proof::process::Process;
use proof::servers::{Binaries, Cluster, Options};
use tokio::net::{TcpListener, TcpStream};

use super::{ANYWHERE, SOON, address_of, get, get_until, try_get};

const DISCARD: &str = "[relays.orders]\nsink = { type = \"discard\" }\n";

on_each_version!(a_stopped_database_is_no_reason_to_restart, a_sink_that_is_down_shows_in_the_body);

async fn ready(replica: &mut Process) -> String {
    let address = address_of(replica).await;
    get_until(&address, "/readyz", "ready", |answer| {
        answer.status == 200 && answer.json()["relays"]["orders"]["lanes_owned"] == 16
    })
    .await;
    address
}

#[tokio::test]
async fn a_replica_that_works_says_so() {
    let outbox = Fixture::new(15).await.unwrap();
    let mut replica = outbox.run("r1", &format!("{ANYWHERE}{DISCARD}")).unwrap();
    let address = ready(&mut replica).await;
    let answer = get(&address, "/readyz").await;
    assert_eq!(answer.content_type, "application/json");
    let body = answer.json();
    assert_eq!(
        (&body["ready"], &body["name"], &body["database"]["answers"]),
        (&true.into(), &"r1".into(), &true.into())
    );
    let id = outbox.admin().await.unwrap().query_one("select id::text from pgbaton.replica", &[]).await.unwrap();
    assert_eq!(body["replica"], id.get::<_, &str>(0));
    assert!((0.0..=5.0).contains(&body["lease_left_seconds"].as_f64().unwrap()), "{body}");
    let orders = serde_json::json!({
        "lanes_owned": 16, "lanes_held": 0, "lanes_refused": 0, "sink_tier": "T5", "sink_down": null,
    });
    assert_eq!(body["relays"], serde_json::json!({ "orders": orders }));
    assert_eq!((get(&address, "/healthz").await.status, get(&address, "/nothing").await.status), (200, 404));
    assert_eq!(get(&address, "/").await.body, "/healthz\n/readyz\n/metrics\n");
}

/// What only a person can mend shows, although lanes are owned and the sink answers: and that it is mended, too.
#[tokio::test]
async fn lanes_that_cannot_be_read_are_refused() {
    let outbox = Fixture::new(15).await.unwrap();
    let (admin, producer) = (outbox.admin().await.unwrap(), outbox.producer().await.unwrap());
    let mut replica = outbox.run("r1", &format!("{ANYWHERE}{DISCARD}")).unwrap();
    let address = ready(&mut replica).await;
    producer.batch_execute("select pgbaton.send('orders', '{}'::json) from generate_series(1, 100)").await.unwrap();
    get_until(&address, "/metrics", "delivered", |answer| {
        answer.body.contains("delivered_total{relay=\"orders\"} 100")
    })
    .await;
    admin.batch_execute("select setval('pgbaton.outbox_id_seq', 5)").await.unwrap();
    producer.batch_execute("select pgbaton.send('orders', '{}'::json)").await.unwrap();
    let refused =
        |lanes: u64| move |answer: &super::Answer| answer.json()["relays"]["orders"]["lanes_refused"] == lanes;
    get_until(&address, "/readyz", "refused", refused(16)).await;
    replica.wait_for_line("reading is refused", SOON).await.unwrap();
    admin.batch_execute("select setval('pgbaton.outbox_id_seq', 100)").await.unwrap();
    get_until(&address, "/readyz", "mended", refused(0)).await;
}

/// A collector of logs that stands still: lines wait, then are dropped. Nothing else waits.
#[tokio::test]
async fn nobody_reads_the_log() {
    let outbox = Fixture::new(15).await.unwrap();
    outbox.inbox("app.inbox").await.unwrap();
    let relays = format!("[relays.orders]\nsink = {}\n", outbox.inbox_sink("app.inbox"));
    // So much that a pipe is full at once.
    let config = outbox.configuration("r1", &format!("{ANYWHERE}{relays}")).unwrap();
    let mut command = outbox.command().unwrap();
    command.env("PGBATON__LOG__LEVEL", "trace");
    let mut replica = command.args(["run", "--config"]).arg(config).stderr(Stdio::piped()).spawn().unwrap();
    let (admin, producer) = (outbox.admin().await.unwrap(), outbox.producer().await.unwrap());
    let mut beat = 0_i64;
    for round in 1..=3 {
        producer
            .batch_execute("select pgbaton.send('orders', '{}'::json) from generate_series(1, 1000)")
            .await
            .unwrap();
        let goes_on = "select (select count(*) from app.inbox) = $1 and coalesce(max(beat), 0) > $2, max(beat) \
                       from pgbaton.replica";
        let since = Instant::now();
        let goes_on = async || admin.query_one(goes_on, &[&(round * 1_000_i64), &beat]).await.unwrap();
        let mut row = goes_on().await;
        while !row.get::<_, bool>(0) {
            assert!(since.elapsed() < SOON && replica.try_wait().unwrap().is_none(), "round {round}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            row = goes_on().await;
        }
        beat = row.get(1);
    }
    let pid = rustix::process::Pid::from_child(&replica);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let since = Instant::now();
    while replica.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < SOON, "it does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn a_stopped_database_is_no_reason_to_restart(major: u32) {
    let mut cluster = Cluster::start(&Binaries::find(major).unwrap(), Options::default()).await.unwrap();
    let outbox = Fixture::on(&cluster).await.unwrap();
    let mut replica = outbox.run("r1", &format!("{ANYWHERE}[lease]\nttl = \"2s\"\n{DISCARD}")).unwrap();
    let address = ready(&mut replica).await;
    cluster.stop_immediate().await.unwrap();
    let stopped = Instant::now();
    let answer = get_until(&address, "/readyz", "not ready", |answer| answer.status == 503).await;
    assert!(stopped.elapsed() < Duration::from_secs(10), "{:?}", stopped.elapsed());
    assert_eq!(answer.json()["ready"], false);
    // Longer than any supervisor may stand still.
    while stopped.elapsed() < Duration::from_secs(12) {
        assert_eq!(get(&address, "/healthz").await.status, 200);
        assert_eq!(get(&address, "/readyz").await.status, 503);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(get(&address, "/readyz").await.json()["database"]["answers"], false);
    cluster.start_again().await.unwrap();
    ready(&mut replica).await;
}

/// From the start of the replica on, and again later; a relay beside it delivers meanwhile.
async fn a_sink_that_is_down_shows_in_the_body(major: u32) {
    let outbox = Fixture::new(major).await.unwrap();
    let mut cluster = Cluster::start(&Binaries::find(major).unwrap(), Options::default()).await.unwrap();
    cluster.create_database("sink", None).await.unwrap();
    let ddl = pgbaton::sink::postgres::inbox_ddl("app.inbox", "postgres").unwrap();
    cluster.admin("sink").await.unwrap().batch_execute(&ddl).await.unwrap();
    cluster.stop_fast().await.unwrap();
    let relays = format!(
        "{ANYWHERE}[relays.orders]\nsink = {}\n[relays.far]\nretry_cap = \"1s\"\n\
         sink = {{ type = \"postgres\", dsn = {}, table = \"app.inbox\" }}\n",
        outbox.file_sink(),
        toml_text(&cluster.dsn("sink", "postgres"))
    );
    let mut replica = outbox.run("r1", &relays).unwrap();
    let address = ready(&mut replica).await;
    let producer = outbox.producer().await.unwrap();
    producer.batch_execute("select pgbaton.send('t', '{}'::json)").await.unwrap();
    let far = |answer: &super::Answer| answer.json()["relays"]["far"].clone();
    let answer = get_until(&address, "/readyz", "a sink that is down", |answer| {
        far(answer)["lanes_owned"] == 16 && !far(answer)["sink_down"].is_null()
    })
    .await;
    assert_eq!(answer.status, 200);
    let down = far(&answer)["sink_down"].clone();
    assert!(down["since"].as_str().unwrap().ends_with('Z') && down["fault"].as_str().unwrap().contains('.'), "{down}");
    let later = get_until(&address, "/readyz", "time passes", |answer| {
        far(answer)["sink_down"]["seconds"].as_f64() > down["seconds"].as_f64().map(|seconds| seconds + 0.5)
    })
    .await;
    assert_eq!(far(&later)["sink_down"]["fault"], down["fault"]);
    assert!(answer.json()["relays"]["orders"]["sink_down"].is_null());
    get_until(&address, "/metrics", "the other relay delivers", |answer| {
        answer.body.contains("pgbaton_messages_delivered_total{relay=\"orders\"} 1\n")
    })
    .await;
    cluster.start_again().await.unwrap();
    get_until(&address, "/readyz", "it is up again", |answer| far(answer)["sink_down"].is_null()).await;
    get_until(&address, "/metrics", "it delivers, too", |answer| {
        answer.body.contains("pgbaton_messages_delivered_total{relay=\"far\"} 1\n")
    })
    .await;
    // And again, with a lane that is open.
    cluster.stop_immediate().await.unwrap();
    producer.batch_execute("select pgbaton.send('t', '{}'::json)").await.unwrap();
    let answer = get_until(&address, "/readyz", "down again", |answer| !far(answer)["sink_down"].is_null()).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_process_that_stands_still_gives_no_answer() {
    let outbox = Fixture::new(15).await.unwrap();
    let mut replica = outbox.run("r1", &format!("{ANYWHERE}[lease]\nttl = \"1s\"\n{DISCARD}")).unwrap();
    let address = ready(&mut replica).await;
    replica.pause().unwrap();
    assert!(try_get(&address, "/healthz", Duration::from_secs(2)).await.is_none());
    replica.resume().unwrap();
    // Its lease is over: a new identity, and ready again.
    replica.wait_for_lines("joined", 2, SOON).await.unwrap();
    ready(&mut replica).await;
}

#[tokio::test]
async fn a_taken_address_is_waited_for() {
    let outbox = Fixture::new(15).await.unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let http = format!("[http]\nlisten = \"{address}\"\n");
    let mut replica = outbox.run("r1", &format!("{http}{DISCARD}")).unwrap();
    replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
    let warning = replica.wait_for_line("cannot be listened at", SOON).await.unwrap();
    assert!(warning.contains(&address.to_string()) && warning.contains("WARN"), "{warning}");
    drop(taken);
    assert_eq!(ready(&mut replica).await, address.to_string());
}

/// Connections that say nothing, as many as there are places, and then a request.
#[tokio::test]
async fn silent_connections_are_cut() {
    let outbox = Fixture::new(15).await.unwrap();
    let mut replica = outbox.run("r1", &format!("{ANYWHERE}{DISCARD}")).unwrap();
    let address = ready(&mut replica).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let asked = Instant::now();
    assert_eq!(get(&address, "/healthz").await.status, 200);
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    drop(silent);
}
