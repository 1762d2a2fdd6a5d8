//! A relay that goes by the server's wall clock, which steps.

use proof::clock::Clock;
use proof::servers::{Binaries, Cluster, Options};

use super::{Scene, Sink, TTL, found};

/// The clock steps forward by a minute, again and again, while all replicas are well.
pub async fn expires_by_the_servers_clock(wrong: Option<&'static str>) -> Vec<String> {
    let file = format!("pgbaton-wrong-clock-{}-{}", std::process::id(), wrong.is_some());
    let clock = Clock::new(&std::env::temp_dir().join(file)).unwrap();
    let options = Options { environment: clock.environment(false), ..Options::default() };
    let cluster = Cluster::start(&Binaries::find(15).unwrap(), options).await.unwrap();
    let mut scene = Scene::on(&cluster, wrong, Sink::Files).await;
    for name in ["r1", "r2", "r3"] {
        scene.start(name, 8, "").await;
    }
    for minutes in 1..=10 {
        for key in 0..8 {
            scene.write(key, 1).await;
        }
        scene.all_delivered().await;
        // Whoever has nothing to acknowledge finds out by itself only that it was removed: a moment after the others, or before.
        tokio::time::sleep(TTL / 5).await;
        clock.set(&format!("+{minutes}m")).unwrap();
        tokio::time::sleep(TTL / 2).await;
        if found(&scene.folder).contains(&"exclusive".to_owned()) {
            break;
        }
    }
    scene.judged().await
}
