//! The native outbox: pgbaton's own append-only log.
//!
//! This file keeps what is known in memory and takes up lanes; `native/read.rs` carries out what the planner decides,
//! `native/rows.rs` turns rows into messages, `native/place.rs` says how far a lane is after them, `native/sight.rs` looks for targets, `native/acknowledge.rs` writes
//! positions. Everything in memory belongs to one incarnation of the database and is dropped with the last lane.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connection::{Access, Connection, Database, Parameter, Slot};
use crate::error::{Error, Kind};
use crate::lane::{Grant, RelayName, ReplicaId};
use crate::metrics::Metrics;
use crate::position::{Floors, Incarnation, Position, Snapshot, Target, Xid};
use crate::source::flush;
use crate::source::parked::Parked;
use crate::source::patience::Patience;
use crate::source::settle::{Ours, Registration};
use crate::source::{
    Acknowledged, Batch, Behind, Budget, Dealt, Memory, Opaque, Opened, Parking, Read, Room, Source, Stint,
};
use crate::sql;

mod acknowledge;
mod check;
mod place;
mod read;
mod retry;
mod rows;
mod sight;

pub(crate) use check::{check_server, check_shape};
pub(in crate::source) use place::LogRows;
use place::{bookmark, stored};

/// What to say when positions and log do not belong together.
pub(crate) const REBASE: &str = "The outbox comes from a dump or a copy, or was set back by hand. `pgbaton rebase` takes all positions back \
     to what is certain without losing a message; messages delivered since then repeat";

/// What to say when the server is another one than the schema knows, with the same tables.
const CONFIRM: &str = "If `pg_upgrade` made this server of the old one, `pgbaton confirm` takes that down. If it was \
     restored in any other way, `pgbaton rebase` takes all positions back to what is certain";

/// What one relay of one replica reads of the native outbox.
#[derive(Debug, Clone)]
pub struct NativeSpec {
    /// The relay.
    pub relay: RelayName,
    /// The replica.
    pub replica: ReplicaId,
    /// Patterns of topics, in which `*` stands for any text; none means all topics.
    pub topics: Vec<String>,
    /// Whether a lane whose sink has lost batches goes back to what it still holds.
    pub resend: bool,
    /// Dead messages are copied into the outbox under this topic.
    pub dead_topic: Option<String>,
}

/// The native outbox as one relay of one replica reads it.
pub struct NativeSource {
    spec: NativeSpec,
    /// The topics as LIKE takes them.
    topics: Vec<String>,
    memory: Arc<Memory>,
    metrics: Arc<Metrics>,
    reader: tokio::sync::Mutex<Slot>,
    /// For reads, which hold no lock that others need.
    patience: Patience,
    writer: tokio::sync::Mutex<Slot>,
    parked: Parked,
    /// Counts acknowledgements, so that of two under one epoch the later one has the greater number.
    seq: AtomicI64,
    stints: AtomicU64,
    log: Mutex<Log>,
}

/// What is known of the log, all of it within one incarnation.
#[derive(Default)]
struct Log {
    incarnation: Option<Incarnation>,
    places: BTreeMap<i32, Place>,
    floors: Floors,
    /// The last number read from the sequence.
    last_number: Option<i64>,
    /// The last look for a target found one.
    news: bool,
    /// The newest target that was taken.
    sighted: Option<sight::Sighted>,
    /// A lane got on in this pass.
    got_on: bool,
    /// How many rows the next step examines: follows the size of messages.
    window: read::WindowSize,
}

/// Where one lane stands.
struct Place {
    grant: Grant,
    stint: Stint,
    registration: Registration,
    /// Everything up to here has been read: ahead of what is acknowledged.
    read_to: Position,
    /// Was read for in the present pass.
    served: bool,
}

impl NativeSource {
    /// The outbox in this database. Bytes of batches count on `memory` for as long as they live; `metrics` are told what the
    /// server's clock says.
    #[must_use]
    pub fn new(spec: NativeSpec, database: &Database, memory: Arc<Memory>, metrics: Arc<Metrics>) -> Self {
        let topics = spec.topics.iter().map(|topic| like(topic)).collect();
        Self {
            topics,
            memory,
            metrics,
            reader: tokio::sync::Mutex::new(Slot::new(database.clone())),
            patience: Patience::new(database.patience()),
            writer: tokio::sync::Mutex::new(Slot::new(database.clone())),
            parked: Parked::new(spec.relay.clone(), spec.replica, database),
            seq: AtomicI64::new(0),
            stints: AtomicU64::new(0),
            log: Mutex::new(Log::default()),
            spec,
        }
    }

    fn log<T>(&self, f: impl FnOnce(&mut Log) -> T) -> T {
        f(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The incarnation that an open lane belongs to.
    fn here(&self, grant: &Grant) -> Result<Incarnation, Error> {
        let here = self.log(|log| log.incarnation.clone());
        here.ok_or_else(|| Error::new(Kind::Database, format!("{grant}: it was closed meanwhile")))
    }

    /// Compares an answer's incarnation with the one that everything in memory belongs to.
    fn same_incarnation(&self, found: &Incarnation) -> Result<(), Error> {
        self.log(|log| match &log.incarnation {
            Some(known) => flush::same(known, found, &self.spec.relay),
            None => Ok(()),
        })
    }

    /// The lane's newest position by the database, in the incarnation it was granted in.
    async fn newest(&self, grant: &Grant, here: &Incarnation) -> Result<Newest, Error> {
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let mut rows = self.look_for_newest(&connection, grant, here).await?;
        if rows[0].is_empty() {
            // A look that began before the leaves took turns and read after it finds neither: the next one does.
            rows = self.look_for_newest(&connection, grant, here).await?;
        }
        slot.put(connection);
        let [newest, ceiling] = rows;
        let Some(row) = newest.first() else {
            return Err(Error::refused(
                format!("lane {} has no position", grant.lane),
                "It was deleted by hand. `pgbaton rebase` registers the relay's lanes again",
            ));
        };
        let found = Newest::read(row, number(&ceiling)?)?;
        found.check(grant, &found.position)?;
        if let Some(before) = newest.get(1)
            && !row.try_get::<_, bool>("set_back")?
            && !found.position.follows(&position(before)?)
        {
            return Err(Error::refused(
                format!("lane {}: its newest position stands before the one that was written earlier", grant.lane),
                "It was changed by hand. Delete that row to go on from the earlier one, or run `pgbaton rebase`",
            ));
        }
        Ok(found)
    }

    async fn look_for_newest(
        &self,
        connection: &Connection,
        grant: &Grant,
        here: &Incarnation,
    ) -> Result<[Vec<Row>; 2], Error> {
        let relay = grant.lane.relay.as_str();
        let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&grant.lane.number, Type::INT4)];
        let lock: [Parameter<'_>; 2] = [(&vec![relay], Type::TEXT_ARRAY), (&vec![grant.lane.number], Type::INT4_ARRAY)];
        let statements = [(sql::CLAIM_LOCK, &lock[..]), (sql::NEWEST, &parameters), (sql::CEILING, &[])];
        let [locked, newest, ceiling] = connection.pipeline(Access::Look, statements).await?;
        self.still(here, &ceiling)?;
        // An acknowledgement of ours whose answer was lost may still wait for its commit, and say more than what is seen.
        if locked.is_empty() {
            let text = format!("{grant}: an acknowledgement of this lane is still under way");
            return Err(Error::new(Kind::Database, text));
        }
        Ok([newest, ceiling])
    }

    /// Compares what the sink holds with the database's position, and says where the lane goes on.
    fn settle(
        &self,
        grant: &Grant,
        newest: &Newest,
        here: &Incarnation,
        holds: Option<&Opaque>,
    ) -> Result<(Opened, Position), Error> {
        let Newest { batch, registration, former, forsaken, .. } = newest;
        let ours = Ours { grant, here, batch: *batch, registration, former, forsaken: *forsaken };
        let (opened, theirs) = ours.settle(holds, self.spec.resend)?;
        let Some(theirs) = theirs else { return Ok((opened, newest.position.clone())) };
        let theirs = stored(&theirs)?.position;
        newest.check(grant, &theirs)?;
        Ok((opened, theirs))
    }

    /// Writes the sink's position as this lane's, before anything else is sent: the next owner must not start further on.
    async fn record(&self, dealt: Dealt, set_back: bool) -> Result<(), Error> {
        let mut written = if set_back {
            self.write_set_back(&dealt).await?
        } else {
            self.write(std::slice::from_ref(&dealt)).await?
        };
        match written.pop() {
            Some(Acknowledged::Written(_)) => Ok(()),
            Some(Acknowledged::Refused(_, error)) => Err(error),
            Some(Acknowledged::Waits(_)) => {
                let text = format!("{}: rows of its last batch are locked by somebody else", dealt.grant);
                Err(Error::new(Kind::Database, text))
            }
            _ => Err(Error::new(Kind::Database, format!("{} was lost while it was opened", dealt.grant))),
        }
    }
}

/// A lane's newest position, with what positions are checked against.
struct Newest {
    /// The number of the last batch that was handed to the sink.
    batch: i64,
    position: Position,
    /// The last number the sequence has given out.
    number: i64,
    /// The next transaction id of the cluster.
    next: Xid,
    /// The pair that was stored with it.
    pair: Option<(i64, Xid)>,
    /// Something was emptied that it has not passed.
    lacks: bool,
    registration: Registration,
    /// Incarnations from before `pg_upgrade` that count as this one.
    former: Vec<Incarnation>,
    /// Timelines up to this one were given up.
    forsaken: i32,
}

impl Newest {
    fn read(row: &Row, number: i64) -> Result<Self, Error> {
        let x = row.try_get::<_, Option<&str>>("x")?.map(xid).transpose()?;
        let former: Vec<&str> = row.try_get("former")?;
        Ok(Self {
            batch: row.try_get("batch")?,
            position: position(row)?,
            number,
            next: xid(row.try_get("next")?)?,
            pair: row.try_get::<_, Option<i64>>("l")?.zip(x),
            lacks: row.try_get("lacks")?,
            registration: Registration(row.try_get("registration")?),
            former: former.into_iter().filter_map(|former| former.parse().ok()).collect(),
            forsaken: row.try_get("forsaken")?,
        })
    }

    /// Refuses a position that this database cannot have had.
    fn check(&self, grant: &Grant, position: &Position) -> Result<(), Error> {
        let id = position.floor().max(position.last());
        if id > self.number {
            return Err(Error::refused(
                format!("lane {}: its position names id {id}, the outbox's last number is {}", grant.lane, self.number),
                REBASE,
            ));
        }
        if !position.is_within(self.next) {
            return Err(Error::refused(
                format!("lane {}: its position names transactions that this cluster has not had yet", grant.lane),
                REBASE,
            ));
        }
        if self.lacks {
            return Err(Error::refused(
                format!(
                    "lane {}: its position stands before messages that it had passed, and that were emptied",
                    grant.lane
                ),
                "It was set back by hand. `pgbaton rebase` goes on without them: they were delivered before",
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl Source for NativeSource {
    async fn check(&self) -> Result<(), Error> {
        self.check_outbox().await
    }

    async fn open(
        &self,
        grant: &Grant,
        here: &Incarnation,
        sink_holds: Option<&Opaque>,
    ) -> Result<(Stint, Opened), Error> {
        self.same_incarnation(here)?;
        let newest = self.newest(grant, here).await?;
        let (opened, read_to) = self.settle(grant, &newest, here, sink_holds)?;
        let Newest { pair, registration, .. } = newest;
        let next = bookmark(here, &registration, &read_to)?;
        let of_sink = sink_holds.and_then(Opaque::read).map(|(_, bookmark)| bookmark);
        let stint = Stint(self.stints.fetch_add(1, Ordering::Relaxed));
        match opened {
            Opened::Settled { batch } => {
                // What it says of messages that are set aside was to be written with it.
                let parked = of_sink
                    .map(|theirs| stored(&theirs))
                    .transpose()?
                    .map(|stored| stored.parking())
                    .unwrap_or_default();
                self.record(Dealt { grant: grant.clone(), stint, batch, next, parked }, false).await?;
            }
            // No number is used twice: a sink that loses its tail again must not seem to stand here.
            Opened::SinkLost { resend: true, batch, .. } => {
                let parked = Parking::default();
                self.record(Dealt { grant: grant.clone(), stint, batch, next, parked }, true).await?;
            }
            _ => {}
        }
        self.log(|log| {
            if log.incarnation.as_ref().is_some_and(|known| known != here) {
                return Err(Error::new(
                    Kind::Database,
                    format!("{grant} was opened while others were in another incarnation"),
                ));
            }
            log.incarnation = Some(here.clone());
            if let Some((l, x)) = pair {
                log.floors.add(l, x);
            }
            let place = Place { grant: grant.clone(), stint, registration, read_to, served: false };
            log.places.insert(grant.lane.number, place);
            Ok(())
        })?;
        self.parked.opened(grant.lane.number);
        Ok((stint, opened))
    }

    async fn read(&self, lanes: &[Room], budget: &Budget) -> Result<Read, Error> {
        self.read_pass(lanes, budget).await
    }

    async fn held(&self, batch: &Batch) -> Result<Vec<usize>, Error> {
        self.parked.waiting(&self.here(&batch.grant)?, batch).await
    }

    async fn trying(&self, suspect: &Batch, begins: bool) -> Result<Option<u32>, Error> {
        self.parked.trying(&self.here(&suspect.grant)?, suspect, begins).await
    }

    async fn acknowledge(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        self.write(done).await
    }

    fn covers_earlier(&self) -> bool {
        true
    }

    fn one_batch_at_a_time(&self, _: bool) -> bool {
        false
    }

    fn look_again(&self) {
        self.parked.forget();
    }

    async fn behind(&self) -> Result<Behind, Error> {
        let mut slot = self.writer.lock().await;
        let connection = slot.take().await?;
        let relay = self.spec.relay.as_str();
        let [rows] = connection.pipeline(Access::Read, [(sql::BEHIND, &[(&relay, Type::TEXT)])]).await?;
        slot.put(connection);
        let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "the server did not say how far it is"))?;
        let (ids, oldest): (i64, Option<f64>) = (row.try_get("ids")?, row.try_get("oldest")?);
        Ok(Behind {
            messages: u64::try_from(ids).unwrap_or_default(),
            oldest: Some(Duration::try_from_secs_f64(oldest.unwrap_or_default()).unwrap_or_default()),
        })
    }

    fn close(&self, grant: &Grant) {
        self.log(|log| {
            if log.places.get(&grant.lane.number).is_some_and(|place| place.grant == *grant) {
                log.places.remove(&grant.lane.number);
                self.parked.closed(grant.lane.number);
            }
            if log.places.is_empty() {
                // Nothing in memory outlives the lanes: the next one may be opened in another incarnation.
                *log = Log { window: std::mem::take(&mut log.window), ..Log::default() };
            }
        });
    }
}

pub(crate) fn xid(text: &str) -> Result<Xid, Error> {
    text.parse().map(Xid).map_err(|error| {
        Error::new(Kind::Internal, "the server gave a transaction id that cannot be read").because(error)
    })
}

fn snapshot(text: &str) -> Result<Snapshot, Error> {
    text.parse()
        .map_err(|error| Error::new(Kind::Internal, "the server gave a snapshot that cannot be read").because(error))
}

/// The last number given out, from `ceiling`.
pub(crate) fn number(rows: &[Row]) -> Result<i64, Error> {
    let row = rows
        .first()
        .ok_or_else(|| Error::new(Kind::Internal, "the server did not say the last number of pgbaton.outbox"))?;
    Ok(row.try_get("ceiling")?)
}

/// A position as the table has it.
pub(crate) fn position(row: &Row) -> Result<Position, Error> {
    let target = match row.try_get::<_, Option<&str>>("target")? {
        Some(text) => Some(Target { snapshot: snapshot(text)?, ceiling: row.try_get("ceiling")? }),
        None => None,
    };
    Ok(Position::new(snapshot(row.try_get("consumed")?)?, row.try_get("floor")?, target, row.try_get("last")?))
}

/// A pattern with `*` as LIKE takes it.
pub(crate) fn like(topic: &str) -> String {
    topic.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_").replace('*', "%")
}

/// Whether a topic is like a pattern, as the server would say of [`like`].
pub(crate) fn is_like(topic: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let (first, last) = (parts.next().unwrap_or_default(), parts.next_back());
    let Some(mut rest) = topic.strip_prefix(first) else { return false };
    let Some(last) = last else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_star_stands_for_any_text() {
        let like = ["a", "a*", "*a", "*", "a.*.c", "a*b*c", "a*"].map(|pattern| super::is_like("a", pattern));
        assert_eq!(like, [true, true, true, true, false, false, true]);
        for (topic, pattern, is) in [
            ("orders.paid", "orders.*", true),
            ("orders.paid", "*.paid", true),
            ("orders.paid", "orders*paid", true),
            ("orderspaid", "orders*spaid", false),
            ("a.b.b.c", "a*b*b*c", true),
            ("a.b.c", "a*b*b*c", false),
            ("aXc", "a.c", false),
            ("", "*", true),
            ("", "", true),
            ("a.bc", "a.b", false),
            ("a.", "a.*", true),
            ("b.a.", "a.*", false),
            ("a.bc", "*.b", false),
            ("a", "a*a", false),
            ("aa", "a*a", true),
            ("a1b2c3d", "a*b*c*d", true),
            ("a1c2b3d", "a*b*c*d", false),
            ("ad", "a**d", true),
            ("üxß", "ü*ß", true),
        ] {
            assert_eq!(super::is_like(topic, pattern), is, "{topic} {pattern}");
        }
    }

    #[test]
    fn only_a_star_stands_for_more_than_itself() {
        assert_eq!(super::like(r"a_b.*.50%\"), r"a\_b.%.50\%\\");
    }
}
