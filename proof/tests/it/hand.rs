//! A relay driven by hand: a test reads and acknowledges step by step, with transactions of its own in between.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pgbaton::Database;
use pgbaton::lane::{Epoch, Grant, Lane, RelayName, ReplicaId};
use pgbaton::position::Incarnation;
use pgbaton::source::native::{NativeSource, NativeSpec};
use pgbaton::source::{
    Acknowledged, Batch, Bookmark, Budget, Dealt, Next, Opaque, Opened, Parking, Read, Room, Source, Stint,
};
use proof::fixture::Fixture;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

/// Generous: nothing waits this long unless it fails.
pub const SOON: Duration = Duration::from_secs(60);

/// The statement of this file of `sql/`.
pub fn sql(name: &str) -> &'static str {
    pgbaton::sql::ALL.iter().find(|verb| verb.name == name).unwrap_or_else(|| panic!("no statement {name}")).sql
}

/// Registers a relay of the outbox. Gives 1 if it was not.
pub async fn register(client: &Client, relay: &str, lanes: i32, latest: bool) -> usize {
    let none: Option<&str> = None;
    let parameters: [(&(dyn ToSql + Sync), Type); 5] =
        [(&relay, Type::TEXT), (&lanes, Type::INT4), (&latest, Type::BOOL), (&none, Type::TEXT), (&none, Type::TEXT)];
    client.query_typed(sql("register"), &parameters).await.unwrap().len()
}

/// The relay that all tests of this kind use.
pub fn relay() -> RelayName {
    RelayName::new("orders").unwrap()
}

/// All topics, nothing sent again.
pub fn reads(replica: ReplicaId) -> NativeSpec {
    NativeSpec { relay: relay(), replica, topics: Vec::new(), resend: false, dead_topic: None }
}

/// A database with one registered relay, and connections of those who take part.
pub struct Hand {
    pub fixture: Fixture,
    pub admin: Client,
    /// As the relay's role.
    pub relay: Client,
    /// As an application's role.
    pub producer: Client,
    pub here: Incarnation,
    lanes: i32,
}

impl Hand {
    pub async fn new(major: u32, lanes: i32) -> Hand {
        Hand::on(Fixture::new(major).await.unwrap(), lanes).await
    }

    pub async fn on(fixture: Fixture, lanes: i32) -> Hand {
        let relay = fixture.relay().await.unwrap();
        register(&relay, "orders", lanes, false).await;
        let row = relay.query_one(sql("incarnation"), &[]).await.unwrap();
        let here = row.get::<_, &str>(0).parse().unwrap();
        let admin = fixture.admin().await.unwrap();
        let producer = fixture.producer().await.unwrap();
        Hand { fixture, admin, relay, producer, here, lanes }
    }

    /// A key of this lane.
    pub async fn key(&self, lane: i32) -> String {
        let sql = "select 'key ' || n from generate_series(1, 1000) n
                   where hashtextextended(('key ' || n) collate \"C\", 0) & ($1::bigint - 1) = $2::bigint limit 1";
        self.admin.query_one(sql, &[&i64::from(self.lanes), &i64::from(lane)]).await.unwrap().get(0)
    }

    /// Inserts messages of this key in one transaction, with the topics `name 1`, `name 2` and so on.
    pub async fn insert(&self, name: &str, key: &str, count: i32) {
        insert(&self.producer, name, key, count).await;
    }

    /// A connection that is in a transaction, in which it has inserted messages.
    pub async fn open_transaction(&self, name: &str, key: &str, count: i32) -> Client {
        let client = self.fixture.producer().await.unwrap();
        client.batch_execute("begin").await.unwrap();
        insert(&client, name, key, count).await;
        client
    }

    /// A replica that holds no lane yet.
    pub async fn holder(&self) -> Holder {
        self.holder_at(self.fixture.relay_dsn(), SOON).await
    }

    /// Registers another relay, or this one again.
    pub async fn register(&self, relay: &str, latest: bool) {
        assert_eq!(register(&self.relay, relay, self.lanes, latest).await, 1);
    }

    /// As if all replicas of this test had stopped in order.
    pub async fn forget_replicas(&self) {
        self.admin.batch_execute("delete from pgbaton.replica").await.unwrap();
    }

    /// A replica that sends again what its sink has lost.
    pub async fn resending(&self) -> Holder {
        let mut holder = self.holder().await;
        let database = Database::new(self.fixture.relay_dsn(), SOON).unwrap();
        let spec = NativeSpec { resend: true, ..reads(holder.id) };
        holder.source = NativeSource::new(spec, &database, Arc::default(), Arc::default());
        holder
    }

    /// The same, by another way to the database, and waiting only so long for answers.
    pub async fn holder_at(&self, dsn: &str, patience: Duration) -> Holder {
        let id = ReplicaId(Uuid::now_v7());
        let join = "insert into pgbaton.replica (id, name, version, relays, ttl_ms) values ($1, 'by hand', 'test', '{orders}', 5000)";
        self.admin.execute(join, &[&id.0]).await.unwrap();
        let database = Database::new(dsn, patience).unwrap();
        let source = NativeSource::new(reads(id), &database, Arc::default(), Arc::default());
        Holder { id, source, here: self.here.clone(), lanes: self.lanes, held: BTreeMap::new(), got: Vec::new() }
    }

    /// Gives a lane to a replica, as a claim or a hand-over would.
    pub async fn give(&self, lane: i32, owner: ReplicaId) -> Grant {
        let row = self
            .admin
            .query_one(
                "update pgbaton.lane set owner = $1, epoch = epoch + 1 where relay = 'orders' and lane = $2 returning epoch",
                &[&owner.0, &lane],
            )
            .await
            .unwrap();
        Grant { lane: self.lane(lane), epoch: Epoch(row.get(0)) }
    }

    pub fn lane(&self, number: i32) -> Lane {
        Lane { relay: relay(), number, of: self.lanes }
    }

    /// All positions of a lane as (epoch, seq, batch), the oldest first.
    pub async fn positions(&self, lane: i32) -> Vec<(i64, i64, i64)> {
        let sql = "select epoch, seq, batch from pgbaton.position where relay = 'orders' and lane = $1 order by 1, 2";
        let rows = self.admin.query(sql, &[&lane]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    /// One try of the statements of a claim. Gives the new epoch.
    pub async fn claim(&self, replica: ReplicaId, lane: i32, seen_epoch: i64) -> Option<i64> {
        let (relays, lanes) = (vec!["orders"], vec![lane]);
        self.relay.batch_execute("begin isolation level read committed").await.unwrap();
        let locked = self
            .relay
            .query_typed(sql("claim_lock"), &[(&relays, Type::TEXT_ARRAY), (&lanes, Type::INT4_ARRAY)])
            .await
            .unwrap();
        if locked.is_empty() {
            self.relay.batch_execute("rollback").await.unwrap();
            return None;
        }
        let claimed = self
            .relay
            .query_typed(
                sql("claim"),
                &[
                    (&replica.0, Type::UUID),
                    (&self.here.to_string(), Type::TEXT),
                    (&relays, Type::TEXT_ARRAY),
                    (&lanes, Type::INT4_ARRAY),
                    (&vec![seen_epoch], Type::INT8_ARRAY),
                ],
            )
            .await
            .unwrap();
        self.relay.batch_execute("commit").await.unwrap();
        claimed.first().map(|row| row.get("epoch"))
    }

    /// Removes a replica that has shown this beat. False if it was not removed.
    pub async fn expire(&self, replica: ReplicaId, beat: i64) -> bool {
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&replica.0, Type::UUID), (&beat, Type::INT8)];
        !self.relay.query_typed(sql("expire"), &parameters).await.unwrap().is_empty()
    }
}

/// Inserts messages of this key, with the topics `name 1`, `name 2` and so on.
pub async fn insert(client: &Client, name: &str, key: &str, count: i32) {
    let sql = "insert into pgbaton.outbox (topic, key) select $1 || ' ' || n, $2 from generate_series(1, $3) n";
    client.execute(sql, &[&name, &key, &count]).await.unwrap();
}

/// The topics that [`insert`] gives.
pub fn topics(name: &str, count: i32) -> Vec<String> {
    (1..=count).map(|n| format!("{name} {n}")).collect()
}

/// One lane of a [`Holder`].
struct Held {
    grant: Grant,
    stint: Stint,
    batch: i64,
    next: Option<Bookmark>,
    room: bool,
}

/// A replica that reads and acknowledges when it is told to.
pub struct Holder {
    pub id: ReplicaId,
    pub source: NativeSource,
    here: Incarnation,
    lanes: i32,
    held: BTreeMap<i32, Held>,
    /// The topics of everything that was read, in order.
    pub got: Vec<String>,
}

impl Holder {
    /// Takes a lane and opens it.
    pub async fn open(&mut self, hand: &Hand, lane: i32) -> Opened {
        self.open_with(hand, lane, None).await.unwrap()
    }

    /// Takes a lane whose sink holds this.
    pub async fn open_with(
        &mut self,
        hand: &Hand,
        lane: i32,
        holds: Option<&Opaque>,
    ) -> Result<Opened, pgbaton::Error> {
        assert_eq!(hand.lanes, self.lanes);
        let grant = hand.give(lane, self.id).await;
        let (stint, opened) = self.source.open(&grant, &self.here, holds).await?;
        let batch = match opened {
            Opened::Ours { batch } | Opened::Settled { batch } | Opened::Announced { batch } => batch,
            Opened::SinkLost { batch, .. } => batch,
        };
        self.held.insert(lane, Held { grant, stint, batch, next: None, room: true });
        Ok(opened)
    }

    /// Lets a lane take messages or not.
    pub fn room(&mut self, lane: i32, room: bool) {
        self.held.get_mut(&lane).unwrap().room = room;
    }

    pub fn grant(&self, lane: i32) -> Grant {
        self.held[&lane].grant.clone()
    }

    /// How far a lane is, as it would be acknowledged.
    pub fn dealt(&self, lane: i32) -> Dealt {
        let held = &self.held[&lane];
        let next = held.next.clone().expect("nothing was read");
        Dealt { grant: held.grant.clone(), stint: held.stint, batch: held.batch, next, parked: Parking::default() }
    }

    /// The batches of one call of `read`, for a test that acknowledges them itself.
    pub async fn batches(&mut self) -> Vec<Batch> {
        self.read_once().await.unwrap().batches
    }

    async fn read_once(&mut self) -> Result<Read, pgbaton::Error> {
        // Idle for long: nobody waits for a neighbour's room.
        let long_ago = Some(pgbaton::lease::BootInstant::from_boot(Duration::ZERO));
        let rooms: Vec<Room> = self
            .held
            .values()
            .map(|held| Room { grant: held.grant.clone(), room: held.room, idle_since: long_ago, retries: true })
            .collect();
        let budget = Budget { bytes: 8 << 20, one_more: true, batch_messages: 1_000, batch_bytes: 1 << 20 };
        self.source.read(&rooms, &budget).await
    }

    /// One call of `read`.
    pub async fn read(&mut self) -> Result<Next, pgbaton::Error> {
        let read = self.read_once().await?;
        for batch in read.batches {
            let held = self.held.get_mut(&batch.grant.lane.number).unwrap();
            self.got.extend(batch.messages.iter().map(|message| message.topic.to_owned()));
            held.batch += i64::from(!batch.messages.is_empty());
            held.next = Some(batch.bookmark()?);
        }
        Ok(read.next)
    }

    /// Reads until something has come.
    pub async fn read_some(&mut self) {
        let before = self.got.len();
        until("something to read", async || {
            self.read().await.unwrap();
            self.got.len() > before
        })
        .await;
    }

    /// Reads until all that is committed has been read. A pass that ends at a target says so as well, whatever was
    /// committed since that target was taken: so twice.
    pub async fn drain(&mut self) {
        let mut later = 0;
        for _ in 0..10_000 {
            later = if self.read().await.unwrap() == Next::Later { later + 1 } else { 0 };
            if later == 2 {
                return;
            }
        }
        panic!("reading does not come to an end; {} messages so far", self.got.len());
    }

    /// Reads all that is committed and acknowledges it.
    pub async fn deliver(&mut self) {
        self.drain().await;
        self.acknowledge().await.unwrap();
    }

    /// Acknowledges all lanes of which something was read.
    pub async fn acknowledge(&mut self) -> Result<Vec<Acknowledged>, pgbaton::Error> {
        let lanes: Vec<i32> = self.held.iter().filter(|(_, held)| held.next.is_some()).map(|(lane, _)| *lane).collect();
        let dealt: Vec<Dealt> = lanes.iter().map(|lane| self.dealt(*lane)).collect();
        self.source.acknowledge(&dealt).await
    }

    /// What was read so far, in order of topic.
    pub fn sorted(&self) -> Vec<String> {
        let mut got = self.got.clone();
        got.sort();
        got
    }
}

/// Sorts.
pub fn sorted(mut topics: Vec<String>) -> Vec<String> {
    topics.sort();
    topics
}

/// Waits until none of these is left, however long that takes on this machine, as long as there are fewer and fewer.
pub async fn until_none(what: &str, mut left: impl AsyncFnMut() -> usize) {
    let mut least = usize::MAX;
    while least > 0 {
        let before = least;
        until(&format!("{what}: less than {before} left"), async || {
            least = least.min(left().await);
            least < before
        })
        .await;
    }
}

/// Looks again and again until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    /// Looking may cost something itself: seldom, once it takes long.
    const SELDOM: Duration = Duration::from_millis(100);
    let (deadline, mut pause) = (tokio::time::Instant::now() + SOON, proof::process::POLL);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not within {SOON:?}: {what}");
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(SELDOM);
    }
}
