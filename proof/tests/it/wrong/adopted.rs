//! Relays that are wrong about a table that they adopt.

use std::time::Duration;

use checker::Verdict;
use checker::history::Phase;
use proof::fixture::RELAY;
use proof::servers::shared;

use super::{Scene, Sink};
use crate::hand::until;

/// The first replica is killed while the sink has a batch and has not answered: what it had marked by then nobody sends again.
pub async fn marks_before_it_delivers(wrong: Option<&'static str>) -> Verdict {
    // An append waits for its answer no longer than the lease lasts.
    let mut scene = Scene::on(shared(15).await.unwrap(), wrong, Sink::Inbox, Duration::from_secs(10)).await;
    scene.adopt().await;
    let gate = scene.gate(1).await;
    scene.write(1, 5).await;
    scene.start("first", 1, "").await;
    gate.is_waited_for().await;
    until("what it has in its hands is marked, if it is wrong", async || {
        let sql = "select not exists (select from shop.outbox where published_at is null)";
        wrong.is_none() || scene.admin.query_one(sql, &[]).await.unwrap().get(0)
    })
    .await;
    scene.kill("first").await;
    gate.turns_away().await;
    gate.open().await;
    scene.start("second", 1, "").await;
    scene.judged().await
}

/// A row that has its number commits after a later one was delivered.
pub async fn looks_from_the_last_row(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    scene.adopt().await;
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

/// Its owner sets back what it has marked.
pub async fn forgets_no_mark(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    scene.adopt().await;
    scene.start("r1", 1, "").await;
    scene.claims("r1", 1).await;
    let ids = scene.write(1, 5).await;
    until("all is marked", async || {
        let sql = "select not exists (select from shop.outbox where published_at is null)";
        scene.admin.query_one(sql, &[]).await.unwrap().get(0)
    })
    .await;
    scene.set_back(&ids[1..3]).await;
    scene.judged().await
}

impl Scene {
    /// From now on messages are written to a table of the application's own, which the relay adopts.
    async fn adopt(&mut self) {
        let ddl = format!(
            "create table shop.outbox (id bigint generated always as identity primary key, customer text not null,
               topic text not null, published_at timestamptz);
             grant usage on schema shop to {RELAY};
             grant select, update (published_at) on shop.outbox to {RELAY}"
        );
        self.admin.batch_execute(&ddl).await.unwrap();
        self.adopted = true;
        self.more = "source = { type = \"table\", table = \"shop.outbox\", id = \"id\", key = \"customer\", topic = \"topic\", \
                     pending = \"published_at is null\", mark = { published_at = \"now()\" } }";
    }

    /// Kills it, in the middle of what it does.
    async fn kill(&mut self, name: &str) {
        self.tell_of("kill", name, Phase::Begin);
        self.replica(name).kill().unwrap();
        self.replicas.remove(name);
    }
}
