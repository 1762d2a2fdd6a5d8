//! Relays that read what is not there yet, or not all of what is there.

use std::time::Duration;

use super::{Scene, Sink, writer};
use crate::hand::until;

/// Messages of this key take their time at the sink.
const SLOW: u32 = 1;

/// A transaction that has its number commits after a later one was delivered.
pub async fn reads_by_id(wrong: Option<&'static str>) -> Vec<String> {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    scene.start("r1", 4, "").await;
    scene.claims("r1", 4).await;
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
pub async fn orders_by_xid(wrong: Option<&'static str>) -> Vec<String> {
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

/// One lane is busy with what it has read while the other one acknowledges, and messages come in for both.
pub async fn takes_a_floor_too_new(wrong: Option<&'static str>) -> Vec<String> {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    let fast = scene.key_of_another_lane(SLOW, 2).await;
    scene.slow_down(SLOW, Duration::from_millis(8)).await;
    scene.write(SLOW, 200).await;
    scene.start("r1", 2, "").await;
    scene.claims("r1", 2).await;
    for _ in 0..150 {
        scene.write(fast, 1).await;
        scene.write(SLOW, 4).await;
    }
    scene.judged().await
}

impl Scene {
    /// Has each message of this key take so long at the inbox.
    pub async fn slow_down(&self, key: u32, by: Duration) {
        let sql = format!(
            "create function app.slow_down() returns trigger language plpgsql as $$
               begin perform pg_sleep({}); return new; end $$;
             create trigger slow_down before insert on app.inbox for each row when (new.key = '{}')
               execute function app.slow_down()",
            by.as_secs_f64(),
            writer::name(key)
        );
        self.admin.batch_execute(&sql).await.unwrap();
    }

    /// The number of a key of another lane than this one's.
    async fn key_of_another_lane(&self, key: u32, lanes: i64) -> u32 {
        let sql = "select hashtextextended($1 collate \"C\", 0) & ($2::bigint - 1)";
        let lane =
            async |key: u32| self.admin.query_one(sql, &[&writer::name(key), &lanes]).await.unwrap().get::<_, i64>(0);
        let mut other = key + 1;
        while lane(other).await == lane(key).await {
            other += 1;
        }
        other
    }
}
