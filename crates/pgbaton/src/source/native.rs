//! The native outbox: pgbaton's own append-only log.
//!
//! This file keeps what is known in memory and takes up lanes; `native/read.rs` carries out what the planner decides,
//! `native/rows.rs` turns rows into messages, `native/sight.rs` looks for targets, `native/acknowledge.rs` writes
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
use crate::position::{Floors, Incarnation, Position, Snapshot, Target, Xid};
use crate::source::{Acknowledged, Bookmark, Budget, Dealt, Memory, Opaque, Opened, Read, Room, Source, Stint};
use crate::sql;

mod acknowledge;
mod check;
mod read;
mod rows;
mod sight;

/// What to say when positions and log do not belong together.
pub(crate) const REBASE: &str = "The log was restored, or set back by hand. `pgbaton rebase` takes all positions back \
     to what is certain without losing a message; messages delivered since then repeat";

/// How long to wait for the answer to a read.
const READING_PATIENCE: Duration = Duration::from_secs(30);

/// The native outbox as one relay of one replica reads it.
pub struct NativeSource {
    relay: RelayName,
    replica: ReplicaId,
    /// Whether to send again what a sink has lost.
    resend: bool,
    memory: Arc<Memory>,
    reader: tokio::sync::Mutex<Slot>,
    writer: tokio::sync::Mutex<Slot>,
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
    /// Everything up to here has been read: ahead of what is acknowledged.
    read_to: Position,
    /// Was read for in the present pass.
    served: bool,
}

impl NativeSource {
    /// The outbox in this database, for one relay of one replica. Bytes of batches count on `memory` for as long as they
    /// live. With `resend`, a lane whose sink has lost batches goes back to what it still holds.
    #[must_use]
    pub fn new(relay: RelayName, replica: ReplicaId, database: &Database, memory: Arc<Memory>, resend: bool) -> Self {
        // A read holds no lock that others need, and a message of 100 MB takes its time.
        let reading = database.clone().with_patience_for_answers(READING_PATIENCE.max(database.patience()));
        Self {
            relay,
            replica,
            resend,
            memory,
            reader: tokio::sync::Mutex::new(Slot::new(reading)),
            writer: tokio::sync::Mutex::new(Slot::new(database.clone())),
            seq: AtomicI64::new(0),
            stints: AtomicU64::new(0),
            log: Mutex::new(Log::default()),
        }
    }

    fn log<T>(&self, f: impl FnOnce(&mut Log) -> T) -> T {
        f(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compares an answer's incarnation with the one that everything in memory belongs to.
    fn same_incarnation(&self, found: &Incarnation) -> Result<(), Error> {
        self.log(|log| match &log.incarnation {
            Some(known) if known != found => Err(self.other_incarnation(known, found)),
            _ => Ok(()),
        })
    }

    fn other_incarnation(&self, known: &Incarnation, found: &Incarnation) -> Error {
        Error::new(
            Kind::OtherIncarnation(found.clone()),
            format!("relay {}: the database was {known} and is {found} now", self.relay),
        )
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
        let [newest, ceiling, _] = rows;
        let Some(row) = newest.first() else {
            return Err(Error::refused(
                format!("lane {} has no position", grant.lane),
                "It was deleted by hand. `pgbaton rebase` registers the relay's lanes again",
            ));
        };
        let newest = Newest::read(row, number(&ceiling)?)?;
        newest.check(grant, &newest.position)?;
        Ok(newest)
    }

    async fn look_for_newest(
        &self,
        connection: &Connection,
        grant: &Grant,
        here: &Incarnation,
    ) -> Result<[Vec<Row>; 3], Error> {
        let relay = grant.lane.relay.as_str();
        let parameters: [Parameter<'_>; 2] = [(&relay, Type::TEXT), (&grant.lane.number, Type::INT4)];
        let rows = connection
            .pipeline(Access::Look, [(sql::NEWEST, &parameters), (sql::CEILING, &[]), (sql::INCARNATION, &[])])
            .await?;
        self.still(here, &rows[2])?;
        Ok(rows)
    }

    /// Compares what the sink holds with the database's position, and says where the lane goes on.
    fn settle(
        &self,
        grant: &Grant,
        ours: Newest,
        here: &Incarnation,
        holds: Option<&Opaque>,
    ) -> Result<(Opened, Position), Error> {
        let batch = ours.batch;
        let Some(holds) = holds else {
            return Ok((Opened::Ours { batch }, ours.position));
        };
        let Some((held_batch, bookmark)) = holds.read() else {
            return Err(Error::refused(
                format!("lane {}: the sink's position was written by a newer version of pgbaton", grant.lane),
                "Run that version, or a newer one",
            ));
        };
        let there = &bookmark.incarnation;
        if there == here {
            let theirs = place(&bookmark)?;
            return match held_batch.cmp(&batch) {
                std::cmp::Ordering::Equal => Ok((Opened::Ours { batch }, ours.position)),
                std::cmp::Ordering::Greater => {
                    ours.check(grant, &theirs)?;
                    Ok((Opened::Settled { batch: held_batch }, theirs))
                }
                std::cmp::Ordering::Less if self.resend => {
                    ours.check(grant, &theirs)?;
                    Ok((Opened::SinkLost { resend: true, batch, holds: held_batch }, theirs))
                }
                std::cmp::Ordering::Less => {
                    Ok((Opened::SinkLost { resend: false, batch, holds: held_batch }, ours.position))
                }
            };
        }
        if there.system == here.system && there.timeline > here.timeline {
            return Err(Error::refused(
                format!(
                    "lane {}: the sink has been written from timeline {}, this server is on {}: it is the old primary",
                    grant.lane, there.timeline, here.timeline
                ),
                "Shut this server down or make it a standby, and point the DSN at the new primary",
            ));
        }
        Ok((Opened::Announced { batch: batch.max(held_batch) }, ours.position))
    }

    /// Writes the sink's position as this lane's, before anything else is sent: the next owner must not start further on.
    async fn record(&self, grant: &Grant, batch: i64, here: &Incarnation, position: &Position) -> Result<(), Error> {
        let next = bookmark(here, position)?;
        match self.write(&[Dealt { grant: grant.clone(), batch, next }]).await?.as_slice() {
            [Acknowledged::Written(_)] => Ok(()),
            _ => Err(Error::new(Kind::Database, format!("{grant} was lost while it was opened"))),
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
}

impl Newest {
    fn read(row: &Row, number: i64) -> Result<Self, Error> {
        let target = match row.try_get::<_, Option<&str>>("target")? {
            Some(text) => Some(Target { snapshot: snapshot(text)?, ceiling: row.try_get("ceiling")? }),
            None => None,
        };
        let position =
            Position::new(snapshot(row.try_get("consumed")?)?, row.try_get("floor")?, target, row.try_get("last")?);
        let x = row.try_get::<_, Option<&str>>("x")?.map(xid).transpose()?;
        Ok(Self {
            batch: row.try_get("batch")?,
            position,
            number,
            next: xid(row.try_get("next")?)?,
            pair: row.try_get::<_, Option<i64>>("l")?.zip(x),
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
        let pair = newest.pair;
        let (opened, read_to) = self.settle(grant, newest, here, sink_holds)?;
        match opened {
            Opened::Settled { batch } => self.record(grant, batch, here, &read_to).await?,
            Opened::SinkLost { resend: true, holds, .. } => self.record(grant, holds, here, &read_to).await?,
            _ => {}
        }
        let stint = Stint(self.stints.fetch_add(1, Ordering::Relaxed));
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
            log.places.insert(grant.lane.number, Place { grant: grant.clone(), stint, read_to, served: false });
            Ok(())
        })?;
        Ok((stint, opened))
    }

    async fn read(&self, lanes: &[Room], budget: &Budget) -> Result<Read, Error> {
        self.read_pass(lanes, budget).await
    }

    async fn acknowledge(&self, done: &[Dealt]) -> Result<Vec<Acknowledged>, Error> {
        self.write(done).await
    }

    fn close(&self, grant: &Grant) {
        self.log(|log| {
            if log.places.get(&grant.lane.number).is_some_and(|place| place.grant == *grant) {
                log.places.remove(&grant.lane.number);
            }
            if log.places.is_empty() {
                // Nothing in memory outlives the lanes: the next one may be opened in another incarnation.
                *log = Log { window: std::mem::take(&mut log.window), ..Log::default() };
            }
        });
    }
}

fn xid(text: &str) -> Result<Xid, Error> {
    text.parse().map(Xid).map_err(|error| Error::new(Kind::Internal, "a transaction id").because(error))
}

fn snapshot(text: &str) -> Result<Snapshot, Error> {
    text.parse().map_err(|error| Error::new(Kind::Internal, "a snapshot").because(error))
}

/// The last number given out, from `ceiling`.
pub(crate) fn number(rows: &[Row]) -> Result<i64, Error> {
    let row = rows.first().ok_or_else(|| Error::new(Kind::Internal, "the sequence has no row"))?;
    Ok(row.try_get("ceiling")?)
}

fn bookmark(incarnation: &Incarnation, place: &Position) -> Result<Bookmark, Error> {
    let place = serde_json::value::to_raw_value(place)
        .map_err(|error| Error::new(Kind::Internal, "a position cannot be written down").because(error))?;
    Ok(Bookmark { incarnation: incarnation.clone(), place })
}

fn place(bookmark: &Bookmark) -> Result<Position, Error> {
    serde_json::from_str(bookmark.place.get())
        .map_err(|error| Error::new(Kind::Internal, "a position cannot be read").because(error))
}
