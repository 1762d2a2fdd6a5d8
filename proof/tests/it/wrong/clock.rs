//! A relay that goes by the server's wall clock, which steps.

use std::time::{Duration, Instant};

use checker::Verdict;
use proof::clock::Clock;
use proof::servers::{Binaries, Cluster, Options};

use super::{Scene, Sink};
use crate::hand::until;

/// The clock steps forward by a minute while one replica stands still, with nearly all of its lease to come.
pub async fn expires_by_the_servers_clock(wrong: Option<&'static str>) -> Verdict {
    const TTL: Duration = Duration::from_secs(10);
    let file = format!("pgbaton-wrong-clock-{}-{}", std::process::id(), wrong.is_some());
    let clock = Clock::new(&std::env::temp_dir().join(file)).unwrap();
    let options = Options { environment: clock.environment(false), ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(15).unwrap(), options).await.unwrap();
    let mut scene = Scene::on(&cluster, wrong, Sink::Files, TTL).await;
    for name in ["r1", "r2"] {
        scene.start(name, 8, "").await;
    }
    until("both have lanes", async || scene.told("r1", "claimed") > 0 && scene.told("r2", "claimed") > 0).await;
    for key in 0..8 {
        scene.write(key, 1).await;
    }
    scene.all_delivered().await;
    let renewals = scene.told("r2", "renewed");
    until("the second one has just renewed its lease", async || scene.told("r2", "renewed") > renewals).await;
    scene.freeze("r2").await;
    let (frozen, claims) = (Instant::now(), scene.told("r1", "claimed"));
    clock.set("+1m").unwrap();
    // Both moments lie within its lease.
    until("the first one takes its lanes, or it has had the time to", async || {
        let claimed = scene.told("r1", "claimed") > claims;
        if wrong.is_some() { claimed } else { frozen.elapsed() > TTL / 2 }
    })
    .await;
    assert!(frozen.elapsed() < TTL * 4 / 5, "{:?}", frozen.elapsed());
    scene.wakes_up("r2").await;
    scene.judged().await
}
