//! The native outbox: pgbaton's own append-only log.
//!
//! This file keeps what is known in memory and takes up lanes; `native/read.rs` carries out what the planner decides,
//! `native/acknowledge.rs` writes positions. Everything in memory belongs to one incarnation of the database and is
//! dropped with the last lane.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::connection::{Access, Database, Slot, incarnation};
use crate::error::{Error, Kind};
use crate::lane::{Grant, RelayName, ReplicaId};
use crate::position::{Floors, Incarnation, Position, Snapshot, Target, Xid};
use crate::source::{Acknowledged, Bookmark, Budget, Dealt, Opaque, Opened, Read, Room, Source};
use crate::sql;

mod acknowledge;
mod check;
mod read;

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
    held: Arc<AtomicUsize>,
    reader: tokio::sync::Mutex<Slot>,
    writer: tokio::sync::Mutex<Slot>,
    /// Counts acknowledgements, so that of two under one epoch the later one has the greater number.
    seq: AtomicI64,
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
    /// How many rows the next step examines: follows the size of messages.
    window: read::WindowSize,
}

/// Where one lane stands.
struct Place {
    grant: Grant,
    /// Everything up to here has been read: ahead of what is acknowledged.
    read_to: Position,
    /// Was read for in the present pass.
    served: bool,
}

impl NativeSource {
    /// The outbox in this database, for one relay of one replica. Bytes of batches count on `held` for as long as they
    /// live. With `resend`, a lane whose sink has lost batches goes back to what it still holds.
    #[must_use]
    pub fn new(
        relay: RelayName,
        replica: ReplicaId,
        database: &Database,
        held: Arc<AtomicUsize>,
        resend: bool,
    ) -> Self {
        // A read holds no lock that others need, and a message of 100 MB takes its time.
        let reading = database.clone().with_patience(READING_PATIENCE.max(database.patience()));
        Self {
            relay,
            replica,
            resend,
            held,
            reader: tokio::sync::Mutex::new(Slot::new(reading)),
            writer: tokio::sync::Mutex::new(Slot::new(database.clone())),
            seq: AtomicI64::new(0),
            log: Mutex::new(Log::default()),
        }
    }

    fn log<T>(&self, f: impl FnOnce(&mut Log) -> T) -> T {
        f(&mut self.log.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compares an answer's incarnation with the one that everything in memory belongs to.
    fn same_incarnation(&self, found: &Incarnation) -> Result<(), Error> {
        self.log(|log| match &log.incarnation {
            Some(known) if known != found => Err(Error::new(
                Kind::OtherIncarnation(found.clone()),
                format!("relay {}: the database was {known} and is {found} now", self.relay),
            )),
            _ => Ok(()),
        })
    }

    /// The newest position by the database, and the number of the last batch that was handed to the sink.
    async fn newest(&self, grant: &Grant) -> Result<(i64, Position, Incarnation), Error> {
        let [mut newest, mut ceiling] = self.look_for_newest(grant).await?;
        if newest.is_empty() {
            // A look that began before the leaves took turns and read after it finds neither: the next one does.
            [newest, ceiling] = self.look_for_newest(grant).await?;
        }
        let Some(row) = newest.first() else {
            return Err(Error::refused(
                format!("lane {} has no position", grant.lane),
                "It was deleted by hand. `pgbaton rebase` registers the relay's lanes again",
            ));
        };
        let number = number(&ceiling)?;
        let position = self.checked_position(grant, row, number)?;
        self.log(|log| log.last_number = log.last_number.max(Some(number)));
        Ok((row.try_get("batch")?, position, incarnation(&newest)?))
    }

    async fn look_for_newest(&self, grant: &Grant) -> Result<[Vec<Row>; 2], Error> {
        let relay = grant.lane.relay.as_str();
        let mut slot = self.writer.lock().await;
        let result = slot
            .get()
            .await?
            .pipeline(
                Access::Look,
                [(sql::NEWEST, &[(&relay, Type::TEXT), (&grant.lane.number, Type::INT4)]), (sql::CEILING, &[])],
            )
            .await;
        slot.settle(result)
    }

    /// A stored position that this database can have written.
    fn checked_position(&self, grant: &Grant, row: &Row, number: i64) -> Result<Position, Error> {
        let target = match row.try_get::<_, Option<&str>>("target")? {
            Some(text) => Some(Target { snapshot: snapshot(text)?, ceiling: row.try_get("ceiling")? }),
            None => None,
        };
        let (floor, last): (i64, i64) = (row.try_get("floor")?, row.try_get("last")?);
        let position = Position::new(snapshot(row.try_get("consumed")?)?, floor, target, last);
        if floor > number || last > number {
            return Err(Error::refused(
                format!(
                    "lane {}: its position names id {}, the outbox's last number is {number}",
                    grant.lane,
                    floor.max(last)
                ),
                REBASE,
            ));
        }
        if !row.try_get::<_, bool>("within_cluster")? {
            return Err(Error::refused(
                format!("lane {}: its position names transactions that this cluster has not had yet", grant.lane),
                REBASE,
            ));
        }
        if let (Some(l), Some(x)) = (row.try_get::<_, Option<i64>>("l")?, row.try_get::<_, Option<&str>>("x")?) {
            let x = x.parse().map_err(|error| Error::new(Kind::Internal, "a transaction id").because(error))?;
            self.log(|log| log.floors.add(l, Xid(x)));
        }
        Ok(position)
    }

    /// Compares what the sink holds with the database's position, and says where the lane goes on.
    fn settle(
        &self,
        grant: &Grant,
        ours: (i64, Position),
        here: &Incarnation,
        holds: Option<&Opaque>,
    ) -> Result<(Opened, Position), Error> {
        let (batch, position) = ours;
        let Some(holds) = holds else {
            return Ok((Opened::Ours { batch }, position));
        };
        let Some((held_batch, bookmark)) = holds.read() else {
            return Err(Error::refused(
                format!("lane {}: the sink's position was written by a newer version of pgbaton", grant.lane),
                "Run that version, or a newer one",
            ));
        };
        let there = &bookmark.incarnation;
        if there == here {
            return match held_batch.cmp(&batch) {
                std::cmp::Ordering::Greater => Ok((Opened::Settled { batch: held_batch }, place(&bookmark)?)),
                std::cmp::Ordering::Equal => Ok((Opened::Ours { batch }, position)),
                std::cmp::Ordering::Less if self.resend => {
                    Ok((Opened::SinkLost { resend: true, batch, holds: held_batch }, place(&bookmark)?))
                }
                std::cmp::Ordering::Less => {
                    Ok((Opened::SinkLost { resend: false, batch, holds: held_batch }, position))
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
        Ok((Opened::Announced { batch: batch.max(held_batch) }, position))
    }
}

#[async_trait]
impl Source for NativeSource {
    async fn check(&self) -> Result<(), Error> {
        self.check_outbox().await
    }

    async fn open(&self, grant: &Grant, here: &Incarnation, sink_holds: Option<&Opaque>) -> Result<Opened, Error> {
        let (batch, position, found) = self.newest(grant).await?;
        if found != *here {
            return Err(Error::new(
                Kind::OtherIncarnation(found.clone()),
                format!("{grant} was claimed in {here}, the database is {found} now"),
            ));
        }
        self.same_incarnation(&found)?;
        let (opened, read_to) = self.settle(grant, (batch, position), here, sink_holds)?;
        self.log(|log| {
            log.incarnation = Some(found.clone());
            log.places
                .insert(grant.lane.number, Place { grant: grant.clone(), read_to: read_to.clone(), served: false });
        });
        if let Opened::Settled { batch } = opened {
            // Recorded as delivered before anything else is sent: it was.
            let next = bookmark(here, &read_to)?;
            let written = self.write(&[Dealt { grant: grant.clone(), batch, next }]).await;
            if !matches!(written.as_deref(), Ok([Acknowledged::Written(_)])) {
                self.close(grant);
                written?;
                return Err(Error::new(Kind::Database, format!("{grant} was lost while it was opened")));
            }
        }
        Ok(opened)
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

fn snapshot(text: &str) -> Result<Snapshot, Error> {
    text.parse().map_err(|error| Error::new(Kind::Internal, "a snapshot").because(error))
}

/// The last number given out, from `ceiling`.
fn number(rows: &[Row]) -> Result<i64, Error> {
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
