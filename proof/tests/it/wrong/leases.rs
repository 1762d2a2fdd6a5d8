//! Relays that a lease or an epoch does not stop.

use checker::Verdict;

use super::{Scene, Sink};
use crate::hand::until;

/// The first replica stands still between looking at its lease and handing over a batch, and wakes up when the second one has
/// its lanes.
pub async fn renews_after_expiry(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::new(wrong, Sink::Files).await;
    for key in 0..12 {
        scene.write(key, 10).await;
    }
    scene.start("first", 4, "lane.before_append:stop:7").await;
    scene.is_stopped("first").await;
    scene.start("second", 4, "").await;
    scene.claims("second", 4).await;
    // What the first one thinks when it wakes up does not depend on how soon the database answers.
    let gate = scene.fixture.admin().await.unwrap();
    gate.batch_execute("begin; lock table pgbaton.replica in access exclusive mode").await.unwrap();
    let before = scene.told("first", "answered");
    scene.wakes_up("first").await;
    until("it stops, or it goes on", async || {
        let over = scene.replicas["first"].lines_with("this replica's lease is over");
        !over.is_empty() || scene.told("first", "answered") > before + 4
    })
    .await;
    gate.batch_execute("commit").await.unwrap();
    scene.starts_anew("first").await;
    scene.judged().await
}

/// The first replica is frozen while its acknowledgement waits in the database, where it is written only when the second one
/// has the lane; later it takes the lane over again.
pub async fn acknowledges_without_the_epoch(wrong: Option<&'static str>) -> Verdict {
    const WAITS: &str =
        "select exists (select from pg_locks where relation = 'pgbaton.position'::regclass and not granted)";
    // Whether the newest position, by epoch and number, is behind another one.
    const SET_BACK: &str = "select p.batch < (select max(batch) from pgbaton.position)
                            from pgbaton.position p order by p.epoch desc, p.seq desc limit 1";
    let mut scene = Scene::new(wrong, Sink::Files).await;
    scene.start("first", 1, "").await;
    scene.claims("first", 1).await;
    scene.start("second", 1, "").await;
    // Each of its acknowledgements counts: the one with the greatest number is the newest.
    until("the first one has acknowledged often", async || {
        scene.write(1, 1).await;
        let sql = "select coalesce(max(seq), 0) from pgbaton.position";
        scene.admin.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) > 40
    })
    .await;
    let gate = scene.fixture.admin().await.unwrap();
    gate.batch_execute("begin; lock table pgbaton.position in share row exclusive mode").await.unwrap();
    scene.write(1, 1).await;
    until("it waits", async || scene.admin.query_one(WAITS, &[]).await.unwrap().get(0)).await;
    scene.freeze("first").await;
    scene.claims("second", 1).await;
    gate.batch_execute("commit").await.unwrap();
    scene.write(1, 30).await;
    scene.all_delivered().await;
    until("what waited is the newest position, unless it was refused", async || {
        let set_back: bool = scene.admin.query_one(SET_BACK, &[]).await.unwrap().get(0);
        set_back == wrong.is_some()
    })
    .await;
    scene.wakes_up("first").await;
    scene.starts_anew("first").await;
    scene.stop("second").await;
    scene.claims("first", 2).await;
    scene.write(1, 1).await;
    scene.judged().await
}
