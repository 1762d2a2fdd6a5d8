//! What an idle relay costs the database: a look whose snapshot equals the last one touches no table, any other idle look
//! a few index look-ups, however many messages lie there delivered.
//!
//! A server of its own: on a shared one, other tests' transactions change the snapshot all the time.

use std::time::Duration;

use proof::fixture::Fixture;
use proof::on_each_version;
use proof::process::{POLL, Process};
use proof::servers::{Binaries, Cluster, Options};
use tokio::time::Instant;
use tokio_postgres::Client;

const SOON: Duration = Duration::from_secs(60);

/// Polls every 10 ms and renews every 20 s, so that little else happens meanwhile.
const RELAY: &str = r#"
[lease]
ttl = "60s"
[relays.orders]
poll_busy = "10ms"
poll_idle = "10ms"
"#;

on_each_version!(an_idle_relay_touches_no_table, an_idle_relay_looks_up_little_when_others_commit);

async fn an_idle_relay_touches_no_table(major: u32) {
    /// How far behind the relay is gets measured every five seconds, which reads the sequence: not in each of these.
    const TRIES: usize = 5;
    let quiet = Quiet::start(major, 5_000).await;
    let mut touched = Vec::new();
    for _ in 0..TRIES {
        let (before, transactions) = (quiet.touched().await, quiet.transactions().await);
        quiet.until("200 transactions later", async |quiet| quiet.transactions().await >= transactions + 200).await;
        let after = quiet.touched().await;
        if after == before {
            return;
        }
        touched.push((before, after));
    }
    panic!("index scans, whole scans, rows, pages of the sequence: {touched:?}");
}

async fn an_idle_relay_looks_up_little_when_others_commit(major: u32) {
    const TIMES: i64 = 30;
    let quiet = Quiet::start(major, 5_000).await;
    for (what, statement, most) in [
        ("commits elsewhere", "select pg_current_xact_id()", 0),
        // A number is gone for good, and somebody has to look whose it was: one look-up in each leaf, by this look and
        // perhaps by the next two, which do not yet know that nothing more has come.
        ("inserts taken back", "begin; insert into pgbaton.outbox (topic) values ('t'); rollback", 8 * 3),
    ] {
        let (before, windows) = (quiet.touched().await, quiet.steps("Window"));
        for _ in 0..TIMES {
            let aims = quiet.steps("Aim");
            quiet.admin.batch_execute(statement).await.unwrap();
            quiet.until("two looks", async |quiet| quiet.steps("Aim") >= aims + 2).await;
        }
        quiet.settle().await;
        let windows = quiet.steps("Window") - windows;
        let after = quiet.touched().await;
        let [scans, whole, rows, _] = std::array::from_fn(|n| after[n] - before[n]);
        println!("PostgreSQL {major}: {TIMES} {what}: {windows} windows, {scans} index scans of leaves, {rows} rows");
        assert_eq!((whole, rows), (0, 0), "whole scans and rows");
        assert!(scans <= TIMES * most + most, "{scans} index scans for {TIMES} {what}");
    }
}

/// A server with one outbox, all of whose messages one replica has delivered, and nothing else going on.
struct Quiet {
    admin: Client,
    replica: Process,
    outbox: Fixture,
    _cluster: Cluster,
}

impl Quiet {
    async fn start(major: u32, messages: u32) -> Quiet {
        let settings = vec![("autovacuum".to_owned(), "off".to_owned())];
        let options = Options { settings, ..Options::default() };
        let cluster = Cluster::start(&Binaries::find(major).unwrap(), options).await.unwrap();
        let outbox = Fixture::on(&cluster).await.unwrap();
        let load = format!(
            "insert into pgbaton.outbox (topic, key, payload_json)
             select 'orders', n::text, '{{}}' from generate_series(1, {messages}) n"
        );
        outbox.producer().await.unwrap().batch_execute(&load).await.unwrap();
        let text = format!(
            "[database]\ndsn = {}\n[log]\nlevel = \"pgbaton=trace\"\n[http]\nlisten = \"off\"\n{RELAY}sink = {}\n",
            proof::fixture::toml_text(outbox.relay_dsn()),
            outbox.file_sink()
        );
        let mut command = outbox.command().unwrap();
        command.arg("run").arg("--config").arg(outbox.write("quiet.toml", &text).unwrap());
        let mut replica = Process::start("quiet", outbox.folder(), command).unwrap();
        replica.wait_for_lines("claimed", 16, SOON).await.unwrap();
        let admin = outbox.admin().await.unwrap();
        let quiet = Quiet { admin, replica, outbox, _cluster: cluster };
        let lines = |text: String| text.bytes().filter(|byte| *byte == b'\n').count();
        let delivered = || std::fs::read_to_string(quiet.outbox.file()).map(lines).unwrap_or(0);
        quiet.until("all delivered", async |_| delivered() == messages as usize).await;
        quiet.settle().await;
        quiet
    }

    /// Waits until nothing but looks has happened for a while, and the statistics tell of everything before.
    async fn settle(&self) {
        let mut last = self.touched().await;
        let mut since = Instant::now();
        self.until("calm", async |quiet| {
            let now = quiet.touched().await;
            if now != last {
                (last, since) = (now, Instant::now());
            }
            since.elapsed() >= Duration::from_secs(3)
        })
        .await;
    }

    /// Index scans, whole scans and rows read of the outbox's leaves, and pages of its sequence.
    async fn touched(&self) -> [i64; 4] {
        let sum = "select sum(idx_scan)::bigint, sum(seq_scan)::bigint, sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::bigint,
                     (select blks_hit + blks_read from pg_statio_all_sequences where relid = 'pgbaton.outbox_id_seq'::regclass)
                   from pg_stat_all_tables where schemaname = 'pgbaton' and relname like 'outbox%'";
        let row = self.admin.query_one(sum, &[]).await.unwrap();
        [0, 1, 2, 3].map(|n| row.get(n))
    }

    /// Transactions of this database so far.
    async fn transactions(&self) -> i64 {
        let sql = "select xact_commit from pg_stat_database where datname = current_database()";
        self.admin.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// How many steps of a kind the reader has taken.
    fn steps(&self, kind: &str) -> usize {
        self.replica.lines_with(&format!("step={kind}")).len()
    }

    async fn until(&self, what: &str, mut holds: impl AsyncFnMut(&Quiet) -> bool) {
        let deadline = Instant::now() + SOON;
        while !holds(self).await {
            assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
            tokio::time::sleep(POLL).await;
        }
    }
}
