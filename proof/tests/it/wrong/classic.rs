//! The classic relay, which is no wrong pgbaton but what it replaces.

use std::time::Duration;

use checker::Verdict;
use checker::history::{Event, Message};
use proof::classic::{Classic, prepare};
use proof::fixture::{PRODUCER, RELAY};
use proof::torture::book::{self, Book};

use super::{Scene, Sink};
use crate::hand::until;

/// Two replicas with a backlog, and no fault at all: nothing excuses a repeat. The classic one's first publish waits until both
/// have taken a batch.
pub async fn publishes_after_its_locks(wrong: Option<&'static str>) -> Verdict {
    let mut scene = Scene::new(wrong, Sink::Inbox).await;
    if wrong.is_none() {
        for key in 0..16 {
            scene.write(key, 20).await;
        }
        scene.start("r1", 4, "").await;
        scene.start("r2", 4, "").await;
        return scene.judged().await;
    }
    prepare(&scene.admin, PRODUCER, RELAY).await.unwrap();
    write(&scene).await;
    let books = ["classic 1", "classic 2"].map(|name| (name, Book::open(&scene.folder, name).unwrap()));
    scene.others = books.iter().map(|(_, book)| book.count()).collect();
    let (dsn, relay) = (scene.fixture.relay_dsn(), Classic { batch: 40, tick: SHORT, slowness: SHORT });
    let [(one, first), (two, second)] = &books;
    let gate = scene.gate_of("classic_inbox", "true").await;
    let publishes = async |name: &str| until("it publishes", async || scene.told(name, "publish") > 0).await;
    let later = async {
        publishes(one).await;
        relay.run_telling(dsn, two, second).await
    };
    let all_marked = async {
        publishes(one).await;
        publishes(two).await;
        gate.open().await;
        let left = "select count(*) from classic_outbox where published_at is null";
        until("all is marked", async || scene.admin.query_one(left, &[]).await.unwrap().get::<_, i64>(0) == 0).await;
    };
    tokio::select! {
        ended = relay.run_telling(dsn, one, first) => panic!("{ended:?}"),
        ended = later => panic!("{ended:?}"),
        () = all_marked => {}
    }
    let rows = scene.admin.query("select message_id from classic_inbox order by seq", &[]).await.unwrap();
    let ids = rows.iter().map(|row| row.get(0)).collect();
    scene.book.tell(Event::Arrived { place: "classic_inbox".into(), ids, contents: Vec::new() });
    scene.judged().await
}

const SHORT: Duration = Duration::from_millis(100);

/// One transaction with a backlog.
async fn write(scene: &Scene) {
    let sql = "with l as (insert into shop.ledger values (1))
               insert into classic_outbox (topic, payload) select 'orders', '{}' from generate_series(1, 320)
               returning id";
    let sent = book::now();
    let rows = scene.admin.query(sql, &[]).await.unwrap();
    let message = |id: i64| Message { id: id.to_string(), key: None, n: 0 };
    let messages = rows.iter().map(|row| message(row.get(0))).collect();
    scene.book.tell(Event::Wrote { transaction: 1, messages });
    scene.book.tell(Event::Committed { transaction: 1, sent });
}
