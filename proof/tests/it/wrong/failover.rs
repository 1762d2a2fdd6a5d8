//! A relay that does not notice that the database is another one.

use checker::Verdict;
use checker::history::Event;
use proof::fixture::RELAY;
use proof::servers::{Binaries, Cluster, Options};
use proof::torture::book;

use super::{Scene, Sink, TTL};

/// What the standby never got was delivered; ids and numbers are given out again for other messages.
pub async fn keeps_positions(wrong: Option<&'static str>) -> Verdict {
    let mut primary = Cluster::start(&Binaries::find(15).unwrap(), Options::default()).await.unwrap();
    let mut scene = Scene::on(&primary, wrong, Sink::Files, TTL).await;
    let standby = primary.standby().await.unwrap();
    let (first, second) = (primary.port(), standby.port());
    let database = scene.fixture.database.clone();
    scene.fixture = scene
        .fixture
        .with_relay_dsn(format!("host=127.0.0.1,127.0.0.1 port={first},{second} user={RELAY} dbname={database}"));
    scene.start("r1", 4, "").await;
    scene.claims("r1", 4).await;
    for key in 0..8 {
        scene.write(key, 1).await;
    }
    scene.all_delivered().await;
    let safe = book::now();
    primary.wait_until_replayed(&standby).await.unwrap();
    standby.cut_off().await.unwrap();
    for key in 0..150 {
        scene.write(key % 8, 1).await;
    }
    scene.all_delivered().await;

    let from = book::now();
    primary.stop_immediate().await.unwrap();
    standby.promote().await.unwrap();
    let to = book::now();
    scene.is_at(standby.dsn(&database, "postgres")).await;
    scene.book.tell(Event::FailedOver { from, to, timeline: 2, safe: Some(safe) });
    for key in 0..400 {
        scene.write(key % 8, 1).await;
    }
    scene.judged().await
}
