//! The history that the real executable tells: each line is as the judge of a torture run reads it, and together they tell what
//! happened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use checker::history::{Event, Grant, Record};
use proof::fixture::Fixture;
use proof::process::Process;

use crate::hand::{SOON, until};

const LANES: usize = 4;

/// A replica that tells what it does, in a file of its own.
fn telling(fixture: &Fixture, name: &str) -> Process {
    let relays = format!(
        "[lease]\nttl = \"2s\"\n[relays.orders]\nlanes = {LANES}\nbatch_messages = 10\nsink = {}",
        fixture.inbox_sink("app.inbox")
    );
    let file = fixture.folder().join(format!("{name}.history"));
    fixture.run_with(name, &relays, &[("PGBATON_HISTORY", file.as_os_str())]).unwrap()
}

/// All that was told. Only the last line of a killed process may be torn.
fn told(file: &Path, killed: bool) -> Vec<Record> {
    let text = std::fs::read_to_string(file).unwrap();
    let (whole, torn) = text.rsplit_once('\n').unwrap();
    assert!(killed || torn.is_empty(), "{torn}");
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

#[tokio::test]
async fn replicas_tell_what_they_do() {
    let fixture = Fixture::new(15).await.unwrap();
    fixture.inbox("app.inbox").await.unwrap();
    let mut first = telling(&fixture, "first");
    first.wait_for_lines("claimed", LANES, SOON).await.unwrap();
    let mut second = telling(&fixture, "second");
    second.wait_for_lines("claimed", LANES / 2, SOON).await.unwrap();
    deliver(&fixture, 400).await;
    first.kill().unwrap();
    second.wait_for_lines("claimed", LANES, SOON).await.unwrap();
    deliver(&fixture, 100).await;
    second.terminate().unwrap();
    assert!(second.wait(SOON).await.unwrap().success());

    let first = told(&fixture.folder().join("first.history"), true);
    let second = told(&fixture.folder().join("second.history"), false);
    let first = Story::of(&first);
    let second = Story::of(&second);
    assert_eq!((first.claimed.len(), first.released.len(), first.left), (LANES, LANES / 2, false));
    assert_eq!((second.claimed.len(), second.left), (LANES, true));
    assert_eq!(second.claimed, second.released, "a clean stop gives everything back");
    let lanes = |story: &Story| story.claimed.iter().map(|grant| grant.lane).collect::<BTreeSet<_>>();
    assert_eq!(lanes(&first), lanes(&second));
    assert!(first.claimed.is_disjoint(&second.claimed), "the epoch grows");

    let mut delivered = first.delivered.clone();
    delivered.extend(second.delivered.clone());
    let all = fixture.admin().await.unwrap().query("select message_id::text from pgbaton.outbox", &[]).await.unwrap();
    let all: BTreeSet<String> = all.iter().map(|row| row.get(0)).collect();
    assert_eq!(delivered.into_iter().collect::<BTreeSet<_>>(), all);
    for (grant, batch) in &second.published {
        assert_eq!(second.acknowledged.get(grant), Some(batch), "{grant:?}");
    }
}

async fn deliver(fixture: &Fixture, messages: i64) {
    let admin = fixture.admin().await.unwrap();
    let send = "select pgbaton.send('orders', '{}'::json, key => n::text) from generate_series(1, $1::bigint) n";
    fixture.producer().await.unwrap().query(send, &[&messages]).await.unwrap();
    let behind = "select (select count(*) from pgbaton.outbox) - (select count(*) from app.inbox)";
    until("all is delivered", async || admin.query_one(behind, &[]).await.unwrap().get::<_, i64>(0) == 0).await;
}

/// What one process told. Put together only from what may follow each other.
#[derive(Default)]
struct Story {
    replica: String,
    until: u64,
    claimed: BTreeSet<Grant>,
    released: BTreeSet<Grant>,
    /// Each lane's last batch.
    published: BTreeMap<Grant, i64>,
    delivered: Vec<String>,
    acknowledged: BTreeMap<Grant, i64>,
    left: bool,
}

impl Story {
    fn of(records: &[Record]) -> Story {
        let mut story = Story::default();
        let (mut under_way, mut written) = (BTreeMap::<Grant, Vec<String>>::new(), BTreeSet::new());
        for Record { t, event } in records {
            assert!(!story.left, "{event:?} after it left");
            match event {
                Event::Joined { replica, ttl_ms, until, .. } => {
                    assert_eq!((story.replica.as_str(), *ttl_ms), ("", 2_000));
                    story.replica.clone_from(replica);
                    story.until = *until;
                }
                Event::Renewed { replica, until, confirmed } => {
                    assert!(*replica == story.replica && *until >= story.until);
                    assert!(confirmed.is_some_and(|confirmed| confirmed < story.until && confirmed < *t));
                    story.until = *until;
                }
                Event::Claimed { replica, sent, timeline: 1, grants } => {
                    assert!(*replica == story.replica && sent < t);
                    story.claimed.extend(grants.iter().cloned());
                }
                Event::Released { grants, settled: true, .. } => story.released.extend(grants.iter().cloned()),
                Event::Publish { grant, timeline: 1, batch, ids, .. } => {
                    assert!(story.claimed.contains(grant) && !story.released.contains(grant), "{grant:?}");
                    assert!(*t < story.until, "a publish after the lease");
                    assert!(story.published.insert(grant.clone(), *batch).is_none_or(|before| before + 1 == *batch));
                    assert!(under_way.insert(grant.clone(), ids.clone()).is_none());
                }
                Event::Writing { grant, looked, .. } => {
                    assert!(under_way.contains_key(grant) && *looked < story.until && looked < t, "{grant:?}");
                    written.insert(grant.clone());
                }
                Event::Answered { grant, batch, answer, .. } => {
                    let ids = under_way.remove(grant).unwrap();
                    assert!(written.remove(grant), "nobody looked at the clock");
                    assert_eq!((answer.as_str(), story.published.get(grant)), (&*"d".repeat(ids.len()), Some(batch)));
                    story.delivered.extend(ids);
                }
                Event::Acknowledged { sent, timeline: 1, positions, .. } => {
                    for position in positions {
                        assert!(position.consumed > Some(0) && sent < t);
                        story.acknowledged.insert(position.grant.clone(), position.batch);
                    }
                }
                Event::Left { replica } => story.left = *replica == story.replica,
                other => panic!("{other:?}"),
            }
        }
        story
    }
}
