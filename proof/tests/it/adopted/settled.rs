//! A sink that keeps positions gets each row exactly once, whatever ends a replica between its commit and the mark.

use proof::on_each_version;
use proof::process::Process;

use super::{Adopted, SOURCE, end};
use crate::daemon::{ANYWHERE, address_of, get};
use crate::hand::SOON;

on_each_version!(
    a_kill_between_the_sinks_commit_and_the_mark_repeats_nothing,
    what_was_set_back_before_settling_is_sent_again,
    what_was_changed_before_settling_is_counted,
);

impl Adopted {
    /// A replica that delivers into an inbox of the same database, which takes repeats for what they are.
    async fn to_inbox(&self, name: &str, faults: &str) -> Process {
        let relays =
            format!("{ANYWHERE}[relays.orders]\nlanes = 1\nsink = {}\n{SOURCE}", self.fixture.inbox_sink("app.inbox"));
        self.fixture.run_with_faults(name, &relays, faults).unwrap()
    }

    async fn in_inbox(&self) -> (i64, i64) {
        let sql = "select count(*), count(distinct message_id) from app.inbox";
        let row = self.admin.query_one(sql, &[]).await.unwrap();
        (row.get(0), row.get(1))
    }
}

/// Rows that the sink has, and that are pending still.
async fn killed_before_its_mark(major: u32) -> Adopted {
    let adopted = Adopted::new(major).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    adopted.insert(50).await;
    let mut killed = adopted.to_inbox("r1", "lane.appended:kill:1").await;
    killed.wait(SOON).await.unwrap();
    let (sent, _) = adopted.in_inbox().await;
    assert!(sent > 0 && adopted.pending().await == 50, "{sent} rows are at the sink");
    adopted
}

async fn a_kill_between_the_sinks_commit_and_the_mark_repeats_nothing(major: u32) {
    let adopted = killed_before_its_mark(major).await;
    let mut next = adopted.to_inbox("r2", "").await;
    next.wait_for_line("the sink already had the last batch", SOON).await.unwrap();
    adopted.all_marked().await;
    // Not even offered again, which the inbox would have to see through.
    assert_eq!(repeated(&mut next).await, 0.0);
    end(next).await;
    assert_eq!(adopted.in_inbox().await, (50, 50));
}

/// Messages that the sink had already: a metric's number.
async fn repeated(replica: &mut Process) -> f64 {
    let address = address_of(replica).await;
    let metrics = get(&address, "/metrics").await.body;
    let line = metrics.lines().find(|line| line.starts_with("pgbaton_messages_repeated_total{")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// A mark whose answer was lost is not made a second time: its user may have had another word since.
async fn what_was_set_back_before_settling_is_sent_again(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.fixture.inbox("app.inbox").await.unwrap();
    adopted.insert(20).await;
    let first = adopted.to_inbox("r1", "").await;
    adopted.all_marked().await;
    end(first).await;
    // The inbox has these ids already, and says so of each; the row is marked again all the same.
    adopted.admin.execute("update app.\"Outbox\" set published_at = null", &[]).await.unwrap();
    let mut again = adopted.to_inbox("r2", "").await;
    adopted.all_marked().await;
    assert_eq!(repeated(&mut again).await, 20.0);
    end(again).await;
    assert_eq!(adopted.in_inbox().await, (20, 20));
}

/// The sink has its former content, and nobody else was there to see it change.
async fn what_was_changed_before_settling_is_counted(major: u32) {
    let adopted = killed_before_its_mark(major).await;
    adopted.execute(r#"update app."Outbox" set payload = '{"n": 0}' where payload ->> 'n' in ('1', '2')"#).await;
    let mut next = adopted.to_inbox("r2", "").await;
    let told = next.wait_for_line("were changed after they had been read", SOON).await.unwrap();
    assert!(told.contains("rows=2"), "{told}");
    adopted.all_marked().await;
    end(next).await;
    assert_eq!(adopted.in_inbox().await, (50, 50));
}
