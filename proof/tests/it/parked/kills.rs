//! The owner of a lane is killed at each step of setting a message aside and trying it again.

use std::time::Duration;

use proof::fixture::Fixture;
use proof::on_each_version;

use super::{KEYS, SOON_AGAIN, count, insert};
use crate::hand::{SOON, until};

on_each_version!(exactly_once_whenever_the_owner_is_killed);

/// Into a sink that keeps positions each message comes once and in order, wherever the owner dies.
async fn exactly_once_whenever_the_owner_is_killed(major: u32) {
    let points = ["lane.before_append", "lane.appended", "lane.delivered", "acknowledge.locked", "sink.checked"];
    for (point, times) in points.into_iter().flat_map(|point| [(point, 2), (point, 5)]) {
        let fixture = Fixture::new(major).await.unwrap();
        fixture.inbox("app.inbox").await.unwrap();
        let admin = fixture.admin().await.unwrap();
        // What is refused is taken once this is gone.
        admin
            .batch_execute("alter table app.inbox add constraint good check (topic not in ('bad/2', 'c/3')) not valid")
            .await
            .unwrap();
        let section = format!(
            "[relays.orders]\nlanes = 2\nbatch_messages = 10\ndead = \"hold\"\nsink = {}\n{SOON_AGAIN}",
            fixture.inbox_sink("app.inbox")
        );
        insert(&admin, &KEYS, 8).await;
        let mut first = fixture.run_with_faults("r1", &section, &format!("{point}:kill:{times}")).unwrap();
        let ended = first.wait(Duration::from_secs(60)).await;
        assert!(ended.is_ok(), "{point}: it was not reached {times} times");
        let second = fixture.run("r2", &section).unwrap();
        let waiting = 7 + 6;
        let mut seen = (0, 0);
        let arrived = tokio::time::timeout(SOON, async {
            while seen != (64 - waiting, waiting) {
                seen = (count(&admin, "app.inbox").await, count(&admin, "pgbaton.parked").await);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        if arrived.await.is_err() {
            let parked =
                admin.query("select topic, attempts, next_at, dead_at, holds from pgbaton.parked order by number", &[]);
            let said = second.lines_with("");
            panic!("{point} {times}: {seen:?}\n{:?}\n{}", parked.await.unwrap(), said.join("\n"));
        }
        // As an operator would.
        admin
            .batch_execute(
                "alter table app.inbox drop constraint good;
                 update pgbaton.parked set dead_at = null, next_at = now(), attempts = 0 where dead_at is not null",
            )
            .await
            .unwrap();
        until(&format!("{point}: all"), async || count(&admin, "app.inbox").await == 64).await;
        until(&format!("{point}: nothing is set aside"), async || count(&admin, "pgbaton.parked").await == 0).await;
        let order = "(select key, topic, row_number() over (partition by key order by seq) as place,
                             split_part(topic, '/', 2)::integer as wanted from app.inbox) o where place <> wanted";
        assert_eq!(count(&admin, order).await, 0, "{point}: each key is in order");
        drop(second);
    }
}
