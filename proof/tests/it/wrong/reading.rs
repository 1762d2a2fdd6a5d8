//! Relays that read what is not there yet, or not all of what is there.

use std::time::Duration;

use checker::Verdict;
use proof::servers::shared;
use tokio_postgres::Client;

use super::{Scene, Sink, writer};
use crate::hand::until;

/// A transaction that has its number commits after a later one was delivered.
pub async fn reads_by_id(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    scene.start("r1", 1, "").await;
    scene.claims("r1", 1).await;
    let mut late = scene.open().await;
    scene.send(&mut late, 1).await;
    until("a later one is delivered", async || {
        scene.write(2, 1).await;
        scene.arrived().await.into_values().flatten().next().is_some()
    })
    .await;
    scene.commit(late).await;
    scene.judged().await
}

/// A transaction that has its id early waits for the key, which a later one has.
pub async fn orders_by_xid(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    for key in 0..4 {
        let (mut early, mut later) = (scene.open().await, scene.open().await);
        scene.send(&mut later, key).await;
        scene.commit(later).await;
        scene.send(&mut early, key).await;
        scene.commit(early).await;
    }
    scene.start("r1", 4, "").await;
    scene.judged().await
}

/// One lane is stuck at the sink with what it has read. Its next messages, and one of the other lane, come in, and that one's
/// acknowledgement is the first since the stuck lane's target was taken.
pub async fn takes_a_floor_too_new(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::on(shared(15).await.unwrap(), wrong, Sink::Inbox, Duration::from_secs(10)).await;
    // No acknowledgement but of messages.
    scene.more = "acknowledge_idle = \"1h\"";
    scene.lanes = 2;
    let [slow, fast]: [u32; 2] = scene.key_of_each_lane(1).await.into_iter().collect::<Vec<_>>().try_into().unwrap();
    let gate = scene.gate(slow).await;
    // More than one window, and a lane that is so far behind its reader is read no further: the target has no end yet.
    scene.write(slow, 1_000).await;
    scene.start("r1", 2, "").await;
    scene.claims("r1", 2).await;
    gate.is_waited_for().await;
    scene.write(slow, 5).await;
    let last: i64 = scene.admin.query_one("select max(id) from pgbaton.outbox", &[]).await.unwrap().get(0);
    scene.write(fast, 1).await;
    until("the other lane has acknowledged", async || {
        let sql = "select exists (select from pgbaton.position where l >= $1)";
        scene.admin.query_one(sql, &[&last]).await.unwrap().get(0)
    })
    .await;
    gate.open().await;
    scene.judged().await
}

/// Keeps messages of a key out of the inbox until it is opened.
pub struct Gate(Client);

impl Gate {
    pub async fn open(self) {
        self.0.batch_execute("select pg_advisory_unlock_all()").await.unwrap();
    }

    pub async fn is_waited_for(&self) {
        let sql = "select exists (select from pg_locks where locktype = 'advisory' and not granted and database =
                   (select oid from pg_database where datname = current_database()))";
        until("an append waits", async || self.0.query_one(sql, &[]).await.unwrap().get(0)).await;
    }

    /// Whoever waits is sent away: what it wanted to insert is taken back.
    pub async fn turns_away(&self) {
        let waiting = "from pg_locks where locktype = 'advisory' and not granted and database =
                       (select oid from pg_database where datname = current_database())";
        self.0.execute(&format!("select pg_terminate_backend(pid) {waiting}"), &[]).await.unwrap();
        let sql = format!("select not exists (select {waiting})");
        until("nobody waits", async || self.0.query_one(&sql, &[]).await.unwrap().get(0)).await;
    }
}

impl Scene {
    /// Has each append with a message of this key wait.
    pub async fn gate(&self, key: u32) -> Gate {
        self.gate_of("app.inbox", &format!("new.key = '{}'", writer::name(key))).await
    }

    /// Has each insert of such rows into this table wait. (A lock of the table would keep statements from being prepared.)
    pub async fn gate_of(&self, table: &str, rows: &str) -> Gate {
        const LOCK: u32 = 4711;
        let sql = format!(
            "create function app.wait_at_the_gate() returns trigger language plpgsql as $$
               begin perform pg_advisory_xact_lock_shared({LOCK}); return new; end $$;
             create trigger gate before insert on {table} for each row when ({rows})
               execute function app.wait_at_the_gate()"
        );
        self.admin.batch_execute(&sql).await.unwrap();
        let gate = self.fixture.admin().await.unwrap();
        gate.batch_execute(&format!("select pg_advisory_lock({LOCK})")).await.unwrap();
        Gate(gate)
    }
}
