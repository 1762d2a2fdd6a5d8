//! An adopted table read and marked step by step, with changes by others in between.

use std::collections::BTreeMap;
use std::sync::Arc;

use pgbaton::Database;
use pgbaton::config::Config;
use pgbaton::lane::{Grant, Lane, ReplicaId};
use pgbaton::metrics::Metrics;
use pgbaton::position::Incarnation;
use pgbaton::source::table::{TableSource, TableSpec};
use pgbaton::source::{Acknowledged, Behind, Budget, Dealt, Opaque, Opened, Parking, Read, Room, Source, SourceSpec};
use proof::fixture::{Fixture, RELAY};
use proof::on_each_version;
use uuid::Uuid;

use super::{Adopted, SOURCE};
use crate::crash::{forgetful_cluster, stop_the_logs_writer};
use crate::hand::{SOON, relay, sql, until};

on_each_version!(
    nothing_is_marked_under_another_epoch,
    nothing_is_marked_for_another_owner,
    nothing_is_marked_in_another_incarnation,
    a_batch_that_was_marked_before_is_not_marked_again,
    rows_that_are_known_are_not_read_twice,
    what_is_fetched_is_pending_and_of_its_lane_by_then,
    what_the_sink_holds_is_marked_on_opening,
    what_was_read_is_kept_by_recovery,
    what_a_later_check_refuses_is_not_read,
    what_failed_is_said_until_it_succeeds,
    a_check_runs_none_of_the_conditions,
    what_is_pending_is_counted_with_its_age,
);

/// How the table of [`SOURCE`] is adopted, as the configuration says.
pub fn spec_of(source: &str) -> TableSpec {
    let text =
        format!("[database]\ndsn = \"host=127.0.0.1\"\n[relays.orders]\nsink = {{ type = \"discard\" }}\n{source}");
    let replica = Config::parse(&text, []).unwrap().into_replica().unwrap();
    let SourceSpec::Table(spec) = &replica.relays[0].source else { panic!("it adopts a table") };
    TableSpec::clone(spec)
}

/// The relay's statements for the table of [`SOURCE`] in this database.
pub async fn statements(adopted: &Adopted) -> Vec<(&'static str, String)> {
    let database = Database::new(adopted.fixture.relay_dsn(), SOON).unwrap();
    let (replica, spec) = (ReplicaId(Uuid::now_v7()), spec_of(SOURCE));
    let source = TableSource::new(relay(), replica, spec, &database, Arc::default(), Arc::default());
    source.check().await.unwrap();
    source.statements_by_name()
}

/// A replica that reads and marks when it is told to.
pub struct Steps<'a> {
    adopted: &'a Adopted,
    pub source: TableSource,
    pub metrics: Arc<Metrics>,
    id: ReplicaId,
    here: Incarnation,
    lanes: i32,
    held: BTreeMap<i32, Held>,
    /// The topics of all that was read.
    pub got: Vec<String>,
}

struct Held {
    grant: Grant,
    batch: i64,
    /// All that was read in this stint.
    done: Vec<Dealt>,
}

impl<'a> Steps<'a> {
    /// The relay is registered, and the table checked.
    pub async fn new(adopted: &'a Adopted, lanes: i32) -> Steps<'a> {
        let spec = spec_of(SOURCE);
        let (table, definition) = (spec.table.to_string(), spec.definition().to_string());
        let register = sql("register")
            .replace("$1::text", "'orders'")
            .replace("$2::integer", &lanes.to_string())
            .replace("$3::boolean", "false")
            .replace("$4::text", &format!("'{table}'::text"))
            .replace("$5::text", &format!("'{}'::text", definition.replace('\'', "''")));
        adopted.execute(&register).await;
        Steps::another(adopted, lanes).await
    }

    /// One more replica of the same relay.
    pub async fn another(adopted: &'a Adopted, lanes: i32) -> Steps<'a> {
        let id = ReplicaId(Uuid::now_v7());
        let join = "insert into pgbaton.replica (id, name, version, relays, ttl_ms) values ($1, 'stepwise', 'test', '{orders}', 5000)";
        adopted.admin.execute(join, &[&id.0]).await.unwrap();
        let here = adopted.admin.query_one("select pgbaton.incarnation()", &[]).await.unwrap();
        let here = here.get::<_, &str>(0).parse().unwrap();
        let database = Database::new(adopted.fixture.relay_dsn(), SOON).unwrap();
        let metrics = Arc::new(Metrics::default());
        let source = TableSource::new(relay(), id, spec_of(SOURCE), &database, Arc::default(), Arc::clone(&metrics));
        source.check().await.unwrap();
        Steps { adopted, source, metrics, id, here, lanes, held: BTreeMap::new(), got: Vec::new() }
    }

    /// Gives this replica a lane, as a claim would.
    async fn give(&self, lane: i32) -> Grant {
        let give = "update pgbaton.lane set owner = $1, epoch = epoch + 1 where relay = 'orders' and lane = $2 returning epoch";
        let epoch = self.adopted.admin.query_one(give, &[&self.id.0, &lane]).await.unwrap().get(0);
        Grant { lane: Lane { relay: relay(), number: lane, of: self.lanes }, epoch: pgbaton::lane::Epoch(epoch) }
    }

    pub async fn open(&mut self, lane: i32, holds: Option<&Opaque>) -> Opened {
        let grant = self.give(lane).await;
        let (_, opened) = self.source.open(&grant, &self.here, holds).await.unwrap();
        let (Opened::Ours { batch }
        | Opened::Settled { batch }
        | Opened::Announced { batch }
        | Opened::SinkLost { batch, .. }) = opened;
        self.held.insert(lane, Held { grant, batch, done: Vec::new() });
        opened
    }

    /// One call of `read`, with batches of at most so many.
    pub async fn read(&mut self, batch_messages: usize) -> Read {
        self.try_read(batch_messages).await.unwrap()
    }

    async fn try_read(&mut self, batch_messages: usize) -> Result<Read, pgbaton::Error> {
        let rooms: Vec<Room> = self
            .held
            .values()
            .map(|held| Room { grant: held.grant.clone(), room: true, idle_since: None, retries: true })
            .collect();
        let budget = Budget { bytes: 8 << 20, one_more: true, batch_messages, batch_bytes: 1 << 20 };
        let read = self.source.read(&rooms, &budget).await?;
        for batch in &read.batches {
            let held = self.held.get_mut(&batch.grant.lane.number).unwrap();
            self.got.extend(batch.messages.iter().map(|message| message.topic.to_owned()));
            held.batch += 1;
            let (grant, stint, next) = (held.grant.clone(), batch.stint, batch.bookmark()?);
            held.done.push(Dealt { grant, stint, batch: held.batch, next, parked: Parking::default() });
        }
        Ok(read)
    }

    /// Reads until so many messages have come in all.
    pub async fn read_until(&mut self, count: usize) {
        until(&format!("{count} messages are read"), async || {
            self.read(1_000).await;
            self.got.len() >= count
        })
        .await;
    }

    /// How far a lane is, as it would be acknowledged.
    fn dealt(&self, lane: i32) -> Dealt {
        self.held[&lane].done.last().expect("nothing was read").clone()
    }

    pub async fn acknowledge(&self, lane: i32) -> Acknowledged {
        self.source.acknowledge(&self.held[&lane].done).await.unwrap().remove(0)
    }

    async fn positions(&self) -> i64 {
        self.adopted.count("pgbaton.position where relay = 'orders' and batch > 0").await
    }
}

/// Rows of one key, each with a topic of its own.
async fn insert(adopted: &Adopted, key: &str, count: i32) {
    let sql = r#"insert into app."Outbox" (site_id, topic, payload)
                 select $1, $1 || ' ' || n, '{}' from generate_series(1, $2::integer) n"#;
    adopted.admin.execute(sql, &[&key, &count]).await.unwrap();
}

/// Three rows, read and not marked.
async fn three_rows_read(adopted: &Adopted) -> Steps<'_> {
    let mut steps = Steps::new(adopted, 1).await;
    insert(adopted, "a", 3).await;
    steps.open(0, None).await;
    steps.read_until(3).await;
    steps
}

async fn nothing_is_marked(steps: &Steps<'_>) {
    assert_eq!((steps.adopted.pending().await, steps.positions().await), (3, 0));
}

/// The lane went to another replica and came back.
async fn nothing_is_marked_under_another_epoch(major: u32) {
    let adopted = Adopted::new(major).await;
    let steps = three_rows_read(&adopted).await;
    steps.give(0).await;
    let answer = steps.acknowledge(0).await;
    assert!(matches!(&answer, Acknowledged::LaneLost(..)), "{answer:?}");
    nothing_is_marked(&steps).await;
}

/// With the same epoch, as only a mistake would have it.
async fn nothing_is_marked_for_another_owner(major: u32) {
    let adopted = Adopted::new(major).await;
    let steps = three_rows_read(&adopted).await;
    let other = Steps::another(&adopted, 1).await;
    adopted.admin.execute("update pgbaton.lane set owner = $1", &[&other.id.0]).await.unwrap();
    let answer = steps.acknowledge(0).await;
    assert!(matches!(&answer, Acknowledged::LaneLost(..)), "{answer:?}");
    nothing_is_marked(&steps).await;
}

/// What was read before a fail-over is not marked after it: the ids may belong to other rows.
async fn nothing_is_marked_in_another_incarnation(major: u32) {
    let adopted = Adopted::new(major).await;
    let steps = three_rows_read(&adopted).await;
    let mut dealt = steps.dealt(0);
    dealt.next.incarnation.timeline += 1;
    assert!(steps.source.acknowledge(&[dealt]).await.is_err());
    nothing_is_marked(&steps).await;
}

/// The answer to a mark was lost, and the user has set the rows back since: they are not marked a second time, but sent again.
async fn a_batch_that_was_marked_before_is_not_marked_again(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = three_rows_read(&adopted).await;
    let epoch = steps.held[&0].grant.epoch.0;
    let lost = "insert into pgbaton.position (leaf, relay, lane, epoch, seq, batch)
                select p.leaf, 'orders', 0, $1, 0, $2 from pgbaton.position_leaf p";
    adopted.admin.execute(lost, &[&epoch, &steps.held[&0].batch]).await.unwrap();
    let answer = steps.acknowledge(0).await;
    assert!(matches!(&answer, Acknowledged::Written(_)), "{answer:?}");
    assert_eq!((adopted.pending().await, steps.positions().await), (3, 1));
    steps.read_until(6).await;
    let answer = steps.acknowledge(0).await;
    assert!(matches!(&answer, Acknowledged::Written(_)), "{answer:?}");
    assert_eq!(adopted.pending().await, 0);
}

/// A look finds all that is pending, also what was handed out and is not marked.
async fn rows_that_are_known_are_not_read_twice(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = three_rows_read(&adopted).await;
    insert(&adopted, "b", 2).await;
    steps.read_until(5).await;
    insert(&adopted, "c", 1).await;
    steps.read_until(6).await;
    steps.got.sort();
    assert_eq!(steps.got, ["a 1", "a 2", "a 3", "b 1", "b 2", "c 1"]);
    let answer = steps.acknowledge(0).await;
    assert!(matches!(&answer, Acknowledged::Written(_)), "{answer:?}");
    assert_eq!(adopted.pending().await, 0);
}

/// Between the look that found a row and the fetch, it was marked by another, or has got another key.
async fn what_is_fetched_is_pending_and_of_its_lane_by_then(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = Steps::new(&adopted, 2).await;
    let of_lane = "select 'key ' || n from generate_series(1, 100) n
                   where hashtextextended(('key ' || n) collate \"C\", 0) & 1 = $1::bigint limit 1";
    let key = async |lane: i64| adopted.admin.query_one(of_lane, &[&lane]).await.unwrap().get::<_, String>(0);
    let (mine, other) = (key(0).await, key(1).await);
    insert(&adopted, &mine, 6).await;
    steps.open(0, None).await;
    until("the first two are read", async || {
        steps.read(2).await;
        steps.got.len() >= 2
    })
    .await;
    let topics: Vec<String> = (1..=6).map(|n| format!("{mine} {n}")).collect();
    assert_eq!(steps.got, topics[..2], "the others were found, but not fetched");
    let change = format!(
        r#"update app."Outbox" set published_at = now() where topic = '{}';
           update app."Outbox" set site_id = '{other}' where topic = '{}'"#,
        topics[2], topics[3]
    );
    adopted.execute(&change).await;
    steps.read_until(4).await;
    assert_eq!(steps.got, [0, 1, 4, 5].map(|n: usize| topics[n].clone()));
    // By whoever has that lane.
    steps.open(1, None).await;
    steps.read_until(5).await;
    assert_eq!(steps.got[4], topics[3]);
}

/// The mark was lost with its replica, and the sink tells what it has.
async fn what_the_sink_holds_is_marked_on_opening(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = three_rows_read(&adopted).await;
    let dealt = steps.dealt(0);
    let holds = Opaque::new(dealt.batch, &dealt.next);
    insert(&adopted, "b", 1).await;
    let mut next = Steps::another(&adopted, 1).await;
    assert_eq!(next.open(0, Some(&holds)).await, Opened::Settled { batch: dealt.batch });
    assert_eq!((adopted.pending().await, next.positions().await), (1, 1));
    next.read_until(1).await;
    assert_eq!(next.got, ["b 1"]);
    // Whoever had it before comes too late.
    let answer = steps.acknowledge(0).await;
    assert!(matches!(&answer, Acknowledged::LaneLost(..)), "{answer:?}");
    steps.read(10).await;
    // What its user has set back since is not marked by whoever opens the lane again.
    let set_back = r#"update app."Outbox" set published_at = null where topic = 'a 1'"#;
    adopted.execute(set_back).await;
    let mut third = Steps::another(&adopted, 1).await;
    assert_eq!(third.open(0, Some(&holds)).await, Opened::Ours { batch: dealt.batch });
    third.read_until(2).await;
    assert_eq!(third.got, ["a 1", "b 1"]);
}

/// Rows whose writers did not wait for the disk are read only once they are there: a crash would give their numbers to others.
async fn what_was_read_is_kept_by_recovery(major: u32) {
    let mut cluster = forgetful_cluster(major).await;
    let adopted = Adopted::of(Fixture::on(&cluster).await.unwrap()).await;
    let mut steps = Steps::new(&adopted, 1).await;
    steps.open(0, None).await;
    adopted.execute("checkpoint").await;
    stop_the_logs_writer(&adopted.admin).await;
    adopted.execute("set synchronous_commit = off").await;
    insert(&adopted, "read", 3).await;
    steps.read_until(3).await;
    insert(&adopted, "not read", 3).await;
    cluster.stop_immediate().await.unwrap();
    cluster.start_again().await.unwrap();
    let admin = adopted.fixture.admin().await.unwrap();
    let kept: Vec<String> =
        admin.query(r#"select topic from app."Outbox""#, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert!(steps.got.iter().all(|topic| kept.contains(topic)), "{:?} was read, {kept:?} was kept", steps.got);
}

/// The table was good when its relay started, and others of the same process are none the worse for it.
async fn what_a_later_check_refuses_is_not_read(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = three_rows_read(&adopted).await;
    adopted.execute(r#"alter table app."Outbox" enable row level security"#).await;
    insert(&adopted, "b", 1).await;
    steps.source.check().await.unwrap();
    let refused = steps.try_read(10).await.unwrap_err().to_string();
    assert!(refused.contains("row-level security") && refused.contains("[refused]"), "{refused}");
    let database = Database::new(adopted.fixture.relay_dsn(), SOON).unwrap();
    let replica = ReplicaId(Uuid::now_v7());
    let another = TableSource::new(relay(), replica, spec_of(SOURCE), &database, Arc::default(), Arc::default());
    assert!(another.check().await.unwrap_err().to_string().contains("row-level security"));
    adopted.execute(r#"alter table app."Outbox" disable row level security"#).await;
    steps.source.check().await.unwrap();
    steps.read_until(4).await;
    assert_eq!(steps.got[3], "b 1");
}

/// Also while the next look is not due: that nothing was tried is no success.
async fn what_failed_is_said_until_it_succeeds(major: u32) {
    let adopted = Adopted::new(major).await;
    let mut steps = Steps::new(&adopted, 1).await;
    steps.open(0, None).await;
    adopted.execute(&format!(r#"revoke select on app."Outbox" from {RELAY}"#)).await;
    for _ in 0..20 {
        let refused = steps.try_read(10).await.unwrap_err().to_string();
        assert!(refused.contains("permission denied"), "{refused}");
    }
    adopted.execute(&format!(r#"grant select on app."Outbox" to {RELAY}"#)).await;
    insert(&adopted, "a", 1).await;
    until("reading goes on", async || steps.try_read(10).await.is_ok_and(|read| !read.batches.is_empty())).await;
}

/// The source of this configuration, checked.
async fn checked(adopted: &Adopted, source: &str) -> TableSource {
    let database = Database::new(adopted.fixture.relay_dsn(), SOON).unwrap();
    let (replica, spec) = (ReplicaId(Uuid::now_v7()), spec_of(source));
    let source = TableSource::new(relay(), replica, spec, &database, Arc::default(), Arc::default());
    source.check().await.unwrap();
    source
}

/// Before its index is there, one row of it may take as long as all rows.
async fn a_check_runs_none_of_the_conditions(major: u32) {
    let adopted = Adopted::new(major).await;
    adopted.insert(5).await;
    let refuse = "create function app.refuse(timestamptz) returns boolean language plpgsql as
                  $$ begin raise exception 'it was run'; end $$";
    adopted.execute(refuse).await;
    let source = SOURCE.replace("published_at is null --", "app.refuse(published_at) --");
    let source = checked(&adopted, &source).await;
    source.check().await.unwrap();
    assert!(source.behind().await.unwrap_err().to_string().contains("P0001"));
}

async fn what_is_pending_is_counted_with_its_age(major: u32) {
    let adopted = Adopted::new(major).await;
    insert(&adopted, "a", 3).await;
    let none = checked(&adopted, &SOURCE.replace("created_at = \"created_at\"", "")).await;
    assert_eq!(none.behind().await.unwrap(), Behind { messages: 3, oldest: None });
    // The oldest is not the first one.
    adopted.execute(r#"update app."Outbox" set created_at = now() - interval '1 h' where topic = 'a 2'"#).await;
    let source = SOURCE.replace("order = \"created_at\"", "order = \"topic\"");
    let Behind { messages, oldest } = checked(&adopted, &source).await.behind().await.unwrap();
    assert!(messages == 3 && oldest.unwrap().as_secs() / 3_600 == 1, "{messages} {oldest:?}");
    adopted.execute(r#"update app."Outbox" set published_at = now()"#).await;
    let marked = checked(&adopted, &source).await;
    assert_eq!(marked.behind().await.unwrap(), Behind { messages: 0, oldest: Some(std::time::Duration::ZERO) });
}
